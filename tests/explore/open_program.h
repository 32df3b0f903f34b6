// Threads open blocks of a pool to another device while the pool sleeps and wakes. What was opened stays open.
// Threads: those of a run; each has blocks of its own, and one puts the pool to sleep.
#pragma once
#include <vector>

#include "runtime/memory/heap/thread_caches.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class opened_among_threads {
 public:
  explicit opened_among_threads(trial& t) : t_(t), bench_(t.bench({.devices = 2, .memory = 4_MiB})) {
    t.among_threads(2, 6, [this](int steps) {
      started_.fetch_add(1) ? open_some(steps) : sleep_some(steps);
    });
    if (!t.failed()) end();
  }

 private:
  static constexpr std::size_t page = 64 << 10;
  struct block {
    unsigned char* at;
    std::size_t bytes;
    bool opened = false;
  };
  static source_location here() { return source_location::current(); }
  memory::allocator& memory() { return bench_.on(0); }
  void must(driver::status s, char const* what) {
    if (!s.ok()) t_.fail(std::string(what) + " answered " + std::string(driver::name_of(s.what)));
  }
  void look(clock::stream_clock& line, block const& b) { give_filled(t_, line, filled::now, b.at, b.bytes, 7); }

  void sleep_some(int rounds) {
    for (int i = 0; i < rounds && !t_.failed(); ++i) {
      std::size_t given = 0;
      t_.say("sleeps");
      must(memory().sleep(pool_, nullptr, given), "sleep");
      t_.say("wakes");
      must(memory().wake(pool_, nullptr, here()), "wake");
    }
  }

  void open_some(int steps) {
    std::vector<block> mine;
    {
      base::lock_guard const hold(taking_);
      for (int i = 0; i < 3 && !free_.empty(); ++i) mine.push_back(free_.back()), free_.pop_back();
    }
    for (int i = 0; i < steps && !mine.empty() && !t_.failed(); ++i) {
      block& b = mine[t_.draw(static_cast<std::uint32_t>(mine.size()))];
      if (t_.draw(4) == 0) {  // its pages may not come back
        t_.say("frees ", b.bytes, " bytes");
        memory().deallocate(b.at, nullptr, here());
        std::swap(b, mine.back());
        mine.pop_back();
        continue;
      }
      t_.say("opens ", b.bytes, " bytes");
      must(t_.coin(30) ? memory().open_to(&line_, 2) : memory().grant(b.at, 1), "grant");
      b.opened = true;
      if (!memory().granted(b.at, 1)) t_.fail("an opened block is said to be closed");
    }
    base::lock_guard const hold(taking_);
    free_.insert(free_.end(), mine.begin(), mine.end());
  }

  // A device that uses what is not open to it is lost.
  void end() {
    for (block const& b : free_) {
      look(line_, b);
      must(bench_.clocks().synchronize(line_.now()), "synchronize");
      if (b.opened) look(there_, b);
      must(bench_.clocks().synchronize(there_.now()), "synchronize, of an opened block,");
    }
    for (block const& b : free_) memory().deallocate(b.at, nullptr, here());
    memory().end_pool(pool_);
    for (std::string const& what : memory().validate()) t_.fail(what);
  }

  std::vector<block> made() {
    std::vector<block> all;
    std::uint64_t const in = memory::thread_caches::enter(pool_);
    for (std::size_t const bytes : {3 * page, page, 500 * std::size_t{1}, 2 * page, page / 2, 4 * page}) {
      all.push_back({static_cast<unsigned char*>(memory().allocate(line_, bytes, 0, here())), bytes});
      look(line_, all.back());
    }
    memory::thread_caches::leave(in);
    return all;
  }

  trial& t_;
  memory_bench& bench_;
  clock::stream_clock &line_ = t_.stream(0), &there_ = t_.stream(1);
  memory::memory_pool& pool_ = memory().make_pool("pool", 0);
  base::mutex taking_;
  std::vector<block> free_ = made();  // of no thread
  base::atomic<int> started_{0};
};

}  // namespace weir::tests
