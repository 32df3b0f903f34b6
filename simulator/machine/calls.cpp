// The machine's calls on streams, events, copies and work.
// Threads: as the driver interface.
#include <algorithm>

#include "runtime/base/room.h"
#include "simulator/machine/machine_state.h"

namespace weir::driver::sim {
namespace {
using scheduling = weir::simulated::scheduling;
// handles 1 and 2 are legacy and per_thread
constexpr std::uint64_t standing_streams = 2;
std::uint64_t number(stream_handle h) {
  return static_cast<std::uint64_t>(h) - standing_streams;
}
stream_handle handle_of(CUstream_st* foreign) {
  return foreign ? static_cast<stream_handle>(reinterpret_cast<std::uintptr_t>(foreign)) : stream_handle::legacy;
}
std::uint64_t number(event_handle h) {
  return static_cast<std::uint64_t>(h);
}

// A refused call also drops its work.
status drop_refused(work const& w, status s) {
  if (w.drop) {
    inside_work const inside;
    w.drop(w.state);
  }
  return s;
}
}  // namespace

stream* machine::find_stream(int device, stream_handle h, status& why) {
  why = check(device, need::alive);
  if (!why.ok())
    return nullptr;
  if (h == stream_handle::legacy || h == stream_handle::per_thread)
    return standing_stream(device, h);
  auto const& s = all_.streams.find(number(h));
  if (h == stream_handle::none || !s || s->device != device) {
    why = invalid;
    return nullptr;
  }
  return s.get();
}

machine::stream_call::stream_call(machine& m, int device, stream_handle h)
    : why(m.may_call()), lock(m.all_.mutex, std::defer_lock) {
  if (!why.ok())
    return;
  lock.lock();
  found = m.find_stream(device, h, why);
}

// The answer for a host that waited on this device's stream. If it waited for a lost device's work, its own
// device becomes lost too, because `lost` concerns the device of the call. Releases the lock then.
status machine::answer(base::unique_lock& lock, int device, outcome end) {
  switch (end) {
    case outcome::done: return fine;
    case outcome::stuck: return {code::failed};
    case outcome::lost: break;
  }
  note(42, device);
  all_.lose(device);
  executor_->changed(lock);
  return {code::lost};
}

// The answer to a query. An unreachable position answers `lost`, as for a wait. May release the lock.
status machine::polled(base::unique_lock& lock, stream& s, std::uint64_t position) {
  auto const alive = s.shared_from_this();
  executor_->asked(s, position);
  if (all_.devices[static_cast<std::size_t>(s.device)].lost)
    return {code::lost};  // asked() may have lost it
  if (s.done >= position)
    return fine;
  return all_.hopeless(s, position) ? answer(lock, s.device, outcome::lost) : status{code::not_ready};
}

status machine::queue(base::unique_lock& lock, stream& s, operations&& all) {
  put(s, std::move(all));
  return executor_->given(lock, s) ? fine : status{code::lost};
}

status machine::append(int device, stream_handle h, operation&& whole) {
  operations one;
  one.push_back(std::move(whole));
  operation& o = one.front();
  o.make_room();
  base::unique_lock lock(all_.mutex);
  status why;
  stream* const s = find_stream(device, h, why);
  if (!s) {
    lock.unlock();
    return drop_refused(o.job, why);
  }
  note(20, static_cast<int>(o.what), s->id, o.bytes);
  if (how_ != scheduling::threads) {
    for (touch const& t : o.touches)
      tape_.note(pages_.name_of(t.at), t.bytes, t.writes);
  }
  o.blocks_ended = pages_.blocks_ended();
  switch (give(*s, one, why)) {
    case given::kept: return fine;
    case given::refused: lock.unlock(); return drop_refused(o.job, why);
    case given::queued: break;
  }
  return queue(lock, *s, std::move(one));
}

// Streams ---------------------------------------------------------------------------------------------------

result<stream_handle> machine::create_stream(int device, stream_kind kind, int priority) {
  if (status const s = enter_on(device, need::alive, 12, static_cast<int>(kind), priority); !s.ok())
    return {s};
  auto s = std::make_shared<stream>();
  s->device = device;
  s->kind = kind;
  s->priority = std::clamp(priority, -5, 0);
  base::lock_guard lock(all_.mutex);
  s->id = all_.next_stream++;
  if (all_.connections > 0)
    s->connection =
        connections_drawn_ ? tape_.draw(all_.connections) : static_cast<std::uint32_t>(s->id % all_.connections);
  auto& live = all_.devices[static_cast<std::size_t>(device)].live;
  base::make_room(live);  // nothing is listed that has no handle
  auto const handle = static_cast<stream_handle>(all_.streams.add(s) + standing_streams);
  live.push_back(std::move(s));
  return {fine, handle};
}

void machine::number_stream(int device, stream_handle h, std::uint64_t number) {
  base::lock_guard lock(all_.mutex);
  status why;
  if (stream* const s = find_stream(device, h, why))
    s->number = number;
}

status machine::destroy_stream(int device, stream_handle h) {
  if (status const s = enter(13, device); !s.ok())
    return s;
  base::lock_guard lock(all_.mutex);
  status why;
  stream* const s = find_stream(device, h, why);
  if (!s)
    return why;
  if (s->permanent)
    return invalid;
  if (s->in)
    return {code::not_permitted};
  s->destroyed = true;
  auto const alive = s->shared_from_this();
  all_.streams.remove(number(h));
  all_.forget_if_finished(*alive);
  return fine;
}

status machine::query_stream(int device, stream_handle h) {
  stream_call s(*this, device, h);
  if (!s)
    return s.why;
  note(21, s->id);
  if (status const met = spoil_met(*s); !met.ok())
    return met;
  return polled(s.lock, *s, s->given);
}

status machine::synchronize_stream(int device, stream_handle h) {
  stream_call s(*this, device, h);
  if (!s)
    return s.why;
  note(22, s->id);
  if (status const met = spoil_met(*s); !met.ok())
    return met;
  auto const alive = s->shared_from_this();
  return answer(s.lock, device, executor_->until(s.lock, *s, s->given));
}

status machine::synchronize_device(int device) {
  if (status const s = may_call(); !s.ok())
    return s;
  base::unique_lock lock(all_.mutex);
  if (status const s = check(device, need::alive); !s.ok())
    return s;
  note(23, device);
  if (status const met = spoil_on(device); !met.ok())
    return met;
  std::vector<std::pair<std::shared_ptr<stream>, std::uint64_t>> now;
  for (auto const& s : all_.devices[static_cast<std::size_t>(device)].live)
    now.emplace_back(s, s->given);
  for (auto const& [s, position] : now)
    if (status const end = answer(lock, device, executor_->until(lock, *s, position)); !end.ok())
      return end;
  return fine;
}

result<bool> machine::capturing(int device, stream_handle h) {
  stream_call const s(*this, device, h);
  return {s.why, s && s->in};
}

result<std::uint64_t> machine::capture_of(int device, stream_handle h) {
  stream_call const s(*this, device, h);
  if (!s || !s->in)
    return {s.why};
  if (s->in->spoiled)
    return {{code::not_permitted}};
  return {fine, s->in->number};
}

result<stream_handle> machine::adopt(int device, CUstream_st* foreign) {
  stream_handle const h = handle_of(foreign);
  stream_call const s(*this, device, h);
  return {s.why, h};
}

result<identity> machine::identify(int device, CUstream_st* foreign) {
  stream_handle const h = handle_of(foreign);
  stream_call const s(*this, owner_of(device, h), h);
  if (!s)
    return {s.why};
  return {fine, {h, s->in != nullptr, s->in ? 0 : s->id}};
}

result<int> machine::stream_device(int device, CUstream_st* foreign) {
  stream_handle const h = handle_of(foreign);
  int const of = owner_of(device, h);
  stream_call const s(*this, of, h);
  if (s && s->in)
    return {{code::not_permitted}};
  return {s.why, of};
}

// The device of the stream with this handle, or `otherwise`: of a permanent stream, or of none.
int machine::owner_of(int otherwise, stream_handle h) {
  base::lock_guard lock(all_.mutex);
  if (h == stream_handle::none || h == stream_handle::legacy || h == stream_handle::per_thread)
    return otherwise;
  auto const& s = all_.streams.find(number(h));
  return s ? s->device : otherwise;
}

result<stream_kind> machine::kind_of(int device, stream_handle h) {
  stream_call const s(*this, device, h);
  if (!s)
    return {s.why};
  if (s->in)
    return {{code::not_permitted}};
  return {fine, s->kind};
}

result<CUstream_st*> machine::native(int device, stream_handle) {
  status const s = may_call(device, need::exists);
  return {s.ok() ? status{code::not_supported} : s};
}

// Events ----------------------------------------------------------------------------------------------------

result<event_handle> machine::create_event(int device, event_kind kind) {
  if (status const s = enter_on(device, need::alive, 43); !s.ok())
    return {s};
  auto e = std::make_shared<event>();
  e->device = device;
  e->kind = kind;
  base::lock_guard lock(all_.mutex);
  note(24, device);
  return {fine, static_cast<event_handle>(all_.events.add(std::move(e)))};
}

status machine::destroy_event(int device, event_handle h) {
  if (status const s = enter(44, device); !s.ok())
    return s;
  base::lock_guard lock(all_.mutex);
  if (status const s = check(device, need::alive); !s.ok())
    return s;
  auto const& e = all_.events.find(number(h));
  if (!e || e->device != device)
    return invalid;
  note(25, device);
  all_.events.remove(number(h));
  return fine;
}

result<CUevent_st*> machine::native_event(event_handle) {
  status const s = may_call();
  return {s.ok() ? status{code::not_supported} : s};
}

status machine::record(int device, stream_handle sh, event_handle eh) {
  stream_call s(*this, device, sh);
  if (!s)
    return s.why;
  auto const& e = all_.events.find(number(eh));
  if (!e || e->device != device)
    return invalid;
  note(26, s->id);
  if (s->in)
    return record_captured(*s, *e);
  if (status const met = spoil_met(*s); !met.ok())
    return met;
  operations all = legacy_waits(*s);
  operation& o = all.emplace_back();
  o.what = operation::kind::record;
  o.position = s->given + all.size();
  if (e->timed())
    o.other = e;
  e->captured.reset();
  e->on = s->shared_from_this();
  e->position = o.position;
  return queue(s.lock, *s, std::move(all));
}

status machine::wait(int device, stream_handle sh, event_handle eh) {
  stream_call s(*this, device, sh);
  if (!s)
    return s.why;
  auto const& e = all_.events.find(number(eh));
  if (!e)
    return invalid;
  if (status const other = check(e->device, need::alive); !other.ok())
    return other;
  note(27, s->id, e->on ? e->on->id : 0, e->position);
  if (s->in || e->captured)
    return wait_captured(*s, *e);
  if (status const met = spoil_met(*s); !met.ok())
    return met;
  if (e->complete())
    return fine;  // nothing to wait for
  operations all = legacy_waits(*s);
  all.push_back(wait_for(*e->on, e->position));
  return queue(s.lock, *s, std::move(all));
}

status machine::query_event(event_handle h) {
  if (status const s = may_call(); !s.ok())
    return s;
  base::unique_lock lock(all_.mutex);
  auto const e = all_.events.find(number(h));
  if (!e)
    return invalid;
  if (status const s = check(e->device, need::alive); !s.ok())
    return s;
  if (status const met = spoil_of(*e); !met.ok())
    return met;
  if (!e->on)
    return fine;
  note(28, e->on->id, e->position);
  return polled(lock, *e->on, e->position);
}

status machine::synchronize_event(event_handle h) {
  if (status const s = may_call(); !s.ok())
    return s;
  base::unique_lock lock(all_.mutex);
  auto const e = all_.events.find(number(h));
  if (!e)
    return invalid;
  if (status const s = check(e->device, need::alive); !s.ok())
    return s;
  if (status const met = spoil_of(*e); !met.ok())
    return met;
  if (!e->on)
    return fine;
  note(29, e->on->id, e->position);
  auto const alive = e->on;
  return answer(lock, e->device, executor_->until(lock, *alive, e->position));
}

result<float> machine::elapsed_ms(event_handle start, event_handle end) {
  if (status const s = enter(63); !s.ok())
    return {s};
  base::unique_lock lock(all_.mutex);
  auto const a = all_.events.find(number(start)), b = all_.events.find(number(end));
  if (!a || !b || a->device != b->device)
    return {invalid};
  if (status const s = check(a->device, need::alive); !s.ok())
    return {s};
  for (auto const& one : {a, b})
    if (status const met = spoil_of(*one); !met.ok())
      return {met};
  if (!a->timed() || !b->timed() || !a->on || !b->on)
    return {invalid};
  for (auto const& one : {a, b})
    if (!one->complete())
      return {all_.hopeless(*one->on, one->position) ? answer(lock, one->device, outcome::lost)
                                                     : status{code::not_ready}};
  return {fine, static_cast<float>(static_cast<double>(b->at_ns - a->at_ns) / 1e6)};
}

// Work ------------------------------------------------------------------------------------------------------

status machine::copy(int device, stream_handle h, void* dst, void const* src, std::size_t bytes) {
  return copy_peer(device, h, dst, device, src, device, bytes);
}

status machine::copy_peer(int device, stream_handle h, void* dst, int dst_device, void const* src, int src_device,
                          std::size_t bytes) {
  if (status const s = may_call(); !s.ok())
    return s;
  if (!exists(dst_device) || !exists(src_device))
    return invalid;
  operation o;
  o.what = operation::kind::copy;
  o.dst = dst;
  o.src = src;
  o.bytes = bytes;
  o.dst_device = static_cast<std::int8_t>(dst_device);
  o.src_device = static_cast<std::int8_t>(src_device);
  {  // the stream and the devices are judged before the bytes; append() finds the stream again
    base::lock_guard lock(all_.mutex);
    status why;
    if (!find_stream(device, h, why))
      return why;
    for (int side : {dst_device, src_device})
      if (side != device && !check(side, need::alive).ok())
        return check(side, need::alive);
    if (bytes == 0)
      return fine;
    if (how_ != scheduling::threads)
      tape_.note(pages_.name_of(reinterpret_cast<address>(dst)), pages_.name_of(reinterpret_cast<address>(src)));
  }
  std::vector<use> uses;
  o.uses(device, uses);
  for (use const& u : uses)
    if (!pages_.judge(u).empty())
      return invalid;
  return append(device, h, std::move(o));
}

status machine::fill(int device, stream_handle h, void* dst, std::uint32_t pattern, int pattern_bytes,
                     std::size_t count) {
  if (status const s = may_call(); !s.ok())
    return s;
  auto const at = reinterpret_cast<address>(dst);
  bool const known = pattern_bytes == 1 || pattern_bytes == 2 || pattern_bytes == 4;
  if (!known || at % static_cast<unsigned>(pattern_bytes) != 0 || count > ~std::size_t{0} / 4)
    return invalid;
  operation o;
  o.what = operation::kind::fill;
  o.dst = dst;
  o.pattern = pattern;
  o.pattern_bytes = static_cast<std::uint8_t>(pattern_bytes);
  o.bytes = count * static_cast<unsigned>(pattern_bytes);
  {  // as in copy_peer
    base::lock_guard lock(all_.mutex);
    status why;
    if (!find_stream(device, h, why))
      return why;
    if (count == 0)
      return fine;
    if (how_ != scheduling::threads)
      tape_.note(pages_.name_of(at), pattern);
  }
  if (!pages_.judge({{at, o.bytes, true}, device}).empty())
    return invalid;
  return append(device, h, std::move(o));
}

status machine::host_function(int device, stream_handle h, work w) {
  if (status const s = may_call(); !s.ok())
    return drop_refused(w, s);
  if (!w.run)
    return drop_refused(w, invalid);
  operation o;
  o.what = operation::kind::host;
  w.ready = nullptr;
  o.job = w;
  return append(device, h, std::move(o));
}

status machine::enqueue(int device, stream_handle h, std::span<touch const> touches, work w) {
  if (status const s = may_call(); !s.ok())
    return drop_refused(w, s);
  operation o;
  o.what = operation::kind::work;
  o.job = w;
  o.touches.assign(touches.begin(), touches.end());
  return append(device, h, std::move(o));
}

void machine::recheck() {
  if (!may_call().ok())
    return;
  base::unique_lock lock(all_.mutex);
  executor_->changed(lock);
}

// Gates -----------------------------------------------------------------------------------------------------

result<gate_handle> machine::hold(int device, stream_handle h) {
  stream_call s(*this, device, h);
  if (!s)
    return {s.why};
  auto& d = all_.devices[static_cast<std::size_t>(device)];
  if (s->in)
    return {{code::not_permitted}};
  if (status const met = spoil_met(*s); !met.ok())
    return {met};
  if (d.closed_gates >= 4)
    return {{code::not_permitted}};
  auto g = std::make_shared<gate>();
  g->device = device;
  g->number = all_.next_gate++;
  note(30, s->id);
  operations all = legacy_waits(*s);
  operation& o = all.emplace_back();
  o.what = operation::kind::gate;
  o.other = g;
  auto const made = static_cast<gate_handle>(all_.gates.add(std::move(g)));
  ++d.closed_gates;
  static_cast<void>(queue(s.lock, *s, std::move(all)));
  if (all_.connections > 0)
    recheck();  // streams stop sharing connections while a gate holds one
  return {fine, made};
}

status machine::open_gate(gate_handle h) {
  if (status const s = may_call(); !s.ok())
    return s;
  base::unique_lock lock(all_.mutex);
  auto const g = all_.gates.find(static_cast<std::uint64_t>(h));
  if (!g)
    return invalid;
  note(31, g->number);
  g->open = true;
  --all_.devices[static_cast<std::size_t>(g->device)].closed_gates;
  all_.gates.remove(static_cast<std::uint64_t>(h));
  executor_->changed(lock);
  return fine;
}

}  // namespace weir::driver::sim
