// Threads allocate, write and free blocks of a share_pool that has room for one block each.
// Threads: those of each run.
#pragma once
#include <memory>
#include <vector>

#include "peer/share/shared_pool.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class pool_among_threads {
 public:
  explicit pool_among_threads(trial& t) : t_(t), threads_(2 + static_cast<int>(t.draw(2))), keeps_(t.coin()) {
    bench_ = &t.bench({.devices = 1, .memory = 4_MiB});
    auto& all = bench_->core.part<peer::exports>();
    bench_->core.open(0, "test", source_location::current());
    apart_ = t.coin();
    share_pool_options const o{.handle_bytes = apart_ ? page : 0, .limit = static_cast<std::size_t>(threads_) * page};
    pool_ = std::make_shared<peer::shared_pool>(all, bench_->core, 0, o, source_location::current());
    for (int k = 0; k < threads_; ++k)
      lines_.push_back(&t.stream(0));
  }

  void run() {
    for (int k = 0; k < threads_; ++k) {
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, k, n = keeps_ ? 1 : 3 + t_.draw(8)] {
        for (std::uint32_t i = 0; i < n && !t_.failed(); ++i)
          step(*lines_[static_cast<std::size_t>(k)], static_cast<unsigned char>(1 + k * 60 + static_cast<int>(i)));
      });
    }
    t_.join();
    auto& all = *kept_.lock();  // all other threads have ended
    for (auto& b : all)
      peer::exports::give_back(std::move(b));
    if (t_.failed())
      return;
    t_.synchronize();
    auto const n = pool_->statistics();
    if (n.buffers || n.held || n.lost)
      t_.fail("a buffer is held after its owner has ended");
    t_.expect_none(pool_->validate());
  }

 private:
  static constexpr std::size_t page = 64 << 10;

  void step(clock::stream_clock& line, unsigned char value) {
    std::size_t const bytes = keeps_ || t_.coin() ? page : 700;
    std::shared_ptr<peer::exported> b;
    try {
      b = peer::shared_pool::allocate(pool_, line, bytes, source_location::current());
    } catch (out_of_memory const& e) {
      // Each thread has at most one block, and weir waits for
      // freed ones. In one handle a hole may be too small.
      if (keeps_ || apart_)
        t_.fail(std::string("there is room, and memory is refused: ") + e.what());
      return;
    }
    auto* const at = static_cast<unsigned char*>(b->data());
    give_filled(t_, line, filled::now, at, bytes, value);
    give_filled(t_, line, filled::still, at, bytes, value);
    keeps_ ? kept_.lock()->push_back(std::move(b)) : peer::exports::give_back(std::move(b));
  }

  trial& t_;
  int const threads_;
  bool const keeps_;    // each thread allocates one block and keeps it
  bool apart_ = false;  // each block has a handle of its own
  memory_bench* bench_;
  std::shared_ptr<peer::shared_pool> pool_;
  std::vector<clock::stream_clock*> lines_;
  base::guarded<std::vector<std::shared_ptr<peer::exported>>> kept_;
};

}  // namespace weir::tests
