// Kernels and whole captures: captured, spoiled, joined or not, launched.
// Threads: as player.h says.
#include <algorithm>
#include <map>

#include "tests/fuzz/player.h"
#include "tests/fuzz/stir.h"

namespace weir::fuzz {
namespace {
// words of each use; all within the first `reach` words of an area, fewer than are compared
constexpr std::size_t words = 500, reach = 15 << 10;
}  // namespace

std::string player::kernel_call(call const& c, stream_slot& s) {
  auto const [a, b, n, offset, d, twist] = c.with;
  auto const all = usable(s.device);  // access to any other area would lose the device
  if (all.size() < 2)
    return "-";
  area& to = *all[static_cast<std::size_t>(b) % all.size()];
  area& from = *all[static_cast<std::size_t>(n) % all.size()];
  if (to.of == from.of)
    return "-";
  s.held |= order({&to, &from}, static_cast<int>(&s - streams_.data()));
  given(s);
  auto const at = [&](int k) { return 4 * (static_cast<std::size_t>(k) % (reach - words)); };
  status const said =
      stir(machine_, s.device, s.handle, to.at + at(offset), from.at + at(d), words, static_cast<std::uint32_t>(twist));
  if (said.ok())
    use({&to, &from}, static_cast<int>(&s - streams_.data()));
  return say(said);
}

namespace {

// One history for each byte: a branch uses what it used last, or the other branch before they met.
struct branches {
  struct last {
    int branch, step;
  };
  std::map<void const*, last> used{};
  int forked = -1, joined = -1, step = 0;
  bool may(void const* content, int branch) const {
    auto const at = used.find(content);
    if (at == used.end() || at->second.branch == branch)
      return true;
    return at->second.step < (branch == 0 ? joined : forked);
  }
};

}  // namespace

std::string player::graph_call(call const& c, stream_slot& s) {
  auto const [a, b, n, offset, d, twist] = c.with;
  std::uint32_t state =
      static_cast<std::uint32_t>(n) << 16 ^ static_cast<std::uint32_t>(offset) ^ static_cast<std::uint32_t>(twist) << 8;
  auto const below = [&](std::uint32_t k) {
    return (state = state * 1664525u + 1013904223u) >> 8 & 0xffffu ? (state >> 8) % k : 0;
  };
  static constexpr driver::capture_mode modes[] = {driver::capture_mode::global, driver::capture_mode::this_thread,
                                                   driver::capture_mode::relaxed};
  std::string said = say(machine_.begin_capture(s.device, s.handle, modes[static_cast<std::size_t>(d) % 3]));
  if (said != "ok")
    return said;
  driver::event_handle fork{}, join{};
  auto const partner = [&](std::size_t k) {
    stream_slot const& x = streams_[k % made_streams];
    return x.alive && &x != &s && x.device == s.device;
  };
  std::size_t k = static_cast<std::size_t>(b);
  while (k < static_cast<std::size_t>(b) + made_streams && !partner(k))
    ++k;
  bool const pair = partner(k);
  stream_slot& other = streams_[k % made_streams];
  std::vector<driver::event_handle> mine;
  auto const fresh = [&] {
    auto const made = machine_.create_event(s.device, driver::event_kind::order_only);
    said += " event " + say(made.is);
    if (made.ok())
      mine.push_back(made.value);
    return made.value;
  };
  auto const note = [&](char const* what, status is) { said += std::string(", ") + what + ' ' + say(is); };
  branches at;
  auto const mine_to_use = usable(s.device);
  std::vector<area*> touched;
  auto const use_some = [&](int branch) {
    if (mine_to_use.size() < 2)
      return;
    stream_slot const& on = branch == 0 ? s : other;
    auto const k = below(static_cast<std::uint32_t>(mine_to_use.size()));
    area& to = *mine_to_use[k];
    area& from = *mine_to_use[(k + 1) % mine_to_use.size()];
    std::size_t const x = 4 * below(reach - words), y = 4 * below(reach - words);
    bool const right = to.of != from.of && at.may(to.of.get(), branch) && at.may(from.of.get(), branch);
    if (!right)
      return;
    for (area* one : {&to, &from}) {
      at.used[one->of.get()] = {branch, at.step};
      touched.push_back(one);
    }
    switch (below(3)) {
      case 0: return note("kernel", stir(machine_, s.device, on.handle, to.at + x, from.at + y, words, at.step));
      case 1:
        return note("copy", machine_.copy(s.device, on.handle, reinterpret_cast<void*>(to.at + x),
                                          reinterpret_cast<void const*>(from.at + y), 4 * words));
      default:
        return note("fill", machine_.fill(s.device, on.handle, reinterpret_cast<void*>(to.at + x),
                                          static_cast<std::uint32_t>(twist), 4, words));
    }
  };
  auto const refused = [&](std::uint32_t which) {  // spoiled captures refuse all later calls
    switch (which) {
      case 0: return note("query", machine_.query_stream(s.device, s.handle));
      case 1: return note("synchronize", machine_.synchronize_stream(s.device, s.handle));
      case 2: return note("begin", machine_.begin_capture(s.device, s.handle, driver::capture_mode::global));
      case 3: return note("destroy", machine_.destroy_stream(s.device, s.handle));
      case 4:
        return note("host function", machine_.host_function(s.device, s.handle, {[](void*) {}, nullptr, nullptr}));
      case 5:
        if (mine.empty())
          return;
        return note("query event", machine_.query_event(mine.back()));
      default: {
        if (s.joins != stream_slot::kind::blocking)
          return;
        return note("query legacy", machine_.query_stream(s.device, driver::stream_handle::legacy));
      }
    }
  };
  for (int steps = 2 + static_cast<int>(below(10)); at.step < steps; ++at.step) {
    bool const open = at.forked > at.joined;
    switch (below(12)) {
      case 0:
      case 1:
      case 2: use_some(0); break;
      case 3:
      case 4:
      case 5:
        if (open)
          use_some(1);
        break;
      case 6:
      case 7: {
        if (!pair || open || (fork = fresh()) == driver::event_handle::none)
          break;
        status const recorded = machine_.record(s.device, s.handle, fork);
        note("record", recorded);
        note("fork", machine_.wait(s.device, other.handle, fork));
        // A spoiled capture records nothing, and the other stream's work would run at once.
        if (recorded.ok())
          at.forked = at.step;
        break;
      }
      case 8:
      case 9:
        if (!open || (join = fresh()) == driver::event_handle::none)
          break;
        note("record", machine_.record(s.device, other.handle, join));
        note("join", machine_.wait(s.device, s.handle, join));
        at.joined = at.step;
        break;
      default:
        if (below(4) == 0)
          refused(below(7));
    }
  }
  if (at.forked > at.joined && below(8) != 0 && (join = fresh()) != driver::event_handle::none) {
    note("record", machine_.record(s.device, other.handle, join));
    note("join", machine_.wait(s.device, s.handle, join));
  }
  auto const graph = machine_.end_capture(s.device, s.handle);
  note("end", graph.is);
  for (auto const e : mine)
    note("destroy event", machine_.destroy_event(s.device, e));
  if (!graph.ok())
    return said;
  auto const made = machine_.instantiate(s.device, graph.value);
  note("instantiate", made.is);
  note("destroy graph", machine_.destroy_graph(graph.value));
  if (!made.ok())
    return said;
  std::uint32_t held_before = 0;
  bool launched = false;
  // a later launch is ordered after the first, whatever its stream
  for (int launches = static_cast<int>(below(3)); launches > 0; --launches) {
    stream_slot& on = pair && below(2) != 0 ? other : s;
    int const me = static_cast<int>(&on - streams_.data());
    if (!launched)
      on.held |= order(touched, me);
    on.held |= held_before;
    given(on);
    status const is = machine_.launch_graph(s.device, on.handle, made.value);
    note("launch", is);
    if (!is.ok())
      continue;
    use(touched, me);
    held_before = on.held;
    launched = true;
  }
  note("destroy executable", machine_.destroy_executable(made.value));
  return said;
}

}  // namespace weir::fuzz
