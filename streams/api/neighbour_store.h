// The bytes of a sleeping pool in memory of another device that is free there.
// Threads: as host_store.h.
#pragma once
#include "runtime/memory/device/device_memory.h"
#include "streams/api/host_store.h"

namespace weir::streams {

class neighbour_store final : public copied_store {
 public:
  neighbour_store(runtime::impl& r, int device, int neighbour, source_location at)
      : copied_store(r, device, at),
        memory_(r.part<memory::device_memory>().on(neighbour, at)),
        home_(streams_.lease(neighbour, priority::normal, at)) {}
  ~neighbour_store() override {
    (void)line_.synchronize();
    if (block_) memory_.deallocate(block_, &line_, at_);
    streams_.give_back(home_);
  }
  driver::status save(memory::address from, std::size_t bytes, std::size_t offset) override {
    base::moving_a_pool const own;
    return of_the_pool(try_peer_copy(line_, block_ + offset, memory_.device(), reinterpret_cast<void const*>(from),
                                     line_.device(), bytes, at_));
  }
  driver::status restore(memory::address to, std::size_t bytes, std::size_t offset) override {
    base::moving_a_pool const own;
    return of_the_pool(try_peer_copy(line_, reinterpret_cast<void*>(to), line_.device(), block_ + offset,
                                     memory_.device(), bytes, at_));
  }
  std::size_t pages_a_handle() const noexcept override { return 512; }

 private:
  void take(std::size_t bytes) override {
    if (memory_.free_pages() < bytes) throw std::bad_alloc();
    // Else the driver copies through the host. What is made for an open stream are few handles.
    (void)memory_.open_to(&home_, std::uint64_t{1} << line_.device());
    block_ = static_cast<std::byte*>(memory_.allocate_apart(home_, bytes, at_));
    (void)memory_.grant(block_, line_.device());
    if (!line_.wait(home_.now()).ok() && !clocks_.synchronize(home_.now()).ok()) throw std::bad_alloc();
  }
  memory::allocator& memory_;
  clock::stream_clock& home_;
};

}  // namespace weir::streams
