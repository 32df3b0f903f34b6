// Several threads create parts at their first use, and runtimes come and go beside a lasting one.
// Threads: as programs.h.
#include <array>
#include <memory>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/stress/programs.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/sim.h"

namespace weir::tests {
namespace {

std::atomic<void*> a_block{nullptr};  // read and written relaxed, so it orders nothing

void use_first(runtime& own, unsigned how) {
  runtime_guard const in(own);
  int const d = static_cast<int>(how % 2);
  if (how & 64)
    (void)default_stream(d).id();
  if (how & 128)
    (void)find_block(a_block.load(std::memory_order_relaxed));
  if (auto* const made = how & 512 ? own.get().part_if_made<memory::device_memory>() : nullptr)
    (void)made->owner(a_block.load(std::memory_order_relaxed));
  if (how & 256)
    (void)stream(d).id();  // created and ended at once, with memory or without
  device_guard const on(d);
  std::array<std::uint32_t, 64> words{};
  switch (how / 2 % 8) {
    case 0: buffer(1000); break;
    case 1: pinned(1000); break;
    case 2: (void)default_stream(d).query(); break;
    case 3: (void)links(); break;
    case 4: (void)memory_stats(d); break;
    case 5: {
      buffer const b(sizeof words);
      copy(b.data(), words.data(), sizeof words);
      break;
    }
    case 6: {
      buffer const near(300'000), far(300'000, {.on = 1 - d});
      copy(far.data(), near.data(), near.size());
      break;
    }
    default: {
      event e;
      e.record(stream(d));
      (void)e.query();
    }
  }
  buffer const mine(500);
  a_block.store(mine.data(), std::memory_order_relaxed);
  fill(mine.data(), std::byte{1}, mine.size());
  synchronize(d);
}

}  // namespace

std::string first_uses_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  crowd all(seed, time);
  struct round {
    runtime own{simulated{.devices = 2, .memory = 16_MiB}};
    std::atomic<int> arrived{0}, done{0};
  };
  round the_end;
  std::array<hand_over<round>, 2> ways;
  auto const use = [&all](round& one, unsigned how) {
    one.arrived.fetch_add(1, std::memory_order_relaxed);
    while (one.arrived.load(std::memory_order_relaxed) < 3) {}
    try {
      use_first(one.own, how);
    } catch (std::exception const& e) {
      all.fail(e.what());
    }
    one.done.fetch_add(1, std::memory_order_release);
  };
  all.member(
      [&](crowd::random& r) {
        while (all.goes_on()) {
          round one;
          for (auto& way : ways)
            way.put(&one);
          use(one, static_cast<unsigned>(r() >> 4));
          while (one.done.load(std::memory_order_acquire) < 3)
            std::this_thread::yield();
        }
        for (auto& way : ways)
          way.put(&the_end);
      },
      crowd::whole_life{});
  for (auto& way : ways) {
    all.member(
        [&](crowd::random& r) {
          for (;;) {
            round* const one = way.take();
            if (one == &the_end)
              return;
            if (one)
              use(*one, static_cast<unsigned>(r() >> 4));
            else
              std::this_thread::yield();
          }
        },
        crowd::whole_life{});
  }
  return all.run();
}

// Threads allocate small blocks and cache where these lie, while another enters and leaves its runtime.
std::string worlds_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  crowd all(seed, time);
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  for (std::uint64_t k = 0; k < 2; ++k) {
    all.member(
        [&, k](crowd::random& r) {
          runtime_guard const in(own);
          stream const s(0);
          std::vector<own_mark> held;
          std::uint64_t next = (k + 1) << 48;
          while (all.goes_on()) {
            std::size_t const bytes = r() % 4 ? 100 : 100'000;
            if (held.size() < 16 && r() % 2) {
              held.emplace_back(allocate(s, bytes), bytes, ++next);
            } else if (!held.empty()) {
              std::swap(held[r() % held.size()], held.back());
              if (!held.back().stands())
                all.fail("a block was handed out twice");
              hold_back_writes();
              deallocate(held.back().at());
              held.pop_back();
            }
          }
          for (auto const& one : held)
            deallocate(one.at());
        },
        crowd::whole_life{});
  }
  all.member([&](crowd::random& r) {
    runtime other{simulated{.devices = 1, .memory = 4_MiB}};
    runtime_guard const in(other);
    for (int i = 0; i < 3; ++i) {
      stream const s(0);
      deallocate(allocate(s, r() % 2 ? 200 : 50'000));
    }
  });
  return wrong_in(all, own);
}

// Each thread records its blocks in its own history, and one thread reads all histories meanwhile.
std::string history_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  crowd all(seed, time);
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  for (std::uint64_t k = 0; k < 2; ++k) {
    all.member(
        [&](crowd::random& r) {
          runtime_guard const in(own);
          stream const s(0);
          std::vector<void*> held;
          while (all.goes_on()) {
            if (held.size() < 16 && r() % 2)
              held.push_back(allocate(s, 100 << r() % 8));
            else if (!held.empty())
              deallocate(held.back()), held.pop_back();
          }
          for (void* p : held)
            deallocate(p);
        },
        crowd::whole_life{});
  }
  all.member([&](crowd::random& r) {
    runtime_guard const in(own);
    record_memory_history({.events = 500, .stacks = r() % 4 == 0});
    for (int i = 0; i < 6; ++i) {
      switch (r() % 4) {
        case 0: (void)memory_by_line(0); break;
        case 1: (void)memory_snapshot(0); break;
        case 2: (void)format(memory_by_line(0)); break;
        default:
          for (auto const& e : memory_history(0)) {
            if (e.what != "alloc" && e.what != "free")
              all.fail("an event of the history is none: " + std::string(e.what));
          }
      }
    }
    stop_memory_history();
  });
  return wrong_in(all, own);
}

}  // namespace weir::tests
