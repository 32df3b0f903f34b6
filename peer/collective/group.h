// A collective as its ranks ask for it, what the ranks of one communicator share on the host,
// and who carries it out.
// Threads: any; each rank by one thread at a time.
#pragma once
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/clock/stream_clock.h"
#include "weir/collective.h"

namespace weir::peer {

enum class verb : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, scatter, gather };
std::string_view name_of(verb) noexcept;

struct request {
  verb what = verb::all_reduce;
  dtype type = float32;
  reduce_op how = reduce_op::sum;
  int root = 0;
  // elements of one part: the whole buffer; all_gather's and gather's in; reduce_scatter's and scatter's out
  std::int64_t count = 0;
  void const* in = nullptr;  // equal to out for all_reduce and broadcast. Null: scatter, on a rank that is not its root
  void* out = nullptr;       // null: gather, on a rank that is not its root

  bool reduces() const noexcept { return what == verb::all_reduce || what == verb::reduce_scatter; }
  bool has_root() const noexcept { return what == verb::broadcast || what == verb::scatter || what == verb::gather; }
  std::size_t part_bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(type); }
  bool matches(request const& other) const noexcept;  // but for the addresses
  std::string text() const;                           // "all_reduce of 12 float32 (sum)"
  struct own_touches {
    std::array<driver::touch, 2> all{};
    std::size_t first = 0, count = 0;
    operator std::span<driver::touch const>() const noexcept { return {all.data() + first, count}; }
  };
  own_touches touches(std::size_t ranks) const noexcept;  // what one rank's part reads and writes of its own
};

bool reducible(dtype) noexcept;  // all but int16 and boolean, for NCCL knows neither

// Carries out what all ranks have agreed on. NCCL's, or parts on simulated streams;
// before it, one that has chains for large data.
class carrier {
 public:
  virtual ~carrier() = default;
  // Enqueues this rank's part of collective `turn` (0, 1, 2, … the same on all ranks).
  // Blocks: only as NCCL does.
  // Throws: device_lost, driver_error: then nothing is under way, or broken() says why no rank can go on.
  virtual void issue(int rank, clock::timeline& on, std::uint64_t turn, request const&, source_location) = 0;
  // What keeps the ranks from going on, "" when nothing does: asked before each collective. Any thread.
  virtual std::string broken(int rank) = 0;
  virtual void abort() noexcept = 0;            // any thread; idempotent. Ensures: no stream waits for a rank any more
  virtual void leave(int rank) noexcept = 0;    // the end of a rank. Requires: it issued nothing that others have not
  // by what way the rank's last collective with a root went, and why. Threads: the rank's
  virtual std::string said(int /*rank*/) const { return {}; }
};
std::unique_ptr<carrier> carried_by_streams(runtime::impl&, std::vector<int> const& devices);
// Large broadcasts, scatters and gathers by weir's own copies, all else by that one. `name`: of that one.
std::unique_ptr<carrier> carried_in_chains(runtime::impl&, std::vector<int> const& devices, std::unique_ptr<carrier>,
                                           char const* name, source_location);
// Throws: not_supported, driver_error
std::unique_ptr<carrier> carried_by_nccl(runtime::impl&, std::vector<int> const& devices, source_location);

// The ranks' meeting place on the host.
// Invariant: the i-th collective of every rank is the same but for its addresses.
class group {
 public:
  group(runtime::impl&, std::vector<int> devices, std::unique_ptr<carrier>);
  // Throws: invalid_use, once the runtime has ended
  runtime::impl& owner(std::string_view operation, source_location) const;
  bool ended() const noexcept { return ended_.load(base::memory_order_acquire); }
  int size() const noexcept { return static_cast<int>(devices_.size()); }
  int device(int rank) const noexcept { return devices_[static_cast<std::size_t>(rank)]; }

  stamp issue(int rank, clock::timeline& on, request const&, source_location);
  void barrier(int rank, base::time_limit, source_location);
  void abort(int rank) noexcept;
  std::string said(int rank) const { return carrier_->said(rank); }
  bool waits(int rank) const noexcept;  // it asked for something that others have not asked for yet
  void leave(int rank) noexcept;
  void runtime_ends() noexcept;  // all ranks leave, while there is a machine to leave

 private:
  struct asked {       // one collective that not all ranks have asked for yet
    request first;
    int first_rank;
    source_location at;
    int ranks = 0;     // how many have
  };
  struct shared {
    std::vector<asked> open;             // open[i] is turn closed + i
    std::uint64_t closed = 0;            // turns that all ranks have asked for
    std::vector<std::uint64_t> next;     // of each rank: its next turn
    std::vector<bool> gone, at_barrier;  // of each rank
    std::uint64_t barriers = 0;          // completed
    int aborted_by = -1;
  };
  std::uint64_t agree(int rank, request const&, source_location);
  void withdraw(int rank, request const&, source_location) noexcept;  // the rank's last agreement, whose issue failed
  void refuse_if_over(shared const&, int rank, std::string const& operation, source_location) const;

  runtime::impl& runtime_;           // dangles once ended_
  base::atomic<bool> ended_{false};
  std::vector<int> const devices_;
  std::unique_ptr<carrier> const carrier_;
  base::guarded<shared> shared_;
  base::condition changed_;
};

// Throws invalid_use unless all of the elements lie in one block of that device.
// Marks the block for the stream.
void use_on(clock::timeline&, device_span, std::string_view operation, std::string_view operand, source_location);

}  // namespace weir::peer

namespace weir {

struct communicator::state {
  std::shared_ptr<peer::group> all;
  int rank;

  // the thread's current stream of the rank's device
  clock::timeline& line(std::string_view operation, source_location) const;
  stamp issue(clock::timeline& on, peer::request const& r, source_location at) { return all->issue(rank, on, r, at); }
  ~state();
};

}  // namespace weir
