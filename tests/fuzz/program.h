// A program of driver-interface calls, legal and illegal, made from a seed. It consists of numbers only, so
// that any machine can play it and it can be shrunk.
// Threads: none of its own.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::fuzz {

enum class verb : std::uint8_t {
  reserve,
  unreserve,
  create,
  release,
  map,
  unmap,
  grant,
  create_segment,
  release_segment,
  pin,
  unpin,
  find,
  peer,
  create_stream,
  destroy_stream,
  query_stream,
  synchronize_stream,
  capturing,
  create_event,
  destroy_event,
  record,
  wait,
  query_event,
  synchronize_event,
  elapsed,
  copy,
  copy_peer,
  fill,
  kernel,
  graph,
  host_function,
  hold,
  open_gate,
};
std::string_view name_of(verb) noexcept;

struct call {
  verb what{};
  // the player maps them to objects, offsets and illegal twists
  std::array<int, 6> with{};
};
using program = std::vector<call>;

program make_program(std::uint64_t seed);
// Removes as many calls as possible while `fails` stays true. Requires: fails(p).
program shrink(program p, std::function<bool(program const&)> const& fails);
std::string text_of(program const&);

}  // namespace weir::fuzz
