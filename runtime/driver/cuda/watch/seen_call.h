// One call of the program into CUDA, as CUPTI tells it, in the words of check::seen_calls.
// Threads: a value of the thread that makes the call.
#pragma once
#include "runtime/driver/cuda/watch/cupti.h"

#if WEIR_HAS_CUPTI
#include <cuda.h>

#include <boost/container/small_vector.hpp>

#include <memory>
#include <span>
#include <vector>

#include "runtime/driver/seen_calls.h"

namespace weir::driver::cuda {

using check::seen_calls;
using told_checker = std::shared_ptr<seen_calls* const>;  // who holds one keeps the checker from its end

class seen_call {
 public:
  seen_call(CUpti_CallbackData const& told, bool per_thread, source_location at,
            std::span<told_checker const> to) noexcept
      : told_(told), is_per_thread_(per_thread), at_(at), to_(to) {}

  template <class Parameters>
  Parameters const& given() const noexcept {
    return *static_cast<Parameters const*>(told_.functionParams);
  }
  char const* name() const noexcept;  // "cuMemcpyHtoD", without its version
  char const* kernel() const noexcept { return told_.symbolName ? told_.symbolName : "a kernel without a name"; }
  // Null means the legacy stream, or in code for per-thread default streams the thread's.
  seen_calls::stream handle(CUstream s) const noexcept {
    if (!s && is_per_thread_)
      return reinterpret_cast<seen_calls::stream>(CU_STREAM_PER_THREAD);
    return reinterpret_cast<seen_calls::stream>(s);
  }
  seen_calls::stream default_stream() const noexcept { return handle(nullptr); }
  int device() const;               // of the context that is current
  int device_of(CUstream s) const;  // of a stream that may be another device's
  // In a capture that the program began: the work is not done now, and the graph tells it.
  bool is_captured(CUstream s) const noexcept;
  base::site site() const { return {name(), at_}; }  // the program's line
  // Calls `tell` for each checker.
  template <class Tell>
  void each(Tell tell) const {
    for (told_checker const& one : to_)
      tell(**one);
  }
  // Calls `tell` for each checker with the device and the handle of the stream. Nothing, if the stream is captured.
  template <class Tell>
  void each_on(CUstream s, Tell tell) const {
    if (is_captured(s))
      return;
    int const of = device_of(s);
    each([&](seen_calls& to) { tell(to, of, handle(s)); });
  }
  void not_understood(char const* what) const noexcept {
    each([&](seen_calls& to) { to.not_understood(what); });
  }

 private:
  CUpti_CallbackData const& told_;
  bool const is_per_thread_;
  source_location const at_;
  std::span<told_checker const> to_;
};

// The driver's functions that a watch calls beside those of the table in symbols.h. Null: the driver has none.
struct watch_entries {
  CUresult (*function_parameter)(CUfunction, std::size_t, std::size_t*, std::size_t*) = nullptr;
  CUresult (*kernel_parameter)(CUkernel, std::size_t, std::size_t*, std::size_t*) = nullptr;
  CUresult (*function_name)(char const**, CUfunction) = nullptr;
  CUresult (*kernel_name)(char const**, CUkernel) = nullptr;
  CUresult (*graph_nodes)(CUgraph, CUgraphNode*, std::size_t*) = nullptr;
  CUresult (*graph_edges)(CUgraph, CUgraphNode*, CUgraphNode*, std::size_t*) = nullptr;
  CUresult (*node_type)(CUgraphNode, CUgraphNodeType*) = nullptr;
  CUresult (*kernel_node)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*) = nullptr;
  CUresult (*copy_node)(CUgraphNode, CUDA_MEMCPY3D*) = nullptr;
  CUresult (*fill_node)(CUgraphNode, CUDA_MEMSET_NODE_PARAMS*) = nullptr;
};
watch_entries const& entries_of_watch();  // Requires: a usable driver

using pointer_list = boost::container::small_vector<check::seen_pointer, 32>;
// Adds the pointers that a launch is given. Returns: false, if the driver does not tell the parameters
bool add_pointers(pointer_list&, CUfunction, char const* name, void** parameters, void** packed);
void forget_kernels();  // the handle of one may come back as another kernel, of the same name
// Addresses and handles as check::seen_calls has them.
inline address number_of(CUdeviceptr p) noexcept {
  return static_cast<address>(p);
}
inline address number_of(void const* p) noexcept {
  return reinterpret_cast<address>(p);
}

// A name that lives as long as the process.
char const* lasting_name(char const*);

// A row of the table of calls: which are told, when, and by which function.
struct watched_call {
  CUpti_CallbackId id;
  CUpti_ApiCallbackSite when;  // CUPTI_API_ENTER: before an address or a handle can be given to another thread
  bool is_per_thread;
  void (*tell)(seen_call const&);
  bool has_place;            // the program's line is told, too
  bool when_failed = false;  // a call that failed is told, too
};
int device_of(CUcontext);
std::span<watched_call const> launch_calls();
std::span<watched_call const> copy_calls();
std::span<watched_call const> order_calls();
std::span<watched_call const> memory_calls();
std::span<watched_call const> graph_calls();
void capture_began() noexcept;  // of a stream, by the program
void capture_ended() noexcept;

// Rows of a call that has a variant for per-thread default streams. WEIR_ORDER: a call that only orders.
#define WEIR_ROW(name, when, per_thread, tell, place)                                \
  watched_call {                                                                     \
    CUPTI_DRIVER_TRACE_CBID_##name, CUPTI_API_##when, per_thread, tell, place, false \
  }
#define WEIR_CALL(name, when, tell) WEIR_ROW(name, when, false, tell, true)
#define WEIR_CALL_OF_STREAM(name, suffix, when, tell) \
  WEIR_CALL(name, when, tell), WEIR_ROW(name##suffix, when, true, tell, true)
#define WEIR_ORDER(name, when, tell) WEIR_ROW(name, when, false, tell, false)
#define WEIR_ORDER_OF_STREAM(name, suffix, when, tell) \
  WEIR_ORDER(name, when, tell), WEIR_ROW(name##suffix, when, true, tell, false)

}  // namespace weir::driver::cuda
#endif
