// The checker: a driver in front of any other that computes order from the calls made to it,
// and finds what nothing orders.
// Threads: as the seam; findings may be asked at any time.
// Throws: bad_alloc, where the seam never does: what it knows it keeps in the host's memory.
//
// What it knows: program order of each stream, records and waits, completion that the host asked for and saw,
// and what a witness is told of blocks. A captured graph is judged twice: its own parts against each other
// when they are captured, and as one operation of its stream, after all earlier launches of the same
// executable, when it is launched. It shares no code with the clocks of weir, which it judges as it judges
// programs. Reports are the same for every order that a machine may choose: a program is not excused by what
// happened to be complete, or by a wait that weir happened to insert for itself.
// The host's own uses are those it makes through weir (host_uses), and on a guarded simulated machine all
// that touch the pages of a pinned range which work uses.
// What it cannot know: uses that are not declared, completion seen or order made by bare CUDA calls, order
// between ranks that only a collective makes.
// Streams of other libraries count as ordered with the legacy stream.
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
    race,              // two uses of a byte, one a write, and nothing orders them
    use_after_free,    // of a block that was given back
    freed_in_use,      // given back while a stream that it was not marked for still uses it
    handed_out_early,  // the allocator's fault: memory whose earlier use is not over
    unmapped_in_use,   // weir's fault: pages taken away while work that uses them is not complete
    source_changed,    // host memory changed while a copy was reading it
    early_host,        // the host uses memory that work of a stream uses, and has not waited for that work
    undeclared,        // work uses pinned memory that it does not declare
    stuck,             // the host waits for what cannot come
  };
  kind what{};
  std::string text;    // clear sentences: what, which bytes, both uses, the remedy
  // file_name() null: not known, or there is only one
  source_location first{nullptr, nullptr, 0}, second{nullptr, nullptr, 0};
  std::uint64_t times = 1;  // seen at these two places
};
std::string_view name_of(finding::kind) noexcept;

class control {
 public:
  virtual ~control() = default;
  virtual std::vector<finding> findings() = 0;  // all so far, and they are not printed at the end then
  // Called once for each new finding, on the thread that made the call it was found in, perhaps with locks of
  // weir held: note it, or end the process; no call of weir.
  virtual void on_finding(std::function<void(finding const&)>) = 0;

  struct late_waits {
    std::uint64_t waits = 0;       // inserted by weir to have memory
    std::uint64_t operations = 0;  // that they cover beyond the last use of that memory
  };
  virtual late_waits counted() const = 0;
  virtual std::vector<std::string> census() const = 0;  // made through this driver and never given back

  // For whoever compares other clocks with these: the stream's place now, and what is so about such places.
  virtual epoch position(int device, stream_handle) = 0;
  virtual bool ordered(epoch, int device, stream_handle) = 0;  // before what that stream is given next
  virtual bool complete(epoch) = 0;                            // as the host has seen
};

struct wrapped {
  std::unique_ptr<driver> machine;
  check::control* control;  // lives as long as machine
};
wrapped wrap(std::unique_ptr<driver>);
control* control_of(driver&) noexcept;  // null: no checker stands before that driver

// This thread uses bytes of the host, outside of all work: told to every checker of the process.
enum class host_use : std::uint8_t {
  reads,
  writes,
  takes_span,  // to read some of them now or later: counts as a read of all where one piece of work writes all
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
// What was found and not asked for is printed now: the process is about to end.
void print_all_findings() noexcept;

}  // namespace weir::driver::check
