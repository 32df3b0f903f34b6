// weir/runtime.h: the owner of a driver, its devices and their pools; and how a thread selects one.
// Threads: any. Requires: the runtime outlives every use of it.
#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "weir/error.h"

namespace weir {
namespace driver {
class driver;
}
}  // namespace weir

namespace weir WEIR_API {

struct simulated {  // a machine inside this process; weir/sim.h steps, breaks and inspects it
  int devices = 4;
  size_t memory = 16_GiB;  // bytes of each device; only touched memory costs host memory
  enum class scheduling : std::uint8_t {
    threads,  // worker threads run the streams: for programs
    seeded,   // the seed chooses what each device does, at calls alone: for finding races
    stepped,  // the test steps the streams
  } schedule = scheduling::threads;
  std::uint64_t seed = 0;                                                   // 0: a new one for each runtime
  enum class links : std::uint8_t { all, none, pairs } peers = links::all;  // pairs: 0-1, 2-3, …
  // false: no virtual memory management, as on some virtual GPUs; memory comes in whole segments
  bool virtual_memory = true;
  // The freedoms of a CUDA device that this machine uses: docs/reference/simulated-machine.md, F1 to F10.
  enum class allowed : std::uint8_t {
    usual,  // seeded: all that a correct program cannot notice; else none
    none,   // seeded: orders only
    all,    // also out of memory although memory is free, and links that corrupt bytes
  } nondeterminism = allowed::usual;
  // Hardware queues that a device's streams share in turn: work that cannot start yet blocks the streams
  // behind it. 0: one for each stream; seeded: the seed decides.
  int connections = 0;
  // Makes device memory inaccessible, except to work that declares it, while that work runs. Host code that
  // touches it is named and the process ends; AddressSanitizer builds stop at the byte. options::check_races
  // sets this and also guards pinned pages: a host access before their copy is waited for is only reported.
  bool protect_memory = false;
};

// each level includes those before it
enum class log_level : std::uint8_t { silent, error, warning, info, debug };

struct options {
  size_t device_limit = 0;  // bytes of device memory that weir may reserve on each device; 0: no limit
  // Bytes that weir leaves free on each device for the driver: kernels that are loaded later, their local
  // memory, the first calls of cuBLAS and NCCL. 0: 64 MiB and 1 MiB for each multiprocessor; simulated
  // devices: none. 1: none. A device_limit does not count it.
  size_t driver_reserve = 0;
  // Time after which device memory that stays free goes back to the driver: at an allocation that finds no free
  // block, or when the host has waited for a device, a stream or an event. 0: never. Not with `deterministic`.
  std::chrono::milliseconds device_idle{0};
  // Bytes of page-locked host memory. 0: the host memory available to this process and its control group when
  // weir needs more, minus a reserve for others: an eighth of the host's memory, at most 8 GiB.
  size_t pinned_limit = 0;
  // time after which a pinned allocation returns unused page-locked memory to the system; 0: never
  std::chrono::milliseconds pinned_idle{0};
  size_t address_space = 0;  // bytes of addresses reserved for each device; 0: 16 TiB, halved until it fits
  // Finds races: two declared uses of a byte (launch, copy, tensors) that nothing orders, and memory used
  // before or after its lifetime. race_reports() of weir/observe.h returns them; unqueried ones are printed
  // at the end. What it costs a call: docs/reference/benchmarks.md. WEIR_CHECK_RACES=1 sets it
  // for all runtimes.
  bool check_races = false;
  // Every launch waits for its work, so that errors name the right line. CUDA_LAUNCH_BLOCKING=1 sets it too.
  bool launch_blocking = false;
  // Reports blocks to NVTX tools: compute-sanitizer then finds accesses between two blocks of one page. Adds
  // 256 unused bytes after every block. Implies launch_blocking. No effect on a simulated machine.
  bool nvtx_memory = false;

  // Reserved device memory exceeds the peak in use by at most this share, as long as weir can move free
  // memory instead of growing. Smaller: less idle memory, more moves (docs/explanation/memory.md).
  double epsilon = 0.0195;
  // How far the share may widen while the device has room and moves are frequent (docs/decisions/bound-width.md).
  // 1: up to twice the peak. Not above epsilon: never.
  double widest_epsilon = 1;

  // Reuse of memory that other streams used: docs/decisions/reuse.md.
  bool poll_on_miss = true;  // a miss queries the driver for complete work
  enum class wait_policy : std::uint8_t {
    never,       // no stream waits on the device for another stream's use of memory
    when_short,  // only before out_of_memory
    // also before growth, if at least four blocks that fit wait for a stream that is behind
    before_growth,
  } device_waits = wait_policy::before_growth;
  // bytes freed between two events if a second stream is active; 0: 16 MiB, or a part of the stream's memory
  size_t fence_interval = 0;
  // Streams of a device that get pages of their own at their first block. Small blocks of a later stream come
  // from pages that such streams share, until the stream is busy (docs/decisions/shared-pages.md).
  std::uint32_t streams_with_pages = 16;
  // Block addresses depend only on the program's calls, not on when work is seen to be complete. If their
  // order is fixed, every run has the same addresses, relative to the device's first. Costs memory and
  // overlap.
  bool deterministic = false;
  // After a first copy between two devices or enable_peer_access, opens all their memory to each other if the
  // link test passed: the memory held then, and each later handle before a block of it is handed out.
  // enable_peer_access() does the same explicitly. Such memory is not moved: docs/reference/copies.md
  bool peer_access = false;
  log_level log = log_level::silent;  // see weir/log.h

  // Reads the file that WEIR_CONF_FILE names, then WEIR_CONF=key:value,key:value, with the names above; sizes
  // take KiB, MiB, GiB, TiB (docs/reference/options.md). Throws: invalid_use (unknown key or value) with
  // place and nearest match
  static options from_environment(source_location = source_location::current());
};

class runtime {
 public:
  // Opens the machine that WEIR_DEVICES names: auto (GPUs if any, else simulated), cuda, sim[:N[:SIZE]].
  // Throws: invalid_use (WEIR_DEVICES is none of these), not_supported (cuda without a usable GPU: why)
  explicit runtime(options = options::from_environment(), source_location = source_location::current());
  explicit runtime(simulated, options = {}, source_location = source_location::current());
  // Blocks: until its own streams are done. Memory still held is reported and not freed.
  ~runtime();
  runtime(runtime const&) = delete;

  // This thread's, by a runtime_guard; otherwise the process default, created at first use, never destroyed.
  // Throws: as runtime(), while there is no default
  static runtime& current(source_location = source_location::current());
  bool is_simulated() const noexcept;
  std::string const& description() const noexcept;  // "4 simulated devices of 16 GiB (no GPU: libcuda.so.1 not found)"

  struct impl;
  impl& get() noexcept { return *impl_; }

 private:
  friend std::unique_ptr<runtime> make_runtime(std::unique_ptr<driver::driver>, options, std::string why);
  runtime(std::unique_ptr<driver::driver>, options, std::string why);
  impl* impl_;
};

// Makes `r` current for free functions of this thread. Objects always use their own runtime.
// Requires: destroyed on its thread, in reverse order of construction.
class [[nodiscard]] runtime_guard {
 public:
  explicit runtime_guard(runtime& r) noexcept;
  ~runtime_guard();
  runtime_guard(runtime_guard const&) = delete;

 private:
  runtime* found_;
};

}  // namespace weir
