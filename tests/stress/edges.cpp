// One order at a time: a thread finds an object just made by another, through a relaxed word only.
// Threads: as programs.h.
#include <array>
#include <stdexcept>
#include <vector>

#include "runtime/clock/stream_clock.h"
#include "tests/stress/programs.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir::tests {
namespace {

// Members that wait for each other without a time limit. If one fails, all fail.
class waiting_members {
 public:
  explicit waiting_members(crowd& in) noexcept : in_(in) {}
  void member(std::function<void(crowd::random&)> life) {
    in_.member(
        [this, life](crowd::random& r) {
          try {
            life(r);
          } catch (...) {
            failed_.store(true, std::memory_order_relaxed);
            throw;
          }
        },
        crowd::whole_life{});
  }
  template <class Done>
  void await(Done done) const {
    while (!done()) {
      if (failed_.load(std::memory_order_relaxed))
        throw std::runtime_error("another member has failed");
      std::this_thread::yield();
    }
  }

 private:
  crowd& in_;
  std::atomic<bool> failed_{false};
};

}  // namespace

// Seeded threads use no system lock: the baton alone orders their writes.
std::string batons_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return in_rounds(time / 10, [&](std::uint64_t round) -> std::string {
    runtime own{
        simulated{.devices = 1, .memory = 1_MiB, .schedule = simulated::scheduling::seeded, .seed = seed + round}};
    runtime_guard const in(own);
    simulation machine = simulation::of(own);
    int written = 0;
    for (int k = 0; k < 2; ++k) {
      machine.spawn("writer", [&] {
        for (int i = 0; i < 20; ++i) {
          ++written;
          (void)default_stream(0).query();
        }
      });
    }
    try {
      machine.join();
    } catch (std::exception const& e) {
      return e.what();
    }
    return written == 40 ? "" : "two threads ran at once under a baton";
  });
}

// A thread looks up current and future streams while two others create directory entries and chunks.
std::string directory_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return in_rounds(time, [&](std::uint64_t round) -> std::string {
    runtime own{simulated{.devices = 1, .memory = 1_MiB}}, other{simulated{.devices = 1, .memory = 1_MiB}};
    crowd all(seed + round * 100, std::min<std::chrono::nanoseconds>(time, std::chrono::milliseconds(20)));
    waiting_members three(all);
    constexpr std::uint64_t no_more = 0;
    std::atomic<std::uint64_t> newest{1};
    std::array<std::atomic<std::uint64_t>, 2> seen{1, 1};
    three.member([&](crowd::random&) {
      runtime_guard const in(own);
      std::vector<stream> made;
      auto const show = [&](std::uint64_t id) {
        newest.store(id, std::memory_order_relaxed);
        for (auto const& one : seen)
          three.await([&] { return one.load(std::memory_order_relaxed) == id; });
      };
      for (int i = 0; i < 1000; ++i) {
        std::uint64_t const id = made.emplace_back(0).id();
        if (clock::detail::place(id).index < 4)
          show(id);  // waits only at the start of a chunk
      }
      show(no_more);
    });
    auto const each = [&](std::atomic<std::uint64_t>& mine, auto look) {
      for (std::uint64_t id = 1; id != no_more;) {
        three.await([&] { return newest.load(std::memory_order_relaxed) != id; });
        id = newest.load(std::memory_order_relaxed);
        if (id != no_more)
          look(id);
        mine.store(id, std::memory_order_relaxed);
      }
    };
    three.member([&](crowd::random&) {
      each(seen[0], [&](std::uint64_t id) {
        (void)clock::find(id + 32);  // first, because the entry of `id` has its own release
        clock::stream_clock const* const made = clock::find(id);
        if (made && made->device() != 0)
          all.fail("a stream is found whose device is another one");
      });
    });
    three.member([&](crowd::random&) {
      runtime_guard const in(other);
      std::vector<stream> made;
      each(seen[1], [&](std::uint64_t) { made.emplace_back(0); });
    });
    return all.run();
  });
}

// Another thread finds a runtime's addresses and the heaps of its streams by a walk through all of them.
std::string memories_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime other{simulated{.devices = 1, .memory = 1_MiB}};
  return in_rounds(time, [&](std::uint64_t round) -> std::string {
    crowd all(seed + round * 100, std::min<std::chrono::nanoseconds>(time, std::chrono::milliseconds(50)));
    waiting_members both(all);
    // a block of the newest heap; null: it was looked up; `newest`: there is no other
    std::atomic<void*> newest{nullptr};
    hand_over<runtime> way;
    std::atomic<bool> over{false};
    both.member([&](crowd::random&) {
      runtime own{simulated{.devices = 1, .memory = 256_MiB}};
      runtime_guard const in(own);
      auto const show = [&](stream_ref s) {
        void* const p = allocate(s, 100);
        newest.store(p, std::memory_order_relaxed);
        both.await([&] { return !newest.load(std::memory_order_relaxed); });
        deallocate(p);
      };
      show(default_stream(0));
      way.put(&own);
      std::vector<stream> streams;
      for (int i = 0; i < 66; ++i)
        show(streams.emplace_back(0));  // more than one group holds
      newest.store(&newest, std::memory_order_relaxed);
      both.await([&] { return over.load(std::memory_order_acquire); });
    });
    both.member([&](crowd::random&) {
      {
        runtime_guard const in(other);
        both.await([&] { return newest.load(std::memory_order_relaxed) != nullptr; });
        (void)find_block(newest.load(std::memory_order_relaxed));
        newest.store(nullptr, std::memory_order_relaxed);
      }
      runtime* its = nullptr;
      both.await([&] { return (its = way.take()) != nullptr; });
      runtime_guard const in(*its);
      for (;;) {
        both.await([&] { return newest.load(std::memory_order_relaxed) != nullptr; });
        if (newest.load(std::memory_order_relaxed) == &newest)
          break;
        (void)memory_stats(0);
        newest.store(nullptr, std::memory_order_relaxed);
      }
      over.store(true, std::memory_order_release);
    });
    return all.run();
  });
}

// A thread frees blocks of an ended registration, unaware of the stream that now has its heap.
std::string heirs_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  struct estate {
    std::array<void*, 4> blocks{};
    std::atomic<bool> has_heir{false};
  };
  estate the_end;
  crowd all(seed, time);
  waiting_members both(all);
  hand_over<estate> way, back;
  both.member([&](crowd::random& r) {
    runtime_guard const in(own);
    while (all.goes_on()) {
      estate one;
      {
        external_stream const legacy(0, nullptr);
        for (void*& p : one.blocks)
          p = allocate(legacy, 100 << r() % 10);
      }
      way.put(&one);
      external_stream const heir(0, nullptr);
      deallocate(allocate(heir, 100));
      one.has_heir.store(true, std::memory_order_relaxed);
      both.await([&] { return back.take() != nullptr; });
    }
    way.put(&the_end);
  });
  both.member([&](crowd::random&) {
    runtime_guard const in(own);
    for (;;) {
      estate* one = nullptr;
      both.await([&] { return (one = way.take()) != nullptr; });
      if (one == &the_end)
        return;
      both.await([&] { return one->has_heir.load(std::memory_order_relaxed); });
      for (void* const p : one->blocks)
        deallocate(p);
      back.put(one);
    }
  });
  return wrong_in(all, own);
}

// A slab's first mark creates its marks, while unmarked blocks of
// it are freed. A full thread cache then looks for marks.
std::string marks_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  struct shared {
    void* block = nullptr;
    std::atomic<bool> marked{false};
  };
  shared the_end;
  crowd all(seed, time);
  waiting_members both(all);
  hand_over<shared> way, back;
  both.member([&](crowd::random& r) {
    runtime_guard const in(own);
    stream const s(0);
    while (all.goes_on()) {
      shared one;
      std::vector<void*> blocks(200);
      std::size_t const bytes = 16 << r() % 5;
      for (void*& p : blocks)
        p = allocate(s, bytes);
      one.block = blocks.front();
      way.put(&one);
      both.await([&] { return one.marked.load(std::memory_order_relaxed); });
      for (std::size_t i = 1; i < blocks.size(); ++i)
        deallocate(blocks[i]);
      both.await([&] { return back.take() != nullptr; });
      deallocate(one.block);
      synchronize(0);
      empty_cache(0);  // so that the next round has new slabs
    }
    way.put(&the_end);
  });
  both.member([&](crowd::random&) {
    runtime_guard const in(own);
    stream const mine(0);
    for (;;) {
      shared* one = nullptr;
      both.await([&] { return (one = way.take()) != nullptr; });
      if (one == &the_end)
        return;
      record_stream(one->block, mine);
      one->marked.store(true, std::memory_order_relaxed);
      back.put(one);
    }
  });
  return wrong_in(all, own);
}

}  // namespace weir::tests
