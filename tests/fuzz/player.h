// Plays a program on one machine in an order that no machine may change. Events order conflicting uses of
// memory, no call waits for work behind a closed gate, and answers that depend on time count as equal.
// Threads: one. Host functions run on the machine's.
#pragma once
#include <map>
#include <mutex>

#include <array>
#include <memory>

#include "runtime/driver/driver.h"
#include "tests/fuzz/program.h"

namespace weir::fuzz {

// Calls that both machines of a comparison support. CUDA does not survive some, or cannot detect them.
struct limits {
  int devices = 2;
  bool stale_streams = true;   // calls with destroyed or invalid streams and events
  bool others_streams = true;  // a stream with another device's number
  // another device's segment in a copy or fill, which CUDA accepts and weir never uses
  bool others_segments = true;
};

struct outcome {
  std::vector<std::string> answers;  // of each call; "-": not made
  std::vector<std::string> ends;     // logs of host functions, and final bytes
};
// Returns: the first difference, in words; empty: none.
std::string difference(program const&, outcome const&, outcome const&);

class player {
 public:
  player(driver::driver&, limits);
  ~player();
  outcome play(program const&);

 private:
  using address = driver::address;
  using status = driver::status;
  struct stream_slot {
    driver::stream_handle handle{};
    int device = 0, log = -1;
    bool alive = false, ever = false;
    std::uint32_t held = 0;  // by which gates, one bit each
    enum class kind : std::uint8_t { independent, blocking, legacy } joins = kind::independent;
    std::uint32_t held_by_ended = 0;  // legacy stream: by destroyed blocking streams
  };
  struct event_slot {
    driver::event_handle handle{};
    int device = 0;
    bool alive = false, ever = false, recorded = false;
    std::uint32_t held = 0;
    int on = -1, turn = 0;  // stream and time of the last record
  };
  struct range_slot {
    address at = 0;
    std::size_t bytes = 0;
    int device = 0;
    bool alive = false, ever = false;
    int gone = 0;  // number of addresses handed out when it ended; until the next, none reuses it
  };
  struct handle_slot {
    driver::memory_handle handle{};
    std::size_t bytes = 0;
    int device = 0;
    bool alive = false, ever = false;
    int gone = 0;
  };
  struct content {                // of physical memory, wherever it is mapped
    int stream = -1;              // the last user; -1: none or destroyed
    driver::event_handle tail{};  // then the end of that stream
    int tail_device = 0;
    std::uint32_t held = 0;
    bool filled = false;
  };
  struct area {  // a mapping of it
    address at = 0;
    std::size_t bytes = 0;
    int device = -1;  // -1: pinned
    std::uint32_t granted = 0;
    std::shared_ptr<content> of;
  };
  struct where_to {
    address at = 0;
    int device = 0;
  };

  std::string make(call const&);
  std::string memory_call(call const&);
  std::string stream_call(call const&);
  std::string work_call(call const&);
  std::string kernel_call(call const&, stream_slot&);
  std::string graph_call(call const&, stream_slot&);  // a whole capture, and its launches
  void given(stream_slot&);                           // notes work; gates of streams that it joins hold it too
  std::uint32_t holds(stream_slot const&) const;      // gates that may block a host wait for it
  stream_slot& legacy_of(int device) { return streams_[made_streams + static_cast<std::size_t>(device)]; }
  std::vector<area*> usable(int device);  // by that device's work
  std::string say(status) const;
  std::string settled(status, std::uint32_t held) const;  // ok and not ready are equal if only time decides
  int device_of(int n, int right) const;
  std::size_t size_of(int n, int twist) const;
  where_to place(int area, int offset, int twist, std::size_t bytes);
  std::vector<area*> under(address, std::size_t bytes);
  // Orders `stream` behind the areas' last uses. Returns: gates that then hold it.
  std::uint32_t order(std::vector<area*> const&, int stream);
  bool of_others_segment(where_to const&, int device) const;
  bool idle(area&);  // waits for its last use; false: a gate holds it
  void use(std::vector<area*> const&, int stream);
  void first_bytes(area&);
  void leave_content(content&, stream_slot&);
  driver::event_handle tail_of(stream_slot const&);
  bool is_unused(range_slot const& r) const { return !r.alive && r.ever && r.gone == given_addresses_; }
  bool stands(handle_slot const& h) const { return h.alive || !h.ever || h.gone == given_handles_; }
  bool ends_reservation(area const&) const;  // the bytes beyond are the machine's choice
  bool any_held() const { return closed_ != 0; }
  void finish(outcome&);
  void take_down();

  driver::driver& machine_;
  limits const may_;
  std::size_t const unit_;
  static constexpr std::size_t made_streams = 5, most_devices = 2;
  std::array<stream_slot, made_streams + most_devices> streams_;  // the last ones are legacy streams
  std::array<event_slot, 5> events_;
  std::array<range_slot, 3> reservations_;
  std::array<range_slot, 2> segments_, pins_;
  std::array<handle_slot, 4> handles_;
  std::array<std::shared_ptr<content>, 4> contents_;
  std::array<driver::gate_handle, 6> gates_{};
  std::uint32_t closed_ = 0;  // one bit each
  std::vector<area> areas_;
  std::vector<driver::stream_handle> own_;  // one stream a device that no gate ever holds
  std::vector<std::pair<int, driver::event_handle>> tails_;
  std::array<void*, 2> host_{};
  unsigned char* window_ = nullptr;  // pinned, to read bytes through
  std::mutex mutex_;
  std::vector<std::vector<int>> logs_;  // of all streams ever created
  int given_addresses_ = 0, given_handles_ = 0;
  int dropped_ = 0, given_ = 0, inside_ = 0, turns_ = 0;
};

}  // namespace weir::fuzz
