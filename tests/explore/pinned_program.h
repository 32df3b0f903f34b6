// Threads allocate pinned blocks, copy from and into them by the fast path, and free their own and each
// other's. Memory is just enough, and idle pages are freed after a while. Each also registers and leaves a range of
// the program's memory, whose first and last page hold bytes of its neighbours' ranges.
// Threads: those of each run.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "peer/copy/fast_copy.h"
#include "runtime/base/os.h"
#include "streams/pinned/locked_ranges.h"
#include "streams/pinned/pinned_memory.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class pinned_among_threads {
 public:
  explicit pinned_among_threads(trial& t) : t_(t), threads_(2 + t.draw(2)), alike_(t.coin(60)) {
    weir::options o;
    // Room for one block per thread and the slot, or 2 MiB, which the first block maps for all.
    o.pinned_limit = t.coin() ? 2_MiB : (static_cast<std::size_t>(threads_) + 1) * largest;
    bench_ = &t.bench({.devices = 1, .memory = 1_MiB}, o);
    pool_ = &bench_->core.part<streams::pinned_memory>();
    if (t.coin())
      pool_->let_idle_go_after(1'000 << t.draw(8));
    for (int k = 0; k < 2; ++k)
      lines_.push_back(&t.stream(0));
    own_.reset(static_cast<std::byte*>(std::aligned_alloc(os::page_size(), most_threads * 2 * os::page_size())));
  }

  void run() {
    for (int k = 0; k < threads_; ++k) {
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, k, n = 2 + t_.draw(6)] {
        for (std::uint32_t i = 0; i < n && !t_.failed(); ++i) {
          auto const value = static_cast<unsigned char>(1 + k * 80 + static_cast<int>(i) * 8);
          t_.coin(30) ? use_registered(k, value) : step(value);
        }
      });
    }
    t_.join();
    if (t_.failed())
      return;
    if (void* const last = std::exchange(*slot_.lock(), nullptr))
      pool_->deallocate(last, source_location::current());
    t_.synchronize();
    t_.expect_none(bench_->core.part<streams::locked_ranges>().validate());
    (void)pool_->trim();
    auto const n = pool_->statistics();
    if (n.allocation.all.current != 0 || n.reserved_bytes.all.current != 0)
      t_.fail("pages or blocks are left: " + std::to_string(n.reserved_bytes.all.current) + " B");
    t_.expect_none(pool_->validate());
  }

 private:
  static constexpr std::size_t largest = 64 << 10, most_threads = 3;

  void step(unsigned char value) {
    std::size_t const bytes = alike_ ? largest : 1000 + 21'000 * t_.draw(4);
    auto& line = *lines_[t_.draw(2)];
    void* p = nullptr;
    try {
      p = pool_->allocate(bytes, 0, source_location::current());
    } catch (out_of_memory const& e) {
      if (alike_)
        t_.fail(std::string("there is room, and memory is refused: ") + e.what());
      return;
    }
    std::memset(p, value, bytes);
    auto* const there =
        static_cast<unsigned char*>(bench_->on(0).allocate(line, largest, 0, source_location::current()));
    for (std::uint32_t n = 1 + t_.draw(3); n > 0; --n) {
      copy(line, there, p, bytes);
      give_filled(t_, line, filled::still, there, bytes, value, "somebody wrote into a pinned block in use");
      if (t_.coin(30))
        copy(line, p, there, bytes);  // writes the same bytes, later
    }
    bench_->on(0).deallocate(there, nullptr, source_location::current());
    if (t_.coin())
      std::swap(p, *slot_.lock());  // frees another thread's block instead
    if (p)
      pool_->deallocate(p, source_location::current());
  }

  void use_registered(int k, unsigned char value) {
    auto& line = *lines_[t_.draw(2)];
    auto& locked = bench_->core.part<streams::locked_ranges>();
    std::size_t const bytes = os::page_size() * 3 / 2;  // each second range begins in the middle of a page
    std::byte* const at = own_.get() + static_cast<std::size_t>(k) * bytes;
    base::byte_range const mine{reinterpret_cast<driver::address>(at), bytes};
    auto const locked_now = locked.lock(mine, source_location::current());
    if (!locked_now.ok())
      return t_.fail("a lock answered " + std::string(driver::name_of(locked_now.is.what)));
    if (locked_now.value.bytes)
      return t_.fail("a lock met another range");
    // No work spans two registrations of the driver, and each page may be of another one.
    std::size_t const first = std::min(bytes, os::page_size() - mine.at % os::page_size());
    for (std::uint32_t n = 1 + t_.draw(3); n > 0; --n) {
      for (filled const how : {filled::now, filled::still}) {
        give_filled(t_, line, how, at, first, value, "registered memory was overwritten");
        base::yield_thread();
        give_filled(t_, line, how, at + first, bytes - first, value, "registered memory was overwritten");
      }
    }
    locked.unlock(mine);
  }

  void copy(clock::stream_clock& line, void* to, void const* from, std::size_t bytes) {
    peer::fast_copy way;
    if (!way.find(bench_->core, &line, {to, from, bytes}, source_location::current()))
      return t_.fail("no case of the short way");
    t_.must(way.enqueue({to, from, bytes}, source_location::current()), "a copy");
  }

  trial& t_;
  int const threads_;
  bool const alike_;  // all blocks have one size
  memory_bench* bench_;
  streams::pinned_memory* pool_;
  std::vector<clock::stream_clock*> lines_;
  base::guarded<void*> slot_;
  struct freed {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, freed> own_;
};

}  // namespace weir::tests
