// The objects of one device's memory on a stepped simulated machine, to test each without the higher ones.
// Threads: its test's thread.
#pragma once
#include "runtime/memory/device/completion_poller.h"
#include "runtime/memory/device/graph_pools.h"
#include "runtime/memory/device/reuse.h"
#include "runtime/memory/supply/growth.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

struct one_device {
  explicit one_device(std::size_t bytes = 64 << 20, options o = {})
      : bench({.devices = 2, .memory = bytes, .schedule = simulated::scheduling::stepped, .seed = 1}, o) {
    bench.core.open(0, "test", at);
    bench.core.open(1, "test", at);
  }
  one_device(one_device const&) = delete;
  ~one_device() {
    for (auto const& m : heaps.at_the_end())
      memory::thread_caches::close(*m);
    (void)bench.control->run();
  }

  memory::alloc_request request(clock::stream_clock& home, std::size_t bytes, std::size_t alignment = 0) {
    return memory::alloc_request::make(of, home, bytes, alignment, at);
  }
  // A block of new pages. Null: refused.
  void* grown(clock::stream_clock& home, std::size_t bytes) {
    void* out = nullptr;
    is = more.grow(heaps.of(home), request(home, bytes), out);
    return out;
  }
  memory::block_ref block_at(void* p) {
    return memory::block_ref::find(*of.space.find(p), reinterpret_cast<memory::address>(p));
  }
  void free_at_home(void* p) {  // a block of the arena
    memory::stream_heap& m = *of.space.find(p)->owner.load();
    memory::session(m).put_free(block_at(p), nullptr);
  }
  // Work on that stream, complete after `step_all`.
  void work(clock::stream_clock& on) {
    ASSERT_TRUE(bench.machine().enqueue(on.device(), on.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }

  static constexpr source_location at{"one_device", "test", 1};
  memory_bench bench;
  driver::status is;
  memory::device_context of{bench.core, 0, nullptr, at};
  memory::heap_table heaps{of};
  memory::physical_memory memory{of};
  memory::reserve_bound bound{of, heaps};
  memory::handle_mover mover{of};
  memory::handle_return back{of, heaps, memory, mover};
  memory::peer_access peers{of, heaps, memory};
  memory::growth more{of, heaps, memory, bound, mover, back, peers};
  memory::graph_pools graphs{of, heaps, memory};
  memory::completion_poller completion{of, heaps};
  memory::block_reuse reuse{of, heaps, completion, bound};
};

}  // namespace weir::tests
