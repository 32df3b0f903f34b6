// CUDA behind the driver interface: primary contexts, records that refuse misuse, and loss per device.
// Threads: any. No lock is held during a CUDA call, so that one that blocks delays no other thread.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/driver/cuda/announcer.h"
#include "runtime/driver/cuda/symbols.h"

namespace weir::driver::cuda {

inline constexpr status invalid{code::invalid};

// An event's handle carries its device, so that a call needs nothing else to find the context and the loss.
// CUDA's event is a pointer of at most 48 bits; the device takes the 16 bits above.
static_assert(sizeof(CUevent) == 8);
constexpr int event_device_shift = 48;
inline event_handle pack(CUevent event, int device) noexcept {
  return static_cast<event_handle>(reinterpret_cast<std::uintptr_t>(event) | static_cast<std::uintptr_t>(device)
                                                                                 << event_device_shift);
}
inline CUevent event_of(event_handle e) noexcept {
  return reinterpret_cast<CUevent>(static_cast<std::uintptr_t>(e) & ((std::uintptr_t{1} << event_device_shift) - 1));
}
inline int device_of(event_handle e) noexcept {
  return static_cast<int>(static_cast<std::uintptr_t>(e) >> event_device_shift);
}
inline CUstream stream_of(stream_handle s) noexcept {
  return reinterpret_cast<CUstream>(static_cast<std::uintptr_t>(s));
}

class call;

class cuda_driver final : public driver {
 public:
  static constexpr int most_devices = 64;
  static constexpr int gates_a_device = 4;

  // Requires: cuInit succeeded, 0 < count <= most_devices.
  cuda_driver(entries const& api, int count);
  ~cuda_driver() override;

  bool simulated() const noexcept override { return false; }
  int device_count() const noexcept override { return count_; }
#include "runtime/driver/overrides.h"
  bool nvtx_memory() override;
  void block_taken(address at, std::size_t bytes) override;
  void block_given_back(address at) override;

 private:
  friend class call;
  friend struct host_call;

  struct device_state {
    CUdevice id = 0;
    base::atomic<CUcontext> context{nullptr};  // null: not opened
    base::atomic<int> lost{0};                 // the sticky CUresult; 0: usable
    CUstream probe = nullptr;  // has no work: its query shows whether the device is usable. Set before context
    int least_priority = 0, greatest_priority = 0;
  };

  // Every object that weir made, so that misuse is refused here; CUDA answers some of it with a crash.
  // `busy`: some thread is inside a call about this entry; no other call on it may begin.
  base::mutex granting_;
  struct range {
    std::size_t bytes = 0;
    int device = -1;
    bool busy = false;
  };
  struct physical {
    CUmemGenericAllocationHandle handle = 0;
    int device = -1;
    std::size_t bytes = 0;
    bool exportable = false;
  };
  using ranges = std::map<address, range>;
  struct books {
    ranges reservations, mappings, segments, pins;  // each: disjoint ranges. Every mapping lies in one reservation
    std::unordered_map<std::uint64_t, physical> handles;
    std::uint64_t next_handle = 1;
  };
  struct gate {
    int device = -1;
    int slot = 0;
    std::uint32_t sequence = 0;
  };
  struct gates {
    // pinned, gates_a_device words per device: a gate is open when its word has reached its sequence
    std::uint32_t* words = nullptr;
    std::array<std::uint32_t, most_devices * gates_a_device> sequences{};
    std::map<std::uint64_t, gate> closed;
    std::uint64_t next = 1;
  };

  struct graphs {  // null: in creation
    struct executable {
      CUgraphExec made = nullptr;
      int device = -1;
    };
    std::unordered_map<std::uint64_t, CUgraph> kept;
    std::unordered_map<std::uint64_t, executable> executables;
    std::uint64_t next = 1;
    std::uint64_t add_graph() { return kept.emplace(next, nullptr), next++; }
    std::uint64_t add_executable(int device) { return executables.emplace(next, executable{.device = device}), next++; }
  };

  result<memory_handle> create(int device, std::size_t bytes, CUmemAllocationHandleType exportable_as);
  bool serves_network_cards(CUdevice) noexcept;  // memory that is mapped
  bool exists(int device) const noexcept {
    return device >= 0 && device < count_;
  }
  device_state& at(int device) noexcept {
    return devices_[static_cast<std::size_t>(device)];
  }
  int ordinal_of(CUdevice) noexcept;                  // no_device: not among those that this driver has
  result<int> owner_of(call&, int device, CUstream);  // the device of a stream that is not captured
  status may_call() const noexcept;                   // checks process and thread, not the device
  int any_device() noexcept;                          // an opened device, usable if there is one; -1: none opened
  int pinning_device();                               // as any_device, but opens a device if no usable one is open
  // Returns: the objects not destroyed, in words. Empty: none, or only memory, which the runtime reports.
  std::string left_behind();
  // The parts of the destructor, in this order. any_lost: as has_lost_any()
  void open_closed_gates();
  void end_host_functions();
  void free_gate_words();
  void release_contexts(bool any_lost);
  bool has_lost_any() noexcept;
  void found_lost(int device, CUresult) noexcept;  // a call that named this device got a sticky result
  void lose(int device, CUresult) noexcept;
  void drop_pending(int device) noexcept;
  CUresult ask_probe(int device) noexcept;
  // none: not weir's; else whether a copy may touch every byte
  struct seen {
    std::optional<bool> dst, src;
    bool both_pinned = false;
  };
  seen look_at(void const* dst, void const* src, std::size_t bytes) noexcept;  // looks up both ends under one lock
  int device_of_segment(address) noexcept;
  status copy_on_host(int device, stream_handle, void* dst, void const* src, std::size_t bytes);
  bool copyable(void const*, std::size_t bytes) noexcept;  // every byte is pinned or device memory, as far as is known
  bool copyable(void const*, std::size_t bytes, std::optional<bool> const& ours) noexcept;  // ours: by look_at()
  struct extent {
    address begin = 0, end = 0;
    bool pinned = false;
  };
  std::optional<place> place_in_books(address);  // none: in no range of weir
  result<place> place_by_cuda(address);          // of memory that weir did not make
  // Sets `where` if it is found.
  static std::optional<bool> in_books(books const&, address, std::size_t bytes, extent& where) noexcept;
  seen look_in_books(address dst, address src, std::size_t bytes) noexcept;
  struct remembered;
  void outdate() noexcept;
  void end_busy(ranges books::*, address, bool stays);
  status make_gate_words(gates&, call&);                         // if there are none
  static int free_gate_slot(gates const&, int device) noexcept;  // -1: all of the device's are closed
  template <class Asks>
  CUresult in_relaxed(Asks asks);  // CUDA's answer, without disturbing a capture
  // One call of CUDA's that needs a context, and what its answer means.
  template <class Asks>
  status asked(int device, Asks asks);
  status refuse_captured(int device, stream_handle);  // not_permitted: captured. Spoils nothing
  status enqueue_host_call(int device, stream_handle, work);

  entries const& api_;
  std::unique_ptr<announcer> announcer_;  // null: blocks are not reported
  int const count_;
  std::size_t granularity_ = 0;  // the largest of all devices
  std::array<device_state, most_devices> devices_;
  base::mutex opening_;
  base::guarded<books> books_;
  base::atomic<std::uint64_t> edition_{0};  // version of the books; changes before ranges are removed
  base::guarded<gates> gates_;
  base::guarded<graphs> graphs_;
  struct pending {
    std::map<std::uint64_t, struct host_call*> calls;  // enqueued and not finished
    std::vector<base::thread> droppers;
    std::uint64_t next = 1;
  };
  base::guarded<pending> pending_;
  base::condition call_over_;
};

// One call that needs a context. Refuses if the process, thread or device does not permit it. Otherwise the
// device's context is current until the end, when the caller's is restored.
class call {
 public:
  enum class mode {
    enqueues,  // takes part in a capture of the stream
    asks,      // must not disturb any capture: relaxed meanwhile
    survives,  // as asks, and works on a lost device
  };
  call(cuda_driver&, int device, mode) noexcept;
  ~call();
  call(call const&) = delete;
  call& operator=(call const&) = delete;

  bool refused() const noexcept { return refusal_.what != code::ok; }
  status refusal() const noexcept { return refusal_; }
  CUcontext context() const noexcept { return context_; }
  status answer(CUresult) noexcept;  // the status; also finds lost devices

 private:
  cuda_driver& driver_;
  int const device_;
  mode const mode_;
  status refusal_;
  CUcontext context_ = nullptr;
  bool pushed_ = false;
  CUstreamCaptureMode before_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// A call without a device that must not disturb a capture.
class relaxed {
 public:
  explicit relaxed(entries const& api) noexcept : api_(api) { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
  ~relaxed() { api_.cuThreadExchangeStreamCaptureMode(&mode_); }
  relaxed(relaxed const&) = delete;
  relaxed& operator=(relaxed const&) = delete;

 private:
  entries const& api_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

template <class Asks>
CUresult cuda_driver::in_relaxed(Asks asks) {
  relaxed const mode(api_);
  return asks();
}

template <class Asks>
status cuda_driver::asked(int device, Asks asks) {
  call in(*this, device, call::mode::asks);
  return in.refused() ? in.refusal() : in.answer(asks());
}

// An enqueued host function. It runs in stream order, or is dropped if its device is lost, never both.
struct host_call {
  enum state : int { waiting, taken };
  cuda_driver* owner = nullptr;
  std::uint64_t id = 0;
  int device = -1;
  work what;
  base::atomic<int> is{waiting};

  bool take() noexcept { return is.exchange(taken) == waiting; }
  static void CUDA_CB arrive(void* self) noexcept;
};
bool inside_host_function() noexcept;

}  // namespace weir::driver::cuda
