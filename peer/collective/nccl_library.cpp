// Loads NCCL once.
#include "peer/collective/nccl_library.h"

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

#include "runtime/base/os_library.h"
#include "runtime/base/process_end.h"
#include "runtime/base/sync.h"
#include "runtime/base/text.h"

namespace weir::peer {
namespace {

// Older versions write directly into user buffers of peers in the same process, registered or not. That fails
// on mapped memory without a grant to the peer.
constexpr int oldest = 22600;
// Sums of float32, float16 and bfloat16 and all_gather have kernels for windows. One window lies in one handle:
// 2.28.9 registers several wrongly. Windows came with 2.27. all_gather in windows of 2.28.3 gives wrong bytes.
// Before 2.29.7 no abort ends the kernels for windows, so ranks that wait for one that has failed hang. Older versions
// get no windows, and take the kernels for ordinary memory.
constexpr int oldest_with_windows = 22907;

nccl_library load() {
  nccl_library found;
  void* const so = os::load_library("libnccl.so.2");
  if (!so) {
    found.why = "libnccl.so.2 not found";
    return found;
  }
  run_at_process_end(ending_call::wait_for_all);  // before NCCL's exit handlers, which are registered by now
  std::string missing;
#define X(call)                                                                              \
  found.call = reinterpret_cast<decltype(&::nccl##call)>(os::find_symbol(so, "nccl" #call)); \
  if (!found.call)                                                                           \
    missing += " nccl" #call;
  WEIR_NCCL_CALLS(X)
#undef X
  using registers = decltype(found.CommWindowRegister);
  using unregisters = decltype(found.CommWindowDeregister);
  found.CommWindowRegister = reinterpret_cast<registers>(os::find_symbol(so, "ncclCommWindowRegister"));
  found.CommWindowDeregister = reinterpret_cast<unregisters>(os::find_symbol(so, "ncclCommWindowDeregister"));
  if (!missing.empty())
    found.why = "libnccl.so.2 lacks" + missing;
  else if (found.GetVersion(&found.version) != ncclSuccess || found.version < oldest)
    found.why = base::text("libnccl.so.2 is version ", found.version, ", weir needs ", oldest, " (2.26) or newer");
  return found;
}

}  // namespace

nccl_library const& nccl() {
  static nccl_library const* const once = new nccl_library(load());  // never destroyed: communicators may be static
  return *once;
}

constinit base::atomic<int> ending_call::under_way_{0};

void ending_call::wait_for_all() noexcept {
  constexpr std::int64_t longest_wait_ns = 5'000'000'000;  // an abort takes some 2 s at most
  std::int64_t const until = base::now_ns() + longest_wait_ns;
  while (under_way_.load() > 0 && base::now_ns() < until)
    base::sleep_ns(1'000'000);
}

namespace {

struct aborting {
  static constexpr std::int64_t patience_ns = 2'000'000'000;
  static constexpr std::int64_t longest_free_ns = 800'000'000;  // NCCL takes some 500 ms
  std::vector<ncclComm_t> all;
  struct reached {
    bool told = false, may_free = false, freed = false;
  };
  base::guarded<reached> is{};
  base::condition changed{};

  void reach(bool reached::*what) noexcept {
    (*is.lock()).*what = true;
    changed.notify_all();
  }
  bool wait_for(bool reached::*what, std::int64_t ns) noexcept {
    auto s = is.lock();
    return changed.wait_for(s.lock(), std::chrono::nanoseconds(ns), [&] { return (*s).*what; });
  }
  void run() noexcept {
    ending_call const call;
    nccl().GroupStart();
    for (ncclComm_t const comm : all)
      nccl().CommAbort(comm);
    reach(&reached::told);
    (void)wait_for(&reached::may_free, 2 * patience_ns);
    nccl().GroupEnd();
    reach(&reached::freed);
  }
};

}  // namespace

void abort_on_a_thread(std::vector<ncclComm_t> const& all,
                       std::function<void()> const& before_they_are_freed) noexcept {
  try {
    auto const its = std::make_shared<aborting>();
    its->all = all;
    base::thread([its] { its->run(); }).detach();
    (void)its->wait_for(&aborting::reached::told, aborting::patience_ns);
    before_they_are_freed();
    its->reach(&aborting::reached::may_free);
    (void)its->wait_for(&aborting::reached::freed, aborting::longest_free_ns);
  } catch (...) {  // no host memory, or no thread: GroupEnd blocks this one until no graph is left
    nccl().GroupStart();
    for (ncclComm_t const comm : all)
      nccl().CommAbort(comm);
    before_they_are_freed();
    nccl().GroupEnd();
  }
}

bool nccl_library::has_windows() const noexcept {
  return version >= oldest_with_windows && CommWindowRegister && CommWindowDeregister;
}

ncclDataType_t nccl_type(dtype type) noexcept {
  switch (type) {
    case float32: return ncclFloat32;
    case float16: return ncclFloat16;
    case bfloat16: return ncclBfloat16;
    case float64: return ncclFloat64;
    case int8: return ncclInt8;
    case uint8:
    case int16:  // transferred as bytes, never reduced
    case boolean: return ncclUint8;
    case int32: return ncclInt32;
    case int64: return ncclInt64;
  }
  return ncclUint8;
}

ncclRedOp_t nccl_operation(reduce_op how) noexcept {
  switch (how) {
    case reduce_op::sum: return ncclSum;
    case reduce_op::average: return ncclAvg;
    case reduce_op::min: return ncclMin;
    case reduce_op::max: return ncclMax;
  }
  return ncclSum;
}

std::string nccl_words(ncclResult_t r) {
  std::string text = base::text(nccl().GetErrorString(r), " (", static_cast<int>(r), ")");
  if (char const* const last = nccl().GetLastError(nullptr); last && *last)
    text += ": " + std::string(last);
  return text;
}

}  // namespace weir::peer

#endif
