// Sharing with other processes: blocks exported by this process, and imported blocks of others.
// Threads: any. Only `opening_` and `granting_` are held over driver calls; weir::allocate takes neither.
//
// Each send of a block is for one importer. One end of a socket, the importer's life, goes with it:
//   The owner writes `lent` before it sends. An importer reads that word to open the block, so that it is
//   opened once. The importer writes `opened` before it maps the memory, and `released` after its work with
//   it. The kernel closes the importer's end when the process ends for any reason.
// Invariant: a block is reused only when each of its importers is done: released, or closed without `opened`. An
// importer that opened and then closed without `released` belonged to a killed process, whose kernels may
// still run. Its memory is returned to the driver, which keeps it while it is mapped anywhere.
#pragma once
#include <memory>
#include <vector>

#include "peer/link/mapped_handle.h"
#include "peer/link/openable_memory.h"
#include "peer/share/message.h"
#include "runtime/clock/stream_clock.h"
#include "runtime/memory/blocks/heap_block.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "weir/share.h"

namespace weir::peer {

enum class importer_signal : std::uint8_t {
  lent = 'l',
  opened = 'o',
  released = 'r'
};  // to an importer; the owner writes `lent`
os::heard say(owned_file const& life, importer_signal) noexcept;

class importer {
 public:
  explicit importer(owned_file life) noexcept : life_(std::move(life)) {}
  bool lend() noexcept { return say(life_, importer_signal::lent) == os::heard::message; }
  // Reads what the importer has said. What follows tells what was heard until then.
  void listen() noexcept;
  bool is_done() const noexcept { return released_ || (closed_ && !opened_); }
  bool was_killed() const noexcept { return closed_ && opened_ && !released_; }
  bool alive() const noexcept { return !released_ && !closed_; }
  // Asks the system. The importer keeps its end, released or not, to see that the memory still exists.
  bool keeps_its_end() noexcept;

 private:
  owned_file life_;
  bool opened_ = false, released_ = false, closed_ = false;
};

class exports;
class shared_pool;
struct WEIR_LOCAL exported {  // a block of this process: a handle, or a range of a pool's handle
  // exported_in_use: in an exportable_buffer, or a handle of a pool; idle: kept; looked_at: by one thread
  enum class state : std::uint8_t { exported_in_use, idle, looked_at };
  mapped_handle pages;  // empty: it lies in another block's handle
  std::shared_ptr<exported> within;
  std::size_t offset = 0, room = 0;   // in the handle; bytes
  std::shared_ptr<shared_pool> pool;  // while the buffer is live
  exported& handle() noexcept { return within ? *within : *this; }
  void* data() noexcept { return static_cast<std::byte*>(handle().pages.data()) + offset; }
  std::size_t rounded() noexcept { return within ? room : pages.bytes(); }
  // Returns the handle's descriptor, created once and kept with the handle. Receivers then close duplicates,
  // which is fast: closing the last descriptor of GPU memory takes about 0.6 ms. Threads: any
  driver::result<int> descriptor(driver::driver&) noexcept;
  void close_descriptor() noexcept;  // Requires: no thread sends it
  static memory::block_user user(clock::stream_clock& s) {
    return {&s, s.alive() == clock::life::borrowed ? s.hold() : nullptr};
  }

  std::size_t bytes = 0;  // as requested
  int device = -1;
  std::array<char, sizeof(message::device)> uuid{};  // of a handle: UUID of its device
  std::uint64_t serial = 0;
  base::atomic<int> file{-1};
  std::vector<importer> importers;
  std::vector<memory::block_user> users;  // last_uses has room for as many
  std::vector<clock::stamp> last_uses;    // idle: must be complete before reuse
  state is = state::looked_at;
  int pins_by_grants = 0;   // threads that open it to a peer; it is not looked at meanwhile
  bool retiring = false;    // never reused; still to be returned to the driver
  bool ended = false;       // its runtime has ended, and its memory with it
  exports* home = nullptr;  // valid until ended
};

class exports final : public openable_memory {  // a part of the runtime
 public:
  explicit exports(runtime::impl&);
  ~exports();
  // Throws: not_supported, out_of_memory, device_lost, driver_error
  std::shared_ptr<exported> take(clock::stream_clock& home, std::size_t bytes, source_location);
  static void give_back(std::shared_ptr<exported>) noexcept;
  std::uint64_t origin() const noexcept { return origin_; }
  driver::driver& machine() const noexcept { return runtime_.machine(); }
  driver::status open_to(int device, std::uint64_t readers) override;
  driver::status open_to(void const* inside, int reader) override;
  std::size_t forget_idle() noexcept override;

  // For pools, which cut handles themselves ----
  void remember(std::weak_ptr<shared_pool>);
  std::vector<std::shared_ptr<shared_pool>> pools() const;  // the pools that still exist
  // Throws: not_supported (the device maps no memory), driver_error
  driver::device_info about(int device, char const* operation, source_location) const;
  // Whether to wait for this process's work on freed blocks.
  enum class when_short : std::uint8_t { refuses, waits };
  // Returns a handle in use, open to all readers of its device's memory, or out_of_memory. Throws: take()'s others
  driver::result<std::shared_ptr<exported>> make(int device, std::size_t bytes, when_short, source_location);
  memory_report why_no_room(int device, std::size_t bytes, driver::status last, source_location);
  void count_ran_out(int device) { memory_.on(device).count_ran_out(); }
  driver::status grant(exported&, int reader);  // Requires: it is in use, or another process maps it
  // Takes back what make() returned, for reuse after its importers and uses; retiring: for the driver then.
  void keep(exported&, bool retiring) noexcept;
  // The block is in use from now on. Requires: its one user is `home`
  void begun(exported&, clock::stream_clock& home, source_location) noexcept;
  bool complete(exported const&) noexcept;  // its last uses are complete
  void note_sent(exported& b) noexcept { books_.sent(reinterpret_cast<std::uintptr_t>(b.pages.data())); }
  // Blocks: until all are complete; while collectives are under way, at most two seconds for each. Returns:
  // false if some are not complete.
  bool wait_for(std::vector<clock::stamp> const& uses) noexcept;

 private:
  std::shared_ptr<exported> next_idle(std::uint64_t after) noexcept;  // the caller alone looks at it from then on
  void set(exported&, exported::state) noexcept;
  bool forget(exported&) noexcept;  // Returns: true if nothing is left. Requires: looked at and complete
  void tell_freed(exported&) noexcept;
  std::shared_ptr<exported> find_idle(int device, std::size_t bytes) noexcept;
  // Blocks: for freed blocks, of pools too, that wait only for this process. false: there is none
  bool wait_for_kept(int device) noexcept;
  driver::status place(exported&, std::size_t handle_bytes, std::size_t alignment);
  driver::status place_or_free_some(exported&, std::size_t handle_bytes, std::size_t alignment, when_short);
  void abandon(exported&) noexcept;
  driver::status grant_all(exported&, std::uint64_t readers);
  // Opens it to all readers of its device's memory. Throws: driver_error, out_of_memory
  void open_as_device(exported&, source_location);
  template <class Which>
  driver::status open_some(std::uint64_t readers, Which);

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  memory::device_memory& memory_;
  observe::external_memory& books_;
  std::uint64_t const origin_;
  std::uint64_t callback_ = 0, waiting_callback_ = 0;
  base::atomic<std::uint64_t> next_serial_{1};
  base::mutex granting_;  // held over the driver call: it refuses two grants of one handle at once
  base::guarded<std::vector<std::shared_ptr<exported>>> all_;  // by serial
  base::guarded<std::vector<std::weak_ptr<shared_pool>>> pools_;
};

struct imported {                        // memory of another process, mapped here once
  std::uint64_t origin = 0, serial = 0;  // from its message
  std::uint64_t channel = 0;             // number of the channel that first delivered it
  mapped_handle pages;
  owned_file file;  // its first descriptor; others must be the same open file
  int device = -1;
  int uses = 0;                   // imported_buffers that use it
  std::uint64_t last_closed = 0;  // unused: value of closed_ when it became unused
  owned_file life;                // unused: of its last importer. Hung up: the memory or its process has ended
  bool retiring = false, ended = false;
};

class imports;
struct WEIR_LOCAL opened_import {  // of one imported_buffer
  std::shared_ptr<imported> of;
  imports* home = nullptr;
  owned_file life;
  std::size_t bytes = 0, offset = 0;
  int reader = -1;
  std::shared_ptr<void> until_closed{};               // ends behind the work that uses it
  std::unique_ptr<opened_import> postponed_before{};  // of imports::postponed_
};

class imports final : public openable_memory {  // a part of the runtime
 public:
  explicit imports(runtime::impl&);
  ~imports();
  struct loaned {  // what came with a message
    owned_file memory, life;
    // The owner's word was read, and `opened` was written: once each, also over retries.
    bool taken = false, opened = false;
  };
  // `channel`: its number. Takes the files only on success, for a retry.
  std::unique_ptr<opened_import> open(message const&, loaned&, std::uint64_t channel, int reader, source_location);
  driver::status open_to(int device, std::uint64_t readers) override;
  driver::status open_to(void const* inside, int reader) override;
  // Blocks: until all work of devices that may use it is done; then it is closed. If a wait is refused, beside a
  // capture for one, it is closed by a later call
  void close_at_rest(std::unique_ptr<opened_import>) noexcept;
  void close_postponed() noexcept;      // those that were refused. Blocks: as close_at_rest
  void close(opened_import&) noexcept;  // writes `released`. Requires: no work uses it
  clock::clocks& clocks() noexcept { return clocks_; }
  std::size_t mapped() const { return all_.lock()->size(); }  // handles of other processes

 private:
  std::unique_ptr<opened_import> open_now(message const&, loaned&, std::uint64_t channel, int reader, source_location);
  static void take_word(loaned&, std::string const& name, source_location);
  static void say_opened(loaned&, std::string const& name, source_location);
  std::shared_ptr<imported> find(message const&, owned_file const& memory, std::uint64_t channel, int device);
  std::shared_ptr<imported> bring_in(message const&, owned_file const& memory, int device, source_location);
  void make_reachable(imported&, int reader, source_location);
  driver::status grant_all(imported&, std::uint64_t readers);  // Requires: opening_
  bool at_rest(imported const&);
  void count_use(imported&, message const&, source_location);
  void sweep() noexcept;  // unmaps unused handles that ended at their owner, or exceed most_unused
  std::shared_ptr<imported> next_to_unmap() noexcept;          // retiring from now on. null: there is none
  int device_named(std::string const& uuid, source_location);  // Requires: opening_

  runtime::impl& runtime_;
  clock::clocks& clocks_;
  observe::external_memory& books_;
  base::mutex opening_;             // one open at a time, so that a second open of the same memory finds the first
  std::vector<std::string> uuids_;  // of this process's devices; under opening_
  base::guarded<std::vector<std::shared_ptr<imported>>> all_;
  base::guarded<std::unique_ptr<opened_import>> postponed_;  // the last one; a list, which needs no memory
  std::uint64_t closed_ = 0;                                 // number of closed imported_buffers; under all_
};

}  // namespace weir::peer
