// The checker's calls on captures and graphs.
// Threads: as checking_driver.h says.
#include "runtime/base/process.h"
#include "simulator/checker/checking_driver.h"

namespace weir::driver::check {

bool knowledge::keep_for_graph(stream_id s, std::span<range const> ranges, base::site site) {
  if (captured.empty()) [[likely]]
    return false;
  recording* const in = captured.of(s);
  if (!in)
    return false;
  in->uses.insert(in->uses.end(), ranges.begin(), ranges.end());
  stream_id const local = in->inside(s);
  moment const now = in->order.now(local);
  epoch const e = in->order.enqueued(local);
  auto const past = [&](access const& old) {
    return in->order.ordered({old.stream, old.n}, local, now.seen, trust::promised);
  };
  for (range const& r : ranges) {
    if (r.bytes == 0)
      continue;
    access_ref const a = made(r.writes ? action::writes : action::reads, e, site, r.at, r.bytes);
    a->captured = true;
    access outside = *a;
    outside.stream = s;
    for (auto b = blocks.find(r.at, r.bytes); b != blocks.end() && b->first < r.at + r.bytes; ++b)
      if (!b->second.live)
        report_use_after_free(outside, b);
    auto const clash = [&](access const& old, part const& p) {
      access first = old, second = *a;  // translated to stream ids outside the capture
      first.stream = in->outside[old.stream - 1];
      second.stream = s;
      report_race(first, second, p.at, p.to - p.from);
    };
    for (part const& p : memory.find(r.at, r.bytes))
      in->memory[p.of->number].add(p.from, p.to, a, past, [&](access const& old) { clash(old, p); });
  }
  return true;
}

// Inside, an allocation is a write behind the frees of what lay there; a use before it has to be ordered.
void knowledge::allocated_inside(recording& in, stream_id home, blocks::map::iterator b, base::site site) {
  address const at = b->first;
  stream_id const local = in.inside(home);
  moment const now = in.order.now(local);
  access_ref const a = made(action::allocates, now.at, site, at, b->second.bytes);
  a->captured = true;
  auto const past = [&](access const& old) {
    return old.all_epochs([&](epoch e) { return in.order.ordered(e, local, now.seen, trust::promised); });
  };
  for (part const& p : memory.find(at, b->second.bytes))
    in.memory[p.of->number].add(p.from, p.to, a, past, [&](access const& old) {
      access first = old;
      first.stream = in.outside[old.stream - 1];
      report_handed_out_early(first, b, std::nullopt);
    });
}

// Notes a free inside a capture. True: the block was allocated inside one, and the free is in the recording.
// False: no stream of `behind` is captured, or the block is an earlier one, which becomes the graph's.
bool knowledge::freed_inside(blocks::map::iterator b, std::span<stream_id const> behind, base::site site) {
  recording* in = nullptr;
  for (stream_id const s : behind) {
    in = captured.of(s);
    if (in)
      break;
  }
  if (!in)
    return false;
  bool const was_of_graph = std::exchange(b->second.of_graph, true);
  if (!was_of_graph)
    return false;
  access_ref a;
  std::vector<moment> ends;
  for (stream_id const s : behind) {
    if (captured.of(s) != in)
      continue;
    ends.push_back(in->order.now(in->inside(s)));
    if (!a)
      a = made(action::frees, ends.back().at, site, b->first, b->second.bytes);
    else
      a->also.push_back(ends.back().at);
  }
  a->captured = true;
  auto const past = [&](access const& old) {
    return old.all_epochs([&](epoch e) {
      return std::ranges::any_of(
          ends, [&](moment const& m) { return in->order.ordered(e, m.at.stream, m.seen, trust::promised); });
    });
  };
  for (part const& p : memory.find(b->first, b->second.bytes))
    in->memory[p.of->number].add(p.from, p.to, a, past, [&](access const& old) {
      access use = old;
      use.stream = in->outside[old.stream - 1];
      report_freed_in_use(use, behind, b);
    });
  return true;
}

epoch knowledge::launched(executable& x, moment before, base::site site) {
  stream_id const s = before.at.stream;
  if (x.last.at.stream) {  // launches of one executable follow each other
    before.seen = order.with(before.seen, x.last);
    order.follows(s, x.last);
  }
  std::span<range const> const ranges = x.of.uses ? std::span<range const>(*x.of.uses) : std::span<range const>();
  epoch const now = used(s, before, ranges, site, trust::promised, &x.of);
  // A launch past weir in the graph has the place of the graph's launch, if it has none.
  if (x.of.given) {
    for (given_launch const& g : *x.of.given)
      given(now, before.seen, g.pointers, {g.site.operation, g.site.at.file_name() ? g.site.at : site.at}, g.quiet,
            &x.of);
  }
  x.last = {now, before.seen, 0};
  if (x.has_host_functions) {
    host_function(now);
    return now;
  }
  for (range const& r : ranges)
    if (r.copied)
      copies_from(now, before, r.at, r.bytes, site);
  return now;
}

status checking_driver::begin_capture(int device, stream_handle s, capture_mode mode) {
  status const is = inner_->begin_capture(device, s, mode);
  if (!is.ok())
    return is;
  auto const known = judge_.lock();
  known->captured.begin(known->order.find(device, s));
  return is;
}

result<graph_handle> checking_driver::end_capture(int device, stream_handle s) {
  if (process_was_forked())
    return inner_->end_capture(device, s);
  {
    auto const known = judge_.lock();
    known->captured.about_to_end(known->order.find(device, s));
  }
  auto const r = inner_->end_capture(device, s);
  bool goes_on = false;
  // A refused end has ended a spoiled capture. On a wrong stream or thread the capture goes on.
  if (!r.ok()) {
    auto const is = inner_->capturing(device, s);
    goes_on = is.ok() && is.value;
  }
  auto const known = judge_.lock();
  if (goes_on) {
    known->captured.goes_on(known->order.find(device, s));
    return r;
  }
  auto kept = known->captured.end(known->order.find(device, s));
  if (r.ok() && kept.uses)
    known->captured.graphs[static_cast<std::uint64_t>(r.value)] = std::move(kept);
  return r;
}

// What a graph keeps is dropped once its launches are over: `over` notes the drop. The thread that drops it
// may hold the checker's lock, so `over` is an atomic of its own.
status checking_driver::keep_with_graph(int device, stream_handle s, void (*drop)(void*), void* state) {
  struct kept {
    void (*drop)(void*);
    void* state;
    std::shared_ptr<base::atomic<bool>> over = std::make_shared<base::atomic<bool>>(false);
  };
  auto* const both = new kept{drop, state};
  std::shared_ptr<base::atomic<bool> const> const over = both->over;
  auto const dropped = [](void* p) {
    base::no_switch const with_locks_held;
    std::unique_ptr<kept> const its(static_cast<kept*>(p));
    its->over->store(true);
    its->drop(its->state);
  };
  status const is = note(inner_->keep_with_graph(device, s, dropped, both), device);
  if (!is.ok() || process_was_forked())
    return is;
  auto const known = judge_.lock();
  recording* const in = known->captured.of(known->order.find(device, s));
  if (in && !in->over)
    in->over = over;
  return is;
}

result<executable_handle> checking_driver::instantiate(int device, graph_handle g) {
  auto const r = noted(inner_->instantiate(device, g), device);
  if (!r.ok())
    return r;
  auto const known = judge_.lock();
  if (auto const found = known->captured.graphs.find(static_cast<std::uint64_t>(g));
      found != known->captured.graphs.end())
    known->captured.executables[static_cast<std::uint64_t>(r.value)] = {found->second, {}};
  return r;
}

status checking_driver::update(int device, executable_handle x, graph_handle g) {
  status const is = note(inner_->update(device, x, g), device);
  if (!is.ok())
    return is;
  auto const known = judge_.lock();
  auto const found = known->captured.graphs.find(static_cast<std::uint64_t>(g));
  if (found != known->captured.graphs.end())
    known->captured.executables[static_cast<std::uint64_t>(x)].of = found->second;
  return is;
}

status checking_driver::launch_graph(int device, stream_handle s, executable_handle x) {
  moment const now = before(device, s);
  status const is = inner_->launch_graph(device, s, x);
  if (!is.ok())
    return note(is, device);
  if (!now.at.stream)
    return is;
  auto const known = judge_.lock();
  base::site in = base::this_call().in;
  if (!in.operation)
    in.operation = "graph launch";
  executable& launched = known->captured.executables[static_cast<std::uint64_t>(x)];
  epoch const e = known->launched(launched, now, in);
  if (launched.of.uses)
    keep_host_away(*known, e, *launched.of.uses, in);
  return is;
}

status checking_driver::destroy_graph(graph_handle g) {
  if (!process_was_forked())
    judge_.lock()->captured.graphs.erase(static_cast<std::uint64_t>(g));
  return inner_->destroy_graph(g);
}

status checking_driver::destroy_executable(executable_handle x) {
  if (!process_was_forked())
    judge_.lock()->captured.executables.erase(static_cast<std::uint64_t>(x));
  return inner_->destroy_executable(x);
}

}  // namespace weir::driver::check
