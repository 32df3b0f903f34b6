// Operations, streams, events and gates: their steps, common to all schedules.
// Threads: as work.h says.
#include "simulator/machine/work.h"

#include <algorithm>
#include <cstring>

namespace weir::driver::sim {
namespace {
void fill(void* dst, std::uint32_t pattern, int pattern_bytes, std::size_t bytes) {
  if (pattern_bytes == 1)
    std::memset(dst, static_cast<int>(pattern & 0xff), bytes);
  else if (pattern_bytes == 2)
    std::fill_n(static_cast<std::uint16_t*>(dst), bytes / 2, static_cast<std::uint16_t>(pattern));
  else
    std::fill_n(static_cast<std::uint32_t*>(dst), bytes / 4, pattern);
}
// A stream without a number belongs to the machine, not the program. It gets another wording.
std::string named(stream const& s) {
  bool const lane = s.from.id != 0;
  return (lane ? "a graph on stream " : "stream ") +
         std::to_string(s.number ? s.number
                        : lane   ? s.from.id
                                 : s.id) +
         (s.number ? " of gpu:" : " of device ") + std::to_string(lane ? s.from.device : s.device);
}

std::string at(base::site const& s) {
  if (!s.operation || !s.at.file_name())
    return {};
  std::string_view const file = s.at.file_name();
  return " (" + std::string(s.operation) + " at " + std::string(file.substr(file.rfind('/') + 1)) + ":" +
         std::to_string(s.at.line()) + ")";
}

}  // namespace

void drop_all(operations& all) noexcept {
  for (operation& o : all)
    o.drop();
  all.clear();
}

operation wait_for(stream& other, std::uint64_t position) {
  operation o;
  o.what = operation::kind::wait;
  o.other = other.shared_from_this();
  o.position = position;
  o.site = base::this_call().in;
  return o;
}

void operation::uses(int device, std::vector<use>& into) const {
  into.clear();
  if (what == kind::copy) {
    into.push_back({{reinterpret_cast<address>(src), bytes, false}, src_device});
    into.push_back({{reinterpret_cast<address>(dst), bytes, true}, dst_device});
  } else if (what == kind::fill) {
    into.push_back({{reinterpret_cast<address>(dst), bytes, true}, device});
  } else {
    for (touch const& t : touches)
      into.push_back({t, device});
    if (job.ready)
      into.push_back({.what = {}, .device = device, .everything = true});
  }
  for (use& u : into)
    u.ends = blocks_ended;
}

void operation::run() noexcept {  // an exception in work ends the process, as in a CUDA host function
  if (what == kind::copy) {
    std::memmove(dst, src, bytes);
  } else if (what == kind::fill) {
    fill(dst, pattern, pattern_bytes, bytes);
  } else if (job.run) {
    inside_work const inside;
    job.run(job.state);
  }
}

void operation::drop() noexcept {
  if (!job.drop)
    return;
  inside_work const inside;
  std::exchange(job.drop, nullptr)(job.state);
}

queues::queues(int n, freedoms& f, memory& m)
    : uploading(static_cast<std::size_t>(n)),
      streams(f.on(freedom::reuse) ? handle_table<stream>::reuse::at_once : handle_table<stream>::reuse::told_apart),
      events(f.on(freedom::reuse) ? handle_table<event>::reuse::at_once : handle_table<event>::reuse::told_apart),
      gates(handle_table<gate>::reuse::told_apart),
      devices(static_cast<std::size_t>(n)),
      bytes(m),
      takes(f),
      clock(base::now_ns) {}

void queues::give(stream& s, operations&& all) noexcept {
  for (operation& o : all)
    o.turn = next_turn++;
  s.given += all.size();
  s.queue.splice(s.queue.end(), all);
}

stream* queues::ahead_of(stream const& s) const {
  if (connections == 0 || s.connection == stream::alone || s.queue.empty() ||
      s.queue.front().what == operation::kind::gate)
    return nullptr;
  for (auto const& d : devices)
    if (d.closed_gates > 0)
      return nullptr;
  stream* first = nullptr;
  std::uint64_t before = s.queue.front().turn;
  for (auto const& other : devices[static_cast<std::size_t>(s.device)].live) {
    if (other.get() == &s || other->connection != s.connection || other->queue.empty())
      continue;
    std::size_t const begun = other->busy || other->queue.front().at != operation::phase::queued ? 1 : 0;
    auto const next = std::next(other->queue.begin(), static_cast<std::ptrdiff_t>(begun));
    if (next == other->queue.end() || next->turn >= before)
      continue;
    // hopeless: waits for a lost device, never begins, and holds up no stream
    if (hopeless(*other, other->done + begun + 1))
      continue;
    before = next->turn;
    first = other.get();
  }
  return first;
}

void queues::retire(stream& s, list_of<stream, to_settle>& freed) {
  operation& o = s.queue.front();
  if (o.what == operation::kind::record && o.other) {
    auto& e = *static_cast<event*>(o.other.get());
    if (e.on.get() == &s && e.position == o.position)
      e.at_ns = clock();
  }
  s.queue.pop_front();
  ++s.done;
  for (auto next = s.followed_by.begin(); next != s.followed_by.end();) {
    stream& waits = *next++;
    if (waits.follows_until > s.done)
      continue;
    waits.leave<followers>();
    add(freed, waits);
  }
  for (host_waiter& h : s.hosts)
    if (s.done >= h.position)
      h.wake.notify_one();
}

void queues::unlock_and_drop(base::unique_lock& lock) {
  operations all = std::move(dropped);
  lock.unlock();
  drop_all(all);
}

void queues::forget_queue(stream& s) {
  if (s.queue.empty())
    return;
  dropped.splice(dropped.end(), s.queue, std::next(s.queue.begin(), s.busy ? 1 : 0), s.queue.end());
}

void queues::forget_if_finished(stream& s) {
  if (!s.destroyed || !s.queue.empty())
    return;
  auto& live = devices[static_cast<std::size_t>(s.device)].live;
  auto const at = std::find_if(live.begin(), live.end(), [&](auto const& p) { return p.get() == &s; });
  if (at == live.end())
    return;
  s.leave<to_settle>();
  s.leave<before_unready>();
  s.leave<of_engine>();
  s.leave<followers>();
  live.erase(at);
}

void queues::lose(int device) {
  auto& d = devices[static_cast<std::size_t>(device)];
  if (d.lost)
    return;
  d.lost = any_lost = true;
  d.failing = false;
  for (auto const& s : d.live) {
    if (abandon)
      abandon(*s);
    forget_queue(*s);
  }
  wake_hosts();  // waiters of other devices check whether their wait is hopeless now
}

void queues::wake_hosts() const {
  for (auto const& s : live())
    for (host_waiter& h : s->hosts)
      h.wake.notify_one();
}

void queues::fault(int device) {
  bool const all = spreads && spreads();
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (static_cast<int>(d) != device && !(all && devices[d].open))
      continue;
    devices[d].failing = !devices[d].lost;
    for (auto const& s : devices[d].live)
      if (abandon)
        abandon(*s);
  }
  if (calls_to_failure == 0 && takes.takes(freedom::late_errors, 50))
    calls_to_failure = 1 + takes.draw(6);
  if (calls_to_failure == 0)
    surface();
}

void queues::distort(operation const& o, std::span<use const> uses) {
  if (!uses.empty() && bytes.distort(uses, o.what == operation::kind::copy))
    takes.took(freedom::wrong_bytes);
}

void queues::surface() {
  calls_to_failure = 0;
  for (std::size_t d = 0; d < devices.size(); ++d)
    if (std::exchange(devices[d].failing, false))
      lose(static_cast<int>(d));
}

void queues::call_on(int device) {
  if (!devices[static_cast<std::size_t>(device)].failing || --calls_to_failure > 0)
    return;
  surface();
  drop_all(dropped);  // under the lock: ready() of other work may depend on it
}

bool queues::hopeless_in(stream const& s, std::uint64_t position) const {
  if (s.done >= position)
    return false;
  if (devices[static_cast<std::size_t>(s.device)].lost)
    return true;
  if (std::exchange(s.asked, questions_) == questions_)
    return false;  // this question came here before
  std::uint64_t ahead = position - s.done;
  for (auto o = s.queue.begin(); o != s.queue.end() && ahead > 0; ++o, --ahead)
    if (o->what == operation::kind::wait && hopeless_in(o->awaited(), o->position))
      return true;
  return false;
}

bool queues::hopeless(stream const& s, std::uint64_t position) const {
  if (!any_lost)
    return false;
  ++questions_;
  return hopeless_in(s, position);
}

stream const* queues::stream_with_awaited(operation const& waits, words const& known, work& found) const {
  for (auto const& s : live()) {
    for (operation const& o : s->queue) {
      if (o.job.ready != waits.job.ready || !known.needs(waits.job.state, o.job.state))
        continue;
      found = o.job;
      return s.get();
    }
  }
  return nullptr;
}

// For work that waits for other work: appends the reason. Returns: the stream with that work. Null: complete.
stream const* queues::why_not_ready(operation const& o, std::string& text) const {
  words const* const known = words_of_work();
  if (!o.job.ready || !known || known->of != o.job.ready) {
    text += " is at work that waits for other streams";
    return nullptr;
  }
  text += " is at " + known->name(o.job.state) + ", which waits for ";
  work other;
  stream const* const has = stream_with_awaited(o, *known, other);
  if (has) {
    text += known->name(other.state) + ", not yet run: ";
    return has;
  }
  std::string const missing = known->missing(o.job.state);
  text += missing.empty() ? "work of other streams" : missing + ", which was not enqueued";
  return nullptr;
}

std::string queues::why_not(stream const& from) const {
  std::string text;
  std::vector<stream const*> passed;
  for (stream const* s = &from; s;) {
    text += named(*s);
    if (std::find(passed.begin(), passed.end(), s) != passed.end())
      return text + ": a cycle";
    passed.push_back(s);
    if (devices[static_cast<std::size_t>(s->device)].lost)
      return text + ", whose device is lost";
    if (s->queue.empty())
      return text + ", which is empty";
    operation const& o = s->queue.front();
    if (o.what == operation::kind::gate)
      return text + " is held by gate " + std::to_string(o.held().number);
    if (stream const* const ahead = ahead_of(*s)) {
      text += " shares a connection and is behind ";
      s = ahead;
    } else if (o.what == operation::kind::work) {
      s = why_not_ready(o, text);
    } else if (o.what == operation::kind::wait) {
      text += " waits" + at(o.site) + " for operation " + std::to_string(o.position) + " of ";
      s = &o.awaited();
    } else {
      return text + ", which can proceed";
    }
  }
  return text;
}

bool queues::wait_for_hosts(base::unique_lock& lock, stream const& s) {
  if (!has_hosts())
    return false;
  ++waiting_hosts_;
  bool const moved = hosts->wait_for_others(moved_, lock, [&] { return why_not(s); });
  --waiting_hosts_;
  return moved;
}

bool queues::wait_for_callers(base::unique_lock& lock) {
  if (!who_calls)
    return false;
  std::uint64_t const moves = moves_, given_up = given_up_;
  auto const is_over = [&] { return moves_ != moves || given_up_ != given_up; };
  bool const all_wait = ++waiting_callers_ >= who_calls->count();
  if (!all_wait) {
    moved_.wait_for(lock, for_a_move, is_over);
  } else if (who_calls->others_may_come()) {
    moved_.wait_for(lock, for_a_first_call, is_over);
    if (!is_over())
      who_calls->none_has_come();
  }
  if (given_up_ != given_up)
    return false;
  if (moves_ != moves)
    return true;
  // Nothing moved: gives up for all that wait.
  waiting_callers_ = 0;
  ++given_up_;
  moved_.notify_all();
  return false;
}

void queues::note_finding(std::string text) const {
  findings_.lock()->push_back(std::move(text));
}
std::vector<std::string> queues::findings() const {
  return *findings_.lock();
}

std::string queues::why_stuck() const {
  constexpr std::string_view word = "stuck: ";
  auto const said = findings_.lock();
  return said->empty() || !said->back().starts_with(word) ? std::string() : said->back().substr(word.size());
}

void queues::census(std::vector<std::string>& found) const {
  for (std::size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].lost)
      continue;  // its objects cannot be released
    for (auto const& s : devices[d].live) {
      if (s->permanent && s->queue.empty())
        continue;
      std::string text = named(*s);
      if (s->destroyed)
        text += ", destroyed";
      if (!s->queue.empty())
        text += ", with " + std::to_string(s->queue.size()) + " operations that did not run";
      found.push_back(std::move(text));
    }
  }
  events.each([&](std::uint64_t h, event const& e) {
    if (!devices[static_cast<std::size_t>(e.device)].lost)
      found.push_back("event " + std::to_string(h) + " of device " + std::to_string(e.device));
  });
  gates.each([&](std::uint64_t, gate const& g) {
    found.push_back("closed gate " + std::to_string(g.number) + " of device " + std::to_string(g.device));
  });
}

}  // namespace weir::driver::sim
