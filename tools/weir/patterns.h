// The patterns of weir bench alloc. All allocators run the same loops. These are templates, so that malloc is
// called directly. An allocator has  void* take(size_t bytes)  and  void give(void*)  and serves one thread;
// `view(t)` makes one for thread t.
// Threads: one runs a round; patterns with several threads start and join their own.
#pragma once
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::tool::patterns {

// One allocator in one pattern. round() returns: ns per pair (one allocation and its free).
class measured {
 public:
  virtual ~measured() = default;
  virtual double round() = 0;
  std::vector<std::vector<double>> by_thread;  // [thread][round]: ns per pair; only in patterns with threads
  std::vector<double> of_turns;  // per round: throughput of concurrent threads / of the same threads in turn
};

inline constexpr std::int64_t round_ns = 20'000'000;  // approximate duration of a round

// Finds the number of pairs per round by doubling. The first pairs may map pages and are not measured.
template <class Body>
std::size_t pairs_for(std::int64_t wanted_ns, Body body) {
  body(64);
  for (std::size_t n = 64;; n *= 2) {
    std::int64_t const from = base::now_ns();
    body(n);
    std::int64_t const spent = base::now_ns() - from;
    if (spent * 4 >= wanted_ns)
      return n * static_cast<std::size_t>(wanted_ns) / static_cast<std::size_t>(spent) + 1;
  }
}

template <class Body>
double ns_each(std::size_t n, Body body) {
  std::int64_t const from = base::now_ns();
  body(n);
  return static_cast<double>(base::now_ns() - from) / static_cast<double>(n);
}

// Allocates and frees one block, repeatedly.
template <class Allocator>
class pairs final : public measured {
 public:
  pairs(Allocator a, std::size_t bytes)
      : from_(a), bytes_(bytes), n_(pairs_for(round_ns, [this](std::size_t n) { run(n); })) {}
  double round() override {
    return ns_each(n_, [this](std::size_t n) { run(n); });
  }

 private:
  void run(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      from_.give(from_.take(bytes_));
  }
  Allocator from_;
  std::size_t bytes_, n_;
};

// The same on a stream that is captured meanwhile: `capture(work)` does the work inside.
template <class Allocator, class Capture>
class captured final : public measured {
 public:
  captured(Allocator a, std::size_t bytes, Capture capture) : from_(a), bytes_(bytes), capture_(capture) {
    capture_([this] { n_ = pairs_for(round_ns, [this](std::size_t n) { run(n); }); });
  }
  double round() override {
    double ns = 0;
    capture_([&] { ns = ns_each(n_, [this](std::size_t n) { run(n); }); });
    return ns;
  }

 private:
  void run(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      from_.give(from_.take(bytes_));
  }
  Allocator from_;
  std::size_t bytes_, n_ = 0;
  Capture capture_;
};

// The same with a block that is marked as used by other streams before its free.
template <class Allocator>
class marked final : public measured {
 public:
  marked(Allocator a, int marks)
      : from_(a), marks_(marks), n_(pairs_for(round_ns, [this](std::size_t n) { run(n); })) {}
  double round() override {
    return ns_each(n_, [this](std::size_t n) { run(n); });
  }

 private:
  void run(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      void* const p = from_.take(512);
      for (int by = 0; by < marks_; ++by)
        from_.record_use(p, by);
      from_.give(p);
    }
  }
  Allocator from_;
  int marks_;
  std::size_t n_;
};

// Replaces random blocks of a live set. The logarithms of the sizes are uniformly distributed.
template <class Allocator>
class churn final : public measured {
 public:
  churn(Allocator a, std::size_t live, std::size_t least, std::size_t most) : from_(a), live_(live) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> size(std::log2(static_cast<double>(least)),
                                                std::log2(static_cast<double>(most)));
    for (auto& s : steps_)
      s = {static_cast<std::size_t>(std::exp2(size(random))), random() % live};
    run(64 * live);  // fills the set, maps its memory, and lets what an allocator learns settle
    n_ = pairs_for(round_ns, [this](std::size_t n) { run(n); });
  }
  ~churn() override {
    for (void* p : live_)
      from_.give(p);
  }
  double round() override {
    return ns_each(n_, [this](std::size_t n) { run(n); });
  }

 private:
  struct step {
    std::size_t bytes, slot;
  };
  void run(std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      step const& s = steps_[next_++ % steps_.size()];
      void*& block = live_[s.slot];
      if (block)
        from_.give(block);
      block = from_.take(s.bytes);
    }
  }
  Allocator from_;
  std::vector<void*> live_;
  std::array<step, 1 << 16> steps_;
  std::size_t next_ = 0, n_ = 0;
};

// No allocator: about as many instructions as weir's pair, in four dependency chains, without memory
// accesses. Shows what the machine gives to its threads, whose clock and cores may be shared.
struct arithmetic {
  std::array<std::uint64_t, 4> chains{1, 2, 3, 4};
  void* take(std::size_t) {
    auto [a, b, c, d] = chains;
    for (int i = 0; i < 4; ++i) {
      a = step(a), b = step(b), c = step(c), d = step(d);
      asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));
    }
    chains = {a, b, c, d};
    return nullptr;
  }
  void give(void*) const {}
  static std::uint64_t step(std::uint64_t x) {
    x ^= x << 13, x ^= x >> 7;
    return x ^ x << 17;
  }
};

// Load of the other threads during a measurement: the same pairs, arithmetic (only the first thread is
// measured), or none (threads run in turn). together / beside shows contention in the allocator. beside / in
// turn shows contention for the machine's cores. in turn / one thread shows differences between cores and
// memory locality.
enum class threads_work { together, beside_arithmetic, in_turn };

// Pairs of 512 B by several threads. Each has its own allocator view and, if there are enough, its own core:
// contention between a core's hardware threads is not the allocator's. The first thread to finish ends the
// round. round() returns: mean ns per pair and thread.
template <class Make>
class threads final : public measured {
 public:
  threads(Make make, std::vector<int> const& cores, int count, threads_work how)
      : make_(make), cores_(cores), count_(static_cast<std::size_t>(count)), how_(how) {
    auto one = make_(0);
    n_ = pairs_for(round_ns, [&](std::size_t n) { run(one, n); });
  }
  double round() override {
    std::size_t const counted = how_ == threads_work::beside_arithmetic ? 1 : count_;
    std::vector<double> pairs_per_ns(count_);
    double in_turn = 0;
    if (how_ == threads_work::in_turn || (how_ == threads_work::together && count_ > 1)) {
      for (std::size_t t = 0; t < count_; ++t) {
        signs alone;
        alone.go.store(true);
        base::thread([&] { pairs_per_ns[t] = work(t, n_ / count_, make_(static_cast<int>(t)), alone); }).join();
      }
      in_turn = std::accumulate(pairs_per_ns.begin(), pairs_per_ns.end(), 0.0);
    }
    if (how_ != threads_work::in_turn) {
      signs seen;
      std::vector<base::thread> all;
      for (std::size_t t = 0; t < count_; ++t) {
        all.emplace_back([&, t] {
          pairs_per_ns[t] =
              t < counted ? work(t, n_, make_(static_cast<int>(t)), seen) : work(t, most, arithmetic{}, seen);
        });
      }
      while (seen.ready.load() < count_)
        base::yield_thread();
      seen.go.store(true);
      for (auto& t : all)
        t.join();
    }
    pairs_per_ns.resize(counted);
    by_thread.resize(counted);
    for (std::size_t t = 0; t < counted; ++t)
      by_thread[t].push_back(1 / pairs_per_ns[t]);
    double const all = std::accumulate(pairs_per_ns.begin(), pairs_per_ns.end(), 0.0);
    if (how_ == threads_work::together && in_turn > 0)
      of_turns.push_back(all / in_turn);
    return static_cast<double>(counted) / all;
  }

 private:
  static constexpr std::size_t at_a_time = 256, most = ~std::size_t{0} / 2;
  struct signs {
    base::atomic<std::size_t> ready{0};
    base::atomic<bool> go{false}, over{false};
  };
  // Returns: pairs per ns. Stops after `n` pairs or when another thread is done.
  template <class Allocator>
  double work(std::size_t t, std::size_t n, Allocator mine, signs& seen) const {
    if (cores_.size() >= count_)
      (void)os::run_this_thread_on({cores_[t]});
    run(mine, 1000);
    seen.ready.fetch_add(1);
    while (!seen.go.load(base::memory_order_acquire))
      base::yield_thread();
    std::size_t done = 0;
    std::int64_t const from = base::now_ns();
    do {  // at least once, so that a thread that was scheduled late has a figure too
      run(mine, at_a_time);
      done += at_a_time;
    } while (done < n && !seen.over.load(base::memory_order_relaxed));
    seen.over.store(true, base::memory_order_relaxed);
    return static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(base::now_ns() - from, 1));
  }
  template <class Allocator>
  static void run(Allocator& a, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      a.give(a.take(512));
  }
  Make make_;
  std::vector<int> const cores_;
  std::size_t const count_;
  threads_work const how_;
  std::size_t n_;
};

// A producer allocates blocks of 512 B on its stream. A consumer thread frees them after use on another
// stream.
template <class Make>
class handoff final : public measured {
 public:
  explicit handoff(Make make) : make_(make) {}
  double round() override {
    constexpr std::size_t n = 200'000;
    std::vector<base::atomic<void*>> ring(1024);
    base::thread consumer([&] {
      auto mine = make_(1);
      for (std::size_t i = 0; i < n; ++i) {
        auto& slot = ring[i % ring.size()];
        void* block = slot.load(base::memory_order_acquire);
        for (; !block; block = slot.load(base::memory_order_acquire))
          base::yield_thread();
        slot.store(nullptr, base::memory_order_release);
        mine.give_after_use(block);
      }
    });
    auto mine = make_(0);
    std::int64_t const from = base::now_ns();
    for (std::size_t i = 0; i < n; ++i) {
      void* const block = mine.take(512);
      auto& slot = ring[i % ring.size()];
      while (slot.load(base::memory_order_acquire))
        base::yield_thread();
      slot.store(block, base::memory_order_release);
    }
    consumer.join();
    return static_cast<double>(base::now_ns() - from) / static_cast<double>(n);
  }

 private:
  Make make_;
};

// 4 Mi live blocks of 516 B. A round allocates all, calls `look`, and frees all.
template <class Allocator, class Look>
class crowd final : public measured {
 public:
  static constexpr std::size_t blocks = 4u << 20, bytes = 516;
  crowd(Allocator a, Look look) : from_(a), look_(look), all_(blocks, nullptr) {}
  double round() override {
    look_(false);
    std::int64_t const start = base::now_ns();
    for (void*& p : all_)
      p = from_.take(bytes);
    std::int64_t const taken = base::now_ns();
    look_(true);
    std::int64_t const seen = base::now_ns();
    for (void* p : all_)
      from_.give(p);
    return static_cast<double>(taken - start + base::now_ns() - seen) / static_cast<double>(blocks);
  }

 private:
  Allocator from_;
  Look look_;
  std::vector<void*> all_;
};

}  // namespace weir::tool::patterns
