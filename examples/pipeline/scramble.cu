// The kernel body, compiled for GPUs and for simulated devices.
#include "examples/pipeline/scramble.h"

#include "weir/parallel_for.h"

namespace pipeline {
namespace {

WEIR_HOST_DEVICE std::uint64_t mixed(std::uint64_t word, std::uint64_t place) {
  std::uint64_t z = (place + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return word ^ z ^ (z >> 31);
}

struct mix {
  std::uint64_t* y;
  std::uint64_t const* x;
  std::uint64_t first;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { y[i] = mixed(x[i], first + i); }
};

}  // namespace

void scramble(weir::stream_ref s, std::uint64_t* y, std::uint64_t const* x, std::uint64_t first, std::size_t words) {
  weir::parallel_for(s, words, {weir::reads(x, words * 8), weir::writes(y, words * 8)}, mix{y, x, first});
}
std::uint64_t scrambled(std::uint64_t word, std::uint64_t place) {
  return mixed(word, place);
}

}  // namespace pipeline
