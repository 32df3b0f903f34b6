// Collectives by NCCL. Leaves its environment alone.
// A rank of several processes splits its communicator from one whose calls do not block: an abort ends them while
// they wait for a process that has gone. For each group of such calls NCCL starts a thread, so no collective takes it.
// Threads: each rank by one thread at a time; abort by any. NCCL allows one thread at a time for each device.
#include "peer/collective/group.h"
#include "peer/collective/nccl_calls.h"
#include "peer/collective/nccl_library.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "peer/link/internal_stream.h"

namespace weir::peer {
namespace {

constexpr int equal_offsets = 1;  // NCCL_WIN_COLL_SYMMETRIC
// Bytes of all ranks from which reductions of float32 are slower in windows than elsewhere, if GPUs do not
// multicast. A sum of each element times 1 takes the kernels for ordinary memory, and gives the bits of those.
// Sums of float16 and bfloat16 stay: the kernels for windows round once.
constexpr std::size_t slower_in_windows = std::size_t{32} << 20;

class nccl_backend final : public collective_backend {
 public:
  nccl_backend(runtime::impl& r, std::vector<int> devices, source_location at)
      : runtime_(r), devices_(std::move(devices)), ranks_(devices_.size()) {
    aborted_.reserve(ranks_.size());
    std::vector<ncclComm_t> made(devices_.size());
    ncclResult_t const answer = nccl().CommInitAll(made.data(), static_cast<int>(made.size()), devices_.data());
    if (answer != ncclSuccess)
      throw driver_error(static_cast<int>(answer), "communicator::create_all",
                         base::text(devices_.size(), " GPUs: NCCL returns ", nccl_words(answer)),
                         answer == ncclInProgress ? "Unset NCCL_COMM_BLOCKING, also in nccl.conf"
                                                  : "Set NCCL_DEBUG=INFO for NCCL's own messages",
                         at, error_id{283});
    for (std::size_t i = 0; i < made.size(); ++i)
      ranks_[i].comm.store(made[i]);
    try {
      nccl_backend::connect([] {}, at);
    } catch (...) {
      nccl_backend::abort();
      throw;
    }
  }

  // One rank of several processes; the others' communicators stay null here.
  nccl_backend(runtime::impl& r, std::vector<int> devices, int rank, std::string const& id,
               std::function<std::string()> const& gives_up, source_location at)
      : runtime_(r), devices_(std::move(devices)), ranks_(devices_.size()) {
    aborted_.reserve(ranks_.size());
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    auto const operands = [&] { return base::text("rank ", rank, " of ", devices_.size(), ": "); };
    ncclUniqueId unique;
    if (id.size() != sizeof unique)
      throw driver_error(0, "communicator", operands() + "rank 0 sent no NCCL id",
                         "Run the same version of weir in all processes", at, error_id{397});
    std::memcpy(&unique, id.data(), sizeof unique);
    int const device = devices_[static_cast<std::size_t>(rank)];
    require(runtime_.machine().make_current(device), "communicator", operands() + base::gpu_name(device), "", at);
    int const size = static_cast<int>(devices_.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = size == 1;  // a single rank waits for no other
    ncclComm_t first = nullptr, own = nullptr;
    waiting const wait{gives_up};
    ncclResult_t answer = nccl().CommInitRankConfig(&first, size, unique, rank, &config);
    answer = wait.for_end(answer, first);
    // Its calls block already.
    if (answer == ncclSuccess && size == 1) {
      mine.comm.store(first);
      return;
    }
    // `own` carries the collectives: its calls block, and NCCL starts no thread for them.
    if (answer == ncclSuccess) {
      config.blocking = 1;
      answer = wait.for_end(nccl().CommSplit(first, 0, rank, &own, &config), first);
    }
    if (answer == ncclSuccess) {
      mine.comm.store(own);
      nccl().CommDestroy(first);
      return;
    }
    std::string const words = nccl_words(answer), why = wait.reason(answer);
    if (first)
      nccl().CommAbort(first);  // ends NCCL's thread, which may make the other one
    if (own)
      nccl().CommAbort(own);
    throw driver_error(static_cast<int>(answer), "communicator",
                       operands() + (why.empty() ? "NCCL returns " + words : why),
                       "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{398});
  }

  ~nccl_backend() override { abort(); }  // ranks that have not left

  // NCCL connects the ranks of an algorithm in the first call that takes it, and such a call blocks until all ranks
  // call. The algorithm depends on the collective and on its size. Pairs connect in their first transfer.
  void connect(std::function<void()> const& all_are_ready, source_location at) override {
    std::deque<first_calls> here;
    // A single rank has no other to connect to.
    if (ranks_.size() > 1)
      for (std::size_t r = 0; r < ranks_.size(); ++r)
        if (ranks_[r].comm.load())  // else it is of another process
          here.emplace_back(runtime_, devices_[r], ranks_[r], static_cast<int>(r), at);
    all_are_ready();
    if (here.empty())
      return;
    ncclResult_t answer = ncclSuccess;
    std::string words;
    {
      base::unique_lock alone;
      // A rank of one of several processes: the watch's thread may abort it. Those of one process are known
      // to no other thread yet.
      if (here.size() == 1)
        alone = base::unique_lock(here[0].of.calls);
      // A small call of each, and one as large as their memory.
      std::size_t const large = first_calls::bytes / sizeof(float) / ranks_.size();
      for (std::size_t const count : {std::size_t{1}, large})
        for (auto const what :
             {collective::all_reduce, collective::broadcast, collective::all_gather, collective::reduce_scatter})
          if (answer == ncclSuccess)
            answer = in_a_group([&](auto const& note) {
              for (first_calls const& each : here)
                note(each.enqueue(*this, what, count));
            });
      if (answer == ncclSuccess)
        return;
      words = nccl_words(answer);
    }
    nccl_backend::abort();  // a stream may wait for a rank
    throw driver_error(static_cast<int>(answer), "communicator",
                       base::text("the first collectives of ", devices_.size(), " ranks: NCCL answers ", words),
                       answer == ncclInProgress ? "Unset NCCL_COMM_BLOCKING, also in nccl.conf"
                                                : "Set NCCL_DEBUG=INFO for NCCL's own messages",
                       at, error_id{460});
  }

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
      base::unwatched const declared;  // by touched(), below
      ncclComm_t const comm = mine.comm.load();
      if (!comm)
        throw driver_error(0, std::string(name_of(all)), operands() + ": the communicator was aborted",
                           "Create a new one with communicator::create_all", at, error_id{284});
      auto const enqueue_one = [&](collective_request const& r) {
        return nccl_enqueue(rank, devices_.size(), r, operation_for(r, mine), comm, native.value);
      };
      auto const enqueue_all = [&](auto const& note) {
        for (collective_request const& each : all)
          note(enqueue_one(each));
      };
      answer = all.size() == 1 ? enqueue_one(all[0]) : in_a_group(enqueue_all);
      // An invalid argument changes nothing; any other error ends the communicator.
      if (answer == ncclInvalidArgument)
        text = nccl_words(answer);
      else if (answer != ncclSuccess)
        text = note_failure(mine, answer);
    }
    if (answer == ncclSuccess) {
      base::call_site const in(runtime_.observer(), name_of(all).data(), at);
      for (collective_request const& each : all)
        machine.touched(on.device(), on.handle(), each.touches(devices_.size()));
      // What is captured runs at a launch.
      if (on.seen_captured() && on.captured().value)
        *mine.captured.lock() = on.now();
      else
        launched(rank, on);
      return;
    }
    // A lost device explains NCCL's answer: the driver is asked.
    if (auto const s = on.captured().is; s.what == driver::code::lost)
      throw_refusal(s, name_of(all), operands(), "", at);
    throw driver_error(static_cast<int>(answer), std::string(name_of(all)), operands() + ": NCCL answers " + text,
                       "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{285});
  }

  bool prepare_registration(int rank, source_location at) override {
    if (!nccl().has_windows())
      return false;
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    int const device = devices_[static_cast<std::size_t>(rank)];
    std::string const operands = base::text("rank ", rank, " of ", devices_.size(), " on ", base::gpu_name(device));
    require(runtime_.machine().make_current(device), "register_pool", operands, "", at);
    auto const about = runtime_.machine().info(device);
    require(about.is, "register_pool", operands, "", at);
    base::lock_guard const lock(mine.calls);
    mine.windows.push_back(nullptr);  // for register_memory, which then needs no host memory
    // NCCL multicasts among three GPUs or more, unless its variable forbids it.
    return devices_.size() > 2 && about.value.multicast && os::environment("NCCL_NVLS_ENABLE") != "0";
  }

  void register_memory(int rank, clock::stream_clock&, collective_request const& r, bool multicast,
                       source_location at) override {
    if (!nccl().has_windows())
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
      ncclComm_t const comm = mine.comm.load();
      if (!comm) {
        answer = ncclInvalidUsage;  // aborted
      } else {
        answer = nccl().CommWindowRegister(comm, memory, static_cast<std::size_t>(r.count), &mine.windows.back(),
                                           equal_offsets);
        mine.multicasts = multicast;
        // For the sums that operation_for() keeps out of windows; once for all registrations.
        float factor = 1;
        if (answer == ncclSuccess && devices_.size() > 1 && !mine.times_one)
          answer = nccl().RedOpCreatePreMulSum(&mine.times_one.emplace(), &factor, ncclFloat32, ncclScalarHostImmediate,
                                               comm);
      }
      // Other ranks may wait for this one.
      if (answer != ncclSuccess)
        text = note_failure(mine, answer);
    }
    if (answer != ncclSuccess)
      throw driver_error(static_cast<int>(answer), "register_pool", operands() + ": NCCL answers " + text,
                         "Set NCCL_DEBUG=INFO for NCCL's own messages", at, error_id{451});
  }

  // NCCL lets the work of a communicator begin in the order of the calls and launches, on any streams.
  void launched(int rank, clock::stream_clock& on) noexcept override {
    *ranks_[static_cast<std::size_t>(rank)].last.lock() = on.now();
  }

  bool idle(int rank) override {
    clock::stamp const last = *ranks_[static_cast<std::size_t>(rank)].last.lock();
    if (last.stream == 0)
      return true;
    auto const done = runtime_.part<clock::clocks>().poll(last);
    return done.ok() && done.value;
  }

  std::string broken(int rank) override {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    base::lock_guard const lock(mine.calls);
    ncclComm_t const comm = mine.comm.load();
    if (!comm)
      return "the communicator was aborted";
    if (!mine.failed.empty())
      return mine.failed;
    ncclResult_t error = ncclSuccess;
    ncclResult_t const answer = nccl().CommGetAsyncError(comm, &error);
    if (answer != ncclSuccess)
      error = answer;
    if (error == ncclSuccess || error == ncclInProgress)
      return {};
    mine.failed = "NCCL reports " + nccl_words(error);
    return mine.failed;
  }

  // Threads that were inside NCCL, perhaps connecting to a rank that never comes, have left when this returns.
  void abort() noexcept override {
    ending_call const call;
    if (!call.may_begin())
      return;
    base::lock_guard const one_by_one(aborts_);
    std::vector<ncclComm_t> all;
    all.swap(aborted_);
    for (one& each : ranks_)
      if (ncclComm_t const comm = each.comm.exchange(nullptr))
        all.push_back(comm);  // into room that was made
    if (all.empty())
      return aborted_.swap(all);
    abort_on_a_thread(all, [&] { wait_for_calls(); });
  }

  void leave(int rank) noexcept override {
    one& mine = ranks_[static_cast<std::size_t>(rank)];
    ending_call const call;
    if (!call.may_begin()) {
      mine.comm.store(nullptr);
      return;
    }
    driver::status done;
    clock::stamp const captured = *mine.captured.lock();
    for (clock::stamp const behind : {captured, *mine.last.lock()}) {
      auto const is = behind.stream != 0 ? runtime_.part<clock::clocks>().synchronize(behind) : driver::status();
      if (!is.ok())
        done = is;
    }
    bool const ended_here = end(mine, done.ok(), captured.stream != 0);
    if (ended_here)
      return;
    // An abort was first: leave() returns when that has freed the communicator.
    base::lock_guard const until_freed(aborts_);
  }

 private:
  struct one;
  // From now on no rank can continue. Requires: calls. Returns: NCCL's words
  static std::string note_failure(one& mine, ncclResult_t answer) {
    mine.failed = "NCCL failed";  // fits without host memory
    mine.failed = nccl_words(answer);
    return mine.failed;
  }
  void wait_for_calls() noexcept {
    std::int64_t const until = base::now_ns() + patience_ns;
    for (one& each : ranks_) {
      bool has_left = each.calls.try_lock();
      while (!has_left && base::now_ns() < until) {
        base::sleep_ns(pause_ns);
        has_left = each.calls.try_lock();
      }
      if (has_left)
        each.calls.unlock();
    }
  }

  // Returns: false if an abort was first, which frees the communicator itself
  static bool end(one& mine, bool complete, bool captured) noexcept {
    base::lock_guard const lock(mine.calls);
    ncclComm_t const comm = mine.comm.exchange(nullptr);
    if (!comm)
      return false;
    bool const is_whole = complete && mine.failed.empty();
    for (void* const window : mine.windows)
      if (is_whole && window)
        nccl().CommWindowDeregister(comm, window);
    // CommDestroy, too, waits for graphs.
    if (is_whole && !captured)
      nccl().CommDestroy(comm);
    else
      abort_on_a_thread({comm}, [] {});
    return true;
  }
  ncclRedOp_t operation_for(collective_request const& r, one const& mine) const noexcept {
    // Every reduction of one rank has its elements as the result. NCCL leaves out a sum in place, and multiplies each
    // element of an average by 1.
    if (devices_.size() == 1)
      return ncclSum;
    std::size_t const parts = r.what == collective::reduce_scatter ? devices_.size() : 1;
    bool const is_sum_in_windows = r.placed && r.how == reduce_op::sum && r.type == float32;
    bool const is_slower_there = !mine.multicasts && r.part_bytes() * parts >= slower_in_windows;
    if (is_sum_in_windows && is_slower_there && mine.times_one)
      return *mine.times_one;
    return nccl_operation(r.how);
  }

  // For the end of a call that does not block.
  struct waiting {
    std::function<std::string()> const& gives_up;

    // Returns: NCCL's answer; ncclInProgress: it gives up
    ncclResult_t for_end(ncclResult_t answer, ncclComm_t comm) const {
      while (comm && (answer == ncclSuccess || answer == ncclInProgress)) {
        ncclResult_t const asked = nccl().CommGetAsyncError(comm, &answer);
        if (asked != ncclSuccess)
          return asked;
        if (answer != ncclInProgress || !gives_up().empty())
          break;
        base::sleep_ns(pause_ns);
      }
      return answer;
    }

    // Why it gives up. NCCL may notice sooner than the watch that a process has ended: then gives_up() is
    // asked until it has a reason, for a time.
    std::string reason(ncclResult_t answer) const {
      bool const is_own_fault = answer == ncclInvalidArgument || answer == ncclInvalidUsage;
      std::int64_t until = base::now_ns();
      if (!is_own_fault)
        until += patience_ns;
      std::string why = gives_up();
      while (why.empty() && base::now_ns() < until) {
        base::sleep_ns(pause_ns);
        why = gives_up();
      }
      return why;
    }
  };

  // A rank's first collectives, in memory of their own.
  struct first_calls {
    static constexpr std::size_t bytes = std::size_t{1} << 20;

    first_calls(runtime::impl& r, int device, one& its, int its_rank, source_location at)
        : of(its), rank(its_rank), line(r, device, "communicator", at) {
      auto const handle = r.machine().native(device, line.stream().handle());
      require(handle.is, "communicator", base::gpu_name(device), "", at);
      native = handle.value;
      require(r.machine().make_current(device), "communicator", base::gpu_name(device), "", at);
      if (ncclResult_t const answer = nccl().MemAlloc(&memory, bytes); answer != ncclSuccess)
        throw driver_error(
            static_cast<int>(answer), "communicator",
            base::text(bytes, " bytes on ", base::gpu_name(device), ": NCCL answers ", nccl_words(answer)),
            "Free device memory, or raise runtime_options::driver_reserve", at, error_id{461});
    }
    ~first_calls() {
      static_cast<void>(line.stream().synchronize());
      nccl().MemFree(memory);
    }
    first_calls(first_calls const&) = delete;
    first_calls& operator=(first_calls const&) = delete;

    ncclResult_t enqueue(nccl_backend const& by, collective what, std::size_t count) const {
      collective_request r{what, float32, reduce_op::sum, 0, static_cast<std::int64_t>(count), memory, memory};
      // Each collective uses the same bytes: of those with parts, this rank's is its own place there.
      void* const part = part_of(memory, static_cast<std::size_t>(rank), r.part_bytes());
      if (what == collective::all_gather)
        r.in = part;
      else if (what == collective::reduce_scatter)
        r.out = part;
      else
        r.count *= static_cast<std::int64_t>(by.devices_.size());
      return nccl_enqueue(rank, by.devices_.size(), r, ncclSum, of.comm.load(), native);
    }

    one& of;
    int const rank;
    internal_stream line;
    CUstream_st* native = nullptr;
    void* memory = nullptr;
  };

  struct one {
    base::mutex calls;                       // held during every call on comm, but CommAbort
    base::atomic<ncclComm_t> comm{nullptr};  // null: aborted or left
    std::string failed;                      // under calls: the error that ended it
    std::deque<void*> windows;               // likewise; NCCL writes them, also later. Null: unused
    std::optional<ncclRedOp_t> times_one;    // likewise; the sum of elements times 1. Ends with comm
    bool multicasts = false;                 // likewise; all ranks
    base::guarded<clock::stamp> captured{};  // of the stream of its last captured collective
    base::guarded<clock::stamp> last{};      // after its last collective, or launch of a graph with one
  };
  static constexpr std::int64_t pause_ns = 1'000'000, patience_ns = 2'000'000'000;
  runtime::impl& runtime_;
  std::vector<int> const devices_;
  std::vector<one> ranks_;
  base::mutex aborts_;                 // held until what was aborted is freed, or a graph keeps it
  std::vector<ncclComm_t> aborted_{};  // room for all, under aborts_
};

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
    throw driver_error(static_cast<int>(answer), "communicator", "rank 0: NCCL returns " + nccl_words(answer),
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
