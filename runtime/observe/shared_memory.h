// Memory that is shared with other processes, beside what the allocator holds: how much there is of each device, and what lies where.
// Who shares it (peer/share.h, floors above) says here what appeared and what went.
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

class shared_memory {  // a part of the runtime
 public:
  explicit shared_memory(runtime::impl&) {}
  // A handle was mapped here, or is mapped no more: whole pages, of that device. For want of memory for these books a handle is
  // counted, and is no segment. Requires: pages of one kind do not overlap
  void appeared(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  void vanished(int device, sharing, std::uintptr_t at, std::size_t bytes) noexcept;
  // A block in one of them serves somebody, or nobody any more.
  void taken(std::uintptr_t at, std::size_t bytes, std::size_t requested, here) noexcept;
  void given_back(std::uintptr_t at) noexcept;

  void opened(std::uintptr_t at, int reader) noexcept;  // that handle: the device may use it, too
  struct place {  // where an address lies
    int device = -1;
    sharing kind = sharing::exported;
    std::uint64_t readers = 0;  // devices that may use it, a bit each
    bool in_use = false;        // a block there serves somebody
  };
  std::optional<place> find(void const*) const;
  void add_to(int device, memory_statistics&) const;
  void reset_peak(int device);
  void reset_accumulated(int device);
  struct block {
    std::uintptr_t at = 0;
    std::size_t bytes = 0, requested = 0;
    here from{nullptr, nullptr, 0};
  };
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
  };
  struct of_device {
    stat exported{}, imported{};
  };
  struct books {
    std::vector<of_device> devices;
    std::map<std::uintptr_t, pages> mapped;
    std::map<std::uintptr_t, block> blocks;
  };
  stat* of(books&, int device, sharing) noexcept;
  base::guarded<books> books_;
};

}  // namespace weir::observe
