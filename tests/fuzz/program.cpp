// Makes, shrinks and prints programs.
#include "tests/fuzz/program.h"

#include <algorithm>
#include <random>

namespace weir::fuzz {
namespace {

struct named {
  verb what;
  std::string_view name;
  int weight;
};
constexpr named all[] = {
    {verb::reserve, "reserve", 4},
    {verb::unreserve, "unreserve", 3},
    {verb::create, "create", 5},
    {verb::release, "release", 3},
    {verb::map, "map", 8},
    {verb::unmap, "unmap", 4},
    {verb::grant, "grant", 8},
    {verb::create_segment, "create_segment", 2},
    {verb::release_segment, "release_segment", 2},
    {verb::pin, "pin", 3},
    {verb::unpin, "unpin", 2},
    {verb::find, "find", 3},
    {verb::peer, "peer", 1},
    {verb::create_stream, "create_stream", 5},
    {verb::destroy_stream, "destroy_stream", 2},
    {verb::query_stream, "query_stream", 3},
    {verb::synchronize_stream, "synchronize_stream", 2},
    {verb::capturing, "capturing", 1},
    {verb::create_event, "create_event", 4},
    {verb::destroy_event, "destroy_event", 2},
    {verb::record, "record", 7},
    {verb::wait, "wait", 6},
    {verb::query_event, "query_event", 4},
    {verb::synchronize_event, "synchronize_event", 2},
    {verb::elapsed, "elapsed_ms", 3},
    {verb::copy, "copy", 9},
    {verb::copy_peer, "copy_peer", 4},
    {verb::fill, "fill", 8},
    {verb::kernel, "kernel", 7},
    {verb::graph, "graph", 6},
    {verb::host_function, "host_function", 4},
    {verb::hold, "hold", 3},
    {verb::open_gate, "open_gate", 4},
};

}  // namespace

std::string_view name_of(verb v) noexcept {
  for (auto const& n : all) {
    if (n.what == v)
      return n.name;
  }
  return "?";
}

program make_program(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + 5);
  auto const below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int total = 0;
  for (auto const& n : all)
    total += n.weight;
  program p;
  auto const add = [&](verb v) {
    call c{v, {}};
    for (int& x : c.with)
      x = below(1 << 16);
    p.push_back(c);
  };
  // Most programs start with objects to use, and later calls destroy some. Half have one device with two
  // streams, to give kernels and graphs enough.
  if (below(2) != 0) {
    for (int d = 0; d < 2; ++d) {
      p.push_back({verb::create_stream, {d, 0, 0, 0, 0, below(1 << 16)}});
      p.push_back({verb::create_event, {0, d, 0, 1, 0, 0}});
    }
    p.push_back({verb::create_stream, {2, 0, 1, 0, 0, below(1 << 16)}});
    p.push_back({verb::reserve, {0, 0, 2, 0, 0, 0}});
    for (int i = 0; i < 3; ++i) {
      p.push_back({verb::create, {0, i, 0, 0, 0, 0}});
      p.push_back({verb::map, {0, i, 0, i, 0, 8}});
      p.push_back({verb::grant, {0, 0, 0, i, 0, 0}});
    }
    p.push_back({verb::record, {0, 0, 0, 0, 0, 0}});
    p.push_back({verb::kernel, {0, 0, 1, 0, 0, below(1 << 16)}});
    p.push_back({verb::record, {0, 1, 0, 0, 0, 0}});
  } else if (below(8) != 0) {
    for (verb v : {verb::create_stream, verb::create_stream, verb::create_stream, verb::create_event,
                   verb::create_event, verb::reserve, verb::create, verb::map, verb::grant, verb::create, verb::map,
                   verb::grant, verb::pin, verb::create_segment}) {
      add(v);
      p.back().with[5] = 0;  // legal
    }
  }
  for (int i = 0, n = 20 + below(50); i < n; ++i) {
    int at = below(total);
    auto const* pick = &all[0];
    while (at >= pick->weight)
      at -= (pick++)->weight;
    add(pick->what);
  }
  return p;
}

program shrink(program p, std::function<bool(program const&)> const& fails) {
  for (std::size_t chunk = p.size() / 2; chunk > 0;) {
    bool any = false;
    for (std::size_t from = 0; from < p.size();) {
      program less = p;
      less.erase(less.begin() + static_cast<std::ptrdiff_t>(from),
                 less.begin() + static_cast<std::ptrdiff_t>(std::min(from + chunk, p.size())));
      if (fails(less)) {
        p = std::move(less);
        any = true;
      } else {
        from += chunk;
      }
    }
    if (chunk > 1 || !any)
      chunk /= 2;
  }
  for (call& c : p) {  // also simplifies operands
    for (int& x : c.with) {
      int const was = x;
      for (int simple : {0, was % 16, was % 256}) {
        if (simple == x)
          break;
        x = simple;
        if (fails(p))
          break;
        x = was;
      }
    }
  }
  return p;
}

std::string text_of(program const& p) {
  std::string text;
  for (call const& c : p) {
    text += "  " + std::string(name_of(c.what)) + " {";
    for (std::size_t i = 0; i < c.with.size(); ++i)
      text += (i ? ", " : "") + std::to_string(c.with[i]);
    text += "}\n";
  }
  return text;
}

}  // namespace weir::fuzz
