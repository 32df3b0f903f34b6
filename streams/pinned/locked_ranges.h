// The program's own memory that registered_host_memory has page-locked. The driver locks whole pages, once: ranges
// that share a page share its registration, which ends with the last of them. A refused unlock, and one beside a
// capture, is retried before the next lock or unlock, and at the end of the runtime.
// Threads: any. Locks and unlocks are one at a time.
//
// Invariant: registrations do not overlap, and cover each range's pages; `holders` counts the ranges on their pages.
#pragma once
#include <map>
#include <vector>

#include "runtime/base/byte_range.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/core/parts.h"
#include "runtime/observe/external_memory.h"

namespace weir::streams {

class locked_ranges {  // a part of the runtime
 public:
  explicit locked_ranges(runtime::impl& r)
      : runtime_(r), clocks_(r.part<clock::clocks>()), books_(r.part<observe::external_memory>()) {}
  ~locked_ranges();  // Blocks: as unlock. Unlocks all: a registered_host_memory may outlive its runtime
  // Throws: bad_alloc; then nothing is locked. Returns: another range that has some of these bytes, and nothing is
  // locked then; else zero bytes and the driver's answer
  driver::result<base::byte_range> lock(base::byte_range own, source_location);
  // Blocks: until all work of all devices is done. Beside a capture it does not wait, and the pages stay locked
  void unlock(base::byte_range own) noexcept;
  // Bytes to the end of the registration that holds the address; none holds it: all there are
  std::size_t left(void const*) const;
  std::vector<std::string> validate() const;  // violated invariants; empty: none

 private:
  // The range that has some of these bytes; none: zero bytes
  base::byte_range range_in(base::byte_range) const;
  struct registration {
    std::size_t bytes;
    int holders;  // 0: the driver has not unlocked it
  };
  using registrations = std::map<driver::address, registration>;
  struct books {
    registrations pages;
    std::map<driver::address, base::byte_range> ranges;
  };
  static base::byte_range whole_pages(base::byte_range) noexcept;
  // Each registration that has some of these pages
  template <class Act>
  static void each_on(registrations&, base::byte_range pages, Act);
  static std::vector<base::byte_range> missing(registrations const&, base::byte_range pages);  // what none has
  std::vector<base::byte_range> enter(base::byte_range own, base::byte_range pages);           // Returns: those to lock
  driver::status lock_each(std::vector<base::byte_range> const& fresh, std::size_t& done);
  void let_go(base::byte_range pages) noexcept;
  void unlock_idle() noexcept;
  bool has_idle() const;
  bool have_come_to_rest();

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  observe::external_memory& books_;
  mutable base::mutex changing_;  // held over waits and the driver's calls
  base::guarded<books> all_;      // never held over one
};

}  // namespace weir::streams
