// weir/ring.h: a ring of slots in device memory. One writer fills them; readers in other processes, or on other
// threads, read them in place over their links. docs/reference/sharing.md says what holds if one is killed or slow.
// Threads: one thread for each end, with its slots and items.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "weir/share.h"

namespace weir {
namespace peer {
class read_ring;
class written_ring;
}  // namespace peer
}  // namespace weir

namespace weir WEIR_API {

// Of a ring_writer
struct ring_options {
  static constexpr int most_slots = 64;                                // that a ring has
  size_t bytes = 0;                                                    // of a slot: the most that an item has
  int slots = 4;                                                       // items under way at most
  device on = gpu;                                                     // whose memory the slots are
  std::chrono::milliseconds timeout = share_channel::default_timeout;  // how long a call waits for readers
  // Whether the ring goes on without a reader that has ended or is late, instead of an exception.
  bool drop_readers = false;
};

// A free slot of the writer, a range of bytes in device memory. Its end without publish() gives it back unused.
class ring_slot {  // move-only
 public:
  ring_slot(ring_slot&&) noexcept = default;
  ring_slot& operator=(ring_slot&&) noexcept;
  ~ring_slot();
  std::uint64_t number() const noexcept { return number_; }  // of the item that it becomes; counts from 0
  std::byte* data() const noexcept { return data_; }         // for work of next()'s stream
  // Likewise
  template <class T>
  T* data() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  size_t size() const noexcept { return size_; }             // bytes that fit
  std::byte* begin() const noexcept { return data_; }        // data()
  std::byte* end() const noexcept { return data_ + size_; }  // behind the last byte that fits
  // Makes its first `bytes` the next item, once the work enqueued on next()'s stream, or on `after`, is done.
  // Blocks: no. Throws: invalid_use (moved from, published; more bytes than fit; a borrowed stream, or one in a
  // capture; the ring's runtime has ended), device_lost, driver_error: the slot is not published
  void publish(size_t bytes, source_location = source_location::current());
  void publish(size_t bytes, stream_ref after, source_location = source_location::current());

 private:
  friend class peer::written_ring;
  ring_slot(std::shared_ptr<peer::written_ring>, std::uint64_t number, std::byte* data, size_t size,
            stream_ref) noexcept;
  void give_back() noexcept;
  std::shared_ptr<peer::written_ring> ring_;  // null: moved from or published
  std::uint64_t number_;
  std::byte* data_;
  size_t size_;
  stream_ref stream_;
};

class ring_writer {  // move-only
 public:
  // One socket for each reader, as a share_channel takes; reader i has sockets[i]. Takes ownership of them.
  // Blocks: until the work of the device's default stream is done; then, for each reader, at most the timeout for room
  // in the queue to it.
  // Throws: invalid_use (no or wrong sockets, no bytes, slots or time), not_supported (the device cannot share),
  // peer_disconnected, timed_out, out_of_memory, device_lost, driver_error. The caller then still owns the sockets, but
  // those that a message went to are shut down: their readers get peer_disconnected.
  explicit ring_writer(std::vector<int> const& sockets, ring_options, source_location = source_location::current());
  // Closes the sockets once the published items have been told. Readers get peer_disconnected after those items,
  // unless close() came before. A killed process does not tell: its readers get it at once. Blocks: no
  ~ring_writer();
  ring_writer(ring_writer&&) noexcept;
  ring_writer& operator=(ring_writer&&) noexcept;
  // The next slot, for work of the stream, by default the current one of the slots' device. All readers have
  // released what lay in it.
  // Blocks: host, only while all slots are in use: for this process's own work on the oldest item, then for its
  // readers, at most the timeout.
  // Throws: invalid_use (the last slot is not published; closed; a borrowed stream), device_lost, driver_error;
  // timed_out, which names a reader: repeat the call, or drop() the reader;
  // peer_disconnected, once for each reader that has ended: repeat the call, and the ring goes on without it.
  // Without readers, each call throws it.
  ring_slot next(source_location = source_location::current());
  ring_slot next(stream_ref, source_location = source_location::current());
  // The end: no item follows. Blocks: until all published items are done, and all readers have released them, at
  // most the timeout for readers. Throws: as next(), also invalid_use while a slot is not published. Repeatable
  void close(source_location = source_location::current());
  int readers() const noexcept;           // that are left
  std::vector<int> late_readers() const;  // that have not released the item in the next slot; after close(), any item
  // Goes on without the reader, which gets peer_disconnected. The bytes of all items that it still has may change.
  // Blocks: no. Throws: invalid_use (no such reader)
  void drop(int reader, source_location = source_location::current());
  // Throws: invalid_use (not positive); the timeout is unchanged
  void set_timeout(std::chrono::milliseconds, source_location = source_location::current());

 private:
  peer::written_ring& live(char const* operation, source_location) const;
  std::shared_ptr<peer::written_ring> ring_;
};

// An item of a reader, a range of bytes in the writer's memory. Its end releases it, behind all work enqueued on
// take()'s stream by then. If that stream has ended or is in a capture, the next take() waits for its device instead.
class ring_item {  // move-only
 public:
  ring_item(ring_item&&) noexcept = default;
  ring_item& operator=(ring_item&&) noexcept;
  ~ring_item();
  std::uint64_t number() const noexcept { return number_; }  // counts from 0
  std::byte const* data() const noexcept { return data_; }   // for work of take()'s stream
  // Likewise
  template <class T>
  T const* data() const noexcept {
    return reinterpret_cast<T const*>(data_);
  }
  size_t size() const noexcept { return size_; }                   // bytes that were published
  std::byte const* begin() const noexcept { return data_; }        // data()
  std::byte const* end() const noexcept { return data_ + size_; }  // behind the last byte that was published
  // Lets the writer fill the slot again once the work enqueued on take()'s stream, or on `last_use`, is done.
  // Blocks: no. Throws: invalid_use (moved from, released; a borrowed stream, or one in a capture), device_lost,
  // driver_error: it is not released
  void release(source_location = source_location::current());
  void release(stream_ref last_use, source_location = source_location::current());

 private:
  friend class peer::read_ring;
  ring_item(std::shared_ptr<peer::read_ring>, std::uint64_t number, std::byte const* data, size_t size,
            stream_ref) noexcept;
  void give_back() noexcept;
  std::shared_ptr<peer::read_ring> ring_;  // null: moved from or released
  std::uint64_t number_;
  std::byte const* data_;
  size_t size_;
  stream_ref stream_;
};

class ring_reader {  // move-only
 public:
  // The other end of the writer's socket; `reader`: the device that reads the slots in place. Takes ownership of it.
  // Blocks: no. Throws: invalid_use (no such socket or device; a timeout that is not positive), driver_error. The
  // caller then still owns the socket.
  explicit ring_reader(int socket, device reader = gpu,
                       std::chrono::milliseconds timeout = share_channel::default_timeout,
                       source_location = source_location::current());
  // The writer goes on without this reader. Beside a capture it does so once a later imported_buffer is made or ends.
  // Blocks: as imported_buffer's end
  ~ring_reader();
  ring_reader(ring_reader&&) noexcept;
  ring_reader& operator=(ring_reader&&) noexcept;
  // Returns: the next item, in order, for work of the stream, by default the current one of its device; nullopt once
  // the writer has closed the ring.
  // Blocks: host, for this process's own work on released items; then until the writer and the item are there,
  // at most the timeout.
  // Throws: timed_out: repeat the call;
  // peer_disconnected: behind what was published if the ring_writer has ended without close(), else at once. If the
  // writer lives, it has dropped or lost this reader, and the bytes of all items that are held may change. If it was
  // killed, they stay;
  // invalid_use (the item that lay in the slot before is not released, so that this one would never come; a borrowed
  // stream; damaged messages, and then peer_disconnected), device_lost, driver_error;
  // at first also what share_channel::receive() throws.
  std::optional<ring_item> take(source_location = source_location::current());
  std::optional<ring_item> take(stream_ref, source_location = source_location::current());
  // Throws: invalid_use (not positive); the timeout is unchanged
  void set_timeout(std::chrono::milliseconds, source_location = source_location::current());

 private:
  peer::read_ring& live(char const* operation, source_location) const;
  std::shared_ptr<peer::read_ring> ring_;
};

}  // namespace weir
