// The checks: uses at enqueue, blocks at allocation and free, pages at unmap.
// Threads: as race_judge.h says.
#include "simulator/checker/race_judge.h"

#include <set>

namespace weir::driver::check {
namespace {
constexpr shadow::offset everywhere = ~shadow::offset{0};
using runs_a_listener = base::thread_pointer<struct listener_of_a_thread>;  // not null: this thread does
}  // namespace

race_judge::locked::~locked() {
  if (of_.all_.to_tell.empty()) [[likely]]
    return;
  auto const news = std::exchange(of_.all_.to_tell, {});
  auto listener = of_.all_.listener;
  hold_.unlock();
  if (!listener)
    return;
  // A listener may itself reveal a race.
  void* const outer = std::exchange(runs_a_listener::value, this);
  for (finding const& f : news)
    (*listener)(f);
  runs_a_listener::value = outer;
  hold_.lock();
  listener.reset();
  of_.told_.notify_all();
}

void race_judge::listen(std::function<void(finding const&)> f) {
  std::shared_ptr<std::function<void(finding const&)> const> next;
  if (f)
    next = std::make_shared<std::function<void(finding const&)> const>(std::move(f));
  std::shared_ptr<std::function<void(finding const&)> const> old;  // ends without the lock
  base::unique_lock hold(lock_);
  old = std::exchange(all_.listener, std::move(next));
  if (runs_a_listener::value)
    return;
  // Copies come and go under the lock.
  told_.wait(hold, [&] { return old.use_count() <= 1; });
}

epoch knowledge::used(stream_id s, moment const& before, std::span<range const> ranges, base::site site, trust t,
                      captured_graph const* of) {
  epoch const now = order.enqueued(s);
  for (range const& r : ranges) {
    if (r.bytes == 0)
      continue;
    ++uses;
    access_ref const a = made(r.writes ? action::writes : action::reads, now, site, r.at, r.bytes);
    if (of)
      a->of_launch = true, a->over = of->over;
    a->moves_a_pool = base::this_call().moves_a_pool;
    bool gone = false;
    for (auto b = blocks.find(r.at, r.bytes); b != blocks.end() && b->first < r.at + r.bytes; ++b) {
      if (b->second.live || a->moves_a_pool || (of && b->second.of_graph))
        continue;
      if (!std::exchange(gone, true))
        report_use_after_free(*a, b);
    }
    if (gone)
      continue;  // a use after free; adding it would also clash with the next owner
    if (watched) {
      block_use u{0, 0, now, site, a->how};
      u.over = a->over;
      exact_use_meets(r.at, r.bytes, std::move(u), before.seen, a->moves_a_pool ? trust::known : t);
    }
    auto const past = [&](access const& old) {
      return old.is_over() || old.all_epochs([&](epoch e) { return order.ordered(e, s, before.seen, t); });
    };
    if (r.writes && !reading.empty())
      drop_sources(r.at, r.bytes);
    struct clash {
      access_ref old;
      address from, to;
    };
    std::vector<clash> clashes;  // merged per use: memory is searched page by page
    for (part const& p : memory.find(r.at, r.bytes)) {
      p.of->uses.add(p.from, p.to, a, past, [&](access const& old) {
        address const to = p.at + (p.to - p.from);
        auto const known =
            std::find_if(clashes.begin(), clashes.end(), [&](clash const& c) { return c.old.get() == &old; });
        if (known == clashes.end())
          clashes.push_back({access_ref(const_cast<access*>(&old)), p.at, to});
        else
          known->from = std::min(known->from, p.at), known->to = std::max(known->to, to);
      });
      ++added;
    }
    for (clash const& c : clashes) {
      address const from = std::max(c.from, c.old->at), to = std::min(c.to, c.old->at + c.old->bytes);
      if (from < to)
        report_race(*c.old, *a, from, to - from);
      else
        report_race(*c.old, *a, c.from, c.to - c.from);  // the same memory through another address
    }
  }
  if (added >= sweep_at || order.may_forget())
    sweep();
  return now;
}

// An allocation counts as a write of the block. The use before it is judged by what weir knew.
void knowledge::allocated(stream_id home, int device, address at, std::size_t bytes, source_location where) {
  if (bytes == 0)
    return;
  recording* const in = captured.empty() || !home ? nullptr : captured.of(home);
  moment const now = home ? order.now(home) : moment{};
  auto const [b, held] =
      blocks.add(at, {.bytes = bytes, .device = device, .home = home, .of_graph = in != nullptr, .allocated = where});
  if (held)
    report_handed_out_early({}, b, held);
  b->second.quiet = quiet.name_block(where);
  if (in) {
    allocated_inside(*in, home, b, {"allocate", where});
    home = 0;  // a launch may be anywhere: earlier use must be complete
  }
  if (watched && home)
    meets(b, {0, bytes, now.at, {"allocate", where}, action::allocates}, now.seen, trust::promised);
  access_ref const a = made(action::allocates, now.at, {"allocate", where}, at, bytes);
  auto const past = [&](access const& old) {
    // Before the call ends the block may be saved with its pool: nothing needs the bytes that it has then.
    if (old.moves_a_pool && old.how == action::reads)
      return true;
    return old.is_over() || old.all_epochs([&](epoch e) {
      return home ? order.ordered(e, home, now.seen, trust::known) : order.complete(e, trust::known);
    });
  };
  for (part const& p : memory.find(at, bytes)) {
    if (in) {  // outside, the allocation itself uses nothing, and launches are of graphs that share the memory
      p.of->uses.each(p.from, p.to, [&](access const& old) {
        if (old.of_launch)
          return true;
        if (!past(old))
          report_handed_out_early(old, b, std::nullopt);
        return false;
      });
      continue;
    }
    p.of->uses.add(p.from, p.to, a, past, [&](access const& old) { report_handed_out_early(old, b, std::nullopt); });
  }
}

// Forgets uses that are complete or ordered before the free. The next owner comes after `behind`.
void knowledge::freed(address at, std::size_t bytes, std::span<stream_id const> behind, source_location where) {
  if (bytes == 0)
    return;
  auto const b = blocks.find(at, bytes);
  if (b == blocks.end() || b->first != at)
    return;  // allocated before the checker existed
  b->second.live = false;
  b->second.freed = where;
  if (!captured.empty() && freed_inside(b, behind, {"deallocate", where}))
    return;
  std::vector<moment> ends;
  for (stream_id const s : behind)
    ends.push_back(order.now(s));
  access_ref a;
  if (!ends.empty()) {
    a = made(action::frees, ends.front().at, {"deallocate", where}, at, bytes);
    for (std::size_t i = 1; i < ends.size(); ++i)
      a->also.push_back(ends[i].at);
  }
  auto const is_past = [&](epoch e) {
    return order.complete(e, trust::promised) || std::any_of(ends.begin(), ends.end(), [&](moment const& m) {
             return order.ordered(e, m.at.stream, m.seen, trust::promised);
           });
  };
  freed_beside(b, behind, is_past, a.get());
  std::set<access const*> told, stamped;
  for (part const& p : memory.find(at, bytes)) {
    p.of->uses.each(p.from, p.to, [&](access const& old) {
      if (old.is_over() || old.all_epochs(is_past))
        return false;
      if (b->second.of_graph && old.of_launch)
        return true;  // the memory stays with the graph
      if (old.moves_a_pool)
        return true;  // no block gets the memory before the copy is complete
      // The next owner comes after it, as after the free.
      if (old.stream == b->second.home || b->second.marked.contains(old.stream)) {
        if (a && stamped.insert(&old).second)
          a->also.push_back({old.stream, old.n});
        return true;
      }
      if (told.insert(&old).second)
        report_freed_in_use(old, behind, b);
      return false;
    });
    if (a && !b->second.of_graph)  // the free, as a write, takes the place of the uses that were kept
      p.of->uses.add(
          p.from, p.to, a, [](access const&) { return false; }, [](access const&) {});
  }
}

// The new stream must come after all uses so far. The handover itself is no use.
void knowledge::handed_over(stream_id to, address at, std::size_t bytes, source_location where) {
  auto const b = blocks.find(at, bytes);
  if (bytes == 0 || b == blocks.end() || b->first != at)
    return;
  b->second.home = to;
  moment const now = order.now(to);
  access_ref const a = made(action::takes_over, now.at, {"set_stream", where}, at, bytes);
  meets(b, {0, b->second.bytes, now.at, a->site, action::takes_over}, now.seen, trust::known);
  std::set<access const*> told;
  for (part const& p : memory.find(at, bytes))
    p.of->uses.each(p.from, p.to, [&](access const& old) {
      bool const past = old.all_epochs([&](epoch e) { return order.ordered(e, to, now.seen, trust::known); });
      if (!past && told.insert(&old).second)
        report_race(old, *a, p.at, p.to - p.from);
      return true;
    });
}

// Counts the operations that the wait covers beyond the last use of the memory.
void knowledge::wait_inserted(stream_id waiter, stream_id other, address at, std::size_t bytes) {
  std::uint64_t const covered = order.now(waiter).seen.known->of(other);
  std::uint64_t last = 0;
  for (part const& p : memory.find(at, bytes))
    p.of->uses.each(p.from, p.to, [&](access const& a) {
      (void)a.all_epochs([&](epoch e) {  // visits each
        if (e.stream == other && e.n <= covered)
          last = std::max(last, e.n);
        return true;
      });
      return true;
    });
  ++over.waits;
  if (last && covered > last)
    over.operations += covered - last;
}

void knowledge::unmapped(places::region const& gone, address at, base::site site) {
  std::set<access const*> told;
  gone.shows->uses.each(0, gone.bytes, [&](access const& a) {
    bool const through_here = a.at < at + gone.bytes && at < a.at + a.bytes;
    bool const over_now = a.is_over() || a.all_epochs([&](epoch e) { return order.complete(e, trust::known); });
    if (through_here && !over_now && told.insert(&a).second)
      report_unmapped(a, site, at, gone.bytes);
    return !over_now && !through_here;
  });
  unmapped_beside(at, gone.bytes, site);
  blocks.forget(at, gone.bytes);
}

// Only if the bytes are final: no pending work before the copy may still write them.
void knowledge::copies_from(epoch copy, moment const& before, address at, std::size_t bytes, base::site site) {
  if (bytes == 0 || !memory.is_pinned(at, bytes))
    return;
  for (auto const& [s, last] : host_functions)
    if (!order.complete(last, trust::known) && order.ordered(last, copy.stream, before.seen, trust::known))
      return;
  bool to_be_written = false;
  for (part const& p : memory.find(at, bytes))
    p.of->uses.each(p.from, p.to, [&](access const& a) {
      bool const device_writes =
          a.how == action::writes && !a.all_epochs([&](epoch e) { return order.complete(e, trust::known); });
      to_be_written |= device_writes;
      return true;
    });
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b)
    for (block_use const& u : b->second.uses)
      to_be_written |= u.writes() && !u.is_over() && !order.complete(u.at, trust::known);
  if (!to_be_written)
    reading.add({copy, at, bytes, hash_behind_shields(at, bytes), site});
}

// A host function may write anything: sources of copies before it are no longer checked.
void knowledge::host_function(epoch e) {
  host_functions[e.stream] = e;
  moment const now = order.now(e.stream);
  reading.forget([&](source const& s) { return order.ordered(s.copy, e.stream, now.seen, trust::known); });
}

std::vector<access_ref> knowledge::host_uses(address at, std::size_t bytes, host_use how, base::site site) {
  std::vector<access_ref> early;
  if (bytes == 0)
    return early;
  for (part const& p : memory.find(at, bytes))
    p.of->uses.each(p.from, p.to, [&](access& a) {
      bool const of_work = a.how == action::reads || a.how == action::writes;
      bool const clashes = a.writes() || how == host_use::writes;
      bool const covers_all = a.at <= at && at + bytes <= a.at + a.bytes;
      if (!of_work || !clashes || order.complete({a.stream, a.n}, trust::promised))
        return true;
      if (how == host_use::takes_span && !covers_all)
        return true;  // the host may read other bytes than this work writes
      if (std::none_of(early.begin(), early.end(), [&](access_ref const& e) { return e.get() == &a; }))
        early.emplace_back(&a);
      return true;
    });
  for (access_ref const& a : early) {
    address const from = std::max(at, a->at), to = std::min(at + bytes, a->at + a->bytes);
    std::string const where = text_of(site);
    report_early_host(*a, where, site.at.file_name() ? text_of(site.at) : "it", site.at, key_of_call(site), from,
                      to - from, how == host_use::writes ? "writes" : "reads");
  }
  host_uses_beside(at, bytes, how, site);
  return early;
}

// A fault during the hash would need the lock that is held here.
std::uint64_t knowledge::hash_behind_shields(address at, std::size_t bytes) {
  std::uint64_t hash = 0;
  auto const look = [&] { hash = hash_of(reinterpret_cast<void const*>(at), bytes); };
  if (machine)
    machine->look_behind_shields({at, bytes}, look);
  else
    look();
  return hash;
}

void knowledge::look_at_sources() {
  if (reading.empty()) [[likely]]
    return;
  reading.settle([&](epoch e) { return order.complete(e, trust::known); },
                 [&](address at, std::size_t bytes) { return hash_behind_shields(at, bytes); },
                 [&](source const& s) { report_changed(s); });
}

void knowledge::drop_sources(address at, std::size_t bytes) {
  reading.forget([&](source const& s) { return s.at < at + bytes && at < s.at + s.bytes; });
}

// weir keeps a promise from what it already knew: from now on the program may rely on that order.
void knowledge::relied_on(stream_id waiter, stream_id other) {
  order.promise(waiter, other);
}

void knowledge::stream_ended(stream_id s) {
  order.ended(s);
  if (order.may_forget())
    sweep();
}

// Forgets what is complete, and the ended streams that nothing is left of.
void knowledge::sweep() {
  std::size_t left = 0;
  std::vector<bool> is_used(order.streams() + 1);
  auto const refer = [&](access const& a) {
    (void)a.all_epochs([&](epoch e) {  // visits each
      is_used[e.stream] = true;
      return true;
    });
  };
  memory.each_physical([&](physical& p) {
    p.uses.each(0, everywhere, [&](access const& a) {
      bool const stays = !a.is_over() && !a.all_epochs([&](epoch e) { return order.complete(e, trust::promised); });
      if (stays)
        refer(a);
      return stays;
    });
    left += p.uses.size();
  });
  std::size_t all_blocks = 0;
  blocks.each([&](block& b) {
    b.uses.forget([&](block_use const& u) { return is_gone(u); });
    for (block_use const& u : b.uses)
      is_used[u.at.stream] = true;
    left += b.uses.size();
    ++all_blocks;
    if (!b.live)
      return;
    auto const first_over =
        std::remove_if(b.marked.begin(), b.marked.end(), [&](stream_id s) { return order.is_over(s); });
    b.marked.erase(first_over, b.marked.end());
    for (stream_id const s : b.marked)
      is_used[s] = true;
    is_used[b.home] = is_used[b.user] = true;
  });
  for (shielded const& s : shields)
    refer(*s.use);
  std::erase_if(host_functions, [&](auto const& one) { return order.complete(one.second, trust::known); });
  for (auto const& [s, last] : host_functions)
    is_used[s] = true;
  reading.forget([&](source const& s) {
    is_used[s.copy.stream] = true;
    return false;
  });
  if (captured.empty())
    order.forget_ended([&](stream_id s) { return is_used[s]; }, left + all_blocks);
  else
    order.forget_later(left + all_blocks);  // a capture may refer to any
  added = 0;
  sweep_at = std::max<std::size_t>(4096, 2 * left);
}

}  // namespace weir::driver::check
