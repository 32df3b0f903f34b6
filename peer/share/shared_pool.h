// The books of a share_pool: exportable handles cut into blocks, and the state of each range.
// Threads: any. The lock is held over no driver call, and over no system call except on sockets of importers that are done.
//
// Invariants: the ranges of a handle cover it without overlap; no two free ranges are adjacent;
//             the free ranges of unspoilt handles are ordered by size, and the tightest is taken;
//             reserved = allocated + held + cached + lost, in bytes;
//             a range is free only after each importer of its block is done and its streams' uses are complete.
// A block is lost if its importer was killed while it was open: kernels of that process may still write. Its
// handle then serves no new block, and is returned to the driver after its last one.
#pragma once
#include <boost/intrusive/set.hpp>
#include <map>
#include <string>

#include "peer/share/exports.h"

namespace weir::peer {

class WEIR_LOCAL shared_pool {
 public:
  // Throws: as share_pool
  shared_pool(exports&, runtime::impl&, int device, share_pool_options const&, source_location);
  ~shared_pool();  // after its last block: passes its handles to exports, with their blocks' pending uses
  shared_pool(shared_pool const&) = delete;

  // Throws: as exports::take; out_of_memory also beyond the pool's limit
  static std::shared_ptr<exported> allocate(std::shared_ptr<shared_pool> const&, clock::stream_clock& home,
                                            std::size_t bytes, source_location);
  void put_back(std::shared_ptr<exported>) noexcept;  // Blocks: no
  share_pool_statistics statistics();
  std::size_t let_go() noexcept;  // passes unused handles to exports. Returns: bytes
  std::size_t let_go_to_driver() noexcept { return static_cast<void>(let_go()), exports_.forget_idle(); }
  void end() noexcept { ended_.store(true); }  // the runtime ends: no memory is left
  bool ended() const noexcept { return ended_.load(); }
  // Appends the last uses of each freed block without an open importer, oldest first.
  void add_held(std::vector<std::vector<clock::stamp>>& all) const { add_held(*books_.lock(), all); }
  std::vector<std::string> validate() const;  // violated invariants
  int device() const noexcept { return device_; }
  weir::runtime::impl& owner() const noexcept { return runtime_; }

 private:
  struct handle;
  struct range {
    handle* of;
    std::size_t offset, bytes;
    bool free;  // false: taken by a live, held or lost block
    boost::intrusive::set_member_hook<> size{};
  };
  struct tighter {
    // Smaller first; equal sizes: the oldest handle, then the lowest offset.
    bool operator()(range const& a, range const& b) const noexcept;
    bool operator()(range const& a, std::size_t bytes) const noexcept { return a.bytes < bytes; }
  };
  using by_size =
      boost::intrusive::set<range,
                            boost::intrusive::member_hook<range, boost::intrusive::set_member_hook<>, &range::size>,
                            boost::intrusive::compare<tighter>, boost::intrusive::constant_time_size<false>>;
  struct handle {
    std::shared_ptr<exported> pages;      // the whole handle, with the last importers of its blocks
    std::map<std::size_t, range> ranges;  // by offset
    std::size_t blocks = 0, lost = 0;     // live and held; bytes
    std::size_t most_kept = 32;           // number of importers beyond which those without a watch are dropped
    bool spoilt = false;                  // a block of it is lost
  };
  struct books {
    std::map<std::uint64_t, handle> handles;      // by serial
    by_size free;                                 // destroyed before the handles
    std::vector<std::shared_ptr<exported>> held;  // freed, not yet reusable; has capacity for all live blocks
    std::size_t look_again = 32;                  // number of held blocks beyond which an allocation collects
    std::uint64_t changes = 0;                    // increases when room appears, or may appear by a collect()
    std::size_t in_motion = 0;  // threads that create a handle, or look at held blocks and hide them meanwhile
    std::size_t live = 0, reserved = 0, allocated = 0, requested = 0, held_bytes = 0, lost = 0;
  };
  enum class now : std::uint8_t { in_use, free, lost };

  now look(exported&) noexcept;
  void collect() noexcept;  // settles held blocks that are free or lost by now
  static void settle(books&, exported&, now) noexcept;
  static void set_free(books&, handle&, std::size_t offset) noexcept;
  static void shut(books&, handle&) noexcept;  // removes its ranges from the order by size
  static void hand_down(exported& from, exported& to) noexcept;
  static bool cut(books&, exported&);  // takes the smallest free range that fits, in O(log n)
  template <class Which>
  static void take_out(books&, std::vector<handle>& into, Which);
  struct search {
    std::uint64_t seen = 0;  // `changes` before the look at held blocks
    int rounds = 0;
    exports::when_short then = exports::when_short::refuses;
  };
  static void add_held(books const&, std::vector<std::vector<clock::stamp>>&);
  // Blocks: until one held block is complete. Returns: false if that would not help
  bool wait_for_held(search&) noexcept;
  driver::status find_room(exported&, source_location);  // out_of_memory: there is none
  // From what is free now. first_look: notes what it saw
  bool cut_at_once(exported&, search* first_look = nullptr);
  // Adds a handle; does nothing if room may have appeared since the search looked.
  driver::status grow(std::size_t room, search&, source_location);
  std::size_t charge(std::size_t least, search&, driver::status&);
  void refund(std::size_t bytes);
  void add_handle(std::shared_ptr<exported> const&, std::size_t bytes);
  // Blocks: while other threads are in motion; they wait for no thread of this pool. Returns: true if room
  // may have appeared since the search looked. Counts such a round
  bool may_have_room(base::guarded<books>::access&, search&);
  memory_report why_no_room(std::size_t bytes, driver::status last, source_location);

  exports& exports_;
  weir::runtime::impl& runtime_;
  int const device_;
  std::size_t const page_, handle_bytes_, limit_;
  std::vector<int> readers_;
  base::atomic<bool> ended_{false};
  base::guarded<books> books_;
  base::condition moved_;  // in_motion has decreased
};

}  // namespace weir::peer
