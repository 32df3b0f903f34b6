// Work of random programs on a stream: fills a block with one value, or checks that it still has it.
// Threads: any; the work runs where the machine runs it.
#pragma once
#include <cstring>

#include "tests/explore/explore.h"

namespace weir::tests {

enum class filled : std::uint8_t { now, still };

// otherwise: the failure if the value is gone.
inline void give_filled(trial& t, clock::stream_clock& line, filled how, void* p, std::size_t bytes,
                        unsigned char value, std::string otherwise = "a block in use was overwritten") {
  struct job {
    trial* t;
    unsigned char* at;
    std::size_t bytes;
    unsigned char value;
    std::string otherwise;
  };
  driver::touch const all{reinterpret_cast<driver::address>(p), bytes, how == filled::now};
  auto const write = [](void* x) {
    auto const& j = *static_cast<job*>(x);
    std::memset(j.at, j.value, j.bytes);
  };
  auto const look = [](void* x) {
    auto const& j = *static_cast<job*>(x);
    if (j.at[0] != j.value || std::memcmp(j.at, j.at + 1, j.bytes - 1) != 0)
      j.t->fail(j.otherwise);
  };
  driver::work const w{how == filled::now ? static_cast<void (*)(void*)>(write) : look,
                       [](void* x) { delete static_cast<job*>(x); },
                       new job{&t, static_cast<unsigned char*>(p), bytes, value, std::move(otherwise)}};
  t.must(t.machine().enqueue(line.device(), line.handle(), {&all, 1}, w), "enqueue");
}

}  // namespace weir::tests
