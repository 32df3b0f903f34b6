// Fixture for tests of thread caches and deferred frees: a device of few pages, and a thread that parks with
// all that it keeps.
// Threads: a fixture is its test's thread's; a parked thread lasts as long as its object.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace weir::tests {

struct small_device : ::testing::Test {
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  runtime_guard in{own};

  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  void sound() { EXPECT_EQ(device().validate(), std::vector<std::string>{}); }
  static std::vector<void*> some(stream_ref from, std::size_t bytes, std::size_t n) {
    std::vector<void*> all;
    for (std::size_t i = 0; i < n; ++i)
      all.push_back(allocate(from, bytes));
    return all;
  }
  // A thread runs `first` and parks. Meanwhile `on` allocates a block that needs every page of the device.
  template <class First>
  void a_block_of_all_pages_is_had_while_a_thread_is_parked_after(First first, stream_ref on) {
    base::mutex lock;
    base::condition changed;
    bool done = false, go = false;
    auto const tell = [&](bool& what) {
      base::lock_guard const hold(lock);
      what = true;
      changed.notify_all();
    };
    auto const wait_for = [&](bool const& what) {
      base::unique_lock hold(lock);
      changed.wait(hold, [&] { return what; });
    };
    std::thread parked([&] {
      runtime_guard const here_too(own);
      first();
      tell(done);
      wait_for(go);
    });
    wait_for(done);
    void* whole = nullptr;
    EXPECT_NO_THROW(whole = allocate(on, 16_MiB));
    sound();
    if (whole)
      deallocate(whole);
    tell(go);
    parked.join();
  }
};

}  // namespace weir::tests
