// A driver in front of any other that counts what its callers hold.
// Threads: as the seam. The books outlive the driver.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "simulator/faults/fault_injector.h"

namespace weir::soak {

// What was made and has not ended, through all drivers that share the books.
class books {
 public:
  std::atomic<std::int64_t> reserved{0};                                // bytes of addresses
  std::atomic<std::int64_t> device{0};                                  // bytes of memory handles and segments
  std::atomic<std::int64_t> pins{0}, streams{0}, events{0}, graphs{0};  // graphs: with executable ones
  std::int64_t used() const;  // bytes of addresses, in whole pages, that were mapped once or more

 private:
  friend class bookkeeper;
  static constexpr std::size_t page = 2 << 20;
  struct reservation {
    std::vector<bool> used;
  };  // by page
  mutable std::mutex lock_;
  std::map<driver::address, reservation> reservations_;   // under lock_
  std::map<driver::address, std::size_t> segments_;       // under lock_
  std::map<driver::memory_handle, std::size_t> handles_;  // under lock_
  std::int64_t used_pages_ = 0;                           // under lock_
};

class bookkeeper final : public driver::fault_injector {
 public:
  using status = weir::driver::status;
  using address = weir::driver::address;
  using memory = weir::driver::result<weir::driver::memory_handle>;
  bookkeeper(std::unique_ptr<weir::driver::driver> inner, std::shared_ptr<books> in)
      : fault_injector(std::move(inner)), books_(std::move(in)) {}

  // Every record of an event takes 200 ns more from now on, as if it walked a list.
  void grow_slower() noexcept { walked_.fetch_add(1, std::memory_order_relaxed); }

  weir::driver::result<address> reserve(std::size_t bytes, std::size_t alignment) override;
  status unreserve(address, std::size_t bytes) override;
  memory create(int device, std::size_t bytes) override;
  memory create_shared(int device, std::size_t bytes) override;
  memory import_handle(int device, std::size_t bytes, int file) override;
  status release(weir::driver::memory_handle) override;
  status map(address, std::size_t bytes, weir::driver::memory_handle) override;
  weir::driver::result<address> create_segment(int device, std::size_t bytes) override;
  status release_segment(int device, address) override;
  status pin(void*, std::size_t bytes) override;
  status unpin(void*) override;
  weir::driver::result<weir::driver::stream_handle> create_stream(int device, weir::driver::stream_kind,
                                                                  int priority) override;
  status destroy_stream(int device, weir::driver::stream_handle) override;
  weir::driver::result<weir::driver::event_handle> create_event(int device, weir::driver::event_kind) override;
  status destroy_event(int device, weir::driver::event_handle) override;
  status record(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::result<weir::driver::graph_handle> end_capture(int device, weir::driver::stream_handle) override;
  status destroy_graph(weir::driver::graph_handle) override;
  weir::driver::result<weir::driver::executable_handle> instantiate(int device, weir::driver::graph_handle) override;
  status destroy_executable(weir::driver::executable_handle) override;

 private:
  memory made(memory, std::size_t bytes);

  std::shared_ptr<books> const books_;
  std::atomic<std::uint64_t> walked_{0};
};

}  // namespace weir::soak
