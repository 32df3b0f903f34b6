// Memory that is freed, reused or overwritten while work still uses it.
#include "tests/bare/races.cuh"

namespace bare {
namespace {

// The block is freed in the order of its own stream, which does not come after the reader.
void early_free(bool right) {
  scene s;
  float* const block = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(block, count, 0);
  order(s.a, s.b);
  read<<<grid, threads, 0, s.b>>>(block, count, late, s.last);
  if (right)
    order(s.b, s.a);
  release(block, s.a);
}

// The launch comes after the free.
void launch_after_the_free(bool right) {
  scene s;
  float* const block = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(block, count, 0);
  if (!right)
    release(block, s.a);
  read<<<grid, threads, 0, s.a>>>(block, count, 0, s.last);
  if (right)
    release(block, s.a);
}

// The block exists in the order of the stream that allocated it; the other stream does not come after that.
void allocated_on_another_stream(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.y, count, late);
  float* const block = allocate(s.a);
  if (right)
    order(s.a, s.b);
  write<<<grid, threads, 0, s.b>>>(block, count, 0);
  order(s.b, s.a);
  release(block, s.a);
}

// The next owner gets the memory, and fills it, while the reader on the other stream is under way.
void reused_while_it_is_read(bool right) {
  scene s;
  float* const first = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(first, count, 0);
  order(s.a, s.b);
  read<<<grid, threads, 0, s.b>>>(first, count, late, s.last);
  if (right)
    order(s.b, s.a);
  release(first, s.a);
  float* const second = allocate(s.a);
  MUST(cudaMemsetAsync(second, 0, bytes, s.a));
  release(second, s.a);
}

// Two streams use the block, and the free waits for one of them.
void freed_after_one_of_two_readers(bool right) {
  scene s;
  float* const block = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(block, count, 0);
  order(s.a, s.b);
  order(s.a, s.c);
  read<<<grid, threads, 0, s.b>>>(block, count, 0, s.last);
  read<<<grid, threads, 0, s.c>>>(block, count, late, s.other_last);
  order(s.b, s.a);
  if (right)
    order(s.c, s.a);
  release(block, s.a);
}

// A copy of device memory to the pinned buffer comes while an upload still reads the buffer.
void pinned_buffer_overwritten(bool right) {
  scene s;
  to_device(s.x, s.host, s.a);
  if (right)
    order(s.a, s.b);
  to_host(s.host, s.y, s.b);
}

// A kernel writes pinned memory that an upload on another stream reads.
void pinned_buffer_written_by_a_kernel(bool right) {
  scene s;
  write<<<grid, threads, 0, s.a>>>(s.host, count, late);
  if (right)
    order(s.a, s.b);
  to_device(s.x, s.host, s.b);
}

// Two slots of pinned memory between two copies: the third round fills a slot before its upload has ended.
void staging_slot_reused(bool right) {
  scene s;
  float* const slots[] = {s.host, s.other_host};
  cudaEvent_t const is_free[] = {s.done, s.other};
  for (int round = 0; round < 4; ++round) {
    int const slot = round % 2;
    if (right)
      wait(s.a, is_free[slot]);
    to_host(slots[slot], s.x, s.a);
    order(s.a, s.b);
    to_device(s.y, slots[slot], s.b);
    record(is_free[slot], s.b);
  }
}

// One block of work space serves launches of two streams.
void workspace_of_two_streams(bool right) {
  scene s;
  update<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    update<<<grid, threads, 0, s.b>>>(s.y, count, 0);
  else
    update<<<grid, threads, 0, s.b>>>(s.x, count, 0);
}

// Gradients are zeroed for the next step while the optimizer on another stream still reads them.
void zeroed_before_the_last_reader(bool right) {
  scene s;
  add<<<grid, threads, 0, s.a>>>(s.y, s.x, count, late);
  if (right)
    order(s.a, s.b);
  MUST(cudaMemsetAsync(s.x, 0, bytes, s.b));
}

// The source of a copy within the device is written while the copy may read it.
void source_of_a_copy_written(bool right) {
  scene s;
  within_device(s.y, s.x, s.a);
  if (right)
    order(s.a, s.b);
  write<<<grid, threads, 0, s.b>>>(s.x, count, 0);
}

// A copy of rows: which bytes lie between its rows is known by the pointers alone.
void rows_copied_beside_a_writer(bool right) {
  scene s;
  constexpr std::size_t pitch = 1024, width = 512;
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    order(s.a, s.b);
  MUST(cudaMemcpy2DAsync(s.host, width, s.x, pitch, width, bytes / pitch, cudaMemcpyDeviceToHost, s.b));
}

// Both launches think that the block is split in the middle, but one of them takes a quarter more.
void halves_that_overlap(bool right) {
  scene s;
  constexpr int half = count / 2;
  write<<<grid, threads, 0, s.a>>>(s.x, right ? half : half + half / 2, late);
  if (right)
    order(s.a, s.b);
  write<<<grid, threads, 0, s.b>>>(s.x + half, half, 0);
}

// The second of two neighbours in memory is the one that is overwritten.
void second_of_two_neighbours(bool right) {
  scene s;
  device_block const both(2 * bytes);
  float* const first = both;
  float* const second = both + count;
  add<<<grid, threads, 0, s.a>>>(first, second, count, late);
  if (right)
    order(s.a, s.b);
  to_device(second, s.host, s.b);
}

// The pool of the stream takes back what a graph still has in its launches.
void graph_of_freed_memory(bool right) {
  scene s;
  float* const block = allocate(s.a);
  write<<<grid, threads, 0, s.a>>>(block, count, 0);
  executable const work(s.a, [&] { read<<<grid, threads, 0, s.a>>>(block, count, 0, s.last); });
  if (!right)
    release(block, s.a);
  work.launch(s.a);
  if (right)
    release(block, s.a);
}

constexpr known_case all[] = {
    {"early_free", "race", early_free},
    {"launch_after_the_free", "race", launch_after_the_free},
    {"allocated_on_another_stream", "race", allocated_on_another_stream},
    {"reused_while_it_is_read", "race", reused_while_it_is_read},
    {"freed_after_one_of_two_readers", "race", freed_after_one_of_two_readers},
    {"pinned_buffer_overwritten", "race", pinned_buffer_overwritten},
    {"pinned_buffer_written_by_a_kernel", "race", pinned_buffer_written_by_a_kernel},
    {"staging_slot_reused", "race", staging_slot_reused},
    {"workspace_of_two_streams", "possible", workspace_of_two_streams},
    {"zeroed_before_the_last_reader", "race", zeroed_before_the_last_reader},
    {"source_of_a_copy_written", "race", source_of_a_copy_written},
    {"rows_copied_beside_a_writer", "possible", rows_copied_beside_a_writer},
    {"halves_that_overlap", "possible", halves_that_overlap},
    {"second_of_two_neighbours", "race", second_of_two_neighbours},
    {"graph_of_freed_memory", "race", graph_of_freed_memory},
};

}  // namespace

cases memory_races() {
  return all;
}

}  // namespace bare
