// Host allocations are refused while a watcher of CUDA tells its calls: inside CUDA's callbacks nothing may be thrown.
// Threads: one.
#include "tests/check/told.h"
#include "tests/faults/heap.h"

namespace weir::driver::check {
namespace {

struct told_without_memory : told {
  stream_handle const a = stream(), b = stream();
  address const x = block(a), y = block(a);
  static constexpr address theirs = 0x700000000000;

  // One call of each kind; the program is right.
  void tell_all() {
    calls.stream_made(0, 0x5000, true);
    calls.allocated(0, seen_calls::no_stream, theirs, 4096, at_line(1));
    calls.launched(0, cuda(a), "_Z5scalePf", once_, at_line(2));
    calls.launched(0, 0x5000, "_Z3sumPKf", theirs_, at_line(3));
    calls.recorded(0, cuda(a), 0x1000);
    calls.waited(0, cuda(b), 0x1000);
    calls.copied(0, cuda(b), y, x, 64, false, at_line(4));
    calls.filled(0, cuda(b), y, 64, true, at_line(5));
    calls.host_function(0, cuda(a), at_line(6));
    calls.not_understood("launches with a packed parameter buffer");
    calls.event_done(0x1000);
    calls.stream_done(0, cuda(b));
    calls.graph_launched(0, cuda(b), 0x9000, at_line(7));
    calls.device_done(0);
    calls.graph_gone(0x9000);
    calls.freed(0, seen_calls::no_stream, theirs, at_line(8));
    calls.found(0, theirs + 4096, 4096, at_line(9));
    calls.unmapped(theirs + 4096, 4096, at_line(10));
    calls.found(0, theirs, 8192, at_line(11));
    calls.hidden(theirs, 8192);
    calls.event_gone(0x1000);
    calls.stream_gone(0, 0x5000);
  }

 private:
  pointers const once_{writes_at(x)}, theirs_{reads_at(theirs)};
};

TEST_F(told_without_memory, each_call_that_is_missed_is_counted) {
  using weir::faults::heap::fail, weir::faults::heap::stop, weir::faults::heap::without_end;
  for (std::uint64_t const more : {std::uint64_t{0}, without_end}) {
    std::uint64_t refused = 1;
    for (std::uint64_t k = 1; refused && k < 500; ++k) {
      auto const missed = judge->unseen().missed_calls;
      calls.graph_made(0x9000, {{"scale", {writes_at(x)}, {{y, 64, true}}, {}}});
      fail(k, more);
      tell_all();
      refused = stop();
      EXPECT_EQ(judge->unseen().missed_calls > missed, refused > 0) << k;
      tell_all();
    }
    EXPECT_EQ(refused, 0u);
  }
  expect_none();  // nor is a wait that was missed taken for one that the program lacks
}

}  // namespace
}  // namespace weir::driver::check
