// Hops: the copies of a collective with a root, access to their memory, and their order.
// Threads: as copy_chains.h says. The lock is held over no driver call.
#include "peer/collective/copy_chains.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "peer/link/internal_stream.h"
#include "peer/link/links.h"
#include "runtime/base/round_up.h"
#include "streams/copy/copy_engine.h"

namespace weir::peer {
namespace {

struct hop {
  std::size_t by, from, to;  // ranks: the stream's, the source's and the destination's
  std::byte* dst;
  std::byte const* src;
};

std::byte* slice(void const* whole, std::size_t k, std::size_t bytes) {
  return const_cast<std::byte*>(static_cast<std::byte const*>(whole)) + k * bytes;
}

std::vector<hop> hops_of(std::span<rank_request const> parts) {
  collective_request const& first = parts.front().what;
  std::size_t const root = static_cast<std::size_t>(first.root), bytes = first.part_bytes(), n = parts.size();
  std::vector<hop> all;
  all.reserve(n);
  for (std::size_t i = 1; i < n; ++i) {
    std::size_t const rank = (root + i) % n, before = (root + i - 1) % n;
    auto const& its = parts[rank].what;
    switch (first.what) {
      case collective::broadcast:
        all.push_back({before, before, rank, static_cast<std::byte*>(its.out),
                       static_cast<std::byte const*>(parts[before].what.out)});
        break;
      case collective::scatter:
        all.push_back({root, root, rank, static_cast<std::byte*>(its.out), slice(parts[root].what.in, rank, bytes)});
        break;
      default:
        all.push_back(
            {rank, rank, root, slice(parts[root].what.out, rank, bytes), static_cast<std::byte const*>(its.in)});
        break;
    }
  }
  return all;
}

}  // namespace

struct chains::lanes {
  std::vector<int> devices;
  std::array<std::vector<std::unique_ptr<internal_stream>>, side_by_side> of;
  bool leased = true;
};

struct chains::state {
  explicit state(runtime::impl& r)
      : owner(r), clocks(r.part<clock::clocks>()), memory(r.part<memory::device_memory>()) {
    static_cast<void>(r.part<streams::stream_pool>());
  }
  runtime::impl& owner;
  clock::clocks& clocks;
  memory::device_memory& memory;
  base::guarded<std::vector<std::unique_ptr<lanes>>> all;

  bool is_idle(lanes const& one) const {
    return std::ranges::all_of(one.of, [&](auto const& each) {
      return std::ranges::all_of(each, [&](auto const& s) {
        auto const done = clocks.poll(s->stream().now());
        return done.ok() && done.value;
      });
    });
  }

  std::string why_closed(hop const& h, std::span<rank_request const> parts, source_location at) {
    auto& ways = owner.part<links>();
    int const from = parts[h.from].stream->device(), to = parts[h.to].stream->device();
    auto const is = ways.known(from, to);
    if (is == links::link_state::refused)
      return base::gpu_name(from) + " does not reach memory of " + base::gpu_name(to);
    if (is == links::link_state::wrong)
      return "the link from " + base::gpu_name(from) + " to " + base::gpu_name(to) + " failed its test";
    if (!ways.may_be_opened(to))
      return "memory of " + base::gpu_name(to) + " consists of segments, which peers cannot access";
    auto* const its = memory.owner(h.dst);
    auto const block = its ? its->find(h.dst) : std::nullopt;
    if (!block)
      return "rank " + std::to_string(h.to) + " passed memory that weir did not allocate";
    auto const open = [&] { return its->granted(h.dst, from) && ways.known(from, to) == links::link_state::proven; };
    if (!open())
      ways.count_bytes(from, *its, *block, parts[h.to].what.part_bytes(), at);
    return open() ? "" : "memory of rank " + std::to_string(h.to) + " is not open to " + base::gpu_name(from) + " yet";
  }

  // A lost device stops at an unknown time: memory that it may still access is marked, never reused.
  void hold_back(void const* at, clock::stream_clock& stream, source_location where) noexcept {
    try {
      if (auto* const its = memory.owner(at))
        its->record_use(at, stream, where);
    } catch (...) {}
  }

  driver::status order(clock::stream_clock& later, clock::stream_clock& earlier) noexcept {
    try {
      auto const done = later.wait(earlier.now());
      return done.ok() ? done : clocks.synchronize(earlier.now());
    } catch (...) {
      return owner.machine().synchronize_stream(earlier.device(), earlier.handle());
    }
  }
};

namespace {

// One collective in progress.
template <class State>
struct carrying {
  State& my;
  std::span<rank_request const> parts;
  std::vector<hop> const& hops;
  std::size_t streams;                                                       // streams of each hop
  std::array<std::vector<clock::stream_clock*>, chains::side_by_side> by{};  // by stream and hop
  std::vector<bool> begun, ended;                                            // by hop
  source_location at;
  driver::status refused{};  // the first refusal

  clock::stream_clock& from(std::size_t k) const { return *parts[hops[k].from].stream; }
  clock::stream_clock& to(std::size_t k) const { return *parts[hops[k].to].stream; }
  bool went(driver::status s) { return refused.ok() && (refused = s).ok(); }

  bool begin(std::size_t k) {
    begun[k] = true;
    for (std::size_t s = 0; s < streams; ++s)
      if (!went(by[s][k]->wait(from(k).now())) || !went(by[s][k]->wait(to(k).now())))
        return false;
    return true;
  }
  bool pass(std::size_t k, std::size_t offset, std::size_t bytes, std::size_t stream = 0) {
    return went(streams::try_peer_copy(*by[stream][k], hops[k].dst + offset, to(k).device(), hops[k].src + offset,
                                       from(k).device(), bytes, at));
  }

  void broadcast(std::size_t bytes, std::size_t chunk) {
    for (std::size_t k = 0; k < hops.size() && begin(k); ++k) {}
    std::size_t in_turn = 0;
    for (std::size_t offset = 0; offset < bytes && refused.ok(); offset += chunk, in_turn = (in_turn + 1) % streams) {
      auto const& now = by[in_turn];
      for (std::size_t k = 0; k < hops.size(); ++k) {
        if (k > 0 && !went(now[k]->wait(now[k - 1]->now())))
          return;  // the hop before has brought this chunk
        if (!pass(k, offset, std::min(chunk, bytes - offset), in_turn))
          return;
      }
    }
  }

  void spread(collective_request const& what) {
    auto const& root = parts[static_cast<std::size_t>(what.root)];
    std::size_t const bytes = what.part_bytes();
    bool const scatters = what.what == collective::scatter;
    std::byte* const part = slice(scatters ? root.what.in : root.what.out, static_cast<std::size_t>(what.root), bytes);
    void* const apart = scatters ? root.what.out : const_cast<void*>(root.what.in);
    if (part != apart &&
        !went(root.stream->note(my.owner.machine().copy(root.stream->device(), root.stream->handle(),
                                                        scatters ? apart : part, scatters ? part : apart, bytes))))
      return;
    // A gather's hops all wait for the root's current work, not for each other. A scatter's hops share one
    // stream: a late rank must not delay the ranks before it.
    for (std::size_t k = 0; !scatters && k < hops.size() && begin(k); ++k) {}
    for (std::size_t k = 0; k < hops.size() && refused.ok() && (begun[k] || begin(k)) && pass(k, 0, bytes); ++k)
      end(k);
  }

  // Orders both ranks' streams after the hop.
  void end(std::size_t k) noexcept {
    ended[k] = true;
    for (std::size_t s = 0; s < streams; ++s) {
      clock::stream_clock& done = *by[s][k];
      for (auto* const stream : {&to(k), &from(k)}) {
        auto const ordered = my.order(*stream, done);
        if (ordered.ok())
          continue;
        if (refused.ok() || ordered.what == driver::code::lost)
          refused = ordered;
        my.hold_back(hops[k].dst, done, at);
        my.hold_back(hops[k].src, done, at);
      }
    }
  }
  void end() noexcept {
    for (std::size_t k = 0; k < hops.size(); ++k)
      if (begun[k] && !ended[k])
        end(k);
  }
};

}  // namespace

chains::chains(runtime::impl& r)
    : state_(std::make_unique<state>(r)),
      from_(r.options().copy_collectives_from ? r.options().copy_collectives_from
            : r.machine().simulated()         ? never
                                              : as_usual) {}
chains::~chains() {
  // there is no driver left to return to
  if (process_is_ending() || process_was_forked())
    static_cast<void>(state_.release());
}

chains::lanes* chains::lease(std::vector<int> const& devices, source_location at) {
  auto& my = *state_;
  std::vector<lanes*> left;  // left by communicators that have ended
  {
    auto all = my.all.lock();
    for (auto const& one : *all)
      if (!std::exchange(one->leased, one->leased || one->devices == devices) && one->leased)
        left.push_back(one.get());
  }
  lanes* found = nullptr;
  for (lanes* const one : left) {
    if (!found && my.is_idle(*one))
      found = one;
    else
      give_back(one);
  }
  if (found)
    return found;
  auto fresh = std::make_unique<lanes>();
  fresh->devices = devices;
  for (auto& each : fresh->of)
    for (int const device : devices)
      each.push_back(std::make_unique<internal_stream>(my.owner, device, "communicator::create_all", at));
  auto all = my.all.lock();
  all->push_back(std::move(fresh));
  return all->back().get();
}

void chains::give_back(lanes* one) noexcept {
  auto all = state_->all.lock();
  one->leased = false;
}

std::size_t chains::chunk_for(std::size_t bytes, std::size_t hops) const noexcept {
  if (std::size_t const set = chunk_.load(base::memory_order_relaxed))
    return std::min(set, bytes);
  if (hops < 2)
    return bytes;
  // (chunks + hops - 1) * cost of a chunk is smallest at this chunk size.
  double const best =
      std::sqrt(static_cast<double>(bytes) * static_cast<double>(chunk_cost) / static_cast<double>(hops - 1));
  std::size_t const least = std::max(bytes / most_chunks, static_cast<std::size_t>(best));
  return std::min(bytes, base::round_up(least, chunk_unit));
}

std::string chains::why_not(std::span<rank_request const> parts, source_location at) noexcept try {
  for (std::size_t rank = 0; rank < parts.size(); ++rank)
    if (parts[rank].captured)
      return "the stream of rank " + std::to_string(rank) + " is captured";
  std::string why;
  for (hop const& h : hops_of(parts)) {  // all hops, so that each counts its bytes
    if (std::string one = state_->why_closed(h, parts, at); why.empty())
      why = std::move(one);
  }
  return why;
} catch (...) {
  return "no host memory";  // fits without an allocation: one would end the process here
}

driver::status chains::carry(lanes& on, std::span<rank_request const> parts, source_location at) noexcept try {
  collective_request const& what = parts.front().what;
  std::vector<hop> const hops = hops_of(parts);
  std::size_t const chunk =
      what.what == collective::broadcast ? chunk_for(what.part_bytes(), hops.size()) : what.part_bytes();
  std::size_t const streams = chunk < what.part_bytes() ? side_by_side : 1;
  carrying all{*state_, parts, hops, streams, {}, std::vector<bool>(hops.size()), std::vector<bool>(hops.size()), at};
  for (std::size_t s = 0; s < streams; ++s)
    for (hop const& h : hops)
      all.by[s].push_back(&on.of[s][h.by]->stream());
  try {
    if (what.what == collective::broadcast)
      all.broadcast(what.part_bytes(), chunk);
    else
      all.spread(what);
  } catch (...) {
    all.refused = {driver::code::failed, 0};
  }
  all.end();
  return all.refused;
} catch (...) {
  return {driver::code::failed, 0};  // nothing was enqueued
}

std::string chains::text_of(std::span<rank_request const> parts) const {
  collective_request const& what = parts.front().what;
  std::size_t const hops = parts.size() - 1, bytes = what.part_bytes();
  std::string s = "copies: " + std::to_string(hops) + (hops == 1 ? " hop" : " hops");
  if (what.what != collective::broadcast)
    return s;
  std::size_t const chunk = chunk_for(bytes, hops), chunks = (bytes + chunk - 1) / chunk;
  return s + (chunks == 1 ? ", one chunk"
                          : ", " + std::to_string(chunks) + " chunks of " + std::to_string(chunk >> 10) + " KiB");
}

}  // namespace weir::peer
