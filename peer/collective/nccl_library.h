// NCCL's entry points, loaded at run time, and weir's types in its words. Only this file includes NCCL's header.
// Threads: any
#pragma once

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

#include <nccl.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/process.h"
#include "weir/collective.h"

namespace weir::peer {

// Every entry point, by NCCL's name and type.
#define WEIR_NCCL_CALLS(X) \
  X(GetVersion)            \
  X(GetUniqueId)           \
  X(CommInitRankConfig)    \
  X(CommInitAll)           \
  X(CommSplit)             \
  X(CommDestroy)           \
  X(CommAbort)             \
  X(CommGetAsyncError)     \
  X(GetErrorString)        \
  X(GetLastError)          \
  X(AllReduce)             \
  X(Broadcast)             \
  X(AllGather)             \
  X(ReduceScatter)         \
  X(Send)                  \
  X(Recv)                  \
  X(GroupStart)            \
  X(GroupEnd)              \
  X(MemAlloc)              \
  X(MemFree)               \
  X(RedOpCreatePreMulSum)

struct nccl_library {
#define X(call) decltype(&::nccl##call) call = nullptr;
  WEIR_NCCL_CALLS(X)
#undef X
  // Windows came with 2.27; a header may be older. Null: the library has none.
  ncclResult_t (*CommWindowRegister)(ncclComm_t, void*, std::size_t, void** window, int flags) = nullptr;
  ncclResult_t (*CommWindowDeregister)(ncclComm_t, void* window) = nullptr;
  int version = 0;
  std::string why;  // why it cannot be used; empty if it can

  // Whether its kernels may reduce in registered memory.
  bool has_windows() const noexcept;
};
nccl_library const& nccl();

// A thread that ends communicators inside NCCL. The watch of ranks may be one while the program ends. NCCL's exit
// handlers destroy what it uses, so the process's end waits for it, 5 s at most.
class ending_call {
 public:
  ending_call() noexcept { under_way_.fetch_add(1); }
  ~ending_call() { under_way_.fetch_sub(1); }
  ending_call(ending_call const&) = delete;

  // False while the process ends: the driver may be gone, and the system frees all.
  bool may_begin() const noexcept { return !process_is_ending(); }
  static void wait_for_all() noexcept;  // Requires: process_is_ending()

 private:
  static constinit base::atomic<int> under_way_;
};

// CommAbort tells NCCL's kernels and threads at once; the group's end frees the communicators. It waits for each graph
// that captured one of their calls to be destroyed, perhaps by the thread that aborts.
// before_they_are_freed: called once they are told, or after 2 s. Blocks: behind that call until they are freed, at
// most 800 ms, as a graph may live on. Without host memory or a thread the calling thread aborts, and waits for graphs
void abort_on_a_thread(std::vector<ncclComm_t> const&, std::function<void()> const& before_they_are_freed) noexcept;

ncclDataType_t nccl_type(dtype) noexcept;
ncclRedOp_t nccl_operation(reduce_op) noexcept;
// What the thread's last call says.
std::string nccl_words(ncclResult_t);

}  // namespace weir::peer

#endif
