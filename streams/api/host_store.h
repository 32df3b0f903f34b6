// The bytes of a sleeping pool in one block, copied on a stream of its own. Here the block is pinned, and copies
// also use the links that the calling thread has lent.
// Threads: one at a time. The destructors block until the copies are done.
#pragma once
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/memory/supply/pool_sleep.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/stream_pool.h"

namespace weir::streams {

class copied_store : public memory::page_store {
 public:
  copied_store(runtime::impl& r, int device, source_location at)
      : at_(at),
        runtime_(r),
        streams_(r.part<stream_pool>()),
        clocks_(r.part<clock::clocks>()),
        line_(streams_.lease(device, driver::stream_kind::independent, priority::normal, at)) {}
  ~copied_store() override { streams_.give_back(line_); }
  driver::status reserve(std::size_t bytes) override try {
    if (take(bytes))
      return {};
    return {driver::code::out_of_memory};
  } catch (...) {
    refusal = std::current_exception();
    return {driver::code::out_of_memory};
  }
  driver::status mark(std::size_t number) override {
    marks_.resize(number + 1);
    marks_[number] = line_.now();
    return line_.fence().is;
  }
  driver::status wait(std::size_t number) override {
    if (clocks_.complete(marks_[number]))
      return {};
    return clocks_.synchronize(marks_[number]);
  }
  driver::status wait_all() override { return line_.synchronize(); }

  std::exception_ptr refusal;             // why reserve() refused
  std::optional<memory_report> short_of;  // or what had no room

 protected:
  virtual bool take(std::size_t bytes) = 0;  // false: there is no room
  // Another device of the copy may be lost: to the pool, whose own is not, the copy has just failed.
  driver::status of_the_pool(driver::status s) const noexcept {
    return s.what == driver::code::lost && !clocks_.lost(line_.device()) ? driver::status{driver::code::failed} : s;
  }
  source_location const at_;
  runtime::impl& runtime_;
  stream_pool& streams_;
  clock::clocks& clocks_;
  clock::stream_clock& line_;
  std::byte* block_ = nullptr;

 private:
  std::vector<clock::stamp> marks_;
};

class host_store final : public copied_store {
 public:
  host_store(runtime::impl& r, int device, source_location at)
      : copied_store(r, device, at), pinned_(r.part<pinned_memory>()) {}
  // Before a sleep or a wake, which hold locks. Without it copies take one link.
  static void prepare(runtime::impl& r, int device, source_location at) noexcept {
    auto const* const lent = over_lent_links.load(base::memory_order_acquire);
    try {
      if (lent)
        lent->prepare(r, device, at);
    } catch (...) {}
  }
  ~host_store() override { host_store::drop(); }
  void drop() noexcept override try {
    (void)line_.synchronize();
    if (!block_)
      return;
    pinned_.record_use(block_, line_);
    pinned_.deallocate(std::exchange(block_, nullptr), at_);
  } catch (...) {}  // it is freed with the store
  driver::status save(memory::address from, std::size_t bytes, std::size_t offset) override {
    return move(block_ + offset, reinterpret_cast<void const*>(from), bytes, false);
  }
  driver::status restore(memory::address to, std::size_t bytes, std::size_t offset) override {
    return move(reinterpret_cast<void*>(to), block_ + offset, bytes, true);
  }

 private:
  driver::status move(void* dst, void const* src, std::size_t bytes, bool to_device) {
    base::moving_a_pool const own;
    auto const* const lent = over_lent_links.load(base::memory_order_acquire);
    try {
      if (lent && lent->carry(runtime_, line_, dst, src, bytes, to_device, at_))
        return {};
    } catch (device_lost const&) {
      return of_the_pool({driver::code::lost});
    } catch (error const&) {
      return {driver::code::failed};
    } catch (std::bad_alloc const&) {}
    // Nothing was enqueued on lent links: the copy takes the device's own.
    return try_copy(line_, dst, src, bytes, at_);
  }
  bool take(std::size_t bytes) override {
    memory_report why{};
    block_ = static_cast<std::byte*>(pinned_.try_near(line_.device(), bytes, &why, at_));
    if (!block_)
      short_of = std::move(why);
    return block_;
  }
  pinned_memory& pinned_;
};

}  // namespace weir::streams
