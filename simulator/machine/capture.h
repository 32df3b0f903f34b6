// A capture keeps what its streams are given; a graph is what it kept.
// A launch gives it all to streams again, one for each lane.
// Threads: under the machine's lock. A graph that has ended its capture no longer changes.
#pragma once
#include "simulator/machine/work.h"

namespace weir::driver::sim {

struct graph {
  struct step {
    operation what;        // a wait: `position` steps of
    std::size_t lane = 0;  // this lane. Others: not used
  };
  struct lane {  // what one captured stream was given, in its order
    int device = 0;
    int priority = 0;
    std::vector<step> steps{};
  };
  std::vector<lane> lanes;  // the first is the stream's on which the capture began

  graph() = default;
  ~graph();  // drops its work
  graph(graph const&) = delete;
  graph& operator=(graph const&) = delete;
  // Does the end of the first lane come after all work that was captured?
  bool joined() const;
};

// Invariant: it is active as long as streams are in it. members[l] is lane l's.
struct capture {
  capture_mode mode{};
  std::uint64_t thread = 0;
  bool spoiled = false;
  std::vector<stream*> members{};  // not destroyed while they are in here
  std::shared_ptr<graph> kept = std::make_shared<graph>();

  bool active() const noexcept { return !members.empty(); }
  void enter(stream&, std::shared_ptr<capture> const& self);
};

// A graph that can be launched. Its launches follow each other.
struct executable {
  int device = 0;
  std::shared_ptr<graph> of;
  std::shared_ptr<stream> last_on{};  // of the last launch; null: none yet
  std::uint64_t last = 0;             // its last operation there
};

// A step again, as an operation that keeps its graph alive. Waits are made by whoever knows the streams.
operation replay(graph::step&, std::shared_ptr<graph> const&);

}  // namespace weir::driver::sim
