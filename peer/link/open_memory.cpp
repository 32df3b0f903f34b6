// Memory that is open to peers as a whole:
// a stream's, a device's, or all there is between devices that have met.
// Threads: any.
#include <bit>
#include <string>
#include <vector>

#include "peer/link/links.h"
#include "streams/stream/context.h"
#include "weir/peer.h"

namespace weir::peer {
namespace {

constexpr std::uint64_t bit(int device) noexcept { return std::uint64_t{1} << (device & 63); }

}  // namespace

void links::open_memory(int to, clock::timeline* home, std::span<int const> readers, here at) {
  std::uint64_t all = 0;
  std::string names;
  for (int const from : readers) {
    if (from == to || (all & bit(from))) continue;
    must_reach(from, to, "open_memory", at);
    all |= bit(from);
    names += (names.empty() ? "gpu:" : ", gpu:") + std::to_string(from);
  }
  auto const refused = home ? memory_of(to).open_to(home, all) : open_all(to, all);
  require(refused, "open_memory", "memory of gpu:" + std::to_string(to) + " for " + names, "Copy instead, or try again",
          at);
}

bool links::meet(int a, int b, here at) noexcept {
  bool news = false;
  for (auto const& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    try {
      if (!wants_to_meet(from, to)) continue;
      if (known(from, to) == trust::claimed && !may_try()) continue;
      news = true;
      bool const proven = may_be_opened(to) && prove(from, to, at) == trust::proven;
      auto const opened = proven ? open_all(to, bit(from)) : driver::status{driver::code::not_supported};
      if (opened.ok() || opened.what == driver::code::not_supported) have_met(from, to);
    } catch (...) {}  // another time: copies work without
  }
  return news;
}

}  // namespace weir::peer

namespace weir {
namespace {

void open(runtime::impl& r, int owner, clock::timeline* home, std::vector<device> const& readers, here at) {
  std::vector<int> ordinals;
  for (device const one : readers) ordinals.push_back(streams::resolve(one, r, "open_memory", at));
  r.part<peer::links>().open_memory(owner, home, ordinals, at);
}

}  // namespace

void open_memory(stream_ref s, std::vector<device> const& readers, here at) {
  auto& line = streams::line_or_throw(s, "open_memory", at);
  open(line.owner(), line.device(), &line, readers, at);
}

void open_memory(device owner, std::vector<device> const& readers, here at) {
  auto& r = streams::current_runtime(at);
  open(r, streams::resolve(owner, r, "open_memory", at), nullptr, readers, at);
}

std::vector<device> memory_readers(stream_ref s, here at) {
  auto& line = streams::line_or_throw(s, "memory_readers", at);
  std::vector<device> all;
  for (std::uint64_t left = line.owner().part<memory::device_memory>().on(line.device(), at).readers(line); left;
       left &= left - 1)
    all.emplace_back(std::countr_zero(left));
  return all;
}

}  // namespace weir
