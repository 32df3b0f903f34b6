// The kernel bodies, compiled for GPUs and for simulated devices.
#include "examples/share/words.h"

#include <vector>

#include "weir/copy.h"
#include "weir/parallel_for.h"

namespace share {
namespace {

constexpr std::size_t lanes = 1 << 16;

WEIR_HOST_DEVICE std::uint64_t word_at(std::uint64_t place, std::uint64_t round) {
  std::uint64_t z = (place + 1) * 0x9e3779b97f4a7c15u + round * 0xd1b54a32d192ed03u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  return z ^ (z >> 27);
}

struct write_words {
  std::uint64_t* words;
  std::uint64_t round;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { words[i] = word_at(i, round); }
};

struct sum_words {
  checksum::result* into;
  std::uint64_t const* words;
  std::size_t count;
  std::uint64_t round;
  WEIR_HOST_DEVICE void operator()(std::size_t lane) const {
    checksum::result r = into[lane];
    for (std::size_t i = lane; i < count; i += lanes) {
      r.sum = (r.sum ^ words[i]) * 0x100000001b3u;
      r.wrong += words[i] != word_at(i, round);
    }
    into[lane] = r;
  }
};

}  // namespace

void fill(weir::stream_ref s, std::uint64_t* words, std::size_t count, std::uint64_t round) {
  weir::parallel_for(s, count, {weir::writes(words, count * 8)}, write_words{words, round});
}

checksum::checksum(weir::stream_ref s, weir::device on) : lanes_(lanes * sizeof(result), {.on = on}) {
  std::vector<result> const none(lanes);
  weir::copy(s, lanes_.data(), none.data(), lanes_.size());
}

void checksum::add(weir::stream_ref s, std::uint64_t const* words, std::size_t count, std::uint64_t round) {
  auto* const into = lanes_.data<result>();
  weir::parallel_for(s, lanes, {weir::reads(words, count * 8), weir::updates(into, lanes_.size())},
                     sum_words{into, words, count, round});
}

checksum::result checksum::read(weir::stream_ref s) const {
  std::vector<result> all(lanes);
  weir::copy(s, all.data(), lanes_.data(), lanes_.size());
  result out;
  for (result const& lane : all) {
    out.sum = (out.sum ^ lane.sum) * 0x100000001b3u;
    out.wrong += lane.wrong;
  }
  return out;
}

}  // namespace share
