// A collective request, the host state that the ranks of one communicator share, and the carrier interface.
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

enum class collective : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, scatter, gather };
std::string_view name_of(collective) noexcept;

struct collective_request {
  collective what = collective::all_reduce;
  dtype type = float32;
  reduce_op how = reduce_op::sum;
  int root = 0;
  // elements of one part: the buffer; `in` of all_gather and gather; `out` of reduce_scatter and scatter
  std::int64_t count = 0;
  void const* in = nullptr;  // equal to out for all_reduce and broadcast. Null: scatter, on a rank that is not its root
  void* out = nullptr;       // null: gather, on a rank that is not its root

  bool reduces() const noexcept { return what == collective::all_reduce || what == collective::reduce_scatter; }
  bool has_root() const noexcept {
    return what == collective::broadcast || what == collective::scatter || what == collective::gather;
  }
  std::size_t part_bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(type); }
  bool matches(collective_request const& other) const noexcept;  // ignores the addresses
  std::string text() const;                           // "all_reduce of 12 float32 (sum)"
  struct own_touches {
    std::array<driver::touch, 2> all{};
    std::size_t first = 0, count = 0;
    operator std::span<driver::touch const>() const noexcept { return {all.data() + first, count}; }
  };
  own_touches touches(std::size_t ranks) const noexcept;  // own memory that one rank's part reads and writes
};

bool reducible(dtype) noexcept;  // all but int16 and boolean, which NCCL lacks

// Carries out a collective that all ranks agreed on: by NCCL, simulated streams, or copies if large.
class collective_backend {
 public:
  virtual ~collective_backend() = default;
  // Enqueues this rank's part of collective `turn` (0, 1, 2, …, equal on all ranks).
  // Blocks: only as NCCL does. Throws: device_lost, driver_error. After a throw nothing is under way, or
  // broken() tells why no rank can continue.
  virtual void issue(int rank, clock::stream_clock& on, std::uint64_t sequence, collective_request const&,
                     source_location) = 0;
  // Why the ranks cannot continue; empty if they can. Checked before each collective. Threads: any
  virtual std::string broken(int rank) = 0;
  virtual void abort() noexcept = 0;            // Threads: any. Idempotent. Ensures: no stream waits for a rank
  virtual void leave(int rank) noexcept = 0;    // ends a rank. Requires: the other ranks issued all that it issued
  // Path of the rank's last collective with a root, and why. Threads: the rank's
  virtual std::string said(int /*rank*/) const { return {}; }
};
std::unique_ptr<collective_backend> carried_by_streams(runtime::impl&, std::vector<int> const& devices);
// Carries large broadcasts, scatters and gathers by copies, all else by the given carrier, `name`.
std::unique_ptr<collective_backend> carried_in_chains(runtime::impl&, std::vector<int> const& devices,
                                                      std::unique_ptr<collective_backend>, char const* name,
                                                      source_location);
// Throws: not_supported, driver_error
std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl&, std::vector<int> const& devices, source_location);

// The host state of a communicator.
// Invariant: the i-th collective of every rank is the same, except for its addresses.
class group {
 public:
  group(runtime::impl&, std::vector<int> devices, std::unique_ptr<collective_backend>);
  // Throws: invalid_use after the runtime has ended
  runtime::impl& owner(std::string_view operation, source_location) const;
  bool ended() const noexcept { return ended_.load(base::memory_order_acquire); }
  int size() const noexcept { return static_cast<int>(devices_.size()); }
  int device(int rank) const noexcept { return devices_[static_cast<std::size_t>(rank)]; }

  stamp issue(int rank, clock::stream_clock& on, collective_request const&, source_location);
  void barrier(int rank, base::time_limit, source_location);
  void abort(int rank) noexcept;
  std::string said(int rank) const { return backend_->said(rank); }
  bool waits(int rank) const noexcept;  // the rank called a collective that others have not called yet
  void leave(int rank) noexcept;
  void runtime_ends() noexcept;  // all ranks leave while the driver still exists

 private:
  struct asked {       // a collective that not all ranks have called yet
    collective_request first;
    int first_rank;
    source_location at;
    int ranks = 0;     // number of ranks that called it
  };
  struct shared {
    std::vector<asked> open;             // open[i] is turn closed + i
    std::uint64_t closed = 0;            // turns that all ranks have called
    std::vector<std::uint64_t> next;     // by rank: its next turn
    std::vector<bool> gone, at_barrier;  // by rank
    std::uint64_t barriers = 0;          // completed
    int aborted_by = -1;
  };
  std::uint64_t agree(int rank, collective_request const&, source_location);
  void withdraw(int rank, collective_request const&,
                source_location) noexcept;  // the rank's last agreement, whose issue failed
  void refuse_if_over(shared const&, int rank, std::string const& operation, source_location) const;

  runtime::impl& runtime_;           // invalid once ended_
  base::atomic<bool> ended_{false};
  std::vector<int> const devices_;
  std::unique_ptr<collective_backend> const backend_;
  base::guarded<shared> shared_;
  base::condition changed_;
};

// Marks the block for the stream. Throws: invalid_use unless all elements are in one block of its device.
void use_on(clock::stream_clock&, device_span, std::string_view operation, std::string_view operand, source_location);

}  // namespace weir::peer

namespace weir {

struct WEIR_LOCAL communicator::state {
  std::shared_ptr<peer::group> all;
  int rank;

  // The thread's current stream of the rank's device.
  clock::stream_clock& stream(std::string_view operation, source_location) const;
  stamp issue(clock::stream_clock& on, peer::collective_request const& r, source_location at) {
    return all->issue(rank, on, r, at);
  }
  ~state();
};

}  // namespace weir
