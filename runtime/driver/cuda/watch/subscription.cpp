// CUPTI's one subscription of the process, and the checkers that it serves.
// Threads: any. CUDA may hold a lock of its own during a callback: no lock of weir is held during a call of CUDA here.
#include <algorithm>
#include <array>

#include "runtime/base/call_site.h"
#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/base/process.h"
#include "runtime/base/sync.h"
#include "runtime/base/sync_thread_value.h"
#include "runtime/driver/call_watch.h"
#include "runtime/driver/cuda/symbols.h"
#include "runtime/driver/cuda/watch/places.h"
#include "runtime/driver/cuda/watch/seen_call.h"
#include "runtime/driver/race_control.h"

namespace weir::driver {

#if WEIR_HAS_CUPTI
namespace cuda {
namespace {

constexpr std::size_t most_calls = 1024;
using call_table = std::array<watched_call const*, most_calls>;
call_table const& table() {
  static call_table const* const all = [] {
    auto* const made = new call_table{};
    for (auto const rows : {launch_calls(), copy_calls(), order_calls(), memory_calls(), graph_calls()})
      for (watched_call const& row : rows)
        if (row.id < most_calls)
          (*made)[row.id] = &row;
    return made;
  }();
  return *all;
}

struct subscribers {
  std::vector<told_checker> checkers;  // a callback copies them, and holds each while it tells
  void (*awaited)() = nullptr;         // is called before the next call is told
};
base::guarded<subscribers>& everyone() {
  static base::lasting<base::guarded<subscribers>> all;
  return *all;
}

// Without the list's lock: it may begin a watch.
void call_awaited() noexcept {
  void (*const awaited)() = std::exchange(everyone().lock()->awaited, nullptr);
  if (!awaited) [[likely]]
    return;
  try {
    awaited();
  } catch (...) {
    os::print_error("weir-583: the race checker found no host memory, and sees nothing\n");
  }
}

using is_telling = base::thread_value<struct telling_of_a_thread, bool>;
// While one exists, this thread tells a call: what a checker or this file asks of CUDA meanwhile is not told.
class telling {
 public:
  telling() noexcept : before_(std::exchange(is_telling::value, true)) {}
  ~telling() { is_telling::value = before_; }
  telling(telling const&) = delete;

 private:
  bool const before_;
};

constinit base::atomic<source_location (*)() noexcept> last_known_line{nullptr};

source_location place_of(CUpti_CallbackData const& call) noexcept {
  try {
    source_location const at = place_of_caller(call.symbolName);
    auto const last_line = last_known_line.load();
    return last_line ? behind(at, last_line()) : at;
  } catch (...) {  // no host memory: a call without a place
    return {};
  }
}

void CUPTIAPI see(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, void const* told) noexcept {
  if (domain != CUPTI_CB_DOMAIN_DRIVER_API || id >= most_calls || base::this_call().unwatched > 0 ||
      is_telling::value || process_was_forked())
    return;
  watched_call const* const row = table()[id];
  auto const& call = *static_cast<CUpti_CallbackData const*>(told);
  if (!row || row->when != call.callbackSite)
    return;
  // A call that failed did nothing, and may have parameters that point nowhere.
  bool const has_failed =
      row->when == CUPTI_API_EXIT && *static_cast<CUresult const*>(call.functionReturnValue) != CUDA_SUCCESS;
  if (has_failed && !row->when_failed)
    return;
  telling const own;
  call_awaited();
  source_location const at = row->has_place ? place_of(call) : source_location{};
  boost::container::small_vector<told_checker, 4> checkers;
  try {
    {
      auto const all = everyone().lock();
      checkers.assign(all->checkers.begin(), all->checkers.end());
    }
    row->tell({call, row->is_per_thread, at, checkers});
  } catch (...) {  // no host memory
    for (told_checker const& to : checkers)
      (*to)->not_understood("calls that found no host memory for their record");
  }
}

// Callbacks take no part in this lock.
std::string begin() {
  static base::lasting<base::guarded<CUpti_SubscriberHandle>> subscription;
  auto const handle = (*subscription).lock();
  if (*handle)
    return {};
  cupti_found const& found = find_cupti();
  if (!found.api)
    return found.why;
  CUptiResult const is = found.api->subscribe(&*handle, see, nullptr);
  if (is == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    return "another tool has CUPTI's callbacks in this process. Run without the profiler";
  char const* words = nullptr;
  if (is != CUPTI_SUCCESS) {
    found.api->result_string(is, &words);
    return std::string("CUPTI refused its callbacks: ") + (words ? words : std::to_string(is));
  }
  telling const own;
  for (std::size_t id = 0; id < most_calls; ++id)
    if (table()[id])  // an older library refuses a call that it does not know
      (void)found.api->enable_callback(1, *handle, CUPTI_CB_DOMAIN_DRIVER_API, static_cast<CUpti_CallbackId>(id));
  return {};
}

class subscribed final : public call_watch {
 public:
  explicit subscribed(told_checker to) : to_(std::move(to)) {}
  ~subscribed() override {
    // In a child another thread of the parent may have held the lock, or the checker.
    if (process_was_forked())
      return;
    std::erase(everyone().lock()->checkers, to_);
    while (to_.use_count() > 1)
      base::yield_thread();
  }

 private:
  told_checker const to_;
};

constinit base::atomic<int> captures{0};  // that the program began and has not ended

template <class Entry>
void look_up(Entry& entry, char const* name, int version) {
  static auto const find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(
      os::find_symbol(os::load_library("libcuda.so.1"), "cuGetProcAddress_v2"));
  void* found = nullptr;
  CUdriverProcAddressQueryResult answer{};
  if (find(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &answer) == CUDA_SUCCESS)
    entry = reinterpret_cast<Entry>(found);
}

}  // namespace

// CUPTI's subscription stays: ending it while threads are inside callbacks is not defined.
watch_begun watch(check::control& checker) {
  if (std::string why = begin(); !why.empty())
    return {nullptr, std::move(why)};
  seen_calls* const to = checker.calls();
  if (!to)
    return {nullptr, "this checker takes no such calls"};
  auto one = std::make_shared<seen_calls* const>(to);
  auto made = std::make_unique<subscribed>(one);
  everyone().lock()->checkers.push_back(std::move(one));
  return {std::move(made), {}};
}

std::string begin_later(void (*awaited)()) {
  everyone().lock()->awaited = awaited;
  return begin();
}

void capture_began() noexcept {
  captures.fetch_add(1);
}
void capture_ended() noexcept {
  if (captures.load() > 0)
    captures.fetch_sub(1);
}

char const* seen_call::name() const noexcept {
  std::string_view name = told_.functionName;
  for (std::string_view const version : {"_ptsz", "_ptds", "_v3", "_v2"})
    if (name.ends_with(version))
      name.remove_suffix(version.size());
  try {
    return lasting_name(std::string(name).c_str());
  } catch (...) {  // no host memory
    return told_.functionName;
  }
}

int seen_call::device() const {
  CUdevice now = 0;
  return load().api->cuCtxGetDevice(&now) == CUDA_SUCCESS ? static_cast<int>(now) : 0;
}

int device_of(CUcontext of) {
  entries const& api = *load().api;
  CUdevice found = 0;
  CUcontext before = nullptr;
  api.cuCtxPushCurrent(of);
  CUresult const is = api.cuCtxGetDevice(&found);
  api.cuCtxPopCurrent(&before);
  return is == CUDA_SUCCESS ? static_cast<int>(found) : 0;
}

// The predefined streams are those of the current context.
int seen_call::device_of(CUstream s) const {
  if (!s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD)
    return device();
  CUcontext of = nullptr;
  if (load().api->cuStreamGetCtx(s, &of) != CUDA_SUCCESS || of == told_.context)
    return device();
  return cuda::device_of(of);
}

// A stream that cannot be asked is the legacy one beside a capture: it is not captured itself. In code for per-thread
// streams null is the thread's.
bool seen_call::is_captured(CUstream s) const noexcept {
  if (captures.load(base::memory_order_relaxed) == 0) [[likely]]
    return false;
  CUstreamCaptureStatus is = CU_STREAM_CAPTURE_STATUS_NONE;
  return load().api->cuStreamIsCapturing(reinterpret_cast<CUstream>(handle(s)), &is) == CUDA_SUCCESS &&
         is != CU_STREAM_CAPTURE_STATUS_NONE;
}

watch_entries const& entries_of_watch() {
  static watch_entries const* const all = [] {
    auto* const found = new watch_entries;
    look_up(found->function_parameter, "cuFuncGetParamInfo", 12040);
    look_up(found->kernel_parameter, "cuKernelGetParamInfo", 12040);
    look_up(found->function_name, "cuFuncGetName", 12030);
    look_up(found->kernel_name, "cuKernelGetName", 12030);
    look_up(found->graph_nodes, "cuGraphGetNodes", 10000);
    look_up(found->graph_edges, "cuGraphGetEdges", 10000);
    look_up(found->node_type, "cuGraphNodeGetType", 10000);
    look_up(found->kernel_node, "cuGraphKernelNodeGetParams", 12000);
    look_up(found->copy_node, "cuGraphMemcpyNodeGetParams", 10000);
    look_up(found->fill_node, "cuGraphMemsetNodeGetParams", 10000);
    return found;
  }();
  return *all;
}

}  // namespace cuda

watch_begun watch_calls(check::control& checker) {
  return cuda::watch(checker);
}
std::string call_when_told(void (*begin)()) {
  return cuda::begin_later(begin);
}
void name_places_with(source_location (*line)() noexcept) noexcept {
  cuda::last_known_line.store(line);
}
#endif

}  // namespace weir::driver
