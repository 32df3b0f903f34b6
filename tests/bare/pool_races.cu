// CUDA programs that take memory and streams from weir, and launch without a declaration. Each leaves out an order or a
// record.
// Usage and the words of the list: see work.cuh and races.cu. A use that is declared to weir is judged as a copy is.
#include <exception>

#include "tests/bare/work.cuh"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/stream.h"

namespace bare {
namespace {

constexpr int device = 0;

// What all cases use. weir's streams are not ordered with the legacy stream. The end waits for all work.
struct pool_scene {
  weir::stream a, b;
  weir::buffer x{a, bytes}, y{a, bytes}, last{a, bytes};
  weir::buffer host = weir::pinned(bytes);

  pool_scene() {
    for (weir::buffer const* const one : {&x, &y, &last})
      weir::fill(a, one->data(), std::byte{}, bytes);
    for (float& f : host.host<float>())
      f = 1;
    a.synchronize();
  }
  ~pool_scene() {
    must(cudaGetLastError());
    weir::synchronize();
  }
  void read_on(cudaStream_t s, void const* from) {
    read<<<grid, threads, 0, s>>>(static_cast<float const*>(from), count, late, last.data<float>());
  }
};

// The launch on the second stream is not recorded: after its free, the first stream may reuse the memory at once.
void missing_record(bool right) {
  pool_scene s;
  weir::buffer const block(s.a, bytes);
  weir::fill(s.a, block.data(), std::byte{}, bytes);
  s.b.wait(s.a);
  s.read_on(s.b.native(), block.data());
  if (right)
    block.record_stream(s.b);
}

// The free names the stream that allocated the block, not the one that used it last.
void freed_after_the_wrong_stream(bool right) {
  pool_scene s;
  void* const block = weir::allocate(s.a, bytes);
  weir::fill(s.a, block, std::byte{}, bytes);
  s.b.wait(s.a);
  s.read_on(s.b.native(), block);
  weir::deallocate(right ? s.b.ref() : s.a.ref(), block);
}

// The block of a round ends with the round, and the next one fills its memory beside the reader.
void reused_in_the_next_round(bool right) {
  pool_scene s;
  for (int round = 0; round < 3; ++round) {
    weir::buffer const batch(s.a, bytes);
    weir::copy(s.a, batch.data(), s.host.data(), bytes, weir::non_blocking);
    s.b.wait(s.a);
    s.read_on(s.b.native(), batch.data());
    if (right)
      batch.record_stream(s.b);
  }
}

// The record names a stream that the launch is not on.
void recorded_on_the_wrong_stream(bool right) {
  pool_scene s;
  weir::stream const c;
  weir::buffer const block(s.a, bytes);
  weir::fill(s.a, block.data(), std::byte{}, bytes);
  c.wait(s.a);
  s.read_on(c.native(), block.data());
  block.record_stream(right ? c.ref() : s.b.ref());
}

// The launch names no stream, and the copies are on a stream of weir: it is ordered with neither.
void launch_without_a_stream(bool right) {
  pool_scene s;
  weir::copy(s.a, s.x.data(), s.host.data(), bytes, weir::non_blocking);
  cudaStream_t const on = right ? s.a.native() : nullptr;
  update<<<grid, threads, 0, on>>>(s.x.data<float>(), count, late);
  weir::copy(s.a, s.host.data(), s.x.data(), bytes);
}

// weir fills the block beside a launch that reads it.
void fill_beside_a_launch(bool right) {
  pool_scene s;
  s.read_on(s.b.native(), s.x.data());
  if (right)
    s.a.wait(s.b);
  weir::fill(s.a, s.x.data(), std::byte{}, bytes);
}

// The results are copied by weir on a stream that does not wait for the launch.
void results_copied_early(bool right) {
  pool_scene s;
  write<<<grid, threads, 0, s.b.native()>>>(s.x.data<float>(), count, late);
  if (right)
    s.a.wait(s.b);
  weir::copy(s.a, s.host.data(), s.x.data(), bytes);
}

// The host reads pinned memory that a launch still writes.
void host_reads_early(bool right) {
  pool_scene s;
  write<<<grid, threads, 0, s.a.native()>>>(s.host.data<float>(), count, late);
  if (right)
    s.a.synchronize();
  std::printf("%g\n", static_cast<double>(s.host.host<float>()[0]));
}

// A launch on another stream writes pinned memory that a copy still reads.
void pinned_buffer_written_by_a_kernel(bool right) {
  pool_scene s;
  weir::copy(s.a, s.x.data(), s.host.data(), bytes, weir::non_blocking);
  if (right)
    s.b.wait(s.a);
  write<<<grid, threads, 0, s.b.native()>>>(s.host.data<float>(), count, 0);
}

// The graph has a launch that nothing declares, and runs beside a copy to what it reads.
void graph_beside_a_copy(bool right) {
  pool_scene s;
  weir::graph work = weir::graph::capture(s.a, [&] { s.read_on(s.a.native(), s.x.data()); });
  work.launch(s.a);
  if (right)
    s.b.wait(s.a);
  weir::copy(s.b, s.x.data(), s.host.data(), bytes, weir::non_blocking);
}

// The graph is launched without a wait for the launch that writes its input.
void graph_beside_its_writer(bool right) {
  pool_scene s;
  weir::graph work = weir::graph::capture(s.a, [&] { s.read_on(s.a.native(), s.x.data()); });
  write<<<grid, threads, 0, s.b.native()>>>(s.x.data<float>(), count, late);
  if (right)
    s.a.wait(s.b);
  work.launch(s.a);
}

// One launch is declared, the other is not.
void declared_beside_bare(bool right) {
  pool_scene s;
  float* const x = s.x.data<float>();
  weir::launch(
      s.a, {weir::updates(s.x)}, [x](cudaStream_t on) { update<<<grid, threads, 0, on>>>(x, count, late); }, [] {});
  if (right)
    s.b.wait(s.a);
  s.read_on(s.b.native(), x);
}

// Neither launch is declared.
void bare_beside_bare(bool right) {
  pool_scene s;
  write<<<grid, threads, 0, s.a.native()>>>(s.x.data<float>(), count, late);
  if (right)
    s.b.wait(s.a);
  s.read_on(s.b.native(), s.x.data());
}

// The copy does not wait for the program's own stream, although weir knows that stream.
void own_stream_beside_a_copy(bool right) {
  pool_scene s;
  own_stream const mine;
  weir::external_stream const known(device, mine);
  write<<<grid, threads, 0, mine>>>(s.x.data<float>(), count, late);
  if (right)
    s.a.wait(known);
  weir::copy(s.a, s.host.data(), s.x.data(), bytes);
}

// The launch on the program's own stream is not recorded.
void own_stream_without_a_record(bool right) {
  pool_scene s;
  own_stream const mine;
  weir::external_stream const known(device, mine);
  weir::buffer const block(s.a, bytes);
  weir::fill(s.a, block.data(), std::byte{}, bytes);
  weir::stream_ref(known).wait(s.a);
  s.read_on(mine, block.data());
  if (right)
    block.record_stream(known);
}

// weir does not know the program's stream, and the free does not name it.
void free_without_the_borrowed_stream(bool right) {
  pool_scene s;
  own_stream const mine;
  void* const block = weir::allocate(s.a, bytes);
  weir::fill(s.a, block, std::byte{}, bytes);
  order(s.a.native(), mine);
  s.read_on(mine, block);
  if (right)
    weir::deallocate(weir::borrow_stream(device, mine), block);
  else
    weir::deallocate(block);
}

// An event of CUDA between two streams of weir, recorded before the launch that it stands for.
void event_recorded_too_early(bool right) {
  pool_scene s;
  own_event const done;
  if (!right)
    record(done, s.a.native());
  write<<<grid, threads, 0, s.a.native()>>>(s.x.data<float>(), count, late);
  if (right)
    record(done, s.a.native());
  wait(s.b.native(), done);
  weir::copy(s.b, s.host.data(), s.x.data(), bytes);
}

// The block's new home comes after what weir knows of, which the launch on a third stream is not.
void new_home_beside_a_launch(bool right) {
  pool_scene s;
  weir::stream const c;
  s.read_on(c.native(), s.x.data());
  if (right)
    s.x.record_stream(c);
  s.x.set_stream(s.b);
  weir::fill(s.b, s.x.data(), std::byte{}, bytes);
}

constexpr known_case all[] = {
    {"missing_record", "race", missing_record},
    {"freed_after_the_wrong_stream", "race", freed_after_the_wrong_stream},
    {"reused_in_the_next_round", "race", reused_in_the_next_round},
    {"recorded_on_the_wrong_stream", "race", recorded_on_the_wrong_stream},
    {"launch_without_a_stream", "race", launch_without_a_stream},
    {"fill_beside_a_launch", "race", fill_beside_a_launch},
    {"results_copied_early", "race", results_copied_early},
    {"host_reads_early", "race", host_reads_early},
    {"pinned_buffer_written_by_a_kernel", "race", pinned_buffer_written_by_a_kernel},
    {"graph_beside_a_copy", "race", graph_beside_a_copy},
    {"graph_beside_its_writer", "possible", graph_beside_its_writer},
    {"declared_beside_bare", "race", declared_beside_bare},
    {"bare_beside_bare", "possible", bare_beside_bare},
    {"own_stream_beside_a_copy", "race", own_stream_beside_a_copy},
    {"own_stream_without_a_record", "race", own_stream_without_a_record},
    {"free_without_the_borrowed_stream", "race", free_without_the_borrowed_stream},
    {"event_recorded_too_early", "race", event_recorded_too_early},
    {"new_home_beside_a_launch", "race", new_home_beside_a_launch},
};

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  try {
    return bare::run_one_of({bare::all}, argc, argv);
  } catch (std::exception const& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
