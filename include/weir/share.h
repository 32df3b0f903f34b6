// weir/share.h: device memory that two processes look at, passed over a Unix socket. docs/sharing.md says
// what blocks, what holds when the other process is killed or stopped, and what it costs.
// Threads: any; one object is used by one thread at a time.
// An exportable_buffer that is being sent is not changed meanwhile.
#pragma once
#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "weir/peer.h"

namespace weir {
namespace peer {
struct exported;
struct opening;
class pool_books;
}

// The other process has ended, or has closed its end. What it said before is heard first.
class peer_disconnected : public std::runtime_error, public error {
 public:
  peer_disconnected(std::string operation, std::string operands, std::string remedy, source_location);
};

// Device memory in a handle of its own, that other processes may open: a whole number of pages (2 MiB on
// GPUs), and about a millisecond to make, so make few and keep them. One given back is kept for the next of
// its size, but never while an importer may use it. Other devices of this process read it after
// enable_peer_access(), and where all memory of its device is open to them. Not counted by set_memory_limit;
// memory_stats().exported_bytes counts it. For many, or small ones: share_pool.
// Ends before its runtime; afterwards it does nothing.
class exportable_buffer {
 public:
  exportable_buffer() noexcept = default;
  // Any stream of the device may use it at once; the device's current one is recorded. Throws: invalid_use
  // (cpu, a size that overflowed, zero bytes), not_supported (the device cannot export),
  // out_of_memory, device_lost, driver_error
  explicit exportable_buffer(size_t bytes, device = gpu, source_location = source_location::current());
  // Memory of that stream's device; that stream is recorded.
  explicit exportable_buffer(stream_ref home, size_t bytes, source_location = source_location::current());
  ~exportable_buffer() { reset(); }
  exportable_buffer(exportable_buffer&&) noexcept;
  exportable_buffer& operator=(exportable_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  size_t size() const noexcept;  // bytes, as requested
  weir::device device() const;   // Requires: not empty
  // Sent, and neither released nor dropped by a process that ended. On its way counts. Blocks: no
  int importers() const;
  // That stream uses it, too: the memory serves the next exportable_buffer only after what the stream has
  // been given by the end of this one.
  void record_stream(stream_ref, source_location = source_location::current()) const;
  void reset() noexcept;         // gives it back. Blocks: no; importers go on with what they have opened

 private:
  friend class share_channel;
  friend class share_pool;
  explicit exportable_buffer(std::shared_ptr<peer::exported>) noexcept;
  std::shared_ptr<peer::exported> is_;
};

struct share_pool_options {
  device on = gpu;
  size_t handle_bytes = 0;        // of each handle, at least; 0: as much as the pool has by then, from 32 to 256 MiB
  size_t limit = 0;               // bytes held of the driver; 0: none
  std::vector<device> readers{};  // devices of this process whose kernels may use the buffers in place
};
struct share_pool_statistics {  // bytes: reserved = allocated + held + cached + lost
  size_t handles = 0, buffers = 0;
  size_t reserved = 0;   // of the driver
  size_t requested = 0;  // of live buffers
  size_t allocated = 0;  // the same rounded up to 512 B
  size_t held = 0;       // given back, while an importer has it or a stream still uses it
  size_t cached = 0;     // free
  size_t lost = 0;       // an importer was killed with it open: the driver's, with the last buffer of its handle
};
// Buffers cut from large handles: as many as there are parameters, and the other process maps each handle
// once. They live as other exportable_buffers do; memory of one serves another one only when its importers
// and its streams are done with it. Who opens one can reach the whole handle:
// a pool is for one circle of processes. Threads: any
class share_pool {
 public:
  // Throws: invalid_use (cpu; a size that overflowed), not_supported (the device cannot export; a reader does
  // not reach it), device_lost, driver_error
  explicit share_pool(share_pool_options = {}, source_location = source_location::current());
  ~share_pool();  // its buffers go on
  share_pool(share_pool&&) noexcept;
  share_pool& operator=(share_pool&&) noexcept;
  // At a multiple of 512 B. That stream, or the device's current one, is recorded. Blocks: before
  // out_of_memory, for work of this process on what was given back; so does exportable_buffer's. Throws: as
  // exportable_buffer's; out_of_memory beyond the limit, too
  exportable_buffer allocate(size_t bytes, source_location = source_location::current());
  exportable_buffer allocate(stream_ref home, size_t bytes, source_location = source_location::current());
  share_pool_statistics statistics() const;
  size_t
  trim();  // gives handles that serve nobody, of this pool and of exportable_buffers, to the driver. Returns: bytes

 private:
  std::shared_ptr<peer::pool_books> is_;
};

// Another process's exportable_buffer, mapped here. A copy between it and memory of another device is ordered
// on that device's stream alone. Stays valid when that process ends.
// Ends before its runtime; afterwards it does nothing.
class imported_buffer {
 public:
  imported_buffer() noexcept;
  ~imported_buffer();
  imported_buffer(imported_buffer&&) noexcept;
  imported_buffer& operator=(imported_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  size_t size() const noexcept;   // bytes, as its owner requested
  weir::device device() const;    // whose memory it is. Requires: not empty
  // Gives it back to its owner once that stream is done with what it has been given: the owner may write
  // there again, or use it for something else. Empty afterwards. Requires: no other stream uses it.
  // Blocks: until that stream is there
  void release(stream_ref last_use, source_location = source_location::current());
  void reset() noexcept;  // the same. Blocks: until all work of its device, and of those that may read it, is done

 private:
  friend class share_channel;
  std::unique_ptr<peer::opening> is_;
};

// One end of a Unix socket (socketpair, or accepted and connected; SOCK_SEQPACKET), and what two processes
// tell each other over it, in order. No call waits for the other process longer than the timeout: killed or
// stopped, it holds up nobody for longer. Of one that was moved from, every call is refused: invalid_use.
class share_channel {
 public:
  static constexpr std::chrono::milliseconds default_timeout{5000};
  // Takes the socket over: it is closed at the end. Throws: invalid_use (no such socket; one that does not
  // keep messages apart); then it is still yours
  explicit share_channel(int socket, std::chrono::milliseconds timeout = default_timeout,
                         source_location = source_location::current());
  ~share_channel();
  share_channel(share_channel&&) noexcept;
  share_channel& operator=(share_channel&&) noexcept;

  // Lets the other process open the buffer, with all that `last_write` has been given done.
  // Any number of times.
  // Blocks: until that stream is there, and while the other side hears nothing; Throws: timed_out (for the
  // whole timeout), peer_disconnected, device_lost, driver_error (the system has no descriptors left)
  void send(exportable_buffer const&, stream_ref last_write, source_location = source_location::current());
  // Opens the next buffer that is sent, for work of `reader` and of the device whose memory it is. One that
  // this process has open, or has had, is not mapped again. Blocks: until it comes. Throws: timed_out,
  // peer_disconnected; invalid_use (damaged, foreign, of another version, opened before) and not_supported
  // (no such device here, or the reader does not reach it): nothing of it is kept;
  // out_of_memory, device_lost, driver_error: it is still the next
  imported_buffer receive(device reader = gpu, source_location = source_location::current());
  // A number for the other process, with all that `after` has been given done:
  // "buffer 3 is written", "you may write it again".
  // Blocks, Throws: as send
  void signal(std::uint64_t number, stream_ref after, source_location = source_location::current());
  // the same up to its last record: what the stream was given since may still run
  void signal(std::uint64_t number, event const& after, source_location = source_location::current());
  // The next number. Whatever is given to any stream afterwards sees what was done before signal().
  // Throws: timed_out, peer_disconnected, invalid_use (damaged; a buffer comes first:
  // receive it, nothing has changed)
  std::uint64_t wait(source_location = source_location::current());
  std::chrono::milliseconds timeout(source_location = source_location::current()) const;
  // Throws: invalid_use (no time at all); the timeout is as it was
  void set_timeout(std::chrono::milliseconds, source_location = source_location::current());

 private:
  struct state;
  state& live(char const* operation, source_location) const;
  std::unique_ptr<state> state_;
};

}  // namespace weir
