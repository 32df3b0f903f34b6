// Opens all memory of a stream or a device to peers, or all memory between devices that have met.
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

void links::enable_peer_access(int to, clock::stream_clock* home, std::span<int const> readers, source_location at) {
  std::uint64_t all = 0;
  std::string names;
  for (int const from : readers) {
    if (from == to || (all & bit(from))) continue;
    must_reach(from, to, "enable_peer_access", at);
    all |= bit(from);
    names += (names.empty() ? "gpu:" : ", gpu:") + std::to_string(from);
  }
  auto const refused = home ? memory_of(to).open_to(home, all) : open_all(to, all);
  require(refused, "enable_peer_access", "memory of gpu:" + std::to_string(to) + " for " + names,
          "Copy instead, or repeat the call", at);
}

bool links::open_to_each_other(int a, int b, source_location at) noexcept {
  bool news = false;
  for (auto const& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    try {
      if (!wants_to_meet(from, to)) continue;
      if (known(from, to) == link_state::claimed && !may_try()) continue;
      news = true;
      bool const proven = may_be_opened(to) && prove(from, to, at) == link_state::proven;
      auto const opened = proven ? open_all(to, bit(from)) : driver::status{driver::code::not_supported};
      if (opened.ok() || opened.what == driver::code::not_supported) have_met(from, to);
    } catch (...) {}  // tried again later: copies work without a grant
  }
  return news;
}

}  // namespace weir::peer

namespace weir {
namespace {

void open(runtime::impl& r, int owner, clock::stream_clock* home, std::vector<device> const& readers,
          source_location at) {
  std::vector<int> ordinals;
  for (device const one : readers) ordinals.push_back(streams::resolve(one, r, "enable_peer_access", at));
  r.part<peer::links>().enable_peer_access(owner, home, ordinals, at);
}

}  // namespace

void enable_peer_access(stream_ref s, std::vector<device> const& readers, source_location at) {
  auto& stream = streams::clock_or_throw(s, "enable_peer_access", at);
  open(stream.owner(), stream.device(), &stream, readers, at);
}

void enable_peer_access(device owner, std::vector<device> const& readers, source_location at) {
  auto& r = streams::current_runtime(at);
  open(r, streams::resolve(owner, r, "enable_peer_access", at), nullptr, readers, at);
}

std::vector<device> memory_readers(stream_ref s, source_location at) {
  auto& stream = streams::clock_or_throw(s, "memory_readers", at);
  std::vector<device> all;
  for (std::uint64_t left = stream.owner().part<memory::device_memory>().on(stream.device(), at).readers(stream); left;
       left &= left - 1)
    all.emplace_back(std::countr_zero(left));
  return all;
}

}  // namespace weir
