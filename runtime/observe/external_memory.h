// Memory outside weir's allocators: shared with other processes, or page-locked memory of the program. Upper
// floors (peer/share/exports.h, registered_host_memory) report here what was added and removed.
// Threads: any. The lock is never held during a driver call.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/sync.h"
#include "weir/runtime.h"
#include "weir/stats.h"

namespace weir::observe {

enum class sharing : std::uint8_t { exported, imported };  // memory of this process, of another one

class external_memory {  // a part of the runtime
 public:
  explicit external_memory(runtime::impl&);
  ~external_memory();
  external_memory(external_memory const&) = delete;
  // A handle was mapped or unmapped: whole pages of that device. If there is no host memory for these books,
  // the handle is neither counted nor a segment. Requires: pages of one kind do not overlap
  void appeared(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  void vanished(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  // A block in one of these handles is in use, or no longer; the calls balance. Blocks of another process may
  // overlap: at one address the longest counts. Without host memory for a block, its whole handle counts as
  // in use.
  void taken(std::uintptr_t at, std::size_t bytes, std::size_t requested, source_location) noexcept;
  void given_back(std::uintptr_t at) noexcept;

  void opened(std::uintptr_t at, int reader) noexcept;  // the device may access that handle too
  void sent(std::uintptr_t at) noexcept;                // another process may map it, until it has vanished
  // Of exported handles that no block uses and no other process had: when memory is short they go back to the driver.
  std::size_t idle(int device) const noexcept;
  struct block {
    std::uintptr_t at = 0;
    std::size_t bytes = 0, requested = 0;
    source_location from{nullptr, nullptr, 0};
    int holders = 1;
  };
  // Host pages were locked for a range that overlaps no other one. False: no memory for these books
  bool pinned(std::uintptr_t at, std::size_t bytes, source_location) noexcept;
  std::optional<block> unpinned(std::uintptr_t at) noexcept;  // the range that begins there

  struct place {      // where an address lies
    int device = -1;  // -1: host memory
    sharing kind = sharing::exported;
    std::uint64_t readers = 0;  // bit d: device d may access it
    bool in_use = false;        // in a block that is in use
    std::uintptr_t at = 0;      // in use: the start of the block
    std::size_t bytes = 0;      // in use: its requested bytes, or more if the books had no memory for it
  };
  std::optional<place> find(void const*) const noexcept;
  static std::optional<place> find_in_process(void const*) noexcept;  // in any runtime
  void add_to(int device, memory_statistics&) const;
  void reset_peak(int device);
  void reset_accumulated(int device);
  struct segment {
    std::uintptr_t at = 0;
    std::size_t bytes = 0;
    sharing kind = sharing::exported;
    std::uint64_t readers = 0;  // bit d: device d may access it too
    std::vector<block> blocks;  // in use, by address
  };
  std::vector<segment> segments(int device) const;  // by address

 private:
  struct pages {
    int device;
    std::size_t bytes;
    sharing kind;
    std::uint64_t readers = 0;
    bool was_sent = false;
    bool partly_known = false;  // a block in it was not recorded
    bool overlaps = false;      // a block in it begins inside another one
  };
  struct of_device {
    statistic exported{}, imported{};
  };
  struct books {
    std::vector<of_device> devices;
    std::map<std::uintptr_t, pages> mapped;
    std::map<std::uintptr_t, block> blocks, pins;
  };
  statistic* of(books&, int device, sharing) noexcept;
  base::guarded<books> books_;
};

}  // namespace weir::observe
