// The threads of this process, as the system counts them.
// Threads: any.
#pragma once
#include <cstdint>
#include <vector>

namespace weir::os {

struct thread_seen {
  int number = 0;           // of the system
  std::uint64_t waits = 0;  // how often it has begun to wait for something
  bool operator==(thread_seen const&) const = default;
};
int this_thread() noexcept;               // its number
std::vector<thread_seen> threads_here();  // of the whole process, those of libraries too. Empty: not known

}  // namespace weir::os
