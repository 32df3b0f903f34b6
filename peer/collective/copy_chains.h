// Broadcasts, scatters and gathers within one program by peer copies on internal streams.
// Threads: any; one set of streams by one thread at a time.
//
//   broadcast   0 -> 1 -> 2 -> 3   in chunks: a hop passes a chunk on while the hop before brings the next.
//                                  Chunks alternate between two streams a hop, so that the link stays busy.
//   scatter     root -> 1, root -> 2, root -> 3   in sequence: the root's links are the limit
//   gather      1 -> root, 2 -> root, 3 -> root   side by side
//
// Invariant: a hop passes a chunk on only after the hop before has brought it. A rank's memory is accessed
// after the earlier work of its stream, and before the later work.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peer/collective/group.h"

namespace weir::peer {

struct rank_request {  // a collective as one rank requested it
  clock::stream_clock* stream = nullptr;
  collective_request what;
  bool captured = false;
};

class chains {  // a part of the runtime
 public:
  static constexpr std::size_t never = ~std::size_t{0}, as_usual = 0;
  // Total bytes from which copies are faster than NCCL (docs/reference/copies.md).
  static constexpr std::size_t usual_from(collective what, std::size_t ranks) noexcept {
    std::size_t const mib = what == collective::scatter  ? 256
                            : what == collective::gather ? 512
                            : ranks > 2                  ? 4096
                                                         : 64;
    return mib << 20;
  }
  static constexpr std::size_t chunk_unit = std::size_t{1} << 20;
  static constexpr std::size_t side_by_side = 2;  // streams of a hop
  // Fixed cost of a chunk and hop, as bytes that the link would carry meanwhile: twice 4 us at 390 GB/s.
  // Twice, because consecutive broadcasts overlap, and only chunks cost them time.
  static constexpr std::size_t chunk_cost = std::size_t{3} << 20;
  // of one broadcast; each takes three operations a stream, and a driver queue holds some hundred
  static constexpr std::size_t most_chunks = 64;

  explicit chains(runtime::impl&);
  ~chains();  // Blocks: until all enqueued copies are done

  // Smaller collectives are not carried here. Default: options::copy_collectives_from. On simulated devices
  // never by default: one thread may enqueue the parts of all ranks there, so no rank may wait.
  // Requires for all setters: no collective is being called.
  std::size_t from(collective what, std::size_t ranks) const noexcept {
    std::size_t const said = from_.load(base::memory_order_relaxed);
    return said == as_usual ? usual_from(what, ranks) : said;
  }
  bool ever() const noexcept { return from_.load(base::memory_order_relaxed) != never; }
  void carry_from(std::size_t bytes) noexcept { from_.store(bytes, base::memory_order_relaxed); }
  // Chunk of a broadcast; 0: by its size.
  void set_chunk(std::size_t bytes) noexcept { chunk_.store(bytes, base::memory_order_relaxed); }
  std::size_t chunk_for(std::size_t bytes, std::size_t hops) const noexcept;

  struct lanes;                                                    // streams on each of several devices
  lanes* lease(std::vector<int> const& devices, source_location);  // Throws: device_lost, driver_error
  void give_back(lanes*) noexcept;                                 // Blocks: no

  // Requires, for both: part k is rank k's, the lanes are of their devices, all parts match and have bytes.
  // Returns: why they cannot be carried; empty if they can. Counts the bytes towards a grant.
  std::string why_not(std::span<rank_request const>, source_location) noexcept;
  // Ensures: every rank's stream is ordered after all accesses to its memory, also on a refusal. A lost
  // device is the exception: memory that it may still access is never reused.
  // Returns: the refusal, if any; the data is then undefined.
  driver::status carry(lanes&, std::span<rank_request const>, source_location) noexcept;
  std::string text_of(std::span<rank_request const>) const;  // "copies: 3 hops, 42 chunks of 25600 KiB"

 private:
  struct state;
  std::unique_ptr<state> state_;
  base::atomic<std::size_t> from_, chunk_{0};
};

}  // namespace weir::peer
