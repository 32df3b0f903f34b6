// Both ends of a ring of slots (weir/ring.h), and the socket between them.
// Threads: each end has one. A ring_link also sends from host functions of streams, on threads of the driver.
//
// All slots lie in one exportable_buffer. Item n lies in slot n % slots. Messages name items by number, because
// streams may tell of them in another order:
//   writer: ring (slots, bytes of a slot); item (its number, its bytes); dropped;
//           end or, without close(), unclosed (number of items): no slot is filled again
//   reader: opened; released (number of the item)
// `item` and `released` are sent by host functions, behind the work of the stream that was named. No call waits for
// the device to send them.
// Invariant: the writer gives out a slot only after each of its readers has sent `released` for the item in it. A
// reader gives out an item only after the writer has sent it, and sends `released` for it once.
// A message that would break this is refused, and its sender is given up.
// A link may end without a word while its writer fills slots again. So a reader gives out items behind the end of a
// link only after `end` or `unclosed`.
#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "peer/share/message.h"
#include "runtime/base/sync.h"
#include "weir/ring.h"

namespace weir::peer {

class ring_link {
 public:
  explicit ring_link(int socket) noexcept : socket_(socket) {}
  ~ring_link();  // sends the owed releases
  // Blocks: no. What cannot be sent ends the connection for both. Threads: any
  void send(message_kind, std::uint64_t number = 0, std::uint64_t bytes = 0) const noexcept;
  struct heard {
    os::heard is = os::heard::refused;
    message what{};
    std::string wrong{};  // is message: why it is refused; empty: it is valid, and of a ring
  };
  heard receive(base::time_limit) const;              // Blocks: up to the limit
  void end() const noexcept;                          // for both; the other end still receives what was sent
  void leave() noexcept { (void)socket_.release(); }  // the caller has it again
  // The end of the link releases those items: a bit for each, from `first` on.
  void owe(std::uint64_t first, std::uint64_t items) noexcept { first_owed_ = first, owed_ = items; }

 private:
  owned_file socket_;
  std::uint64_t first_owed_ = 0, owed_ = 0;
};

// A file that a short share_channel may close. Throws: driver_error (no descriptors left)
int duplicate_of(int socket, char const* operation, source_location);
void require_socket(char const* operation, int socket, source_location);                       // Throws: invalid_use
void require_time(char const* operation, std::chrono::milliseconds timeout, source_location);  // Throws: invalid_use
// Throws: invalid_use (ended, or borrowed: its handle may end before the slot or item does)
void require_lasting(char const* operation, stream_ref, source_location);
// Enqueues the message behind the stream's work so far. Throws: as require_lasting and launch_host; nothing is sent
void send_behind(char const* operation, stream_ref, std::vector<std::shared_ptr<ring_link>>, message_kind,
                 std::uint64_t number, std::uint64_t bytes, source_location);
// From one slot to the next. Requires: it does not wrap
constexpr std::size_t stride_of(std::size_t slot_bytes) noexcept {
  return (slot_bytes + granule - 1) / granule * granule;
}

class WEIR_LOCAL written_ring : public std::enable_shared_from_this<written_ring> {
 public:
  written_ring(std::vector<int> const& sockets, ring_options, int device, source_location);
  ~written_ring();
  ring_slot next(std::optional<stream_ref>, source_location);
  void publish(std::uint64_t number, std::size_t bytes, stream_ref after, source_location);
  void give_back(stream_ref) noexcept;  // the slot that is out; its work so far may still write it
  void close(source_location);
  void drop(int reader, source_location);
  std::vector<int> late_readers() const;
  int readers() const noexcept;
  void set_timeout(std::chrono::milliseconds t) noexcept { with_.timeout = t; }

 private:
  struct reader {
    std::shared_ptr<ring_link> link;
    std::uint64_t holds = 0;  // a bit for each slot
    bool opened = false;
    bool left = false;  // dropped, or its end was noticed
  };
  enum class what : std::uint8_t { next_slot, all_slots };  // is waited for
  bool waits_for(reader const&, what) const noexcept;
  std::uint64_t bit(std::uint64_t number) const noexcept { return std::uint64_t{1} << number % stamps_.size(); }
  void require_alive(char const* operation, source_location) const;
  void require_open(char const* operation, source_location) const;
  void require_no_slot(char const* operation, source_location) const;
  void require_readers(char const* operation, source_location) const;
  void listen(what, char const* operation, source_location);
  void wait_for(what, char const* operation, source_location);
  // Returns: false if nothing came. Throws: peer_disconnected, driver_error
  bool hear(std::size_t reader, base::time_limit, char const* operation, source_location);
  bool takes(reader&, message const&) const noexcept;  // Returns: false if no reader of this ring sends it
  void lose(std::size_t reader, std::string const& why, char const* operation, source_location);
  void drop(reader&) noexcept;

  ring_options with_;
  exportable_buffer memory_;
  std::vector<reader> readers_;
  std::vector<stamp> stamps_;  // of each slot: behind the message that tells of its item
  std::uint64_t next_ = 0;
  bool slot_is_out_ = false;
  stamp unpublished_{};  // work on slots that were given back
  bool ended_ = false, closed_ = false;
};

class WEIR_LOCAL read_ring : public std::enable_shared_from_this<read_ring> {
 public:
  read_ring(int socket, int device, std::chrono::milliseconds timeout, source_location);
  ~read_ring();
  std::optional<ring_item> take(std::optional<stream_ref>, source_location);
  void release(std::uint64_t number, stream_ref last_use, source_location);
  void postpone(std::uint64_t number, stream_ref last_use) noexcept;  // a release that was refused
  void set_timeout(std::chrono::milliseconds t) noexcept { timeout_ = t; }

 private:
  enum class state : std::uint8_t { empty, arrived, taken, postponed };
  struct slot {
    state is = state::empty;
    std::size_t bytes = 0;  // arrived: of its item
    stamp released{};       // behind the message that releases its last item
    int device = -1;        // postponed: whose work may still read it
  };
  std::uint64_t first_under_way() const noexcept { return next_ - std::min<std::uint64_t>(next_, slots_.size()); }
  slot& of(std::uint64_t number) noexcept { return slots_[number % slots_.size()]; }
  bool is_open() const noexcept { return !slots_.empty(); }
  bool has_next() noexcept { return of(next_).is == state::arrived || end_ == next_; }
  void open(std::int64_t end, source_location);
  void receive_memory(std::int64_t end, source_location);
  void make_room_for_next(source_location);
  void listen(source_location);  // Throws: peer_disconnected: a slot may be filled again
  void wait_for_next(std::int64_t end, source_location);
  void require_link(source_location) const;  // Throws: peer_disconnected
  [[noreturn]] void throw_disconnected(source_location) const;
  [[noreturn]] void throw_nothing_came(source_location) const;
  void release_postponed(source_location);
  bool hear(base::time_limit, source_location);  // Returns: false if nothing came
  bool takes(message const&);                    // Returns: false if no writer of this ring sends it
  bool takes_ring(message const&);               // likewise
  bool takes_end(message const&);                // likewise
  void give_up() noexcept;
  [[noreturn]] void refuse(std::string const& why, source_location);

  int const device_;
  std::chrono::milliseconds timeout_;
  std::optional<share_channel> line_{};  // on the same socket, until the ring is open
  std::shared_ptr<ring_link> link_;
  imported_buffer memory_;  // keeps link_ until no work reads it
  std::size_t slot_bytes_ = 0;
  std::vector<slot> slots_;
  std::uint64_t next_ = 0;
  std::uint64_t seen_ = 0;              // behind the last item that has arrived
  std::optional<std::uint64_t> end_{};  // the number of items: no slot is filled again
  bool closed_ = false;                 // by close()
  bool dropped_ = false, gone_ = false;
};

}  // namespace weir::peer
