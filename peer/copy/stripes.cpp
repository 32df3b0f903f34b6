// Lanes over lent devices: creates them, splits a copy among them and joins it again.
// Threads: any. The lock is held over no driver call.
#include "peer/copy/stripes.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "peer/link/internal_stream.h"
#include "peer/link/links.h"
#include "runtime/base/round_up.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"

namespace weir::peer {
namespace {

std::byte* at(void const* base, std::size_t offset) {
  return const_cast<std::byte*>(static_cast<std::byte const*>(base)) + offset;
}

}  // namespace

struct stripes::state {
  // The lane of one lent device, for one device that copies.
  struct lane {
    lane(runtime::impl& r, int lent, int device, source_location where)
        : near(r, lent, "copy", where),
          far(r, device, "copy", where),
          memory(r.part<memory::device_memory>().on(lent, where)),
          room(allocate_scoped(memory, near.stream(), slots * largest_chunk, where)) {
      memory.record_use(room.get(), far.stream(), where);
    }
    void* slot() const noexcept { return at(room.get(), next * largest_chunk); }

    internal_stream near, far;
    memory::allocator& memory;
    memory::scoped_block room;
    std::size_t next = 0;
    std::array<clock::stamp, slots> emptied{};
    bool works = true;      // has refused nothing in this copy
    bool was_used = false;  // in this copy: join() waits for it
  };
  struct set {  // the lanes of one copy
    int device = -1;
    std::vector<int> helpers;
    std::vector<std::unique_ptr<lane>> lanes;
    clock::stamp last;  // of the copy's stream, after its copy
    bool whole = true;  // no lane has refused
  };
  struct kept {
    std::vector<std::unique_ptr<set>> idle;
    std::vector<int> made;  // by device: number of its sets
  };

  explicit state(runtime::impl& r)
      : owner(r), clocks(r.part<clock::clocks>()), pinned(r.part<streams::pinned_memory>()), ways(r.part<links>()) {
    static_cast<void>(r.part<memory::device_memory>());
    static_cast<void>(r.part<streams::stream_pool>());
    in.lock()->made.resize(static_cast<std::size_t>(r.device_count()));
  }

  runtime::impl& owner;
  clock::clocks& clocks;
  streams::pinned_memory& pinned;
  links& ways;
  base::guarded<kept> in;

  // The lent devices that can carry for `device`, each once.
  std::vector<int> usable(int device, std::span<int const> lent) {
    std::vector<int> all;
    for (int const one : lent) {
      if (one == device || clocks.lost(one) || std::find(all.begin(), all.end(), one) != all.end())
        continue;
      auto const known = ways.known(device, one);
      if ((known == links::link_state::claimed || known == links::link_state::proven) && ways.may_be_opened(one))
        all.push_back(one);
    }
    return all;
  }

  bool has(int device, std::vector<int> const& lent) {
    auto const all = in.lock();
    return std::ranges::any_of(
        all->idle, [&](auto const& one) { return one->device == device && one->helpers == lent && one->whole; });
  }
  bool is_over(set const& one, clock::stream_clock& stream) const {
    return stream.covers(one.last) || clocks.complete(one.last);
  }

  // Returns a set whose last copy is complete, or ordered before the stream's next work; null: there is none.
  std::unique_ptr<set> idle_for(clock::stream_clock& stream, std::vector<int> const& lent) {
    std::vector<clock::stamp> busy;
    if (auto found = take_if_over(stream, lent, &busy))
      return found;
    if (busy.empty())
      return nullptr;
    for (clock::stamp const s : busy)
      static_cast<void>(clocks.poll(s));  // some may be complete, unknown to the clocks
    return take_if_over(stream, lent, nullptr);
  }
  // busy: unless null, gets the last copies of fitting sets that are not known to be over.
  // Makes no driver call.
  std::unique_ptr<set> take_if_over(clock::stream_clock& stream, std::vector<int> const& lent,
                                    std::vector<clock::stamp>* busy) {
    auto all = in.lock();
    for (auto& one : all->idle) {
      if (one->device != stream.device() || one->helpers != lent || !one->whole)
        continue;
      if (is_over(*one, stream)) {
        auto found = std::move(one);
        std::erase(all->idle, nullptr);
        return found;
      }
      if (busy)
        busy->push_back(one->last);
    }
    return nullptr;
  }

  // Destroys idle sets in which a lane refused, and, if there are too many, sets for other lent devices. The
  // sets end after the lock is released.
  void let_go_of_useless(int device, std::vector<int> const& lent) {
    std::vector<std::unique_ptr<set>> useless;
    auto all = in.lock();
    useless.reserve(all->idle.size());  // first: a throw in the loop would leave nulls among the idle
    for (auto& one : all->idle) {
      bool const in_the_way =
          one->device == device && one->helpers != lent && all->made[static_cast<std::size_t>(device)] >= most_copies;
      bool const is_useless = !one->whole || in_the_way;
      if (!is_useless)
        continue;
      if (!clocks.complete(one->last))
        continue;  // its end would wait for its last copy
      --all->made[static_cast<std::size_t>(one->device)];
      useless.push_back(std::move(one));
    }
    std::erase(all->idle, nullptr);
  }

  // Returns: null if there are enough sets, or if none of these devices can be used now.
  std::unique_ptr<set> make(int device, std::vector<int> const& lent, source_location where) {
    let_go_of_useless(device, lent);
    // The steps below may wait for work of a device, and a collective there for a rank of this thread.
    if (!ways.may_try())
      return nullptr;
    auto fresh = std::make_unique<set>();  // first: it may throw, and would leave the count below too high
    {
      auto all = in.lock();
      int& made = all->made[static_cast<std::size_t>(device)];
      if (made >= most_copies)
        return nullptr;
      ++made;  // counted first, so that threads at once make no more than the most
    }
    try {
      fresh->device = device;
      fresh->helpers = lent;
      for (int const one : lent) {
        try {
          if (ways.prove(device, one, where) != links::link_state::proven)
            continue;
          auto own = std::make_unique<lane>(owner, one, device, where);
          if (own->memory.grant(own->room.get(), device).ok())
            fresh->lanes.push_back(std::move(own));
        } catch (error const&) {}  // other lanes carry it, or the copy goes direct
      }
    } catch (...) {}  // no host memory for more lanes
    if (fresh->lanes.empty()) {
      count_out(device);
      return nullptr;
    }
    // Later copies look for a set by this list, which then lacks links that were just found wrong.
    try {
      fresh->helpers = usable(device, lent);
    } catch (...) {}  // no host memory: with a wrong link, no later copy finds the set
    return fresh;
  }

  void count_out(int device) noexcept { --in.lock()->made[static_cast<std::size_t>(device)]; }

  void keep(std::unique_ptr<set> one) noexcept {
    int const device = one->device;
    try {
      in.lock()->idle.push_back(std::move(one));
    } catch (...) {
      count_out(device);
    }
  }
};

namespace {

// One copy in progress, as its lanes see it.
template <class Lane>
struct sharing {
  runtime::impl& owner;
  clock::clocks& clocks;
  streams::pinned_memory& pinned;
  clock::stream_clock& stream;
  endpoint const &dst, &src;
  source_location where;
  bool up() const noexcept { return src.on_host(); }
  endpoint const& host() const noexcept { return up() ? src : dst; }
  endpoint const& far_end() const noexcept { return up() ? dst : src; }

  void begin(Lane& l) {
    l.was_used = false;
    l.works = l.near.stream().wait(stream.now()).ok() && l.far.stream().wait(stream.now()).ok();
    if (l.works && far_end().memory)
      far_end().memory->record_use(far_end().at, l.far.stream(), where);
  }

  // Enqueues a chunk: to the slot by the first stream, and on by the second. Returns: false if one of them
  // refused. Then nothing was enqueued that writes to the copy's destination.
  bool pass(Lane& l, std::size_t offset, std::size_t bytes) noexcept {
    auto &first = up() ? l.near.stream() : l.far.stream(), &second = up() ? l.far.stream() : l.near.stream();
    clock::stamp& emptied = l.emptied[l.next];
    void* const slot = l.slot();
    try {
      if (!first.wait(emptied).ok())
        return false;
      l.was_used = true;  // before the copy: one that is refused may have begun
      if (up())
        streams::enqueue_copy(first, slot, at(src.at, offset), bytes, where);
      else
        streams::enqueue_peer_copy(first, slot, l.memory.device(), at(src.at, offset), stream.device(), bytes, where);
      emptied = first.now();  // stays so if the second stream refuses: nothing else reads the slot
      if (!second.wait(first.now()).ok())
        return false;
      if (up())
        streams::enqueue_peer_copy(second, at(dst.at, offset), stream.device(), slot, l.memory.device(), bytes, where);
      else
        streams::enqueue_copy(second, at(dst.at, offset), slot, bytes, where);
      emptied = second.now();
      l.next = (l.next + 1) % l.emptied.size();
      return true;
    } catch (...) {
      return false;
    }
  }

  // Orders the copy's stream after the lane's work, or lets the host wait for it.
  // Returns: the error if both failed.
  driver::status join(Lane& l) noexcept {
    driver::status failed;
    if (!l.was_used)
      return failed;
    if (host().block)
      pinned.record_use(host().at, l.near.stream().now());
    auto const *first = &l.near, *second = &l.far;  // as in pass()
    if (!up())
      std::swap(first, second);
    // Both: a second stream that has refused does not cover the last work of the first.
    for (auto const* one : {second, first}) {
      driver::status done = stream.wait(one->stream().now());
      if (!done.ok())
        done = clocks.synchronize(one->stream().now());
      if (!done.ok())
        failed = done;
    }
    return failed;
  }
};

}  // namespace

stripes::stripes(runtime::impl& r) : state_(std::make_unique<state>(r)) {}
stripes::~stripes() {
  // there is no driver left to return to
  if (process_is_ending() || process_was_forked())
    static_cast<void>(state_.release());
}

void stripes::prepare(int device, std::span<int const> lent, source_location where) {
  auto const usable = state_->usable(device, lent);
  if (usable.empty() || state_->has(device, usable))
    return;
  if (auto fresh = state_->make(device, usable, where))
    state_->keep(std::move(fresh));
}

bool stripes::any_reaches(int device, std::span<int const> lent) {
  return !state_->usable(device, lent).empty();
}

namespace {
// Chunks in turn: one by the stream itself, then one by each lane. The stream takes those of lanes that refuse.
template <class Sharing, class Lanes>
void enqueue_chunks(Sharing& all, Lanes& lanes, clock::stream_clock& stream, endpoint const& dst, endpoint const& src,
                    std::size_t bytes, source_location where) {
  std::size_t const shares = lanes.size() + 1;
  // About four chunks for each share, of a size within the bounds.
  std::size_t const fair = base::round_up(bytes / (4 * shares), stripes::smallest_chunk);
  std::size_t const chunk = std::clamp(fair, stripes::smallest_chunk, stripes::largest_chunk);
  for (std::size_t i = 0, offset = 0; offset < bytes; ++i, offset += chunk) {
    std::size_t const n = std::min(chunk, bytes - offset);
    std::size_t const whose = i % shares;
    if (whose > 0 && lanes[whose - 1]->works) {
      auto& by = *lanes[whose - 1];
      by.works = all.pass(by, offset, n);
      if (by.works)
        continue;
    }
    streams::enqueue_copy(stream, at(dst.at, offset), at(src.at, offset), n, where);
  }
}

// Orders the stream after each lane. A set with a lane that refused is not whole.
// Returns: the last error of join()
template <class Sharing, class Taken>
driver::status join_each(Sharing& all, Taken& taken) {
  driver::status failed;
  for (auto& one : taken.lanes) {
    if (auto const joined = all.join(*one); !joined.ok())
      failed = joined;
    taken.whole &= one->works && failed.ok();
  }
  return failed;
}
}  // namespace

bool stripes::carry(clock::stream_clock& stream, endpoint const& dst, endpoint const& src, std::size_t bytes,
                    std::span<int const> lent, source_location where, lanes which) {
  auto& my = *state_;
  // Each launch of a graph would use the lanes, which other copies own by then.
  auto const captured = my.owner.machine().capturing(stream.device(), stream.handle());
  if (!captured.ok() || captured.value)
    return false;
  auto const usable = my.usable(stream.device(), lent);
  if (usable.empty())
    return false;
  auto taken = my.idle_for(stream, usable);
  if (!taken && which == lanes::to_be_made)
    taken = my.make(stream.device(), usable, where);
  if (!taken)
    return false;
  streams::copy_in_parts const one_copy;
  sharing<state::lane> all{my.owner, my.clocks, my.pinned, stream, dst, src, where};
  std::exception_ptr thrown;
  try {
    for (auto& one : taken->lanes)
      all.begin(*one);
    enqueue_chunks(all, taken->lanes, stream, dst, src, bytes, where);
  } catch (...) {
    thrown = std::current_exception();
  }
  driver::status const failed = join_each(all, *taken);
  // After a throw the caller may access the host memory at once. The stream is ordered after the lanes.
  if (thrown)
    static_cast<void>(my.owner.machine().synchronize_stream(stream.device(), stream.handle()));
  taken->last = stream.now();
  my.keep(std::move(taken));
  if (thrown)
    std::rethrow_exception(thrown);
  if (!failed.ok())
    throw_refusal(
        failed, "copy",
        streams::range_text(dst.at, bytes) + " <- " + streams::range_text(src.at, bytes) + " over shared links",
        "Repeat the copy without the lost device", where);
  return true;
}

}  // namespace weir::peer
