// Threads that share pools: blocks are freed on other threads, pools end while others have them in force.
// Threads: its own.
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

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
    for (size_t i = 0; i < pools_.size(); ++i)
      put(i, std::make_shared<pool const>("p"));
    for (int i = 0; i < 4; ++i)
      all_.member([this](crowd::random& r) { work(r); }, crowd::whole_life{});
    all_.member([this](crowd::random& r) { change(r); }, crowd::whole_life{});
  }
  std::string run() {
    std::string const wrong = all_.run();
    runtime_guard const in(own_);
    for (auto& b : blocks_)
      deallocate(b.exchange(nullptr));
    for (size_t i = 0; i < pools_.size(); ++i)
      put(i, nullptr);
    synchronize(0);
    return wrong.empty() ? books_after(own_) : wrong;
  }

 private:
  void work(crowd::random& r) {
    runtime_guard const in(own_);
    stream const mine(0);
    while (all_.goes_on()) {
      auto const chosen = get(r() % pools_.size());
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
      size_t const place = r() % pools_.size();
      switch (r() % 8) {
        case 0: put(place, std::make_shared<pool const>("p", pool_options{.limit = (r() % 8) * 4_MiB})); break;
        case 1: (void)memory_by_pool(0); break;
        case 2: (void)get(place)->statistics(); break;
        case 3: (void)empty_cache(0); break;
        default: deallocate(blocks_[r() % blocks_.size()].exchange(nullptr));
      }
    }
  }

  // A lock, since the thread sanitizer does not see the order inside std::atomic<std::shared_ptr>.
  std::shared_ptr<pool const> get(size_t i) {
    std::lock_guard const hold(lock_);
    return pools_[i];
  }
  void put(size_t i, std::shared_ptr<pool const> p) {
    {
      std::lock_guard const hold(lock_);
      pools_[i].swap(p);
    }
    p.reset();  // the pool that was there may end, without the lock
  }

  crowd all_;
  runtime own_;
  std::mutex lock_;
  std::array<std::shared_ptr<pool const>, 4> pools_;
  std::array<std::atomic<void*>, 256> blocks_{};
};

}  // namespace

std::string pools_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return pools_of_threads(seed, time).run();
}

}  // namespace weir::tests
