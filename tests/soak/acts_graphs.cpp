// Graphs: captured, launched, updated, and ended while their launches run.
// Threads: one.
#include "tests/soak/actor.h"

namespace weir::soak {

void actor::graphs() {
  int const d = some_device();
  stream const& s = some_stream(d);
  buffer const b(s, some_bytes());
  std::optional<graph> g;
  std::shared_lock capturing(in_.captures());
  timed(call::capture, [&] {
    g.emplace(graph::capture(s, [&] {
      work(s, b.data(), b.size());
      fill(s, b.data(), std::byte{1}, b.size());
    }));
  });
  capturing.unlock();
  for (std::size_t i = below(4); i > 0; --i)
    timed(call::graph_launch, [&] { g->launch(s); });
  timed(call::graph_end, [&] { g.reset(); });
}

void actor::graphs_with_memory() {
  int const d = some_device();
  stream const& s = some_stream(d);
  buffer outlives;
  std::optional<graph> g;
  std::shared_lock capturing(in_.captures());
  timed(call::capture, [&] {
    g.emplace(graph::capture(s, [&] {
      void* const inside = allocate(s, some_bytes());
      fill(s, inside, std::byte{1}, 16);
      deallocate(inside);
      if (chance(2))
        outlives = buffer(s, 1000);
    }));
  });
  capturing.unlock();
  for (std::size_t i = below(4); i > 0; --i)
    timed(call::graph_launch, [&] { g->launch(s); });
  if (chance(2))
    outlives.reset();
  timed(call::graph_end, [&] { g.reset(); });
}

// One memory lasts; graphs of it come and go. Launches of all actors would need one order, so none launches.
void actor::graphs_of_one_memory() {
  int const d = some_device();
  stream const& s = some_stream(d);
  graph_memory const own;
  bool const lasts = chance(2);
  auto const& memory = lasts ? in_.lasting_[static_cast<std::size_t>(d)]->graphs : own;
  std::vector<graph> all;
  std::shared_lock const capturing(in_.captures());
  for (int i = 0; i < 3; ++i) {
    timed(call::capture, [&] {
      all.push_back(graph::capture(s, [&] { deallocate(allocate(s, some_bytes())); }, {.memory = &memory}));
    });
    if (!lasts)
      all.back().launch(s);
  }
  timed(call::graph_end, [&] { all.clear(); });
}

void actor::graph_updates() {
  int const d = some_device();
  stream const& s = some_stream(d);
  auto const body = [&] {
    void* const inside = allocate(s, 20'000);
    work(s, inside, 20'000);
    deallocate(inside);
  };
  std::shared_lock const capturing(in_.captures());
  graph g = graph::capture(s, body);
  for (int i = 0; i < 3; ++i) {
    g.launch(s);
    timed(call::graph_update, [&] { g.update(s, body); });
  }
  g.launch(s);
}

}  // namespace weir::soak
