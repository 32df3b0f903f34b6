// CUDA programs that are right, and that a checker misjudges easily. Usage: see work.cuh; `right` changes nothing.
// The list says the most that a checker may say. "possible": it knows a use by its pointer alone, and cannot tell the
// bytes apart. "race": the order goes through memory of the host, which no call of CUDA tells.
#include <thread>

#include "tests/bare/work.cuh"

namespace bare {
namespace {

// possible: the first pointer is taken to reach to the end of the block.
void halves_by_two_pointers(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count / 2, late);
  write<<<grid, threads, 0, s.b>>>(s.x + count / 2, count / 2, 0);
}

__global__ void write_part(float* to, int from, int n) {
  if (place() < n)
    to[from + place()] = 1;
}

// possible: the same pointer, with an offset in a number.
void halves_by_an_index(bool) {
  scene s;
  write_part<<<grid, threads, 0, s.a>>>(s.x, 0, count / 2);
  write_part<<<grid, threads, 0, s.b>>>(s.x, count / 2, count / 2);
}

// possible: each stream copies, computes and copies back a chunk of its own, which the kernel finds by a number.
void chunks_by_an_offset(bool) {
  scene s;
  int const half = count / 2;
  std::size_t const bytes = static_cast<std::size_t>(half) * sizeof(float);
  cudaStream_t const streams[] = {s.a, s.b};
  for (int i = 0; i < 2; ++i) {
    float* const mine = static_cast<float*>(s.x) + i * half;
    MUST(cudaMemcpyAsync(mine, s.host, bytes, cudaMemcpyHostToDevice, streams[i]));
    write_part<<<grid, threads, 0, streams[i]>>>(s.x, i * half, half);
    float* const results = static_cast<float*>(s.other_host) + i * half;
    MUST(cudaMemcpyAsync(results, mine, bytes, cudaMemcpyDeviceToHost, streams[i]));
  }
}

__global__ void count_up(unsigned* total) {
  atomicAdd(total, 1u);
}

// possible: no signature tells that both add by atomic operations.
void counters_by_atomics(bool) {
  scene s;
  auto* const total = reinterpret_cast<unsigned*>(static_cast<float*>(s.x));
  count_up<<<grid, threads, 0, s.a>>>(total);
  count_up<<<grid, threads, 0, s.b>>>(total);
}

// possible: the structure still has a pointer that this launch does not use.
void stale_pointer_in_a_structure(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  add_pair<<<grid, threads, 0, s.b>>>(pair_of_blocks{s.x, s.y, 0}, 0);
}

// A pointer of a freed block, which is not used either, while the memory has another owner.
void pointer_of_a_freed_block_in_a_structure(bool) {
  scene s;
  float* const first = allocate(s.a);
  release(first, s.a);
  add_pair<<<grid, threads, 0, s.a>>>(pair_of_blocks{first, s.y, 0}, 0);
}

void readers_on_two_streams(bool) {
  scene s;
  read<<<grid, threads, 0, s.a>>>(s.x, count, late, s.last);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.other_last);
  to_host(s.host, s.x, s.c);
}

// The legacy stream is ordered with blocking streams, both ways.
void legacy_beside_blocking(bool) {
  scene s(cudaStreamDefault);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  update<<<grid, threads>>>(s.x, count, late);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
}

// Two blocking streams, with an empty launch of the legacy stream between them: that is order, too.
void blocking_streams_through_the_legacy_one(bool) {
  scene s(cudaStreamDefault);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  write<<<1, 1>>>(s.y, 0, 0);
  to_host(s.host, s.x, s.b);
}

// The per-thread stream is ordered with the legacy stream.
void per_thread_beside_legacy(bool) {
  scene s;
  write<<<grid, threads, 0, cudaStreamPerThread>>>(s.x, count, late);
  update<<<grid, threads, 0, cudaStreamLegacy>>>(s.x, count, 0);
  to_host(s.host, s.x, cudaStreamPerThread);
}

void chain_over_three_streams(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  wait(s.b, s.done);
  write<<<grid, threads, 0, s.b>>>(s.y, count, 0);
  record(s.done, s.b);
  wait(s.c, s.done);
  add<<<grid, threads, 0, s.c>>>(s.x, s.y, count, 0);
  to_host(s.host, s.x, s.c);
}

// One event for each direction, recorded anew in each round.
void ping_pong(bool) {
  scene s;
  for (int round = 0; round < 20; ++round) {
    wait(s.a, s.other);
    to_device(s.x, s.host, s.a);
    record(s.done, s.a);
    wait(s.b, s.done);
    read<<<grid, threads, 0, s.b>>>(s.x, count, 20, s.last);
    record(s.other, s.b);
  }
}

// A wait stays with the record that it met: the second record takes nothing from it.
void event_recorded_again_after_the_wait(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  wait(s.b, s.done);
  record(s.done, s.c);
  to_host(s.host, s.x, s.b);
}

void reused_in_one_stream(bool) {
  scene s;
  for (int round = 0; round < 10; ++round) {
    float* const block = allocate(s.a);
    update<<<grid, threads, 0, s.a>>>(block, count, 20);
    release(block, s.a);
  }
}

// The other stream allocates behind the free: it may get the same memory.
void reused_behind_an_event(bool) {
  scene s;
  float* const first = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(first, count, late);
  release(first, s.a);
  order(s.a, s.b);
  float* const second = allocate(s.b);
  MUST(cudaMemsetAsync(second, 0, bytes, s.b));
  release(second, s.b);
}

// cudaFree waits for all work, so that the next owner of the address begins anew.
void freed_by_a_call_that_waits(bool) {
  scene s;
  for (cudaStream_t const stream : {static_cast<cudaStream_t>(s.a), static_cast<cudaStream_t>(s.b)}) {
    device_block const block;
    write<<<grid, threads, 0, stream>>>(block, count, late);
  }
}

// A fork and a join inside the graph, replayed with its input changed between.
void graph_replayed(bool) {
  scene s;
  executable work(s.a, [&] {
    write<<<grid, threads, 0, s.a>>>(s.y, count, 0);
    order(s.a, s.b);
    update<<<grid, threads, 0, s.a>>>(s.x, count, 0);
    read<<<grid, threads, 0, s.b>>>(s.y, count, 0, s.last);
    order(s.b, s.a);
    add<<<grid, threads, 0, s.a>>>(s.x, s.y, count, 0);
  });
  for (int round = 0; round < 50; ++round) {
    to_device(s.x, s.host, s.a);
    work.launch(s.a);
    to_host(s.other_host, s.x, s.a);
  }
}

// Launches of one executable come after each other, whatever their streams are.
void graph_on_two_streams(bool) {
  scene s;
  executable const work(s.a, [&] { update<<<grid, threads, 0, s.a>>>(s.x, count, late); });
  work.launch(s.a);
  work.launch(s.b);
  to_host(s.host, s.x, s.b);
}

// After its update the graph no longer touches the first block.
void updated_graph(bool) {
  scene s;
  executable work(s.a, [&] { write<<<grid, threads, 0, s.a>>>(s.x, count, 0); });
  work.launch(s.a);
  order(s.a, s.b);
  work.change(s.a, [&] { write<<<grid, threads, 0, s.a>>>(s.y, count, late); });
  work.launch(s.a);
  to_device(s.x, s.host, s.b);
}

void pinned_ring(bool) {
  scene s;
  float* const slots[] = {s.host, s.other_host};
  own_event const is_free[2];
  for (int round = 0; round < 8; ++round) {
    int const slot = round % 2;
    MUST(cudaEventSynchronize(is_free[slot]));
    std::memset(slots[slot], round, bytes);
    to_device(s.x, slots[slot], s.a);
    record(is_free[slot], s.a);
    update<<<grid, threads, 0, s.a>>>(s.x, count, 20);
  }
}

// Pageable memory is read before the call returns.
void pageable_source_changed_at_once(bool) {
  scene s;
  std::vector<float> batch(count, 1);
  to_device(s.x, batch.data(), s.a);
  batch.assign(count, 2);
  to_device(s.x, batch.data(), s.a);
}

// cudaMemcpy waits for the legacy stream's kernel, and the host's next call comes after both.
void blocking_copy_behind_a_legacy_kernel(bool) {
  scene s;
  std::vector<float> results(count);
  write<<<grid, threads>>>(s.x, count, late);
  MUST(cudaMemcpy(results.data(), s.x, bytes, cudaMemcpyDeviceToHost));
  update<<<grid, threads, 0, s.a>>>(s.x, count, 0);
}

void stream_polled_until_done(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  while (cudaStreamQuery(s.a) == cudaErrorNotReady)
    (void)cudaGetLastError();
  to_host(s.host, s.x, s.b);
}

void event_polled_until_done(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  write<<<grid, threads, 0, s.a>>>(s.y, count, late);
  while (cudaEventQuery(s.done) == cudaErrorNotReady)
    (void)cudaGetLastError();
  to_host(s.host, s.x, s.b);
}

// One thread waits for the kernel, another goes on.
void another_thread_waits(bool) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  std::thread([&] { MUST(cudaStreamSynchronize(s.a)); }).join();
  to_host(s.host, s.x, s.b);
}

void add_one(void* number) {
  ++*static_cast<int*>(number);
}

void host_function_in_its_stream(bool) {
  scene s;
  int calls = 0;
  for (int round = 0; round < 3; ++round) {
    write<<<grid, threads, 0, s.a>>>(s.x, count, 20);
    MUST(cudaLaunchHostFunc(s.a, add_one, &calls));
  }
  order(s.a, s.b);
  to_host(s.host, s.x, s.b);
  MUST(cudaDeviceSynchronize());
}

void set_to_one(void* flag) {
  *static_cast<int volatile*>(flag) = 1;
}

// race: the host learns from its own memory that the kernel is done.
void told_by_a_host_function(bool) {
  scene s;
  int volatile flag = 0;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  MUST(cudaLaunchHostFunc(s.a, set_to_one, const_cast<int*>(&flag)));
  while (flag == 0) {}
  to_host(s.host, s.x, s.b);
}

void cooperative_launch(bool) {
  scene s;
  float *to = s.y, *from = s.x;
  int n = count, time = late;
  void* parameters[] = {&to, &from, &n, &time};
  write<<<grid, threads, 0, s.b>>>(s.x, count, late);
  order(s.b, s.a);
  MUST(cudaLaunchCooperativeKernel(reinterpret_cast<void const*>(&add), dim3(grid), dim3(threads), parameters, 0, s.a));
  to_host(s.host, s.y, s.a);
}

// A stream ends with work under way; the next one may get its handle.
void streams_that_end_at_once(bool) {
  scene s;
  for (int round = 0; round < 20; ++round) {
    own_stream const here;
    wait(here, s.done);
    update<<<grid, threads, 0, here>>>(s.x, count, 20);
    record(s.done, here);
  }
  wait(s.b, s.done);
  to_host(s.host, s.x, s.b);
}

// An event of one device orders a stream of the other.
void two_devices(bool) {
  int devices = 0;
  MUST(cudaGetDeviceCount(&devices));
  if (devices < 2) {
    std::fprintf(stderr, "skipped: one GPU\n");
    std::_Exit(skipped);
  }
  scene first;
  write<<<grid, threads, 0, first.a>>>(first.x, count, late);
  record(first.done, first.a);
  MUST(cudaSetDevice(1));
  {
    scene second;
    wait(second.a, first.done);
    MUST(cudaMemcpyPeerAsync(second.x, 1, first.x, 0, bytes, second.a));
    update<<<grid, threads, 0, second.a>>>(second.x, count, 0);
  }
  MUST(cudaSetDevice(0));
}

constexpr known_case all[] = {
    {"halves_by_two_pointers", "possible", halves_by_two_pointers},
    {"halves_by_an_index", "possible", halves_by_an_index},
    {"chunks_by_an_offset", "possible", chunks_by_an_offset},
    {"counters_by_atomics", "possible", counters_by_atomics},
    {"stale_pointer_in_a_structure", "possible", stale_pointer_in_a_structure},
    {"pointer_of_a_freed_block_in_a_structure", "none", pointer_of_a_freed_block_in_a_structure},
    {"readers_on_two_streams", "none", readers_on_two_streams},
    {"legacy_beside_blocking", "none", legacy_beside_blocking},
    {"blocking_streams_through_the_legacy_one", "none", blocking_streams_through_the_legacy_one},
    {"per_thread_beside_legacy", "none", per_thread_beside_legacy},
    {"chain_over_three_streams", "none", chain_over_three_streams},
    {"ping_pong", "none", ping_pong},
    {"event_recorded_again_after_the_wait", "none", event_recorded_again_after_the_wait},
    {"reused_in_one_stream", "none", reused_in_one_stream},
    {"reused_behind_an_event", "none", reused_behind_an_event},
    {"freed_by_a_call_that_waits", "none", freed_by_a_call_that_waits},
    {"graph_replayed", "none", graph_replayed},
    {"graph_on_two_streams", "none", graph_on_two_streams},
    {"updated_graph", "none", updated_graph},
    {"pinned_ring", "none", pinned_ring},
    {"pageable_source_changed_at_once", "none", pageable_source_changed_at_once},
    {"blocking_copy_behind_a_legacy_kernel", "none", blocking_copy_behind_a_legacy_kernel},
    {"stream_polled_until_done", "none", stream_polled_until_done},
    {"event_polled_until_done", "none", event_polled_until_done},
    {"another_thread_waits", "none", another_thread_waits},
    {"host_function_in_its_stream", "none", host_function_in_its_stream},
    {"told_by_a_host_function", "race", told_by_a_host_function},
    {"cooperative_launch", "none", cooperative_launch},
    {"streams_that_end_at_once", "none", streams_that_end_at_once},
    {"two_devices", "none", two_devices},
};

}  // namespace
}  // namespace bare

int main(int argc, char** argv) {
  return bare::run_one_of({bare::all}, argc, argv);
}
