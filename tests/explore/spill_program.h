// Threads use blocks in three pools under a spill, on a device that holds two and each thread's temporary. A use
// finds what the last one left, whichever pools slept meanwhile, and none is refused.
// Threads: those of a run; each has blocks and a stream of its own.
#pragma once
#include <memory>
#include <vector>

#include "runtime/memory/heap/thread_caches.h"
#include "streams/api/spills.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class spill_among_threads {
 public:
  explicit spill_among_threads(trial& t) : t_(t), threads_(2 + t.draw(2)) {
    bench_ = &t.bench({.devices = 1, .memory = (2 * blocks_each * pages_each + threads_) * page});
    for (std::uint32_t k = 0; k <= threads_; ++k)
      lines_.push_back(&t.stream(0));
    std::vector<streams::spills::member> all;
    for (int i = 0; i < 3; ++i) {
      memory::memory_pool* const made = &memory().make_pool("pool", 0);
      pools_.push_back(std::make_unique<streams::pool_state>("pool", 0, known_runtime(bench_->core), &memory(), made));
      all.push_back({pools_.back().get(), here()});
    }
    bench_->core.part<streams::spills>().add(all, here());
    for (std::size_t i = 0; i < pools_.size() * blocks_each; ++i) {
      blocks_.push_back({nullptr, static_cast<unsigned char>(1 + i), i / blocks_each});
      make(blocks_.back(), *lines_.back());
    }
    t_.must(bench_->clocks().synchronize(lines_.back()->now()), "synchronize");
  }

  void run() {
    for (std::uint32_t k = 0; k < threads_; ++k) {
      t_.spawn(std::string(1, static_cast<char>('a' + k)), [this, k, n = 2 + t_.draw(6)] {
        for (std::uint32_t i = 0; i < n && !t_.failed(); ++i)
          step(k);
      });
    }
    t_.join();
    if (t_.failed())
      return;
    for (std::uint32_t i = 0; i < blocks_.size(); ++i)
      use(*lines_[i % threads_], {&blocks_[i]});
    for (block const& b : blocks_)
      memory().deallocate(b.at, nullptr, here());
    for (auto const& p : pools_)
      streams::spills::leave(*p), memory().end_pool(*p->here);
    t_.synchronize();
    t_.expect_none(memory().validate());
  }

 private:
  static constexpr std::size_t page = 64 << 10, pages_each = 2, blocks_each = 2;
  struct block {
    unsigned char* at;
    unsigned char value;
    std::size_t pool;
  };
  static source_location here() { return source_location::current(); }
  memory::allocator& memory() { return bench_->on(0); }

  void step(std::uint32_t k) {
    auto& line = *lines_[k];
    auto const mine = [&]() -> block& {
      std::size_t const n = blocks_.size() / threads_;
      return blocks_[k + threads_ * t_.draw(static_cast<std::uint32_t>(n))];
    };
    try {
      switch (t_.draw(4)) {
        case 0: return use(line, {&mine()});
        case 1: {
          block &a = mine(), &b = mine();
          return &a == &b ? use(line, {&a}) : use(line, {&a, &b});
        }
        case 2: {
          t_.say("makes a temporary");
          memory::scoped_block const p(memory().allocate(line, page, 0, here()), {&memory()});
          give_filled(t_, line, filled::now, p.get(), page, 99);
          return give_filled(t_, line, filled::still, p.get(), page, 99);
        }
        default: {
          block& b = mine();
          memory().deallocate(std::exchange(b.at, nullptr), nullptr, here());
          return make(b, line);
        }
      }
    } catch (out_of_memory const& e) {
      t_.fail("there is room, and memory is refused: " + e.report().text());
    } catch (error const& e) {
      t_.fail("there is room, and memory is refused: " + std::string(e.operation()) + ", " + std::string(e.operands()));
    }
  }
  void make(block& b, clock::stream_clock& line) {
    t_.say("makes a block of pool ", b.pool);
    std::uint64_t const in = memory::thread_caches::enter(*pools_[b.pool]->here);
    try {
      b.at = static_cast<unsigned char*>(memory().allocate(line, page * pages_each, 0, here()));
    } catch (...) {
      memory::thread_caches::leave(in);
      throw;
    }
    memory::thread_caches::leave(in);
    streams::awake const held(bench_->core, "use", &line, {b.at}, here());
    give_filled(t_, line, filled::now, b.at, page * pages_each, b.value);
  }
  void use(clock::stream_clock& line, std::vector<block*> const& what) {
    std::vector<void const*> all;
    for (block const* const b : what)
      all.push_back(b->at), t_.say("uses a block of pool ", b->pool);
    streams::awake const held(bench_->core, "use", &line, all, here());
    base::yield_thread();
    for (block* const b : what) {
      memory().record_use(b->at, line, here());
      give_filled(t_, line, filled::still, b->at, page * pages_each, b->value, "a block in a pool was overwritten");
      give_filled(t_, line, filled::now, b->at, page * pages_each, ++b->value);
    }
  }

  trial& t_;
  std::uint32_t const threads_;
  memory_bench* bench_ = nullptr;
  std::vector<clock::stream_clock*> lines_;
  std::vector<std::unique_ptr<streams::pool_state>> pools_;
  std::vector<block> blocks_;
};

}  // namespace weir::tests
