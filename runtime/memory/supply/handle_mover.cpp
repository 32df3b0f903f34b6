// Aliases: a plan is cleared of them, a released handle loses its own, and a moved handle leaves one.
// Threads: as handle_mover.h.
#include "runtime/memory/supply/handle_mover.h"

#include <algorithm>

namespace weir::memory {

namespace {
// What has arrived inside a plan is not missing any more.
void leave_out(growth_plan& g, std::map<address, aliased_handle> const& arrived) {
  std::vector<address_range> missing;
  g.missing_bytes = 0;
  auto const add = [&](address from, address to) {
    if (from >= to)
      return;
    missing.push_back({from, to - from});
    g.missing_bytes += to - from;
  };
  for (auto [at, bytes] : g.missing) {
    address const end = at + bytes;
    auto h = arrived.lower_bound(at);
    // One that begins before the range may reach into it.
    if (h != arrived.begin() && std::prev(h)->second.at + std::prev(h)->second.bytes > at)
      --h;
    for (; h != arrived.end() && h->first < end; ++h) {
      add(at, h->first);
      at = h->first + h->second.bytes;
    }
    add(at, end);
  }
  g.missing = std::move(missing);
}
}  // namespace

struct handle_mover::onlooker {
  handle_mover& mover;
  session& in;

  // Requires: the lock of the aliases. Other heaps' handles would need their locks.
  static alias_view::outcome judge(void const* context, alias const& g, address lo, address hi) {
    auto const& [mover, in] = *static_cast<onlooker const*>(context);
    stream_heap const& mine = in.heap();
    address const now_at = g.of->at;  // where the handle has moved to
    bool const lies_outside = now_at < lo || now_at >= hi;
    if (g.granted && !mine.readers() && !mine.rules().pages_stay && lies_outside) {
      region const& r = *mover.of_.space.find(reinterpret_cast<void const*>(now_at));
      bool const is_mine = r.owner.load() == &mine && r.page(now_at) == g.of;
      if (is_mine && g.of->readers == mover.of_.own_bit() && in.free_since(*g.of))
        return alias_view::outcome::swaps;
    }
    if (g.stuck || !mover.of_.clocks.complete(g.last))
      return alias_view::outcome::stays;
    return alias_view::outcome::unmaps;
  }
};

bool handle_mover::plan(session& mine, std::size_t bytes, std::size_t alignment, arena::zone part, growth_plan& g,
                        bool thorough) {
  auto const all = aliases_.look();
  onlooker const subject{*this, mine};
  return mine.plan(bytes, alignment, part, g, {all->empty() ? nullptr : &*all, &subject, onlooker::judge}, thorough);
}

driver::status handle_mover::clear_aliases(stream_heap& mine, growth_plan& g, physical_memory::batch& out) {
  for (alias* const s : g.aliases) {
    // The handle has come back, without a driver call.
    if (swap_with_alias(mine, *s, out))
      continue;
    // The ladder plans again, with what is known by then.
    if (!of_.clocks.complete(s->last))
      return {driver::code::out_of_memory};
    if (driver::status const gone = of_.machine.unmap(s->at, s->bytes); !gone.ok()) {
      of_.note_status(gone);
      aliases_.keep_stuck(*s);
      return gone.what == driver::code::lost ? gone : driver::status{driver::code::out_of_memory};
    }
    aliases_.forget(s->at);
  }
  if (!out.arrived.empty())
    leave_out(g, out.arrived);
  return {};
}

// False: the handle is in use or is being moved elsewhere, or nothing orders its last use before its next.
bool handle_mover::swap_with_alias(stream_heap& mine, alias& g, physical_memory::batch& out) {
  if (!g.granted || mine.readers())
    return false;  // an alias is open to its own device alone
  address const at = aliases_.home(g);
  stream_heap& from = *of_.space.find(reinterpret_cast<void const*>(at))->owner.load();
  // The swap changes no pool's charge, so the handle stays in its pool.
  if (from.rules().pages_stay || &from.pool() != &mine.pool())
    return false;
  session in(from);
  if (!in.has_handle(g.of, at) || g.of->readers != of_.own_bit())
    return false;
  auto const freed = in.free_since(*g.of);
  if (!freed || !of_.ordered_or_complete(mine.home(), {from.home().id(), *freed}))
    return false;
  memory_pool &its = from.pool(), &here = mine.pool();
  // The heap may serve another pool by now.
  if (its.rules().pages_stay || &its != &here)
    return false;
  released const place = in.reserve_around(*g.of);  // the last thing that may throw
  (void)detach(in, place, &g, g.at, out);
  return true;
}

// Requires: the range at `to` is reserved.
aliased_handle const& handle_mover::detach(session& from, released const& place, alias* back, address to,
                                           physical_memory::batch& out) {
  auto [node, last] = from.detach(place);  // last: use of the handle at its old address
  aliased_handle& h = node.mapped();
  if (back)
    aliases_.swap(*back, last);
  else
    aliases_.leave_for(h, to, last);
  node.key() = to;
  out.arrived.insert(std::move(node));
  // Another stream's last use is complete, or ordered before the next work of this one.
  if (last.stream == out.home->id())
    out.arrived_freed = std::max(out.arrived_freed, last.n);
  else if (!of_.clocks.complete(last))
    out.arrived_freed = std::max(out.arrived_freed, out.home->now().n);
  from.vacated(place);
  return h;
}

driver::status handle_mover::remap(stream_heap& from, released& victim, address to, physical_memory::batch& out) {
  handle const h = victim.handles.front();
  driver::status s{driver::code::out_of_memory};
  // Host memory for the alias that remains: the old place if the handle moves, and the new one if the driver refuses
  // both access and the unmap.
  bool expects_old = false, expects_new = false, is_mapped = false;
  try {
    aliases_.expect(h.at);
    expects_old = true;
    aliases_.expect(to);
    expects_new = true;
    s = of_.machine.map(to, h.bytes, h.physical);
    is_mapped = s.ok();
    if (is_mapped)
      s = of_.machine.grant(to, h.bytes, of_.device);
    if (is_mapped && !s.ok())
      is_mapped = !of_.machine.unmap(to, h.bytes).ok();
  } catch (std::bad_alloc const&) {}  // without that host memory nothing moves
  aliased_handle const* moved = nullptr;
  {
    session in(from);
    if (s.ok()) {
      aliases_.forget(to);
      moved = &detach(in, victim, nullptr, to, out);  // the old place becomes the alias
    } else {
      if (expects_old)
        aliases_.forget(h.at);
      // The driver keeps it mapped at `to`, without access.
      if (is_mapped)
        in.leave_alias(aliases_, h.at, to);
      else if (expects_new)
        aliases_.forget(to);
      in.release(victim);
    }
  }
  of_.note_status(s);
  if (moved && !from.rules().places_stay)
    (void)drop_aliases(*moved, alias_table::most);
  return s;
}

bool handle_mover::drop_aliases(aliased_handle const& h, int spared) try {
  for (;;) {
    alias_table::place const g = aliases_.oldest(h, spared);
    // No more than `spared` are left.
    if (!g.bytes)
      return true;
    stream_heap& in = *of_.space.find(reinterpret_cast<void const*>(g.at))->owner.load();
    released place;
    {
      session its(in);
      if (!aliases_.is_of(h, g.at))
        continue;  // another plan has taken it meanwhile
      place = its.reserve_unmapped(g.at, g.bytes);
    }
    if (!place.place)
      return false;  // another plan has reserved it
    // Not ready: as long as work may use the alias.
    driver::status s{driver::code::not_ready};
    if (of_.is_complete(g.last))
      s = of_.machine.unmap(g.at, g.bytes);
    if (s.ok())
      aliases_.forget(g.at);
    else if (s.what != driver::code::not_ready)
      of_.note_status(s);
    session(in).release(place);
    if (!s.ok())
      return false;
  }
} catch (std::bad_alloc const&) {
  return false;
}

void handle_mover::validate(excluded const& in, std::vector<std::string>& wrong, std::string const& subject) const {
  auto const say = [&](char const* what, address at) {
    wrong.push_back(subject + ": " + what + " at " + std::to_string(at));
  };
  auto const all = aliases_.look();
  alias_view const sight{&*all};
  in.each_block([&](heap_block const& p) {
    if (p.is == state::reserved)
      return;
    for (auto i = sight.from(p.at); i != all->end() && i->first < p.end(); ++i) {
      if (p.is != state::unmapped || i->first < p.at || i->second.end() > p.end())
        say("an alias does not lie inside one unmapped block", i->first);
    }
  });
  in.each_handle([&](aliased_handle const& h) {
    int count = 0;
    for (alias const* g = h.aliases; g; g = g->next, ++count) {
      auto const found = all->find(g->at);
      if (found == all->end() || &found->second != g || g->of != &h || g->at == h.at || g->bytes != h.bytes)
        say("an alias is not its handle's, at the handle's own address, or of another size", g->at);
    }
    if (count != h.alias_count.get())
      say("a handle has another number of aliases than it says", h.at);
  });
}

}  // namespace weir::memory
