// A share_pool's books: handles that can be exported, cut into blocks;
// which range serves whom, which waits for an importer or a stream.
// Threads: any. The lock is held over no driver call and,
// but for looking at loans that are over, no call of the system.
//
// Invariants: the free and taken ranges of a handle lie side by side and are all of it,
// no two free ones next to each other;
//             what is free of a handle that is not spoilt is in the order by size, from which the tightest is
//             taken; reserved = allocated + held + cached + lost, in bytes;
//             a range is free only when each loan of the block that was there is over and its own streams are
//             there.
// A block whose importer was killed with it open is lost: kernels of that process may still write there. Its
// handle serves no new block from then on, and goes to the driver after its last one.
#pragma once
#include <boost/intrusive/set.hpp>
#include <map>
#include <string>

#include "peer/share/exports.h"

namespace weir::peer {

class pool_books {
 public:
  // Throws: as share_pool
  pool_books(exports&, runtime::impl&, int device, share_pool_options const&, source_location);
  ~pool_books();  // after its last block: its handles are exports' from now on, with what their blocks wait for
  pool_books(pool_books const&) = delete;

  // Throws: as exports::take; out_of_memory also beyond the pool's limit
  static std::shared_ptr<exported> allocate(std::shared_ptr<pool_books> const&, clock::timeline& home,
                                            std::size_t bytes, source_location);
  void put_back(std::shared_ptr<exported>) noexcept;  // Blocks: no
  share_pool_statistics statistics();
  std::size_t let_go() noexcept;             // handles that serve nobody are exports' from now on. Returns: bytes
  std::size_t let_go_to_driver() noexcept { return static_cast<void>(let_go()), exports_.forget_idle(); }
  void end() noexcept { ended_.store(true); }  // the runtime does: nothing is here any more
  bool ended() const noexcept { return ended_.load(); }
  // the last uses of each block that was given back and no importer has, the oldest first
  void add_held(std::vector<std::vector<clock::stamp>>& all) const { add_held(*books_.lock(), all); }
  std::vector<std::string> validate() const;   // what of the invariants does not hold
  int device() const noexcept { return device_; }
  weir::runtime::impl& owner() const noexcept { return runtime_; }

 private:
  struct handle;
  struct range {
    handle* of;
    std::size_t offset, bytes;
    bool free;                                // else: taken by what is live, held or lost
    boost::intrusive::set_member_hook<> size{};
  };
  struct tighter {
    // the smaller; of equals the lowest of the oldest handle
    bool operator()(range const& a, range const& b) const noexcept;
    bool operator()(range const& a, std::size_t bytes) const noexcept { return a.bytes < bytes; }
  };
  using by_size =
      boost::intrusive::set<range,
                            boost::intrusive::member_hook<range, boost::intrusive::set_member_hook<>, &range::size>,
                            boost::intrusive::compare<tighter>, boost::intrusive::constant_time_size<false>>;
  struct handle {
    std::shared_ptr<exported> pages;          // of the whole, with the last loans of its blocks
    std::map<std::size_t, range> ranges;      // by offset
    std::size_t blocks = 0, lost = 0;         // live and held; bytes
    std::size_t most_kept = 32;               // loans, before those that nobody watches are looked for
    bool spoilt = false;                      // something of it is lost
  };
  struct books {
    std::map<std::uint64_t, handle> handles;      // by serial
    by_size free;                                 // ends before them
    std::vector<std::shared_ptr<exported>> held;  // given back, and not yet free; with room for all that are live
    std::size_t look_again = 32;                  // at what is held, when it is more
    std::uint64_t changes = 0;                    // there is more room, or may be once somebody looks
    std::size_t in_motion = 0;  // threads that make a handle or look at what is held: nobody else finds that
    std::size_t live = 0, reserved = 0, allocated = 0, requested = 0, held_bytes = 0, lost = 0;
  };
  enum class now : std::uint8_t { in_use, free, lost };

  now look(exported&) noexcept;
  void collect() noexcept;                      // what is held, and is free or lost by now
  static void settle(books&, exported&, now) noexcept;
  static void set_free(books&, handle&, std::size_t offset) noexcept;
  static void shut(books&, handle&) noexcept;   // its ranges leave the order by size
  static void hand_down(exported& from, exported& to) noexcept;
  static bool cut(books&, exported&);  // from the smallest free range that it fits in, found in some log n steps
  template <class Which>
  static void take_out(books&, std::vector<handle>& into, Which);
  struct search {
    std::uint64_t seen = 0;  // changes, before it looked at what is held
    int rounds = 0;
    exports::when_short then = exports::when_short::refuses;
  };
  static void add_held(books const&, std::vector<std::vector<clock::stamp>>&);
  // Blocks: until what is held of one block is complete. false: that would not help
  bool wait_for_held(search&) noexcept;
  // or nothing, when there may be room since it looked
  void grow(std::size_t bytes, std::size_t room, search&, source_location);
  // Blocks: while other threads are in motion, who wait for none of this pool. Returns:
  // there may be room since it looked.
  bool has_more(base::guarded<books>::access&, search&);
  [[noreturn]] void refuse(std::size_t bytes, std::size_t reserved, source_location);

  exports& exports_;
  weir::runtime::impl& runtime_;
  int const device_;
  std::size_t const page_, handle_bytes_, limit_;
  std::vector<int> readers_;
  base::atomic<bool> ended_{false};
  base::guarded<books> books_;
  base::condition moved_;  // fewer are in motion
};

}  // namespace weir::peer
