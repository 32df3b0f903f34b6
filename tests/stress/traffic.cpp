// Blocks of many streams among real threads. Streams end with blocks in use, memory is short, and threads
// free other threads' blocks or mark them for their own streams, while another one queries.
// Threads: as programs.h.
#include <array>
#include <memory>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/stress/programs.h"
#include "weir/copy.h"
#include "weir/memory.h"
#include "weir/observe.h"

namespace weir::tests {
namespace {

struct block {
  own_mark mine;
  std::size_t bytes;
};

class traffic {
 public:
  traffic(std::uint64_t seed, std::chrono::nanoseconds time)
      : all_(seed, time), own_(simulated{.devices = 1, .memory = 48_MiB}, {.fence_interval = 1_MiB}) {}

  std::string run() {
    for (std::uint64_t k = 0; k < 3; ++k) {
      all_.member([this, k](crowd::random& r) { work(k + 1, r); }, crowd::whole_life{});
    }
    all_.member([this](crowd::random& r) { look(r); }, crowd::whole_life{});
    std::string wrong = all_.run();
    if (!wrong.empty())
      return wrong;
    runtime_guard const in(own_);
    for (auto& place : places_) {
      if (std::unique_ptr<block> const left{place.take()})
        deallocate(left->mine.at());
    }
    synchronize(0);
    return books_after(own_);
  }

 private:
  static constexpr std::size_t sizes[] = {16, 600, 5000, 20'000, 64_KiB, 300'000, 1_MiB};

  void work(std::uint64_t who, crowd::random& r) {
    runtime_guard const in(own_);
    std::vector<stream> streams;
    std::vector<std::unique_ptr<block>> held;
    std::uint64_t next = who << 48;
    for (int i = 0; i < 2; ++i)
      streams.emplace_back(0);
    auto const one = [&]() -> stream_ref { return streams[r() % streams.size()]; };
    auto const take_from = [&](stream_ref s, std::size_t bytes) {
      hold_back_writes();
      try {
        void* const p = allocate(s, bytes);
        hints_[r() % hints_.size()].store(p, std::memory_order_relaxed);
        held.push_back(std::make_unique<block>(own_mark(p, bytes, ++next), bytes));
      } catch (out_of_memory const&) {}  // small blocks of many streams may be in the way
    };
    auto const take = [&] {
      std::size_t const bytes = sizes[r() % std::size(sizes)];
      for (unsigned n = bytes < 30'000 ? 1 + r() % 12 : 1; n > 0; --n)
        take_from(one(), bytes);
    };
    auto const give = [&](std::unique_ptr<block> b) {
      if (!b->mine.stands())
        return all_.fail("a block was handed out twice");
      hold_back_writes();
      switch (r() % 4) {
        case 0: deallocate(one(), b->mine.at()); break;
        case 1: record_stream(b->mine.at(), one()); [[fallthrough]];
        default: deallocate(b->mine.at());
      }
    };
    auto const give_any = [&] {
      if (held.empty())
        return;
      std::swap(held[r() % held.size()], held.back());
      auto b = std::move(held.back());
      held.pop_back();
      give(std::move(b));
    };
    while (all_.goes_on()) {
      switch (r() % 16) {
        case 0:  // replaces a stream; its blocks stay in use
          streams[r() % streams.size()] = stream(0);
          break;
        case 1:
          if (streams.size() < 24)
            streams.emplace_back(0);
          else
            streams.erase(streams.begin() + 2, streams.end());
          break;
        case 2:
        case 3:  // hand over
          if (!held.empty() && places_[r() % places_.size()].put(held.back().get()))
            (void)held.back().release(), held.pop_back();
          break;
        case 4:
        case 5:
        case 6:
          if (std::unique_ptr<block> b{places_[r() % places_.size()].take()})
            give(std::move(b));
          break;
        case 7: one().wait(one()); break;
        case 8:
          if (r() % 8) {
            (void)one().query();
          } else {  // a registration that ends; the next new stream inherits its heap
            external_stream const legacy(0, nullptr);
            take_from(legacy, 600);
          }
          break;
        case 9:
          if (held.size() > 20)
            while (held.size() > 4)
              give_any();
          break;
        case 10:
        case 11:
        case 12: give_any(); break;
        default:
          if (held.size() < 40)
            take();
          else
            give_any();
      }
    }
    while (!held.empty())
      give_any();
  }

  // Queries from any thread, also of addresses that may be no block or a new one. These order nothing.
  void look(crowd::random& r) {
    runtime_guard const in(own_);
    while (all_.goes_on()) {
      switch (r() % 64) {
        case 0: (void)memory_stats(0); break;
        case 1: (void)memory_by_stream(0); break;
        case 2: (void)memory_snapshot(0); break;
        case 3: empty_cache(0); break;
        case 4: reset_peak_memory_stats(0); break;
        case 5: set_memory_limit(r() % 2 ? 0 : 40_MiB, 0); break;
        case 6: (void)memory_summary(0); break;
        default: (void)find_block(hints_[r() % hints_.size()].load(std::memory_order_relaxed));
      }
    }
    set_memory_limit(0, 0);
  }

  crowd all_;
  runtime own_;
  std::array<hand_over<block>, 32> places_;
  std::array<std::atomic<void*>, 64> hints_{};
};

}  // namespace

// A new machine each round, so that its streams are new and its lists grow.
std::string traffic_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return in_rounds(time, [&](std::uint64_t k) {
    return traffic(seed + k * 100, std::min<std::chrono::nanoseconds>(time, std::chrono::milliseconds(40))).run();
  });
}

// Two members use a new stream at once. They mark the same blocks for their own streams, the second closely
// after the first, so that it meets what the first mark of a slab created. The second frees them.
std::string fresh_streams_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  struct shared {
    std::unique_ptr<stream> on;
    std::array<void*, 48> blocks{};
    std::atomic<std::size_t> marked{0};  // by the first
    std::atomic<int> done{0};
  };
  shared the_end;
  crowd all(seed, time);
  std::array<hand_over<shared>, 2> ways;
  hand_over<shared> back;
  all.member(
      [&](crowd::random& r) {
        runtime_guard const in(own);
        std::vector<std::unique_ptr<stream>> kept;
        while (all.goes_on()) {
          shared one;
          one.on = std::make_unique<stream>(0);
          std::size_t const sizes[] = {600, 5000, 9000, 20'000};  // the larger ones have few slots a slab
          std::size_t const bytes = sizes[r() % 4];
          if (r() % 4) {
            for (void*& p : one.blocks)
              p = allocate(*one.on, bytes);
          }
          for (auto& way : ways)
            way.put(&one);
          while (!back.take())
            std::this_thread::yield();
          if (kept.size() == 150)
            kept.clear();
          kept.push_back(std::move(one.on));
        }
        for (auto& way : ways)
          way.put(&the_end);
      },
      crowd::whole_life{});
  for (std::size_t k = 0; k < ways.size(); ++k) {
    all.member(
        [&, k](crowd::random& r) {
          auto& way = ways[k];
          runtime_guard const in(own);
          stream const mine(0);
          for (shared* one = nullptr; one != &the_end;) {
            one = way.take();
            if (!one || one == &the_end)
              continue;
            try {
              for (int i = 0; i < 3; ++i)
                deallocate(allocate(*one->on, 16 << r() % 13));
              for (std::size_t i = 0; i < one->blocks.size(); ++i) {
                while (k && one->marked.load(std::memory_order_relaxed) <= i)
                  std::this_thread::yield();
                if (void* const p = one->blocks[i])
                  record_stream(p, mine);
                if (!k)
                  one->marked.store(i + 1, std::memory_order_relaxed);
              }
              if (one->done.fetch_add(1, std::memory_order_acq_rel) == 0)
                continue;
              for (void*& p : one->blocks) {
                if (p)
                  deallocate(mine, p);
              }
            } catch (std::exception const& e) {
              one->marked.store(one->blocks.size(), std::memory_order_relaxed);
              all.fail(e.what());
              if (one->done.fetch_add(2, std::memory_order_acq_rel) == 0)
                continue;
            }
            back.put(one);
          }
        },
        crowd::whole_life{});
  }
  return wrong_in(all, own);
}

}  // namespace weir::tests
