// Threads: as the header says.
#include "peer/collective/frames.h"

#include <algorithm>

#include "peer/collective/host_reduce.h"

namespace weir::peer {
namespace {

bool filled(int line, std::span<std::byte> into) noexcept {
  return os::receive_bytes(line, into, os::no_limit) == os::heard::message;
}

}  // namespace

frame_head head_of(collective_request const& r, std::size_t bytes) {
  return {r.turn, bytes, r.count, r.root, r.what, r.type, r.how, 0, r.placed, r.member, r.members};
}

collective_request request_of(frame_head const& h) {
  return {h.what, h.type, h.how, h.root, h.count, nullptr, nullptr, h.turn, h.placed, h.member, h.members};
}

bool known(frame_head const& h, int ranks) noexcept {
  return h.what <= collective::register_pool && h.type <= boolean && h.how <= reduce_op::max && h.count >= 0 &&
         h.count < (std::int64_t{1} << 58) / ranks && h.root >= 0 && h.root < ranks && h.member < h.members;
}

std::size_t brought(collective_request const& r, int rank, int ranks) {
  std::size_t const part = r.part_bytes();
  switch (r.what) {
    case collective::all_reduce:
    case collective::all_gather:
    case collective::gather:
    case collective::send: return part;
    case collective::reduce_scatter:
    case collective::all_to_all: return part * static_cast<std::size_t>(ranks);
    case collective::receive:
    case collective::register_pool: return 0;
    case collective::broadcast: return rank == r.root ? part : 0;
    case collective::scatter: return rank == r.root ? part * static_cast<std::size_t>(ranks) : 0;
  }
  return 0;
}

std::size_t gotten(collective_request const& r, int rank, int ranks) {
  std::size_t const part = r.part_bytes();
  switch (r.what) {
    case collective::all_reduce:
    case collective::reduce_scatter:
    case collective::scatter:
    case collective::receive: return part;
    case collective::send:
    case collective::register_pool: return 0;
    case collective::broadcast: return rank == r.root ? 0 : part;
    case collective::all_gather:
    case collective::all_to_all: return part * static_cast<std::size_t>(ranks);
    case collective::gather: return rank == r.root ? part * static_cast<std::size_t>(ranks) : 0;
  }
  return 0;
}

namespace {

byte_vector joined_by_rank(std::vector<byte_vector> const& parts) {
  byte_vector all;
  for (byte_vector const& p : parts)
    all.insert(all.end(), p.begin(), p.end());
  return all;
}

// For each receiver in turn, what all ranks bring for it: `one` bytes each.
byte_vector joined_by_receiver(std::vector<byte_vector> const& parts, std::size_t one) {
  byte_vector all;
  for (std::size_t at = 0; at < parts.size() * one; at += one)
    for (byte_vector const& p : parts)
      all.insert(all.end(), p.data() + at, p.data() + at + one);
  return all;
}

byte_vector reduced(collective_request const& r, std::vector<byte_vector> const& parts) {
  byte_vector all(parts[0].size());
  std::vector<void const*> in;
  for (byte_vector const& p : parts)
    in.push_back(p.data());
  void* const out = all.data();
  reduce(r.type, r.how, in, {&out, 1}, 0, static_cast<std::int64_t>(all.size() / size_of(r.type)));
  return all;
}

}  // namespace

byte_vector combine(collective_request const& r, std::vector<byte_vector>& parts) {
  switch (r.what) {
    case collective::all_reduce:
    case collective::reduce_scatter: return reduced(r, parts);
    case collective::broadcast:
    case collective::scatter: return std::move(parts[static_cast<std::size_t>(r.root)]);
    case collective::all_gather:
    case collective::gather: return joined_by_rank(parts);
    case collective::all_to_all: return joined_by_receiver(parts, r.part_bytes());
    case collective::send:
    case collective::receive: return std::move(parts[0]);
    case collective::register_pool: return {};
  }
  return {};
}

std::span<std::byte const> result(collective_request const& r, byte_vector const& whole, int rank, int ranks) {
  std::size_t const n = gotten(r, rank, ranks);
  bool const sliced =
      r.what == collective::reduce_scatter || r.what == collective::scatter || r.what == collective::all_to_all;
  return std::span(whole).subspan(sliced ? n * static_cast<std::size_t>(rank) : 0, n);
}

bool sent(int line, frame_head const& h, std::span<std::byte const> part) noexcept {
  return os::send_bytes(line, std::as_bytes(std::span(&h, 1)), os::no_limit) == os::heard::message &&
         os::send_bytes(line, part, os::no_limit) == os::heard::message;
}

bool received(int line, frame_head& h) noexcept {
  return filled(line, std::as_writable_bytes(std::span(&h, 1)));
}

bool received(int line, byte_vector& part, std::size_t n) {
  constexpr std::size_t step = std::size_t{4} << 20;
  while (part.size() < n) {
    std::size_t const at = part.size();
    part.resize(std::min(n, at + std::max(at, step)));  // at most twice what has come, or the first step
    if (!filled(line, std::span(part).subspan(at)))
      return false;
  }
  return true;
}

}  // namespace weir::peer
