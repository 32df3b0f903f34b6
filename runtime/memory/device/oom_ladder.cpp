// The steps of the out-of-memory ladder.
// Threads: as oom_ladder.h.
#include "runtime/memory/device/oom_ladder.h"

#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/memory/device/shortage.h"

namespace weir::memory {
namespace {
constexpr int most_rounds = 1000;  // each has waited for a fence; other threads may keep taking what it freed
constexpr int most_spills = 64;    // for one request: other threads may take the room first
// While other threads map, unmap or free. Two threads that are both refused would see each other for ever.
constexpr int most_rests = 8;
constexpr std::int64_t rest_ns = 500'000;
constexpr std::size_t unknown_bytes = 1;  // given by a wait: the report tells that it was not in vain

// Indices of recovery_steps.
enum class counted : std::size_t {
  pending,
  of_others,
  device_wait,
  caches,
  pages,
  callbacks,
  oldest_fence,
  any_room,
  another_look
};
static_assert(static_cast<std::size_t>(counted::another_look) + 1 == recovery_steps.size());

// What a step came to, and what follows if the lists have no block even after it.
enum class outcome : std::uint8_t {
  served,      // there is a block
  nothing,     // nothing is searched; the next step
  came_free,   // the next step
  gives_more,  // the same step
  next_round,  // all steps from the first
};
}  // namespace

// One climb: the request, what each step gave, and the block once there is one.
class oom_ladder::ascent {
 public:
  ascent(oom_ladder& on, stream_heap& mine, alloc_request const& r, driver::status why)
      : a_(on),
        of_(on.of_),
        mine_(mine),
        pool_(mine.pool()),
        r_(r),
        alone_{r.home, r.bytes, std::max(r.alignment, bins::unit), -1, std::max(round_up(r.bytes, bins::unit), granule),
               r.at},
        why_(why),
        is_short_(!pool_.rules().one_handle || on.audit_.use_of(pool_).cached < r.rounded),
        others_(on.memory_.changes) {}

  void* run();  // Throws: out_of_memory

 private:
  struct answer {
    outcome is;
    std::size_t gave = 0;  // bytes, for the report
  };
  struct recovery {
    std::string_view name;  // as docs/decisions/reuse.md says
    counted as;             // the step of the statistics and of the report, which does not tell of another look
    bool (ascent::*applies)() const;
    answer (ascent::*run)();
  };
  static recovery const recoveries[];
  static answer freed(std::size_t bytes) { return {bytes > 0 ? outcome::came_free : outcome::nothing, bytes}; }

  bool serve_in_a_round();              // True: there is a block. Throws: out_of_memory
  outcome take_step(recovery const&);   // and a search, if something came free
  recovery_step& report_line(counted);  // of the report
  bool search();                        // all that needs no step. True: there is a block
  bool take_own();
  void count_found(counted);

  bool always() const { return true; }
  bool may_call_back() const { return !called_back_; }
  bool may_spill() const { return a_.callbacks_.spills() && spills_ < most_spills; }
  bool more_is_complete() const { return reclaimed_ > 0 && round_ < most_rounds; }
  answer poll_pending();
  answer poll_others();
  answer wait_on_device();
  answer empty_caches();
  answer return_pages();
  answer call_back();
  answer wait_for_oldest();
  answer reclaim_known();
  answer spill();
  answer look_again();
  answer rest();
  answer between_blocks();
  answer refuse();

  void refuse_what_never_fits();  // Throws: out_of_memory
  bool can_never_fit() const { return a_.can_never_hold(whole_pages(), pool_); }
  std::size_t whole_pages() const;
  memory_pool const* short_pool() const;
  void warn() const;
  bool others_moved();
  std::int64_t came_free() const { return a_.audit_.counted().active_bytes.all.freed; }  // so far
  memory_report describe_failure() const;                                                // present state
  memory_report explained(memory_audit::room const*) const;

  oom_ladder& a_;
  device_context& of_;
  stream_heap& mine_;
  memory_pool& pool_;
  alloc_request const& r_;
  alloc_request const alone_;  // if not even one more run can be allocated, a small block gets a granule of its own
  driver::status why_;
  // The streams of a registered pool share its handle: with enough of it free they borrow, and wait for each other,
  // before memory is short.
  bool is_short_;
  mapping_lock::activity others_;
  std::vector<recovery_step> climbed_;
  std::vector<clock::stamp> collectives_;
  void* out_ = nullptr;
  bool called_back_ = false;
  int rests_ = 0;
  int looks_ = 0;
  int spills_ = 0;
  int round_ = 0;
  std::int64_t free_before_ = 0;  // of came_free(), when the round began
  std::size_t reclaimed_ = 0;     // bytes, in this round, by reclaim_known
};

// In rounds, in this order, by docs/decisions/reuse.md. No lock is held between two steps. After a step that freed
// something the lists are searched again.
constexpr oom_ladder::ascent::recovery oom_ladder::ascent::recoveries[] = {
    {"pending blocks", counted::pending, &ascent::always, &ascent::poll_pending},
    {"complete blocks of other streams", counted::of_others, &ascent::always, &ascent::poll_others},
    {"blocks behind a device wait", counted::device_wait, &ascent::always, &ascent::wait_on_device},
    {"blocks in caches of threads", counted::caches, &ascent::always, &ascent::empty_caches},
    {"free pages returned to the device", counted::pages, &ascent::always, &ascent::return_pages},
    {"out-of-memory callbacks", counted::callbacks, &ascent::may_call_back, &ascent::call_back},
    {"waited for the oldest fence", counted::oldest_fence, &ascent::always, &ascent::wait_for_oldest},
    {"blocks that queries found complete", counted::another_look, &ascent::always, &ascent::reclaim_known},
    {"spills of other pools", counted::callbacks, &ascent::may_spill, &ascent::spill},
    {"a look at what is complete", counted::another_look, &ascent::more_is_complete, &ascent::look_again},
    {"a rest, while others free", counted::another_look, &ascent::always, &ascent::rest},
    {"room between blocks of any stream", counted::any_room, &ascent::always, &ascent::between_blocks},
    {"a refusal", counted::another_look, &ascent::always, &ascent::refuse},
};

void* oom_ladder::ascent::run() {
  refuse_what_never_fits();
  if (is_short_)
    of_.counts.retried();
  // Memory may have come free since growth failed.
  if (search()) {
    count_found(counted::another_look);
    return out_;
  }
  if (is_short_)
    warn();
  climbed_.reserve(recovery_steps.size());  // a step that has found a block needs no host memory for its line
  // once: a stamp of now would need a new fence at each query
  if (!of_.space.maps())
    collectives_ = of_.clocks.collectives_given();
  while (!serve_in_a_round())
    ++round_;
  return out_;
}

bool oom_ladder::ascent::serve_in_a_round() {
  free_before_ = came_free();
  for (recovery const& step : recoveries) {
    if (!(this->*step.applies)())
      continue;
    outcome got;
    do {
      got = take_step(step);
    } while (got == outcome::gives_more);
    if (got == outcome::served)
      return true;
    if (got == outcome::next_round)
      return false;
  }
  return false;
}

outcome oom_ladder::ascent::take_step(recovery const& step) {
  // Another look gives nothing itself, so the report has no line for it.
  bool const told = step.as != counted::another_look;
  std::int64_t from = 0;
  if (told)
    from = base::now_ns();
  answer const got = (this->*step.run)();
  recovery_step* line = nullptr;
  if (told) {
    line = &report_line(step.as);
    line->gave_bytes += got.gave;
  }
  bool served = got.is == outcome::served;
  if (!served && got.is != outcome::nothing)
    served = search();
  if (told)
    line->ns += base::now_ns() - from;
  if (!served)
    return got.is;
  count_found(step.as);
  return outcome::served;
}

recovery_step& oom_ladder::ascent::report_line(counted as) {
  std::string_view const name = recovery_steps[static_cast<std::size_t>(as)];
  auto const same = std::ranges::find(climbed_, name, &recovery_step::name);
  if (same != climbed_.end())
    return *same;
  return climbed_.emplace_back(recovery_step{name, 0, 0});
}

void oom_ladder::ascent::count_found(counted as) {
  if (is_short_)
    of_.counts.recovered_by(static_cast<std::size_t>(as));
}

bool oom_ladder::ascent::search() {
  // Deterministic addresses must not depend on what is complete: all is waited for, unless ranks may wait for
  // this thread.
  if (of_.waits_for_all())
    a_.completion_.finish_all();
  if (take_own())
    return true;
  out_ = a_.reuse_.from_others(mine_, alone_, ~std::size_t{0});
  if (out_)
    return true;
  why_ = a_.growth_.grow(mine_, r_, out_);
  if (why_.what == driver::code::out_of_memory && r_.size_class >= 0)
    why_ = a_.growth_.grow(mine_, alone_, out_);
  if (why_.ok())
    return true;
  if (why_.what == driver::code::out_of_memory)
    return false;
  of_.note_status(why_);
  a_.refuse_call(why_, r_);
}

// Where the policy wants it, then anywhere, then as a block of its own.
bool oom_ladder::ascent::take_own() {
  session in(mine_);
  out_ = in.take(r_);
  if (!out_)
    out_ = in.take_anywhere(r_);
  if (!out_)
    out_ = in.take_anywhere(alone_);
  return out_ != nullptr;
}

oom_ladder::ascent::answer oom_ladder::ascent::poll_pending() {
  std::size_t bytes = 0;
  a_.graphs_.end_those_over();
  for (stream_heap* m : a_.heaps_.all(short_pool())) {
    (void)m->flush_deferred();
    bytes += a_.completion_.poll(*m);
  }
  return freed(bytes);
}

oom_ladder::ascent::answer oom_ladder::ascent::poll_others() {
  return freed(a_.completion_.poll_others(mine_, alone_));
}

oom_ladder::ascent::answer oom_ladder::ascent::wait_on_device() {
  if (of_.waits == options::wait_policy::never)
    return {outcome::nothing};
  std::size_t bytes = 0;
  out_ = a_.reuse_.after_a_wait(mine_, r_, bytes);
  if (out_)
    return {outcome::served, bytes};
  return freed(bytes);
}

oom_ladder::ascent::answer oom_ladder::ascent::empty_caches() {
  // Streams of a registered pool that is not full share its handle until here. Now memory is short for them, too.
  if (!is_short_) {
    is_short_ = true;
    of_.counts.retried();
    warn();
  }
  std::size_t bytes = 0;
  for (stream_heap* m : a_.heaps_.all(short_pool()))
    bytes += m->empty_caches();
  return freed(bytes);
}

oom_ladder::ascent::answer oom_ladder::ascent::return_pages() {
  // Releasing a segment waits for the work of all devices, which may wait for a rank of this thread.
  if (!of_.clocks.have_passed(collectives_))
    return {outcome::nothing};
  std::size_t wanted = of_.space.page_bytes();
  if (r_.size_class < 0)
    wanted = r_.rounded;
  std::size_t const bytes = a_.return_.some(wanted, short_pool());
  // About as much as is missing has gone. If that is not enough, more goes: the request may not fit where the
  // free pages are that are left.
  if (bytes > 0)
    return {outcome::gives_more, bytes};
  return {outcome::nothing};
}

oom_ladder::ascent::answer oom_ladder::ascent::call_back() {
  called_back_ = true;
  auto const room = a_.audit_.look_for_room(&mine_, pool_);
  return freed(a_.callbacks_.call(explained(&room)) ? r_.rounded : 0);
}

oom_ladder::ascent::answer oom_ladder::ascent::wait_for_oldest() {
  bool const done = a_.completion_.wait_for_oldest(collectives_) || a_.graphs_.await_those_ending() ||
                    a_.callbacks_.wait(describe_failure());
  if (!done)
    return {outcome::nothing};
  // After so many rounds the remaining steps decide, even though something still completes.
  if (round_ >= most_rounds)
    return {outcome::came_free, unknown_bytes};
  return {outcome::next_round, unknown_bytes};
}

// A query may have found blocks complete that no later step examined; other threads may have freed some.
oom_ladder::ascent::answer oom_ladder::ascent::reclaim_known() {
  reclaimed_ = 0;
  for (stream_heap* m : a_.heaps_.all())
    reclaimed_ += session(*m).reclaim();
  return {outcome::nothing};  // a spill comes before the search
}

oom_ladder::ascent::answer oom_ladder::ascent::spill() {
  if (!a_.callbacks_.spill(describe_failure()))
    return {outcome::nothing};
  // If the search finds nothing, another thread has taken the room. All steps may find what it left.
  ++spills_;
  return {outcome::next_round, r_.rounded};
}

oom_ladder::ascent::answer oom_ladder::ascent::look_again() {
  return {outcome::next_round};
}

oom_ladder::ascent::answer oom_ladder::ascent::rest() {
  std::size_t most = of_.counts.limit();
  if (most == 0)
    most = of_.space.info().total_memory;
  if (!others_moved() || r_.rounded > most || rests_ == most_rests)
    return {outcome::nothing};
  ++rests_;
  if (of_.machine.moves_by_itself())
    base::sleep_ns(rest_ns);
  else
    base::yield_thread();
  return {outcome::next_round};
}

oom_ladder::ascent::answer oom_ladder::ascent::between_blocks() {
  out_ = a_.between_blocks(mine_, alone_);
  if (out_)
    return {outcome::served};
  return {outcome::nothing};
}

oom_ladder::ascent::answer oom_ladder::ascent::refuse() {
  auto const room = a_.audit_.look_for_room(&mine_, pool_);
  memory_report const failed = explained(&room);
  // There is room: other threads have made it since the search, or the driver refuses. Another round tells.
  bool const again = looks_ == 0 || others_moved();
  if (failed.cause != memory_cause::driver || !again || looks_ == most_rests)
    a_.refuse(r_, failed);
  ++looks_;
  return {outcome::next_round};
}

void oom_ladder::ascent::refuse_what_never_fits() {
  if (!can_never_fit())
    return;
  called_back_ = true;
  bool const has_freed = a_.callbacks_.call(explained(nullptr));
  // Asked again: a callback may have raised the limit.
  if (!has_freed || can_never_fit())
    a_.refuse(r_, explained(nullptr));
}

std::size_t oom_ladder::ascent::whole_pages() const {
  if (!of_.space.maps())
    return r_.rounded;
  return round_up(r_.rounded, of_.space.page_bytes());
}

// If the pool's limit is what is short, memory of others is of no use. Null: it is not.
memory_pool const* oom_ladder::ascent::short_pool() const {
  if (pool_.room() < round_up(r_.rounded, of_.space.page_bytes()))
    return &pool_;
  return nullptr;
}

void oom_ladder::ascent::warn() const {
  if (logs(of_.runtime, log_level::warning))
    log(log_level::warning, {of_.device, r_.home.id(), r_.bytes}, "memory is short: recovery begins");
}

// Whether other threads changed what is mapped since the last call, or freed something in this round.
bool oom_ladder::ascent::others_moved() {
  return others_.any() || came_free() != free_before_;
}

memory_report oom_ladder::ascent::describe_failure() const {
  memory_report text = a_.audit_.report();
  text.requested = r_.bytes;
  text.rounded = r_.rounded;
  text.recovery = climbed_;
  a_.audit_.add_pool(text, pool_);
  if (why_ == driver::no_addresses)
    text.recovery.push_back({"addresses", 0, 0});
  return text;
}

memory_report oom_ladder::ascent::explained(memory_audit::room const* room) const {
  memory_report out = describe_failure();
  if (!room)
    out.rounded = whole_pages();
  a_.audit_.explain(out, room, pool_);
  return out;
}

void* oom_ladder::climb(stream_heap& mine, alloc_request const& r, driver::status why) {
  return ascent(*this, mine, r, why).run();
}

// Last, for it examines everything: where blocks in use leave the most room, in whichever heap, with all pages that
// can go there. Steps before may have taken pages from such a place that now fit nowhere else.
void* oom_ladder::between_blocks(stream_heap& mine, alloc_request const& r) {
  void* out = nullptr;
  for (int tries = 0; tries < 2; ++tries) {  // twice: the driver may refuse one call
    (void)return_.retry_refused();
    memory_pool const& pool = mine.pool();
    auto room = audit_.look_for_room(&mine, pool);
    std::erase_if(room.places, [&](auto const& p) { return p.largest < r.rounded; });
    std::ranges::stable_sort(room.places, {}, [&](auto const& p) { return p.lacks(r.rounded); });
    std::size_t too_many = ~std::size_t{0};  // bytes: an earlier place could not get them
    for (auto const& p : room.places) {
      if (p.lacks(r.rounded) >= too_many)
        break;
      heap_stay const there = heap_table::stay_to_lend(*p.in, mine);
      if (!there)
        continue;
      if (of_.space.maps())
        give_pages(r, room.pool_is_full ? &pool : nullptr);
      growth::place where{p.part};
      driver::status const s = growth_.grow_there(*p.in, where, r, out);
      of_.note_status(s);
      if (s.ok() && reuse_.hand_over(*p.in, out, mine))
        return out;
      if (!s.ok() && s.what != driver::code::out_of_memory)
        refuse_call(s, r);
      out = nullptr;
      // No handle moves to where peers read, so that such a place says nothing of others.
      if (!s.ok() && !p.in->readers())
        too_many = std::min(too_many, where.missing);
    }
  }
  return nullptr;
}

// only: the pool whose limit is short. The device may be short, too: others then give what the place lacks.
void oom_ladder::give_pages(alloc_request const& r, memory_pool const* only) {
  (void)return_.some(~std::size_t{0}, only);
  if (only)
    (void)return_.some(round_up(r.rounded, of_.space.page_bytes()));
}

void oom_ladder::refuse_call(driver::status why, alloc_request const& r) const {
  if (why == growth::asleep)
    throw growth::pool_fell_asleep{};
  throw_refusal(why, "allocate", base::text(r.bytes, " B on gpu:", of_.device), "", r.at);
}

void oom_ladder::refuse(alloc_request const& r, memory_report why) {
  of_.counts.ran_out();
  run_out({&of_.runtime, "allocate", r.at, r.home.id()}, std::move(why));
}

// However much is freed. Reserved memory may exceed a limit that was set later, and stays usable.
bool oom_ladder::can_never_hold(std::size_t bytes, memory_pool const& in) const {
  std::size_t const limit = of_.counts.limit();
  auto const pool = in.now();
  if (bytes > of_.space.info().total_memory)
    return true;
  if (limit && bytes > limit && bytes > of_.counts.reserved())
    return true;
  return pool.limit && bytes > pool.limit && bytes > pool.charged;
}

}  // namespace weir::memory
