// With options::deterministic, a program's blocks get the same offsets in their
// device's addresses on every machine, whatever its timing.
// Threads: one. The program's seed chooses the calls,
// the machine's when its devices move and what is seen of it.
#pragma once
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class places_program {
 public:
  places_program(std::uint64_t calls, std::uint64_t machine, options o, std::size_t memory, int steps = 400,
                 std::size_t most = 0)
      : steps_(steps),
        random_(calls * 0x9e3779b97f4a7c15u + 11),
        bench_({.devices = 1, .memory = memory, .schedule = simulated::scheduling::seeded, .seed = machine}, o),
        most_(most ? most : memory / 32) {
    for (int i = 0; i < 4; ++i)
      lines_.push_back(&bench_.stream(0));
  }
  std::vector<std::size_t> run() {
    for (int i = 0; i < steps_; ++i)
      step();
    for (auto const& w : device().validate())
      wrong_.note(check::invariants, w);
    for (auto const& f : bench_.control->findings())
      wrong_.note(check_of(f), f);
    while (!live_.empty())
      give(live_.size() - 1);
    return places_;
  }
  verdict const& wrong() const noexcept { return wrong_; }

 private:
  struct block {
    void* at;
    std::size_t home;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_.on(0)); }
  clock::stream_clock& line(std::size_t i) { return *lines_[i]; }
  void must(driver::status s) {
    if (!s.ok())
      wrong_.note(check::answers, "a call answered " + std::string(driver::name_of(s.what)));
  }
  void work(clock::stream_clock& s) {
    must(bench_.machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}));
  }
  void take() {
    std::size_t const s = below(lines_.size()), kind = below(4);
    std::size_t const bytes = kind == 0   ? below(2000)
                              : kind == 1 ? below(40'000)
                              : kind == 2 ? (1 + below(4)) * most_ / 4
                                          : below(most_);
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
    clock::stream_clock& s = line(below(lines_.size()));
    must(s.wait(line(b.home).now()));
    device().record_use(b.at, s, at);
    work(s);
  }
  void another_stream() {  // one registration ends, another begins
    std::size_t const i = below(lines_.size());
    for (std::size_t k = live_.size(); k-- > 0;) {
      if (live_[k].home == i)
        device().deallocate(live_[k].at, nullptr, at), live_[k] = live_.back(), live_.pop_back();
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
        if (below(20) == 0)
          another_stream();
        else if (below(20) == 0)
          device().empty_cache();
        return;
      case 5:
      case 6:
      case 7:
        if (!live_.empty())
          use(live_[below(live_.size())]);
        return;
      default:
        if (!live_.empty() && below(live_.size() + 12) > 10)
          give(below(live_.size()));
        else
          take();
    }
  }

  static constexpr source_location at{"a program", "places_program.h", 1};
  int const steps_;
  std::mt19937_64 random_;
  memory_bench bench_;
  std::size_t const most_;
  std::vector<clock::stream_clock*> lines_;
  std::vector<block> live_;
  std::vector<std::size_t> places_;
  verdict wrong_;
};

// The calls of one seed on two machines. One in eight has so little memory that the ladder runs often.
inline verdict run_places(std::uint64_t seed) {
  options const o{.fence_interval = seed % 3 == 0 ? std::size_t{1} : 0, .deterministic = true};
  bool const short_of_memory = seed % 8 == 5;
  std::size_t const memory = std::size_t{short_of_memory ? 1u
                                         : seed % 2      ? 6u
                                                         : 64u}
                             << 20,
                    most = short_of_memory ? 128 << 10 : 0;
  std::vector<std::size_t> places[2];
  for (std::uint64_t k = 0; k < 2; ++k) {
    places_program p(seed, 2 * seed + k + 1, o, memory, 100, most);
    places[k] = p.run();
    if (!p.wrong().ok())
      return p.wrong();
  }
  verdict v;
  auto const differ = std::mismatch(places[0].begin(), places[0].end(), places[1].begin(), places[1].end());
  if (differ.first != places[0].end())
    v.note(check::places, "block " + std::to_string(differ.first - places[0].begin()) + " of " +
                              std::to_string(places[0].size()) + " lies elsewhere on another machine");
  return v;
}

}  // namespace weir::tests
