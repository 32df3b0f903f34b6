// Records, waits and polls of one stream, and the conclusions from them.
// Threads: any; no lock is held over a driver call.
#include "runtime/clock/stream_clock.h"

#include "runtime/base/rule.h"
#include "runtime/clock/shared_state.h"
#include "runtime/core/log.h"

namespace weir::clock {

using driver::code;
using driver::result;
using driver::status;

namespace {
// Outside a capture, a lack of host memory is a status, so that the caller can use another path.
template <class Answer, class Act>
Answer or_out_of_memory(Act act) noexcept {
  try {
    return act();
  } catch (...) {
    return {status{code::out_of_memory}};
  }
}
}  // namespace

// Tells the observer, because no driver call shows it.
void stream_clock::rely_on(stream_clock const* other) const {
  if (!common_->observer || !other || &other->runtime_ != &runtime_) [[likely]]
    return;
  common_->observer->relied_on({device_, handle()}, {other->device_, other->handle()});
}
void stream_clock::know_complete() const {
  if (common_->observer) [[unlikely]]
    common_->observer->relied_on({}, {device_, handle()});
}

driver::status stream_clock::note(status s) const noexcept {
  if (s.what == driver::code::lost && logs(runtime_, log_level::error) && common_->state_of(device_).ok())
    log(log_level::error, {device_, id()}, "the device is lost to this process");
  return common_->note(device_, s);
}

driver::status stream_clock::open_for_work() const {
  if (alive() == life::retired)
    return {code::invalid};
  return common_->state_of(device_);
}

stream_clock const*& named_in_call::current() noexcept {
  struct named;
  return base::thread_pointer<named, static_cast<stream_clock const*>(nullptr)>::value;
}

bool stream_clock::may_be_fenced() const noexcept {
  switch (alive()) {
    case life::own:
    case life::foreign: return true;
    case life::borrowed: return named_in_call::is(*this);  // else the stream may exist no more
    case life::captured:
    case life::retired: break;
  }
  return false;
}

// A fence is due at once after the free of a last block: a short-lived stream is then gone. So it is after
// the free of a large block, because others wait for its memory. Else it is due once for a batch of frees.
// After `young` last blocks the stream counts as long-lived: it may have no block between two frees.
bool stream_clock::count_free(std::size_t bytes) noexcept {
  bool is_last_of_young = false;
  if (live_blocks_.load(base::memory_order_relaxed) == 0)
    is_last_of_young = last_frees_.fetch_add(1, base::memory_order_relaxed) < young;
  std::uint32_t const counts_as = bytes >= large_free ? free_batch : 1;
  std::uint32_t const unfenced = unfenced_.fetch_add(counts_as, base::memory_order_relaxed) + counts_as;
  return unfenced >= free_batch || is_last_of_young;
}

driver::status stream_clock::usable() const {
  if (auto const s = open_for_work(); !s.ok())
    return s;
  auto const inside = captured();
  if (!inside.ok())
    return inside.is;
  return inside.value ? status{code::not_permitted} : status{};
}

// The increment comes before the driver call: the fence does not cover a stamp read after it. The frontier is
// copied before the record, because what is merged meanwhile may be ordered after the record.
stream_clock::begun stream_clock::begin() {
  base::lock_guard const hold(lock_);
  return {next_.fetch_add(1, base::memory_order_acq_rel), frontier_};
}

result<fence_ref> stream_clock::record(event_ref const& event, fence_ref const& before) {
  if (auto const s = open_for_work(); !s.ok())
    return {s, {}};
  auto const inside = captured();
  if (!inside.ok())
    return {inside.is, {}};
  if (inside.value)
    return record_inside(event, before);
  auto f = or_out_of_memory<result<fence_ref>>([] { return result<fence_ref>{{}, std::make_shared<clock::fence>()}; });
  if (!f.ok())
    return f;
  f.value->event = event;
  f.value->of = hold();
  if (auto const s = record_outside(*f.value, before); !s.ok())
    return {s, {}};
  publish(f.value);
  return f;
}

status stream_clock::record_outside(clock::fence& f, fence_ref const& before) {
  // Stale before the record: from then on the event's answers may be about the new fence.
  bool was_stale = false;
  if (before)
    was_stale = before->stale.exchange(true);
  begun b = begin();
  f.n = b.n;
  f.seen = std::move(b.seen);
  if (auto const s = note(common_->machine.record(device_, handle(), f.event->handle())); !s.ok()) {
    if (before)
      before->stale.store(was_stale);
    return s;
  }
  common_->fences.fetch_add(1, base::memory_order_relaxed);
  return {};
}

void stream_clock::publish(fence_ref const& f) {
  fence_list::dropped dropped;  // ends after the lock
  base::lock_guard const hold(lock_);
  try {
    WEIR_RULE(f->n < next_.seen(), "a fence has a number that `next` has not reached");
    if (!f->event->given_away())
      fences_.publish(f, dropped);
  } catch (...) {}  // no memory: the caller alone may know this fence
}

result<fence_ref> stream_clock::record_fence(bool asked) {
  stay const here(*this);
  if (!here || !may_be_fenced())
    return {{alive() == life::retired ? code::invalid : code::not_permitted}, {}};
  if (auto const s = usable(); !s.ok())
    return {s, {}};
  auto f = or_out_of_memory<result<fence_ref>>([&] { return common_->events->take_fence(device_); });
  if (!f.ok())
    return {note(f.is), {}};
  f.value->asked = asked;
  // The count is taken before the number is begun: a free that is counted later may have a later number.
  std::uint32_t const owed = unfenced_.load() ? unfenced_.exchange(0) : 0;
  status s = record_outside(*f.value, nullptr);
  // If a capture began meanwhile, the record may be inside it, and a query of the event would spoil it.
  if (s.ok()) {
    auto const inside = captured();
    s = inside.is;
    if (inside.ok() && inside.value)
      s = {code::not_permitted};
  }
  // Without a fence, what was freed is still owed one.
  if (!s.ok()) {
    if (owed)
      unfenced_.fetch_add(owed);
    return {s, {}};
  }
  publish(f.value);
  return f;
}

result<stamp> stream_clock::fence() {
  auto f = record_fence(false);
  if (!f.ok())
    return {f.is, {}};
  return {{}, {id(), f.value->n}};
}

result<fence_ref> stream_clock::fence_for(std::uint64_t n) {
  auto listed = or_out_of_memory<result<fence_ref>>([&] {
    fence_list::dropped dropped;
    base::lock_guard const hold(lock_);
    return result<fence_ref>{{}, fences_.covering(n, dropped)};
  });
  WEIR_RULE(!listed.value || listed.value->n >= n, "a fence does not cover the stamp that it is for");
  if (!listed.ok() || listed.value)
    return listed;
  return record_fence(true);
}

std::uint64_t stream_clock::fence_covering(std::uint64_t n) {
  return or_out_of_memory<result<std::uint64_t>>([&] {
           fence_list::dropped dropped;
           base::lock_guard const hold(lock_);
           auto const f = fences_.covering(last_wanted(n), dropped);
           return result<std::uint64_t>{{}, f ? f->n : 0};
         })
      .value;
}

snapshot stream_clock::knowledge() const {
  base::lock_guard const hold(lock_);
  return frontier_;
}

bool stream_clock::knows(stamp s) const {
  base::lock_guard const hold(lock_);
  return frontier_ && frontier_->of(s.stream) >= s.n;
}

void stream_clock::merge(stream_clock const& from, clock::fence const& f) {
  static frontier const nothing;
  // What is complete, and this stream's own work, need no entry.
  auto const needs_none = [this](frontier::entry const& e) {
    stream_clock const* const its = find(e.stream);
    return e.stream == id() || !its || its->is_complete_up_to(e.n);
  };
  WEIR_RULE(f.n < from.next_.seen(), "the frontier names a fence that was not begun");
  snapshot old;  // released after the lock
  base::lock_guard const hold(lock_);
  try {
    auto next = std::make_shared<frontier const>(
        (frontier_ ? *frontier_ : nothing).merged(f.seen ? *f.seen : nothing, from.id(), f.n, needs_none));
    old = std::exchange(frontier_, std::move(next));
  } catch (...) {}  // no memory: ordered, but not known to be
}

status stream_clock::wait(fence_ref const& f, stream_clock& from) {
  if (f->captured)
    return wait_inside(*f, from);
  if (!f->event->given_away() && covers({from.id(), f->n})) {
    rely_on(&from);
    return {};
  }
  if (&from.runtime_ != &runtime_)
    return {code::invalid};
  return wait_for(f, from);
}

// Merges only after the driver's wait returned: until then this stream's new work is not ordered.
status stream_clock::wait_for(fence_ref const& f, stream_clock& from) {
  bool const is_reliable = !f->event->given_away();
  if (auto const s = usable(); !s.ok())
    return s;
  if (auto const s = common_->state_of(from.device_); !s.ok())
    return s;
  auto const s = common_->machine.wait(device_, handle(), f->event->handle());
  if (!s.ok()) {
    if (s.what == code::lost) {  // which of the two devices?
      note(common_->machine.query_stream(device_, handle()));
      from.note(common_->machine.query_event(f->event->handle()));
    }
    return s;
  }
  common_->waits.fetch_add(1, base::memory_order_relaxed);
  // The program may have recorded the event: nothing is known of what the wait was for.
  if (!is_reliable)
    return {};
  if (f->stale.load())
    return {code::not_ready};  // the event was recorded again: the wait was for that record
  merge(from, *f);
  return {};
}

status stream_clock::wait(stamp wanted, bool* behind_all) {
  for (;;) {
    if (covers(wanted)) {
      rely_on(find(wanted.stream));
      return {};
    }
    stream_clock& from = *find(wanted.stream);  // not null, or it would be covered
    if (&from.runtime_ != &runtime_)
      return {code::invalid};
    if (alive() == life::captured || from.alive() == life::captured)
      return {code::not_permitted};
    // Whether this stream is captured is asked in wait_for(), right before the driver's wait.
    if (auto const s = open_for_work(); !s.ok())
      return s;
    if (auto const s = common_->state_of(from.device_); !s.ok())
      return s;
    auto f = from.fence_for(from.last_wanted(wanted.n));
    if (!f.ok())
      return f.is;
    if (behind_all)
      *behind_all = f.value->asked;
    auto const s = wait_for(f.value, from);
    // A query tells whether it is the event that is invalid.
    if (s.what == code::invalid && mark_if_in_vain(*f.value, common_->machine.query_event(f.value->event->handle())))
      continue;
    // not_ready: the fence is stale. The next round takes another.
    if (s.what != code::not_ready)
      return s;
  }
}

// The record is inside a capture that came and went meanwhile: no query or wait can use the event.
bool stream_clock::mark_if_in_vain(clock::fence& f, status answer) {
  if (answer.what != code::invalid)
    return false;
  f.stale.store(true);
  return true;
}

// Completion is transitive: a complete fence completes all that it was ordered after.
void stream_clock::observe(std::uint64_t n, snapshot const& seen) {
  if (seen) {
    for (auto const& e : seen->entries())
      if (stream_clock* const before = find(e.stream))
        before->done_.raise(e.n);
  }
  WEIR_RULE(n < next_.seen(), "`done` is not below `next`");
  done_.raise(n);  // done only grows
  fence_list::dropped dropped;
  base::unique_lock hold(lock_);
  try {
    fences_.drop_done(done_.load(base::memory_order_acquire), dropped);
  } catch (...) {}  // no memory: they stay listed until the next time
  hold.unlock();
}

result<bool> stream_clock::ask(fence_ref const& f) {
  common_->polls.fetch_add(1, base::memory_order_relaxed);
  auto const s = note(common_->machine.query_event(f->event->handle()));
  if (f->stale.load())
    return {{code::not_ready}, false};  // the answer may be about a later record
  if (mark_if_in_vain(*f, s))
    return {{code::not_ready}, false};
  if (s.what == code::not_ready)
    return {{}, false};
  if (!s.ok())
    return {s, false};
  observe(f->n, f->seen);
  return {{}, true};
}

result<bool> stream_clock::poll(std::uint64_t n) {
  for (;;) {
    n = last_wanted(n);
    if (is_complete_up_to(n)) {
      know_complete();
      return {{}, true};
    }
    if (auto const s = common_->state_of(device_); !s.ok())
      return {s, false};
    auto f = fence_for(n);
    // No fence covers it, and none can be recorded now: only the whole device can tell.
    if (!f.ok() && !may_be_fenced())
      return {{}, false};
    if (!f.ok())
      return {f.is, false};
    auto const answer = ask(f.value);
    // The fence is stale: the next round takes another.
    if (answer.is.what == code::not_ready)
      continue;
    if (answer.ok() && answer.value)
      ask_newer(f.value->n);
    return answer;
  }
}

// A binary search, which asks the newest fence first.
void stream_clock::ask_newer(std::uint64_t than) {
  std::vector<fence_ref> newer;
  try {
    base::lock_guard const hold(lock_);
    newer = fences_.newer_than(than);
  } catch (...) {}  // no memory: what is known stays valid
  // The first `complete` of them are complete, and those from `open` on are not known to be.
  std::size_t complete = 0, open = newer.size();
  for (std::size_t count = open; complete < open; count = complete + (open - complete) / 2 + 1) {
    auto const answer = ask(newer[count - 1]);  // if it is complete, so are the first `count`
    if (answer.ok() && answer.value)
      complete = count;
    else
      open = count - 1;
  }
}

status stream_clock::synchronize(std::uint64_t n) {
  for (;;) {
    n = last_wanted(n);
    if (is_complete_up_to(n)) {
      know_complete();
      return {};
    }
    if (alive() == life::captured)
      return {code::not_permitted};
    if (auto const s = common_->state_of(device_); !s.ok())
      return s;
    auto f = fence_for(n);
    // As in poll(). The device is not asked while a stream of it is captured.
    if (!f.ok() && !may_be_fenced())
      return runtime_.part<clocks>().synchronize_device(device_);
    if (f.is.what == code::lost || f.is.what == code::not_permitted)
      return f.is;
    // No fence for another reason, such as a lack of memory: the stream itself can be waited for.
    if (!f.ok())
      return synchronize();
    auto const s = note(common_->machine.synchronize_event(f.value->event->handle()));
    if (mark_if_in_vain(*f.value, s))
      continue;
    if (!s.ok())
      return s;
    // The answer may be about a later record.
    if (f.value->stale.load())
      continue;
    observe(f.value->n, f.value->seen);
    return {};
  }
}

// A number is begun as for a record, because stamps read from now on may cover more work.
result<bool> stream_clock::query() {
  if (auto const s = usable(); !s.ok())
    return {s, false};
  begun const b = begin();
  common_->polls.fetch_add(1, base::memory_order_relaxed);
  auto const s = note(common_->machine.query_stream(device_, handle()));
  if (s.what == code::not_ready)
    return {{}, false};
  if (!s.ok())
    return {s, false};
  observe(b.n, b.seen);
  return {{}, true};
}

status stream_clock::synchronize() {
  stay const here(*this);
  if (!here)
    return {code::invalid};
  if (auto const s = usable(); !s.ok())
    return s;
  begun const b = begin();
  if (auto const s = note(common_->machine.synchronize_stream(device_, handle())); !s.ok())
    return s;
  observe(b.n, b.seen);
  return {};
}

std::vector<std::string> stream_clock::validate() const {
  std::vector<std::string> broken;
  auto const hold_that = [&](bool holds, char const* words) {
    if (!holds)
      broken.push_back(std::string(words) + " (stream " + std::to_string(id()) + ")");
  };
  base::lock_guard const hold(lock_);
  std::uint64_t const next = next_.load();
  hold_that(done_.load() < next, "`done` is not below `next`");
  if (frontier_) {
    for (auto const& e : frontier_->entries()) {
      stream_clock const* const its = find(e.stream);
      hold_that(!its || e.n < its->next_.load(), "the frontier names a fence that was not begun");
    }
  }
  std::uint64_t before = 0;
  for (auto const& f : fences_.all()) {
    hold_that(f->n > before, "the fences are not in ascending order");
    hold_that(f->n < next, "a fence has a number that `next` has not reached");
    before = f->n;
    if (!f->seen)
      continue;
    bool const complete = f->n <= done_.load();  // read first: observe() raises the other streams before this one
    for (auto const& e : f->seen->entries()) {
      stream_clock const* const its = find(e.stream);
      bool const done = !its || its->is_complete_up_to(e.n);
      hold_that(done || (frontier_ && frontier_->of(e.stream) >= e.n),
                "a fence is ordered after a stamp that the frontier lacks");
      if (complete)
        hold_that(done, "a fence is complete and a stamp before it is not");
    }
  }
  hold_that(fences_.all().size() <= fence_list::most, "there are more fences than `most`");
  return broken;
}

}  // namespace weir::clock
