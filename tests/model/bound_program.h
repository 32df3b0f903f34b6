// Random programs whose surviving blocks are placed badly:
// reserved memory stays within the bound at every step.
// Threads: one, or each step on one of several in turn, which have caches of their own; the machine's seed
// chooses what its device does and when that is seen.
//
// Peaks are at least every observed level. One run in three records the history: its maps
// and unmaps must lead from nothing to the mapped memory.
//
// Bound: reserved <= max((1 + epsilon) x most in use + c, most unreclaimable). In use: bytes that are live,
// just requested, or freed while other streams used them since all streams were last waited for. The program
// counts them itself, because blocks that the allocator calls pending may be complete. c: a page for each
// stream (at most 16), one for a block that begins and ends inside pages, and the capacity of the thread
// caches. The program queries device_allocator::unreclaimable() at times, and whenever reserved exceeds the
// first term. It queries seldom, because a query of unreclaimable bytes or statistics reclaims. If nothing is
// pending, it compares unreclaimable bytes with the handles mapped under live blocks, by the driver's calls.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/observe/history.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

// Tracks mappings by the driver's calls.
class mapped_handles final : public driver::fault_injector {
 public:
  using fault_injector::fault_injector;
  weir::driver::status map(weir::driver::address at, std::size_t bytes, weir::driver::memory_handle h) override {
    auto const s = fault_injector::map(at, bytes, h);
    if (s.ok())
      mapped_[at] = {bytes, h};
    return s;
  }
  weir::driver::status unmap(weir::driver::address at, std::size_t bytes) override {
    auto const s = fault_injector::unmap(at, bytes);
    if (s.ok())
      mapped_.erase(mapped_.lower_bound(at), mapped_.lower_bound(at + bytes));
    return s;
  }
  // Adds the handles under [at, at + bytes) and their bytes to `all`.
  void under(std::uintptr_t at, std::size_t bytes, std::map<weir::driver::memory_handle, std::size_t>& all) const {
    auto m = mapped_.upper_bound(at);
    if (m != mapped_.begin())
      --m;
    for (; m != mapped_.end() && m->first < at + bytes; ++m) {
      if (m->first + m->second.first > at)
        all[m->second.second] = m->second.first;
    }
  }

 private:
  std::map<weir::driver::address, std::pair<std::size_t, weir::driver::memory_handle>> mapped_;
};

class bound_program {
 public:
  // `on` runs a step on the thread with the given number.
  using runner = std::function<void(std::size_t, std::function<void()> const&)>;
  explicit bound_program(
      std::uint64_t seed, std::size_t threads = 1,
      runner on = [](std::size_t, std::function<void()> const& step) { step(); })
      : threads_(threads),
        on_(std::move(on)),
        random_(seed * 0x9e3779b97f4a7c15u + 7),
        epsilon_(std::array{0.0, 0.01, 0.027, 0.25}[below(4)]),
        small_(below(3) == 0),
        idle_(below(2) == 0),
        written_(below(3) == 0) {
    bench_.emplace(
        simulated{.devices = 1, .memory = capacity, .schedule = simulated::scheduling::seeded, .seed = seed + 1},
        options{.epsilon = epsilon_, .widest_epsilon = 0}, [this](std::unique_ptr<driver::driver> m) {
          auto made = std::make_unique<mapped_handles>(std::move(m));
          mapped_ = made.get();
          return made;
        });
    bool const many = !small_ && below(4) == 0;
    for (std::size_t i = 0, n = many ? 8 + below(33) : 1 + below(3); i < n; ++i)
      lines_.push_back(&bench_->stream(0));
    largest_ = std::size_t{1} << (16 + below(7));
  }
  verdict run() {
    book const kept(written_);
    for (std::size_t i = 0, n = 60 + below(120); i < n && wrong_.ok(); ++i) {
      if (below(4) == 0)
        note_unreclaimable();
      on_(below(threads_), [&] { step(); });
      look_at_bound();
      look();
      if (written_ && i % 16 == 0)
        look_up();
    }
    if (wrong_.ok())
      end();
    for (auto const& f : bench_->control->findings())
      wrong_.note(check_of(f), f);
    if (!wrong_.ok())
      wrong_.what += ", epsilon " + std::to_string(epsilon_) + ", " + std::to_string(lines_.size()) + " streams";
    return wrong_;
  }
  std::uint64_t past_the_first_term = 0, near_it = 0, unreclaimable_compared = 0;  // steps

 private:
  static constexpr std::size_t capacity = 256 << 20, page = 64 << 10;
  struct block {
    void* at;
    std::size_t bytes;
    std::size_t taken = 0;   // bytes of the arena's block
    bool by_others = false;  // its memory belongs to another stream, or one marked it
  };
  struct book {
    explicit book(bool o) : open(o) {
      if (open)
        observe::history::process().start(100'000, false);
    }
    ~book() {
      if (open)
        observe::history::process().stop();
    }
    bool const open;
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_->on(0)); }
  clock::stream_clock& any_line() { return *lines_[below(lines_.size())]; }
  std::size_t size() {
    if (small_ && below(2))
      return 1 + below(32 << 10);
    // some sizes repeat
    std::size_t const bytes = below(3) ? 1 + below(largest_) : (1 + below(8)) * largest_ / 8;
    return small_ ? bytes : bytes + (32 << 10);
  }
  void work_on(clock::stream_clock& s, block const& b) {
    driver::touch const all{reinterpret_cast<driver::address>(b.at), b.bytes, false};
    if (!bench_->machine().enqueue(0, s.handle(), {&all, b.bytes ? 1u : 0u}, {[](void*) {}, nullptr, nullptr}).ok())
      wrong_.note(check::answers, "enqueue was refused");
  }
  void complete() {
    for (clock::stream_clock* s : lines_) {
      if (!bench_->clocks().synchronize(s->now()).ok())
        wrong_.note(check::answers, "synchronize was refused");
    }
    waiting_.clear();
    waiting_bytes_ = 0;
    look_at_unreclaimable();
  }
  void look_at_unreclaimable() {  // Requires: nothing is pending
    if (small_)
      return;  // slots in thread caches are unreclaimable too
    std::map<driver::memory_handle, std::size_t> all;
    for (block const& b : live_)
      mapped_->under(reinterpret_cast<std::uintptr_t>(b.at), b.taken, all);
    std::size_t bytes = 0;
    for (auto const& [h, n] : all)
      bytes += n;
    std::size_t const said = device().unreclaimable();
    ++unreclaimable_compared;
    if (said != bytes)
      wrong_.note(check::invariants, "covered is said to be " + std::to_string(said) +
                                         " B, and blocks lie on handles of " + std::to_string(bytes));
  }
  void take() {
    clock::stream_clock& s = any_line();
    std::size_t const bytes = size();
    note_in_use(memory::round_up(std::max(bytes, memory::granule), 512));
    try {
      live_.push_back({device().allocate(s, bytes, 0, source_location::current()), bytes});
    } catch (out_of_memory const&) {
      return;
    }
    note_taken(live_.back(), s);
    look_at_bound();
    if (!idle_)
      work_on(s, live_.back());
    if (below(6) == 0) {
      clock::stream_clock& user = any_line();
      (void)user.wait(s.now());  // so that the memory's earlier work precedes the user's work
      device().record_use(live_.back().at, user, source_location::current());
      live_.back().by_others |= &user != &s;
      work_on(user, live_.back());
    }
  }
  // Records the block's memory, and removes reused bytes from the pending ones.
  void note_taken(block& b, clock::stream_clock& by) {
    auto const at = reinterpret_cast<std::uintptr_t>(b.at);
    for (auto const& r : device().layout()) {
      if (at < r.at || at >= r.at + r.bytes)
        continue;
      b.by_others = r.stream != by.id();
      for (auto const& p : r.parts) {
        if (p.at == at)
          b.taken = p.bytes;
      }
    }
    auto w = waiting_.upper_bound(at);
    if (w != waiting_.begin())
      --w;
    while (w != waiting_.end() && w->first < at + b.taken) {
      bool const again = w->first + w->second > at;
      waiting_bytes_ -= again ? w->second : 0;
      w = again ? waiting_.erase(w) : std::next(w);
    }
    taken_bytes_ += b.taken;
    note_in_use(0);
  }
  void give(std::size_t i) {
    device().deallocate(live_[i].at, nullptr, source_location::current());
    taken_bytes_ -= live_[i].taken;
    if (live_[i].by_others) {
      waiting_[reinterpret_cast<std::uintptr_t>(live_[i].at)] = live_[i].taken;
      waiting_bytes_ += live_[i].taken;
    }
    live_[i] = live_.back();
    live_.pop_back();
  }
  // A stream allocates some blocks, frees them all, and is waited for. The next stream reuses the memory.
  void turn() {
    std::size_t const before = live_.size();
    for (std::size_t n = 1 + below(8); n-- > 0;)
      take();
    while (live_.size() > before)
      give(live_.size() - 1);
    complete();
  }
  void step() {
    if (lines_.size() > 3 && below(2))
      return turn();
    switch (below(14)) {
      case 0: return complete();
      case 1: return (void)any_line().wait(any_line().now());
      case 2: {  // keeps each k-th: survivors lie apart
        std::size_t const k = 2 + below(7);
        for (std::size_t i = live_.size(); i-- > 0;) {
          if (i % k)
            give(i);
        }
        return;
      }
      case 3:  // keeps blocks at a page's start: each pins a handle
        for (std::size_t i = live_.size(); i-- > 0;) {
          if (reinterpret_cast<std::uintptr_t>(live_[i].at) % page)
            give(i);
        }
        return;
      case 4:
        if (below(8) == 0)
          device().empty_cache();
        return;
      default:
        if (!live_.empty() && below(5) < 2)
          give(below(live_.size()));
        else
          take();
    }
  }
  void note_unreclaimable() { most_unreclaimable_ = std::max(most_unreclaimable_, device().unreclaimable()); }
  void look() {
    if (below(4))
      return;
    memory_statistics const n = device().statistics();
    look_at_peaks(n);
    auto const pending = n.pending_bytes.all.current;
    if (!small_ && pending > static_cast<std::int64_t>(waiting_bytes_))
      wrong_.note(check::invariants, std::to_string(pending) +
                                         " B are pending, and what other streams may still use is " +
                                         std::to_string(waiting_bytes_));
  }
  void note_in_use(std::size_t asked) { most_in_use_ = std::max(most_in_use_, taken_bytes_ + waiting_bytes_ + asked); }
  void look_at_bound() {
    std::size_t reserved = 0;
    for (auto const& r : device().layout())
      reserved += r.bytes;
    std::size_t const caches = small_ ? threads_ * lines_.size() * memory::thread_cache::most_bytes : 0;
    std::size_t const first = most_in_use_ + static_cast<std::size_t>(static_cast<double>(most_in_use_) * epsilon_) +
                              page * (std::min<std::size_t>(lines_.size(), 16) + (lines_.size() > 1)) + caches;
    past_the_first_term += reserved > first;
    near_it += reserved > first - first / 8;
    if (reserved > first)
      note_unreclaimable();
    if (reserved > std::max(first, most_unreclaimable_)) {
      wrong_.note(check::invariants, "reserved " + std::to_string(reserved) + " > max(" + std::to_string(first) +
                                         ", covered " + std::to_string(most_unreclaimable_) + ")");
    }
  }
  void look_at_peaks(memory_statistics const& n) {
    if (below(40) == 0) {
      device().reset_peak();
      seen_ = {};
      return;
    }
    statistic_by_size const* const kinds[] = {&n.allocation,    &n.active,          &n.allocated_bytes,
                                              &n.active_bytes,  &n.requested_bytes, &n.reserved_bytes,
                                              &n.pending_bytes, &n.segment};
    for (std::size_t k = 0; k < seen_.size(); ++k) {
      statistic const* const parts[] = {&kinds[k]->small, &kinds[k]->large, &kinds[k]->all};
      for (std::size_t p = 0; p < 3; ++p) {
        seen_[k][p] = std::max(seen_[k][p], parts[p]->current);
        if (parts[p]->peak < seen_[k][p])
          wrong_.note(check::invariants, "a peak is " + std::to_string(parts[p]->peak) + ", and " +
                                             std::to_string(seen_[k][p]) + " was seen (level " + std::to_string(k) +
                                             ", part " + std::to_string(p) + ")");
        if (parts[p]->allocated - parts[p]->freed != parts[p]->current && k != 5 && k != 7)
          wrong_.note(check::invariants, "what came less what went is not what is there (level " + std::to_string(k) +
                                             ", part " + std::to_string(p) + ")");
      }
    }
  }
  // The history's maps and unmaps must lead from nothing to the mapped memory.
  void look_up() {
    using ranges = std::map<std::uintptr_t, std::size_t>;
    auto const merged = [](ranges const& from) {
      ranges out;
      for (auto const& [at, bytes] : from) {
        if (!out.empty() && out.rbegin()->first + out.rbegin()->second == at)
          out.rbegin()->second += bytes;
        else
          out.emplace(at, bytes);
      }
      return out;
    };
    ranges told, lies;
    for (auto const& e : observe::history::process().events(static_cast<std::uint32_t>(bench_->core.id()), 0)) {
      bool right = true;
      if (e.what == observe::action::map)
        right = told.emplace(e.at, e.bytes).second;
      if (e.what == observe::action::unmap)
        right = told.erase(e.at) == 1;
      if (!right)
        return wrong_.note(check::invariants, "the history maps what is mapped, or unmaps what is not");
    }
    for (auto const& r : device().layout())
      lies.emplace(r.at, r.bytes);
    if (merged(told) != merged(lies))
      wrong_.note(check::invariants, "the history's maps and unmaps do not lead to what is mapped");
  }
  void end() {
    if (written_)
      look_up();
    for (auto const& w : device().validate())
      wrong_.note(check::invariants, w);
    while (!live_.empty())
      give(live_.size() - 1);
    complete();
    device().empty_cache();
    if (auto const left = device().statistics().reserved_bytes.all.current)
      wrong_.note(check::invariants, std::to_string(left) + " B stay reserved when all was given back");
    for (auto const& w : device().validate())
      wrong_.note(check::invariants, "at the end: " + w);
  }

  std::size_t const threads_;
  runner const on_;
  std::mt19937_64 random_;
  double const epsilon_;
  bool const small_, idle_, written_;  // with small blocks; no work except for marks; with history
  std::size_t largest_ = 0;
  mapped_handles* mapped_ = nullptr;  // owned by bench_
  std::optional<memory_bench> bench_;
  std::vector<clock::stream_clock*> lines_;
  std::vector<block> live_;
  // bytes by address: freed while other streams used them, since all streams were waited for
  std::map<std::uintptr_t, std::size_t> waiting_;
  std::size_t taken_bytes_ = 0, waiting_bytes_ = 0, most_in_use_ = 0, most_unreclaimable_ = 0;
  std::array<std::array<std::int64_t, 3>, 8> seen_{};  // since peaks were reset
  verdict wrong_;
};

}  // namespace weir::tests
