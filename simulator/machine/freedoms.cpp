// Which freedoms a machine takes, and their names.
// Threads: as freedoms.h says.
#include "simulator/machine/freedoms.h"

namespace weir::driver::sim {
namespace {
constexpr std::uint32_t bit(freedom f) {
  return 1u << static_cast<int>(f);
}
constexpr std::uint32_t every = (1u << (freedom_count + 1)) - 2;
// Correct programs notice these as refusals or missing links, so they are opt-in.
constexpr std::uint32_t seen_by_right_programs = bit(freedom::room) | bit(freedom::wrong_bytes);
}  // namespace

std::string_view name_of(freedom f) noexcept {
  static constexpr std::array<std::string_view, freedom_count> names{
      "F1 overlap", "F2 shared connections", "F3 blocking calls", "F4 seen late",   "F5 late errors",
      "F6 reuse",   "F7 host functions",     "F8 room",           "F9 wrong bytes", "F10 time"};
  return names[static_cast<std::size_t>(f) - 1];
}

freedoms::freedoms(weir::simulated const& like, tape& t) noexcept : tape_(t) {
  using taken = weir::simulated::allowed;
  bool const seeded = like.schedule == weir::simulated::scheduling::seeded;
  if (like.nondeterminism == taken::all)
    on_ = every;
  if (like.nondeterminism == taken::usual && seeded)
    on_ = every & ~seen_by_right_programs;
  // the other freedoms come from the threads themselves
  if (like.schedule == weir::simulated::scheduling::threads)
    on_ &= bit(freedom::shared_connections) | bit(freedom::reuse) | bit(freedom::room) | bit(freedom::wrong_bytes);
  // only answers are enumerated
  if (t.enumerating())
    on_ &= bit(freedom::overlap) | bit(freedom::blocking_calls) | bit(freedom::seen_late) | bit(freedom::reuse);
  // these three are the core of a seeded schedule
  if (like.nondeterminism == taken::none && seeded)
    on_ = bit(freedom::overlap) | bit(freedom::blocking_calls) | bit(freedom::seen_late);
}

}  // namespace weir::driver::sim
