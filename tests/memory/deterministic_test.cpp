// options::deterministic: the same calls give the same places, whenever the machine's work is done and seen to be done.
// Seeds as tests/support/seeds.h says, one in 25 of them: each program runs on fifty machines.
// Threads: one. The program's seed chooses the calls, the machine's when its devices move and what is seen of it.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "runtime/memory/device_allocator.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using tests::memory_bench;
constexpr here at{"a test", "a test", 1};

class program {
 public:
  program(std::uint64_t calls, std::uint64_t machine, options o, std::size_t memory)
      : random_(calls * 0x9e3779b97f4a7c15u + 11), bench_({.devices = 1, .memory = memory, .how = simulated::running::seeded, .seed = machine}, o), most_(memory / 32) {
    for (int i = 0; i < 4; ++i) lines_.push_back(&bench_.stream(0));
  }
  std::vector<std::size_t> run() {
    for (int i = 0; i < 400; ++i) step();
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(bench_.control->findings(), std::vector<std::string>{});
    while (!live_.empty()) give(live_.size() - 1);
    return places_;
  }

 private:
  struct block {
    void* at;
    std::size_t home;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_.on(0)); }
  clock::timeline& line(std::size_t i) { return *lines_[i]; }
  void work(clock::timeline& s) { EXPECT_TRUE(bench_.machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok()); }
  void take() {
    std::size_t const s = below(lines_.size()), kind = below(4);
    std::size_t const bytes = kind == 0 ? below(2000) : kind == 1 ? below(40'000) : kind == 2 ? (1 + below(4)) * most_ / 4 : below(most_);
    try {
      void* const p = device().allocate(line(s), bytes, 0, at);
      places_.push_back(reinterpret_cast<memory::address>(p) - device().addresses().base());
      live_.push_back({p, s});
      work(line(s));
    } catch (out_of_memory const&) {
      places_.push_back(~std::size_t{0});
    }
  }
  void give(std::size_t i) {
    device().deallocate(live_[i].at, below(4) ? nullptr : &line(below(lines_.size())), at);
    live_[i] = live_.back();
    live_.pop_back();
  }
  void use(block b) {
    clock::timeline& s = line(below(lines_.size()));
    EXPECT_TRUE(s.wait(line(b.home).now()).ok());
    device().mark(b.at, s, at);
    work(s);
  }
  void another_stream() {  // a registration ends, and another begins
    std::size_t const i = below(lines_.size());
    for (std::size_t k = live_.size(); k-- > 0;) {
      if (live_[k].home == i) device().deallocate(live_[k].at, nullptr, at), live_[k] = live_.back(), live_.pop_back();
    }
    bench_.clocks().retire(line(i));
    lines_[i] = &bench_.stream(0);
  }
  void step() {
    switch (below(16)) {
      case 0: return (void)bench_.clocks().poll(line(below(lines_.size())).now());
      case 1: return (void)bench_.clocks().synchronize(line(below(lines_.size())).now());
      case 2: return (void)line(below(lines_.size())).wait(line(below(lines_.size())).now());
      case 3: return (void)line(below(lines_.size())).query();
      case 4:
        if (below(20) == 0) another_stream();
        else if (below(20) == 0) device().empty_cache();
        return;
      case 5: case 6: case 7:
        if (!live_.empty()) use(live_[below(live_.size())]);
        return;
      default:
        if (!live_.empty() && below(live_.size() + 12) > 10) give(below(live_.size()));
        else take();
    }
  }

  std::mt19937_64 random_;
  memory_bench bench_;
  std::size_t const most_;
  std::vector<clock::timeline*> lines_;
  std::vector<block> live_;
  std::vector<std::size_t> places_;
};

std::size_t courses(std::uint64_t calls, options o, std::size_t memory) {  // different ones among 50 machines
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= 50; ++machine) seen.insert(program(calls, machine, o, memory).run());
  return seen.size();
}

TEST(deterministic, the_same_calls_give_the_same_places_on_fifty_machines) {
  for (std::uint64_t const calls : tests::seeds("deterministic", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{64} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, also_when_memory_is_short) {
  for (std::uint64_t const calls : tests::seeds("deterministic_short", 100, 0, 25)) {
    EXPECT_EQ(courses(calls, {.deterministic = true}, std::size_t{6} << 20), 1u) << "WEIR_TEST_SEED=" << calls;
  }
}

TEST(deterministic, without_it_places_hang_on_what_was_seen_complete) {
  std::set<std::vector<std::size_t>> seen;
  for (std::uint64_t machine = 1; machine <= 50 && seen.size() < 2; ++machine) seen.insert(program(1, machine, {}, std::size_t{64} << 20).run());
  EXPECT_EQ(seen.size(), 2u) << "nothing here would tell";
}

}  // namespace
}  // namespace weir
