// The writer's end of a ring: which slot is free, and which readers are left.
// Threads: one.
#include <algorithm>

#include "peer/share/ring.h"
#include "runtime/base/text.h"
#include "streams/stream/context.h"

namespace weir::peer {
namespace {

void require_options(std::vector<int> const& sockets, ring_options const& with, source_location at) {
  if (sockets.empty())
    throw invalid_use("ring_writer", "no socket", "Pass one socket for each reader", at, error_id{510});
  for (int const socket : sockets) {
    require_socket("ring_writer", socket, at);
    if (std::ranges::count(sockets, socket) > 1)
      throw invalid_use("ring_writer", base::text("descriptor ", socket, " twice"), "Pass one socket for each reader",
                        at, error_id{511});
  }
  if (with.bytes == 0)
    throw invalid_use("ring_writer", "slots of 0 B", "Set bytes to those of the largest item", at, error_id{512});
  if (with.slots < 1 || with.slots > ring_options::most_slots)
    throw invalid_use("ring_writer", base::text(with.slots, " slots"),
                      base::text("Set slots to 1 or more, and at most ", ring_options::most_slots), at, error_id{513});
  require_time("ring_writer", with.timeout, at);
}

// More than any device has instead of a sum that wraps.
std::size_t bytes_of_all(ring_options const& with) noexcept {
  auto const slots = static_cast<std::size_t>(with.slots);
  constexpr std::size_t most = ~std::size_t{0} / 2;
  return with.bytes > most / slots - granule ? most : stride_of(with.bytes) * slots;
}

}  // namespace

written_ring::written_ring(std::vector<int> const& sockets, ring_options with, int device, source_location at)
    : with_((require_options(sockets, with, at), with)), memory_(bytes_of_all(with), device, at) {
  stamps_.resize(static_cast<std::size_t>(with.slots));
  std::size_t sent = 0;
  try {
    std::vector<share_channel> lines;
    for (int const socket : sockets) {
      readers_.push_back({std::make_shared<ring_link>(socket)});
      lines.emplace_back(duplicate_of(socket, "ring_writer", at), with.timeout, at);
    }
    default_stream(device, at).synchronize(at);
    // Before the first message: a reader that hears of this ring cannot join another one.
    for (int const socket : sockets)
      if (os::has_hung_up(socket))
        throw peer_disconnected("ring_writer", base::text("the other end of descriptor ", socket, " is closed"),
                                "Pass the sockets of readers that live", at, error_id{526});
    for (; sent < lines.size(); ++sent) {
      lines[sent].send(memory_, default_stream(device, at), at);
      readers_[sent].link->send(message_kind::ring, static_cast<std::uint64_t>(with.slots), with.bytes);
    }
  } catch (...) {
    for (std::size_t i = 0; i < sent; ++i)
      readers_[i].link->end();
    for (reader const& r : readers_)
      r.link->leave();
    throw;
  }
}

// Its readers may still take what has arrived: their slots are not filled again.
written_ring::~written_ring() {
  if (process_was_forked() || ended_)
    return;
  for (reader const& r : readers_)
    if (!r.left)
      r.link->send(message_kind::unclosed, next_);
}

void written_ring::require_open(char const* operation, source_location at) const {
  if (ended_)
    throw invalid_use(operation, "a ring that is closed", "Make a new ring for more items", at, error_id{514});
  require_alive(operation, at);
}

void written_ring::require_no_slot(char const* operation, source_location at) const {
  if (slot_is_out_)
    throw invalid_use(operation, base::text("the slot of item ", next_, " is not published"),
                      "Publish the slot, or let it end, before this call", at, error_id{517});
}

void written_ring::require_alive(char const* operation, source_location at) const {
  if (process_was_forked())
    streams::throw_forked(operation, at);
  if (!memory_.data())
    throw invalid_use(operation, "a ring whose runtime has ended", "Let the runtime live until the ring has ended", at,
                      error_id{515});
}

void written_ring::require_readers(char const* operation, source_location at) const {
  if (readers() == 0)
    throw peer_disconnected(operation, base::text("none of ", readers_.size(), " readers is left"),
                            "Make a new ring with readers that live", at, error_id{516});
}

int written_ring::readers() const noexcept {
  return static_cast<int>(std::ranges::count(readers_, false, &reader::left));
}

ring_slot written_ring::next(std::optional<stream_ref> on, source_location at) {
  constexpr char const* operation = "ring_writer::next";
  require_open(operation, at);
  require_no_slot(operation, at);
  stream_ref const s = on ? *on : current_stream(memory_.device(), at);
  require_lasting(operation, s, at);
  // No reader can have released an item that was not told of. So this costs nothing, and no reader is blamed for it.
  stamps_[next_ % stamps_.size()].synchronize(at);
  listen(what::next_slot, operation, at);
  wait_for(what::next_slot, operation, at);
  require_readers(operation, at);
  s.wait(unpublished_, at);
  memory_.record_stream(s, at);
  slot_is_out_ = true;
  std::byte* const first = memory_.data<std::byte>() + next_ % stamps_.size() * stride_of(with_.bytes);
  return {shared_from_this(), next_, first, with_.bytes, s};
}

void written_ring::publish(std::uint64_t number, std::size_t bytes, stream_ref after, source_location at) {
  constexpr char const* operation = "ring_slot::publish";
  require_alive(operation, at);
  if (bytes > with_.bytes)
    throw invalid_use(operation, base::text(bytes, " B, and a slot holds ", with_.bytes, " B"),
                      "Publish the bytes that were written, or set a larger ring_options::bytes", at, error_id{518});
  std::vector<std::shared_ptr<ring_link>> to;
  for (reader const& r : readers_)
    if (!r.left)
      to.push_back(r.link);
  memory_.record_stream(after, at);
  send_behind(operation, after, std::move(to), message_kind::item, number, bytes, at);
  for (reader& r : readers_)
    r.holds |= r.left ? 0 : bit(number);
  stamps_[number % stamps_.size()] = after.stamp();
  ++next_;
  slot_is_out_ = false;
  unpublished_ = {};
}

void written_ring::give_back(stream_ref s) noexcept {
  slot_is_out_ = false;
  unpublished_ = s.stamp();
}

void written_ring::close(source_location at) {
  constexpr char const* operation = "ring_writer::close";
  if (closed_)
    return;
  require_alive(operation, at);
  require_no_slot(operation, at);
  for (stamp const& s : stamps_)
    s.synchronize(at);
  if (!ended_) {
    ended_ = true;
    for (reader const& r : readers_)
      if (!r.left)
        r.link->send(message_kind::end, next_);
  }
  listen(what::all_slots, operation, at);
  wait_for(what::all_slots, operation, at);
  require_readers(operation, at);
  closed_ = true;
  memory_.reset();
}

// ---- readers --------------------------------------------------------------------------------------------

bool written_ring::waits_for(reader const& r, what all) const noexcept {
  if (r.left)
    return false;
  // A reader that has not opened the memory could not open it after the writer's end.
  return all == what::all_slots ? r.holds || !r.opened : r.holds & bit(next_);
}

std::vector<int> written_ring::late_readers() const {
  std::vector<int> out;
  for (std::size_t i = 0; i < readers_.size(); ++i)
    if (waits_for(readers_[i], ended_ ? what::all_slots : what::next_slot))
      out.push_back(static_cast<int>(i));
  return out;
}

// Takes what the readers have sent by now. At the end, a reader that has released everything may have left.
void written_ring::listen(what all, char const* operation, source_location at) {
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    auto const is_heard = [&] { return all == what::all_slots ? waits_for(readers_[i], all) : !readers_[i].left; };
    while (is_heard() && hear(i, {}, operation, at))
      continue;
  }
}

void written_ring::wait_for(what all, char const* operation, source_location at) {
  std::int64_t const end = base::time_limit(with_.timeout).after(base::now_ns());
  for (std::size_t i = 0; i < readers_.size(); ++i) {
    while (waits_for(readers_[i], all)) {
      std::int64_t const left = end - base::now_ns();
      if (hear(i, std::chrono::nanoseconds(left), operation, at))
        continue;
      if (with_.drop_readers) {
        drop(readers_[i]);
        continue;
      }
      // Others may have released theirs meanwhile: late_readers() names none of those.
      listen(all, operation, at);
      if (!waits_for(readers_[i], all))
        continue;
      throw timed_out(
          operation,
          base::text("reader ", i, readers_[i].opened ? " has released nothing" : " has not opened the ring", " for ",
                     with_.timeout.count(), " ms"),
          "Repeat the call, or drop() the reader and go on with the others", at, error_id{519});
    }
  }
}

bool written_ring::hear(std::size_t i, base::time_limit limit, char const* operation, source_location at) {
  reader& r = readers_[i];
  auto const got = r.link->receive(limit);
  switch (got.is) {
    case os::heard::too_late: return false;
    case os::heard::closed: lose(i, "has ended or closed its end", operation, at); return true;
    case os::heard::refused:
      throw driver_error(0, operation, "the system refuses to receive", "Repeat the call", at, error_id{520});
    case os::heard::message: break;
  }
  if (!got.wrong.empty())
    lose(i, "has sent " + got.wrong, operation, at);
  else if (!takes(r, got.what))
    lose(i, base::text("has sent a message that fits no item of it, of number ", got.what.number), operation, at);
  return true;
}

bool written_ring::takes(reader& r, message const& m) const noexcept {
  if (m.kind == message_kind::opened)
    return !std::exchange(r.opened, true);
  bool const under_way = m.number < next_ && next_ - m.number <= stamps_.size();
  if (m.kind != message_kind::released || !under_way || !(r.holds & bit(m.number)))
    return false;
  r.holds &= ~bit(m.number);
  return true;
}

void written_ring::lose(std::size_t i, std::string const& why, char const* operation, source_location at) {
  readers_[i].left = true;
  readers_[i].link->end();
  if (!with_.drop_readers)
    throw peer_disconnected(
        operation, base::text("reader ", i, " ", why),
        readers() ? "Repeat the call: the ring goes on with the other readers" : "Make a new ring: no reader is left",
        at, error_id{521});
}

void written_ring::drop(reader& r) noexcept {
  if (r.left)
    return;
  r.left = true;
  r.link->send(message_kind::dropped);
  r.link->end();
}

void written_ring::drop(int which, source_location at) {
  if (process_was_forked())
    streams::throw_forked("ring_writer::drop", at);
  if (which < 0 || static_cast<std::size_t>(which) >= readers_.size())
    throw invalid_use("ring_writer::drop", base::text("reader ", which, " of ", readers_.size()),
                      "Pass the index of the reader's socket", at, error_id{522});
  drop(readers_[static_cast<std::size_t>(which)]);
}

}  // namespace weir::peer

namespace weir {

ring_slot::ring_slot(std::shared_ptr<peer::written_ring> ring, std::uint64_t number, std::byte* data, size_t size,
                     stream_ref s) noexcept
    : ring_(std::move(ring)), number_(number), data_(data), size_(size), stream_(s) {}
ring_slot::~ring_slot() {
  give_back();
}
ring_slot& ring_slot::operator=(ring_slot&& other) noexcept {
  if (this == &other)
    return *this;
  give_back();
  ring_ = std::move(other.ring_);
  number_ = other.number_;
  data_ = other.data_;
  size_ = other.size_;
  stream_ = other.stream_;
  return *this;
}

void ring_slot::give_back() noexcept {
  if (ring_)
    std::exchange(ring_, nullptr)->give_back(stream_);
}

void ring_slot::publish(size_t bytes, source_location at) {
  publish(bytes, stream_, at);
}

void ring_slot::publish(size_t bytes, stream_ref after, source_location at) {
  if (!ring_)
    throw invalid_use("ring_slot::publish", "a slot that is published, or was moved from", "Take the next slot first",
                      at, error_id{523});
  ring_->publish(number_, bytes, after, at);
  ring_.reset();
}

ring_writer::ring_writer(std::vector<int> const& sockets, ring_options with, source_location at)
    : ring_(std::make_shared<peer::written_ring>(
          sockets, with, streams::resolve(with.on, streams::current_runtime(at), "ring_writer", at), at)) {}
ring_writer::~ring_writer() = default;
ring_writer::ring_writer(ring_writer&&) noexcept = default;
ring_writer& ring_writer::operator=(ring_writer&&) noexcept = default;

peer::written_ring& ring_writer::live(char const* operation, source_location at) const {
  if (!ring_)
    throw invalid_use(operation, "a ring that was moved from", "Use the ring that it was moved to", at, error_id{524});
  return *ring_;
}

ring_slot ring_writer::next(source_location at) {
  return live("ring_writer::next", at).next({}, at);
}
ring_slot ring_writer::next(stream_ref s, source_location at) {
  return live("ring_writer::next", at).next(s, at);
}
void ring_writer::close(source_location at) {
  live("ring_writer::close", at).close(at);
}
int ring_writer::readers() const noexcept {
  return ring_ ? ring_->readers() : 0;
}
std::vector<int> ring_writer::late_readers() const {
  return ring_ ? ring_->late_readers() : std::vector<int>();
}
void ring_writer::drop(int reader, source_location at) {
  live("ring_writer::drop", at).drop(reader, at);
}
void ring_writer::set_timeout(std::chrono::milliseconds timeout, source_location at) {
  auto& ring = live("ring_writer::set_timeout", at);
  peer::require_time("ring_writer::set_timeout", timeout, at);
  ring.set_timeout(timeout);
}

}  // namespace weir
