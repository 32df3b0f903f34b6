// Saves a trained model to a file atomically, and rejects damaged files.
// Threads: one per file.
//
// Format, little-endian: "weirckpt", version (u32), context, vocabulary, embedding, hidden, layers (i32
// each), optimizer (i32; not in version 1), step (i64), the characters (vocabulary bytes), the number of
// floats (u64), the floats, CRC-32 of all preceding bytes (u32).
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model.h"

namespace trainer {

struct checkpoint {
  model_shape shape;
  optimizer by = optimizer::sgd;
  std::int64_t step = 0;
  std::string characters;
  std::vector<float> values;  // model::save()
};
// Throws: std::runtime_error with the file's name and the reason.
void write_checkpoint(std::filesystem::path const&, checkpoint const&);
checkpoint read_checkpoint(std::filesystem::path const&);

}  // namespace trainer
