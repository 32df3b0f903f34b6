// A reader's end of a ring: which item comes next, and which are released.
// Threads: one.
#include <algorithm>
#include <utility>

#include "peer/share/exports.h"
#include "peer/share/ring.h"
#include "runtime/base/text.h"
#include "streams/stream/context.h"

namespace weir::peer {
namespace {
constexpr char const* taking = "ring_reader::take";
constexpr char const* opening = "ring_reader";
}  // namespace

read_ring::read_ring(int socket, int device, std::chrono::milliseconds timeout, source_location at)
    : device_(device), timeout_(timeout) {
  require_socket(opening, socket, at);
  require_time(opening, timeout, at);
  line_.emplace(duplicate_of(socket, opening, at), timeout, at);
  link_ = std::make_shared<ring_link>(socket);
}

// The writer hears of the end once no work of this process can read the slots. Beside a capture that is later.
read_ring::~read_ring() {
  std::uint64_t postponed = 0;
  for (std::uint64_t n = first_under_way(); n < next_; ++n)
    if (of(n).is == state::postponed)
      postponed |= std::uint64_t{1} << (n - first_under_way());
  if (!process_was_forked())
    link_->owe(first_under_way(), postponed);
  if (memory_.is_)
    memory_.is_->until_closed = link_;
  memory_.reset();
}

std::optional<ring_item> read_ring::take(std::optional<stream_ref> on, source_location at) {
  if (process_was_forked())
    streams::throw_forked(taking, at);
  if (is_open() && !memory_.data())
    throw invalid_use(taking, "a ring whose runtime has ended", "Let the runtime live until the ring has ended", at,
                      error_id{501});
  stream_ref const s = on ? *on : current_stream(device_, at);
  require_lasting(taking, s, at);
  if (is_open()) {
    // First: a reader that holds all slots learns of the end, too.
    listen(at);
    release_postponed(at);
    if (end_ != next_)
      make_room_for_next(at);
  }
  std::int64_t const end = base::time_limit(timeout_).after(base::now_ns());
  if (!is_open())
    open(end, at);
  listen(at);
  wait_for_next(end, at);
  slot& place = of(next_);
  if (end_ == next_)
    return std::nullopt;
  place.is = state::taken;
  auto const* const first = memory_.data<std::byte>() + next_ % slots_.size() * stride_of(slot_bytes_);
  return ring_item(shared_from_this(), next_++, first, place.bytes, s);
}

// What an earlier call got before its time was up stays: the call may be repeated.
void read_ring::open(std::int64_t end, source_location at) {
  if (!memory_.data() && !gone_)
    receive_memory(end, at);
  if (!gone_)
    (void)hear(std::chrono::nanoseconds(end - base::now_ns()), at);
  if (!is_open())
    throw_nothing_came(at);
}

void read_ring::receive_memory(std::int64_t end, source_location at) {
  try {
    auto const left = std::chrono::nanoseconds(end - base::now_ns());
    line_->set_timeout(std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(left)), at);
    memory_ = line_->receive(device_, at);
  } catch (not_supported const&) {
    give_up();
    throw;
  } catch (peer_disconnected const&) {
    give_up();
    throw;
  } catch (invalid_use const&) {
    give_up();
    throw;
  }
}

void read_ring::make_room_for_next(source_location at) {
  slot const& place = of(next_);
  if (place.is == state::taken)
    throw invalid_use(taking,
                      base::text("item ", next_ - slots_.size(), " is not released, so that item ", next_,
                                 " would never come into its slot"),
                      "Release an item, or set more slots", at, error_id{502});
  // The writer cannot fill the slot before it hears of the release. So this costs nothing, and no writer is blamed.
  place.released.synchronize(at);
}

// Takes what the writer has sent by now: it may have dropped this reader.
void read_ring::listen(source_location at) {
  bool more = true;
  while (more && !gone_ && !dropped_)
    more = hear({}, at);
  require_link(at);
}

// Ensures: the next item has arrived and stays, or the writer has closed the ring before it.
void read_ring::wait_for_next(std::int64_t end, source_location at) {
  while (!dropped_ && !gone_ && !has_next()) {
    if (!hear(std::chrono::nanoseconds(end - base::now_ns()), at))
      throw_nothing_came(at);
  }
  require_link(at);
  // No item follows, and no close().
  if (of(next_).is != state::arrived && !closed_)
    throw_disconnected(at);
}

void read_ring::require_link(source_location at) const {
  // Its slots serve other items from now on.
  if (dropped_)
    throw peer_disconnected(taking, "the writer has dropped this reader",
                            "Make both ends anew. The bytes of items that are held may have changed", at,
                            error_id{503});
  // The writer may live and fill slots again, those of items that have arrived among them.
  if (gone_ && !end_)
    throw_disconnected(at);
}

void read_ring::throw_disconnected(source_location at) const {
  throw peer_disconnected(taking, base::text("the link to the writer has ended before item ", next_),
                          "Make both ends anew. If the writer lives, the bytes of items that are held may have changed",
                          at, error_id{504});
}

void read_ring::throw_nothing_came(source_location at) const {
  if (gone_)
    throw_disconnected(at);
  throw timed_out(taking, base::text("the writer has published nothing for ", timeout_.count(), " ms"),
                  "Repeat the call, or end the ring: the writer may be stopped", at, error_id{505});
}

// ---- messages -------------------------------------------------------------------------------------------

bool read_ring::hear(base::time_limit limit, source_location at) {
  auto const got = link_->receive(limit);
  switch (got.is) {
    case os::heard::too_late: return false;
    case os::heard::closed: gone_ = true; return true;
    case os::heard::refused:
      throw driver_error(0, taking, "the system refuses to receive", "Repeat the call", at, error_id{506});
    case os::heard::message: break;
  }
  if (!got.wrong.empty())
    refuse(got.wrong, at);
  if (!takes(got.what))
    refuse(base::text("a message that does not fit this ring, of number ", got.what.number), at);
  return true;
}

bool read_ring::takes(message const& m) {
  if (!is_open())
    return takes_ring(m);
  if (m.kind == message_kind::dropped)
    return dropped_ = true;
  if (m.kind == message_kind::end || m.kind == message_kind::unclosed)
    return takes_end(m);
  bool const fits =
      (!end_ || m.number < *end_) && m.number >= next_ && m.number - next_ < slots_.size() && m.bytes <= slot_bytes_;
  if (m.kind != message_kind::item || !fits || of(m.number).is != state::empty)
    return false;
  of(m.number).is = state::arrived;
  of(m.number).bytes = m.bytes;
  seen_ = std::max(seen_, m.number + 1);
  return true;
}

bool read_ring::takes_end(message const& m) {
  if (end_ || m.number < seen_ || m.number - next_ > slots_.size())
    return false;
  end_ = m.number;
  closed_ = m.kind == message_kind::end;
  return true;
}

bool read_ring::takes_ring(message const& m) {
  bool const fits = m.kind == message_kind::ring && m.number > 0 && m.number <= ring_options::most_slots &&
                    m.bytes > 0 && m.bytes <= memory_.size() && stride_of(m.bytes) * m.number <= memory_.size();
  if (!fits)
    return false;
  slot_bytes_ = m.bytes;
  slots_.resize(m.number);
  line_.reset();
  link_->send(message_kind::opened);
  return true;
}

// The writer fills slots again once it notices.
void read_ring::give_up() noexcept {
  gone_ = true;
  end_.reset();
  link_->end();
}

void read_ring::refuse(std::string const& why, source_location at) {
  give_up();
  throw invalid_use(taking, why, "Let a ring_writer of the same version of weir alone write to the socket", at,
                    error_id{507});
}

// ---- releases -------------------------------------------------------------------------------------------

void read_ring::release(std::uint64_t number, stream_ref last_use, source_location at) {
  send_behind("ring_item::release", last_use, {link_}, message_kind::released, number, 0, at);
  of(number).is = state::empty;
  of(number).released = last_use.stamp();
}

void read_ring::postpone(std::uint64_t number, stream_ref last_use) noexcept {
  of(number).is = state::postponed;
  of(number).device = last_use.device().index();
}

void read_ring::release_postponed(source_location at) {
  for (std::uint64_t n = first_under_way(); n < next_; ++n) {
    if (of(n).is != state::postponed)
      continue;
    // The stream of its work is not known any more.
    synchronize(of(n).device, at);
    of(n).is = state::empty;
    link_->send(message_kind::released, n);
  }
}

}  // namespace weir::peer

namespace weir {

ring_item::ring_item(std::shared_ptr<peer::read_ring> ring, std::uint64_t number, std::byte const* data, size_t size,
                     stream_ref s) noexcept
    : ring_(std::move(ring)), number_(number), data_(data), size_(size), stream_(s) {}
ring_item::~ring_item() {
  give_back();
}
ring_item& ring_item::operator=(ring_item&& other) noexcept {
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

void ring_item::give_back() noexcept {
  auto const ring = std::exchange(ring_, nullptr);
  if (!ring)
    return;
  try {
    ring->release(number_, stream_, source_location::current());
  } catch (...) {
    ring->postpone(number_, stream_);
  }
}

void ring_item::release(source_location at) {
  release(stream_, at);
}

void ring_item::release(stream_ref last_use, source_location at) {
  if (!ring_)
    throw invalid_use("ring_item::release", "an item that is released, or was moved from", "Release each item once", at,
                      error_id{508});
  ring_->release(number_, last_use, at);
  ring_.reset();
}

ring_reader::ring_reader(int socket, device reader, std::chrono::milliseconds timeout, source_location at)
    : ring_(std::make_shared<peer::read_ring>(
          socket, streams::resolve(reader, streams::current_runtime(at), "ring_reader", at), timeout, at)) {}
ring_reader::~ring_reader() = default;
ring_reader::ring_reader(ring_reader&&) noexcept = default;
ring_reader& ring_reader::operator=(ring_reader&&) noexcept = default;

peer::read_ring& ring_reader::live(char const* operation, source_location at) const {
  if (!ring_)
    throw invalid_use(operation, "a ring that was moved from", "Use the ring that it was moved to", at, error_id{509});
  return *ring_;
}

std::optional<ring_item> ring_reader::take(source_location at) {
  return live("ring_reader::take", at).take({}, at);
}
std::optional<ring_item> ring_reader::take(stream_ref s, source_location at) {
  return live("ring_reader::take", at).take(s, at);
}
void ring_reader::set_timeout(std::chrono::milliseconds timeout, source_location at) {
  auto& ring = live("ring_reader::set_timeout", at);
  peer::require_time("ring_reader::set_timeout", timeout, at);
  ring.set_timeout(timeout);
}

}  // namespace weir
