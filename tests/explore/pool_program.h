// Threads that take blocks of a share_pool, write them and give them back, while there is room for one each.
// Threads: those of each run.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "peer/share_pool.h"
#include "tests/explore/explore.h"

namespace weir::tests {

class pool_among_threads {
 public:
  explicit pool_among_threads(trial& t) : t_(t), threads_(2 + static_cast<int>(t.draw(2))), keeps_(t.coin()) {
    bench_ = &t.bench({.devices = 1, .memory = 4_MiB});
    auto& all = bench_->core.part<peer::exports>();
    bench_->core.open(0, "test", here::current());
    apart_ = t.coin();
    share_pool_options const o{.handle_bytes = apart_ ? page : 0, .limit = static_cast<std::size_t>(threads_) * page};
    pool_ = std::make_shared<peer::pool_books>(all, bench_->core, 0, o, here::current());
    for (int k = 0; k < threads_; ++k) lines_.push_back(&t.stream(0));
  }

  void run() {
    for (int k = 0; k < threads_; ++k) {
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, k, n = keeps_ ? 1 : 3 + t_.draw(8)] {
        for (std::uint32_t i = 0; i < n && !t_.failed(); ++i) step(*lines_[static_cast<std::size_t>(k)], static_cast<unsigned char>(1 + k * 60 + static_cast<int>(i)));
      });
    }
    t_.join();
    auto& all = *kept_.lock();  // nobody else is left
    for (auto& b : all) peer::exports::give_back(std::move(b));
    if (t_.failed()) return;
    for (auto* line : lines_) {
      if (!bench_->clocks().synchronize(line->now()).ok()) t_.fail("device lost");
    }
    auto const n = pool_->statistics();
    if (n.buffers || n.held || n.lost) t_.fail("something is held by nobody");
    for (std::string const& what : pool_->validate()) t_.fail(what);
  }

 private:
  static constexpr std::size_t page = 64 << 10;

  void step(clock::timeline& line, unsigned char value) {
    std::size_t const bytes = keeps_ || t_.coin() ? page : 700;
    std::shared_ptr<peer::exported> b;
    try {
      b = peer::pool_books::allocate(pool_, line, bytes, here::current());
    } catch (out_of_memory const& e) {
      // Each has one at most, and what was given back is waited for: of one handle for all a block may leave no hole that is wide enough.
      if (keeps_ || apart_) t_.fail(std::string("there is room, and memory is refused: ") + e.what());
      return;
    }
    auto* const at = static_cast<unsigned char*>(b->data());
    give(line, at, bytes, value, true);
    give(line, at, bytes, value, false);
    keeps_ ? kept_.lock()->push_back(std::move(b)) : peer::exports::give_back(std::move(b));
  }

  void give(clock::timeline& line, unsigned char* at, std::size_t bytes, unsigned char value, bool writes) {
    struct job {
      trial* t;
      unsigned char* at;
      std::size_t bytes;
      unsigned char value;
    };
    driver::touch const all{reinterpret_cast<driver::address>(at), bytes, writes};
    auto const write = [](void* x) {
      auto const& j = *static_cast<job*>(x);
      std::memset(j.at, j.value, j.bytes);
    };
    auto const look = [](void* x) {
      auto const& j = *static_cast<job*>(x);
      if (j.at[0] != j.value || std::memcmp(j.at, j.at + 1, j.bytes - 1) != 0) j.t->fail("somebody wrote into a block in use");
    };
    driver::work const w{writes ? static_cast<void (*)(void*)>(write) : look, [](void* x) { delete static_cast<job*>(x); }, new job{&t_, at, bytes, value}};
    if (auto const s = bench_->machine().enqueue(0, line.handle(), {&all, 1}, w); !s.ok()) t_.fail("enqueue answered " + std::string(driver::name_of(s.what)));
  }

  trial& t_;
  int const threads_;
  bool const keeps_;    // each takes one, and nobody gives it back meanwhile
  bool apart_ = false;  // a handle for each
  memory_bench* bench_;
  std::shared_ptr<peer::pool_books> pool_;
  std::vector<clock::timeline*> lines_;
  base::guarded<std::vector<std::shared_ptr<peer::exported>>> kept_;
};

}  // namespace weir::tests
