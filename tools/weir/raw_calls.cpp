// The driver's own calls, looked up by name, and the same on the simulated machine.
// Threads: one.
#include "raw_calls.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"

namespace weir::tool {
namespace {

using address = unsigned long long;  // CUdeviceptr

void require_done(int code, char const* call) {
  if (code != 0)
    throw driver_error(code, "bench", std::string(call) + " answers " + std::to_string(code),
                       "Figures beside weir's need the driver's own calls", source_location::current());
}
address number(void const* p) {
  return reinterpret_cast<address>(p);
}

struct driver_calls {  // CUDA's calls, declared after the driver's ABI
  int (*cuMemAlloc_v2)(address*, size_t) = nullptr;
  int (*cuMemFree_v2)(address) = nullptr;
  int (*cuMemHostAlloc)(void**, size_t, unsigned) = nullptr;
  int (*cuMemFreeHost)(void*) = nullptr;
  int (*cuMemcpyAsync)(address, address, size_t, CUstream_st*) = nullptr;
  int (*cuMemcpyHtoDAsync_v2)(address, void const*, size_t, CUstream_st*) = nullptr;
  int (*cuMemcpyDtoHAsync_v2)(void*, address, size_t, CUstream_st*) = nullptr;
  int (*cuMemcpyPeerAsync)(address, void*, address, void*, size_t, CUstream_st*) = nullptr;
  int (*cuStreamSynchronize)(CUstream_st*) = nullptr;
  int (*cuEventCreate)(void**, unsigned) = nullptr;
  int (*cuEventRecord)(void*, CUstream_st*) = nullptr;
  int (*cuStreamWaitEvent)(CUstream_st*, void*, unsigned) = nullptr;
  int (*cuEventDestroy_v2)(void*) = nullptr;
  int (*cuCtxGetCurrent)(void**) = nullptr;
  int (*cuCtxEnablePeerAccess)(void*, unsigned) = nullptr;
};

driver_calls find_calls() {
  driver_calls all;
  void* const library = os::load_library("libcuda.so.1");
  auto const find = [&](auto& function, char const* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(library ? os::find_symbol(library, name) : nullptr);
    if (!function)
      throw not_supported("bench", std::string(name) + " is not in libcuda.so.1", "Figures beside weir's need it",
                          source_location::current());
  };
#define WEIR_FIND(name) find(all.name, #name)
  WEIR_FIND(cuMemAlloc_v2), WEIR_FIND(cuMemFree_v2), WEIR_FIND(cuMemHostAlloc), WEIR_FIND(cuMemFreeHost),
      WEIR_FIND(cuMemcpyAsync), WEIR_FIND(cuMemcpyHtoDAsync_v2), WEIR_FIND(cuMemcpyDtoHAsync_v2),
      WEIR_FIND(cuMemcpyPeerAsync), WEIR_FIND(cuStreamSynchronize), WEIR_FIND(cuEventCreate), WEIR_FIND(cuEventRecord),
      WEIR_FIND(cuStreamWaitEvent), WEIR_FIND(cuEventDestroy_v2), WEIR_FIND(cuCtxGetCurrent),
      WEIR_FIND(cuCtxEnablePeerAccess);
#undef WEIR_FIND
  return all;
}

struct held final : raw_calls::memory {
  template <class Give>
  held(void* p, Give give) : give_(std::move(give)) {
    data_ = p;
  }
  ~held() override { give_(data_); }
  std::function<void(void*)> give_;
};

}  // namespace

struct raw_calls::state {
  runtime::impl& owner = runtime::current().get();
  bool const simulated = owner.machine().simulated();
  driver_calls cuda = simulated ? driver_calls{} : find_calls();
  clock::stream_clock* line = nullptr;
  CUstream_st* native = nullptr;
  std::map<int, void*> contexts;  // of devices with enabled peer access
  std::map<int, std::vector<void*>> events;

  ~state() {
    for (auto const& [device, all] : events) {
      for (void* const one : all)
        cuda.cuEventDestroy_v2(one);
    }
  }

  void on(int device) { require_done(owner.machine().make_current(device).native, "cuCtxSetCurrent"); }
  void* context(int device) {
    owner.open(device, "bench", source_location::current());  // a device has no context before its first use
    on(device);
    void* current = nullptr;
    require_done(cuda.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
    return current;
  }
};

raw_calls::raw_calls() : state_(std::make_unique<state>()) {}
raw_calls::~raw_calls() = default;

std::unique_ptr<raw_calls::memory> raw_calls::on_device(int device, size_t bytes) {
  auto& my = *state_;
  my.owner.open(device, "bench", source_location::current());
  if (my.simulated) {
    auto const made = my.owner.machine().create_segment(device, bytes);
    require(made.is, "bench", std::to_string(bytes) + " B of gpu:" + std::to_string(device), "Ask for less",
            source_location::current());
    // NOLINT(performance-no-int-to-ptr): it is an address
    return std::make_unique<held>(reinterpret_cast<void*>(made.value), [&my, device](void* p) {
      static_cast<void>(my.owner.machine().release_segment(device, reinterpret_cast<driver::address>(p)));
    });
  }
  my.on(device);
  address p = 0;
  require_done(my.cuda.cuMemAlloc_v2(&p, bytes), "cuMemAlloc");
  // NOLINT(performance-no-int-to-ptr)
  return std::make_unique<held>(reinterpret_cast<void*>(p), [&my, device](void* at) {
    static_cast<void>(my.owner.machine().make_current(device));
    my.cuda.cuMemFree_v2(number(at));
  });
}

std::unique_ptr<raw_calls::memory> raw_calls::pinned(size_t bytes) {
  auto& my = *state_;
  my.owner.open(0, "bench", source_location::current());
  if (my.simulated) {
    void* const p = os::map_memory(bytes);
    if (!p)
      throw driver_error(0, "bench", std::to_string(bytes) + " B of host memory", "Ask for less",
                         source_location::current());
    require(my.owner.machine().pin(p, bytes), "bench", std::to_string(bytes) + " B of host memory", "Ask for less",
            source_location::current());
    return std::make_unique<held>(p, [&my, bytes](void* at) {
      if (my.owner.machine().unpin(at).ok())
        os::return_addresses(at, bytes);
    });
  }
  my.on(0);
  void* p = nullptr;
  constexpr unsigned portable = 1;
  require_done(my.cuda.cuMemHostAlloc(&p, bytes, portable), "cuMemHostAlloc");
  return std::make_unique<held>(p, [&my](void* at) { my.cuda.cuMemFreeHost(at); });
}

void raw_calls::prepare(stream_ref s) {
  auto& my = *state_;
  my.line = &streams::clock_of(s);
  if (!my.simulated)
    my.native = s.native();  // the device of s is current
}

void raw_calls::copy(void* dst, void const* src, size_t bytes) {
  auto& my = *state_;
  if (my.simulated) {
    require(my.owner.machine().copy(my.line->device(), my.line->handle(), dst, src, bytes), "bench", "a copy", "",
            source_location::current());
  } else {
    require_done(my.cuda.cuMemcpyAsync(number(dst), number(src), bytes, my.native), "cuMemcpyAsync");
  }
}

void raw_calls::copy_peer(void* dst, int to, void const* src, int from, size_t bytes) {
  auto& my = *state_;
  if (my.simulated) {
    require(my.owner.machine().copy_peer(my.line->device(), my.line->handle(), dst, to, src, from, bytes), "bench",
            "a copy between devices", "", source_location::current());
  } else {
    require_done(
        my.cuda.cuMemcpyPeerAsync(number(dst), my.contexts.at(to), number(src), my.contexts.at(from), bytes, my.native),
        "cuMemcpyPeerAsync");
  }
}

bool raw_calls::takes_pageable() const noexcept {
  return !state_->simulated;
}

void raw_calls::copy_pageable(void* dst, void const* src, size_t bytes, bool to_device) {
  auto& my = *state_;
  require_done(to_device ? my.cuda.cuMemcpyHtoDAsync_v2(number(dst), src, bytes, my.native)
                         : my.cuda.cuMemcpyDtoHAsync_v2(dst, number(src), bytes, my.native),
               "cuMemcpyHtoDAsync");
}

void raw_calls::synchronize() {
  auto& my = *state_;
  if (my.simulated) {
    require(my.owner.machine().synchronize_stream(my.line->device(), my.line->handle()), "bench", "a stream", "",
            source_location::current());
  } else {
    require_done(my.cuda.cuStreamSynchronize(my.native), "cuStreamSynchronize");
  }
}

void raw_calls::wait(stream_ref later, stream_ref earlier) {
  auto& my = *state_;
  auto const &to = streams::clock_of(later), &from = streams::clock_of(earlier);
  auto& machine = my.owner.machine();
  if (my.simulated) {
    auto const made = machine.create_event(from.device(), driver::event_kind::order_only);
    require(made.is, "bench", "an event", "", source_location::current());
    require(machine.record(from.device(), from.handle(), made.value), "bench", "an event", "",
            source_location::current());
    require(machine.wait(to.device(), to.handle(), made.value), "bench", "an event", "", source_location::current());
    static_cast<void>(machine.destroy_event(from.device(), made.value));
    return;
  }
  constexpr unsigned no_timing = 2;
  auto& mine = my.events[from.device()];
  if (mine.size() < 64) {
    my.on(from.device());
    void* fresh = nullptr;
    require_done(my.cuda.cuEventCreate(&fresh, no_timing), "cuEventCreate");
    mine.push_back(fresh);
  } else {  // Reuses the event that was recorded first. A pending wait keeps its own record.
    std::rotate(mine.begin(), mine.begin() + 1, mine.end());
  }
  CUstream_st* const native_from = machine.native(from.device(), from.handle()).value;
  CUstream_st* const native_to = machine.native(to.device(), to.handle()).value;
  my.on(from.device());
  require_done(my.cuda.cuEventRecord(mine.back(), native_from), "cuEventRecord");
  my.on(to.device());
  require_done(my.cuda.cuStreamWaitEvent(native_to, mine.back(), 0), "cuStreamWaitEvent");
}

void raw_calls::open_peer(int from, int to) {
  auto& my = *state_;
  if (my.simulated)
    return;
  constexpr int already_enabled = 704, cannot = 217;
  void* const near = my.contexts[from] = my.context(from);
  void* const far = my.contexts[to] = my.context(to);
  auto const allow = [&](int reader, void* owner) {
    my.on(reader);
    if (int const code = my.cuda.cuCtxEnablePeerAccess(owner, 0); code != already_enabled && code != cannot)
      require_done(code, "cuCtxEnablePeerAccess");
  };
  allow(from, far);
  allow(to, near);
}

}  // namespace weir::tool
