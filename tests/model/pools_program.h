// Pools for memory_program.h: the program's thread makes, limits, enters, leaves and ends them between its steps.
// Threads: one.
#pragma once
#include <algorithm>
#include <random>

#include "streams/api/host_store.h"
#include "tests/model/memory_program.h"

namespace weir::tests {

class pools_program {
 public:
  explicit pools_program(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 5), program_(seed) {
    program_.before_step_ = [this] { step(); };
    program_.before_end_ = [this] {
      program_.validate("with pools");
      while (!pools_.empty())
        end(pools_.size() - 1);
    };
  }
  pools_program(pools_program const&) = delete;
  ~pools_program() {
    for (std::uint64_t const number : entered_)
      memory::thread_caches::leave(number);
  }
  verdict run() {
    verdict wrong = program_.run();
    if (wrong.ok() && !past_limit_.empty())
      wrong.note(check::invariants, past_limit_);
    return wrong;
  }
  memory_program const& program() const noexcept { return program_; }
  std::uint64_t made = 0, slept = 0, registered = 0;

 private:
  struct known {
    int device;
    memory::memory_pool* pool;
    std::size_t most;  // bytes that it may hold: its limit, or what it held when that was set
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  std::size_t some_limit() { return below(2) ? 0 : (1 + below(8)) * program_.capacity_ / 8; }

  static bool of_the_program(memory::memory_pool const& p) {
    return p.is == memory::memory_pool::kind::ordinary || p.is == memory::memory_pool::kind::registered;
  }
  // If the step before has allocated one block and freed none: that block, which lies in the pool in force.
  void newest_block() {
    std::size_t const blocks = std::exchange(blocks_, program_.blocks_.size());
    std::uint64_t const allocations = std::exchange(allocations_, program_.allocations);
    if (blocks_ != blocks + 1 || allocations_ != allocations + 1)
      return;
    auto const& b = *program_.blocks_.back();
    memory::memory_pool const* const its = program_.on(program_.device_of(b.home)).find(b.at)->pool;
    if (of_the_program(*its) && its != memory::thread_caches::in_force(its->of))
      program_.fail(check::answers, "a block lies in a pool that is not in force");
  }
  void step() {
    newest_block();
    for (known const& k : pools_) {
      auto const now = k.pool->now();
      if (now.limit && now.charged > k.most)
        past_limit_ = "a pool holds more than its limit";
    }
    switch (below(11)) {
      case 0: return make();
      case 1: return end();
      case 2: return limit();
      case 3:
      case 4:
      case 5: return enter();
      case 6:
      case 7: return leave();
      case 8: return sleep();
      default: return;
    }
  }
  void make() {
    int const d = static_cast<int>(below(static_cast<std::size_t>(program_.devices_)));
    std::size_t const most = some_limit();
    if (made++ % 4 == 3 && most && program_.maps_ && !program_.captured_)
      return make_registered(d, most);
    pools_.push_back({d, &program_.bench_->on(d).make_pool("pool", most), most});
  }
  void make_registered(int d, std::size_t most) {
    auto const home = std::find_if(program_.lines_.begin(), program_.lines_.end(),
                                   [&](auto* t) { return t->device() == d && t->alive() == clock::life::own; });
    if (home == program_.lines_.end())
      return;
    try {
      memory::memory_pool& p =
          program_.bench_->on(d).make_registered_pool("registered", most, **home, source_location::current());
      pools_.push_back({d, &p, p.now().charged});
      program_.say("pool ", p.number(), " is registered: ", p.now().charged, " B");
      ++registered;
      program_.kept_ = true;
    } catch (out_of_memory const&) {  // what is live leaves too little
    } catch (error const& e) {
      if (!program_.unkind_)
        program_.fail(check::answers, "make_registered_pool: " + std::string(e.operands()));
    }
  }
  void end() {
    if (pools_.empty())
      return;
    end(below(pools_.size()));
  }
  void end(std::size_t i) {
    program_.bench_->on(pools_[i].device).end_pool(*pools_[i].pool);
    pools_[i] = pools_.back();
    pools_.pop_back();
    program_.kept_ = std::ranges::any_of(pools_, [](known const& k) { return k.pool->is_registered(); });
  }
  void limit() {
    if (pools_.empty())
      return;
    known& k = pools_[below(pools_.size())];
    std::size_t const most = some_limit();
    if (k.pool->is_registered())
      return;
    k.pool->set_limit(most);
    k.most = std::max(most, k.pool->now().charged);
  }
  void enter() {
    if (!pools_.empty())
      entered_.push_back(memory::thread_caches::enter(*pools_[below(pools_.size())].pool));
  }
  void leave() {
    if (entered_.empty())
      return;
    std::size_t const i = below(entered_.size());
    memory::thread_caches::leave(entered_[i]);
    entered_.erase(entered_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void drop() {  // a block, whichever pool it is in
    auto& all = program_.blocks_;
    if (all.empty())
      return;
    auto const b = program_.take_out(*all[below(all.size())]);
    program_.say("free ", static_cast<void const*>(b->at), " of ", b->home);
    program_.on(program_.device_of(b->home)).deallocate(b->at, nullptr, source_location::current());
  }
  // The program uses no block of the pool before it wakes, but may free some.
  void sleep() {
    if (pools_.empty() || program_.collectives_ || !program_.maps_)
      return;
    known const k = pools_[below(pools_.size())];
    if (k.pool->is_registered())
      return;
    memory::allocator& a = program_.on(k.device);
    auto const refused = [&](char const* what, driver::status s) {
      if (!program_.unkind_)
        program_.must(s, what);
    };
    auto const& host = program_.bench_->core.part<streams::pinned_memory>();
    try {
      auto store = std::make_unique<streams::host_store>(program_.bench_->core, k.device, source_location::current());
      auto const before = host.statistics().allocated_bytes.all.current;
      std::size_t given = 0;
      if (auto const s = a.sleep(*k.pool, std::move(store), given); !s.ok())
        return refused("sleep", s);
      ++slept;
      program_.say("pool ", k.pool->number(), " sleeps");
      bool const had_blocks = k.pool->has_asleep();
      for (std::size_t i = below(4); i; --i)
        drop();
      if (!program_.unkind_ && had_blocks && !k.pool->has_asleep() &&
          host.statistics().allocated_bytes.all.current != before)
        program_.fail(check::invariants, "no block of a pool that sleeps is left, and its copy is kept");
      if (below(2))
        (void)a.empty_cache();
      program_.validate("while a pool sleeps");
      while (k.pool->is_asleep()) {
        try {
          auto const s = a.wake(*k.pool, source_location::current());
          program_.say("pool ", k.pool->number(), s.ok() ? " wakes" : " stays asleep");
          if (!s.ok())
            refused("wake", s), program_.bench_->control->clear_failures();
        } catch (out_of_memory const&) {
          if (program_.blocks_.empty())
            return program_.fail(check::answers, "nothing is left, and a pool cannot wake");
          drop();
        }
        if (!program_.wrong_.ok())
          return;
      }
    } catch (error const& e) {
      if (!program_.unkind_)
        program_.fail(check::answers, "sleep: " + std::string(e.operands()));
    }
  }

  std::mt19937_64 random_;
  memory_program program_;
  std::vector<known> pools_;
  std::vector<std::uint64_t> entered_;
  std::string past_limit_;
  std::size_t blocks_ = 0;  // when the last step began
  std::uint64_t allocations_ = 0;
};

}  // namespace weir::tests
