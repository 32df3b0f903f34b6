// Counts and refuses system calls through os::refuse_by.
// Threads: as system.h.
#include "tests/faults/system.h"

#include <algorithm>
#include <array>

#include "tests/faults/heap.h"

namespace weir::faults::system {
namespace {

struct of_thread {
  bool watching = false, due = false;
  std::uint64_t left = 0, more = 0, made = 0;
};
constinit thread_local of_thread mine;
std::array<os::call, 10'000> made_calls;  // of the one thread that watches
constinit std::array<std::uint64_t, os::call_count> refusals{};

bool ask(os::call c) noexcept {
  if (!mine.watching || !os::made_often(c))
    return false;
  if (mine.made < made_calls.size())
    made_calls[mine.made] = c;
  ++mine.made;
  if (mine.left && --mine.left == 0)
    mine.due = true;
  if (!mine.due)
    return false;
  ++refusals[static_cast<std::size_t>(c)];
  if (mine.more == 0)
    mine.due = false;
  else if (mine.more != without_end)
    --mine.more;
  return true;
}

}  // namespace

void fail(std::uint64_t k, std::uint64_t more) noexcept {
  mine = {.watching = true, .left = k, .more = more};
  os::refuse_by(ask);
}

std::vector<os::call> stop() {
  heap::paused const quiet;
  os::refuse_by(nullptr);
  mine.watching = false;
  return {made_calls.begin(),
          made_calls.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(mine.made, made_calls.size()))};
}

std::uint64_t times_refused(os::call c) noexcept {
  return refusals[static_cast<std::size_t>(c)];
}

char const* name_of(os::call c) noexcept {
  static constexpr std::array<char const*, os::call_count> names{
#define WEIR_ONE(name) #name,
      WEIR_SYSTEM_CALLS(WEIR_ONE)
#undef WEIR_ONE
  };
  return names[static_cast<std::size_t>(c)];
}

}  // namespace weir::faults::system
