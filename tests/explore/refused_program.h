// Threads use device memory while driver calls are refused, all drawn from one tape. A refused call throws
// weir's error, no block's bytes change, and in the end all memory is available.
// Threads: those of each run.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "tests/explore/filled.h"

namespace weir::tests {

class refused_among_threads {
 public:
  explicit refused_among_threads(trial& t) : t_(t), pages_(4 + t.draw(9)) {
    bench_ = &t.bench({.devices = 1, .memory = pages_ * page, .virtual_memory = !t.coin(15)});
    for (int k = 0, n = 2 + static_cast<int>(t.draw(3)); k < n; ++k)
      lines_.push_back(&t.stream(0));
  }

  void run() {
    t_.among_threads(3, 8, [this](int steps) {
      for (int i = 0; i < steps && !t_.failed(); ++i)
        step();
    });
    driver::fault_injector_of(t_.machine())->forget_orders();
    if (t_.failed())
      return;
    auto& device = bench_->on(0);
    t_.synchronize();
    t_.expect_none(device.validate());
    (void)device.empty_cache();
    if (device.statistics().allocated_bytes.all.current)
      t_.fail("a block is held after its owner has ended");
    std::vector<void*> all;
    try {
      while (all.size() <= pages_)
        all.push_back(device.allocate(*lines_[0], page, 0, source_location::current()));
    } catch (out_of_memory const&) {}
    if (all.size() != pages_)
      t_.fail("of " + std::to_string(pages_) + " pages there are " + std::to_string(all.size()) +
              " when nothing is refused any more");
    for (void* p : all)
      device.deallocate(p, nullptr, source_location::current());
  }

 private:
  static constexpr std::size_t page = 64 << 10;

  clock::stream_clock& some_line() { return *lines_[t_.draw(static_cast<std::uint32_t>(lines_.size()))]; }

  // Refuses calls from the k-th on, of those that only weir makes here.
  void refuse_some() {
    static constexpr std::array<std::string_view, 10> names{
        "create",         "map",          "grant",  "unmap",       "release",
        "create_segment", "create_event", "record", "query_event", "wait"};
    static constexpr std::array codes{driver::code::out_of_memory, driver::code::failed};
    auto const name = names[t_.draw(names.size())];
    auto const with = codes[t_.draw(codes.size())];
    auto const number =
        std::find(driver::call_names.begin(), driver::call_names.end(), name) - driver::call_names.begin();
    driver::fault_injector_of(t_.machine())
        ->refuse({.of = static_cast<driver::call>(number), .k = 1 + t_.draw(4), .with = with, .more = t_.draw(4)});
    t_.say(std::string(name), " is refused");
  }

  void step() {
    static constexpr std::size_t sizes[] = {700, 5000, page, 3 * page};
    if (t_.draw(3) == 2)
      refuse_some();
    auto& device = bench_->on(0);
    clock::stream_clock& line = some_line();
    std::size_t const bytes = sizes[t_.draw(4)];
    auto const value = static_cast<unsigned char>(1 + t_.draw(200));
    void* p = nullptr;
    try {
      p = device.allocate(line, bytes, 0, source_location::current());
    } catch (error const&) {
      return;
    }
    clock::stream_clock* user = t_.coin() ? &some_line() : nullptr;
    give_filled(t_, line, filled::now, p, bytes, value);
    if (user && !user->wait(line.now()).ok())
      user = nullptr;  // refused: it may not use the block
    give_filled(t_, user ? *user : line, filled::still, p, bytes, value);
    try {
      device.deallocate(p, user, source_location::current());
    } catch (error const& e) {
      t_.fail("giving back throws: " + std::string(e.operation()) + ": " + std::string(e.operands()));
    }
  }

  trial& t_;
  std::size_t const pages_;
  memory_bench* bench_ = nullptr;
  std::vector<clock::stream_clock*> lines_;
};

}  // namespace weir::tests
