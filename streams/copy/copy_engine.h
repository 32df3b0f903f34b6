// Copies of one stream by the copy engines of its device. Routing is decided in higher layers.
// Threads: any. No function waits for device work.
#pragma once
#include <string>

#include "runtime/clock/stream_clock.h"

namespace weir::streams {

// A copy of several calls. While one exists, a refusal on this thread says what was enqueued before it.
class copy_in_parts {
 public:
  copy_in_parts() noexcept : outer_(current()) {
    if (!outer_)
      current() = &bytes_;
  }
  ~copy_in_parts() { current() = outer_; }
  copy_in_parts(copy_in_parts const&) = delete;
  static void enqueued(std::size_t bytes) noexcept {
    if (std::size_t* const so_far = current())
      *so_far += bytes;
  }
  static std::size_t so_far() noexcept { return current() ? *current() : 0; }

 private:
  static std::size_t*& current() noexcept;  // of the outermost; null: none
  std::size_t bytes_ = 0;
  std::size_t* outer_;
};

// Between pinned memory and the stream's device, in either direction, or within the device.
void enqueue_copy(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, source_location);
// The same for callers that must clean up after a refusal. Returns: the driver's answer
driver::status try_copy(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, source_location const&);
[[noreturn]] void throw_refused_copy(driver::status, clock::stream_clock const&, void const* dst, void const* src,
                                     std::size_t bytes, source_location);
// From pageable memory, which has been read then. Blocks: as driver::upload
void enqueue_upload(clock::stream_clock&, void* dst, void const* src, std::size_t bytes, source_location);
// Between two devices; the driver chooses the path.
void enqueue_peer_copy(clock::stream_clock&, void* dst, int dst_device, void const* src, int src_device,
                       std::size_t bytes, source_location);
// The same for callers with other work to finish first. Returns: the driver's answer.
driver::status try_peer_copy(clock::stream_clock&, void* dst, int dst_device, void const* src, int src_device,
                             std::size_t bytes, source_location) noexcept;
void enqueue_fill(clock::stream_clock&, void* dst, std::byte value, std::size_t bytes, source_location);
// void functions throw device_lost or driver_error, and then enqueue nothing.

// Links that the calling thread has lent, for a pool that sleeps or wakes. peer/copy sets it with the first
// link_sharing_guard.
struct lent_links {
  // Allocates what copies of that device need. Requires: no lock.
  // Throws: out_of_memory, driver_error, bad_alloc
  void (*prepare)(runtime::impl&, int device, source_location const&);
  // With what is allocated. Returns: false: nothing was enqueued. Throws: as enqueue_copy, bad_alloc
  bool (*carry)(runtime::impl&, clock::stream_clock&, void* dst, void const* src, std::size_t bytes, bool to_device,
                source_location const&);
};
inline constinit base::atomic<lent_links const*> over_lent_links{nullptr};

// For messages: "0x7f1000 (4096 B)".
std::string range_text(void const*, std::size_t bytes);
// For messages about two devices: ": gpu:1", the lost one, from a driver query. Empty: unknown.
std::string which_is_lost(runtime::impl&, driver::status why, int one, int other);

}  // namespace weir::streams
