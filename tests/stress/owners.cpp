// Thread caches that other threads close, and locks held by an owner's word. Both need a fence in every
// thread of the process, which scheduled threads never need: only real ones show a missing fence.
// Threads: as programs.h.
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "tests/stress/programs.h"
#include "weir/memory.h"

namespace weir::tests {
namespace {

// A member's blocks of one size and stream, each with its mark.
class held_blocks {
 public:
  held_blocks(crowd& in, stream_ref from, std::uint64_t member) : in_(in), from_(from), next_(member << 48) {}
  ~held_blocks() {
    if (!in_.goes_on() && gave_up_)
      return;  // a block handed out twice must not be freed twice
    while (!held_.empty())
      give(held_.size() - 1);
  }
  held_blocks(held_blocks const&) = delete;
  void take(std::size_t bytes) {
    hold_back_writes();
    void* const p = allocate(from_, bytes);
    held_.emplace_back(p, bytes, ++next_);
  }
  void give(std::size_t i) {
    own_mark const mine = held_[i];
    held_[i] = held_.back();
    held_.pop_back();
    if (!mine.stands()) {
      gave_up_ = true;
      return in_.fail("a block was handed out twice");
    }
    hold_back_writes();
    deallocate(mine.at());
  }
  void give_some(crowd::random& r) {
    if (!held_.empty())
      give(r() % held_.size());
  }
  std::size_t size() const noexcept { return held_.size(); }

 private:
  crowd& in_;
  stream_ref from_;
  std::uint64_t next_;
  bool gave_up_ = false;
  std::vector<own_mark> held_;
};

}  // namespace

// Two threads allocate and free one small size, and a third closes and drains their caches.
std::string caches_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  runtime_guard const in(own);
  stream const s;
  crowd all(seed, time);
  std::size_t const bytes = std::size_t{64} << seed % 5;
  void* const keeps_the_page = allocate(s, bytes);  // so that caches are drained often
  auto const enter = [&](auto life) {
    return [&, life](crowd::random& r) {
      runtime_guard const here_too(own);
      life(r);
    };
  };
  all.member(enter([&](crowd::random&) {
               held_blocks mine(all, s, 1);
               while (all.goes_on())
                 mine.take(bytes), mine.give(0);
             }),
             crowd::whole_life{});
  all.member(enter([&](crowd::random& r) {
               held_blocks mine(all, s, 2);
               while (all.goes_on())
                 mine.size() < 8 && r() % 2 ? mine.take(bytes) : mine.give_some(r);
             }),
             crowd::whole_life{});
  all.member(enter([&](crowd::random&) { empty_cache(); }));
  std::string const wrong = all.run();
  deallocate(keeps_the_page);
  return wrong.empty() ? books_after(own) : wrong;
}

// Empty cells of slabs are returned while other slots are held. When such a
// slot is freed, its granule no longer belongs to one slab.
std::string cells_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in(own);
  crowd all(seed, time);
  for (std::uint64_t k = 0; k < 2; ++k) {
    all.member(
        [&, k](crowd::random& r) {
          runtime_guard const here_too(own);
          stream const s(0);
          std::uint64_t next = (k + 1) << 48;
          auto const give = [&](own_mark const& one) {
            if (!one.stands())
              all.fail("a block was handed out twice");
            hold_back_writes();
            deallocate(one.at());
          };
          while (all.goes_on()) {
            std::vector<own_mark> most, few;
            for (std::size_t i = 0, n = 200 + r() % 200; i < n; ++i)
              (i % 32 ? most : few).emplace_back(allocate(s, 4_KiB), 4_KiB, ++next);
            for (auto const& one : most)
              give(one);
            pause(std::chrono::microseconds(r() % 64));
            for (auto const& one : few)
              give(one);
          }
        },
        crowd::whole_life{});
  }
  all.member(
      [&](crowd::random&) {
        runtime_guard const here_too(own);
        while (all.goes_on())
          empty_cache(0);
      },
      crowd::whole_life{});
  std::string const wrong = all.run();
  return wrong.empty() ? books_after(own) : wrong;
}

// Blocks above slab sizes: a busy thread comes to own the lock, and another revokes it, as rarely as the seed
// draws. An early revocation raises the number of uses before the next ownership.
std::string locks_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  runtime_guard const in(own);
  stream const s;
  crowd all(seed, time);
  all.member(
      [&](crowd::random& r) {
        runtime_guard const here_too(own);
        held_blocks mine(all, s, 1);
        while (all.goes_on())
          mine.size() < 4 && r() % 2 ? mine.take(64_KiB) : mine.give_some(r);
      },
      crowd::whole_life{});
  all.member(
      [&](crowd::random& r) {
        runtime_guard const here_too(own);
        held_blocks mine(all, s, 2);
        while (all.goes_on()) {
          mine.size() < 4 && r() % 2 ? mine.take(64_KiB) : mine.give_some(r);
          pause(std::chrono::microseconds(1 << r() % 10));
        }
      },
      crowd::whole_life{});
  std::string const wrong = all.run();
  return wrong.empty() ? books_after(own) : wrong;
}

}  // namespace weir::tests
