// Memory that weir knows beside what its allocators hold: shared with other processes, or the program's own
// and page-locked. How much there is of each device, and what lies where. Who has it (peer/share/exports.h,
// registered_host_memory, floors above) says here what appeared and what went.
// Threads: any. The lock is held over no driver call.
#pragma once
#include <map>
#include <optional>
#include <vector>

#include "runtime/base/sync.h"
#include "weir/runtime.h"
#include "weir/stats.h"

namespace weir::observe {

enum class sharing : std::uint8_t { exported, imported };  // this process's memory, another one's

class external_memory {  // a part of the runtime
 public:
  explicit external_memory(runtime::impl&);
  ~external_memory();
  external_memory(external_memory const&) = delete;
  // A handle was mapped here, or is mapped no more: whole pages, of that device. For want of memory for these
  // books a handle is counted, and is no segment. Requires: pages of one kind do not overlap
  void appeared(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  void vanished(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  // A block in one of them serves somebody, or nobody any more: as often given back as taken. Blocks of
  // another process may overlap: of those at an address the one that reaches furthest counts. For want of
  // memory for these books all of its handle is in use.
  void taken(std::uintptr_t at, std::size_t bytes, std::size_t requested, source_location) noexcept;
  void given_back(std::uintptr_t at) noexcept;

  void opened(std::uintptr_t at, int reader) noexcept;  // that handle: the device may use it, too
  struct block {
    std::uintptr_t at = 0;
    std::size_t bytes = 0, requested = 0;
    source_location from{nullptr, nullptr, 0};
    int holders = 1;
  };
  // Pages of the host were locked for a range of the program's own, which no other one meets.
  // false: no memory for these books
  bool pinned(std::uintptr_t at, std::size_t bytes, source_location) noexcept;
  std::optional<block> unpinned(std::uintptr_t page, std::size_t page_bytes) noexcept;  // the range that begins in it

  struct place {  // where an address lies
    int device = -1;            // -1: of the host
    sharing kind = sharing::exported;
    std::uint64_t readers = 0;  // devices that may use it, a bit each
    bool in_use = false;        // a block there serves somebody
    std::uintptr_t at = 0;      // in use: where that block begins
    std::size_t bytes = 0;      // and how much of it was requested; more, where the books had no memory for it
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
    std::uint64_t readers = 0;  // other devices that may use it, a bit each
    std::vector<block> blocks;  // that serve somebody, by address
  };
  std::vector<segment> segments(int device) const;  // by address

 private:
  struct pages {
    int device;
    std::size_t bytes;
    sharing kind;
    std::uint64_t readers = 0;
    bool partly_known = false;  // some block in it was not booked
    bool overlaps = false;      // some block in it began inside another one
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
