// Collectives by NCCL, loaded at run time; only this file includes its header. Leaves its environment alone.
// A rank of several processes has a communicator whose calls do not block, so that it can be aborted while
// NCCL connects it to a process that has gone.
// Threads: each rank by one thread at a time; abort by any. NCCL allows one thread at a time for each device.
#include "peer/collective/group.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "runtime/base/os_library.h"

namespace weir::peer {
namespace {

// Every entry point, by NCCL's name and type.
#define WEIR_NCCL_CALLS(X) \
  X(GetVersion)            \
  X(GetUniqueId)           \
  X(CommInitRankConfig)    \
  X(CommInitAll)           \
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
  X(RedOpCreatePreMulSum)

struct library {
#define X(call) decltype(&::nccl##call) call = nullptr;
  WEIR_NCCL_CALLS(X)
#undef X
  // Windows came with 2.27; a header may be older. Null: the library has none.
  ncclResult_t (*CommWindowRegister)(ncclComm_t, void*, std::size_t, void** window, int flags) = nullptr;
  ncclResult_t (*CommWindowDeregister)(ncclComm_t, void* window) = nullptr;
  int version = 0;
  std::string why;  // why it cannot be used; empty if it can
};

// Older versions write directly into user buffers of peers in the same process, registered or not. That fails
// on mapped memory without a grant to the peer.
constexpr int oldest = 22600;
// Sums of float32, float16 and bfloat16 and all_gather have kernels for windows. One window lies in one handle:
// 2.28.9 registers several wrongly. Windows came with 2.27. all_gather in windows of 2.28.3 gives wrong bytes.
// Before 2.29.7 no abort ends the kernels for windows, so ranks that wait for one that has failed hang. Older versions
// get no windows, and take the kernels for ordinary memory.
constexpr int oldest_with_windows = 22907;
constexpr int equal_offsets = 1;  // NCCL_WIN_COLL_SYMMETRIC
// Bytes of all ranks from which reductions of float32 are slower in windows than elsewhere, if GPUs do not
// multicast. A sum of each element times 1 takes the kernels for ordinary memory, and gives the bits of those.
// Sums of float16 and bfloat16 stay: the kernels for windows round once.
constexpr std::size_t slower_in_windows = std::size_t{32} << 20;

library load() {
  library found;
  void* const so = os::load_library("libnccl.so.2");
  if (!so) {
    found.why = "libnccl.so.2 not found";
    return found;
  }
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

library const& nccl() {
  static library const* const once = new library(load());  // never destroyed: communicators may be static
  return *once;
}

bool has_windows() {
  library const& has = nccl();
  return has.version >= oldest_with_windows && has.CommWindowRegister && has.CommWindowDeregister;
}

ncclDataType_t type_of(dtype type) noexcept {
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
ncclRedOp_t operation_of(reduce_op how) noexcept {
  switch (how) {
    case reduce_op::sum: return ncclSum;
    case reduce_op::average: return ncclAvg;
    case reduce_op::min: return ncclMin;
    case reduce_op::max: return ncclMax;
  }
  return ncclSum;
}

std::string words(ncclResult_t r, ncclComm_t on) {
  std::string text = base::text(nccl().GetErrorString(r), " (", static_cast<int>(r), ")");
  if (char const* const last = nccl().GetLastError(on); last && *last)
    text += ": " + std::string(last);
  return text;
}

class nccl_backend final : public collective_backend {
 public:
  nccl_backend(runtime::impl& r, std::vector<int> devices, source_location at)
      : runtime_(r), devices_(std::move(devices)), ranks_(devices_.size()) {
    std::vector<ncclComm_t> made(devices_.size());
    ncclResult_t const answer = nccl().CommInitAll(made.data(), static_cast<int>(made.size()), devices_.data());
    if (answer != ncclSuccess)
      throw driver_error(static_cast<int>(answer), "communicator::create_all",
                         base::text(devices_.size(), " GPUs: NCCL returns ", words(answer, nullptr)),
                         "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{283});
    for (std::size_t i = 0; i < made.size(); ++i)
      ranks_[i].comm = made[i];
  }

  // One rank of several processes; the others' communicators stay null here.
  nccl_backend(runtime::impl& r, std::vector<int> devices, int rank, std::string const& id,
               std::function<std::string()> const& gives_up, source_location at)
      : runtime_(r), devices_(std::move(devices)), ranks_(devices_.size()) {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    auto const operands = [&] { return base::text("rank ", rank, " of ", devices_.size(), ": "); };
    ncclUniqueId unique;
    if (id.size() != sizeof unique)
      throw driver_error(0, "communicator", operands() + "rank 0 sent no NCCL id",
                         "Run the same version of weir in all processes", at, error_id{397});
    std::memcpy(&unique, id.data(), sizeof unique);
    int const device = devices_[static_cast<std::size_t>(rank)];
    require(runtime_.machine().make_current(device), "communicator", operands() + base::gpu_name(device), "", at);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclResult_t answer =
        nccl().CommInitRankConfig(&mine.comm, static_cast<int>(devices_.size()), unique, rank, &config);
    std::string gave_up;
    while (answer == ncclInProgress || (answer == ncclSuccess && gave_up.empty())) {
      ncclResult_t now = ncclSuccess;
      ncclResult_t const asked = nccl().CommGetAsyncError(mine.comm, &now);
      answer = asked != ncclSuccess ? asked : now;
      if (answer == ncclSuccess)
        return;
      if (gave_up = gives_up(); !gave_up.empty())
        break;
      base::sleep_ns(pause_ns);
    }
    std::string const text = gave_up.empty() ? "NCCL returns " + words(answer, mine.comm) : gave_up;
    abort();
    throw driver_error(static_cast<int>(answer), "communicator", operands() + text,
                       "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{398});
  }

  ~nccl_backend() override { abort(); }  // ranks that have not left

  void issue(int rank, clock::stream_clock& on, requests all, source_location at) override {
    if (std::all_of(all.begin(), all.end(), [](auto const& r) { return r.count == 0; }))
      return;
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    driver::driver& machine = runtime_.machine();
    auto const operands = [&] {
      return base::text("rank ", rank, " of ", devices_.size(), ", ", text_of(all), " on gpu:", on.device());
    };
    require(machine.make_current(on.device()), name_of(all), operands(), "", at);
    auto const native = machine.native(on.device(), on.handle());
    require(native.is, name_of(all), operands(), "", at);
    ncclResult_t answer = ncclSuccess;
    std::string text;
    {
      base::lock_guard const lock(mine.calls);
      if (!mine.comm)
        throw driver_error(0, std::string(name_of(all)), operands() + ": the communicator was aborted",
                           "Create a new one with communicator::create_all", at, error_id{284});
      auto const enqueue_all = [&](auto const& note) {
        for (collective_request const& each : all)
          note(enqueue(rank, each, mine, native.value));
      };
      answer = all.size() == 1 ? enqueue(rank, all[0], mine, native.value) : in_a_group(enqueue_all);
      answer = settled(answer, mine.comm);
      if (answer != ncclSuccess) {
        // an invalid argument changes nothing; any other error ends the communicator
        bool const is_over = answer != ncclInvalidArgument;
        if (is_over)
          mine.failed = "NCCL failed";  // fits without host memory
        text = words(answer, mine.comm);
        if (is_over)
          mine.failed = text;
      }
    }
    if (answer == ncclSuccess) {
      base::call_site const in(runtime_.observer(), name_of(all).data(), at);
      for (collective_request const& each : all)
        machine.touched(on.device(), on.handle(), each.touches(devices_.size()));
      mine.last.store(on.now().n, base::memory_order_relaxed);
      mine.last_stream.store(on.id(), base::memory_order_relaxed);
      return;
    }
    if (auto const s = on.captured().is; s.what == driver::code::lost)
      throw_refusal(s, name_of(all), operands(), "", at);
    throw driver_error(static_cast<int>(answer), std::string(name_of(all)), operands() + ": NCCL answers " + text,
                       "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{285});
  }

  bool prepare_registration(int rank, source_location at) override {
    if (!has_windows())
      return false;
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    int const device = devices_[static_cast<std::size_t>(rank)];
    std::string const operands = base::text("rank ", rank, " of ", devices_.size(), " on ", base::gpu_name(device));
    require(runtime_.machine().make_current(device), "register_pool", operands, "", at);
    auto const about = runtime_.machine().info(device);
    require(about.is, "register_pool", operands, "", at);
    base::lock_guard const lock(mine.calls);
    mine.windows.push_back(nullptr);
    return devices_.size() > 2 && about.value.multicast && os::environment("NCCL_NVLS_ENABLE") != "0";
  }

  void register_memory(int rank, clock::stream_clock&, collective_request const& r, bool multicast,
                       source_location at) override {
    if (!has_windows())
      return;
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    int const device = devices_[static_cast<std::size_t>(rank)];
    auto const operands = [&] {
      return base::text("rank ", rank, " of ", devices_.size(), ", ", r.text(), " on ", base::gpu_name(device));
    };
    ncclResult_t answer = ncclSuccess;
    std::string text;
    {
      base::lock_guard const lock(mine.calls);
      void* const memory = const_cast<void*>(r.in);
      if (!mine.comm) {
        answer = ncclInvalidUsage;  // aborted
      } else {
        answer = nccl().CommWindowRegister(mine.comm, memory, static_cast<std::size_t>(r.count), &mine.windows.back(),
                                           equal_offsets);
        if (answer == ncclSuccess)
          answer = ncclInProgress;  // a call that does not block says success at once
        answer = settled(answer, mine.comm);
        mine.multicasts = multicast;
        float factor = 1;
        if (answer == ncclSuccess && devices_.size() > 1 && !mine.times_one)
          answer = nccl().RedOpCreatePreMulSum(&mine.times_one.emplace(), &factor, ncclFloat32, ncclScalarHostImmediate,
                                               mine.comm);
      }
      // other ranks may wait for this one
      if (answer != ncclSuccess) {
        mine.failed = "NCCL failed";  // fits without host memory
        text = words(answer, mine.comm);
        mine.failed = text;
      }
    }
    if (answer != ncclSuccess)
      throw driver_error(static_cast<int>(answer), "register_pool", operands() + ": NCCL answers " + text,
                         "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{451});
  }

  bool idle(int rank) override {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    std::uint64_t const stream = mine.last_stream.load(base::memory_order_relaxed);
    if (stream == 0)
      return true;
    auto const done = runtime_.part<clock::clocks>().poll({stream, mine.last.load(base::memory_order_relaxed)});
    return done.ok() && done.value;
  }

  std::string broken(int rank) override {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    base::lock_guard const lock(mine.calls);
    if (!mine.comm)
      return "the communicator was aborted";
    if (!mine.failed.empty())
      return mine.failed;
    ncclResult_t later = ncclSuccess;
    ncclResult_t const answer = nccl().CommGetAsyncError(mine.comm, &later);
    if (answer != ncclSuccess)
      later = answer;
    if (later == ncclSuccess || later == ncclInProgress)
      return {};
    return mine.failed = "NCCL reports " + words(later, mine.comm);
  }

  void abort() noexcept override {
    aborting_.store(true, base::memory_order_relaxed);
    if (process_is_ending())
      return;  // the driver may be gone: the system frees all
    auto const end = [](one& each) {
      if (ncclComm_t const comm = std::exchange(each.comm, nullptr))
        nccl().CommAbort(comm);
    };
    for (one& each : ranks_) {
      // its thread is inside NCCL, perhaps connecting to a rank that never comes
      if (!each.calls.try_lock())
        continue;
      end(each);
      each.calls.unlock();
    }
    constexpr std::int64_t patience_ns = 2'000'000'000;
    std::int64_t const until = base::now_ns() + patience_ns;
    for (one& each : ranks_) {  // such a call returns after the other ranks are aborted
      bool locked = each.calls.try_lock();
      for (; !locked && base::now_ns() < until; locked = each.calls.try_lock())
        base::sleep_ns(pause_ns);
      end(each);
      if (locked)
        each.calls.unlock();
    }
  }

  void leave(int rank) noexcept override {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    if (process_is_ending()) {
      mine.comm = nullptr;  // the driver may be gone: the system frees all
      return;
    }
    driver::status done;
    if (std::uint64_t const stream = mine.last_stream.load(base::memory_order_relaxed))
      done = runtime_.part<clock::clocks>().synchronize({stream, mine.last.load(base::memory_order_relaxed)});
    base::lock_guard const lock(mine.calls);
    if (!mine.comm)
      return;
    for (void* const window : mine.windows)
      if (window && done.ok() && mine.failed.empty() &&
          nccl().CommWindowDeregister(mine.comm, window) != ncclInvalidUsage)
        (void)settled(ncclInProgress, mine.comm);
    if (done.ok())
      (void)settled(nccl().CommDestroy(mine.comm), nullptr);
    else
      nccl().CommAbort(mine.comm);
    mine.comm = nullptr;
  }

 private:
  struct one;
  static std::byte* part_of(void const* whole, std::size_t rank, std::size_t bytes) noexcept {
    return static_cast<std::byte*>(const_cast<void*>(whole)) + rank * bytes;
  }

  ncclRedOp_t operation_for(collective_request const& r, one const& mine) const noexcept {
    std::size_t const parts = r.what == collective::reduce_scatter ? devices_.size() : 1;
    bool const slower = r.placed && !mine.multicasts && r.how == reduce_op::sum && r.type == float32 &&
                        r.part_bytes() * parts >= slower_in_windows;
    return slower && mine.times_one ? *mine.times_one : operation_of(r.how);
  }

  ncclResult_t enqueue(int rank, collective_request const& r, one const& mine, CUstream_st* on) const {
    if (r.count == 0)
      return ncclSuccess;
    bool const bytes = !r.reduces();  // no arithmetic: element types do not matter
    std::size_t const count = static_cast<std::size_t>(r.count) * (bytes ? size_of(r.type) : 1);
    ncclDataType_t const type = bytes ? ncclUint8 : type_of(r.type);
    ncclRedOp_t const how = operation_for(r, mine);
    switch (r.what) {
      case collective::all_reduce: return nccl().AllReduce(r.in, r.out, count, type, how, mine.comm, on);
      case collective::broadcast: return nccl().Broadcast(r.in, r.out, count, type, r.root, mine.comm, on);
      case collective::all_gather: return nccl().AllGather(r.in, r.out, count, type, mine.comm, on);
      case collective::reduce_scatter: return nccl().ReduceScatter(r.in, r.out, count, type, how, mine.comm, on);
      case collective::scatter:
      case collective::gather: return spread(rank, r, count, mine.comm, on);
      case collective::all_to_all: return exchange(r, count, mine.comm, on);
      case collective::send: return nccl().Send(r.in, count, type, r.root, mine.comm, on);
      case collective::receive: return nccl().Recv(r.out, count, type, r.root, mine.comm, on);
      case collective::register_pool: return ncclSuccess;
    }
    return ncclSuccess;
  }

  // Makes the calls in one NCCL group. NCCL enqueues all or none. Returns: the first error; else ncclInProgress if
  // a call returned that.
  template <class Calls>
  static ncclResult_t in_a_group(Calls calls) {
    ncclResult_t worst = nccl().GroupStart();
    if (worst != ncclSuccess)
      return worst;
    auto const note = [&](ncclResult_t answer) {
      if (answer != ncclSuccess && (worst == ncclSuccess || worst == ncclInProgress))
        worst = answer;
    };
    calls(note);
    note(nccl().GroupEnd());
    return worst;
  }

  // Sends or receives the ranks' parts, the root's own too unless it is in place.
  ncclResult_t spread(int rank, collective_request const& r, std::size_t bytes, ncclComm_t comm,
                      CUstream_st* on) const {
    bool const scatters = r.what == collective::scatter;
    auto const mine = static_cast<std::size_t>(rank);
    bool const in_place =
        rank == r.root && (scatters ? part_of(r.in, mine, bytes) == r.out : part_of(r.out, mine, bytes) == r.in);
    return in_a_group([&](auto const& note) {
      for (std::size_t other = 0; rank == r.root && other < devices_.size(); ++other) {
        int const peer = static_cast<int>(other);
        if (peer == rank && in_place)
          continue;
        note(scatters ? nccl().Send(part_of(r.in, other, bytes), bytes, ncclUint8, peer, comm, on)
                      : nccl().Recv(part_of(r.out, other, bytes), bytes, ncclUint8, peer, comm, on));
      }
      if (!in_place)
        note(scatters ? nccl().Recv(r.out, bytes, ncclUint8, r.root, comm, on)
                      : nccl().Send(r.in, bytes, ncclUint8, r.root, comm, on));
    });
  }

  ncclResult_t exchange(collective_request const& r, std::size_t bytes, ncclComm_t comm, CUstream_st* on) const {
    return in_a_group([&](auto const& note) {
      for (std::size_t other = 0; other < devices_.size(); ++other) {
        int const peer = static_cast<int>(other);
        note(nccl().Send(part_of(r.in, other, bytes), bytes, ncclUint8, peer, comm, on));
        note(nccl().Recv(part_of(r.out, other, bytes), bytes, ncclUint8, peer, comm, on));
      }
    });
  }

  // A call that does not block has only begun. Blocks: until NCCL has done it, or abort()
  ncclResult_t settled(ncclResult_t answer, ncclComm_t comm) const noexcept {
    while (answer == ncclInProgress && comm && !aborting_.load(base::memory_order_relaxed)) {
      base::yield_thread();
      ncclResult_t now = ncclSuccess;
      ncclResult_t const asked = nccl().CommGetAsyncError(comm, &now);
      answer = asked != ncclSuccess ? asked : now;
    }
    return answer;
  }

  struct one {
    base::mutex calls;                                    // held during every call on comm
    ncclComm_t comm = nullptr;                            // null: aborted or left
    std::string failed;                                   // under calls: the error that ended it
    std::deque<void*> windows;                            // likewise; NCCL writes them, also later. Null: unused
    std::optional<ncclRedOp_t> times_one;                 // likewise; the sum of elements times 1. Ends with comm
    bool multicasts = false;                              // likewise; all ranks
    base::atomic<std::uint64_t> last_stream{0}, last{0};  // the stamp after its last collective
  };
  static constexpr std::int64_t pause_ns = 1'000'000;
  runtime::impl& runtime_;
  std::vector<int> const devices_;
  std::vector<one> ranks_;
  base::atomic<bool> aborting_{false};
};

}  // namespace

namespace {
void require_nccl(char const* operation, std::string const& what, source_location at) {
  if (std::string const& why = nccl().why; !why.empty())
    throw not_supported(operation, "NCCL for " + what + ": " + why,
                        "Install NCCL (libnccl2), or put its folder on LD_LIBRARY_PATH", at, error_id{399});
}
}  // namespace

std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl& owner, std::vector<int> const& devices,
                                                    source_location at) {
  require_nccl("communicator::create_all", base::text(devices.size(), " GPUs"), at);
  return std::make_unique<nccl_backend>(owner, devices, at);
}

std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl& owner, std::vector<int> const& devices, int rank,
                                                    std::string const& id, std::function<std::string()> gives_up,
                                                    source_location at) {
  require_nccl("communicator", base::text("rank ", rank, " of ", devices.size()), at);
  return std::make_unique<nccl_backend>(owner, devices, rank, id, gives_up, at);
}

std::string nccl_id(source_location at) {
  require_nccl("communicator", "rank 0", at);
  ncclUniqueId id;
  if (ncclResult_t const answer = nccl().GetUniqueId(&id); answer != ncclSuccess)
    throw driver_error(static_cast<int>(answer), "communicator", "rank 0: NCCL returns " + words(answer, nullptr),
                       "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{400});
  return {reinterpret_cast<char const*>(&id), sizeof id};
}

}  // namespace weir::peer

#else  // no CUDA toolkit or NCCL header at build time

namespace weir::peer {

namespace {
[[noreturn]] void refuse(char const* operation, std::string const& what, source_location at) {
  throw not_supported(operation, "NCCL for " + what + ": this weir was built without <nccl.h>",
                      "Install NCCL's development package (libnccl-dev) and the CUDA toolkit, and build again", at,
                      error_id{401});
}
}  // namespace

std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl&, std::vector<int> const& devices,
                                                    source_location at) {
  refuse("communicator::create_all", base::text(devices.size(), " GPUs"), at);
}
std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl&, std::vector<int> const& devices, int rank,
                                                    std::string const&, std::function<std::string()>,
                                                    source_location at) {
  refuse("communicator", base::text("rank ", rank, " of ", devices.size()), at);
}
std::string nccl_id(source_location at) {
  refuse("communicator", "rank 0", at);
}

}  // namespace weir::peer

#endif
