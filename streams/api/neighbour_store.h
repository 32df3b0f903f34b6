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
        home_(streams_.lease(neighbour, driver::stream_kind::independent, priority::normal, at)) {}
  ~neighbour_store() override {
    neighbour_store::drop();
    streams_.give_back(home_);
  }
  void drop() noexcept override try {
    (void)line_.synchronize();
    if (block_)
      memory_.deallocate(block_, clocks_.complete(last_) ? nullptr : &line_, at_);
    block_ = nullptr;
  } catch (...) {}  // it is freed with the store
  driver::status save(memory::address from, std::size_t bytes, std::size_t offset) override {
    return copied(block_ + offset, memory_.device(), reinterpret_cast<void const*>(from), line_.device(), bytes);
  }
  driver::status restore(memory::address to, std::size_t bytes, std::size_t offset) override {
    return copied(reinterpret_cast<void*>(to), line_.device(), block_ + offset, memory_.device(), bytes);
  }
  std::size_t pages_a_handle() const noexcept override { return 512; }

 private:
  bool take(std::size_t bytes) override {
    if (memory_.free_pages() < bytes)
      return false;
    // The pool's device gets access. Without it, which is no error, the driver copies through the host.
    // What home_ maps from now on is open to that device at once, and in large handles.
    (void)memory_.open_to(&home_, std::uint64_t{1} << line_.device());
    block_ = static_cast<std::byte*>(memory_.allocate_apart(home_, bytes, at_));
    // Pages that were mapped before are opened here.
    (void)memory_.grant(block_, line_.device());
    // The copies run behind earlier uses of the block's memory. If the device cannot wait, the host does.
    if (line_.wait(home_.now()).ok())
      return true;
    return clocks_.synchronize(home_.now()).ok();
  }
  driver::status copied(void* dst, int dst_device, void const* src, int src_device, std::size_t bytes) {
    base::moving_a_pool const own;
    auto const s = try_peer_copy(line_, dst, dst_device, src, src_device, bytes, at_);
    last_ = line_.now();
    return of_the_pool(s);
  }
  memory::allocator& memory_;
  clock::stream_clock& home_;
  clock::stamp last_;  // after the last copy
};

}  // namespace weir::streams
