// weir/share.h: device memory shared by two processes over a Unix socket. docs/reference/sharing.md says what
// blocks, what holds if the other process is killed or stopped, and what sharing costs.
// Threads: any; one object by one thread at a time. An exportable_buffer is not changed while it is sent.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "weir/peer.h"

namespace weir WEIR_API {
namespace peer {
struct exported;
struct opened_import;
class read_ring;
class shared_pool;
}

// The other process has ended or closed its end. Messages that it sent before are received first.
class peer_disconnected : public std::runtime_error, public error {
 public:
  peer_disconnected(std::string operation, std::string operands, std::string remedy, source_location,
                    error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
};

// Device memory in a handle of its own that other processes may open. It takes whole pages (2 MiB on GPUs)
// and about 1 ms to make: keep and reuse it. For many or small buffers use share_pool. A freed handle is
// reused for a buffer of its size, but never while an importer may use it. Other devices of this process read
// it after enable_peer_access(), or if its device's memory is open to them. Counted by
// memory_stats().exported_bytes, not by set_memory_limit.
// Requires: destroyed before its runtime. Later calls do nothing.
class exportable_buffer {
 public:
  exportable_buffer() noexcept = default;
  // Allocates on `home`, or on the device's current stream, as if by record_stream. Any stream of the device
  // may use it at once.
  // Throws: invalid_use (cpu, zero bytes), not_supported (cannot export), out_of_memory,
  // device_lost, driver_error.
  explicit exportable_buffer(size_t bytes, device = gpu, source_location = source_location::current());
  explicit exportable_buffer(stream_ref home, size_t bytes, source_location = source_location::current());
  ~exportable_buffer() { reset(); }
  exportable_buffer(exportable_buffer&&) noexcept;
  exportable_buffer& operator=(exportable_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T>
  T* data() const noexcept {
    return static_cast<T*>(data());
  }
  size_t size() const noexcept;  // bytes, as requested
  weir::device device() const;   // Requires: not empty
  // Number of sends neither released nor ended with their process; in transit counts. Blocks: no.
  int importers() const;
  // Declares that `stream` uses the buffer. After the buffer is freed, its memory is reused only after the
  // work enqueued on `stream` by then.
  void record_stream(stream_ref, source_location = source_location::current()) const;
  void reset() noexcept;  // Frees the buffer. Blocks: no; importers keep what they have opened

 private:
  friend class share_channel;
  friend class share_pool;
  explicit exportable_buffer(std::shared_ptr<peer::exported>) noexcept;
  std::shared_ptr<peer::exported> is_;
};

struct share_pool_options {
  device on = gpu;
  size_t handle_bytes = 0;        // minimum of each handle; 0: as much as the pool has so far, from 32 to 256 MiB
  size_t limit = 0;               // bytes reserved from the driver; 0: none
  std::vector<device> readers{};  // devices of this process whose kernels may use the buffers in place
};
struct share_pool_statistics {  // bytes: reserved = allocated + held + cached + lost
  size_t handles = 0, buffers = 0;
  size_t reserved = 0;   // from the driver
  size_t requested = 0;  // of live buffers
  size_t allocated = 0;  // of live buffers, rounded up to 512 B
  size_t held = 0;       // freed, while an importer or a stream may still use it
  size_t cached = 0;     // free
  size_t lost = 0;       // open in an importer that was killed; freed with the last buffer of its handle
};
// Cuts buffers from large handles. Use it for many buffers, such as parameters: the other process maps each
// handle once. The buffers behave as exportable_buffers. Memory of one is reused only after its importers and
// streams are done with it. An importer of one buffer can access the whole handle: use one pool for each
// group of processes that trust each other.
// Threads: any
class share_pool {
 public:
  // Throws: invalid_use (cpu, overflow), not_supported (no export, a reader without access), device_lost,
  // driver_error.
  explicit share_pool(share_pool_options = {}, source_location = source_location::current());
  ~share_pool();  // its buffers stay valid
  share_pool(share_pool&&) noexcept;
  share_pool& operator=(share_pool&&) noexcept;
  // Allocates at a multiple of 512 B, on `home` or on the device's current stream, as if by record_stream.
  // Blocks: before out_of_memory, for this process's work on freed buffers, as exportable_buffer's
  // constructor.
  // Throws: as exportable_buffer's constructor; also out_of_memory beyond the limit.
  exportable_buffer allocate(size_t bytes, source_location = source_location::current());
  exportable_buffer allocate(stream_ref home, size_t bytes, source_location = source_location::current());
  share_pool_statistics statistics() const;
  // Returns unused handles of this pool and of exportable_buffers to the driver. Returns: bytes
  size_t trim();

 private:
  std::shared_ptr<peer::shared_pool> is_;
};

// Another process's exportable_buffer, mapped here. It stays valid when that process ends. A copy between it
// and memory of another device is ordered on that device's stream only.
// Requires: destroyed before its runtime. Later calls do nothing.
class imported_buffer {
 public:
  imported_buffer() noexcept;
  ~imported_buffer();
  imported_buffer(imported_buffer&&) noexcept;
  imported_buffer& operator=(imported_buffer&&) noexcept;
  void* data() const noexcept;
  template <class T>
  T* data() const noexcept {
    return static_cast<T*>(data());
  }
  size_t size() const noexcept;  // bytes, as its owner requested
  weir::device device() const;   // of the memory. Requires: not empty
  // Returns the buffer to its owner, which may then write or reuse the memory. Empty afterwards.
  // Requires: no other stream uses it. Blocks: until the work enqueued on `last_use` is complete.
  void release(stream_ref last_use, source_location = source_location::current());
  // As release; beside a capture a later reset() or receive() does it. Blocks: until all work of its device,
  // and of devices that may read it, is done
  void reset() noexcept;

 private:
  friend class share_channel;
  friend class peer::read_ring;
  std::unique_ptr<peer::opened_import> is_;
};

// One end of a Unix socket (socketpair, or accepted and connected; SOCK_SEQPACKET): two processes exchange
// buffers and numbers over it, in order. No call waits for the other process longer than the timeout. Throws:
// invalid_use on every call of a moved-from channel.
class share_channel {
 public:
  static constexpr std::chrono::milliseconds default_timeout{5000};
  // Takes ownership of the socket and closes it at the end. Throws: invalid_use (no such socket, or one that
  // does not keep messages apart). The caller then still owns it.
  explicit share_channel(int socket, std::chrono::milliseconds timeout = default_timeout,
                         source_location = source_location::current());
  ~share_channel();
  share_channel(share_channel&&) noexcept;
  share_channel& operator=(share_channel&&) noexcept;

  // Lets the other process open the buffer after the work enqueued on `last_write` so far. Repeatable.
  // Blocks: until that work is complete, and while the other process does not read.
  // Throws: timed_out (it did not read for the whole timeout), peer_disconnected, device_lost, driver_error
  // (the system has no descriptors left).
  void send(exportable_buffer const&, stream_ref last_write, source_location = source_location::current());
  // Opens the next buffer that is sent, for work of `reader` and of the device of the memory. A buffer that
  // this process has open, or had open, is not mapped again. Blocks: until it arrives.
  // Throws: timed_out, peer_disconnected; invalid_use (damaged, foreign, another version, opened before) and
  // not_supported (no such device here, or no access for the reader): the buffer is discarded; out_of_memory,
  // device_lost, driver_error: the buffer stays next.
  imported_buffer receive(device reader = gpu, source_location = source_location::current());
  // Sends a number to the other process ("buffer 3 is written", "write it again") after the work enqueued on
  // `after` so far, or up to the event's last record. Blocks, Throws: as send.
  void signal(std::uint64_t number, stream_ref after, source_location = source_location::current());
  void signal(std::uint64_t number, event const& after, source_location = source_location::current());
  // Receives the next number. Later work sees what was done before signal(). Blocks: until it arrives.
  // Throws: timed_out, peer_disconnected, invalid_use (damaged; a buffer comes first: receive it).
  std::uint64_t wait(source_location = source_location::current());
  std::chrono::milliseconds timeout(source_location = source_location::current()) const;
  // Throws: invalid_use (not positive); the timeout is unchanged
  void set_timeout(std::chrono::milliseconds, source_location = source_location::current());

 private:
  struct state;
  state& live(char const* operation, source_location) const;
  std::unique_ptr<state> state_;
};

// A process that this one forks, and a connected pair of sockets: one end for each, for a channel or a ring.
class child_process {  // move-only
 public:
  // In the child calls body(socket) and ends the process, with the status that it returns, or with 1 if it throws, which
  // stderr tells. Buffered output is written before. A child has no socket of another child_process that socket() has not
  // given out. So make all children before the first socket() is taken: then each sees when this process ends.
  // Requires: no other thread of this process runs.
  // Throws: invalid_use (this process has used weir), std::system_error (no sockets or process)
  explicit child_process(std::function<int(int socket)> const& body, source_location = source_location::current());
  child_process(child_process&&) noexcept;
  // Closes the socket unless it was taken. Blocks: until the child has ended
  ~child_process();
  // This process's end, for share_channel, ring_writer or ring_reader, which own it from then on.
  // Throws: invalid_use (a second call)
  int socket(source_location = source_location::current());
  // Returns: the child's exit status; of one that a signal killed, minus that signal; no_status if the system has not
  // kept it: SIGCHLD is ignored, or other code has waited for the child. Blocks: until it has ended
  int wait() noexcept;
  static constexpr int no_status = 256;  // no exit status is that large

 private:
  int take() noexcept;
  int child_ = -1;  // -1: waited for, or moved from
  int socket_ = -1;
  int status_ = 0;
};

}  // namespace weir
