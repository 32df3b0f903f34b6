// Pools under a spill: which of them sleeps when memory runs out, and which a call needs awake.
// Threads: any. No lock is held over a driver call, nor while a pool falls asleep or wakes.
// Blocks: for another thread that has the turn. A thread with a hold waits for none.
//
// Invariant: a pool with a hold is awake. A call that began before a pool was added may use it without a hold: the
// pool sleeps only after that call. Only the thread with a device's turn puts its pools to sleep or wakes them.
#pragma once
#include <map>
#include <span>
#include <vector>

#include "streams/api/calls_under_way.h"
#include "streams/api/pool_state.h"
#include "streams/stream/context.h"

namespace weir::streams {

class spills final : memory::pool_spiller {  // a part of the runtime
 public:
  explicit spills(runtime::impl&);
  ~spills() override;
  struct member {
    pool_state* its;
    source_location at;             // the spill's
    std::vector<int> neighbours{};  // devices that may keep its bytes, the first one first
    std::uint64_t last_use = 0;
    int holds = 0;
    int wanted = 0;                  // by calls that wake others for it
    bool stays = false;              // a graph or a collective may use it unseen
    bool falls_asleep = false;       // now: no call begins to use it
    std::uint64_t stayed_awake = 0;  // the last search for room in which it could not sleep
    earlier_calls before{};          // each of them may use it without a hold
  };
  void add(std::span<member const>, source_location);  // Throws: invalid_use
  void remove(std::span<memory::memory_pool const* const>) noexcept;
  static void leave(pool_state const&) noexcept;  // the pool ends

  // Wakes the pools of these addresses together, and holds them for this thread until let_go(). Calls nest.
  // the_end: they stay awake from then on, as after a use in a capture. on: null: the device's current stream
  // Throws: invalid_use (asleep, in a capture or inside another hold), and as pool::wake
  enum class until : bool { let_go, the_end };
  void hold(std::string_view operation, clock::stream_clock* on, std::span<void const* const>, source_location,
            until = until::let_go);
  void let_go() noexcept;

  class [[nodiscard]] turn {  // of a pool's device, if it is under a spill
   public:
    explicit turn(pool_state const&);
    ~turn() {
      if (of_)
        of_->end_turn(device_);
    }
    turn(turn const&) = delete;

   private:
    spills* of_ = nullptr;
    int device_;
  };

 private:
  using set = std::vector<memory::memory_pool*>;
  bool wake(memory::memory_pool&, source_location) override;
  bool make_room(memory_report const&) override;
  bool put_to_sleep(member const&);
  bool is_in_an_earlier_call() const;  // Requires: lock_. This thread
  // Of the pools that may sleep, the one used longest ago; null: none. The pool numbered `but` and those that could
  // not sleep in this search do not count. unheld: nor do those with a hold. Likewise
  member* coldest(int device, std::uint64_t but, std::uint64_t search, bool unheld);
  set under_spill(set) const;       // Requires: lock_
  bool holds_any() const noexcept;  // likewise: this thread
  std::uint64_t& turn_of(int device) noexcept { return turns_[static_cast<std::size_t>(device)]; }  // likewise
  // False: this thread has it already, or it has a hold, and another one has the turn.
  bool take_turn(int device, base::unique_lock&) noexcept;
  void end_turn(int device) noexcept;
  void wake_all(set const&, base::unique_lock&, source_location);
  // Requires: lock_. Whether one of them falls asleep now, or sleeps while another thread has the turn.
  // asleep: gets those that are asleep, for a caller that need not wait
  bool must_wait_for(set const&, std::vector<pool_state*>& asleep);
  // Requires: lock_, and must_wait_for() was false. Returns: devices whose turn this thread did not have yet
  std::vector<int> take_turns(std::vector<pool_state*> const&);
  void note_wanted(set const&, int change);

  runtime::impl& runtime_;
  memory::device_memory& memory_;
  base::mutex lock_;
  base::condition changed_;
  std::map<memory::memory_pool const*, member> members_;  // under lock_, and the following
  std::vector<std::uint64_t> turns_;                      // by device: the thread. 0: none
  std::map<std::uint64_t, std::vector<set>> held_;        // by thread: of each call, the innermost last
  std::uint64_t uses_ = 0, searches_ = 0;
};

// Holds what a call names while it lives. No effect if no pool is under a spill.
class [[nodiscard]] awake {
 public:
  awake(runtime::impl& r, char const* operation, clock::stream_clock* on, std::initializer_list<void const*> what,
        source_location const& at)
      : of_(r.part_if_made<spills>()) {
    if (of_) [[unlikely]]
      of_->hold(operation, on, {what.begin(), what.size()}, at);
  }
  awake(runtime::impl& r, char const* operation, clock::stream_clock* on, std::span<void const* const> what,
        source_location const& at)
      : of_(r.part_if_made<spills>()) {
    if (of_) [[unlikely]]
      of_->hold(operation, on, what, at);
  }
  ~awake() {
    if (of_) [[unlikely]]
      of_->let_go();
  }
  awake(awake const&) = delete;

 private:
  call_under_way const marked_;  // before it asks for a spill
  spills* const of_;
};

}  // namespace weir::streams
