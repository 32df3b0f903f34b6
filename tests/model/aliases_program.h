// A block grows repeatedly in memory that must not exceed it. Its handles move each time and leave more
// aliases than weir keeps, while the device has not reached the first work on them.
// Threads: one. The seed chooses sizes, what lies between and whether a gate holds the device;
// the machine's seed is the same.
#pragma once
#include <cstring>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "tests/model/verdict.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class aliases_program {
 public:
  explicit aliases_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 13),
        bench_({.devices = 1,
                .memory = std::size_t{64} << 20,
                .schedule = simulated::scheduling::seeded,
                .seed = seed + 1},
               options{.epsilon = 0}),
        line_(bench_.stream(0)) {}
  verdict run() {
    driver::gate_handle gate{};
    bool const held = below(2);
    if (held)
      gate = bench_.machine().hold(0, line_.handle()).value;
    std::size_t pages = 1 + below(3);
    for (std::size_t i = 0, n = 3 * memory::alias_table::most + below(12); i < n; ++i) {
      block const b = take(pages);
      walls_.push_back(take(1));
      if (below(6) == 0)
        give(below(walls_.size()));
      if (b.at)
        device().deallocate(look(b).at, nullptr, at);
      pages += 1 + below(2);
    }
    if (held && !bench_.machine().open_gate(gate).ok())
      wrong_.note(check::answers, "a gate was not opened");
    while (!walls_.empty())
      give(walls_.size() - 1);
    bool const ended = bench_.clocks().synchronize(line_.now()).ok();
    for (auto const& f : bench_.control->findings())
      wrong_.note(check_of(f), f);
    if (!ended)
      wrong_.note(check::answers, "synchronize was refused");
    for (auto const& w : device().validate())
      wrong_.note(check::invariants, w);
    device().empty_cache();
    if (auto const left = device().statistics().reserved_bytes.all.current)
      wrong_.note(check::invariants, std::to_string(left) + " B stay reserved when all was given back");
    return wrong_;
  }

 private:
  static constexpr std::size_t page = 64 << 10;
  static constexpr source_location at{"a program", "aliases_program.h", 1};
  struct block {
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;
  };
  struct job {
    block b;
    verdict* wrong;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_.on(0)); }
  void work(block const& b, bool writes, void (*run)(void*)) {
    driver::touch const all{reinterpret_cast<driver::address>(b.at), b.bytes, writes};
    auto const s = bench_.machine().enqueue(0, line_.handle(), {&all, 1},
                                            {run, [](void* j) { delete static_cast<job*>(j); }, new job{b, &wrong_}});
    if (!s.ok())
      wrong_.note(s.what == driver::code::lost ? check::stray : check::answers,
                  "enqueue answered " + std::string(driver::name_of(s.what)));
  }
  block take(std::size_t pages) {
    block b{nullptr, pages * page, static_cast<unsigned char>(1 + below(200))};
    try {
      b.at = static_cast<unsigned char*>(device().allocate(line_, b.bytes, 0, at));
    } catch (out_of_memory const&) {
      wrong_.note(check::answers, "memory is short where it is plentiful");
      return b;
    }
    work(b, true, [](void* j) {
      std::memset(static_cast<job*>(j)->b.at, static_cast<job*>(j)->b.value, static_cast<job*>(j)->b.bytes);
    });
    return b;
  }
  block const& look(block const& b) {
    work(b, false, [](void* p) {
      auto const& j = *static_cast<job*>(p);
      if (j.b.at[0] != j.b.value || std::memcmp(j.b.at, j.b.at + 1, j.b.bytes - 1) != 0)
        j.wrong->note(check::bytes, "a block in use was overwritten");
    });
    return b;
  }
  void give(std::size_t i) {
    if (walls_[i].at)
      device().deallocate(look(walls_[i]).at, nullptr, at);
    walls_[i] = walls_.back();
    walls_.pop_back();
  }

  std::mt19937_64 random_;
  verdict wrong_;
  memory_bench bench_;
  clock::stream_clock& line_;
  std::vector<block> walls_;
};

}  // namespace weir::tests
