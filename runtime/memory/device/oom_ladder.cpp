// The steps of the out-of-memory ladder.
// Threads: as oom_ladder.h.
#include "runtime/memory/device/oom_ladder.h"

#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/observe/history.h"

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

void* oom_ladder::climb(stream_heap& mine, alloc_request const& r, driver::status why) {
  memory_pool& pool = *mine.pool.get();
  // If the pool's limit is what is short, memory of others is of no use.
  auto const short_pool = [&]() -> memory_pool const* {
    return pool.room() < round_up(r.rounded, of_.space.page_bytes()) ? &pool : nullptr;
  };
  auto const heaps = [&] {
    auto all = heaps_.all();
    if (auto const* const only = short_pool())
      std::erase_if(all, [&](stream_heap const* m) { return m->pool.get() != only; });
    return all;
  };
  std::vector<recovery_step> climbed;
  void* out = nullptr;
  // If not even one more run can be allocated, a small block gets a granule of its own.
  alloc_request const alone{
      r.home, r.bytes, std::max(r.alignment, bins::unit), -1, std::max(round_up(r.bytes, bins::unit), granule), r.at};
  auto attempt = [&]() -> bool {  // all that needs no step
    // Deterministic addresses must not depend on what is complete. Not while ranks may wait for this thread.
    if (of_.deterministic && of_.clocks.collectives_given().empty()) completion_.finish_all();
    {
      section const hold(mine);
      if ((out = mine.take(r)) || (out = mine.take_anywhere(r)) || (out = mine.take_anywhere(alone))) return true;
    }
    if ((out = reuse_.from_others(mine, alone, ~std::size_t{0}))) return true;
    why = growth_.grow(mine, r, out);
    if (why.what == driver::code::out_of_memory && r.size_class >= 0) why = growth_.grow(mine, alone, out);
    if (why.ok()) return true;
    if (why.what == driver::code::out_of_memory) return false;
    of_.note_status(why);
    refuse_call(why, r);
  };
  // The streams of a registered pool share its handle: they borrow and wait for each other before it is short.
  bool is_short = !pool.is_registered();
  if (is_short) of_.counts.retried();
  log_about const about{of_.device, r.home.id(), r.bytes};
  auto const warn = [&] {
    if (logs(of_.runtime, log_level::warning)) log(log_level::warning, about, "memory is short: recovery begins");
  };
  auto const found = [&](rungs where) {
    if (is_short) of_.counts.recovered_by(static_cast<std::size_t>(where));
    return out;
  };
  auto step = [&](rungs which, auto act) -> bool {
    std::string_view const name = recovery_steps[static_cast<std::size_t>(which)];
    std::int64_t const from = base::now_ns();
    std::size_t const gave = act();
    auto const same =
        std::find_if(climbed.begin(), climbed.end(), [&](recovery_step const& c) { return c.name == name; });
    recovery_step& entry = same != climbed.end() ? *same : climbed.emplace_back(recovery_step{name, 0, 0});
    entry.gave_bytes += gave;
    bool const got = out || (gave && attempt());
    entry.ns += base::now_ns() - from;
    return got && found(which);
  };
  auto const describe_failure = [&] {  // present state
    memory_report text = audit_.report();
    text.requested = r.bytes;
    text.rounded = r.rounded;
    text.recovery = climbed;
    audit_.add_pool(text, pool);
    if (why == growth::no_addresses) text.recovery.push_back({"addresses", 0, 0});
    return text;
  };

  mapping_lock::activity others(memory_.changes);
  if (attempt()) return found(rungs::another_look);
  if (is_short) warn();
  // Releasing a segment waits for the work of all devices, which may wait for a rank of this thread.
  std::vector<clock::stamp> collectives;
  // once: a stamp of now would need a new fence at each query
  if (!of_.space.maps()) collectives = of_.clocks.collectives_given();
  bool called_back = false;
  std::size_t const limit = of_.counts.limit(), most = limit ? limit : of_.space.info().total_memory;
  auto const came_free = [&] { return audit_.counted().active_bytes.all.freed; };  // so far
  for (int round = 0, rests = 0, looks = 0, spills = 0;; ++round) {
    auto const free_before = came_free();
    if (step(rungs::pending, [&] {
          std::size_t bytes = 0;
          for (stream_heap* m : heaps()) {
            (void)m->flush_deferred();
            bytes += completion_.poll(*m);
          }
          return bytes;
        })) {
      return out;
    }
    if (step(rungs::of_others, [&] { return completion_.poll_others(mine, alone); })) return out;
    if (step(rungs::device_wait, [&] {
          std::size_t gave = 0;
          if (of_.waits != options::wait_policy::never) out = reuse_.after_a_wait(mine, r, gave);
          return gave;
        })) {
      return out;
    }
    if (!std::exchange(is_short, true)) of_.counts.retried(), warn();
    if (step(rungs::caches, [&] {
          std::size_t bytes = 0;
          for (stream_heap* m : heaps()) bytes += m->empty_caches();
          return bytes;
        })) {
      return out;
    }
    for (;;) {  // each round releases about what is missing
      std::size_t gave = 0;
      if (step(rungs::pages, [&] {
            return gave = of_.clocks.have_passed(collectives)
                              ? return_.some(r.size_class < 0 ? r.rounded : of_.space.page_bytes(), short_pool())
                              : 0;
          }))
        return out;
      if (!gave) break;
    }
    if (!std::exchange(called_back, true)) {
      if (step(rungs::callbacks, [&]() -> std::size_t { return callbacks_.call(describe_failure()) ? r.rounded : 0; }))
        return out;
    }
    std::size_t waited = 0;
    if (step(rungs::oldest_fence, [&] { return waited = completion_.wait_for_oldest(collectives) ? 1 : 0; }))
      return out;
    if (waited && round < most_rounds) continue;
    // A query may have found blocks complete that no later step examined; other threads may have freed some.
    std::size_t reclaimed = 0;
    for (stream_heap* m : heaps_.all()) {
      section const hold(*m);
      reclaimed += m->reclaim();
    }
    if (callbacks_.spills() && spills < most_spills) {
      bool room = false;
      if (step(rungs::callbacks, [&]() -> std::size_t {
            return (room = callbacks_.spill(describe_failure())) ? r.rounded : 0;
          }))
        return out;
      if (room && spills++ < most_spills) continue;  // another thread has taken it
    }
    auto const moved = [&] { return others.any() || came_free() != free_before; };
    if (!reclaimed || round >= most_rounds) {
      if (moved() && r.rounded <= most && rests++ < most_rests) {
        of_.machine.moves_by_itself() ? base::sleep_ns(rest_ns) : base::yield_thread();
      } else {
        if (step(rungs::any_room, [&]() -> std::size_t { return out = between_blocks(mine, alone), 0; })) return out;
        memory_report failed = describe_failure();
        auto const room = audit_.look_for_room(&mine, pool);
        audit_.explain(failed, &room, pool);
        // There is room: other threads have made it since the search, or the driver refuses. Another round tells.
        bool const again = looks == 0 || moved();
        if (failed.cause != memory_cause::driver || !again || looks++ == most_rests) refuse(r, failed);
      }
    }
    if (attempt()) return found(rungs::another_look);
  }
}

// Last, for it examines everything: where blocks in use leave the most room, in whichever heap, with all pages that
// can go there. Steps before may have taken pages from such a place that now fit nowhere else.
void* oom_ladder::between_blocks(stream_heap& mine, alloc_request const& r) {
  void* out = nullptr;
  for (int tries = 0; tries < 2; ++tries) {  // one call may be refused
    (void)return_.retry_refused();
    memory_pool const& pool = *mine.pool.get();
    auto const room = audit_.look_for_room(&mine, pool);
    for (auto const& p : room.places) {
      if (p.largest < r.rounded) continue;
      if (of_.space.maps()) (void)return_.some(~std::size_t{0}, room.pool_is_full ? &pool : nullptr);
      driver::status const s = growth_.grow_there(*p.in, p.part, r, out);
      of_.note_status(s);
      if (s.ok() && reuse_.hand_over(*p.in, out, mine)) return out;
      if (!s.ok() && s.what != driver::code::out_of_memory) refuse_call(s, r);
      out = nullptr;
    }
  }
  return nullptr;
}

void oom_ladder::refuse_call(driver::status why, alloc_request const& r) const {
  if (why == growth::asleep) throw growth::pool_fell_asleep{};
  throw_refusal(why, "allocate", base::text(r.bytes, " B on gpu:", of_.device), "", r.at);
}

void oom_ladder::refuse(alloc_request const& r, memory_report const& why) {
  if (logs(of_.runtime, log_level::error))
    log(log_level::error, log_about{of_.device, r.home.id(), r.bytes}, "out of memory: " + why.text());
  of_.counts.ran_out();
  observe::note(observe::action::out_of_memory, nullptr, r.bytes, r.home.id(), of_.runtime.id(), of_.device, r.at);
  throw out_of_memory(why, r.at);
}

}  // namespace weir::memory
