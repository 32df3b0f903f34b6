// A capture records the work of its streams. A graph is the record; a launch enqueues its lanes on streams.
// Threads: under the machine's lock. A graph is immutable after the end of its capture.
#pragma once
#include <algorithm>

#include "simulator/machine/work.h"

namespace weir::driver::sim {

struct graph {
  struct step {
    operation what;        // a wait: for `position` steps of `lane`
    std::size_t lane = 0;  // only for waits
  };
  struct lane {  // the work of one captured stream, in order
    int device = 0;
    int priority = 0;
    std::vector<step> steps{};
  };
  std::vector<lane> lanes;  // the first: the stream on which the capture began
  struct owned {            // what it keeps
    void (*drop)(void*);
    void* state;
  };
  std::vector<owned> keeps;

  graph() = default;
  ~graph();  // drops its work and what it keeps
  graph(graph const&) = delete;
  graph& operator=(graph const&) = delete;
  // Returns: whether the end of the first lane comes after all captured work.
  bool joined() const;
  bool is_like(graph const&) const;  // they differ in addresses, sizes and values alone
};

// Invariant: active as long as it has streams. members[l] is the stream of lane l.
struct capture {
  std::uint64_t number = 0;
  capture_mode mode{};
  std::uint64_t thread = 0;
  bool spoiled = false;
  std::vector<stream*> members{};  // they stay alive as long as they are in here
  std::shared_ptr<graph> kept = std::make_shared<graph>();

  bool active() const noexcept { return !members.empty(); }
  void enter(stream&, std::shared_ptr<capture> const& self);
};

// A launchable graph. Its launches are ordered one after the other.
struct executable {
  int device = 0;
  std::shared_ptr<graph> of;
  std::shared_ptr<stream> last_on{};  // of the last launch; null: none yet
  std::uint64_t last = 0;             // position of the last launch on it
};

// Copies a step as an operation that keeps its graph alive. The caller fills in waits: it knows the streams.
operation replay(graph::step&, std::shared_ptr<graph> const&);

}  // namespace weir::driver::sim
