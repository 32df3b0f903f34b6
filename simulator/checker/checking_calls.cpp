// The watcher's calls: names of streams and events, order, and work.
// Threads: as checking_calls.h says.
#include "simulator/checker/checking_calls.h"

#include "runtime/base/process.h"
#include "simulator/checker/checking_driver.h"

namespace weir::driver::check {
namespace {

stream_handle handle_of(seen_calls::stream s) noexcept {
  return s <= 1 ? stream_handle::legacy : static_cast<stream_handle>(s);
}

// weir's events that the program got have a handle of their own; those of the program are known by CUDA's.
event_handle event_of(knowledge const& known, seen_calls::event e) {
  auto const found = known.events_by_cuda.find(e);
  return found == known.events_by_cuda.end() ? static_cast<event_handle>(e) : found->second;
}

// What a call of weir launches, that call declares. What the program launches while one captures, none does.
bool is_declared() noexcept {
  return base::this_call().unwatched > 0;
}

base::site or_else(base::site s, char const* operation) noexcept {
  if (!s.operation)
    s.operation = operation;
  return s;
}

}  // namespace

template <class Then>
void checking_calls::told(Then then) noexcept {
  if (process_was_forked())
    return;
  try {
    auto const known = of_.judge_.lock();
    catch_up(*known);
    then(*known);
  } catch (...) {
    missed();
  }
}

// A stream that was made before the watch is asked for its kind, without the lock.
template <class Then>
void checking_calls::on(int device, stream s, Then then) noexcept {
  if (process_was_forked() || device < 0 || device >= of_.inner_->device_count())
    return;
  stream_handle const h = handle_of(s);
  bool is_new = false;
  told([&](knowledge& known) {
    is_new = s > 2 && (!known.order.knows(device, h) || known.order.is_unasked(known.order.find(device, h)));
    if (!is_new)
      then(known, known.order.find(device, h));
  });
  if (!is_new)
    return;
  try {
    stream_id const id = of_.asked(device, h);
    auto const known = of_.judge_.lock();
    catch_up(*known);
    then(*known, id);
  } catch (...) {
    missed();
  }
}

// A wait or an allocation may have been missed. No report may come of that: what was enqueued until now counts as
// complete, and freed memory may be in use again.
void checking_calls::catch_up(knowledge& known) {
  if (!is_behind_.load()) [[likely]]
    return;
  known.saw_device_done(-1);
  known.blocks.forget_freed_of_program();
  is_behind_.store(false);
}

void checking_calls::missed() noexcept {
  missed_.fetch_add(1);
  is_behind_.store(true);
}

void checking_calls::after_completion(knowledge& known) {
  of_.let_host_back(known);
  known.look_at_sources();
}

// Streams and events ----------------------------------------------------------------------------------------

void checking_calls::stream_made(int device, stream s, bool blocking) noexcept {
  told([&](knowledge& known) {
    if (s <= 2 || device < 0)
      return;
    known.stream_ended(known.order.unlink(device, handle_of(s)));
    known.order.add(device, handle_of(s), blocking ? graph::joins::legacy : graph::joins::nothing);
  });
}

void checking_calls::stream_gone(int device, stream s) noexcept {
  if (s <= 2)
    return;  // the program cannot end a predefined stream, and its call fails
  told([&](knowledge& known) { known.stream_ended(known.order.unlink(device, handle_of(s))); });
}

void checking_calls::recorded(int device, stream s, event e) noexcept {
  on(device, s, [&](knowledge& known, stream_id id) {
    event_handle const handle = event_of(known, e);
    moment const now = known.order.now(id);
    if (known.captured.recorded(handle, id, known.captured.number_of(id))) {
      known.order.recorded(handle, moment{{}, now.seen, 0});  // no operation: as checking_driver::record
      return;
    }
    known.order.recorded(handle, now);
    known.order.recorded_on(id);
  });
}

void checking_calls::waited(int device, stream s, event e) noexcept {
  on(device, s, [&](knowledge& known, stream_id id) {
    event_handle const handle = event_of(known, e);
    (void)known.order.now(id);  // as checking_driver::wait
    if (!known.captured.waited(id, handle) && !known.captured.of(id))
      known.order.waited(id, known.order.record_of(handle), trust::promised);
  });
}

void checking_calls::event_gone(event e) noexcept {
  told([&](knowledge& known) {
    event_handle const handle = event_of(known, e);
    known.order.forget(handle);
    known.captured.forget(handle);
    known.events_by_cuda.erase(e);
  });
}

void checking_calls::stream_done(int device, stream s) noexcept {
  on(device, s, [&](knowledge& known, stream_id id) {
    known.order.saw_complete(known.order.so_far(id), trust::promised);
    after_completion(known);
  });
}

void checking_calls::event_done(event e) noexcept {
  told([&](knowledge& known) {
    known.order.saw_complete(known.order.record_of(event_of(known, e)), trust::promised);
    after_completion(known);
  });
}

void checking_calls::device_done(int device) noexcept {
  told([&](knowledge& known) {
    known.saw_device_done(device);
    after_completion(known);
  });
}

// Work ------------------------------------------------------------------------------------------------------

void checking_calls::launched(int device, stream s, char const* kernel, std::span<seen_pointer const> pointers,
                              base::site site) noexcept {
  if (is_declared())
    return;
  on(device, s, [&](knowledge& known, stream_id id) {
    kernel_names::launch const& what = known.kernels.of(kernel, known.quiet);
    site.operation = what.in_words.c_str();
    if (recording* const in = known.captured.empty() ? nullptr : known.captured.of(id)) {
      in->given.push_back({site, what.quiet, {pointers.begin(), pointers.end()}});
      return;
    }
    views const seen = known.order.now(id).seen;
    known.given(known.order.enqueued(id), seen, pointers, site, what.quiet);
  });
}

void checking_calls::used(knowledge& known, stream_id id, std::span<range const> all, bool waits, base::site site) {
  boost::container::small_vector<range, 2> uses;  // pageable memory is used before the call returns
  for (range const& r : all)
    if (known.memory.is_known(r.at, r.bytes) || known.blocks.find(r.at, r.bytes) != known.blocks.end())
      uses.push_back(r);
  std::span<range const> const ranges(uses.data(), uses.size());
  if (known.keep_for_graph(id, ranges, site))
    return;
  moment const before = known.order.now(id);
  epoch const e = known.used(id, before, ranges, site, trust::promised);
  if (waits) {
    known.order.saw_complete({e, before.seen, 0}, trust::promised);
    after_completion(known);
    return;
  }
  for (range const& r : ranges)
    if (r.copied)
      known.copies_from(e, before, r.at, r.bytes, site);
  of_.keep_host_away(known, e, ranges, site);
}

void checking_calls::copied(int device, stream s, address to, address from, std::size_t bytes, bool waits,
                            base::site site) noexcept {
  if (is_declared())
    return;
  range const uses[] = {{.at = from, .bytes = bytes, .copied = true}, {.at = to, .bytes = bytes, .writes = true}};
  on(device, s, [&](knowledge& known, stream_id id) { used(known, id, uses, waits, or_else(site, "CUDA copy")); });
}

void checking_calls::filled(int device, stream s, address to, std::size_t bytes, bool waits, base::site site) noexcept {
  if (is_declared())
    return;
  range const uses[] = {{.at = to, .bytes = bytes, .writes = true}};
  on(device, s, [&](knowledge& known, stream_id id) { used(known, id, uses, waits, or_else(site, "CUDA fill")); });
}

void checking_calls::host_function(int device, stream s, base::site) noexcept {
  if (is_declared())
    return;
  on(device, s, [&](knowledge& known, stream_id id) {
    moment const before = known.order.now(id);
    known.host_function(known.used(id, before, {}, {}, trust::promised));
  });
}

// Memory ----------------------------------------------------------------------------------------------------

void checking_calls::allocated(int device, stream s, address at, std::size_t bytes, base::site site) noexcept {
  site = or_else(site, "allocate");
  if (s == no_stream || device < 0)
    told([&](knowledge& known) { known.allocated_by_program(0, device, at, bytes, site); });
  else
    on(device, s, [&](knowledge& known, stream_id id) { known.allocated_by_program(id, device, at, bytes, site); });
}

void checking_calls::freed(int device, stream s, address at, base::site site) noexcept {
  site = or_else(site, "free");
  if (s != no_stream) {
    on(device, s, [&](knowledge& known, stream_id id) { known.freed_by_program(id, at, site); });
    return;
  }
  told([&](knowledge& known) {
    auto const b = known.blocks.find(at, 1);
    if (b == known.blocks.end() || b->first != at)
      return;
    known.freed_by_program(0, at, site);
    after_completion(known);
  });
}

void checking_calls::unmapped(address at, std::size_t bytes, base::site site) noexcept {
  told([&](knowledge& known) {
    std::vector<address> gone;
    for (auto b = known.blocks.find(at, bytes); b != known.blocks.end() && b->first < at + bytes; ++b)
      if (b->first >= at)
        gone.push_back(b->first);
    for (address const one : gone)
      known.freed_by_program(0, one, or_else(site, "unmap"));
    after_completion(known);
  });
}

void checking_calls::found(int device, address at, std::size_t bytes, base::site site) noexcept {
  told([&](knowledge& known) {
    auto const b = known.blocks.find(at, bytes);
    bool const is_known =
        b != known.blocks.end() && b->second.live && b->first <= at && at + bytes <= b->first + b->second.bytes;
    if (!is_known)
      known.allocated_by_program(0, device, at, bytes, or_else(site, "find"));
  });
}

void checking_calls::closed(address at, base::site site) noexcept {
  told([&](knowledge& known) { known.closed_by_program(at, or_else(site, "close")); });
}

void checking_calls::hidden(address at, std::size_t bytes) noexcept {
  told([&](knowledge& known) { known.hidden(at, bytes); });
}

// Graphs ----------------------------------------------------------------------------------------------------

void checking_calls::graph_made(executable x, std::vector<node> nodes, base::site site) noexcept {
  told([&](knowledge& known) {
    known.judge_nodes(nodes, site);
    std::vector<range> uses;
    std::vector<given_launch> given;
    for (node& n : nodes) {
      for (touch const& t : n.bytes)
        uses.push_back({.at = t.at, .bytes = t.bytes, .writes = t.writes, .copied = !t.writes});
      if (n.pointers.empty())
        continue;
      kernel_names::launch const& what = known.kernels.of(n.kernel, known.quiet);
      given.push_back({{what.in_words.c_str(), {}}, what.quiet, std::move(n.pointers)});
    }
    check::executable& made = known.graphs_of_program[x];
    made.of = {std::make_shared<std::vector<range> const>(std::move(uses)),
               std::make_shared<std::vector<given_launch> const>(std::move(given)), nullptr};
    made.has_host_functions = std::ranges::any_of(nodes, [](node const& n) { return n.is_host; });
  });
}

void checking_calls::graph_launched(int device, stream s, executable x, base::site site) noexcept {
  if (is_declared())
    return;
  on(device, s, [&](knowledge& known, stream_id id) {
    captured_graph const& of = known.graphs_of_program[x].of;
    recording* const in = known.captured.empty() ? nullptr : known.captured.of(id);
    if (!in) {
      known.launched(known.graphs_of_program[x], known.order.now(id), or_else(site, "CUDA graph launch"));
    } else if (of.uses) {  // a part of the graph that is captured
      in->uses.insert(in->uses.end(), of.uses->begin(), of.uses->end());
      in->given.insert(in->given.end(), of.given->begin(), of.given->end());
    }
  });
}

void checking_calls::graph_gone(executable x) noexcept {
  told([&](knowledge& known) { known.graphs_of_program.erase(x); });
}

void checking_calls::not_understood(char const* what) noexcept {
  told([&](knowledge& known) { ++known.not_understood[what]; });
}

}  // namespace weir::driver::check
