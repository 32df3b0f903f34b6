// How much a stream could allocate now: what recovery steps could gather, reckoned without taking a step.
// Threads: as memory_audit.h.
//
// A handle with no byte in use can move, or go back to the driver and be made anew: its bytes serve any place. A
// handle with a byte in use stays where it is, and its free parts serve a block that reaches into it.
#include <algorithm>

#include "runtime/memory/device/memory_audit.h"
#include "runtime/observe/external_memory.h"

namespace weir::memory {
namespace {

using opening = memory_audit::room::opening;

class openings {
 public:
  openings(excluded const& of, region const& in) : of_(of), in_(in) {}
  std::vector<opening> blocks, runs;  // below region::runs, and above
  std::size_t whole_bytes = 0;        // of handles without a byte in use
  std::map<address, memory_audit::room::partly_free> stays;

  // Free, unmapped and pending bytes are openings: recovery waits for pending ones.
  void walk() {
    address idle = in_.base;
    auto const used = [&](address from, address to) {
      close(idle, from);
      idle = to;
    };
    for (heap_block const* p = in_.first; p; p = p->after) {
      // No opening reaches into both parts.
      if (p->at == in_.runs)
        used(p->at, p->at);
      if (p->is == state::live || p->is == state::reserved)
        used(p->at, p->end());
      if (p->is == state::slab)
        each_cell_in_use(*p, used);
    }
    close(idle, in_.base + in_.bytes);
  }

 private:
  // Cells without a live slot return to the arena when memory is short.
  template <class Used>
  static void each_cell_in_use(heap_block const& run, Used used) {
    run.in_slab->each_slot(run, [&](slab const& s, std::uint32_t i) {
      if (s.at(i) != slot::live)
        return;
      used(std::max(run.at, round_down(s.start(i), cell)), std::min(run.end(), round_up(s.start(i) + s.size, cell)));
    });
  }
  void close(address from, address to) {
    if (from >= to)
      return;
    opening g{0, to - from, 0};
    handle const* const first = in_.page(from);
    handle const* const last = in_.page(to - 1);
    // Handles that reach into the opening from both sides. One that reaches over all of it counts as its head.
    bool const enters = first && first->at < from;
    bool const leaves = last && last->at + last->bytes > to;
    bool const is_one = enters && first == last;
    if (enters)
      g.head = std::min(to, first->at + first->bytes) - from;
    if (leaves && !is_one)
      g.tail = to - last->at;
    if (enters)
      stays.try_emplace(first->at, first->at, first->bytes, 0).first->second.free += g.head;
    if (g.tail)
      stays.try_emplace(last->at, last->at, last->bytes, 0).first->second.free += g.tail;
    g.between -= g.head + g.tail;
    address const end = to - g.tail;
    of_.each_handle_from(from + g.head, end, [&](handle const& h) { whole_bytes += h.bytes; });
    (from < in_.runs ? blocks : runs).push_back(g);
  }

  excluded const& of_;
  region const& in_;
};

// Of handles that the driver could make.
std::size_t bytes_to_be_made(device_context const& of) {
  auto const left = of.machine.memory(of.device);
  std::size_t bytes = left.ok() ? left.value.free : 0;
  bytes += of.runtime.part<observe::external_memory>().idle(of.device);
  return bytes - std::min(bytes, of.driver_reserve);
}

}  // namespace

std::size_t memory_audit::room::opening::largest(std::size_t anywhere, bool grows) const noexcept {
  std::size_t const may_be_mapped = grows ? anywhere : 0;
  if (between <= may_be_mapped)
    return all();
  return may_be_mapped + std::max(head, tail);
}

std::size_t memory_audit::room::opening::ends() const noexcept {
  if (between == 0)
    return head + tail >= granule ? head + tail : 0;
  return (head >= granule ? head : 0) + (tail >= granule ? tail : 0);
}

std::size_t memory_audit::room::place::lacks(std::size_t bytes) const noexcept {
  std::size_t least = bytes;
  for (opening const& g : openings)
    if (bytes <= g.all())
      least = std::min(least, g.lacks(bytes));
  return least;
}

memory_audit::room memory_audit::look_for_room(stream_heap const* mine, memory_pool const& pool, graphs which,
                                               std::uint64_t readers) const {
  std::size_t const page = of_.space.page_bytes(), reserved = of_.counts.reserved(), limit = of_.counts.limit();
  std::size_t const fresh = bytes_to_be_made(of_);
  std::size_t const allowed = limit ? limit - std::min(limit, reserved) : fresh;
  std::size_t whole = 0, whole_here = 0;
  if (mine)
    readers = mine->readers();
  room out;
  out.limited = allowed < fresh;
  for (stream_heap* m : heaps_.all()) {
    memory_pool const& its = m->pool();
    bool const ending = which == graphs::when_over && its.is_ending();  // of a graph that is gone, but for its work
    bool const stays = its.rules().pages_stay && !ending;
    bool const here = &its == &pool;
    // As heap_table::may_lend(), and what is ending counts as left.
    bool const serves = its.serves(pool) || (ending && pool.is == memory_pool::kind::rest);
    bool const lends = m == mine || (serves && (readers & ~m->readers()) == 0);
    quiet_session in(*m);
    if (m->is_asleep())
      continue;
    in.shut_caches();
    in.each_region([&](region const& r) {
      openings its_free(in, r);
      its_free.walk();
      if (!stays)
        whole += its_free.whole_bytes;
      if (!stays && here)
        whole_here += its_free.whole_bytes;
      for (auto const& [at, h] : its_free.stays)
        out.stays.push_back(h);
      if (!lends)
        return;
      out.places.push_back({m, arena::zone::blocks, std::move(its_free.blocks)});
      if (!its_free.runs.empty())
        out.places.push_back({m, arena::zone::runs, std::move(its_free.runs)});
    });
  }
  std::size_t const in_all = std::min(fresh, allowed) + whole;
  std::size_t const room_here = pool.room();
  // The pool's own handles are charged to it already. All else needs room under its limit. Without a limit
  // the room is so large that the sum would overflow.
  std::size_t const in_pool = room_here > in_all ? in_all : room_here + whole_here;
  out.pool_is_full = in_pool < in_all;
  out.anywhere = round_down(std::min(in_all, in_pool), page);
  for (room::place& p : out.places) {
    for (opening const& g : p.openings) {
      p.largest = std::max(p.largest, g.largest(out.anywhere, of_.space.maps()));
      out.ends += g.ends();
    }
  }
  return out;
}

weir::headroom memory_audit::headroom(clock::stream_clock const& home, memory_pool const& pool) const {
  stream_heap const* mine = nullptr;
  heaps_.each_of(home, [&](stream_heap const& m) {
    if (&m.pool() == &pool)
      mine = &m;
  });
  room const all = look_for_room(mine, pool, graphs::when_over, heaps_.readers_of(home));
  std::size_t largest = all.anywhere;
  for (auto const& p : all.places)
    largest = std::max(largest, p.largest);
  // Less serves no request: slots need a run of that size.
  if (largest < granule)
    largest = 0;
  return {.largest = largest, .bytes = std::max(largest, all.anywhere + all.ends)};
}

}  // namespace weir::memory
