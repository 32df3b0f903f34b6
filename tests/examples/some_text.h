// Sentences of a small grammar, which a model can learn.
// Threads: any.
#pragma once
#include <cstdint>
#include <random>
#include <string>

namespace trainer {

inline std::string some_text(std::size_t bytes) {
  char const* const subjects[] = {"the stream", "a block", "the fence", "an arena", "the device", "a thread"};
  char const* const verbs[] = {"waits for", "holds", "frees", "covers", "copies", "records"};
  std::string s;
  std::mt19937 random(1);
  for (std::uint64_t i = 0; s.size() < bytes; ++i) {
    s += std::string(subjects[random() % 6]) + " ";
    s += std::string(verbs[random() % 6]) + " ";
    s += std::string(subjects[random() % 6]) + (i % 4 == 3 ? ".\n" : ". ");
  }
  return s;
}

}  // namespace trainer
