// Streams, events and waits of the host that leave out an order.
#include "tests/bare/races.cuh"

namespace bare {
namespace {

// Nothing orders the reader's stream after the writer's.
void missing_wait(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    order(s.a, s.b);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
}

// The results are copied on a stream that does not wait for the kernel.
void missing_wait_of_a_copy(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    order(s.a, s.b);
  to_host(s.host, s.x, s.b);
}

// The event is not recorded yet: such a wait has no effect.
void wait_before_record(bool right) {
  scene s;
  if (!right)
    wait(s.b, s.done);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  if (right)
    wait(s.b, s.done);
  to_host(s.host, s.x, s.b);
}

// The second record takes the event away from the first stream: the wait is for the second stream alone.
void event_recorded_again(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  write<<<grid, threads, 0, s.c>>>(s.y, count, 0);
  record(right ? s.other : s.done, s.c);
  wait(s.b, s.done);
  to_host(s.host, s.x, s.b);
}

// The event is recorded before the launch that it stands for.
void event_recorded_too_early(bool right) {
  scene s;
  if (!right)
    record(s.done, s.a);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    record(s.done, s.a);
  wait(s.b, s.done);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
}

// The reader waits for the upload, not for the kernel behind it.
void wait_for_the_wrong_event(bool right) {
  scene s;
  to_device(s.x, s.host, s.a);
  record(s.other, s.a);
  update<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  wait(s.b, right ? s.done : s.other);
  to_host(s.other_host, s.x, s.b);
}

// The writer's own stream waits, the reader's does not.
void wait_on_the_wrong_stream(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  record(s.done, s.a);
  wait(right ? s.b : s.a, s.done);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
}

// The reader waits for the upload, but the next upload does not wait for the reader.
void missing_wait_back(bool right) {
  scene s;
  for (int round = 0; round < 3; ++round) {
    to_device(s.x, s.host, s.a);
    order(s.a, s.b);
    read<<<grid, threads, 0, s.b>>>(s.x, count, late, s.last);
    if (right)
      order(s.b, s.a);
  }
}

// Two slots, each with a reader's stream and an event of its own: each upload waits for the first slot's reader.
void event_of_the_first_slot(bool right) {
  scene s;
  float* const slots[] = {s.x, s.y};
  float* const results[] = {s.last, s.other_last};
  cudaStream_t const readers[] = {s.b, s.c};
  cudaEvent_t const events[] = {s.done, s.other};
  for (int round = 0; round < 4; ++round) {
    int const slot = round % 2;
    wait(s.a, events[right ? slot : 0]);
    to_device(slots[slot], s.host, s.a);
    order(s.a, readers[slot]);
    read<<<grid, threads, 0, readers[slot]>>>(slots[slot], count, late, results[slot]);
    record(events[slot], readers[slot]);
  }
}

// Two branches begin, and one of them is joined.
void fork_with_half_a_join(bool right) {
  scene s;
  order(s.a, s.b);
  order(s.a, s.c);
  write<<<grid, threads, 0, s.b>>>(s.x, count, 0);
  write<<<grid, threads, 0, s.c>>>(s.y, count, late);
  order(s.b, s.a);
  if (right)
    order(s.c, s.a);
  add<<<grid, threads, 0, s.a>>>(s.x, s.y, count, 0);
}

// The host asks whether the kernel is done, and goes on whatever the answer is.
void answer_of_a_query_ignored(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, 200 * late);
  record(s.done, s.a);
  (void)cudaEventQuery(s.done);
  (void)cudaGetLastError();  // "not ready" is an answer
  if (right)
    MUST(cudaEventSynchronize(s.done));
  to_host(s.host, s.x, s.b);
}

// The host waits for a stream that has nothing to do with the bytes.
void synchronized_the_wrong_stream(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  write<<<grid, threads, 0, s.c>>>(s.y, count, 0);
  MUST(cudaStreamSynchronize(right ? s.a : s.c));
  to_host(s.host, s.x, s.b);
}

// The host waits for an event of the first round; the second round's writer is still under way.
void synchronized_an_old_event(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.x, count, 0);
  record(s.done, s.a);
  update<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    record(s.done, s.a);
  MUST(cudaEventSynchronize(s.done));
  to_host(s.host, s.x, s.b);
}

void set_to_one(void* flag) {
  *static_cast<int volatile*>(flag) = 1;
}

// The function that tells the host is in a stream which does not come after the writer.
void host_function_on_the_wrong_stream(bool right) {
  scene s;
  static int volatile flag = 0;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  MUST(cudaLaunchHostFunc(s.c, set_to_one, const_cast<int*>(&flag)));
  while (flag == 0) {}
  if (right)
    MUST(cudaStreamSynchronize(s.a));
  to_host(s.host, s.x, s.b);
}

// Streams of a higher priority begin sooner, but they come after nothing.
void priority_taken_for_order(bool right) {
  scene s;
  int least = 0, greatest = 0;
  cudaStream_t urgent = nullptr;
  MUST(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  MUST(cudaStreamCreateWithPriority(&urgent, cudaStreamNonBlocking, greatest));
  write<<<grid, threads, 0, urgent>>>(s.x, count, late);
  if (right)
    order(urgent, s.b);
  read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
  MUST(cudaStreamDestroy(urgent));
}

// The launch with a configuration runs beside a fill of what it reads.
void extended_launch_beside_a_fill(bool right) {
  scene s;
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = threads;
  how.stream = s.a;
  MUST(cudaLaunchKernelEx(&how, add, static_cast<float*>(s.y), static_cast<float const*>(s.x), int{count}, int{late}));
  if (right)
    order(s.a, s.b);
  MUST(cudaMemsetAsync(s.x, 0, bytes, s.b));
}

// The cooperative launch reads what an upload on another stream writes.
void cooperative_launch_beside_an_upload(bool right) {
  scene s;
  float *to = s.y, *from = s.x;
  int n = count, time = late;
  void* parameters[] = {&to, &from, &n, &time};
  MUST(cudaLaunchCooperativeKernel(reinterpret_cast<void const*>(&add), dim3(grid), dim3(threads), parameters, 0, s.a));
  if (right)
    order(s.a, s.b);
  to_device(s.x, s.host, s.b);
}

// The pointers are members of a structure: they may be stale, so that no race is certain.
void pointers_in_a_structure(bool right) {
  scene s;
  add_pair<<<grid, threads, 0, s.a>>>(pair_of_blocks{s.y, s.x, count}, late);
  if (right)
    order(s.a, s.b);
  to_device(s.x, s.host, s.b);
}

constexpr known_case all[] = {
    {"missing_wait", "possible", missing_wait},
    {"missing_wait_of_a_copy", "race", missing_wait_of_a_copy},
    {"wait_before_record", "race", wait_before_record},
    {"event_recorded_again", "race", event_recorded_again},
    {"event_recorded_too_early", "possible", event_recorded_too_early},
    {"wait_for_the_wrong_event", "race", wait_for_the_wrong_event},
    {"wait_on_the_wrong_stream", "possible", wait_on_the_wrong_stream},
    {"missing_wait_back", "race", missing_wait_back},
    {"event_of_the_first_slot", "race", event_of_the_first_slot},
    {"fork_with_half_a_join", "possible", fork_with_half_a_join},
    {"answer_of_a_query_ignored", "race", answer_of_a_query_ignored},
    {"synchronized_the_wrong_stream", "race", synchronized_the_wrong_stream},
    {"synchronized_an_old_event", "race", synchronized_an_old_event},
    {"host_function_on_the_wrong_stream", "race", host_function_on_the_wrong_stream},
    {"priority_taken_for_order", "possible", priority_taken_for_order},
    {"extended_launch_beside_a_fill", "race", extended_launch_beside_a_fill},
    {"cooperative_launch_beside_an_upload", "race", cooperative_launch_beside_an_upload},
    {"pointers_in_a_structure", "possible", pointers_in_a_structure},
};

}  // namespace

cases order_races() {
  return all;
}

}  // namespace bare
