// Threads allocate, write and free device memory that is just enough for all. No
// allocation may fail, and no thread writes another's block.
// Threads: those of each run.
#pragma once
#include <vector>

#include "tests/explore/filled.h"

namespace weir::tests {

// Each thread holds one block at a time, within its share of the device, on streams of its own. Other threads
// need what a stream has cached. With mapped pages, weir can get all of it back. Without, it can if all
// blocks are alike, because every segment then fits every block. Otherwise a small block may keep a large
// segment from a thread that needs all of it.
class short_among_threads {
 public:
  explicit short_among_threads(trial& t)
      : t_(t), threads_(2 + static_cast<int>(t.draw(2))), maps_(t.coin(80)), alike_(!maps_ && t.coin(60)) {
    bool const one_has_most = !alike_ && t.coin(70);  // then a page in transit in another thread is missed at once
    std::size_t room = 0;
    for (int k = 0; k < threads_; ++k) {
      lanes_.push_back({{},
                        one_has_most && k > 0 ? 6 + t.draw(12) : 1 + t.draw(8),
                        !one_has_most ? share
                        : k > 0       ? page
                                      : (1 + t.draw(3)) * page});
      room += lanes_.back().share;
    }
    bool const by_limit = t.coin();
    weir::options o;
    if (by_limit)
      o.device_limit = room;
    bench_ = &t.bench({.devices = 1, .memory = by_limit ? 4 * room : room, .virtual_memory = maps_}, o);
    clock::stream_clock* const common = &t.stream(0);
    for (lane& mine : lanes_)
      mine.lines = {&t.stream(0), &t.stream(0), common};
  }

  void run() {
    char name = 'a';
    for (lane const& mine : lanes_) {
      t_.spawn(std::string(1, name), [this, &mine, first = static_cast<unsigned char>(name)] {
        for (std::uint32_t i = 0; i < mine.steps && !t_.failed(); ++i)
          step(mine, static_cast<unsigned char>(first + 3 * i));
      });
      ++name;
    }
    t_.join();
    t_.expect_none(bench_->on(0).validate());
  }

 private:
  static constexpr std::size_t page = 64 << 10, share = 4 * page;
  struct lane {
    std::vector<clock::stream_clock*> lines;
    std::uint32_t steps;
    std::size_t share;  // bytes
  };

  void step(lane const& mine, unsigned char value) {
    auto& device = bench_->on(0);
    clock::stream_clock& line = *mine.lines[t_.draw(3)];
    std::size_t const bytes = alike_ || t_.coin() ? mine.share : t_.coin() ? page : 2000;
    void* p = memory::fast_allocate(&line, bytes, 0);
    try {
      if (!p)
        p = device.allocate(line, bytes, 0, source_location::current());
    } catch (out_of_memory const& e) {
      if (maps_ || alike_)
        t_.fail(std::string("there is room, and memory is refused: ") + e.what());
      return;
    }
    clock::stream_clock* user = t_.draw(3) == 2 ? mine.lines[t_.draw(3)] : nullptr;
    if (t_.coin()) {
      give_filled(t_, line, filled::now, p, bytes, value);
      if (user)
        (void)user->wait(line.now());
      give_filled(t_, user ? *user : line, filled::still, p, bytes, value);
    }
    bool const gone = user ? memory::fast_deallocate_used(user, p) : memory::fast_deallocate(p);
    if (!gone)
      device.deallocate(p, user, source_location::current());
  }

  trial& t_;
  int const threads_;
  bool const maps_, alike_;  // alike: all blocks have one size
  memory_bench* bench_ = nullptr;
  std::vector<lane> lanes_;
};

}  // namespace weir::tests
