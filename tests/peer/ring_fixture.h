// Fixtures for tests of rings: both ends in this process, items of one byte's value.
// Threads: one.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "runtime/base/os_tcp.h"
#include "tests/peer/share_fixture.h"
#include "weir/ring.h"

namespace weir::test::rings {

using namespace std::chrono_literals;

// A writer on gpu:0, and readers in turn on gpu:1 and gpu:0.
struct ring_ends {
  explicit ring_ends(int readers, ring_options with = {.bytes = 5000, .slots = 2, .timeout = 20s},
                     std::chrono::milliseconds patience = 20s) {
    std::vector<int> theirs;
    for (int i = 0; i < readers; ++i) {
      auto const [a, b] = os::make_sockets();
      own.push_back(a);
      theirs.push_back(b);
    }
    with.on = 0;
    writer.emplace(own, with);
    for (int i = 0; i < readers; ++i)
      this->readers.emplace_back(ring_reader(theirs[static_cast<std::size_t>(i)], device((i + 1) % 2), patience));
  }
  ring_reader& reader(std::size_t i) { return *readers[i]; }
  // As the end of a killed process, or a message that the system refuses: neither end says a word.
  void break_link(std::size_t i) const { os::shut_down(own[i]); }

  std::vector<int> own;  // the sockets of the writer
  std::optional<ring_writer> writer;
  std::vector<std::optional<ring_reader>> readers;
};

// Publishes an item of that many bytes of one value.
inline void publish(ring_writer& to, unsigned value, std::size_t bytes = 5000, stream_ref s = default_stream(0)) {
  stream_guard const on(s);
  ring_slot slot = to.next(s);
  fill(slot.data(), static_cast<std::byte>(value), bytes);
  slot.publish(bytes);
}

inline bool holds(ring_item const& item, unsigned value, std::size_t bytes = 5000) {
  auto const seen = read_back(item.data(), item.size(), 0);
  return seen.size() == bytes &&
         std::ranges::all_of(seen, [&](auto b) { return std::byte(b) == static_cast<std::byte>(value); });
}

// Returns: what the call's exception says; empty: it threw none of that type.
template <class Error, class Call>
std::string said(Call call) {
  try {
    call();
  } catch (Error const& e) {
    return e.what();
  }
  return {};
}

}  // namespace weir::test::rings
