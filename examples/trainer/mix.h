// A 64-bit hash, which all random choices of the trainer are made of.
// Threads: any.
#pragma once
#include <cstdint>

#include "weir/parallel_for.h"

namespace trainer {

WEIR_HOST_DEVICE inline std::uint64_t mix(std::uint64_t x) noexcept {  // splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace trainer
