// Programs whose pools sleep and wake, in the host's memory and a neighbour's, and graphs whose handles move.
// Threads: one.
#include <stdexcept>
#include <vector>

#include "tests/faults/scenario.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/peer.h"
#include "weir/pool.h"

namespace weir::faults {
namespace {

std::vector<buffer> filled_in(pool const& p, std::initializer_list<std::size_t> sizes) {
  std::vector<buffer> all;
  pool_guard const in(p);
  for (std::size_t const bytes : sizes) {
    all.emplace_back(bytes);
    fill(all.back().data(), std::byte(all.size()), bytes);
  }
  return all;
}

std::string ends_of(std::vector<buffer> const& all) {
  std::string seen;
  for (buffer const& b : all) {
    char ends[2] = {};
    if (!b.size())
      continue;
    copy(&ends[0], b.data(), 1);
    copy(&ends[1], b.data<char>() + b.size() - 1, 1);
    seen.append(ends, 2);
  }
  return seen;
}

// A thread keeps what 32 choices of pools need. Made before, it counts as no leak.
void choose_many() {
  static bool done = false;
  for (int i = 0; i < 32 && !done; ++i) {
    pool const p("another");
    pool_guard const in(p);
  }
  done = true;
}

}  // namespace

std::string asleep_and_awake() {
  choose_many();
  pool model("model");
  auto all = filled_in(model, {100, 5000, 70'000, 300'000, 200'000, 200'000, 70'000, 100});
  model.sleep();
  if (!model.is_asleep())
    throw std::logic_error("it does not sleep");
  all[0].reset(), all[4].reset();  // a slot, and pages between others
  model.wake();
  std::string seen = ends_of(all);
  try {
    enable_peer_access(device(0), {device(1)});
  } catch (not_supported const&) {}
  model.sleep(sleep_to::nowhere);
  all[5].reset();
  model.wake();
  for (buffer& b : all)
    if (b.size())
      fill(b.data(), std::byte{40}, b.size());
  seen += ends_of(all);
  model.sleep();
  all.clear();  // the last free gives the copy back
  return seen;
}

namespace {

std::vector<buffer> one_of_three(pool const& p) {
  return filled_in(p, {300'000, 5000, 100'000});
}

std::string three_at_once() {
  pool a("a"), b("b"), c("c");
  a.sleep();
  a.wake();
  spill const overflow({&a, &b, &c}, {.neighbours = {device(1)}});
  std::string seen;
  std::vector<std::vector<buffer>> all;
  for (pool const* p : {&a, &b, &c})
    all.push_back(one_of_three(*p));
  if (!a.is_asleep() && !b.is_asleep() && !c.is_asleep())
    throw std::logic_error("none sleeps");
  for (int round = 0; round < 2; ++round)
    for (auto const& its : all)
      seen += ends_of(its);
  return seen;
}

std::string one_after_another() {
  std::string seen;
  for (int i = 0; i < 6; ++i) {
    pool const p("alone");
    seen += ends_of(one_of_three(p));
  }
  return seen;
}

}  // namespace

// Three pools on a device that holds two. Some go to the neighbour.
std::string pools_that_take_turns() {
  choose_many();
  try {
    return three_at_once();
  } catch (not_supported const&) {  // without addresses a device does not map memory
  } catch (out_of_memory const& e) {
    // A reservation that was refused is halved, down to twice the memory: too little for three pools at once.
    if (e.report().cause != memory_cause::addresses)
      throw;
  }
  return one_after_another();
}

// The second capture needs a large block where the first left free handles in pieces.
std::string graphs_of_one_memory() {
  graph_memory const shared;
  stream const s;
  buffer const out(s, 8), host = pinned(8);
  auto const in_pieces = [&](std::size_t piece, unsigned char first) {
    return [&, piece, first] {
      stream_guard const on(s);
      std::vector<buffer> all;
      for (unsigned char i = 0; i < 6; ++i) {
        all.emplace_back(s, piece);
        fill(all.back().data(), std::byte(first + i), piece);
      }
      for (std::size_t i = 0; i < 6; i += 2)
        all[i].reset();
      buffer const large(s, 3 * piece);
      fill(large.data(), std::byte(first + 100), large.size());
      for (std::size_t i = 0; i < 6; ++i) {
        char const* const from = i % 2 ? all[i].data<char>() + piece - 1 : large.data<char>() + i;
        copy(s, out.data<char>() + i, from, 1, non_blocking);
      }
    };
  };
  graph a = graph::capture(s, in_pieces(130'000, 10), {.memory = &shared});
  graph b = graph::capture(s, in_pieces(65'536, 60), {.memory = &shared});
  std::string seen;
  for (graph* const g : {&a, &b, &a}) {
    g->launch(s);
    copy(s, host.data(), out.data(), 6, non_blocking);
    s.synchronize();
    seen.append(host.data<char>(), 6);
  }
  return seen;
}

// Each capture needs the memory of the graph before it, which has ended, and whose launch may still run.
std::string captures_that_come_again() {
  stream const s;
  buffer const host = pinned(4);
  for (std::size_t i = 0; i < 4; ++i) {
    graph once = graph::capture(s, [&] {
      buffer const large(s, 1'200'000);
      fill(large.data(), std::byte(i + 1), large.size());
      copy(s, host.data<char>() + i, large.data<char>() + 1'000'000, 1, non_blocking);
    });
    once.launch(s);
  }
  s.synchronize();
  return std::string(host.data<char>(), 4);
}

}  // namespace weir::faults
