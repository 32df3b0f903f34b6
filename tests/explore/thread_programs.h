// Programs of several host threads, each small enough to test one rule.
// Threads: those of each run.
#pragma once
#include <cstring>
#include <map>
#include <vector>

#include "runtime/memory/heap/fast_path.h"
#include "runtime/memory/heap/thread_caches.h"
#include "runtime/memory/space/memory_pool.h"
#include "runtime/observe/history.h"
#include "streams/copy/copy_workers.h"
#include "tests/explore/filled.h"

namespace weir::tests {

// Two threads submit, finish and cancel tasks, whole or cut, to two copy workers. Every call returns.
inline void crew_among_threads(trial& t) {
  (void)t.bench();
  auto workers = std::make_shared<streams::copy_workers>(2);
  workers->work_by({.threads = 2, .helps = t.draw(2) != 0});
  for (int k = 0; k < 2; ++k) {
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&t, workers] {
      for (int i = 0, n = 1 + static_cast<int>(t.draw(3)); i < n; ++i) {
        unsigned char from[16], to[16] = {};
        std::memset(from, 1 + i, sizeof from);
        streams::copy_workers::task task;
        task.dst = to, task.src = from, task.bytes = sizeof from;
        if (i % 2 == 0)
          task.grain = 6;
        workers->submit(task);
        bool const wanted = t.draw(4) != 0;
        wanted ? workers->finish(task) : workers->cancel(task);
        if (wanted && std::memcmp(from, to, sizeof from) != 0)
          t.fail("the bytes of a finished task were overwritten");
      }
    });
  }
  t.join();
  workers->stop();
}

// Two threads allocate, write and free on streams of their own, and so reuse each other's memory.
inline void memory_given_back_among_threads(trial& t) {
  auto& bench = t.bench({.devices = 1, .memory = 512 << 10});
  clock::stream_clock* const lines[] = {&t.stream(0), &t.stream(0)};
  for (int k = 0; k < 2; ++k) {
    auto* const line = lines[k];
    int const n = 2 + static_cast<int>(t.draw(5));
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&t, &bench, line, k, n] {
      for (int i = 0; i < n && !t.failed(); ++i) {
        std::size_t const bytes = 40'000 + 30'000 * t.draw(3);
        void* p = nullptr;
        try {
          p = bench.on(0).allocate(*line, bytes, 0, source_location::current());
        } catch (out_of_memory const&) {
          continue;
        }
        auto const value = static_cast<unsigned char>(1 + 2 * i + k);
        give_filled(t, *line, filled::now, p, bytes, value);
        give_filled(t, *line, filled::still, p, bytes, value);
        bench.on(0).deallocate(p, nullptr, source_location::current());
      }
    });
  }
  t.join();
  t.synchronize();
}

// One thread allocates in no pool. Another makes pools on its own stream and ends them; what they leave may serve
// the first thread, or the next pool. No block of the first thread lies in a pool.
inline void pools_end_among_threads(trial& t) {
  auto& bench = t.bench({.devices = 1, .memory = 1 << 20});
  memory::allocator& device = bench.on(0);
  clock::stream_clock &outside = t.stream(0), &inside = t.stream(0);
  auto const here = source_location::current();
  auto const take = [&](clock::stream_clock& line) -> void* {
    std::size_t const bytes = 70'000;
    try {
      void* const p = device.allocate(line, bytes, 0, here);
      give_filled(t, line, filled::now, p, bytes, 7);
      return p;
    } catch (out_of_memory const&) {
      return nullptr;
    }
  };
  t.spawn("outside", [&, n = 3 + t.draw(8)] {
    std::vector<void*> kept;  // so that each allocation is a miss
    for (std::uint32_t i = 0; i < n && !t.failed(); ++i) {
      void* const p = take(outside);
      if (!p)
        continue;
      kept.push_back(p);
      memory::memory_pool const* const lies_in = device.find(p)->pool;
      if (lies_in && lies_in->is == memory::memory_pool::kind::ordinary)
        t.fail("a block that was asked for in no pool lies in one");
    }
    for (void* const p : kept)
      device.deallocate(p, nullptr, here);
  });
  t.spawn("inside", [&, n = 3 + t.draw(8)] {
    for (std::uint32_t i = 0; i < n && !t.failed(); ++i) {
      memory::memory_pool& pool = device.make_pool("step", 0);
      std::uint64_t const in = memory::thread_caches::enter(pool);
      if (void* const p = take(inside))
        device.deallocate(p, nullptr, here);
      memory::thread_caches::leave(in);
      if (t.coin(75))
        (void)bench.clocks().synchronize(inside.now());
      device.end_pool(pool);
    }
  });
  t.join();
  t.synchronize();
  t.expect_none(device.validate());
}

// Threads allocate in a pool that another thread ends meanwhile. What the pool left goes to the next pool, of the same
// stream or of another. A block lies in the pool that its thread named, or in none, and its home is the stream that it
// was asked for. Once the pool has ended, the pool that its thread entered before is in force.
inline void pool_ends_under_guards(trial& t) {
  auto& bench = t.bench({.devices = 1, .memory = 1 << 20});
  memory::allocator& device = bench.on(0);
  clock::stream_clock &one = t.stream(0), &two = t.stream(0);
  auto const here = source_location::current();
  bool has_ended = false;
  memory::memory_pool& shared = device.make_pool("shared", 0);
  memory::memory_pool& outer = device.make_pool("outer", 0);
  auto const allocate_in = [&](memory::memory_pool& pool, clock::stream_clock& line, std::uint32_t blocks) {
    bool const nested = t.coin(50);
    std::uint64_t const outside = nested ? memory::thread_caches::enter(outer) : 0;
    std::uint64_t const in = memory::thread_caches::enter(pool);
    std::vector<void*> kept;
    for (std::uint32_t i = 0; i < blocks && !t.failed(); ++i) {
      void* p = nullptr;
      bool const ended_before = &pool == &shared && has_ended;
      try {
        std::size_t const bytes = t.coin(50) ? 70'000 : 600;
        p = memory::fast_allocate(&line, bytes, 0);
        if (!p)
          p = device.allocate(line, bytes, 0, here);
        give_filled(t, line, filled::now, p, bytes, 7);
      } catch (out_of_memory const&) {
        continue;
      }
      auto const found = device.find(p);
      bool const in_none = !found->pool || found->pool->is != memory::memory_pool::kind::ordinary;
      if (found->pool != &pool && !in_none && !(nested && found->pool == &outer))
        t.fail("a block lies in a pool that its thread did not name");
      if (ended_before && nested && found->pool != &outer)
        t.fail("a block lies outside of the pool in force");
      if (found->home != &line)
        t.fail("a block has the home of another stream");
      t.coin(50) ? kept.push_back(p) : device.deallocate(p, nullptr, here);
    }
    for (void* const p : kept)
      device.deallocate(p, nullptr, here);
    memory::thread_caches::leave(in);
    if (nested)
      memory::thread_caches::leave(outside);
  };
  for (std::string const name : {"a", "b"})
    t.spawn(name, [&, n = 2 + t.draw(5)] { allocate_in(shared, one, n); });
  t.spawn("ends it", [&, n = 1 + t.draw(3)] {
    if (t.coin(50))
      allocate_in(shared, one, 1);
    if (t.coin(50))
      (void)bench.clocks().synchronize(one.now());
    device.end_pool(shared);
    has_ended = true;
    for (std::uint32_t i = 0; i < n && !t.failed(); ++i) {
      memory::memory_pool& next = device.make_pool("next", 0);
      allocate_in(next, t.coin(50) ? one : two, 1 + t.draw(2));
      device.end_pool(next);
    }
  });
  t.join();
  device.end_pool(outer);
  t.synchronize();
  t.expect_none(device.validate());
}

// Two threads make one stream wait for two others. Afterwards it knows both orders.
inline void knowledge_among_threads(trial& t) {
  auto& bench = t.bench();
  clock::stream_clock& waiter = t.stream(0);
  clock::stream_clock* const others[] = {&t.stream(0), &t.stream(0)};
  clock::stamp stamps[2];
  for (int k = 0; k < 2; ++k) {
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&, k] {
      (void)bench.machine().enqueue(0, others[k]->handle(), {}, {[](void*) {}, nullptr, nullptr});
      stamps[k] = others[k]->now();
      if (!waiter.wait(stamps[k]).ok())
        t.fail("a wait was refused");
    });
  }
  t.join();
  for (auto s : stamps) {
    if (!t.failed() && !waiter.covers(s))
      t.fail("what was waited for must be known to be before the waiter");
  }
}

// Threads record begins and ends of any thread's blocks. A reader never sees an end without its begin.
inline void history_among_threads(trial& t) {
  (void)t.bench();
  constexpr std::uint32_t of = 4'000'000'000;  // a number that no runtime has
  auto& book = observe::history::process();
  book.start(1000, false);
  struct state {
    std::uintptr_t newest = 0;
    std::vector<std::uintptr_t> live;
  };
  base::guarded<state> all;
  auto const end_one = [&] {
    std::uintptr_t at = 0;
    {
      auto const s = all.lock();
      if (s->live.empty())
        return false;
      at = s->live.back(), s->live.pop_back();
    }
    observe::note(observe::action::free, reinterpret_cast<void*>(at), 0, 0, 0, 0, source_location::current());
    return true;
  };
  auto const begin_one = [&] {
    std::uintptr_t const at = ++all.lock()->newest;
    observe::note(observe::action::alloc, reinterpret_cast<void*>(at), 8, 1, of, 0, source_location::current());
    all.lock()->live.push_back(at);
  };
  for (char const* name : {"a", "b", "c"}) {
    t.spawn(name, [&, n = 3 + t.draw(6)] {
      for (std::uint32_t i = 0; i < n; ++i) {
        if (!t.coin() || !end_one())
          begin_one();
      }
    });
  }
  t.spawn("gathers", [&, n = 8 + t.draw(8)] {
    for (std::uint32_t i = 0; i < n; ++i)
      (void)book.events(of, 0);
  });
  t.join();
  while (end_one()) {}
  book.stop();
  std::map<std::uintptr_t, std::pair<int, int>> seen;  // begins, ends
  for (auto const& e : book.events(of, 0))
    ++(e.what == observe::action::alloc ? seen[e.at].first : seen[e.at].second);
  for (std::uintptr_t at = 1, newest = all.lock()->newest; at <= newest; ++at) {
    if (seen[at] != std::pair(1, 1))
      t.fail("the history has " + std::to_string(seen[at].first) + " beginnings and " +
             std::to_string(seen[at].second) + " ends of one block");
  }
}

}  // namespace weir::tests
