// The socket between the two ends of a ring, and what both ends require.
// Threads: as ring.h says.
#include "peer/share/ring.h"

#include <bit>

#include "runtime/base/os_tcp.h"
#include "runtime/base/text.h"
#include "streams/stream/context.h"
#include "weir/launch.h"

namespace weir::peer {

ring_link::~ring_link() {
  if (process_was_forked())
    return;
  for (; owed_; owed_ &= owed_ - 1)
    send(message_kind::released, first_owed_ + static_cast<unsigned>(std::countr_zero(owed_)));
}

void ring_link::send(message_kind kind, std::uint64_t number, std::uint64_t bytes) const noexcept {
  message m{.kind = kind, .number = number, .bytes = bytes};
  m.checksum = checksum_of(m);
  // The queue has room: no more messages are under way than items.
  if (os::send_message(socket_.get(), bytes_of(m), {}, {}) != os::heard::message)
    end();
}

ring_link::heard ring_link::receive(base::time_limit limit) const {
  heard out;
  os::received const got = os::receive_message(socket_.get(), std::as_writable_bytes(std::span(&out.what, 1)), limit);
  out.is = got.is;
  if (got.is != os::heard::message)
    return out;
  out.wrong = judge(out.what, got.bytes, got.file_count, got.cut);
  if (out.wrong.empty() && !is_of_ring(out.what.kind))
    out.wrong = "a message that is not a ring's";
  return out;
}

void ring_link::end() const noexcept {
  os::shut_down(socket_.get());
}

int duplicate_of(int socket, char const* operation, source_location at) {
  int const made = os::duplicate_file(socket);
  if (made < 0)
    throw driver_error(0, operation, "the system has no descriptors left", "Close some, or raise the limit (ulimit -n)",
                       at, error_id{497});
  return made;
}

void require_socket(char const* operation, int socket, source_location at) {
  if (!os::is_message_socket(socket))
    throw invalid_use(operation, base::text("descriptor ", socket, " is not a Unix socket of type SOCK_SEQPACKET"),
                      "Create it with socketpair(AF_UNIX, SOCK_SEQPACKET, ...), or with bind, listen and accept", at,
                      error_id{498});
}

void require_time(char const* operation, std::chrono::milliseconds timeout, source_location at) {
  if (timeout.count() <= 0)
    throw invalid_use(operation, base::text("a timeout of ", timeout.count(), " ms"),
                      "Pass a positive time to wait for the other end", at, error_id{499});
}

void require_lasting(char const* operation, stream_ref s, source_location at) {
  clock::stream_clock const& stream = streams::clock_or_throw(s, operation, at);
  if (stream.alive() == clock::life::borrowed)
    throw invalid_use(operation, "a borrowed stream, " + streams::describe(stream),
                      "Keep an external_stream of it: it is named again when its slot or item ends", at, error_id{500});
}

void send_behind(char const* operation, stream_ref s, std::vector<std::shared_ptr<ring_link>> to, message_kind kind,
                 std::uint64_t number, std::uint64_t bytes, source_location at) {
  require_lasting(operation, s, at);
  launch_host(
      s,
      [to = std::move(to), kind, number, bytes] {
        for (auto const& link : to)
          link->send(kind, number, bytes);
      },
      at);
}

}  // namespace weir::peer
