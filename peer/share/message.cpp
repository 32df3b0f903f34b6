// Validates a received message.
// Threads: any.
#include "peer/share/message.h"

#include <algorithm>
#include <cstddef>

#include "runtime/base/text.h"

namespace weir::peer {

std::span<std::byte const> bytes_of(message const& m) noexcept {
  return std::as_bytes(std::span(&m, 1));
}

// Mixes in every byte, so that swapped, moved or flipped bits change the sum.
std::uint64_t checksum_of(message const& m) noexcept {
  std::uint64_t sum = 0x9e3779b97f4a7c15u;
  for (std::byte const b : bytes_of(m).first(offsetof(message, checksum))) {
    sum = (sum ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
    sum ^= sum >> 29;
  }
  return sum;
}

std::string uuid_of(message const& m) {
  return {m.device.begin(), std::find(m.device.begin(), m.device.end(), '\0')};
}

std::string judge(message const& m, std::size_t bytes, std::size_t files, bool cut) {
  if (bytes < sizeof(m.magic) || m.magic != message::mark)
    return base::text("a foreign message of ", bytes, " B");
  if (bytes >= offsetof(message, kind) && m.version != message::this_version)
    return base::text("a message of version ", m.version, ", this is version ", message::this_version);
  if (bytes != sizeof m)
    return base::text("a message of ", bytes, " B, ", sizeof m, " are whole");
  if (m.checksum != checksum_of(m))
    return "a damaged message: its checksum is wrong";
  if (m.kind != message_kind::number && m.kind != message_kind::buffer && !is_of_ring(m.kind))
    return "a message of an unknown kind";
  std::size_t const wanted = m.kind == message_kind::buffer ? 2 : 0;
  if (cut && files <= wanted)
    return "a message without all its descriptors: this process has reached its limit of open files";
  if (files != wanted)
    return base::text("a message with ", files, " descriptors");
  if (m.kind != message_kind::buffer)
    return {};
  bool const fits =
      m.bytes > 0 && m.bytes <= m.handle_bytes && m.offset <= m.handle_bytes - m.bytes && m.offset % granule == 0;
  if (!fits)
    return "a message of impossible sizes";
  auto const uuid = uuid_of(m);
  if (!std::all_of(uuid.begin(), uuid.end(), [](char c) { return c >= ' ' && c <= '~'; }))
    return "a message with an invalid device name";
  return {};
}

}  // namespace weir::peer
