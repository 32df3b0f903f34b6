// A timeline is one stream seen by the clocks: its stamps, its fences and its frontier.
// Threads: any. stamp reading is wait-free; everything else takes this timeline's lock, never two timelines' at once.
//
// A fence k of stream s is an event recorded on s; fences count 1, 2, 3, … A stamp (s, n) taken when n - 1 fences had been
// begun is covered by fence n: all work given to s before the stamp was read is before that fence.
// Invariant: frontier[t] >= n only if everything stamped (t, n) is ordered before whatever this stream is given next.
#pragma once
#include <cstdint>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "runtime/parts.h"

namespace weir::clock {

struct stamp {
  std::uint64_t stream = 0;  // id of a timeline; 0: no stream, always complete and ordered before everything
  std::uint64_t n = 0;
  friend bool operator==(stamp const&, stamp const&) = default;
};

enum class life : std::uint8_t {
  own,      // weir's: fenced lazily
  foreign,  // somebody's, while registered: fenced eagerly when memory is freed on it
  retired,  // its registration has ended: no driver call is made on it any more
};

class timeline {
 public:
  virtual ~timeline() = default;
  std::uint64_t id() const noexcept { return id_; }  // process-wide, never 0, never reused
  int device() const noexcept { return device_; }
  driver::stream_handle handle() const noexcept { return handle_; }
  weir::runtime::impl& owner() const noexcept { return runtime_; }
  virtual life alive() const noexcept = 0;

  // All work given to this stream up to here. No driver call. Ensures: read after whatever the caller did before (acquire).
  virtual stamp now() const noexcept = 0;
  // Records a fence: makes every stamp taken so far observable. One event record.
  virtual driver::result<stamp> fence() = 0;
  // The same with somebody's event (weir::event): the event is the caller's; `now()`'s stamps become ordered for whoever waits on it.
  virtual driver::result<stamp> record(driver::event_handle) = 0;

  // Is everything stamped `s` ordered before whatever this stream is given next? From knowledge alone: no driver call.
  virtual bool covers(stamp s) const = 0;
  // Makes it so: nothing when covered, else (a fence on s.stream if none covers s yet, and) one device wait. Merges s.stream's frontier.
  virtual driver::status wait(stamp s) = 0;
  // The same through an event recorded by record(): `s` is what record() returned.
  virtual driver::status wait(driver::event_handle, stamp s) = 0;

  // A stream that carries work which waits for other ranks (collectives): weir never inserts a wait of its own between two such streams.
  virtual void set_carries_collectives(bool) noexcept = 0;
  virtual bool carries_collectives() const noexcept = 0;

 protected:
  timeline(std::uint64_t id, int device, driver::stream_handle h, weir::runtime::impl& r) noexcept : id_(id), device_(device), handle_(h), runtime_(r) {}
  std::uint64_t const id_;
  int const device_;
  driver::stream_handle const handle_;
  weir::runtime::impl& runtime_;
};

// The timelines of one runtime: a part.
class clocks {
 public:
  explicit clocks(weir::runtime::impl&);
  ~clocks();
  timeline& make(int device, driver::stream_handle, life);  // own or foreign
  void retire(timeline&);       // the end of a registration: a last fence, then no more driver calls on its stream. The object stays, as long as the runtime
  bool complete(stamp) const noexcept;              // known to be complete; no driver call
  driver::result<bool> poll(stamp);                 // the same after asking the driver (a fence is recorded if none covers the stamp)
  driver::status synchronize(stamp);                // Blocks: until complete
  struct counts { std::uint64_t fences = 0, waits = 0, polls = 0; };
  counts counted() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

timeline* find(std::uint64_t id) noexcept;  // of any runtime of this process; null: its runtime is gone, everything stamped there is complete

}  // namespace weir::clock
