// weir/share.h: device memory that two processes look at, passed over a Unix socket. docs/sharing.md says
// what blocks, what holds when the other process is killed or stopped, and what it costs.
// Threads: any; one object is used by one thread at a time.
// A shared_buffer that is being sent is not changed meanwhile.
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
class peer_gone : public std::runtime_error, public error {
 public:
  peer_gone(std::string operation, std::string operands, std::string remedy, here);
};

// Device memory in a handle of its own, that other processes may open: a whole number of pages (2 MiB on
// GPUs), and about a millisecond to make, so make few and keep them. One given back is kept for the next of
// its size, but never while an importer may use it. Other devices of this process read it after peer_data()
// or grant_access(), and where all memory of its device is open to them. Not counted by set_memory_limit;
// memory_stats().exported_bytes counts it. For many, or small ones: share_pool.
// Ends before its runtime; afterwards it does nothing.
class shared_buffer {
 public:
  shared_buffer() noexcept = default;
  // Any stream of the device may use it at once; the device's current one is recorded. Throws: invalid_use
  // (cpu, a size that overflowed, zero bytes), not_supported (the device cannot export),
  // out_of_memory, device_lost, driver_error
  explicit shared_buffer(size_t bytes, device = gpu, here = here::current());
  ~shared_buffer() { reset(); }
  shared_buffer(shared_buffer&&) noexcept;
  shared_buffer& operator=(shared_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  size_t size() const noexcept;  // bytes, as requested
  weir::device device() const;   // Requires: not empty
  // Sent, and neither released nor dropped by a process that ended. On its way counts. Blocks: no
  int importers() const;
  // That stream uses it, too: the memory serves the next shared_buffer only after what the stream has been
  // given by the end of this one.
  void record_stream(stream_ref, here = here::current()) const;
  void reset() noexcept;         // gives it back. Blocks: no; importers go on with what they have opened

 private:
  friend class share_line;
  friend class share_pool;
  explicit shared_buffer(std::shared_ptr<peer::exported>) noexcept;
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
// once. They live as other shared_buffers do; memory of one serves another one only when its importers and
// its streams are done with it. Who opens one can reach the whole handle:
// a pool is for one circle of processes. Threads: any
class share_pool {
 public:
  // Throws: invalid_use (cpu; a size that overflowed), not_supported (the device cannot export; a reader does
  // not reach it), device_lost, driver_error
  explicit share_pool(share_pool_options = {}, here = here::current());
  ~share_pool();  // its buffers go on
  share_pool(share_pool&&) noexcept;
  share_pool& operator=(share_pool&&) noexcept;
  // At a multiple of 512 B. That stream, or the device's current one, is recorded. Blocks: before
  // out_of_memory, for work of this process on what was given back; so does shared_buffer's. Throws: as
  // shared_buffer's; out_of_memory beyond the limit, too
  shared_buffer allocate(size_t bytes, here = here::current());
  shared_buffer allocate(stream_ref home, size_t bytes, here = here::current());
  share_pool_statistics statistics() const;
  size_t trim();  // gives handles that serve nobody, of this pool and of shared_buffers, to the driver. Returns: bytes

 private:
  std::shared_ptr<peer::pool_books> is_;
};

// Another process's shared_buffer, mapped here. A copy between it and memory of another device is ordered on
// that device's stream alone. Stays valid when that process ends.
// Ends before its runtime; afterwards it does nothing.
class opened_buffer {
 public:
  opened_buffer() noexcept;
  ~opened_buffer();
  opened_buffer(opened_buffer&&) noexcept;
  opened_buffer& operator=(opened_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T> T* data() const noexcept { return static_cast<T*>(data()); }
  size_t size() const noexcept;   // bytes, as its owner requested
  weir::device device() const;    // whose memory it is. Requires: not empty
  // Gives it back to its owner once that stream is done with what it has been given: the owner may write
  // there again, or use it for something else. Empty afterwards. Requires: no other stream uses it.
  // Blocks: until that stream is there
  void release(stream_ref last_use, here = here::current());
  void reset() noexcept;  // the same. Blocks: until all work of its device, and of those that may read it, is done

 private:
  friend class share_line;
  std::unique_ptr<peer::opening> is_;
};

// As of a buffer: a kernel of `reader` may then use it where it lies.
template <class T>
T* peer_data(shared_buffer const& b, device reader, here at = here::current()) {
  grant_access(b.data(), reader, at);
  return b.template data<T>();
}
template <class T>
T* peer_data(opened_buffer const& b, device reader, here at = here::current()) {
  grant_access(b.data(), reader, at);
  return b.template data<T>();
}

// One end of a Unix socket (socketpair, or accepted and connected; SOCK_SEQPACKET), and what two processes
// tell each other over it, in order. No call waits for the other process longer than the lease: killed or
// stopped, it holds up nobody for longer. Of one that was moved from, every call is refused: invalid_use.
class share_line {
 public:
  static constexpr std::chrono::milliseconds usual_lease{5000};
  // Takes the socket over: it is closed at the end. Throws: invalid_use (no such socket; one that does not
  // keep messages apart); then it is still yours
  explicit share_line(int socket, std::chrono::milliseconds lease = usual_lease, here = here::current());
  ~share_line();
  share_line(share_line&&) noexcept;
  share_line& operator=(share_line&&) noexcept;

  // Lets the other process open the buffer, with all that `last_write` has been given done.
  // Any number of times.
  // Blocks: until that stream is there, and while the other side hears nothing; Throws: timed_out (for the
  // whole lease), peer_gone, device_lost, driver_error (the system has no descriptors left)
  void send(shared_buffer const&, stream_ref last_write, here = here::current());
  // Opens the next buffer that is sent, for work of `reader` and of the device whose memory it is. One that
  // this process has open, or has had, is not mapped again. Blocks: until it comes. Throws: timed_out,
  // peer_gone; invalid_use (damaged, foreign, of another version, opened before) and not_supported (no such
  // device here, or the reader does not reach it): nothing of it is kept;
  // out_of_memory, device_lost, driver_error: it is still the next
  opened_buffer receive(device reader = gpu, here = here::current());
  // A number for the other process, with all that `after` has been given done:
  // "buffer 3 is written", "you may write it again".
  // Blocks, Throws: as send
  void signal(std::uint64_t number, stream_ref after, here = here::current());
  // the same up to its last record: what the stream was given since may still run
  void signal(std::uint64_t number, event const& after, here = here::current());
  // The next number. Whatever is given to any stream afterwards sees what was done before signal().
  // Throws: timed_out, peer_gone, invalid_use (damaged; a buffer comes first:
  // receive it, nothing has changed)
  std::uint64_t wait(here = here::current());
  std::chrono::milliseconds lease(here = here::current()) const;
  // Throws: invalid_use (no time at all); the lease is as it was
  void set_lease(std::chrono::milliseconds, here = here::current());

 private:
  struct state;
  state& live(char const* operation, here) const;
  std::unique_ptr<state> state_;
};

}  // namespace weir
