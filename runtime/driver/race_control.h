// What weir asks of a race checker in front of a machine, and tells it (simulator/checker is one).
// Threads: any; a control lives as long as its driver.
// Throws: bad_alloc, unlike the driver interface: a checker keeps its records in host memory.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "weir/types.h"

namespace weir::driver::check {

struct finding {
  enum class kind : std::uint8_t {
    race,              // two uses of a byte, at least one a write, that nothing orders
    use_after_free,    // of a freed block
    freed_in_use,      // freed while an unmarked stream still uses it
    handed_out_early,  // a defect of the allocator: memory is reused while an earlier use is in progress
    unmapped_in_use,   // a defect of weir: pages are unmapped while work uses them
    source_changed,    // host memory changed while a copy read it
    early_host,        // the host uses memory that a stream's work still uses
    undeclared,        // work uses pinned memory that it does not declare
    stuck,             // the host waits for something that cannot happen
    possible_race,     // two uses that may meet: at least one is known by a pointer alone. No error by itself
  };
  kind what{};
  std::string text;  // full sentences: the bytes, both uses, the remedy
  // file_name() null: unknown, or there is only one place
  source_location first{nullptr, nullptr, 0}, second{nullptr, nullptr, 0};
  std::uint64_t times = 1;  // occurrences at these two places
};
std::string_view name_of(finding::kind) noexcept;

// A block whose parts weir uses for the program, on a stream of its own: reports give its parts their names, and the
// call that orders the program's use instead of weir's stream.
struct managed_block {
  struct part {
    std::size_t offset = 0, bytes = 0;
    std::string name;  // "gradient \"w\" (gradient 3) in bucket 1"
  };
  std::vector<part> parts;  // by offset; disjoint
  int device = -1;
  stream_handle stream{};                    // weir's
  std::string work;                          // "the reductions of rank 0"
  std::string_view call_before, call_after;  // weir's use comes after the first, the program's after the second
};

// What was not judged so far.
struct unjudged {
  bool direct_work = false;           // CUDA may get work without weir: every machine of GPUs
  std::uint64_t streams = 0;          // whose handles native() handed out
  std::uint64_t events = 0;           // likewise
  std::uint64_t program_streams = 0;  // made by the program, and named to weir
  bool host_pointers = false;         // work used pinned memory that the machine does not guard
  bool system_calls = false;          // pages were closed to them, and nothing tells the machine of them
  // With a watcher of CUDA's calls (control::calls) there is no direct work, and
  bool watched = false;
  std::map<std::string, std::uint64_t> not_understood;  // calls, by the watcher's words
  std::uint64_t missed_calls = 0;                       // the host had no memory to note them
  std::uint64_t forgotten_uses = 0;                     // of blocks with more unfinished uses than are kept
  std::uint64_t unknown_pointers = 0;                   // given to launches, into memory that no call told of
  std::uint64_t suppressed = 0;                         // pairs of uses that a file of suppressions names
  unjudged& operator+=(unjudged const&);
  std::string text() const;  // "Not judged: …"; empty: all was
};

class seen_calls;  // seen_calls.h

// Of one checker: driver::checker() tells which is in front of a machine.
class control {
 public:
  virtual ~control() = default;
  virtual check::unjudged unseen() const = 0;
  virtual std::vector<finding> findings() = 0;  // all so far; they are then not printed at exit
  // Called once per new finding, on the thread that caused it, perhaps under locks: it must not call weir.
  // Blocks: until no other thread runs the old one
  virtual void on_finding(std::function<void(finding const&)>) = 0;

  virtual void manages(void const* block, managed_block) = 0;
  // The stream carries parts of the program's calls, until the program leases it. weir orders the program's streams
  // with it inside these calls, so that reports ask to wait for the stream of the call instead.
  virtual void is_weirs_own(int device, stream_handle) = 0;
  // For a watcher of calls that weir does not make: from this call on, unseen() leaves out what it tells. It lives as
  // long as the control. Null: this checker takes no such calls
  virtual seen_calls* calls() { return nullptr; }
};

// A host use of bytes by this thread, outside any work of a stream. Every checker of the process sees it.
enum class host_use : std::uint8_t {
  reads,
  writes,
  takes_span,  // reads some of them, now or later: a read of all, if one operation writes all
};
namespace detail {
struct all_checkers {  // of the process
  void (*see_host_use)(void const*, std::size_t bytes, host_use, base::site) noexcept;
  void (*print_findings)() noexcept;
};
extern base::atomic<all_checkers const*> checkers;  // lasts as long as the process; null: there is no checker now
}  // namespace detail
inline void host_uses(void const* at, std::size_t bytes, host_use how, char const* operation,
                      source_location where) noexcept {
  if (auto const* const all = detail::checkers.load(base::memory_order_relaxed)) [[unlikely]]
    all->see_host_use(at, bytes, how, {operation, where});
}
// Prints the findings that were never queried. Called before the process ends.
inline void print_all_findings() noexcept {
  if (auto const* const all = detail::checkers.load())
    all->print_findings();
}

}  // namespace weir::driver::check
