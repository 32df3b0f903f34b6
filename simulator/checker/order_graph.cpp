// Clocks of streams and events, and the effects of completion.
// Threads: as order_graph.h says.
#include "simulator/checker/order_graph.h"

namespace weir::driver::check {
namespace {
view const& nothing() {
  static view const empty = std::make_shared<vector_clock const>();
  return empty;
}
std::size_t index(int device) noexcept {
  return static_cast<std::size_t>(device);
}
bool joins_legacy(graph::joins how) noexcept {
  return how == graph::joins::legacy || how == graph::joins::is_legacy;
}
}  // namespace

// Bounded by what is known: a promise beyond that is ignored.
void graph::promise(stream_id waiter, stream_id other) {
  // The part of e that is known: to be complete, or to come before the waiter.
  auto const as_known = [&](epoch e) {
    std::uint64_t n = std::min(e.n, at(e.stream).known_done);
    if (waiter)
      n = std::max(n, std::min(e.n, at(waiter).seen.known->of(e.stream)));
    return epoch{e.stream, n};
  };
  std::vector<epoch> kept{as_known({other, at(other).given})};
  for (epoch const e : at(other).seen.promised->entries())
    kept.push_back(as_known(e));
  if (!waiter) {
    for (epoch const e : kept)
      raise_done(e, trust::promised);
    return;
  }
  auto next = std::make_shared<vector_clock>(*at(waiter).seen.promised);
  for (epoch const e : kept)
    if (e.n)
      next->raise(e);
  prune(*next, trust::promised);
  at(waiter).seen.promised = std::move(next);
}

void graph::make_room(int device) {
  if (index(device) < lost_.size())
    return;
  legacy_.resize(index(device) + 1);
  joined_by_legacy_.resize(index(device) + 1);
  lost_.resize(index(device) + 1);
}

stream_id graph::add(int device, stream_handle h, joins how) {
  stream_state s;
  s.device = device;
  s.how = how;
  s.life = ++lives_;
  s.seen = s.at_last = {nothing(), nothing()};
  stream_id id = 0;
  if (auto& places = free_[device]; !places.empty()) {
    id = places.back();
    places.pop_back();
    s.first = s.given = s.done = s.known_done = at(id).given;
    at(id) = std::move(s);
  } else {
    streams_.push_back(std::move(s));
    id = static_cast<stream_id>(streams_.size());
  }
  threads_ += h == stream_handle::per_thread;
  by_handle_[key(device, h)] = id;
  make_room(device);
  if (how == joins::is_legacy)
    legacy_[index(device)] = id;
  if (how == joins::legacy)
    joined_by_legacy_[index(device)].push_back(id);
  return id;
}

void graph::set_joins(stream_id id, joins how) {
  stream_state& s = at(id);
  if (s.how == how)
    return;
  auto& joined = joined_by_legacy_[index(s.device)];
  if (s.how == joins::legacy)
    std::erase(joined, id);
  if (how == joins::legacy)
    joined.push_back(id);
  s.how = how;
  s.at_last = s.seen;
}

stream_id graph::find(int device, stream_handle h) {
  auto const found = by_handle_.find(key(device, h));
  if (found != by_handle_.end())
    return found->second;
  return add(device, h,
             h == stream_handle::legacy       ? joins::is_legacy
             : h == stream_handle::per_thread ? joins::legacy
                                              : joins::nothing);
}

stream_id graph::unlink(int device, stream_handle h) {
  if (h == stream_handle::legacy)
    return 0;  // it never ends: blocking streams find it by its place
  auto const found = by_handle_.find(key(device, h));
  if (found == by_handle_.end())
    return 0;
  stream_id const id = found->second;
  by_handle_.erase(found);
  return id;
}

void graph::ended(stream_id id) {
  if (id == 0 || at(id).has_ended)
    return;
  ended_.push_back(id);
  at(id).has_ended = true;
}

// Its own work and all that this came after is complete.
bool graph::is_idle(stream_id id) const {
  stream_state const& s = at(id);
  auto const is_past = [&](view const& v, trust t) {
    return complete({id, s.given}, t) && std::ranges::all_of(v->entries(), [&](epoch e) { return complete(e, t); });
  };
  return is_past(s.seen.promised, trust::promised) && is_past(s.seen.known, trust::known);
}

// Requires: nothing refers to its own work. A blocking stream hands on what it came after: the legacy stream has to have
// that, too.
bool graph::can_go(stream_id id) const {
  stream_state const& s = at(id);
  if (s.how != joins::legacy || is_idle(id))
    return true;
  stream_id const legacy = legacy_[index(s.device)];
  if (!legacy)
    return false;
  auto const is_handed_on = [&](view const& v, view const& to, trust t) {
    auto const is_in = [&](epoch e) { return e.stream == legacy || complete(e, t) || to->of(e.stream) >= e.n; };
    return is_in({id, s.given}) && std::ranges::all_of(v->entries(), is_in);
  };
  return is_handed_on(s.seen.promised, at(legacy).seen.promised, trust::promised) &&
         is_handed_on(s.seen.known, at(legacy).seen.known, trust::known);
}

void graph::free_place(stream_id id) {
  stream_state& s = at(id);
  free_[s.device].push_back(id);  // may throw
  if (s.how == joins::legacy)
    std::erase(joined_by_legacy_[index(s.device)], id);
  s.done = s.known_done = s.given;
  s.how = joins::nothing;
  s.has_acted = s.has_acted_as_promised = false;
  s.seen = s.at_last = {nothing(), nothing()};
}

void graph::forget_idle_threads() {
  std::erase_if(by_handle_, [&](auto const& one) {
    auto const& [h, id] = one;
    bool const may_go = std::get<stream_handle>(h) == stream_handle::per_thread && !at(id).is_kept && !at(id).number;
    if (!may_go || !is_idle(id))
      return false;
    ended(id);
    return true;
  });
}

void graph::prune(vector_clock& c, trust t) const {
  c.prune([&](epoch e) { return complete(e, t); });
}

view graph::joined(view const& a, view const& b, epoch e, trust t) const {
  if (complete(e, t) || a->of(e.stream) >= e.n) {
    bool const adds_nothing = std::all_of(b->entries().begin(), b->entries().end(),
                                          [&](epoch x) { return complete(x, t) || a->of(x.stream) >= x.n; });
    if (adds_nothing)
      return a;
  }
  auto out = std::make_shared<vector_clock>(*a);
  out->merge(*b);
  out->raise(e);
  prune(*out, t);
  return out;
}

// The legacy stream joins all blocking streams of its device, in both directions.
moment graph::now(stream_id id, trust t) {
  stream_state& s = at(id);
  auto const join = [&](stream_id other) {
    stream_state const& o = at(other);
    if (other == id || !o.has_acted)
      return;
    epoch const e{other, o.given};
    s.seen.known = joined(s.seen.known, o.seen.known, e, trust::known);
    if (t == trust::promised && o.has_acted_as_promised)
      s.seen.promised = joined(s.seen.promised, o.seen.promised, e, trust::promised);
  };
  if (s.how == joins::is_legacy) {
    auto& blocking = joined_by_legacy_[index(s.device)];
    for (stream_id const other : blocking)
      join(other);
    if (t == trust::promised)
      std::erase_if(blocking, [&](stream_id other) { return at(other).has_ended; });  // they do nothing more
  } else if (s.how == joins::legacy && legacy_[index(s.device)]) {
    join(legacy_[index(s.device)]);
  }
  return {{id, s.given}, s.seen, 0};
}

moment graph::so_far(stream_id id) const {
  stream_state const& s = streams_[id - 1];
  return {{id, s.given}, joins_legacy(s.how) ? s.at_last : s.seen, 0};
}

bool graph::has_seen(stream_id later, stream_id id) const {
  return so_far(later).seen.promised->of(id) > at(id).first;
}

void graph::recorded_on(stream_id id, trust t) noexcept {
  stream_state& s = at(id);
  s.has_acted = true;
  s.has_acted_as_promised |= t == trust::promised;
  if (!joins_legacy(s.how))
    return;
  s.at_last.known = s.seen.known;
  if (t == trust::promised)
    s.at_last.promised = s.seen.promised;
}

epoch graph::enqueued(stream_id id) {
  recorded_on(id);
  return {id, ++at(id).given};
}

views graph::with(views const& v, moment const& m) const {
  return {joined(v.promised, m.seen.promised, m.at, trust::promised),
          joined(v.known, m.seen.known, m.at, trust::known)};
}

void graph::follows(stream_id id, moment const& m) {
  if (m.at.stream)
    at(id).seen = with(at(id).seen, m);
}

void graph::recorded(event_handle e, moment const& m) {
  moment& of = events_[static_cast<std::uintptr_t>(e)];
  of = m;
  of.version = next_version_++;
}

moment graph::record_of(event_handle e) const {
  auto const found = events_.find(static_cast<std::uintptr_t>(e));
  return found == events_.end() ? moment{{}, {nothing(), nothing()}, 0} : found->second;
}

moment graph::forget(event_handle e) {
  moment const last = record_of(e);
  events_.erase(static_cast<std::uintptr_t>(e));
  return last;
}

void graph::waited(stream_id id, moment const& m, trust t) {
  stream_state& s = at(id);
  ++s.given;
  // The event of an earlier stream of this place says what that one came after.
  bool const is_own = m.at.stream == id && m.at.n > s.first;
  if (!m.at.stream || is_own)
    return recorded_on(id, t);
  s.seen.known = joined(s.seen.known, m.seen.known, m.at, trust::known);
  if (t == trust::promised)
    s.seen.promised = joined(s.seen.promised, m.seen.promised, m.at, trust::promised);
  recorded_on(id, t);
}

void graph::raise_done(epoch e, trust t) noexcept {
  stream_state& s = at(e.stream);
  s.known_done = std::max(s.known_done, e.n);
  if (t == trust::promised)
    s.done = std::max(s.done, e.n);
}

// Completion of an operation implies completion of all it came after.
void graph::saw_complete(moment const& m, trust t) {
  if (!m.at.stream)
    return;
  for (epoch const e : m.seen.known->entries())
    raise_done(e, trust::known);
  if (t == trust::promised) {
    for (epoch const e : m.seen.promised->entries())
      raise_done(e, trust::promised);
  }
  raise_done(m.at, t);
}

void graph::lost(int device) {
  make_room(device);
  lost_[index(device)] = true;
}

bool graph::complete(epoch e, trust t) const noexcept {
  if (e.n == 0 || e.stream == 0)
    return true;
  stream_state const& s = streams_[e.stream - 1];
  return (t == trust::promised ? s.done : s.known_done) >= e.n || lost_[index(s.device)];
}

bool graph::ordered(epoch e, stream_id later, views const& seen, trust t) const noexcept {
  if (e.stream == later || complete(e, t))
    return true;
  return (t == trust::promised ? seen.promised : seen.known)->of(e.stream) >= e.n;
}

}  // namespace weir::driver::check
