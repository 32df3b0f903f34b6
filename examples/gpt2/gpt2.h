// GPT-2 (Radford and others, "Language Models are Unsupervised Multitask Learners", 2019) in LibTorch, trained
// data-parallel by weir: what the program and its test share. compare.py trains the same in PyTorch.
// Threads: one for each rank calls train(). A corpus is read by all.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "weir/collective.h"

namespace gpt2 {

struct settings {
  std::string tokens, load, save;  // files; empty: none
  std::int64_t layers = 12, heads = 12, width = 768, context = 1024, vocabulary = 50257;
  std::int64_t batch = 8, accumulate = 1;  // rows of a rank in a pass, passes of a step
  std::int64_t steps = 200, warmup = 10, every = 10, seed = 1;
  double rate = 6e-4, decay = 0.1, clip = 1;
  std::string dtype = "fp32", reduce = "fp32", allocator = "weir";
};

struct corpus {
  std::vector<std::uint16_t> training, validation;  // the last tenth is for validation
};
// Reads a file whose name ends in .bin as llm.c's tokens: 256 int32 (20240520, 1, count, 0, ...), then uint16. Other
// files are text: each byte is a token. Throws: std::runtime_error (what the file lacks)
corpus read(settings const&);
// Writes `batch` rows of inputs, then as many of targets. Row r begins at the fraction r * 0.618... of the tokens,
// moved by the seed.
void fill(std::span<std::uint16_t const> from, std::int64_t first_row, settings const&, std::int64_t* into);

// LibTorch's settings of the process. Requires: no tensor on a GPU so far
void prepare(settings const&);
struct outcome {
  std::vector<double> losses;  // of each `every` steps, mean over them and all ranks
  double validation = 0;
};
// Trains this rank's replica. Prints a line every so many steps, if asked to.
// Throws: std::runtime_error, checkpoint_error (a checkpoint of another model), and what weir and LibTorch throw
outcome train(settings const&, corpus const&, weir::communicator&, bool prints);

}  // namespace gpt2
