// Code that is compiled with --default-stream per-thread: a launch without a stream is on the calling thread's stream.
// That stream is ordered with the legacy stream, but with no stream of another thread and with no non-blocking stream.
#include <thread>

#include "tests/bare/races.cuh"

namespace bare {
namespace {

// Two threads launch without a stream, one after the other: each is on a stream of its own.
void per_thread_of_two_threads(bool right) {
  scene s;
  std::thread([&] {
    write<<<grid, threads>>>(s.x, count, late);
    if (right)
      MUST(cudaStreamSynchronize(nullptr));
  }).join();
  read<<<grid, threads>>>(s.x, count, 0, s.last);
}

// One thread writes, another copies the results: its copy is not behind the first thread's launch.
void per_thread_copy_of_another_thread(bool right) {
  scene s;
  std::thread([&] {
    write<<<grid, threads>>>(s.x, count, late);
    record(s.done, nullptr);
  }).join();
  if (right)
    wait(nullptr, s.done);
  to_host(s.host, s.x, nullptr);
}

// The thread's stream is not ordered with a non-blocking one.
void per_thread_beside_non_blocking(bool right) {
  scene s;
  write<<<grid, threads>>>(s.x, count, late);
  if (right)
    order(nullptr, s.a);
  to_host(s.host, s.x, s.a);
}

constexpr known_case all[] = {
    {"per_thread_of_two_threads", "possible", per_thread_of_two_threads},
    {"per_thread_copy_of_another_thread", "race", per_thread_copy_of_another_thread},
    {"per_thread_beside_non_blocking", "race", per_thread_beside_non_blocking},
};

}  // namespace

cases per_thread_races() {
  return all;
}

}  // namespace bare
