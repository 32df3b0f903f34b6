// The steps of the out-of-memory ladder.
// Threads: as oom_ladder.h.
#include "runtime/memory/device/oom_ladder.h"

#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/memory/device/shortage.h"

namespace weir::memory {
namespace {
// indices of recovery_steps
enum class rungs : std::size_t {
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
static_assert(static_cast<std::size_t>(rungs::another_look) + 1 == recovery_steps.size());
constexpr int most_rounds = 1000;  // each has waited for a fence; other threads may keep taking what it freed
// while other threads map, unmap or free; two threads that are both refused see each other
constexpr int most_spills = 64;  // for one request: other threads may take the room first
constexpr int most_rests = 8;
constexpr std::int64_t rest_ns = 500'000;
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
        is_short_(!pool_.is_registered() || on.audit_.use_of(pool_).cached < r.rounded),
        others_(on.memory_.changes) {}

  void* run() {
    if (can_never_fit()) {
      called_back_ = true;
      if (!a_.callbacks_.call(explained(nullptr)) || can_never_fit())
        a_.refuse(r_, explained(nullptr));
    }
    if (is_short_)
      of_.counts.retried();
    if (attempt())
      return found(rungs::another_look);
    if (is_short_)
      warn();
    // once: a stamp of now would need a new fence at each query
    if (!of_.space.maps())
      collectives_ = of_.clocks.collectives_given();
    for (int round = 0;; ++round) {
      auto const free_before = came_free();
      if (steps_without_a_wait())
        return out_;
      std::size_t waited = 0;
      if (step(rungs::oldest_fence, [&] {
            bool const done = a_.completion_.wait_for_oldest(collectives_) || a_.graphs_.await_those_ending() ||
                              a_.callbacks_.wait(describe_failure());
            return waited = done ? 1 : 0;
          }))
        return out_;
      if (waited && round < most_rounds)
        continue;
      // A query may have found blocks complete that no later step examined; other threads may have freed some.
      std::size_t reclaimed = 0;
      for (stream_heap* m : a_.heaps_.all())
        reclaimed += session(*m).reclaim();
      if (a_.callbacks_.spills() && spills_ < most_spills) {
        bool room = false;
        if (step(rungs::callbacks,
                 [&]() -> std::size_t { return (room = a_.callbacks_.spill(describe_failure())) ? r_.rounded : 0; }))
          return out_;
        if (room && spills_++ < most_spills)
          continue;  // another thread has taken it
      }
      if ((!reclaimed || round >= most_rounds) && rest_or_refuse(free_before))
        return out_;
      if (attempt())
        return found(rungs::another_look);
    }
  }

 private:
  std::size_t whole_pages() const {
    return of_.space.maps() ? round_up(r_.rounded, of_.space.page_bytes()) : r_.rounded;
  }
  bool can_never_fit() const { return a_.can_never_hold(whole_pages(), pool_); }
  // If the pool's limit is what is short, memory of others is of no use.
  memory_pool const* short_pool() const {
    return pool_.room() < round_up(r_.rounded, of_.space.page_bytes()) ? &pool_ : nullptr;
  }
  std::vector<stream_heap*> heaps() const {
    auto all = a_.heaps_.all();
    if (auto const* const only = short_pool())
      std::erase_if(all, [&](stream_heap const* m) { return &m->pool() != only; });
    return all;
  }
  bool attempt() {  // all that needs no step
    // Deterministic addresses must not depend on what is complete. Not while ranks may wait for this thread.
    if (of_.deterministic && of_.clocks.collectives_given().empty())
      a_.completion_.finish_all();
    {
      session in(mine_);
      if ((out_ = in.take(r_)) || (out_ = in.take_anywhere(r_)) || (out_ = in.take_anywhere(alone_)))
        return true;
    }
    if ((out_ = a_.reuse_.from_others(mine_, alone_, ~std::size_t{0})))
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
  void warn() const {
    if (logs(of_.runtime, log_level::warning))
      log(log_level::warning, {of_.device, r_.home.id(), r_.bytes}, "memory is short: recovery begins");
  }
  void* found(rungs where) {
    if (is_short_)
      of_.counts.recovered_by(static_cast<std::size_t>(where));
    return out_;
  }
  template <class Act>
  bool step(rungs which, Act act) {
    std::string_view const name = recovery_steps[static_cast<std::size_t>(which)];
    std::int64_t const from = base::now_ns();
    std::size_t const gave = act();
    auto const same = std::ranges::find(climbed_, name, &recovery_step::name);
    recovery_step& entry = same != climbed_.end() ? *same : climbed_.emplace_back(recovery_step{name, 0, 0});
    entry.gave_bytes += gave;
    bool const got = out_ || (gave && attempt());
    entry.ns += base::now_ns() - from;
    return got && found(which);
  }
  bool steps_without_a_wait() {
    return step(rungs::pending,
                [&] {
                  std::size_t bytes = 0;
                  a_.graphs_.end_those_over();
                  for (stream_heap* m : heaps()) {
                    (void)m->flush_deferred();
                    bytes += a_.completion_.poll(*m);
                  }
                  return bytes;
                }) ||
           step(rungs::of_others, [&] { return a_.completion_.poll_others(mine_, alone_); }) ||
           step(rungs::device_wait,
                [&] {
                  std::size_t gave = 0;
                  if (of_.waits != options::wait_policy::never)
                    out_ = a_.reuse_.after_a_wait(mine_, r_, gave);
                  return gave;
                }) ||
           step(rungs::caches,
                [&] {
                  if (!std::exchange(is_short_, true))
                    of_.counts.retried(), warn();
                  std::size_t bytes = 0;
                  for (stream_heap* m : heaps())
                    bytes += m->empty_caches();
                  return bytes;
                }) ||
           return_pages() || (!std::exchange(called_back_, true) && step(rungs::callbacks, [&]() -> std::size_t {
             auto const room = a_.audit_.look_for_room(&mine_, pool_);
             return a_.callbacks_.call(explained(&room)) ? r_.rounded : 0;
           }));
  }
  // Releasing a segment waits for the work of all devices, which may wait for a rank of this thread.
  bool return_pages() {
    for (std::size_t gave = 1; gave;) {  // each round releases about what is missing
      if (step(rungs::pages, [&] {
            return gave = of_.clocks.have_passed(collectives_)
                              ? a_.return_.some(r_.size_class < 0 ? r_.rounded : of_.space.page_bytes(), short_pool())
                              : 0;
          }))
        return true;
    }
    return false;
  }
  // True: there is a block. False: another round. Throws: out_of_memory
  bool rest_or_refuse(std::int64_t free_before) {
    auto const moved = [&] { return others_.any() || came_free() != free_before; };
    std::size_t const limit = of_.counts.limit(), most = limit ? limit : of_.space.info().total_memory;
    if (moved() && r_.rounded <= most && rests_++ < most_rests) {
      of_.machine.moves_by_itself() ? base::sleep_ns(rest_ns) : base::yield_thread();
      return false;
    }
    if (step(rungs::any_room, [&]() -> std::size_t { return out_ = a_.between_blocks(mine_, alone_), 0; }))
      return true;
    auto const room = a_.audit_.look_for_room(&mine_, pool_);
    memory_report const failed = explained(&room);
    // There is room: other threads have made it since the search, or the driver refuses. Another round tells.
    bool const again = looks_ == 0 || moved();
    if (failed.cause != memory_cause::driver || !again || looks_++ == most_rests)
      a_.refuse(r_, failed);
    return false;
  }
  std::int64_t came_free() const { return a_.audit_.counted().active_bytes.all.freed; }  // so far
  memory_report describe_failure() const {                                               // present state
    memory_report text = a_.audit_.report();
    text.requested = r_.bytes;
    text.rounded = r_.rounded;
    text.recovery = climbed_;
    a_.audit_.add_pool(text, pool_);
    if (why_ == driver::no_addresses)
      text.recovery.push_back({"addresses", 0, 0});
    return text;
  }
  memory_report explained(memory_audit::room const* room) const {
    memory_report out = describe_failure();
    if (!room)
      out.rounded = whole_pages();
    a_.audit_.explain(out, room, pool_);
    return out;
  }

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
  int rests_ = 0, looks_ = 0, spills_ = 0;
};

void* oom_ladder::climb(stream_heap& mine, alloc_request const& r, driver::status why) {
  return ascent(*this, mine, r, why).run();
}

// Last, for it examines everything: where blocks in use leave the most room, in whichever heap, with all pages that
// can go there. Steps before may have taken pages from such a place that now fit nowhere else.
void* oom_ladder::between_blocks(stream_heap& mine, alloc_request const& r) {
  void* out = nullptr;
  for (int tries = 0; tries < 2; ++tries) {  // one call may be refused
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
      // Less moves to where peers read, so that such a place says nothing of others.
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
  return bytes > of_.space.info().total_memory || (limit && bytes > limit && bytes > of_.counts.reserved()) ||
         (pool.limit && bytes > pool.limit && bytes > pool.charged);
}

}  // namespace weir::memory
