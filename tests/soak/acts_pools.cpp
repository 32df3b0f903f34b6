// Pools: made, filled, put to sleep, woken, spilled, and ended in each of these states.
// Threads: one.
#include "tests/soak/actor.h"

namespace weir::soak {

void actor::pools() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::optional<pool> p;
  timed(call::pool, [&] { p.emplace("p", pool_options{.on = d, .limit = chance(2) ? 32_MiB : 0}); });
  pool_guard const here(*p);
  for (int i = 0; i < 3; ++i) {
    std::size_t const bytes = some_bytes();
    block const b{allocate(s, bytes), bytes};
    work(s, b.at, bytes);
    put(b, below(blocks_.size()));  // it may outlive the pool
  }
  timed(call::pool_end, [&] { p.reset(); });
}

void actor::sleep() {
  int const d = some_device();
  stream const& s = some_stream(d);
  pool p("asleep", {.on = d});
  std::vector<buffer> mine;
  std::uint64_t const first = next_id_;
  for (std::size_t i = 1 + below(3); i > 0; --i) {
    pool_guard const from(p);
    mine.emplace_back(s, 1_MiB);
    stamp(s, mine.back().data(), 1_MiB, next_id_++, delay());
  }
  bool const drops = chance(4);
  timed(call::sleep, [&] { p.sleep(drops ? sleep_to::nowhere : sleep_to::host); });
  timed(call::wake, [&] { p.wake(); });
  if (drops)
    return;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (chance(4))
      check_bytes(s, mine[i].data(), mine[i].size(), first + i, "a pool that slept");
  }
}

// Blocks end while the pool sleeps, or after a pool that ended asleep.
void actor::frees_asleep() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::vector<buffer> mine;
  pool p("freed asleep", {.on = d});
  {
    pool_guard const from(p);
    for (int i = 0; i < 3; ++i)
      mine.emplace_back(s, 1_MiB);
  }
  timed(call::sleep, [&] { p.sleep(); });
  if (chance(2))
    mine[below(3)].reset();
  if (chance(2))
    mine.clear();
  if (chance(2))
    timed(call::wake, [&] { p.wake(); });
  if (chance(2))
    mine.clear();
  timed(call::pool_end, [&] { pool const ended(std::move(p)); });
}

// Two pools that do not fit beside a large block make room, and are woken by their next use.
void actor::spills() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::size_t const bytes = in_.limit() / 16;
  pool a("a", {.on = d}), b("b", {.on = d});
  std::vector<device> beside;
  if (in_.devices() > 1 && chance(2))
    beside.push_back((d + 1) % in_.devices());
  buffer of_a, of_b;
  spill const turns({&a, &b}, {.neighbours = beside});
  {
    pool_guard const from(a);
    of_a = buffer(s, bytes);
  }
  {
    pool_guard const from(b);
    of_b = buffer(s, bytes);
  }
  stream const& lasts = in_.lasting_[static_cast<std::size_t>(d)]->on;
  timed(call::spill, [&] { deallocate(allocate(lasts, in_.limit() / 16 * 13)); });
  fill(s, of_a.data(), std::byte{1}, bytes);
  fill(s, of_b.data(), std::byte{2}, bytes);
  a.wake();
  b.wake();
}

void actor::registered_pools() {
  int const d = some_device();
  stream const& s = some_stream(d);
  std::optional<pool> p;
  timed(call::pool, [&] { p.emplace("registered", pool_options{.on = d, .limit = 2_MiB, .registered = true}); });
  buffer b;
  {
    pool_guard const from(*p);
    b = buffer(s, 1000);
  }
  work(s, b.data(), 1000);
  if (chance(2))
    b.reset();
  timed(call::pool_end, [&] { p.reset(); });
}

}  // namespace weir::soak
