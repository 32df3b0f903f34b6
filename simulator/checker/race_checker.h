// The race checker: a driver decorator that computes the order of work and reports unordered conflicts.
// Threads: as the driver interface. findings() is callable at any time.
// Throws: bad_alloc, unlike the driver interface: the checker keeps its records in host memory.
//
// It knows program order, records and waits, completion that the host saw, and blocks from the allocation observer.
// A captured graph is checked twice: part against part, and as one operation of its stream at each launch.
// Accidental completion and weir's own waits do not count as order: all schedules give equal reports.
// Host uses: those through weir (host_uses), and on a guarded machine all accesses to pages that work uses.
// Unknown: undeclared uses, direct CUDA calls, and order between ranks that only a collective makes. A
// text that says "no error" names what is unknown, too (unjudged).
// The legacy stream comes before and after the blocking streams of its device, and no other.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "simulator/checker/vector_clock.h"
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
  unjudged& operator+=(unjudged const&) noexcept;
  std::string text() const;  // "Not judged: …"; empty: all was
};

class control {
 public:
  virtual ~control() = default;
  virtual check::unjudged unseen() const = 0;
  virtual std::vector<finding> findings() = 0;  // all so far; they are then not printed at exit
  // Called once per new finding, on the thread that caused it, perhaps under locks: it must not call weir.
  virtual void on_finding(std::function<void(finding const&)>) = 0;

  struct late_waits {
    std::uint64_t waits = 0;       // inserted by weir to reuse memory
    std::uint64_t operations = 0;  // that they cover after the last use of that memory
  };
  virtual late_waits counted() const = 0;
  virtual std::vector<std::string> census() const = 0;  // objects made through this driver and not released

  virtual void manages(void const* block, managed_block) = 0;
  // The stream carries parts of the program's calls, until the program leases it. weir orders the program's streams
  // with it inside these calls, so that reports ask to wait for the stream of the call instead.
  virtual void is_weirs_own(int device, stream_handle) = 0;

  // For comparison with other clocks: the stream's current position, and facts about such positions.
  virtual epoch position(int device, stream_handle) = 0;
  virtual bool ordered(epoch, int device, stream_handle) = 0;  // before the next work of that stream
  virtual bool complete(epoch) = 0;                            // seen by the host
};

struct wrapped {
  std::unique_ptr<driver> machine;
  check::control* control;  // lives as long as machine
};
wrapped wrap(std::unique_ptr<driver>);
control* control_of(driver&) noexcept;  // null: no checker in front of that driver

// A host use of bytes by this thread, outside any work of a stream. Every checker of the process sees it.
enum class host_use : std::uint8_t {
  reads,
  writes,
  takes_span,  // reads some of them, now or later: a read of all, if one operation writes all
};
namespace detail {
extern base::atomic<int> checkers;
void tell_host_use(void const*, std::size_t bytes, host_use, base::site) noexcept;
}  // namespace detail
inline void host_uses(void const* at, std::size_t bytes, host_use how, char const* operation,
                      source_location where) noexcept {
  if (detail::checkers.load(base::memory_order_relaxed) > 0) [[unlikely]]
    detail::tell_host_use(at, bytes, how, {operation, where});
}
// Prints the findings that were never queried. Called before the process ends.
void print_all_findings() noexcept;

}  // namespace weir::driver::check
