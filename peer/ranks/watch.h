// The ranks of several processes watch each other, over connections that carry nothing else.
// Threads: any, except construction and destruction.
//
//   rank r -> 0   beat (its number of collectives and their trace), arrive, withdraw (a barrier), accuse, gone, unwound
//   0 -> rank r   beat, brought (to a barrier, by a rank), standing (the ranks at the barrier), verdict, gone, unwound
//
// Every rank sends a beat several times within `silence`. Rank 0 decides and tells all, so that all name the
// same rank. Each rank judges rank 0 itself.
// Invariant: the first verdict of a process is its last.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peer/ranks/rendezvous.h"
#include "runtime/base/sync.h"

namespace weir::peer {

class rank_watch {
 public:
  struct limits {
    base::time_limit silence, behind;
    bool compares = false;  // rank 0 compares what the ranks call: for backends that do not, as NCCL
  };
  // `by_rank`: as lines::watch. `on_change` is called after a verdict, after a rank has left and after exceptions
  // ended owners of a rank, on any thread and without locks.
  rank_watch(int rank, int size, std::vector<os::owned_file> by_rank, limits, std::function<void()> on_change);
  ~rank_watch();
  void turn_away_by(std::function<void()> f) { turn_away_ = std::move(f); }  // as met::turn_away. Before start()
  void start(source_location);  // Throws: driver_error (no thread or file left)
  struct transfers {            // with one other rank
    std::uint64_t sent = 0, received = 0;
  };
  // Tells the others that this rank has gone, and what it had called. Blocks: up to a second. Idempotent
  void end(std::span<transfers const> by_rank = {}) noexcept;
  rank_watch(rank_watch const&) = delete;
  rank_watch& operator=(rank_watch const&) = delete;

  // This rank has called that many collectives. `trace`: a hash of all of them, in order. `exceptions`: that ended
  // owners of this rank since the collective before
  void counts(std::uint64_t collectives, std::uint64_t trace = 0, std::uint64_t exceptions = 0) noexcept;
  // This rank launches a graph with that many collectives. exceptions: since the call or launch before
  void launches(std::uint64_t collectives, std::uint64_t exceptions) noexcept;
  void launch_refused(std::uint64_t collectives) noexcept;
  // Tells the others that so many exceptions ended owners of this rank since its last call, after it had met that
  // often. 0: it has called since
  void unwound(std::uint64_t exceptions, std::uint64_t meets, std::span<transfers const> by_rank) noexcept;
  bool any_unwound() const noexcept { return any_unwound_.load(base::memory_order_acquire); }
  bool any_left() const noexcept { return any_left_.load(base::memory_order_acquire); }
  // A rank for whose call this one waits, and that more exceptions ended than this one before its own; -1: none.
  // `exceptions`: of this rank, now. `meets`: it waits in meet() for that time, from 1; 0: it does not
  int unwound_before(std::uint64_t exceptions, std::span<transfers const> own, std::uint64_t meets) const;
  std::string const& own_address() const noexcept { return own_address_; }  // other ranks reach it. Empty: no others
  std::string failure() const;  // why the ranks cannot continue; empty while they can
  bool failed() const noexcept { return failed_.load(base::memory_order_acquire); }
  // Tells all that they cannot continue because of that rank. Without host memory only this rank knows why.
  void accuse(int rank, std::string_view why) noexcept;
  std::vector<int> left_in_order() const;            // whose communicators are destroyed: the first to leave first
  int left_before(std::uint64_t collectives) const;  // the first of them that had not called that many; -1: none
  int left_before_launch() const;  // the first of them that had launched fewer collectives than this rank; -1: none
  // Whether it has left, and this rank has called more transfers with it than it had with this rank.
  bool left_with_less(int rank, transfers own) const;

  // Why ranks meet. They may come for different things: each learns what the others came for.
  enum class round : std::uint32_t { barrier, split, register_pool, save, connect };
  struct offer {
    std::optional<round> is{};  // none: as this rank's
    std::string bytes{};
  };
  // Waits until all ranks have come, and tells each what all have brought: up to 4 KiB. Blocks: up to the limit
  struct at_barrier {
    enum class end : std::uint8_t { all_came, over, late } is = end::all_came;  // over: failed(), or a rank has left
    std::vector<int> missing{};    // late: the ranks that did not come. This rank has not arrived either, then
    std::vector<offer> brought{};  // all_came: by rank
  };
  at_barrier meet(round, base::time_limit, std::string_view brings = {});

 private:
  struct state;
  void labour() noexcept;
  int const rank_, size_;
  limits const limits_;
  std::function<void()> const on_change_;
  std::function<void()> turn_away_;
  std::string own_address_;  // since the constructor
  base::atomic<bool> failed_{false}, ending_{false}, any_unwound_{false}, any_left_{false};
  std::unique_ptr<state> state_;
  base::thread thread_;
};

}  // namespace weir::peer
