// One replay of a trace on one device: what it took, and whether it fitted.
// Threads: one.
#pragma once
#include <optional>
#include <string>

#include "runtime/options/options.h"
#include "trace.h"
#include "weir/observe.h"

namespace weir::tool {

struct replay_outcome {
  std::string devices;
  std::size_t capacity = 0;  // bytes of the device
  double epsilon = 0;
  std::size_t limit = 0;                           // bytes; 0: none
  double first_ns = 0, warm_ns = 0;                // an operation, on the host, without the driver's
  double first_driver_ns = 0, warm_driver_ns = 0;  // an operation; modelled on a simulated machine
  std::uint64_t created = 0, moved = 0, warm_moved = 0;
  std::uint64_t opened_early = 0;  // blocks whose other stream was waited for because memory was short, before their c
  memory_statistics memory{};
  std::string ladder;  // of the first allocation that found no memory
};

struct replay_settings {
  machine_choice machine;
  bool size_given = false;  // of simulated devices
  std::optional<size_t> limit;
  std::optional<double> epsilon;
  int rounds = 2;
  bool json = false;
  bool until_refused = false;  // a refused allocation ends the replay: its times are then of no use
  std::string snapshot, page;  // files; empty: none is wanted
};

// Throws: the library's errors
replay_outcome replay_one(std::string const& path, trace const&, replay_settings const&);
// "The recording refused 8.0 GiB ..."; requires that one was refused
std::string refusal_text(trace const&);
// "The recording began in the middle ..."; requires that it did
std::string began_text(trace const&);
std::string number_or_null(std::optional<std::size_t>);  // as JSON
double ratio(trace const&, replay_outcome const&);       // the peak reserved, of the peak requested

}  // namespace weir::tool
