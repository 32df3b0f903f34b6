// Small programs whose runs the pictures of docs/explanation/ show. Each prints what it saw as lines of JSON, and
// throws if it saw something else than its picture says.
// Threads: one.
#pragma once
#include <cstddef>
#include <iosfwd>
#include <map>
#include <stdexcept>
#include <string>

#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace pictures {

void block(std::ostream&);   // how a block finds its memory
void slots(std::ostream&);   // small blocks in slabs
void order(std::ostream&);   // how order is known without waiting
void ahead(std::ostream&);   // a host that runs ahead of the device
void moves(std::ostream&);   // free memory that lies in pieces
void bound(std::ostream&);   // reserved memory beside the memory in use
void asleep(std::ostream&);  // a model that is larger than its device

// A device that begins no work before the host waits for it, so that every run is the same.
inline weir::simulated still_device(std::size_t memory) {
  return {.devices = 1, .memory = memory, .schedule = weir::simulated::scheduling::stepped};
}

// Prints the layout of the current device's memory after each act.
class film {
 public:
  film(std::ostream& out, std::string scene) : out_(out), scene_(std::move(scene)) {}
  // The block has this name in the next shots, while it lives.
  void name(void const* block, std::string name) { names_[block] = std::move(name); }
  // shoot(), and the block has this name from now on.
  void shoot_new(void const* block, std::string name, std::string const& act, std::string const& outcome = "");
  // Prints: the act, what it led to, the device's blocks, and what changed since the last shot.
  void shoot(std::string const& act, std::string const& outcome = "");

 private:
  std::ostream& out_;
  std::string scene_;
  std::map<void const*, std::string> names_;
  weir::memory_statistics before_{};
};

inline void expect(bool seen, char const* what) {
  if (!seen)
    throw std::runtime_error(std::string("the run is not as its picture says: ") + what);
}

}  // namespace pictures
