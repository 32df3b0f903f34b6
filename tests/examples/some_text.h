// Sentences of a small grammar, which a model can learn.
// Threads: any.
#pragma once
#include <string>

#include "examples/trainer/mix.h"

namespace trainer {

inline std::string some_text(std::size_t bytes) {
  char const* const subjects[] = {"the stream", "a block", "the fence", "an arena", "the device", "a thread"};
  char const* const verbs[] = {"waits for", "holds", "frees", "covers", "copies", "records"};
  std::string s;
  for (std::uint64_t i = 0; s.size() < bytes; ++i) {
    s += std::string(subjects[mix(3 * i) % 6]) + " " + verbs[mix(3 * i + 1) % 6] + " " + subjects[mix(3 * i + 2) % 6] +
         (i % 4 == 3 ? ".\n" : ". ");
  }
  return s;
}

}  // namespace trainer
