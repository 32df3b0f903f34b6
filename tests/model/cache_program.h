// Threads allocate and free slots and larger blocks of two streams, also each other's, without the lock where
// possible. Meanwhile threads end, caches are closed and drained, and memory is short.
// Threads: those of a run, one at a time; what they share here is plain for that reason.
#pragma once
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "runtime/memory/heap/fast_path.h"
#include "runtime/observe/history.h"
#include "tests/explore/explore.h"

namespace weir::tests {

class cache_program {
 public:
  explicit cache_program(trial& t)
      : t_(t), bench_(t.bench({.devices = 1, .memory = 1 << 20})), lines_{&t.stream(0), &t.stream(0)} {}

  inline static std::uint64_t quick = 0, slow = 0;  // calls of all runs so far, without and with the lock
  inline static std::uint64_t gathered = 0;         // frees that name a stream, without the lock

  // One run in four records history, which closes the lock-free paths. The history must have the same blocks.
  void run() {
    struct book {
      explicit book(bool o) : open(o) {
        if (open)
          observe::history::process().start(1000, false);
      }
      ~book() {
        if (open)
          observe::history::process().stop();
      }
      bool const open;
    } const kept(t_.tape().seed() % 4 == 1);
    written_ = kept.open;
    for (int k = 0, n = 2 + static_cast<int>(t_.draw(2)); k < n; ++k) {
      int const steps = 8 + static_cast<int>(t_.draw(24));
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, steps] {
        for (int i = 0; i < steps && !t_.failed(); ++i)
          step();
      });
    }
    t_.join();
    if (!t_.failed())
      end();
  }

 private:
  memory::allocator& device() { return bench_.on(0); }

  // few, so that threads soon cache some, or own the lock for the last
  static constexpr std::size_t sizes[] = {100, 1500, 40 << 10};

  std::uintptr_t take(clock::stream_clock& line, std::size_t bytes) {  // Returns: 0 if there is no memory
    void* p = memory::fast_allocate(&line, bytes, 0);
    ++(p ? quick : slow);
    try {
      if (!p)
        p = device().allocate(line, bytes, 0, source_location::current());
    } catch (out_of_memory const&) {
      return 0;
    }
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    // As the library does: before another thread learns of the block and may free it.
    observe::note(observe::action::alloc, p, bytes, line.id(), bench_.core.id(), 0, source_location::current());
    auto const above = live_.lower_bound(at);
    bool const apart = (above == live_.end() || at + bytes <= above->first) &&
                       (above == live_.begin() || std::prev(above)->first + std::prev(above)->second <= at);
    if (!apart)
      t_.fail("a live block was allocated again");
    live_.emplace(at, bytes);
    return at;
  }
  void give(std::uintptr_t at) {
    if (!live_.erase(at))
      return;                                     // another thread freed it first
    auto* const p = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr)
    observe::note(observe::action::free, p, 0, 0, 0, 0, source_location::current());
    // the last user: its home or the other stream
    clock::stream_clock* const user = t_.draw(3) == 2 ? lines_[t_.draw(2)] : nullptr;
    bool const gone = user ? memory::fast_deallocate_used(user, p) : memory::fast_deallocate(p);
    if (user)
      gathered += gone;
    else
      ++(gone ? quick : slow);
    if (!gone)
      device().deallocate(p, user, source_location::current());
  }
  void give_some() {
    if (!live_.empty())
      give(std::next(live_.begin(), static_cast<std::ptrdiff_t>(t_.draw(64) % live_.size()))->first);
  }
  void step() {
    // read while others write
    if (written_ && t_.draw(4) == 0)
      return void(observe::history::process().live(static_cast<std::uint32_t>(bench_.core.id()), 0));
    clock::stream_clock& line = *lines_[t_.draw(4) == 3];
    std::size_t const bytes = sizes[t_.draw(3)];
    switch (t_.draw(8)) {
      case 0:
      case 1: return void(take(line, bytes));
      case 2: return give_some();
      case 3: return rare(line);
      default:
        for (std::size_t i = 0, n = 2 + t_.draw(8); i < n; ++i)
          give(take(line, bytes));
    }
  }
  void rare(clock::stream_clock& line) {
    if (t_.coin()) {
      // byte totals are inconsistent while other threads are in a call
      for (std::string const& what : device().validate()) {
        if (what.find("slot") != std::string::npos)
          t_.fail(what);
      }
      return;
    }
    t_.coin() ? (void)device().empty_cache() : (void)take(line, 700 << 10);
  }

  void counted(char const* what, std::int64_t is, std::size_t must) {
    if (is != static_cast<std::int64_t>(must))
      t_.fail(std::string(what) + ": counted " + std::to_string(is) + ", held " + std::to_string(must));
  }
  void look() {
    std::size_t bytes = 0;
    for (auto const& b : live_)
      bytes += b.second;
    auto const n = device().statistics();
    counted("blocks", n.allocation.all.current, live_.size());
    counted("blocks taken less given back", n.allocation.all.allocated - n.allocation.all.freed, live_.size());
    counted("bytes asked for", n.requested_bytes.all.current, bytes);
    counted("bytes asked for, taken less given back", n.requested_bytes.all.allocated - n.requested_bytes.all.freed,
            bytes);
    t_.expect_none(device().validate());
    if (written_)
      look_up();
  }
  void look_up() {
    auto const runtime = static_cast<std::uint32_t>(bench_.core.id());
    auto& h = observe::history::process();
    auto const all = h.live(runtime, 0);
    counted("blocks in the history", static_cast<std::int64_t>(all.size()), live_.size());
    for (auto const& b : all) {
      auto const held = live_.find(b.at);
      if (held == live_.end() || held->second != b.bytes)
        return t_.fail("the history has a block of " + std::to_string(b.bytes) + " B that is not allocated");
    }
    std::int64_t blocks = 0, taken = 0;
    for (auto const& l : h.lines(runtime, 0))
      blocks += l.blocks, taken += l.total_blocks - l.given_blocks;
    counted("blocks by line", blocks, live_.size());
    counted("blocks by line, taken less given back", taken, live_.size());
  }
  void end() {  // all threads and their caches have ended
    look();
    while (!live_.empty() && !t_.failed())
      give(live_.begin()->first);
    if (t_.failed())
      return;
    look();
    device().empty_cache();
    counted("reserved bytes at the end", device().statistics().reserved_bytes.all.current, 0);
  }

  trial& t_;
  memory_bench& bench_;
  bool written_ = false;
  clock::stream_clock* const lines_[2];
  std::map<std::uintptr_t, std::size_t> live_;
};

inline void small_blocks_among_threads(trial& t) {
  cache_program(t).run();
}

// Threads share a biased lock, entered by the owner's word or by the mutex. Only one is inside at a time.
inline void biased_lock_among_threads(trial& t) {
  struct shared {
    base::biased_mutex lock;
    bool is_entered = false;
  };
  auto const all = std::make_shared<shared>();
  for (int k = 0, n = 2 + static_cast<int>(t.draw(2)); k < n; ++k) {
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&t, all, steps = 10 + t.draw(30)] {
      base::bias_word mine;
      auto const inside = [&] {
        if (std::exchange(all->is_entered, true))
          t.fail("two threads hold one lock");
        base::switch_point();
        all->is_entered = false;
      };
      for (std::uint64_t i = 0; i < steps && !t.failed(); ++i) {
        if (all->lock.enter(mine)) {
          inside();
          base::biased_mutex::leave(mine);
        } else {
          base::biased_lock const hold(all->lock);
          inside();
          if (t.coin())
            all->lock.bias_to(mine);
        }
      }
      base::biased_lock const hold(all->lock);
      all->lock.revoke_bias(mine);
    });
  }
  t.join();
}

// Threads mark the same slots, each for its stream, with and without the lock. No mark is lost.
inline void marks_among_threads(trial& t) {
  struct shared {
    memory::slab of;
    base::mutex lock;
  };
  constexpr std::uint32_t slots = 3;
  t.bench({.devices = 1, .memory = std::size_t{1} << 20});
  auto const all = std::make_shared<shared>();
  all->of.size = 16, all->of.slots = slots;
  all->of.known = std::make_unique<memory::slab::states[]>(1);
  all->of.first = all->of.known[0].bytes.data();
  for (std::uint32_t i = 0; i < slots; ++i) {
    new (all->of.first + i) memory::slot_byte;
    all->of.set_live(i, 16);
  }
  std::vector<clock::stream_clock*> users;
  for (std::uint64_t n = 2 + t.draw(3); n > 0; --n)
    users.push_back(&t.stream(0));
  for (std::size_t k = 0; k < users.size(); ++k) {
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&t, all, user = users[k]] {
      for (std::uint32_t i = 0; i < slots; ++i) {
        auto* const marks = t.draw(4) ? all->of.users.load() : nullptr;
        if (marks && all->of.add_first_user(marks, i, *user))
          continue;
        base::lock_guard const hold(all->lock);
        all->of.record_use(i, *user);
      }
    });
  }
  t.join();
  for (std::uint32_t i = 0; i < slots && !t.failed(); ++i) {
    std::vector<clock::stream_clock*> found;
    all->of.each_user(i, [&](clock::stream_clock* one) { found.push_back(one); });
    for (clock::stream_clock* const user : users) {
      if (std::count(found.begin(), found.end(), user) != 1)
        t.fail("a mark is lost, or is there twice");
    }
    if (found.size() != users.size())
      t.fail("a slot has marks of an unknown stream");
  }
}

}  // namespace weir::tests
