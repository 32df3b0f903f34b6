// A checker in front of a simulated machine that is told of calls past weir, as a watcher of CUDA would tell them.
// Threads: one.
#pragma once
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "runtime/driver/seen_calls.h"
#include "tests/check/bench.h"

namespace weir::driver::check {

inline seen_pointer reads_at(address at) {
  return {at, false, false};
}
inline seen_pointer writes_at(address at) {
  return {at, true, false};
}
inline seen_pointer inside_at(address at) {  // found in a structure
  return {at, true, true};
}

struct told : bench {
  using pointers = std::vector<seen_pointer>;
  static std::uintptr_t cuda(stream_handle s) { return static_cast<std::uintptr_t>(s); }
  static std::uintptr_t cuda(event_handle e) { return static_cast<std::uintptr_t>(e); }
  static std::size_t resident() {  // bytes of this process that lie in host memory
    std::ifstream file("/proc/self/statm");
    std::size_t all = 0, here = 0;
    file >> all >> here;
    return here * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  }
  static base::site at_line(int line) { return {nullptr, {"program.cu", "", static_cast<unsigned>(line)}}; }

  // Mapped memory with one block of `home`.
  address block(stream_handle home, std::size_t bytes = 4096) {
    address const at = memory();
    begins(home, at, bytes, ++blocks_);
    return at;
  }
  void launch(stream_handle s, pointers const& p, int line, char const* kernel = "scale") {
    calls.launched(0, cuda(s), kernel, p, at_line(line));
  }
  // As a program orders two streams by CUDA.
  void told_order(stream_handle first, stream_handle later, std::uintptr_t event = 0x1000) {
    calls.recorded(0, cuda(first), event);
    calls.waited(0, cuda(later), event);
  }
  void expect(std::vector<kind> const& wanted) { EXPECT_EQ(kinds(), wanted) << text(); }
  void expect_words(std::initializer_list<char const*> words) {
    for (char const* const word : words)
      EXPECT_NE(text().find(word), std::string::npos) << word << " in: " << text();
  }
  void expect_none() { expect({}); }

  seen_calls& calls = *judge->calls();

 private:
  int blocks_ = 0;
};

}  // namespace weir::driver::check
