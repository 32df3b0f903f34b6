// Small blocks of two streams among host threads: taken and given back by the ways without a lock wherever these are open, also by
// threads that did not take them, while threads end, caches are shut and emptied, and memory is short.
// Threads: those of a run, one at a time; what they share here is plain for that reason.
#pragma once
#include <map>

#include "runtime/memory/thread_cache.h"
#include "tests/explore/explore.h"

namespace weir::tests {

class cache_program {
 public:
  explicit cache_program(trial& t) : t_(t), bench_(t.bench({.devices = 1, .memory = 1 << 20})), lines_{&t.stream(0), &t.stream(0)} {}

  void run() {
    for (int k = 0, n = 2 + static_cast<int>(t_.draw(2)); k < n; ++k) {
      int const steps = 10 + static_cast<int>(t_.draw(40));
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, steps] {
        for (int i = 0; i < steps && !t_.failed(); ++i) step();
      });
    }
    t_.join();
    if (!t_.failed()) end();
  }

 private:
  memory::allocator& device() { return bench_.on(0); }

  void take(std::size_t bytes) {
    clock::timeline& line = *lines_[t_.draw(2)];
    void* p = memory::quick_allocate(&line, bytes, 0);
    try {
      if (!p) p = device().allocate(line, bytes, 0, here::current());
    } catch (out_of_memory const&) {
      return;
    }
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    auto const above = live_.lower_bound(at);
    bool const apart = (above == live_.end() || at + bytes <= above->first) && (above == live_.begin() || std::prev(above)->first + std::prev(above)->second <= at);
    if (!apart) t_.fail("a block was handed out that somebody has");
    live_.emplace(at, bytes);
  }
  void give(std::size_t which) {
    if (live_.empty()) return;
    auto const b = std::next(live_.begin(), static_cast<std::ptrdiff_t>(which % live_.size()));
    auto* const p = reinterpret_cast<void*>(b->first);  // NOLINT(performance-no-int-to-ptr)
    live_.erase(b);
    if (!memory::quick_deallocate(p)) device().deallocate(p, nullptr, here::current());
  }
  void step() {
    static constexpr std::size_t sizes[] = {16, 100, 512, 1500};
    switch (t_.draw(8)) {
      case 0: case 1: case 2: return take(sizes[t_.draw(4)]);
      case 3: case 4: return give(t_.draw(64));
      case 5: case 6: {
        std::size_t const bytes = sizes[t_.draw(4)], n = 2 + t_.draw(12);
        for (std::size_t i = 0; i < n; ++i) take(bytes);
        for (std::size_t i = 0; i < n; ++i) give(t_.draw(64));
        return;
      }
      case 7: return rare();
    }
  }
  void rare() {
    if (t_.coin()) {
      for (std::string const& what : device().validate()) {  // sums of bytes are of different moments while others are in a call
        if (what.find("slot") != std::string::npos) t_.fail(what);
      }
      return;
    }
    t_.coin() ? (void)device().empty_cache() : take(700 << 10);
  }

  void counted(char const* what, std::int64_t is, std::size_t must) {
    if (is != static_cast<std::int64_t>(must)) t_.fail(std::string(what) + ": counted " + std::to_string(is) + ", held " + std::to_string(must));
  }
  void look() {
    std::size_t bytes = 0;
    for (auto const& b : live_) bytes += b.second;
    auto const n = device().statistics();
    counted("blocks", n.allocation.all.current, live_.size());
    counted("blocks taken less given back", n.allocation.all.allocated - n.allocation.all.freed, live_.size());
    counted("bytes asked for", n.requested_bytes.all.current, bytes);
    counted("bytes asked for, taken less given back", n.requested_bytes.all.allocated - n.requested_bytes.all.freed, bytes);
    for (std::string const& what : device().validate()) t_.fail(what);
  }
  void end() {  // the threads are gone, and so are their caches
    look();
    while (!live_.empty() && !t_.failed()) give(0);
    if (t_.failed()) return;
    look();
    device().empty_cache();
    counted("reserved bytes at the end", device().statistics().reserved_bytes.all.current, 0);
  }

  trial& t_;
  memory_bench& bench_;
  clock::timeline* const lines_[2];
  std::map<std::uintptr_t, std::size_t> live_;
};

inline void small_blocks_among_threads(trial& t) { cache_program(t).run(); }

}  // namespace weir::tests
