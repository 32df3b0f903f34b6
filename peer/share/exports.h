// The two halves of sharing with other processes:
// blocks this process lends, and blocks of others it has mapped.
// Threads: any. No lock is held over a driver call but `opening_`, under which nobody allocates.
//
// A block is lent once for each time it is sent. With it goes one end of a socket, the loan's life:
//   the owner says `lent` once, before it sends; to open, an importer takes that word, so that each loan is
//   opened once; the importer says `opened` before it maps anything, and `released` when its work is done
//   with the memory; the kernel closes its end when the process is gone, whatever killed it.
// Invariant: a block serves another exportable_buffer only when each of its loans is over: released, or
// closed without having been opened. One that was opened and then closed without a word belonged to a process
// that was killed, and whose kernels may still run:
// its memory goes to the driver instead, which keeps it as long as it is mapped anywhere.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "peer/link/mapped_handle.h"
#include "peer/link/openable_memory.h"
#include "peer/share/message.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "weir/share.h"

namespace weir::peer {

enum class word : std::uint8_t { lent = 'l', opened = 'o', released = 'r' };  // on a loan: the first is its owner's
os::heard say(owned_file const& life, word) noexcept;

class loan {
 public:
  explicit loan(owned_file life) noexcept : life_(std::move(life)) {}
  bool lend() noexcept { return say(life_, word::lent) == os::heard::message; }
  void listen() noexcept;                                       // what the importer has said by now
  bool over() const noexcept { return released_ || (closed_ && !opened_); }
  bool broken() const noexcept { return closed_ && opened_ && !released_; }
  bool alive() const noexcept { return !released_ && !closed_; }
  // the importer keeps its end, released or not, and sees by it that the memory is still there
  bool watched() noexcept;

 private:
  owned_file life_;
  bool opened_ = false, released_ = false, closed_ = false;
};

class exports;
class pool_books;
struct exported {  // a block of this process: a handle of its own, or a range of a pool's
  // of an exportable_buffer, or a handle of a pool; kept; by one thread
  enum class state : std::uint8_t { lent_out, idle, looked_at };
  mapped_handle pages;                  // nothing: it lies in another one's
  std::shared_ptr<exported> within;
  std::size_t offset = 0, room = 0;     // there; bytes
  std::shared_ptr<pool_books> pool;     // while it is live
  exported& handle() noexcept { return within ? *within : *this; }
  void* data() noexcept { return static_cast<std::byte*>(handle().pages.data()) + offset; }
  std::size_t rounded() noexcept { return within ? room : pages.bytes(); }
  // Of a handle: its descriptor, made once and kept while the handle is. A receiver then closes one of
  // several, at once: closing the last one of a GPU's memory took 0.6 ms. Threads: any
  driver::result<int> descriptor(driver::driver&) noexcept;
  void close_descriptor() noexcept;     // Requires: nobody sends it

  std::size_t bytes = 0;       // as requested
  int device = -1;
  std::array<char, sizeof(message::device)> uuid{};  // of a handle: its device's
  std::uint64_t serial = 0;
  base::atomic<int> file{-1};
  std::vector<loan> loans;
  std::vector<clock::timeline*> users;       // streams; capacity of last_uses is never less
  std::vector<clock::stamp> last_uses;       // idle: what must be complete before it serves again
  state is = state::looked_at;
  int guests = 0;                            // threads that open it to a peer: it is nobody's to look at meanwhile
  bool going = false;                        // serves nobody any more; what is left of it is given back
  bool ended = false;                        // its runtime has: nothing is here any more
  exports* home = nullptr;                   // not ended
};

class exports final : public openable_memory {  // a part of the runtime
 public:
  explicit exports(runtime::impl&);
  ~exports();
  // Throws: not_supported, out_of_memory, device_lost, driver_error
  std::shared_ptr<exported> take(clock::timeline& home, std::size_t bytes, source_location);
  static void give_back(std::shared_ptr<exported>) noexcept;
  std::uint64_t origin() const noexcept { return origin_; }
  driver::driver& machine() const noexcept { return runtime_.machine(); }
  driver::status open_to(int device, std::uint64_t readers) override;
  driver::status open_to(void const* inside, int reader) override;
  std::size_t forget_idle() noexcept override;

  // For pools, which cut handles themselves ----
  void remember(std::weak_ptr<pool_books>);
  std::vector<std::shared_ptr<pool_books>> pools() const;                     // that there are
  // Throws: not_supported (it maps no memory), driver_error
  driver::device_info about(int device, char const* operation, source_location) const;
  // for this process's work on what was given back
  enum class when_short : std::uint8_t { refuses, waits };
  // Lent out, and open to whom its device's memory is open. Throws: as take
  std::shared_ptr<exported> make(int device, std::size_t bytes, when_short, source_location);
  driver::status grant(exported&, int reader);                  // Requires: it is lent out, or a guest's
  // what make() made: for any exportable_buffer once its loans and uses are over; going: for the driver then
  void keep(exported&, bool going) noexcept;
  // it serves somebody. Requires: one user, home
  void begun(exported&, clock::timeline& home, source_location) noexcept;
  bool complete(exported const&) noexcept;                      // its last uses are
  // Blocks: until all of them are complete;
  // where ranks may be waiting for each other, for two seconds each at most. false: some are not
  bool wait_for(std::vector<clock::stamp> const& uses) noexcept;
  memory_report report(int device) { return memory_.on(device).report(); }

 private:
  std::shared_ptr<exported> next_idle(std::uint64_t after) noexcept;  // looked at by the caller alone from now on
  void set(exported&, exported::state) noexcept;
  bool forget(exported&) noexcept;          // Returns: nothing is left. Requires: looked at, and complete
  void tell_freed(exported&) noexcept;
  std::shared_ptr<exported> find_idle(int device, std::size_t bytes) noexcept;
  // what was given back, of pools too, and only waits for work of this process. false: there is none
  bool wait_for_kept(int device) noexcept;
  driver::status place(exported&, std::size_t handle_bytes, std::size_t alignment);
  driver::status grant_all(exported&, std::uint64_t readers);
  // to whom all its memory is open. Throws: driver_error, out_of_memory
  void open_as_device(exported&, source_location);
  template <class Which>
  driver::status open_some(std::uint64_t readers, Which);

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  memory::device_memory& memory_;
  observe::memory_beside& books_;
  std::uint64_t const origin_;
  std::uint64_t callback_ = 0;
  base::atomic<std::uint64_t> next_serial_{1};
  base::mutex granting_;  // held over the driver's call: two grants of one handle at once are refused
  base::guarded<std::vector<std::shared_ptr<exported>>> all_;  // by serial
  base::guarded<std::vector<std::weak_ptr<pool_books>>> pools_;
};

struct imported {  // memory of another process, mapped here once
  std::uint64_t origin = 0, serial = 0;  // as its message said
  std::uint64_t line = 0;           // that it came over first
  mapped_handle pages;
  owned_file file;                  // the descriptor that came first: another one must be the same open file
  int device = -1;
  int uses = 0;                     // imported_buffers
  std::uint64_t last_closed = 0;    // unused: the count of closed buffers when it became so
  owned_file life;  // unused: of its last loan. Closed at the other end: the memory is gone there, or its process
  bool going = false, ended = false;
};

class imports;
struct opening {  // one imported_buffer
  std::shared_ptr<imported> of;
  imports* home = nullptr;
  owned_file life;
  std::size_t bytes = 0, offset = 0;
  int reader = -1;
};

class imports final : public openable_memory {  // a part of the runtime
 public:
  explicit imports(runtime::impl&);
  ~imports();
  struct loaned {  // what came with a message
    owned_file memory, life;
    // its owner's word, and that this process opens it: each once, however often it is tried
    bool taken = false, opened = false;
  };
  // `line`: the number of the line it came over. Takes the files only when it succeeds: what was refused for
  // want of memory may be tried again with them.
  std::unique_ptr<opening> open(message const&, loaned&, std::uint64_t line, int reader, source_location);
  driver::status open_to(int device, std::uint64_t readers) override;
  driver::status open_to(void const* inside, int reader) override;
  bool at_rest(imported const&);         // Blocks: until all work of the devices that may use it is done
  void close(opening&) noexcept;         // says `released`. Requires: no work uses it
  clock::clocks& clocks() noexcept { return clocks_; }
  std::size_t mapped() const { return all_.lock()->size(); }  // handles of other processes

 private:
  static void take_word(loaned&, std::string const& name, source_location);
  std::shared_ptr<imported> find(message const&, owned_file const& memory, std::uint64_t line, int device);
  std::shared_ptr<imported> bring_in(message const&, owned_file const& memory, int device, source_location);
  void make_reachable(imported&, int reader, source_location);
  driver::status grant_all(imported&, std::uint64_t readers);  // Requires: opening_
  void sweep() noexcept;                 // those not used, whose owner has them no more; the longest unused of too many
  int device_named(std::string const& uuid, source_location);  // Requires: opening_

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  observe::memory_beside& books_;
  base::mutex opening_;                  // one at a time: the same memory twice finds it
  std::vector<std::string> uuids_;       // of this process's devices; under opening_
  base::guarded<std::vector<std::shared_ptr<imported>>> all_;
  std::uint64_t closed_ = 0;             // imported_buffers; under all_
};

}  // namespace weir::peer
