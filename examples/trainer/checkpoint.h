// A trained model as a file of weir/checkpoint.h: what the model and its training need to go on.
// Threads: one per file.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model.h"
#include "weir/checkpoint.h"

namespace trainer {

struct checkpoint {
  model_shape shape;
  optimizer by = optimizer::sgd;
  std::int64_t step = 0;
  std::string characters;
  std::vector<float> values;  // model::save()
};
// All of it but the values.
weir::checkpoint_metadata texts_of(checkpoint const&);
// Throws: std::runtime_error with the file's name and the reason.
void write_checkpoint(std::filesystem::path const&, checkpoint const&);
checkpoint read_checkpoint(std::filesystem::path const&);

}  // namespace trainer
