// Threads that take and give back device memory while there is just enough of it for all of them: none may ever go without.
// Threads: those of each run.
#pragma once
#include <vector>

#include "tests/explore/explore.h"

namespace weir::tests {

// Each holds one block at a time, which fits into its share of the device, but on streams of its own: what one has cached, another
// needs, and where pages are mapped all of it can be had back.
inline void short_of_memory_among_threads(trial& t) {
  constexpr std::size_t page = 64 << 10, share = 4 * page;
  int const threads = 2 + static_cast<int>(t.draw(2));
  bool const maps = t.coin(80), by_limit = t.coin();
  weir::options o;
  std::size_t const room = static_cast<std::size_t>(threads) * share;
  if (by_limit) o.device_limit = room;
  auto& bench = t.bench({.devices = 1, .memory = by_limit ? 4 * room : room, .maps = maps}, o);
  auto& device = bench.on(0);
  struct lane {
    std::vector<clock::timeline*> lines;
    std::uint32_t steps;
  };
  std::vector<lane> all;
  clock::timeline* const common = &t.stream(0);
  for (int k = 0; k < threads; ++k) all.push_back({{&t.stream(0), &t.stream(0), common}, 3 + t.draw(6)});
  for (int k = 0; k < threads; ++k) {
    t.spawn(std::string(1, static_cast<char>('a' + k)), [&t, &device, maps, &mine = all[static_cast<std::size_t>(k)]] {
      for (std::uint32_t i = 0; i < mine.steps && !t.failed(); ++i) {
        clock::timeline& line = *mine.lines[t.draw(3)];
        std::size_t const bytes = t.coin() ? share : t.coin() ? page : 2000;
        void* p = memory::quick_allocate(&line, bytes, 0);
        try {
          if (!p) p = device.allocate(line, bytes, 0, here::current());
        } catch (out_of_memory const& e) {
          if (maps) return t.fail(std::string("there is room, and memory is refused: ") + e.what());
          continue;  // a segment goes whole, and to the driver first
        }
        driver::touch const whole{reinterpret_cast<driver::address>(p), bytes, true};
        if (t.coin()) (void)line.owner().machine().enqueue(0, line.handle(), {&whole, 1}, {[](void*) {}, nullptr, nullptr});
        clock::timeline* const user = t.draw(3) == 2 ? mine.lines[t.draw(3)] : nullptr;
        bool const gone = user ? memory::quick_deallocate_used(user, p) : memory::quick_deallocate(p);
        if (!gone) device.deallocate(p, user, here::current());
      }
    });
  }
  t.join();
  for (std::string const& what : device.validate()) t.fail(what);
}

}  // namespace weir::tests
