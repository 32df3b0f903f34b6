// A program that captures work of two streams with memory inside, launches it, and updates it.
// Threads: one.
#include <vector>

#include "tests/faults/scenario.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/launch.h"

namespace weir::faults {
namespace {

void add_one(stream_ref s, buffer const& b) {
  auto* const bytes = b.data<unsigned char>();
  std::size_t const n = b.size();
  launch(
      s, {updates(b)}, [](CUstream_st*) {},
      [=] {
        for (std::size_t i = 0; i < n; ++i)
          ++bytes[i];
      });
}

// x + 1 on a; y = the first bytes of x, by a block of the graph, on b, while a fills other bytes of x; then y + 1 on a.
void fork_and_join(stream_ref a, stream_ref b, buffer const& x, buffer const& y, std::byte value) {
  add_one(a, x);
  b.wait(a.record_event());
  {
    buffer const between(b, 70'000);
    copy(b, between.data(), x.data(), 1000, non_blocking);
    copy(b, y.data(), between.data(), 1000, non_blocking);
  }
  fill(x.data<char>() + 2000, value, 100);
  a.wait(b.record_event());
  add_one(a, y);
}

}  // namespace

std::string captured_and_launched_twice() {
  stream a, b;
  buffer const out = pinned(2 * 4096);
  buffer x(4096), y(4096), before(a, 5000);
  for (buffer const* one : {&x, &y}) {
    fill(one->data(), std::byte(one == &x ? 1 : 2), 4096);
    for (stream_ref const s : {stream_ref(a), stream_ref(b)})
      one->record_stream(s);
  }
  a.wait(current_stream());
  b.wait(a);
  graph twice = graph::capture(a, [&] {
    fork_and_join(a, b, x, y, std::byte{9});
    before.reset();
  });
  twice.launch(a);
  buffer const meanwhile(70'000);
  twice.launch(a);
  twice.update(a, [&] { fork_and_join(a, b, x, y, std::byte{8}); });
  twice.launch(a);
  copy(a, out.data(), x.data(), 4096, non_blocking);
  copy(a, out.data<char>() + 4096, y.data(), 4096, non_blocking);
  a.synchronize();
  current_stream().wait(a);
  return std::string(out.data<char>(), out.size());
}

// The free of a block from before is the first that weir hears of the capture.
std::string freed_first_in_a_capture() {
  stream const s;
  buffer const out = pinned(70'000);
  buffer before(s, 70'000);
  graph again = graph::capture(s, [&] {
    fill(before.data(), std::byte{7}, before.size());
    deallocate(before.data());
    (void)before.release();
  });
  buffer const meanwhile(s, 70'000);
  fill(s, meanwhile.data(), std::byte{5}, meanwhile.size());
  again.launch(s);
  copy(s, out.data(), meanwhile.data(), out.size(), non_blocking);
  s.synchronize();
  return std::string(out.data<char>(), out.size());
}

}  // namespace weir::faults
