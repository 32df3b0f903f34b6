// The judgement of launches past weir, whose uses are known by their pointers: against each other, against exact uses,
// and against the end of their blocks.
// Threads: as race_judge.h says.
#include "simulator/checker/race_judge.h"

#include <set>

namespace weir::driver::check {
namespace {

using pointers = boost::container::small_vector<seen_pointer, 16>;

// By address; of equal ones, direct ones first. Equal ones of one kind are merged.
pointers in_order(std::span<seen_pointer const> given) {
  pointers all(given.begin(), given.end());
  std::ranges::sort(all, [](seen_pointer const& a, seen_pointer const& b) {
    return a.at != b.at ? a.at < b.at : a.in_structure < b.in_structure;
  });
  std::size_t kept = 0;
  for (seen_pointer const& p : all) {
    bool const is_same = kept && all[kept - 1].at == p.at;
    if (is_same && all[kept - 1].in_structure == p.in_structure)
      all[kept - 1].writes |= p.writes;
    else if (!is_same || (p.writes && !all[kept - 1].writes))
      all[kept++] = p;
  }
  all.resize(kept);
  return all;
}

// A stale pointer of a structure must not hide bytes of a direct one.
address next_pointer(pointers const& all, std::size_t i) {
  for (std::size_t k = i + 1; k < all.size(); ++k)
    if (all[k].at > all[i].at && (all[i].in_structure || !all[k].in_structure))
      return all[k].at;
  return ~address{0};
}

// The launch may have got it as the end of the block in front: kernel(first, last). Then the parameter before it points
// into that block, and reads or writes alike.
bool may_be_an_end(blocks& all, std::span<seen_pointer const> given, address at) {
  auto const before = all.find(at - 1, 1);
  if (before == all.end() || before->first + before->second.bytes != at)
    return false;
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (given[i].at != at)
      continue;
    bool const is_last =
        i > 0 && given[i - 1].at >= before->first && given[i - 1].at < at && given[i - 1].writes == given[i].writes;
    if (!is_last)
      return false;
  }
  return true;
}

// Of each stream the gravest use, and of equal ones the last.
class gravest {
 public:
  struct one {
    block_use const* use;
    verdict how;
  };
  void add(block_use const& u, verdict how) {
    auto const same = std::ranges::find_if(all_, [&](one const& o) { return o.use->at.stream == u.at.stream; });
    if (same == all_.end())
      all_.push_back({&u, how});
    else if (how > same->how || (how == same->how && u.at.n > same->use->at.n))
      *same = {&u, how};
  }
  auto begin() const noexcept { return all_.begin(); }
  auto end() const noexcept { return all_.end(); }

 private:
  boost::container::small_vector<one, 4> all_;
};

verdict unless_vague(block_use const& u) noexcept {
  return u.known == grain::structure ? verdict::possible : verdict::certain;
}

}  // namespace

knowledge::reaches knowledge::reached_by(std::span<seen_pointer const> all) {
  pointers const sorted = in_order(all);
  reaches reached;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    seen_pointer const& p = sorted[i];
    auto const b = blocks.find(p.at, 1);
    if (b == blocks.end()) {
      unknown_pointers += !p.in_structure;  // a number looks like a stale pointer
      continue;
    }
    bool const may_be_end = !p.in_structure && p.at == b->first && may_be_an_end(blocks, all, p.at);
    bool const is_vague = p.in_structure || may_be_end;
    std::size_t const from = p.at - b->first,
                      to = std::min(b->second.bytes, static_cast<std::size_t>(next_pointer(sorted, i) - b->first));
    reached.push_back(
        {b, from, to, p.writes, is_vague ? grain::structure : grain::pointer, p.writes && !p.is_typed, may_be_end});
  }
  return reached;
}

void knowledge::given(epoch now, views const& seen, std::span<seen_pointer const> all, base::site site, bool is_quiet,
                      captured_graph const* of) {
  for (reach const& r : reached_by(all)) {
    ++uses;
    block_use u{r.from,           r.to,        now, site, r.writes ? action::writes : action::reads, r.known, is_quiet,
                r.may_read_alone, r.may_be_end};
    if (r.writes && !reading.empty())
      drop_sources(r.b->first + r.from, r.to - r.from);
    if (of)
      u.over = of->over;
    if (r.b->second.live || (of && r.b->second.of_graph)) {
      meets(r.b, std::move(u), seen, trust::promised);
      continue;
    }
    if (r.known == grain::structure)
      continue;  // a stale one
    if (is_quiet || r.b->second.quiet)
      ++suppressed;
    else
      report_use_after_free(access_of(r.b->first, u), r.b);
  }
  if (added >= sweep_at || order.may_forget())
    sweep();
}

access access_of(address block, block_use const& u) {
  access a;
  a.how = u.how;
  a.known = u.known;
  a.may_read_alone = u.may_read_alone;
  a.may_be_end = u.may_be_end;
  a.stream = u.at.stream;
  a.n = u.at.n;
  a.site = u.site;
  a.at = block + u.from;
  a.bytes = u.to - u.from;
  return a;
}

void knowledge::meets(blocks::map::iterator b, block_use u, views const& seen, trust t) {
  gravest clashing;
  for (block_use const& old : b->second.uses) {
    verdict const how = old.at.stream == u.at.stream ? verdict::none : verdict_on(old, u);
    if (how != verdict::none && !old.is_over() && !order.ordered(old.at, u.at.stream, seen, t))
      clashing.add(old, how);
  }
  for (auto const& [old, how] : clashing)
    report_clash(b, *old, u, how);
  if (u.how == action::frees || u.how == action::takes_over)
    return;
  stream_id const s = u.at.stream;
  std::size_t const before = b->second.uses.size();
  forgotten += b->second.uses.keep(
      std::move(u), [&](block_use const& old) { return order.ordered(old.at, s, seen, trust::promised); },
      [&](block_use const& old) { return is_gone(old); });
  added += b->second.uses.size() > before;
}

bool knowledge::is_gone(block_use const& u) const {
  return u.is_over() || order.complete(u.at, trust::promised);
}

void knowledge::exact_use_meets(address at, std::size_t bytes, block_use u, views const& seen, trust t) {
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b) {
    if (!b->second.live)
      continue;
    u.from = std::max(at, b->first) - b->first;
    u.to = std::min(at + bytes, b->first + b->second.bytes) - b->first;
    meets(b, u, seen, t);
  }
}

void knowledge::report_clash(blocks::map::iterator b, block_use const& before, block_use const& now, verdict how) {
  if (before.quiet || now.quiet || b->second.quiet) {
    ++suppressed;
    return;
  }
  auto const what = how == verdict::certain ? finding::kind::race : finding::kind::possible_race;
  std::size_t& index =
      told_pairs.of(what, before.site, order.life_of(before.at.stream), now.site, order.life_of(now.at.stream));
  if (index != pairs::none) {
    ++found[index].times;
    return;
  }
  std::size_t const from = std::max(before.from, now.from), to = std::min(before.to, now.to);
  index = report_race(access_of(b->first, before), access_of(b->first, now), b->first + from, to - from, what);
}

void knowledge::freed_beside(blocks::map::iterator b, std::span<stream_id const> behind,
                             std::function<bool(epoch)> const& is_past, access* next) {
  gravest unordered;
  for (block_use const& u : b->second.uses) {
    if (u.known == grain::exact || u.is_over() || is_past(u.at))
      continue;
    bool const is_waited_for = u.at.stream == b->second.home || b->second.marked.contains(u.at.stream);
    if (!is_waited_for)
      unordered.add(u, unless_vague(u));
    else if (next)
      next->also.push_back(u.at);
  }
  for (auto const& [use, how] : unordered) {
    if (use->quiet || b->second.quiet)
      ++suppressed;
    else
      report_freed_in_use(access_of(b->first, *use), behind, b);
  }
  b->second.uses.clear();
}

void knowledge::host_uses_beside(address at, std::size_t bytes, host_use how, base::site site) {
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b) {
    std::size_t const from = std::max(at, b->first) - b->first,
                      to = std::min(at + bytes, b->first + b->second.bytes) - b->first;
    block_use const host{from, to, {}, site, how == host_use::writes ? action::writes : action::reads};
    gravest early;
    for (block_use const& u : b->second.uses) {
      verdict const is = verdict_on(u, host);
      // Of a span the host may read other bytes than this work writes.
      bool const is_part_of_span = how == host_use::takes_span && (u.from > from || u.to < to);
      if (is != verdict::none && !is_part_of_span && !is_gone(u))
        early.add(u, is);
    }
    for (auto const& [use, is] : early)
      report_clash_with_host(b, *use, host, is);
  }
}

void knowledge::report_clash_with_host(blocks::map::iterator b, block_use const& u, block_use const& host,
                                       verdict how) {
  if (u.quiet || b->second.quiet) {
    ++suppressed;
    return;
  }
  std::size_t const from = std::max(host.from, u.from), to = std::min(host.to, u.to);
  source_location const at = host.site.at;
  report_early_host(access_of(b->first, u), text_of(host.site), at.file_name() ? text_of(at) : "it", at,
                    key_of_call(host.site), b->first + from, to - from, host.writes() ? "writes" : "reads",
                    how == verdict::certain ? finding::kind::early_host : finding::kind::possible_race);
}

void knowledge::unmapped_beside(address at, std::size_t bytes, base::site site) {
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b) {
    std::size_t const from = at > b->first ? at - b->first : 0, to = at + bytes - b->first;
    gravest unfinished;
    for (block_use const& u : b->second.uses)
      if (u.known != grain::exact && u.meets(from, to) && !u.is_over() && !order.complete(u.at, trust::known))
        unfinished.add(u, unless_vague(u));
    for (auto const& [use, how] : unfinished) {
      if (use->quiet || b->second.quiet)
        ++suppressed;
      else
        report_unmapped(access_of(b->first, *use), site, at, bytes);
    }
  }
}

// Memory of the program ------------------------------------------------------------------------------------

// cudaMallocAsync gives memory to its stream, in order: work of other streams must come after.
void knowledge::allocated_by_program(stream_id on, int device, address at, std::size_t bytes, base::site site) {
  if (bytes == 0)
    return;
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b)
    if (b->second.live && !b->second.told)
      return;  // weir's memory
  memory.drop_told(at, bytes);
  (void)memory.map_told(at, bytes, device);
  block made{.bytes = bytes, .device = device, .home = on, .allocated = site.at, .told = true};
  made.quiet = quiet.name_block(site.at);
  auto const b = blocks.add(at, std::move(made)).first;
  if (!on)
    return;
  moment const before = order.now(on);
  meets(b, {0, bytes, order.enqueued(on), site, action::allocates}, before.seen, trust::promised);
}

void knowledge::freed_by_program(stream_id on, address at, base::site site) {
  auto const b = blocks.find(at, 1);
  if (b == blocks.end() || b->first != at || !b->second.told || !b->second.live)
    return;
  std::size_t const bytes = b->second.bytes;
  bool const is_of_host = b->second.device < 0;
  if (on) {
    b->second.home = on;
    freed(at, bytes, {&on, 1}, site.at);
    (void)order.enqueued(on);
  } else {
    saw_device_done(b->second.device);
    freed(at, bytes, {}, site.at);
  }
  drop_sources(at, bytes);
  memory.drop_told(at, bytes);
  // The host's memory may serve the program without another call of CUDA.
  if (is_of_host)
    blocks.forget(at, bytes);
}

// The host has to wait for all uses before it: the call itself completes none.
void knowledge::closed_by_program(address at, base::site site) {
  auto const b = blocks.find(at, 1);
  if (b == blocks.end() || b->first != at || !b->second.told || !b->second.live)
    return;
  std::size_t const bytes = b->second.bytes;
  std::set<access const*> told;
  for (part const& p : memory.find(at, bytes))
    p.of->uses.each(p.from, p.to, [&](access const& a) {
      bool const over_now = a.is_over() || a.all_epochs([&](epoch e) { return order.complete(e, trust::known); });
      if (!over_now && told.insert(&a).second)
        report_unmapped(a, site, at, bytes);
      return true;
    });
  unmapped_beside(at, bytes, site);
  b->second.live = false;
  b->second.freed = site.at;
  b->second.uses.clear();
  drop_sources(at, bytes);
  memory.drop_told(at, bytes);
}

void knowledge::hidden(address at, std::size_t bytes) {
  for (auto b = blocks.find(at, bytes); b != blocks.end() && b->first < at + bytes; ++b)
    if (b->second.told)
      b->second.live = false;
  blocks.forget(at, bytes);
  memory.drop_told(at, bytes);
  drop_sources(at, bytes);
}

void knowledge::saw_device_done(int device) {
  for (stream_id s = 1; s <= order.streams(); ++s)
    if (device < 0 || order.device_of(s) == device)
      order.saw_complete(order.now(s), trust::promised);
}

}  // namespace weir::driver::check
