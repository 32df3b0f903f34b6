// Broadcasts, scatters and gathers of the devices of one program by copies of weir's own,
// on streams of its own.
// Threads: any; a set of streams by one thread at a time.
//
//   broadcast   0 -> 1 -> 2 -> 3   in chunks: while one hop passes a chunk on, the hop before it brings the
//                                  next; chunks take turns on two streams a hop, so that a link carries one
//                                  while the next is being ordered
//   scatter     root -> 1, root -> 2, root -> 3   one after the other, for the root's links are the limit
//   gather      1 -> root, 2 -> root, 3 -> root   side by side
//
// Invariant: a hop passes a chunk on when the hop before has brought it, and a rank's memory is touched only
// after what its stream was given before and before what that is given later.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peer/collective/group.h"

namespace weir::peer {

struct rank_part {  // of a collective, as its rank asked for it
  clock::timeline* line = nullptr;
  request what;
  bool captured = false;
};

class chains {  // a part of the runtime
 public:
  static constexpr std::size_t never = ~std::size_t{0}, as_usual = 0;
  // Bytes in all from which copies were faster than NCCL 2.28 on four H200s (docs/copies.md): its first chunk
  // arrives sooner, and its rings carry a broadcast to several ranks as fast up to a few GiB.
  static constexpr std::size_t usual_from(verb what, std::size_t ranks) noexcept {
    std::size_t const mib = what == verb::scatter ? 256 : what == verb::gather ? 512 : ranks > 2 ? 4096 : 64;
    return mib << 20;
  }
  static constexpr std::size_t chunk_unit = std::size_t{1} << 20;
  static constexpr std::size_t side_by_side = 2;                        // streams of a hop
  // What a chunk costs a hop beside its bytes, in bytes that the link would carry meanwhile: 4 us at 390
  // GB/s, twice, for broadcasts that follow one another overlap, and chunks are all that they pay for.
  static constexpr std::size_t chunk_cost = std::size_t{3} << 20;
  // of one broadcast: three operations each for a stream, and a driver has room for some hundred
  static constexpr std::size_t most_chunks = 64;

  explicit chains(runtime::impl&);
  ~chains();  // Blocks: until what was carried is done

  // Collectives of fewer bytes in all are not carried here. As it begins: options::copy_collectives_from. On
  // simulated devices: never, unless somebody says else, for there one thread may give the parts of all
  // ranks, and none waits. Requires for all setters: no collective is being asked for
  std::size_t from(verb what, std::size_t ranks) const noexcept {
    std::size_t const said = from_.load(base::memory_order_relaxed);
    return said == as_usual ? usual_from(what, ranks) : said;
  }
  bool ever() const noexcept { return from_.load(base::memory_order_relaxed) != never; }
  void carry_from(std::size_t bytes) noexcept { from_.store(bytes, base::memory_order_relaxed); }
  // Of a broadcast; 0: as suits its size.
  void set_chunk(std::size_t bytes) noexcept { chunk_.store(bytes, base::memory_order_relaxed); }
  std::size_t chunk_for(std::size_t bytes, std::size_t hops) const noexcept;

  struct lanes;  // streams on each of some devices
  lanes* lease(std::vector<int> const& devices, source_location);  // Throws: device_lost, driver_error
  void give_back(lanes*) noexcept;                      // Blocks: no

  // Requires, for both: part k is rank k's, lanes are of their devices, all parts match, and something is to
  // be copied. Why these cannot be carried, "" when they can. Makes them likelier to next time:
  // memory that much is copied to is opened.
  std::string why_not(std::span<rank_part const>, source_location) noexcept;
  // Ensures: every rank's line is ordered after all that touches its memory, also when something was refused,
  // but for what a lost device still does: that memory serves nobody any more.
  // Returns: what was refused; the data is arbitrary then.
  driver::status carry(lanes&, std::span<rank_part const>, source_location) noexcept;
  std::string text_of(std::span<rank_part const>) const;  // "copies: 3 hops, 42 chunks of 25 MiB"

 private:
  struct state;
  std::unique_ptr<state> state_;
  base::atomic<std::size_t> from_, chunk_{0};
};

}  // namespace weir::peer
