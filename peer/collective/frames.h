// What the ranks of simulated devices of several processes send each other: a head and the bytes of one rank's part
// of a call, or of its result.
// Threads: any; one thread at a time sends on a line, and one receives.
#pragma once
#include <span>
#include <vector>

#include "peer/collective/group.h"

namespace weir::peer {

using byte_vector = std::vector<std::byte>;

struct frame_head {
  std::uint64_t turn = 0, bytes = 0;
  std::int64_t count = 0;
  std::int32_t root = 0;
  collective what{};
  dtype type{};
  reduce_op how{};
  std::uint8_t leaves = 0;  // 1: the last frame of this rank
  std::uint64_t placed = 0;
  std::uint32_t member = 0, members = 1;
};
static_assert(sizeof(frame_head) == 48);

frame_head head_of(collective_request const&, std::size_t bytes);
collective_request request_of(frame_head const&);
bool known(frame_head const&, int ranks) noexcept;  // whether a program could have made the request

std::size_t brought(collective_request const&, int rank, int ranks);  // bytes that a rank sends to rank 0
std::size_t gotten(collective_request const&, int rank, int ranks);   // bytes of its result
// What all ranks get, and one rank's part of it. `parts`: by rank, or of the sender and the receiver.
byte_vector combine(collective_request const&, std::vector<byte_vector>& parts);
std::span<std::byte const> result(collective_request const&, byte_vector const& whole, int rank, int ranks);

// Block: while the other end does not take, or send, the bytes. Return: false if the line has ended.
bool sent(int line, frame_head const&, std::span<std::byte const>) noexcept;
bool received(int line, frame_head&) noexcept;
bool received(int line, byte_vector&, std::size_t);  // memory is taken as the bytes come: the number is the other end's

}  // namespace weir::peer
