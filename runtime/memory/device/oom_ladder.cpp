// Out of memory: a ladder, cheapest rung first; after each the lists are searched again.
// No device-wide synchronize on the way.
// Threads: any. No lock is held while a driver call or a user's callback runs.
//
// Invariant: a refused allocation changes nothing but what is cached, and everything works afterwards.
#include <algorithm>
#include <span>

#include "runtime/base/sync.h"
#include "runtime/core/log.h"
#include "runtime/memory/device/device_allocator.h"
#include "runtime/observe/history.h"

namespace weir::memory {
namespace {
// ladder_rungs, by number
enum class rungs : std::size_t {
  pending,
  of_others,
  device_wait,
  caches,
  pages,
  callbacks,
  oldest_fence,
  another_look
};
static_assert(static_cast<std::size_t>(rungs::another_look) + 1 == ladder_rungs.size());
constexpr int most_rounds = 1000;  // each has waited for a fence: other threads may keep on taking what it gave
// while other threads' pages are on their way, or they give back: two that are both refused see each other
constexpr int most_rests = 8;
constexpr std::int64_t rest_ns = 500'000;
}  // namespace

void* device_allocator::ladder(stream_memory& mine, request const& r, driver::status why) {
  counts_.retried();
  std::vector<rung> climbed;
  void* out = nullptr;
  // When not even one more run of a slab is to be had, a small block gets a granule of its own.
  request const alone{
      r.home, r.bytes, std::max(r.alignment, bins::unit), -1, std::max(round_up(r.bytes, bins::unit), granule), r.at};
  auto attempt = [&]() -> bool {  // everything that needs no rung
    // Where blocks lie must not hang on what is complete: all is.
    // Not while ranks may be waiting for this very thread.
    if (deterministic_ && clocks_.collectives_given().empty()) finish_all();
    {
      section const hold(mine);
      if ((out = warm(mine, r)) || (out = warm_anywhere(mine, r)) || (out = warm_anywhere(mine, alone))) return true;
    }
    if ((out = from_others(mine, alone, ~std::size_t{0}))) return true;
    why = grow(mine, r, out);
    if (why.what == driver::code::out_of_memory && r.size_class >= 0) why = grow(mine, alone, out);
    if (why.ok()) return true;
    if (why.what == driver::code::out_of_memory) return false;
    note(why);
    throw_refusal(why, "allocate", std::to_string(r.bytes) + " B on gpu:" + std::to_string(device_), "", r.at);
  };
  auto const found = [&](rungs where) {
    counts_.found_by(static_cast<std::size_t>(where));
    return out;
  };
  auto step = [&](rungs which, auto act) -> bool {
    std::string_view const name = ladder_rungs[static_cast<std::size_t>(which)];
    std::int64_t const from = base::now_ns();
    std::size_t const gave = act();
    auto const same = std::find_if(climbed.begin(), climbed.end(), [&](rung const& c) { return c.name == name; });
    rung& entry = same != climbed.end() ? *same : climbed.emplace_back(rung{name, 0, 0});
    entry.gave_bytes += gave;
    bool const got = out || (gave && attempt());
    entry.ns += base::now_ns() - from;
    return got && found(which);
  };
  auto const describe_failure = [&] {  // as it is now
    memory_report text = report();
    text.requested = r.bytes;
    text.rounded = r.rounded;
    text.ladder = climbed;
    if (why == no_addresses) text.ladder.push_back({"addresses", 0, 0});
    return text;
  };

  traffic::others others(traffic_);
  if (attempt()) return found(rungs::another_look);
  log_about const about{device_, r.home.id(), r.bytes};
  if (logs(runtime_, log_level::warning))
    log(log_level::warning, about, "memory is short: looking for what others hold, and for what is complete");
  // To release a segment waits for the work of all devices.
  // When some of it waits for a rank, that may be this very thread's.
  std::vector<clock::stamp> collectives;
  // once: a stamp of now would need a new fence at each look
  if (!space_.maps()) collectives = clocks_.collectives_given();
  auto const may_return = [&] {
    std::erase_if(collectives, [&](clock::stamp s) {
      auto const done = clocks_.poll(s);
      return done.ok() ? done.value : done.is.what == driver::code::lost;
    });
    return collectives.empty();
  };
  bool called_back = false;
  std::size_t const limit = counts_.limit(), most = limit ? limit : space_.info().total_memory;
  auto const came_free = [&] { return counted().active_bytes.all.freed; };  // so far
  for (int round = 0, rests = 0; round < most_rounds; ++round) {
    auto const free_before = came_free();
    if (step(rungs::pending, [&] {
          std::size_t bytes = 0;
          for (stream_memory* m : memories()) {
            (void)empty_outboxes(*m);
            bytes += poll_pending(*m);
          }
          return bytes;
        })) {
      return out;
    }
    if (step(rungs::of_others, [&] { return poll_others(mine, alone); })) return out;
    if (step(rungs::device_wait, [&] {
          std::size_t gave = 0;
          if (waits_ != options::wait_policy::never) out = behind_waits(mine, r, gave);
          return gave;
        })) {
      return out;
    }
    if (step(rungs::caches, [&] {
          std::size_t bytes = 0;
          for (stream_memory* m : memories()) bytes += empty_caches(*m);
          return bytes;
        })) {
      return out;
    }
    for (;;) {  // each round gives back about what is missing
      std::size_t gave = 0;
      if (step(rungs::pages, [&] {
            return gave = may_return() ? return_handles(r.size_class < 0 ? r.rounded : space_.page_bytes()) : 0;
          }))
        return out;
      if (!gave) break;
    }
    if (!std::exchange(called_back, true)) {
      if (step(rungs::callbacks, [&]() -> std::size_t { return callbacks_.call(describe_failure()) ? r.rounded : 0; }))
        return out;
    }
    std::size_t waited = 0;
    if (step(rungs::oldest_fence, [&] { return waited = wait_for_oldest(collectives) ? 1 : 0; })) return out;
    if (waited) continue;
    // What was asked on the way may have told of blocks that no rung looked at any more;
    // others may have given some back since.
    std::size_t settled = 0;
    for (stream_memory* m : memories()) {
      section const hold(*m);
      settled += settle(*m);
    }
    if (!settled) {
      bool const moved = others.any() || came_free() != free_before;
      if (!moved || r.rounded > most || ++rests > most_rests) break;
      machine_.moves_by_itself() ? base::sleep_ns(rest_ns) : base::yield_thread();
    }
    if (attempt()) return found(rungs::another_look);
  }
  throw_out_of_memory(r, describe_failure());
}

void device_allocator::throw_out_of_memory(request const& r, memory_report const& why) {
  if (logs(runtime_, log_level::error))
    log(log_level::error, log_about{device_, r.home.id(), r.bytes}, "out of memory: " + why.text());
  counts_.ran_out();
  observe::note(observe::action::out_of_memory, nullptr, r.bytes, r.home.id(), runtime_.id(), device_, r.at);
  throw out_of_memory(why, r.at);
}

std::size_t device_allocator::return_orphans() {
  std::size_t bytes = 0;
  std::vector<handle> all;
  all.swap(*orphans_.lock());
  std::erase_if(all, [&](handle const& h) {
    bool const gone = machine_.release(h.physical).ok();
    bytes += gone ? h.bytes : 0;
    return gone;
  });
  counts_.refund(bytes);
  auto orphans = orphans_.lock();
  if (orphans->empty()) {
    orphans->swap(all);
  } else {
    orphans->insert(orphans->end(), all.begin(), all.end());
  }
  return bytes;
}

std::size_t device_allocator::return_handles(std::size_t want) {
  std::size_t bytes = return_orphans();
  for (stream_memory* m : memories()) {
    if (bytes >= want) break;
    bytes += return_handles_of(*m, want - bytes);
  }
  return bytes;
}

std::size_t device_allocator::return_handles_of(stream_memory& m, std::size_t want) {
  traffic::flowing const going_back(traffic_);
  std::size_t bytes = 0;
  std::vector<released> again;
  {
    section const hold(m);
    again.swap(m.unusable);
  }
  for (released& g : again) bytes += release(m, g);
  // runs that go are free since now: complete, too, before one is chosen
  if (deterministic_ && clocks_.collectives_given().empty()) {
    {
      section const hold(m);
      while (slab* const s = m.small.any_empty()) return_run(m, *s);
    }
    finish(m);
  }
  for (bool more = true; more && bytes < want;) {
    clock::stamp to_ask;
    std::vector<released> going;
    {
      section const hold(m);
      while (slab* const s = m.small.any_empty()) return_run(m, *s);
      to_ask.stream = m.home.load()->id();
      auto found = m.pieces.reserve_handles(want - bytes, deterministic_ ? arena::first::lowest : arena::first::oldest,
                                            [&](std::uint64_t freed) {
                                              return clocks_.complete({to_ask.stream, freed});
                                            });
      going = std::move(found.all);
      to_ask.n = found.waits_for;
      for (released const& g : going) {
        for (handle const& h : g.handles) {  // segments: nobody may find the region while it goes
          if (h.physical == driver::memory_handle::none) g.in->set_pages(h, nullptr);
        }
      }
    }
    if (going.empty()) {
      if (!to_ask.n) break;
      auto const done = clocks_.poll(to_ask);
      if (!done.ok() || !done.value) break;
      continue;
    }
    for (released& g : going) {
      std::size_t const gave = release(m, g);
      bytes += gave;
      more &= gave > 0;
    }
  }
  return bytes;
}

// Unmaps what was reserved, and commits. Returns: bytes the driver has back.
std::size_t device_allocator::release(stream_memory& m, released& g) {
  if (g.handles.front().physical == driver::memory_handle::none) return release_segment(m, g);
  std::size_t gone = 0;  // so many of the handles, moved to the front
  mapped back;
  std::size_t bytes = 0;
  for (handle& h : g.handles) {
    if (!drop_ghosts(homed(m, h), 0)) continue;  // memory that is mapped anywhere does not go
    driver::status const s = machine_.unmap(h.at, h.bytes);
    note(s);
    if (!s.ok()) continue;
    bytes += h.bytes;
    release(h.physical, h.bytes, back);
    std::swap(h, g.handles[gone++]);
  }
  section const hold(m);
  for (handle const& h : std::span(g.handles).first(gone)) {
    g.in->set_pages(h, nullptr);
    m.handles.erase(h.at);
    note_unmapped(m, h);
  }
  counts_.refund(bytes - back.orphaned);
  if (gone == 0 && !(g.handles.front().readers & own_bit())) {
    try {
      m.unusable.push_back(std::move(g));
    } catch (...) {}  // no memory: its place stays taken until the end
    return 0;
  }
  m.pieces.release_done(*g.place);
  return bytes - back.orphaned;
}

// As release(). All that knows a segment by its address forgets it first:
// once the driver has it, another thread may be given one there.
std::size_t device_allocator::release_segment(stream_memory& m, released& g) {
  handle const h = g.handles.front();
  address_space::segment whole;
  decltype(m.handles)::node_type its_place;
  {
    section const hold(m);
    whole = space_.set_aside(*g.in);
    its_place = m.handles.extract(h.at);
    tell_mapped(m, h, observe::action::unmap);
  }
  driver::status const s = machine_.release_segment(device_, h.at);
  note(s);
  section const hold(m);
  if (!s.ok()) {
    space_.put_back(std::move(whole));
    g.in->set_pages(h, &m.handles.insert(std::move(its_place)).position->second);
    tell_mapped(m, h, observe::action::map);
    m.pieces.release_done(*g.place);
    return 0;
  }
  counts_.handle_gone();
  m.counts.mapped(-static_cast<std::int64_t>(h.bytes));
  counts_.refund(h.bytes);
  m.pieces.release_done(*g.place);
  m.pieces.drop_region(*g.in);
  space_.drop(std::move(whole));
  return h.bytes;
}

std::size_t device_allocator::empty_cache() {
  if (lost() || process_was_forked()) return 0;
  base::unpromised const own_affair(runtime_.witness());
  std::size_t bytes = 0;
  auto const await = [&](clock::stamp s) {
    return clocks_.complete(s) || clocks_.synchronize(s).ok();
  };
  for (stream_memory* m : memories()) {
    empty_caches(*m);
    // so that all of it is settled at once, in one order
    if (deterministic_ && clocks_.collectives_given().empty()) finish(*m);
    clock::stamp newest;
    for (bool more = true; more;) {
      std::vector<clock::stamp> fronts;
      {
        section const hold(*m);
        settle(*m);
        fronts = m->pending.fronts();
      }
      more = !fronts.empty();
      for (clock::stamp s : fronts) more &= await(s);
    }
    {
      section const hold(*m);
      newest.stream = m->home.load()->id();
      shed_cells(*m);
      m->pieces.each_free([&](piece const& p) {
        if (p.bytes >= p.in->page_bytes) newest.n = std::max(newest.n, p.freed);
      });
    }
    if (newest.n) await(newest);
    bytes += return_handles_of(*m, ~std::size_t{0});
  }
  bytes += return_orphans();
  // what comes next is another program
  if (counts_.reserved() < enough_to_judge * space_.page_bytes()) past_bound_.set(false);
  return bytes;
}

}  // namespace weir::memory
