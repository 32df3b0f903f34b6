// Threads open blocks of a pool to another device while pools sleep, wake and end. What was opened stays open.
// Threads: those of a run; each has blocks of its own, and one puts the pool to sleep.
#pragma once
#include <vector>

#include "runtime/memory/heap/thread_caches.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class opened_among_threads {
 public:
  explicit opened_among_threads(trial& t) : t_(t), bench_(t.bench({.devices = 2, .memory = 4_MiB})) {
    t.among_threads(2, 6, [this](int steps) { started_.fetch_add(1) ? open_some(steps) : sleep_some(steps); });
    if (!t.failed())
      end();
  }

 private:
  static constexpr std::size_t page = 64 << 10;
  struct block {
    unsigned char* at = nullptr;
    std::size_t bytes = 0;
    bool opened = false;
  };
  static source_location here() { return source_location::current(); }
  memory::allocator& memory() { return bench_.on(0); }
  void write(clock::stream_clock& line, block const& b) { give_filled(t_, line, filled::now, b.at, b.bytes, 7); }

  void sleep_some(int rounds) {
    for (int i = 0; i < rounds && !t_.failed(); ++i) {
      std::size_t given = 0;
      t_.say("sleeps");
      t_.must(memory().sleep(pool_, nullptr, given), "sleep");
      t_.say("wakes");
      t_.must(memory().wake(pool_, here()), "wake");
      if (t_.draw(3) == 0)
        end_one_asleep();
    }
  }

  void end_one_asleep() {
    auto& other = memory().make_pool("other", 0);
    auto const all = made(other);
    std::size_t given = 0;
    t_.say("another pool sleeps and ends");
    t_.must(memory().sleep(other, nullptr, given), "sleep");
    t_.must(memory().wake(other, here()), "wake");  // in one handle
    t_.must(memory().sleep(other, nullptr, given), "sleep");
    last_.lock()->at = all[3].at;  // amid others, so that its handle is cut
    for (block const& b : all)
      if (b.at != all[3].at)
        memory().deallocate(b.at, nullptr, here());
    memory().end_pool(other);
    last_.lock()->at = nullptr;
    memory().deallocate(all[3].at, nullptr, here());
    (void)memory().empty_cache();
  }

  void open_some(int steps) {
    std::vector<block> mine;
    {
      base::lock_guard const hold(taking_);
      for (int i = 0; i < 3 && !free_.empty(); ++i)
        mine.push_back(free_.back()), free_.pop_back();
    }
    for (int i = 0; i < steps && !mine.empty() && !t_.failed(); ++i) {
      block& b = mine[t_.draw(static_cast<std::uint32_t>(mine.size()))];
      if (t_.draw(4) == 0) {  // then its pages need not come back
        t_.say("frees ", b.bytes, " bytes");
        memory().deallocate(b.at, nullptr, here());
        std::swap(b, mine.back());
        mine.pop_back();
        continue;
      }
      if (auto const one = last_.lock(); one->at)
        t_.must(memory().grant(one->at, 1), "grant, in a pool that ends,");
      t_.say("opens ", b.bytes, " bytes");
      t_.coin(30) ? t_.must(memory().open_to(&line_, 2), "open_to") : t_.must(memory().grant(b.at, 1), "grant");
      b.opened = true;
      if (!memory().granted(b.at, 1))
        t_.fail("an opened block is said to be closed");
    }
    base::lock_guard const hold(taking_);
    free_.insert(free_.end(), mine.begin(), mine.end());
  }

  // A device that uses what is not open to it is lost.
  void end() {
    for (block const& b : free_) {
      write(line_, b);
      t_.must(bench_.clocks().synchronize(line_.now()), "synchronize");
      if (b.opened)
        write(there_, b);
      t_.must(bench_.clocks().synchronize(there_.now()), "synchronize, of an opened block,");
    }
    for (block const& b : free_)
      memory().deallocate(b.at, nullptr, here());
    memory().end_pool(pool_);
    t_.expect_none(memory().validate());
  }

  std::vector<block> made(memory::memory_pool& in_pool) {
    std::vector<block> all;
    std::uint64_t const in = memory::thread_caches::enter(in_pool);
    for (std::size_t const bytes : {3 * page, page, std::size_t{500}, 2 * page, page / 2, 4 * page}) {
      all.push_back({static_cast<unsigned char*>(memory().allocate(line_, bytes, 0, here())), bytes});
      write(line_, all.back());
    }
    memory::thread_caches::leave(in);
    return all;
  }

  trial& t_;
  memory_bench& bench_;
  clock::stream_clock &line_ = t_.stream(0), &there_ = t_.stream(1);
  memory::memory_pool& pool_ = memory().make_pool("pool", 0);
  base::guarded<block> last_{};  // that lives in a pool that ends asleep
  base::mutex taking_;
  std::vector<block> free_ = made(pool_);  // of no thread
  base::atomic<int> started_{0};
};

}  // namespace weir::tests
