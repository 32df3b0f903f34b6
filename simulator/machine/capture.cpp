// Stream capture, graphs and their launches, and the rules of the legacy stream during captures.
// Threads: as the driver interface.
#include "simulator/machine/capture.h"

#include "simulator/machine/machine_state.h"

namespace weir::driver::sim {
namespace {
constexpr status not_permitted{code::not_permitted};
std::uint64_t number(graph_handle h) {
  return static_cast<std::uint64_t>(h);
}
std::uint64_t number(executable_handle h) {
  return static_cast<std::uint64_t>(h);
}

struct replayed {  // the work of one launch; the graph owns the original
  std::shared_ptr<graph> of;
  work* job;
};
replayed& in(void* state) {
  return *static_cast<replayed*>(state);
}
}  // namespace

graph::~graph() {
  for (lane& l : lanes)
    for (step& s : l.steps)
      s.what.drop();
  for (owned const& o : keeps)
    o.drop(o.state);
}

bool graph::is_like(graph const& other) const {
  auto const alike = [](step const& a, step const& b) {
    bool const waits = a.what.what == operation::kind::wait;
    return a.what.what == b.what.what && (!waits || (a.lane == b.lane && a.what.position == b.what.position));
  };
  return std::ranges::equal(lanes, other.lanes, [&](lane const& a, lane const& b) {
    return a.device == b.device && std::ranges::equal(a.steps, b.steps, alike);
  });
}

bool graph::joined() const {
  // By lane: how many of its steps come before the end of the first lane, and how many were looked at.
  std::vector<std::size_t> reached(lanes.size(), 0), seen(lanes.size(), 0);
  reached[0] = lanes[0].steps.size();
  for (bool more = true; more;) {
    more = false;
    for (std::size_t l = 0; l < lanes.size(); ++l) {
      for (; seen[l] < reached[l]; ++seen[l]) {
        step const& s = lanes[l].steps[seen[l]];
        if (s.what.what != operation::kind::wait)
          continue;
        reached[s.lane] = std::max<std::size_t>(reached[s.lane], s.what.position);
        more = true;
      }
    }
  }
  for (std::size_t l = 0; l < lanes.size(); ++l) {  // waits at the end of a lane are not work
    auto const& steps = lanes[l].steps;
    auto const works = [](step const& s) { return s.what.what != operation::kind::wait; };
    if (std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(reached[l]), steps.end(), works))
      return false;
  }
  return true;
}

void capture::enter(stream& s, std::shared_ptr<capture> const& self) {
  s.in = self;
  s.lane = members.size();
  members.push_back(&s);
  kept->lanes.push_back({s.device, s.priority});
}

operation replay(graph::step& s, std::shared_ptr<graph> const& of) {
  operation o = s.what;
  o.make_room();  // a copy has none
  o.job = {};
  if (!s.what.job.run)
    return o;
  o.job.state = new replayed{of, &s.what.job};
  o.job.run = [](void* p) { in(p).job->run(in(p).job->state); };
  o.job.drop = [](void* p) { delete static_cast<replayed*>(p); };
  if (s.what.job.ready)
    o.job.ready = [](void* p) { return in(p).job->ready(in(p).job->state); };
  return o;
}

// Work for streams ------------------------------------------------------------------------------------------

// The legacy stream and the blocking streams of its device wait for each other's earlier work, if not done.
template <class Visit>
void machine::in_legacy_order(stream& s, Visit visit) {
  if (s.kind != stream_kind::blocking)
    return;
  auto const& legacy = legacy_[static_cast<std::size_t>(s.device)];
  if (!legacy)
    return;
  if (&s != legacy.get())
    return visit(*legacy, s.saw_legacy);
  for (auto const& b : all_.devices[static_cast<std::size_t>(s.device)].live)
    if (b->kind == stream_kind::blocking && b != legacy)
      visit(*b, b->legacy_saw);
}

operations machine::legacy_waits(stream& s) {
  operations waits;
  in_legacy_order(s, [&](stream& other, std::uint64_t seen) {
    if (seen < other.given && other.done < other.given)
      waits.push_back(wait_for(other, other.given));
  });
  return waits;
}

void machine::put(stream& s, operations&& all) noexcept {
  in_legacy_order(s, [](stream& other, std::uint64_t& seen) { seen = other.given; });
  all_.give(s, std::move(all));
}

bool machine::meets_capture(stream const& s) {
  if (s.in)
    return true;
  if (legacy_[static_cast<std::size_t>(s.device)].get() != &s)
    return false;
  auto const& live = all_.devices[static_cast<std::size_t>(s.device)].live;
  return std::any_of(live.begin(), live.end(), [](auto const& b) { return b->in && b->kind == stream_kind::blocking; });
}

status machine::spoil_met(stream const& s) {
  if (s.in) {
    s.in->spoiled = true;
    return not_permitted;
  }
  if (!meets_capture(s))
    return fine;
  for (auto const& b : all_.devices[static_cast<std::size_t>(s.device)].live)
    if (b->in && b->kind == stream_kind::blocking)
      b->in->spoiled = true;
  return not_permitted;
}

status machine::spoil_on(int device) {
  status said = fine;
  for (auto const& s : all_.devices[static_cast<std::size_t>(device)].live)
    if (s->in)
      said = spoil_met(*s);
  return said;
}

status machine::spoil_of(event const& e) {
  if (!e.captured)
    return fine;
  if (!e.captured->active())
    return {code::invalid};
  e.captured->spoiled = true;
  return not_permitted;
}

status machine::keep(stream& s, operation&& o, std::size_t lane) {
  if (s.in->spoiled || o.what == operation::kind::host)
    return not_permitted;
  s.in->kept->lanes[s.lane].steps.push_back({std::move(o), lane});
  return fine;
}

// Prepares s for new work. Under capture the work is recorded and not queued.
machine::given machine::give(stream& s, operations& one, status& said) {
  if (!s.in) {
    said = spoil_met(s);
    if (!said.ok())
      return given::refused;
    one.splice(one.begin(), legacy_waits(s));
    return given::queued;
  }
  said = keep(s, std::move(one.front()), 0);
  return said.ok() ? given::kept : given::refused;
}

status machine::record_captured(stream& s, event& e) {
  if (s.in->spoiled)
    return not_permitted;
  e.captured = s.in;
  e.lane = s.lane;
  e.position = s.in->kept->lanes[s.lane].steps.size();
  e.on.reset();
  return fine;
}

status machine::wait_captured(stream& s, event& e) {
  if (s.in && s.in->spoiled)
    return not_permitted;
  if (!e.captured) {
    if (!e.on)
      return fine;        // never recorded
    return spoil_met(s);  // recorded outside captures
  }
  if (!e.captured->active())
    return {code::invalid};
  if (s.in && s.in != e.captured) {  // spoils both captures
    s.in->spoiled = true;
    return spoil_of(e);
  }
  if (!s.in) {
    if (e.captured->spoiled)
      return not_permitted;
    if (legacy_[static_cast<std::size_t>(s.device)].get() == &s)
      return spoil_of(e);
    e.captured->enter(s, e.captured);
  } else if (e.lane == s.lane) {
    return fine;  // its own earlier work
  }
  operation o;
  o.what = operation::kind::wait;
  o.position = e.position;
  return keep(s, std::move(o), e.lane);
}

// Begin and end ---------------------------------------------------------------------------------------------

status machine::begin_capture(int device, stream_handle h, capture_mode mode) {
  stream_call s(*this, device, h);
  if (!s)
    return s.why;
  if (s->in || h == stream_handle::legacy)
    return not_permitted;
  note(50, s->id, static_cast<int>(mode));
  auto made = std::make_shared<capture>();
  made->number = ++last_capture_;
  made->mode = mode;
  made->thread = base::this_thread_id();
  made->enter(*s, made);
  return fine;
}

result<graph_handle> machine::end_capture(int device, stream_handle h) {
  std::shared_ptr<capture> ended;  // destroyed without the lock: it may own refused work
  std::shared_ptr<graph> kept;     // likewise
  stream_call s(*this, device, h);
  if (!s)
    return {s.why};
  if (!s->in)
    return {not_permitted};
  note(51, s->id);
  bool const wrong_thread = s->in->mode != capture_mode::relaxed && s->in->thread != base::this_thread_id();
  if (s->lane != 0 || wrong_thread)
    return {spoil_met(*s)};
  ended = s->in;
  for (stream* const member : std::exchange(ended->members, {}))
    member->in.reset();
  kept = std::exchange(ended->kept, nullptr);
  if (!ended->spoiled && kept->joined())
    return {fine, static_cast<graph_handle>(graphs_.add(kept))};
  return {not_permitted};
}

void machine::forget_captures() {
  for (auto const& s : all_.live())
    s->in.reset();
}

bool machine::unsafe_call() {
  if (!may_call().ok())
    return false;
  base::lock_guard lock(all_.mutex);
  bool permitted = true;
  for (auto const& s : all_.live()) {
    if (!s->in || s->in->mode == capture_mode::relaxed)
      continue;
    if (s->in->mode == capture_mode::this_thread && s->in->thread != base::this_thread_id())
      continue;
    s->in->spoiled = true;
    permitted = false;
  }
  return permitted;
}

status machine::keep_with_graph(int device, stream_handle h, void (*drop)(void*), void* state) {
  status said;
  {
    stream_call s(*this, device, h);
    said = s.why;
    if (s && (!s->in || s->in->spoiled))
      said = not_permitted;
    if (said.ok()) {
      note(56, s->id);
      s->in->kept->keeps.push_back({drop, state});
    }
  }
  if (!said.ok())
    drop(state);
  return said;
}

// Graphs ----------------------------------------------------------------------------------------------------

result<executable_handle> machine::instantiate(int device, graph_handle h) {
  if (status const s = enter_on(device, need::alive, 52); !s.ok())
    return {s};
  base::lock_guard lock(all_.mutex);
  auto const& g = graphs_.find(number(h));
  if (!g)
    return {invalid};
  auto made = std::make_shared<executable>();
  made->device = device;
  made->of = g;
  return {fine, static_cast<executable_handle>(executables_.add(std::move(made)))};
}

status machine::update(int device, executable_handle eh, graph_handle gh) {
  if (status const s = enter_on(device, need::alive, 57); !s.ok())
    return s;
  std::shared_ptr<graph> gone;  // destroyed after the lock: it may own work
  base::lock_guard lock(all_.mutex);
  auto const& e = executables_.find(number(eh));
  auto const& g = graphs_.find(number(gh));
  if (!g || !e || e->device != device)
    return invalid;
  if (!e->of->is_like(*g))
    return {code::not_supported};
  gone = std::exchange(e->of, g);  // its launches under way hold it
  return fine;
}

status machine::launch_graph(int device, stream_handle h, executable_handle eh) {
  stream_call s(*this, device, h);
  if (!s)
    return s.why;
  auto const e = executables_.find(number(eh));
  if (!e || e->device != device)
    return invalid;
  for (auto const& l : e->of->lanes)
    if (status const said = check(l.device, need::alive); !said.ok())
      return said;
  if (s->in)
    return not_permitted;
  if (status const said = spoil_met(*s); !said.ok())
    return said;
  note(53, s->id, number(eh));
  replay_on(*s, *e);
  e->last_on = s->shared_from_this();
  e->last = s->given;
  executor_->changed(s.lock);
  return fine;
}

namespace {
struct replayed_lane {  // what is not enqueued is dropped
  std::shared_ptr<stream> on{};
  operations all{};
  ~replayed_lane() { drop_all(all); }
};
}  // namespace

// The first lane runs on s. Each other lane gets its own stream, so that lanes are as concurrent as captured.
// Throws: bad_alloc, with nothing enqueued
void machine::replay_on(stream& s, executable& e) {
  auto& lanes = e.of->lanes;
  std::vector<replayed_lane> work(lanes.size());
  work[0].on = s.shared_from_this();
  work[0].all = legacy_waits(s);
  if (e.last_on && e.last_on.get() != &s && e.last_on->done < e.last)
    work[0].all.push_back(wait_for(*e.last_on, e.last));
  for (std::size_t l = 1; l < lanes.size(); ++l) {
    auto made = std::make_shared<stream>();
    made->device = lanes[l].device;
    made->priority = lanes[l].priority;
    made->id = all_.next_stream++;
    made->number = s.number;
    made->from = {s.id, s.device};
    made->destroyed = true;
    made->connection = stream::alone;  // work is enqueued lane by lane, not in an order that can run
    auto& live = all_.devices[static_cast<std::size_t>(made->device)].live;
    base::make_room(live, live.size() + lanes.size());
    work[l].on = std::move(made);
  }
  std::uint64_t const before = s.given + work[0].all.size();  // operations of s before the first step of its lane
  for (std::size_t l = 0; l < lanes.size(); ++l) {
    for (graph::step& step : lanes[l].steps) {
      operation& o = work[l].all.emplace_back();  // first: what it then owns is dropped with it
      if (step.what.what == operation::kind::wait) {
        o = wait_for(*work[step.lane].on, step.what.position + (step.lane == 0 ? before : 0));
      } else {
        o = replay(step, e.of);
        o.blocks_ended = pages_.blocks_ended();
      }
    }
  }
  if (!e.of->keeps.empty()) {  // all lanes have joined: the launch is over when this is dropped
    operation& last = work[0].all.emplace_back();
    last.what = operation::kind::work;
    last.job.state = new std::shared_ptr<graph>(e.of);
    last.job.run = [](void*) {};
    last.job.drop = [](void* p) { delete static_cast<std::shared_ptr<graph>*>(p); };
  }
  put(s, std::move(work[0].all));
  for (std::size_t l = 1; l < lanes.size(); ++l) {
    all_.devices[static_cast<std::size_t>(work[l].on->device)].live.push_back(work[l].on);
    all_.give(*work[l].on, std::move(work[l].all));
  }
}

template <class Thing>
status machine::destroy(handle_table<Thing>& from, std::uint64_t h, int call) {
  if (status const s = may_call(); !s.ok())
    return s;
  std::shared_ptr<Thing> gone;  // destroyed after the lock: it may own work
  base::lock_guard lock(all_.mutex);
  gone = from.find(h);
  if (!gone)
    return invalid;
  note(call, h);
  from.remove(h);
  return fine;
}
status machine::destroy_graph(graph_handle h) {
  return destroy(graphs_, number(h), 54);
}
status machine::destroy_executable(executable_handle h) {
  return destroy(executables_, number(h), 55);
}

void machine::graph_census(std::vector<std::string>& found) const {
  graphs_.each([&](std::uint64_t h, graph const&) { found.push_back("graph " + std::to_string(h)); });
  executables_.each([&](std::uint64_t h, executable const& e) {
    found.push_back("executable " + std::to_string(h) + " of device " + std::to_string(e.device));
  });
}

// Streams that always exist ---------------------------------------------------------------------------------

namespace {
std::shared_ptr<void> const& this_thread_lives() {
  static base::per_thread<std::shared_ptr<void>> value;
  auto& mine = value.get();
  if (!mine)
    mine = std::make_shared<char>();
  return mine;
}
}  // namespace

// A thread's stream ends with it, when its work is done.
void machine::end_streams_of_ended_threads() {
  std::erase_if(of_threads_, [&](auto const& one) {
    std::shared_ptr<stream> const s = one.second.its;
    if (!one.second.thread.expired() || s->in)
      return false;
    s->destroyed = true;
    all_.forget_if_finished(*s);
    return true;
  });
}

stream* machine::standing_stream(int device, stream_handle h) {
  auto& live = all_.devices[static_cast<std::size_t>(device)].live;
  auto const made = [&] {
    auto s = std::make_shared<stream>();
    s->device = device;
    s->kind = stream_kind::blocking;
    s->id = all_.next_stream++;
    s->permanent = true;
    base::make_room(live);  // nothing is listed that cannot be found
    return s;
  };
  if (h == stream_handle::legacy) {
    auto& slot = legacy_[static_cast<std::size_t>(device)];
    if (!slot)
      live.push_back(slot = made());
    return slot.get();
  }
  std::pair const here{device, base::this_thread_id()};
  auto found = of_threads_.find(here);
  if (found == of_threads_.end()) {
    end_streams_of_ended_threads();
    found = of_threads_.emplace(here, of_thread{made(), this_thread_lives()}).first;
    live.push_back(found->second.its);
  }
  return found->second.its.get();
}

}  // namespace weir::driver::sim
