// Two streams use one block. The device begins no work before the end: all answers come from the clocks.
#include <ostream>

#include "scenes.h"
#include "weir/launch.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace pictures {
namespace {

using namespace weir::literals;

void work(weir::stream_ref s, weir::memory_use use) {
  weir::launch(
      s, {use}, [](CUstream_st*) {}, [] {});
}

}  // namespace

void order(std::ostream& out) {
  weir::runtime machine(still_device(64_MiB));
  weir::runtime_guard const in(machine);
  weir::stream a, b;
  film shots(out, "order");

  void* const x = weir::allocate(a, 8_MiB);
  shots.name(x, "x");
  work(a, weir::writes(x));
  shots.shoot("A writes x");
  b.wait(a.stamp());
  work(b, weir::reads(x));
  shots.shoot("B waits for A and reads x");
  weir::stamp const read = b.stamp();
  weir::deallocate(x);
  shots.shoot("x is freed");
  void* const y = weir::allocate(a, 8_MiB);
  expect(y != x, "a block that another stream reads is not handed out");
  shots.shoot_new(y, "y", "A asks for y");
  a.wait(read);
  shots.shoot("A waits for B");
  void* const z = weir::allocate(a, 8_MiB);
  expect(z == x && !read.query(), "order is enough: the read has not run");
  shots.shoot_new(z, "z", "A asks for z");
  weir::simulation::of(machine).run();
  weir::deallocate(y);
  weir::deallocate(z);
}

// Sixteen batches are enqueued at once. Each is written on one stream, used on another and freed.
void ahead(std::ostream& out) {
  using policy = weir::options::wait_policy;
  for (policy const waits : {policy::before_growth, policy::never}) {
    weir::runtime machine(still_device(512_MiB), {.device_waits = waits});
    weir::runtime_guard const in(machine);
    weir::stream loading, computing;
    for (int batch = 1; batch <= 16; ++batch) {
      void* const p = weir::allocate(loading, 8_MiB);
      work(loading, weir::writes(p));
      computing.wait(loading.stamp());
      work(computing, weir::updates(p));
      weir::deallocate(p);
      weir::memory_statistics const s = weir::memory_stats();
      out << R"({"scene":"ahead","waits":)" << (waits == policy::never ? "false" : "true") << R"(,"batch":)" << batch
          << R"(,"reserved":)" << s.reserved_bytes.all.current << R"(,"inserted":)" << s.waits_inserted << "}\n";
    }
    expect(!loading.query() && !computing.query(), "the host is ahead of the device");
    weir::simulation::of(machine).run();
  }
}

}  // namespace pictures
