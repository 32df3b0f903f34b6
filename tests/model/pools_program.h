// Pools for memory_program.h: the program's thread makes, limits, enters, leaves and ends them between its steps.
// Threads: one.
#pragma once
#include <random>

#include "tests/model/memory_program.h"

namespace weir::tests {

class pools_program {
 public:
  explicit pools_program(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15u + 5), program_(seed) {
    program_.before_step_ = [this] { step(); };
  }
  pools_program(pools_program const&) = delete;
  ~pools_program() {
    for (std::uint64_t const number : entered_) memory::thread_caches::leave(number);
  }
  verdict run() {
    verdict wrong = program_.run();
    if (wrong.ok() && !past_limit_.empty()) wrong.note(check::invariants, past_limit_);
    return wrong;
  }
  memory_program const& program() const noexcept { return program_; }
  std::uint64_t made = 0;

 private:
  struct known {
    int device;
    memory::memory_pool* pool;
    std::size_t most;  // bytes that it may hold: its limit, or what it held when that was set
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  std::size_t some_limit() { return below(2) ? 0 : (1 + below(8)) * program_.capacity_ / 8; }

  void step() {
    for (known const& k : pools_) {
      auto const now = k.pool->now();
      if (now.limit && now.charged > k.most) past_limit_ = "a pool holds more than its limit";
    }
    switch (below(10)) {
      case 0: return make();
      case 1: return end();
      case 2: return limit();
      case 3: case 4: case 5: return enter();
      case 6: case 7: return leave();
      default: return;
    }
  }
  void make() {
    int const d = static_cast<int>(below(static_cast<std::size_t>(program_.devices_)));
    std::size_t const most = some_limit();
    pools_.push_back({d, &program_.bench_->on(d).make_pool("pool", most), most});
    ++made;
  }
  void end() {
    if (pools_.empty()) return;
    std::size_t const i = below(pools_.size());
    program_.bench_->on(pools_[i].device).end_pool(*pools_[i].pool);
    pools_[i] = pools_.back();
    pools_.pop_back();
  }
  void limit() {
    if (pools_.empty()) return;
    known& k = pools_[below(pools_.size())];
    std::size_t const most = some_limit();
    k.pool->set_limit(most);
    k.most = std::max(most, k.pool->now().charged);
  }
  void enter() {
    if (!pools_.empty()) entered_.push_back(memory::thread_caches::enter(*pools_[below(pools_.size())].pool));
  }
  void leave() {
    if (entered_.empty()) return;
    std::size_t const i = below(entered_.size());
    memory::thread_caches::leave(entered_[i]);
    entered_.erase(entered_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  std::mt19937_64 random_;
  memory_program program_;
  std::vector<known> pools_;
  std::vector<std::uint64_t> entered_;
  std::string past_limit_;
};

}  // namespace weir::tests
