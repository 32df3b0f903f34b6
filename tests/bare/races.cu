// CUDA programs with a missing order, in the calls of CUDA alone. Usage: see work.cuh.
// A checker says `race` where memory is freed, reused or copied beside a launch that got it as a parameter. It says
// `possible` where two launches may touch the same bytes, or where a pointer lies inside a structure.
#include "tests/bare/races.cuh"

int main(int argc, char** argv) {
  return bare::run_one_of({bare::order_races(), bare::default_stream_races(), bare::memory_races(), bare::graph_races(),
                           bare::per_thread_races()},
                          argc, argv);
}
