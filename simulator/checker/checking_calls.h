// What a watcher of CUDA tells, in front of the judge.
// Threads and errors: as seen_calls.h says.
#pragma once
#include "runtime/base/sync.h"
#include "runtime/driver/seen_calls.h"
#include "simulator/checker/vector_clock.h"

namespace weir::driver::check {

struct knowledge;
struct range;
class checking_driver;

class checking_calls final : public seen_calls {
 public:
  explicit checking_calls(checking_driver& of) noexcept : of_(of) {}
  std::uint64_t missed_calls() const noexcept { return missed_.load(); }
  void forget_missed() noexcept { missed_.store(0); }

  void stream_made(int device, stream, bool blocking) noexcept override;
  void stream_gone(int device, stream) noexcept override;
  void launched(int device, stream, char const* kernel, std::span<seen_pointer const>, base::site) noexcept override;
  void copied(int device, stream, address to, address from, std::size_t bytes, bool waits,
              base::site) noexcept override;
  void filled(int device, stream, address to, std::size_t bytes, bool waits, base::site) noexcept override;
  void host_function(int device, stream, base::site) noexcept override;
  void recorded(int device, stream, event) noexcept override;
  void waited(int device, stream, event) noexcept override;
  void event_gone(event) noexcept override;
  void stream_done(int device, stream) noexcept override;
  void event_done(event) noexcept override;
  void device_done(int device) noexcept override;
  void allocated(int device, stream, address at, std::size_t bytes, base::site) noexcept override;
  void freed(int device, stream, address at, base::site) noexcept override;
  void unmapped(address at, std::size_t bytes, base::site) noexcept override;
  void found(int device, address at, std::size_t bytes, base::site) noexcept override;
  void closed(address at, base::site) noexcept override;
  void hidden(address at, std::size_t bytes) noexcept override;
  void graph_made(executable, std::vector<node>, base::site) noexcept override;
  void graph_launched(int device, stream, executable, base::site) noexcept override;
  void graph_gone(executable) noexcept override;
  void not_understood(char const* what) noexcept override;

 private:
  template <class Then>
  void told(Then then) noexcept;  // then(knowledge&), under the lock
  template <class Then>
  void on(int device, stream, Then then) noexcept;  // then(knowledge&, stream_id), likewise
  // Exact uses by one call.
  void used(knowledge&, stream_id, std::span<range const>, bool waits, base::site);
  void after_completion(knowledge&);
  void catch_up(knowledge&);
  void missed() noexcept;

  checking_driver& of_;
  base::atomic<std::uint64_t> missed_{0};
  base::atomic<bool> is_behind_{false};
};

}  // namespace weir::driver::check
