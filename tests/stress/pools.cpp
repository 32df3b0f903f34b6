// Threads that share pools: blocks are freed on other threads, pools end while others have them in force.
// Threads: its own.
#include <array>
#include <atomic>
#include <memory>

#include "tests/stress/crowd.h"
#include "tests/stress/programs.h"
#include "weir/device.h"
#include "weir/pool.h"

namespace weir::tests {
namespace {

class pools_of_threads {
 public:
  pools_of_threads(std::uint64_t seed, std::chrono::nanoseconds time)
      : all_(seed, time), own_(simulated{.devices = 1, .memory = 64_MiB}) {
    runtime_guard const in(own_);
    for (auto& p : pools_) p.store(std::make_shared<pool const>("p"));
    for (int i = 0; i < 4; ++i) all_.member([this](crowd::random& r) { work(r); }, crowd::whole_life{});
    all_.member([this](crowd::random& r) { change(r); }, crowd::whole_life{});
  }
  std::string run() {
    std::string const wrong = all_.run();
    runtime_guard const in(own_);
    for (auto& b : blocks_) deallocate(b.exchange(nullptr));
    for (auto& p : pools_) p.store(nullptr);
    synchronize(0);
    return wrong.empty() ? books_after(own_) : wrong;
  }

 private:
  void work(crowd::random& r) {
    runtime_guard const in(own_);
    stream const mine(0);
    while (all_.goes_on()) {
      auto const chosen = pools_[r() % pools_.size()].load();
      pool_guard const here(*chosen);
      for (int i = 0; i < 20; ++i) {
        size_t const bytes = r() % 8 ? 16 + r() % 4000 : (1 + r() % 64) * 32_KiB;
        try {
          void* const p = allocate(r() % 4 ? mine.ref() : default_stream(0), bytes);
          deallocate(blocks_[r() % blocks_.size()].exchange(p));
        } catch (out_of_memory const&) {}
      }
    }
  }
  void change(crowd::random& r) {
    runtime_guard const in(own_);
    while (all_.goes_on()) {
      auto& place = pools_[r() % pools_.size()];
      switch (r() % 8) {
        case 0: place.store(std::make_shared<pool const>("p", pool_options{.limit = (r() % 8) * 4_MiB})); break;
        case 1: (void)memory_by_pool(0); break;
        case 2: (void)place.load()->statistics(); break;
        case 3: (void)empty_cache(0); break;
        default: deallocate(blocks_[r() % blocks_.size()].exchange(nullptr));
      }
    }
  }

  crowd all_;
  runtime own_;
  std::array<std::atomic<std::shared_ptr<pool const>>, 4> pools_;
  std::array<std::atomic<void*>, 256> blocks_{};
};

}  // namespace

std::string pools_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return pools_of_threads(seed, time).run();
}

}  // namespace weir::tests
