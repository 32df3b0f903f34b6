// A driver in front of any other. It observes weir's decisions about memory, and lies to weir on request.
// Threads: as the seam. What it notes belongs to the thread that asks.
#pragma once
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "simulator/faults/fault_injector.h"

namespace weir::soak {

// A call that claims success without its effect. Except for the last, lies happen only while weir decides
// about memory. The program's own calls are honest, so a failure shows that weir trusted a lie.
enum class lie : std::uint8_t {
  none,
  drops_waits,      // a stream that weir makes wait does not wait
  answers_early,    // every event counts as complete
  records_nothing,  // an event is not recorded
  returns_early,    // a host wait returns at once
  skips_grants,     // memory just mapped is sometimes inaccessible
};
inline constexpr std::array all_lies{lie::drops_waits, lie::answers_early, lie::records_nothing, lie::returns_early,
                                     lie::skips_grants};
std::string_view name_of(lie) noexcept;

struct opened {
  std::unique_ptr<driver::driver> machine;
  std::string why;
};
opened open_machine();  // the machine of WEIR_DEVICES. Throws: not_supported

using stream_key = std::pair<int, driver::stream_handle>;  // device, stream

// weir's queries during a decision about one block.
struct noted {
  // covered: operations of that stream before its event
  struct wait {
    stream_key on;
    std::uint64_t covered;
  };
  std::vector<wait> waits;
  int yes = 0;      // complete events
  int created = 0;  // handles
};

class crooked : public weir::driver::fault_injector {
 public:
  explicit crooked(std::unique_ptr<weir::driver::driver> inner, lie l) : fault_injector(std::move(inner)), lie_(l) {}

  void arm() noexcept { armed_.store(true); }  // honest until then

  class asking {  // marks this thread as inside a call in which weir decides about memory
   public:
    explicit asking(noted&) noexcept;
    ~asking();
    asking(asking const&) = delete;

   private:
    noted* before_;
  };

  std::uint64_t given(stream_key) const;  // operations enqueued on that stream so far
  std::uint64_t unmapped() const noexcept { return unmapped_.load(); }
  std::uint64_t mapped() const noexcept { return mapped_.load(); }

  weir::driver::status record(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status wait(int device, weir::driver::stream_handle, weir::driver::event_handle) override;
  weir::driver::status query_event(weir::driver::event_handle) override;
  weir::driver::status synchronize_event(weir::driver::event_handle) override;
  weir::driver::result<weir::driver::memory_handle> create(int device, std::size_t bytes) override;
  weir::driver::status map(weir::driver::address, std::size_t bytes, weir::driver::memory_handle) override;
  weir::driver::status unmap(weir::driver::address, std::size_t bytes) override;
  weir::driver::status grant(weir::driver::address, std::size_t bytes, int device) override;
  weir::driver::status copy(int device, weir::driver::stream_handle, void* dst, void const* src,
                            std::size_t bytes) override;
  weir::driver::status copy_peer(int device, weir::driver::stream_handle, void* dst, int dst_device, void const* src,
                                 int src_device, std::size_t bytes) override;
  weir::driver::status upload(int device, weir::driver::stream_handle, void* dst, void const* src,
                              std::size_t bytes) override;
  weir::driver::status fill(int device, weir::driver::stream_handle, void* dst, std::uint32_t pattern,
                            int pattern_bytes, std::size_t count) override;
  weir::driver::status enqueue(int device, weir::driver::stream_handle, std::span<weir::driver::touch const>,
                               weir::driver::work) override;
  void touched(int device, weir::driver::stream_handle, std::span<weir::driver::touch const>) override;

 private:
  struct recorded {
    stream_key on{-1, weir::driver::stream_handle::none};
    std::uint64_t position = 0;
  };
  void count(int device, weir::driver::stream_handle s);
  static bool deciding() noexcept;
  bool lies(lie l) const noexcept {
    return lie_ == l && armed_.load(base::memory_order_relaxed) && (deciding() || l == lie::skips_grants);
  }

  lie const lie_;
  base::atomic<bool> armed_{false};
  base::atomic<std::uint64_t> unmapped_{0}, mapped_{0}, grants_{0};
  mutable std::mutex lock_;
  std::map<stream_key, std::uint64_t> given_;                             // under lock_
  std::unordered_map<weir::driver::event_handle, recorded> last_record_;  // under lock_
};

}  // namespace weir::soak
