// Streams of weir's, of the program's, events, threads and exceptions.
// Threads: one; some acts begin others.
#include "tests/soak/actor.h"
#include "tests/soak/foreign_stream.h"
#include "weir/memory.h"

namespace weir::soak {

// Streams end while their work runs and their blocks live.
void actor::own_streams() {
  int const d = some_device();
  auto const flags = chance(4) ? stream_flags::blocking : stream_flags::non_blocking;
  std::optional<stream> made;
  timed(call::stream, [&] { made.emplace(weir::device(d), flags, chance(4) ? priority::high : priority::normal); });
  buffer const b(*made, some_bytes());
  work(*made, b.data(), b.size());
  stream const& other = some_stream(d);
  timed(call::wait, [&] { other.wait(*made); });
  auto& slot = streams_[below(2) * static_cast<std::size_t>(in_.devices()) + static_cast<std::size_t>(d)];
  timed(call::stream_end, [&] { slot.reset(); });
  slot = std::move(made);
}

void actor::borrowed_streams() {
  int const d = some_device();
  foreign_stream const f(in_.driver(), d, chance(4) ? stream_flags::blocking : stream_flags::non_blocking);
  auto s = timed(call::borrow, [&] { return borrow_stream(d, f.handle()); });
  std::size_t const bytes = some_bytes();
  void* const at = timed(call::allocate, [&] { return allocate(s, bytes); });
  work(s, at, bytes);
  if (chance(2))
    some_stream(d).wait(s);
  switch (below(3)) {
    case 0: deallocate(borrow_stream(d, f.handle()), at); break;  // ordered behind its work
    case 1: deallocate(at); break;                                // may wait for the device
    default: put({at, bytes}, below(blocks_.size()));             // outlives the stream
  }
}

void actor::registered_streams() {
  int const d = some_device();
  foreign_stream const f(in_.driver(), d);
  std::optional<external_stream> s;
  timed(call::register_stream, [&] { s.emplace(weir::device(d), f.handle()); });
  buffer const b(*s, some_bytes());
  work(*s, b.data(), b.size());
  if (chance(2)) {
    stream_guard const here(*s);
    buffer const more(some_bytes());
  }
  timed(call::unregister_stream, [&] { s.reset(); });
}

void actor::events() {
  int const d = some_device();
  stream const &a = some_stream(d), &b = some_stream(some_device());
  bool const timing = chance(4);
  event first({.timing = timing, .blocking_sync = chance(4)});
  timed(call::record, [&] { first.record(a); });
  timed(call::wait, [&] { b.wait(first); });
  if (timing) {
    event second({.timing = true});
    second.record(a);
    second.synchronize();
    (void)first.elapsed_time(second);
  }
  auto& slot = events_[below(events_.size())];
  if (slot && chance(2))
    slot->synchronize();
  slot.emplace(std::move(first));
}

// A thread ends with its caches, its current stream and its per-thread stream; its blocks may outlive it.
void actor::threads() {
  int const d = some_device();
  std::uint64_t const draw = random_();
  std::string failure;
  timed(call::thread, [&] {
    std::thread([&, this] {
      try {
        runtime_guard const in(in_.machine());
        device_guard const on(d);
        std::mt19937_64 random(draw);
        stream const own;
        stream_guard const here(own);
        std::vector<buffer> some;
        for (int i = 0; i < 20; ++i)
          some.emplace_back(std::size_t{16} << random() % 12);
        for (int i = 0; i < 4; ++i)
          deallocate(in_.exchange(random(), allocate(500)));
        if (random() % 4 == 0) {
          auto* const per_thread = reinterpret_cast<CUstream_st*>(driver::stream_handle::per_thread);
          void* const b = allocate(borrow_stream(d, per_thread), 3000);
          deallocate(borrow_stream(d, per_thread), b);
        }
        if (random() % 2)
          (void)pinned(5000);
      } catch (out_of_memory const&) {
      } catch (std::exception const& e) {
        failure = e.what();
      }
    }).join();
  });
  if (!failure.empty())
    throw wrong("its thread: " + failure);
}

// An exception ends every owner while its work runs.
void actor::unwinding() {
  int const d = some_device();
  struct expected {};
  try {
    device_guard const on(d);
    stream const s(d);
    stream_guard const here(s);
    buffer const b(100'000);
    buffer const host = pinned(50'000);
    pool const p("unwound", {.on = d});
    pool_guard const from(p);
    buffer const of_pool(300'000);
    event const e = s.record_event();
    exportable_buffer const shared = chance(4) ? exportable_buffer(s, 1000) : exportable_buffer();
    auto const on_oom = on_out_of_memory([](memory_report const&) { return false; });
    work(s, b.data(), b.size());
    copy(s, of_pool.data(), host.data(), host.size(), non_blocking);
    if (chance(2)) {
      std::shared_lock const capturing(in_.captures());
      (void)graph::capture(s, [&] {
        work(s, b.data(), b.size());
        throw expected();
      });
    }
    throw expected();
  } catch (expected const&) {}
}

}  // namespace weir::soak
