// The stream clocks of one runtime.
// Threads: any, except construction and destruction.
#include <algorithm>
#include <chrono>

#include "runtime/base/room.h"
#include "runtime/clock/clocks_state.h"

namespace weir::clock {

namespace {
base::atomic<std::uint64_t> next_id{1};
}

clocks::clocks(weir::runtime::impl& r) : state_(std::make_unique<state>(r, next_id.load() - 1)) {}

clocks::~clocks() {
  invalidate_fast_paths();
  auto lines = state_->lines.lock();
  for (auto& t : *lines)
    detail::leave(t->id());
  state_->shared->events->close();
}

stream_clock& clocks::make(int device, driver::stream_handle h, life l) {
  std::uint64_t const id = next_id.fetch_add(1);
  if (l != life::captured)  // a lane is not a stream of its own
    state_->runtime.machine().number_stream(device, h, id - state_->before);
  if (l != life::own) {
    if (stream_clock* const reused = reuse_ended(device, h, id, l))
      return *reused;
  }
  std::unique_ptr<stream_clock> made(new stream_clock(id, device, h, l, state_->runtime, state_->shared));
  state::registrations its_name;  // taken before the stream is listed, because it may need memory
  if (l == life::own)
    its_name.try_emplace({device, h}, state::registration{made.get()});
  stream_clock& its = *made;
  {
    auto lines = state_->lines.lock();
    base::make_room(*lines);
    detail::enter(id, made.get());
    lines->push_back(std::move(made));
  }
  if (!its_name.empty()) {
    auto all = state_->registered.lock();
    all->erase({device, h});  // of a stream that was destroyed while it was registered
    all->insert(its_name.extract(its_name.begin()));
  }
  return its;
}

std::uint64_t clocks::number_of(stream_clock const& t) const noexcept {
  return t.id() - state_->before;
}

stream_clock* clocks::reuse_ended(int device, driver::stream_handle h, std::uint64_t id, life l) {
  stream_clock* const found = state_->reusable_on(device).lock()->take();
  if (!found)
    return nullptr;
  // All as in a new clock, except that the numbers of fences continue.
  detail::leave(found->id());
  found->id_.set(id), found->handle_.set(h);
  found->set_carries_collectives(false), found->announces_.store(false);
  found->capture_seen_.store(stream_clock::told_all, base::memory_order_relaxed);
  found->unfenced_.store(0), found->last_frees_.store(0), found->live_blocks_.store(0), found->marked_.store(false);
  found->shared_.store(0), found->end_claimed_.store(false);
  found->lane_.store(nullptr), found->stands_for_.store(nullptr), found->capture_.store(0);
  found->stands_for_held_.reset();
  found->tenure_.store(tenure_word::make(id, device), base::memory_order_release);
  found->life_.store(l, base::memory_order_release);
  detail::enter(id, found);
  return found;
}

bool clocks::retire(stream_clock& t) {
  return !t.claim_end() || finish(t);
}

bool clocks::finish(stream_clock& t) {
  life const was = t.alive();
  if (was != life::borrowed)
    invalidate_fast_paths();  // which borrowed streams do not have
  if (was == life::own) {
    auto all = state_->registered.lock();
    if (auto const at = all->find({t.device(), t.handle()}); at != all->end() && at->second.stream == &t)
      all->erase(at);
  }
  state_->any_ended.store(true);
  bool covered = false;
  if (t.may_be_fenced())
    covered = t.fence().ok();
  else if (was == life::borrowed)  // no call names it: earlier fences must cover all that is ever freed
    covered = t.may_be_forgotten() && t.is_fenced();
  // Without a fence, wait for the work. A borrowed stream may be gone: it is not asked.
  if (!covered && was != life::borrowed)
    covered = t.synchronize().ok();
  // No fence will have this number, so that only the whole device completes the last stamps.
  if (!covered)
    (void)t.begin();
  end(t);
  // Its owner may destroy the stream after this call: those who ask the driver about it end first.
  if (was == life::foreign) {
    while (t.callers_.load())
      base::yield_thread();
  }
  let_go_of_ended(t);
  return covered;
}

stream_clock& clocks::rest_of(int device) {
  auto rests = state_->rests.lock();
  stream_clock*& its = (*rests)[device];
  if (!its) {
    its = &make_keeper(device);
    its->life_.store(life::borrowed);  // as a stream that no call names
  }
  return *its;
}

// Until it is retired, a free takes the stamp of this stream or of the rest: each covers its work so far.
void clocks::set_aside(stream_clock& t) {
  t.stands_for_.store(&rest_of(t.device()), base::memory_order_release);
  (void)retire(t);
}

void clocks::end(stream_clock& t) {
  base::lock_guard const hold(t.lock_);
  t.last_.store(t.next_.load() - 1);
  t.life_.store(life::retired);  // before retire() reads `callers_`: a `stay` counts itself there, then reads this
  t.tenure_.store(t.tenure() | tenure_word::ended, base::memory_order_release);
}

// Each retirement polls a few earlier ones, more if there are many, so that their events return to the pool.
void clocks::let_go_of_ended(stream_clock& last) noexcept {
  chain oldest;
  {
    auto ended = state_->ended.lock();
    for (std::size_t few = std::min(ended->size(), 2 + ended->size() / 16); few; --few)
      oldest.add(ended->take_first());
    ended->add(last);
  }
  while (oldest.size()) {
    stream_clock& t = oldest.take_first();
    auto const done = t.poll(t.last_.load());
    if (done.is.what == driver::code::lost)
      continue;  // it never completes
    if (!done.ok() || !done.value) {
      state_->ended.lock()->add(t);
      continue;
    }
    // One of weir's own, which is not reused.
    if (!t.held_)
      continue;
    fence_list::dropped dropped;  // released after the lock, as is `known`
    snapshot known;
    {
      base::lock_guard const hold(t.lock_);
      t.fences_.clear(dropped);
      known = std::exchange(t.frontier_, nullptr);
    }
    state_->reusable_on(t.device()).lock()->add(t);
  }
}

stream_clock& clocks::lane_of(stream_clock& s, std::uint64_t capture) {
  std::vector<stream_clock*> ended;
  struct ends_them {
    clocks& of;
    std::vector<stream_clock*> const& lanes;
    ~ends_them() { of.end_lanes(lanes); }
  } const after_the_lock{*this, ended};  // also if there is no memory for the next lane
  auto all = state_->captures.lock();
  stream_clock* const last = s.lane_.load();
  if (last && last->capture() == capture)
    return *last;
  // The stream is in another capture, so that the one before has ended, with all its lanes.
  if (last) {
    if (auto const before = all->extract(last->capture()))
      ended = std::move(before.mapped().lanes);
    state::note_end(ended, &s);
  }
  auto& lanes = (*all)[capture].lanes;
  base::make_room(lanes);
  stream_clock& its = make(s.device(), s.handle(), life::captured);
  its.stands_for_held_ = s.hold();
  its.stands_for_.store(&s);
  its.capture_.store(capture, base::memory_order_release);
  lanes.push_back(&its);
  s.lane_.store(&its, base::memory_order_release);
  return its;
}

std::vector<stream_clock*> clocks::state::take_lanes(std::uint64_t capture) noexcept {
  auto all = captures.lock();
  auto lanes = all->extract(capture);
  if (!lanes)
    return {};
  note_end(lanes.mapped().lanes);
  return std::move(lanes.mapped().lanes);
}

void clocks::listen(stream_clock const& lane, std::shared_ptr<launch_listener> l) {
  auto all = state_->captures.lock();
  if (auto const in = all->find(lane.capture()); in != all->end())
    in->second.listeners.push_back(std::move(l));
}

launch_listeners clocks::take_listeners(std::uint64_t capture) noexcept {
  auto all = state_->captures.lock();
  auto const in = all->find(capture);
  if (in == all->end())
    return {};
  for (auto const& each : in->second.listeners)
    each->taken();
  return std::exchange(in->second.listeners, {});
}

void clocks::state::note_end(std::span<stream_clock* const> lanes, stream_clock const* in_another) noexcept {
  for (stream_clock* const lane : lanes) {
    stream_clock* const its = lane->stands_for();
    // Its next capture gives it another lane, under the same lock.
    bool const is_its_last = its && its != in_another && its->lane_.load() == lane;
    if (is_its_last && its->alive() == life::borrowed)
      its->saw_captured(false);
  }
}

stream_clock* clocks::joined_to(stream_clock const& borrowed) const {
  auto const all = state_->captures.lock();
  auto const in = all->find(borrowed.last_capture());
  if (in == all->end())
    return nullptr;
  for (stream_clock const* const lane : in->second.lanes) {
    stream_clock* const its = lane->stands_for();
    if (its->alive() == life::own && its->lane_.load() == lane)
      return its;
  }
  return nullptr;
}

void clocks::end_capture_of(std::span<stream_clock* const> lanes) noexcept {
  end_lanes(lanes);
  if (!lanes.empty())
    state_->ask_the_captured();
}

void clocks::capture_ended(std::uint64_t capture) noexcept {
  end_capture_of(state_->take_lanes(capture));
}

// A stream that joined is given to no other capture before this call has returned.
driver::result<driver::graph_handle> clocks::end_capture(stream_clock& s, std::uint64_t capture) noexcept {
  auto const kept = state_->shared->machine.end_capture(s.device(), s.handle());
  auto const lanes = state_->take_lanes(capture);
  s.saw_captured(false);
  for (stream_clock const* const lane : lanes)
    lane->stands_for()->saw_captured(false);
  end_capture_of(lanes);
  return kept;
}

void clocks::let_go(stream_clock& keeper) noexcept {
  stream_clock* const one[] = {&keeper};
  end_lanes(one);
}

stream_clock& clocks::make_idle(int device) {
  stream_clock& made = make(device, driver::stream_handle::none, life::captured);
  end(made);
  made.done_.raise(made.last_.load());
  return made;
}

// A later stamp of an ended clock means its last fence, which is complete.
void clocks::pass(stream_clock& idle) noexcept {
  (void)idle.begin();
}

void clocks::end_lanes(std::span<stream_clock* const> lanes) noexcept {
  if (lanes.empty())
    return;
  state_->any_ended.store(true);
  for (stream_clock* const lane : lanes) {
    if (stream_clock* const s = lane->stands_for()) {
      stream_clock* expected = lane;  // the stream may be in its next capture
      (void)s->lane_.compare_exchange(expected, nullptr, base::memory_order_release);
    }
    end(*lane);
    lane->done_.raise(lane->last_.load());
    snapshot known;  // released after the lock
    {
      base::lock_guard const hold(lane->lock_);
      known = std::exchange(lane->frontier_, nullptr);
    }
    state_->reusable_on(lane->device()).lock()->add(*lane);
  }
}

driver::result<event_ref> clocks::take_event(int device, driver::event_kind kind) {
  auto event = state_->shared->events->take(device, kind);
  state_->shared->note(device, event.is);
  return event;
}

bool clocks::any_ended() const noexcept {
  return state_->any_ended.load(base::memory_order_acquire);
}

bool clocks::complete(stamp s) const noexcept {
  stream_clock const* const there = find(s.stream);
  return !there || there->is_complete_up_to(s.n);
}

driver::result<bool> clocks::poll(stamp s) {
  stream_clock* const there = find(s.stream);
  if (!there)
    return {{}, true};
  return there->poll(s.n);
}

driver::status clocks::synchronize(stamp s) {
  stream_clock* const there = find(s.stream);
  if (!there)
    return {};
  return there->synchronize(s.n);
}

driver::status clocks::ask_for_a_while(stamp s) {
  constexpr std::int64_t patience_ns = 2'000'000'000, nap_ns = 200'000;
  constexpr int most_questions = 64;
  // What ended without a fence answers no question: unless ranks may wait for each other, a wait is better.
  stream_clock const* const its = find(s.stream);
  if (its && !its->may_be_fenced() && collectives_given().empty())
    return synchronize(s);
  bool const moves = state_->shared->machine.moves_by_itself();
  std::int64_t const until = moves ? base::now_ns() + patience_ns : 0;
  auto const goes_on = [&](int asked) {
    if (!moves)
      return asked < most_questions;  // its streams progress only inside calls, so that calls are counted
    return base::now_ns() < until;
  };
  for (int asked = 0; goes_on(asked); ++asked) {
    auto const done = poll(s);
    if (!done.ok() || done.value)
      return done.is;
    if (moves)
      base::sleep_ns(nap_ns);
  }
  return {driver::code::not_ready};
}

bool clocks::have_passed(std::vector<stamp>& all) {
  std::erase_if(all, [&](stamp s) {
    auto const done = poll(s);
    return done.ok() ? done.value : done.is.what == driver::code::lost;
  });
  return all.empty();
}

std::vector<stream_clock*> clocks::state::living_on(int device) {
  std::vector<stream_clock*> living;
  auto all = lines.lock();
  for (auto& t : *all)
    if (t->device() == device && t->alive() != life::retired && t->alive() != life::captured)
      living.push_back(t.get());
  return living;
}

// The driver would refuse a wait for the device by spoiling their captures.
bool clocks::state::is_any_captured(std::span<stream_clock* const> living) {
  for (stream_clock const* const t : living) {
    stream_clock const* asked = t;
    // The driver is not asked about a borrowed stream, which may exist no more.
    if (t->alive() == life::borrowed) {
      if (!t->seen_captured())
        continue;
      asked = runtime.part<clocks>().joined_to(*t);
      if (!asked)
        return true;
    }
    stream_clock::stay const here(*asked);
    if (!here)
      continue;
    if (auto const inside = asked->captured(); inside.ok() && inside.value)
      return true;
  }
  return false;
}

// captured(over) notes the driver's answer and names a capture that is over; its lanes are ended here. Borrowed
// streams are left out: they may exist no more.
void clocks::state::ask_the_captured() noexcept try {
  std::vector<stream_clock const*> seen;
  {
    auto const all = lines.lock();
    for (auto const& t : *all)
      if (t->seen_captured() && (t->alive() == life::own || t->alive() == life::foreign))
        seen.push_back(t.get());
  }
  for (stream_clock const* const t : seen) {
    std::uint64_t over = 0;
    if (stream_clock::stay const here(*t); here)
      (void)t->captured(over);
    // capture_ended() would ask the other streams of that capture once more: they are in `seen`, too.
    if (over)
      runtime.part<clocks>().end_lanes(take_lanes(over));
  }
} catch (std::bad_alloc const&) {}  // their next calls ask

std::vector<clocks::state::awaited> clocks::state::begin_on(int device) {
  std::vector<awaited> begun;
  auto all = lines.lock();
  for (auto& t : *all) {
    if (t->device() != device || t->alive() == life::captured)
      continue;
    if (t->alive() != life::retired)
      begun.push_back({t.get(), t->begin()});
    // A retired stream begins no number: its last one stands for all of its work.
    else if (!t->is_complete_up_to(t->last_.load()))
      begun.push_back({t.get(), {t->last_.load(), t->knowledge()}});
  }
  return begun;
}

driver::status clocks::synchronize_device(int device) try {
  if (auto const s = state_->shared->state_of(device); !s.ok())
    return s;
  if (driver::inside_work::here())
    return {driver::code::not_permitted};
  stream_clock::common::device_wait const no_capture_begins(
      state_->shared->waits_by_device[static_cast<std::size_t>(device)]);
  if (state_->is_any_captured(state_->living_on(device)))
    return {driver::code::not_permitted};
  // Numbers are begun before the call: it completes all stamps up to them.
  auto const all = state_->begin_on(device);
  if (auto const s = state_->shared->note(device, state_->shared->machine.synchronize_device(device)); !s.ok())
    return s;
  for (auto const& a : all)
    a.stream->observe(a.begun.n, a.begun.seen);
  return {};
} catch (std::bad_alloc const&) {
  return {driver::code::out_of_memory};
}

driver::result<bool> clocks::query(stream_clock& t) {
  stream_clock::common::device_wait const no_capture_begins(
      state_->shared->waits_by_device[static_cast<std::size_t>(t.device())]);
  stream_clock::stay const here(t);
  if (!here)
    return {{driver::code::invalid}, false};
  return t.query();
}

// After so long the driver's call is under way: it spoils only captures that it meets at its start.
constexpr std::chrono::seconds longest_look{2};

driver::status clocks::begin_capture(stream_clock& s, driver::capture_mode mode) {
  auto& its = state_->shared->waits_by_device[static_cast<std::size_t>(s.device())];
  base::unique_lock hold(its.lock);
  (void)its.changed.wait_for(hold, longest_look, [&] { return its.under_way == 0; });
  return s.note(state_->shared->machine.begin_capture(s.device(), s.handle(), mode));
}

void clocks::note_complete(stream_clock& t, fence_ref const& f) {
  if (!f->event->given_away() && !f->stale.load())
    t.observe(f->n, f->seen);
}

std::vector<stamp> clocks::collectives_given() const {
  std::vector<stamp> given;
  auto lines = state_->lines.lock();
  for (auto& t : *lines)
    if (stamp const s = t->now(); t->carries_collectives() && !t->is_complete_up_to(s.n))
      given.push_back(s);
  return given;
}

std::size_t clocks::size() const {
  return state_->lines.lock()->size();
}

void clocks::note(int device, driver::status s) noexcept {
  (void)state_->shared->note(device, s);
}
bool clocks::lost(int device) const noexcept {
  return !state_->shared->state_of(device).ok();
}

clocks::counts clocks::counted() const noexcept {
  auto const& c = *state_->shared;
  return {c.fences.load(base::memory_order_relaxed), c.waits.load(base::memory_order_relaxed),
          c.polls.load(base::memory_order_relaxed)};
}

std::vector<std::string> clocks::validate() const {
  std::vector<std::string> broken;
  auto lines = state_->lines.lock();
  for (auto const& t : *lines)
    for (auto& words : t->validate())
      broken.push_back(std::move(words));
  return broken;
}

}  // namespace weir::clock
