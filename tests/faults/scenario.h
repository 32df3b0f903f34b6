// A scenario is a small program over weir that runs repeatedly, each time with another failing call.
// Threads: one runs it, unless it makes more itself.
//
// To add one: write a function in scenarios.cpp (or a file beside it) and a line in its table.
#pragma once
#include <ostream>
#include <span>
#include <string>

#include "weir/runtime.h"

namespace weir::faults {

struct scenario {
  char const* name;
  simulated machine;  // the runner sets its seed
  options with = {};
  // Ensures: frees everything, however it ends. Returns: the bytes it saw, the same every time.
  std::string (*run)();
  bool to_the_end = false;                // calls also fail during the runtime's end
  std::string (*afterwards)() = nullptr;  // after the runtime's end. Returns: the failure
  bool threads = false;                   // that the seed switches

  friend void PrintTo(scenario const& s, std::ostream* out) { *out << s.name; }
};

std::span<scenario const> scenarios();

// Those with a file of their own.
std::string two_training_steps();
std::string two_steps_in_memory_of_the_program();  // and a function before the reduction, and clipping
std::string two_steps_in_registered_pools();
std::string two_sharded_steps();
std::string all_collectives();
std::string collectives_in_a_group();
std::string communicator_outlives_its_runtime();
std::string outlived_by_a_communicator();  // afterwards
std::string captured_and_launched_twice();
std::string freed_first_in_a_capture();
std::string shared_with_oneself();
std::string pinned_pages_go_back();
std::string asleep_and_awake();
std::string pools_that_take_turns();
std::string graphs_of_one_memory();
std::string captures_that_come_again();

}  // namespace weir::faults
