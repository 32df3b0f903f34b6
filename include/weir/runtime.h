// weir/runtime.h: the object that owns a driver, its devices and their pools; and how a thread chooses one.
// Threads: any, but a runtime must outlive every use of it.
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

struct simulated {  // a machine of this process; see weir/sim.h to step, break and question it
  int devices = 4;
  size_t memory = 16_GiB;  // bytes a device; costs only what is touched
  enum class scheduling : std::uint8_t {
    threads,  // workers run the streams: for programs
    seeded,   // nothing moves by itself; the seed chooses among what devices may do: for finding races
    stepped,  // the test moves streams
  } schedule = scheduling::threads;
  std::uint64_t seed = 0;  // 0: a fresh one
  enum class links : std::uint8_t { all, none, pairs } peers = links::all;  // pairs: 0-1, 2-3, …
  // false: devices without virtual memory management, as some virtual GPUs are:
  // memory comes in whole segments
  bool virtual_memory = true;
  // Of the room CUDA leaves a device, how much this one takes: docs/simulated-machine.md lists it, F1 to F10.
  enum class allowed : std::uint8_t {
    usual,  // seeded: all that a right program cannot tell; else none
    none,   // seeded: orders alone
    all,    // also memory that is refused although there was room, and links that change bytes
  } nondeterminism = allowed::usual;
  // to the hardware, for the streams of a device to share: what cannot start yet holds up the other streams
  // behind it. 0: one each, or as the seed has it
  int connections = 0;
  // Device memory is out of reach but for work that declares it, while it runs: host code that touches it is
  // named, and the process ends there. Programs built with AddressSanitizer are stopped at the byte.
  // options::check_races sets it, and has pinned pages guarded too: a host that uses them before it has
  // waited for their copy is reported, and goes on.
  bool protect_memory = false;
};

// each tells what those before it tell, too
enum class log_level : std::uint8_t { silent, error, warning, info, debug };

struct options {
  size_t device_limit = 0;       // bytes of device memory weir may reserve on each device; 0: no limit
  // Bytes of page-locked host memory. 0: what the host has available when more is wanted, for this process,
  // whose control group may be allowed less, but for an eighth of its memory or 8 GiB,
  // which is left to others.
  size_t pinned_limit = 0;
  // page-locked memory that nobody used for so long goes back to the system at some later allocation of it;
  // 0: never
  std::chrono::milliseconds pinned_idle{0};
  size_t address_space = 0;      // bytes of addresses to reserve for each device; 0: 16 TiB, halved until it fits
  // Races are looked for: two uses of a byte, declared to weir (launch, copy, tensors), that nothing orders,
  // and memory used before or after its time. race_reports() of weir/observe.h; what nobody asks for is
  // printed at the end. A call costs 0.1 to 0.8 us more (docs/testing.md). WEIR_CHECK_RACES=1 means the same,
  // for every runtime of the process.
  bool check_races = false;
  // every launch waits for its work: errors name the right line. CUDA_LAUNCH_BLOCKING=1 means the same
  bool launch_blocking = false;
  // Which bytes are a block is told to tools that listen to NVTX: compute-sanitizer then names what a kernel
  // does between two blocks of one page. 256 B after every block are nobody's. Implies launch_blocking.
  // No effect on a simulated machine.
  bool nvtx_memory = false;

  // Memory held of a device exceeds the most that was ever in use by at most this part of it, as long as free
  // memory can be moved instead of taking more.
  // Less: less memory lies idle, and more is moved. See docs/memory.md
  double epsilon = 0.019;

  // Memory that other streams have used, see docs/decisions/reuse.md.
  bool poll_on_miss = true;  // an allocation that finds nothing asks the driver which of it is complete
  enum class wait_policy : std::uint8_t {
    never,          // no stream is ever made to wait for another one's use of memory
    when_short,     // before out_of_memory
    // also instead of more memory, where four and more blocks that would do wait for a stream that is behind
    before_growth,
  } device_waits = wait_policy::before_growth;
  // bytes given back between two events, with a second stream active; 0:
  // 16 MiB, or a part of what the stream holds
  size_t fence_interval = 0;
  // Where blocks of device memory lie depends on the program's calls alone, not on when work is seen to be
  // complete: the same addresses, counted from the device's first, in every run of a program whose calls come
  // in one order. Costs memory and overlap.
  bool deterministic = false;
  // Bytes in all from which weir's own copies carry a broadcast, scatter or gather, not NCCL; 0: from where
  // they were measured to be faster, on simulated devices never. Where they do, a rank's call waits until all
  // ranks have asked: docs/collectives.md
  size_t copy_collectives_from = 0;
  // Once two devices have something to do with each other (a copy between them, enable_peer_access), all
  // memory of either is open to the other, where the link was proven: what it has by then, and each further
  // handle before a block of it is handed out. enable_peer_access() of weir/peer.h does it at a moment of
  // yours. Such memory is not moved: docs/copies.md
  bool peer_access = false;
  log_level log = log_level::silent;  // what is told while it runs: see weir/log.h

  // The file that WEIR_CONF_FILE names, then WEIR_CONF=key:value,key:value, with the names above; sizes take
  // KiB, MiB, GiB, TiB. docs/options.md lists them. Throws: invalid_use for an unknown key or value, with its
  // place and the nearest right one
  static options from_environment(source_location = source_location::current());
};

class runtime {
 public:
  // The machine WEIR_DEVICES names: auto (GPUs if there are any, else simulated), cuda, sim[:N[:GiB]].
  // Throws: invalid_use (WEIR_DEVICES is none of these), not_supported (cuda,
  // and there is no usable GPU: says why)
  explicit runtime(options = options::from_environment(), source_location = source_location::current());
  explicit runtime(simulated, options = {}, source_location = source_location::current());
  // Blocks: until its own streams are done. Memory still held is reported, not freed under its owner.
  ~runtime();
  runtime(runtime const&) = delete;

  // This thread's, from a runtime_guard; else the process default, made on first use and never destroyed.
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

// Free functions of this thread speak to `r` while this lives; objects always know their own runtime.
// Requires: destroyed on the thread that made it, in reverse order of making.
class [[nodiscard]] runtime_guard {
 public:
  explicit runtime_guard(runtime& r) noexcept;
  ~runtime_guard();
  runtime_guard(runtime_guard const&) = delete;

 private:
  runtime* found_;
};

}  // namespace weir
