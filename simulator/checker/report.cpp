// The checker's report texts: the bytes, the uses with their places, and the remedy.
// Threads: as race_judge.h says.
#include <algorithm>
#include <set>

#include "runtime/base/text.h"
#include "simulator/checker/race_judge.h"
#include "simulator/machine/guard.h"

namespace weir::driver::check {
namespace {

std::string number(std::uint64_t n) {
  return std::to_string(n);
}

char const* does(access const& a) {
  if (a.known != grain::exact)
    return a.writes() ? "may write" : "may read";
  switch (a.how) {
    case action::reads: return "reads";
    case action::writes: return "writes";
    case action::allocates: return "begins";
    case action::frees: return "ends";
    case action::takes_over: return "takes over";
  }
  return "uses";
}

// How well the bytes of a use are known; empty: exactly.
std::string grain_text(access const& a) {
  if (a.known == grain::exact)
    return {};
  return ". Of the bytes of " + text_of(a.site) +
         " a pointer is known: they may end before its block or the next pointer does";
}

// Why a use makes a possible race and no certain one.
std::string why_possible(access const& a) {
  std::string const of = text_of(a.site);
  if (a.known != grain::structure)
    return ". It is only possible: which bytes " + of + " uses behind its pointer is not known";
  return ". It is only possible: the pointer of " + of +
         (a.may_be_end ? " may be the end of the block in front" : " was found in a structure, and may be stale");
}
std::string why_possible(access const& before, access const& now) {
  for (access const* const a : {&before, &now})
    if (a->known == grain::structure)
      return why_possible(*a);
  if (before.known == grain::pointer && now.known == grain::pointer)
    return ". It is only possible: which bytes the two use behind their pointers is not known";
  access const& pointer = before.known == grain::exact ? now : before;
  access const& exact = before.known == grain::exact ? before : now;
  if (pointer.may_read_alone && !exact.writes())
    return ". It is only possible: no signature tells whether " + text_of(pointer.site) + " writes";
  return why_possible(pointer);
}

// A pointer in a structure may be stale: alone it makes no error.
finding::kind unless_vague(access const& a, finding::kind what) {
  return a.known == grain::structure ? finding::kind::possible_race : what;
}

std::string key_of(base::site const& s, std::uint64_t life) {
  std::string key = s.operation ? s.operation : "?";
  return s.at.file_name() ? key + '@' + s.at.file_name() + ':' + number(s.at.line()) : key + '#' + number(life);
}
// Where a person would mend a possible race: a line of the program, or else what was called of a library. In front of the
// line stands the place in a library, see call_watch.
std::string place_to_mend(std::string_view file) {
  constexpr std::string_view last_line = " after ", caller = " from ", offset = "+0x";
  if (std::size_t const at = file.rfind(last_line); at != file.npos)
    return std::string(file.substr(at));
  std::string all, before;
  while (!file.empty()) {
    std::size_t const end = file.find(caller);
    std::string frame(file.substr(0, end));
    file.remove_prefix(end == file.npos ? file.size() : end + caller.size());
    if (frame.find(".so") != frame.npos)
      frame.resize(std::min(frame.size(), frame.rfind(offset)));
    if (frame != before)
      all += ' ' + frame;
    before = std::move(frame);
  }
  return all;
}
std::string key_of(source_location const& h) {
  return h.file_name() ? std::string(h.file_name()) + ':' + number(h.line()) : "?";
}

// ", gradient "w" (gradient 3) in bucket 1, …": the parts of a managed block that the bytes touch; empty: none.
std::string parts_text(block const& b, std::size_t from, std::size_t bytes) {
  std::string out;
  if (!b.manages)
    return out;
  constexpr int most = 3;
  int touched = 0;
  for (managed_block::part const& p : b.manages->parts) {
    if (p.offset >= from + bytes || from >= p.offset + p.bytes)
      continue;
    ++touched;
    if (touched <= most)
      out += ", " + p.name;
  }
  return touched > most ? out + " and " + number(static_cast<std::uint64_t>(touched - most)) + " more" : out;
}

}  // namespace

std::string key_of_call(base::site const& s) {
  return key_of(s, 0);
}

std::string text_of(source_location const& h) {
  if (!h.file_name())
    return "an unknown place";
  std::string_view file = h.file_name();
  file = file.substr(file.rfind('/') + 1);
  return h.line() ? std::string(file) + ':' + number(h.line()) : std::string(file);
}

std::string text_of(base::site const& s) {
  std::string const operation = s.operation ? s.operation : "a driver call";
  return s.at.file_name() ? operation + " at " + text_of(s.at) : operation;
}

unjudged knowledge::unseen() const {
  unjudged all;
  all.host_pointers = open_to_host;
  all.system_calls = closed_to_host && !sim::calls_are_seen();
  all.watched = watched;
  if (!watched) {
    all.direct_work = !machine;
    all.streams = handed_out.size();
    all.events = events_handed_out.size();
    all.program_streams = of_program.size();
    return all;
  }
  all.not_understood = not_understood;
  all.forgotten_uses = forgotten;
  all.unknown_pointers = unknown_pointers;
  all.suppressed = suppressed;
  return all;
}

void knowledge::forget_unseen() {
  handed_out.clear();
  of_program.clear();
  events_handed_out.clear();
  not_understood.clear();
  forgotten = unknown_pointers = suppressed = 0;
}

std::string knowledge::stream(stream_id s) const {
  if (order.is_legacy(s))
    return "the legacy stream of gpu:" + number(static_cast<std::uint64_t>(order.device_of(s)));
  std::string const whose = order.is_weirs(s) ? "weir's own stream " : "stream ";
  return whose + number(order.number_of(s)) + " of gpu:" + number(static_cast<std::uint64_t>(order.device_of(s)));
}

std::string knowledge::block_text(blocks::map::iterator b) const {
  block const& is = b->second;
  std::string const of =
      is.device < 0 ? "pinned block " + number(is.number)
                    : "block " + number(is.number) + " of gpu:" + number(static_cast<std::uint64_t>(is.device));
  return of + " (" + number(is.bytes) + " B, allocated " + (is.told ? "by CUDA at " : "at ") + text_of(is.allocated) +
         ")";
}

std::string knowledge::bytes_of(address at, std::size_t bytes) {
  auto const range = [&](std::uint64_t from) { return "bytes " + number(from) + "-" + number(from + bytes - 1); };
  if (auto const b = blocks.find(at, bytes); b != blocks.end() && b->first <= at)
    return range(at - b->first) + " of " + block_text(b) + parts_text(b->second, at - b->first, bytes);
  part const p = memory.find(at, bytes).front();
  if (p.of->number == 0)
    return number(bytes) + " bytes of unknown memory";
  return range(p.from) + " of memory " + number(p.of->number) +
         (p.of->device < 0 ? " of the host" : " of gpu:" + number(static_cast<std::uint64_t>(p.of->device)));
}

std::string knowledge::key_of_use(access const& a, finding::kind what) const {
  std::uint64_t const life = a.stream ? order.life_of(a.stream) : 0;
  if (what != finding::kind::possible_race || !a.site.at.file_name())
    return key_of(a.site, life);
  return place_to_mend(a.site.at.file_name()) + ':' + number(a.site.at.line());
}

// Pairs of calls at the places of one possible race: they differ by their kernels.
void knowledge::note_pair(std::size_t index, base::site const& a, base::site const& b) {
  constexpr std::size_t most_examples = 3;
  pairs_alike& all = alike[index];
  bool const is_new = all.seen.emplace(a.operation, b.operation).second;
  if (is_new && all.seen.size() > 1 && all.seen.size() <= most_examples)
    all.examples += (all.examples.empty() ? "" : "; ") + text_of(base::site{a.operation, {nullptr, nullptr, 0}}) +
                    " and " + text_of(base::site{b.operation, {nullptr, nullptr, 0}});
}

std::vector<finding> knowledge::in_words() const {
  std::vector<finding> all = found;
  for (auto const& [index, pairs] : alike)
    if (std::size_t const more = pairs.seen.size() - 1; more > 0)
      all[index].text += " So may " + number(more) + (more == 1 ? " other pair" : " other pairs") +
                         " of calls at these places, as " + pairs.examples + ".";
  return all;
}

std::size_t knowledge::note(finding::kind what, std::string key, std::string text, source_location first,
                            source_location second, std::initializer_list<stream_id> streams) {
  key.insert(key.begin(), static_cast<char>('a' + static_cast<int>(what)));
  if (auto const known = by_sites.find(key); known != by_sites.end()) {
    ++found[known->second].times;
    return known->second;
  }
  std::vector<std::pair<source_location, std::string>> made;  // a place, and the numbers of the streams made there
  for (stream_id const s : std::set<stream_id>(streams)) {
    source_location const here = s ? order.made_at(s) : source_location{nullptr, nullptr, 0};
    if (!here.file_name())
      continue;
    auto const known =
        std::find_if(made.begin(), made.end(), [&](auto const& m) { return key_of(m.first) == key_of(here); });
    if (known == made.end())
      made.emplace_back(here, number(order.number_of(s)));
    else
      known->second += " and " + number(order.number_of(s));
  }
  for (auto const& [place, all] : made)  // a blank stands between two numbers
    text += (all.find(' ') == std::string::npos ? " Stream " + all + " was" : " Streams " + all + " were") +
            " made at " + text_of(place) + ".";
  std::size_t const index = found.size();
  found.push_back({what, std::string(name_of(what)) + ": " + std::move(text), first, second, 1});
  by_sites[std::move(key)] = index;
  if (what != finding::kind::possible_race)
    to_tell.push_back(found.back());
  return index;
}

block const* knowledge::managed_at(address at) {
  auto const b = blocks.find(at, 1);
  return b != blocks.end() && b->second.user ? &b->second : nullptr;
}

// A program cannot wait for weir's own stream: the calls of the managed block order its uses, or the stream of the call
// that the work is a part of.
std::string knowledge::remedy(access const& before, access const& now, address from) {
  std::string const second = now.site.at.file_name() ? text_of(now.site.at) : "the second";
  block const* const b = managed_at(from);
  auto const waited = [&](access const& a) {
    return order.is_weirs(a.stream) ? "the stream of " + text_of(a.site) : stream(a.stream);
  };
  if (!b || (before.stream != b->user && now.stream != b->user))
    return "let " + waited(now) + " wait for " + waited(before) +
           " (stream_ref::wait, or an event recorded there) before " + second + ".";
  managed_block const& m = *b->manages;
  std::string const whose = " On " + stream(b->user) + " run " + m.work + ".";
  if (before.stream == b->user) {
    // Beside finish(), which wants all gradients, a write may come earlier.
    std::string const earlier = now.writes() ? ", or write before " + std::string(m.call_before) : "";
    return "before " + second + " call " + std::string(m.call_after) + " with " + stream(now.stream) +
           ", or let that stream wait for the one that was passed" + earlier + "." + whose;
  }
  return "call " + std::string(m.call_before) + " with " + stream(before.stream) + " after " + text_of(before.site) +
         ", or let the stream that was passed wait for that one." + whose;
}

std::size_t knowledge::report_race(access const& before, access const& now, address from, std::size_t bytes,
                                   finding::kind what) {
  address const first = std::max(from, before.at), last = std::min(from + bytes, before.at + before.bytes);
  bool const alias = first >= last;  // the older use went through another mapping
  std::string const which = alias ? bytes_of(from, bytes) : bytes_of(first, last - first);
  std::string const a = text_of(before.site), b = text_of(now.site);
  std::string const wait = remedy(before, now, alias ? from : first);
  bool const reversed =
      !now.captured && order.has_seen(before.stream, now.stream) && !order.has_seen(now.stream, before.stream);
  std::string const missing =
      reversed ? ". " + stream(before.stream) + " comes after " + stream(now.stream) + ", but not the reverse"
               : ". No wait orders the two";
  std::string text;
  if (before.how == action::allocates)
    text = which + ": " + b + " " + does(now) + " them on " + stream(now.stream) +
           ". No wait orders that after the allocation on " + stream(before.stream) + " (" + a +
           "), and earlier work may still use its memory. Remedy: allocate it on " + stream(now.stream) + ", or " +
           wait;
  else
    text = which + ": " + a + " " + does(before) + " them on " + stream(before.stream) + ", " + b + " " + does(now) +
           " them on " + stream(now.stream) + (alias ? ", through another mapping" : "") +
           (now.captured ? ", both in one graph" : "") + missing +
           (what == finding::kind::possible_race ? why_possible(before, now) : grain_text(before) + grain_text(now)) +
           ". Remedy: " + wait;
  if (what == finding::kind::possible_race)
    text += " If the two use different bytes, name a kernel or the block in the file of WEIR_CHECK_SUPPRESS.";
  std::size_t const index = note(what, key_of_use(before, what) + '|' + key_of_use(now, what), std::move(text),
                                 before.site.at, now.site.at, {before.stream, now.stream});
  if (what == finding::kind::possible_race)
    note_pair(index, before.site, now.site);
  return index;
}

// No stream has the nodes. made: the call that made the graph executable
void knowledge::report_nodes(blocks::map::iterator b, block_use const& one, block_use const& another, verdict how,
                             base::site made) {
  if (one.quiet || another.quiet || b->second.quiet) {
    ++suppressed;
    return;
  }
  access const first = access_of(b->first, one), second = access_of(b->first, another);
  std::size_t const from = std::max(one.from, another.from), to = std::min(one.to, another.to);
  auto const what = how == verdict::certain ? finding::kind::race : finding::kind::possible_race;
  bool const by_place = what == finding::kind::possible_race && made.at.file_name();
  std::string const key = by_place ? place_to_mend(made.at.file_name()) + ':' + number(made.at.line())
                                   : key_of_call(one.site) + '|' + key_of_call(another.site);
  std::size_t const index =
      note(what, "nodes|" + key,
           bytes_of(b->first + from, to - from) + ": " + text_of(one.site) + " " + does(first) + " them, " +
               text_of(another.site) + " " + does(second) + " them, both in one graph" +
               (made.at.file_name() ? ", instantiated at " + text_of(made.at) : "") + ", and no edge orders the two" +
               (what == finding::kind::possible_race ? why_possible(first, second)
                                                     : grain_text(first) + grain_text(second)) +
               ". Remedy: let one of the nodes depend on the other.",
           made.at, {nullptr, nullptr, 0});
  if (what == finding::kind::possible_race)
    note_pair(index, one.site, another.site);
}

void knowledge::report_use_after_free(access const& now, blocks::map::iterator b) {
  note(finding::kind::use_after_free, key_of_use(now) + '|' + key_of(b->second.freed),
       text_of(now.site) + " " + does(now) + " " +
           bytes_of(std::max(now.at, b->first),
                    std::min(now.at + now.bytes, b->first + b->second.bytes) - std::max(now.at, b->first)) +
           " on " + stream(now.stream) + ", which was freed at " + text_of(b->second.freed) +
           ". Remedy: free the block after the last work that uses it was enqueued.",
       b->second.freed, now.site.at, {now.stream});
}

void knowledge::report_freed_in_use(access const& before, std::span<stream_id const> behind, blocks::map::iterator b) {
  std::string const home = behind.empty() ? "The host has not waited for that"
                                          : "No wait orders that before the block's own " + stream(behind.front());
  auto const what = unless_vague(before, finding::kind::freed_in_use);
  std::size_t const index =
      note(what, "free|" + key_of_use(before, what) + '|' + key_of(b->second.freed),
           block_text(b) + " was freed at " + text_of(b->second.freed) + " while " + text_of(before.site) + " " +
               does(before) + " it on " + stream(before.stream) + ". " + home +
               (what == finding::kind::possible_race ? why_possible(before) : grain_text(before)) +
               ". Remedy: mark the block for that stream first (record_stream, or a declared use in launch or copy), "
               "or wait for it.",
           before.site.at, b->second.freed, {before.stream, behind.empty() ? 0 : behind.front()});
  if (what == finding::kind::possible_race)
    note_pair(index, before.site, {"the free", {}});
}

void knowledge::report_handed_out_early(access const& before, blocks::map::iterator b,
                                        std::optional<block> const& held) {
  if (held) {
    note(finding::kind::handed_out_early, "held|" + key_of(held->allocated) + '|' + key_of(b->second.allocated),
         block_text(b) + " lies in memory of a block of " + number(held->bytes) +
             " B that is still held (allocated at " + text_of(held->allocated) +
             "). This is a defect of the allocator.",
         held->allocated, b->second.allocated);
    return;
  }
  std::string const by = b->second.home ? "on " + stream(b->second.home) : "to the host";
  std::string const why =
      before.how == action::frees
          ? "an earlier block there was freed (" + text_of(before.site) + ") behind work of " + stream(before.stream)
          : text_of(before.site) + " " + does(before) + " that memory on " + stream(before.stream);
  note(finding::kind::handed_out_early, key_of_use(before) + '|' + key_of(b->second.allocated),
       block_text(b) + " was allocated " + by + " while " + why +
           ", which is neither complete nor ordered before. The earlier use was not declared or marked, or the "
           "allocator has a defect.",
       before.site.at, b->second.allocated, {before.stream, b->second.home});
}

void knowledge::report_unmapped(access const& before, base::site site, address at, std::size_t bytes) {
  auto const b = blocks.find(std::max(before.at, at), 1);
  char const* const cause =
      b != blocks.end() && b->second.told ? "Remedy: wait for that work first."
      : before.known == grain::exact
          ? "This is a defect of the allocator, or the use was not declared."
          : "Remedy: mark the block for that stream (record_stream) or declare the launch, or wait for it.";
  auto const what = unless_vague(before, finding::kind::unmapped_in_use);
  std::size_t const index =
      note(what, "unmap|" + key_of_use(before, what) + '|' + key_of(site, 0),
           text_of(site) + " unmaps " + number(bytes) + " bytes" + (b == blocks.end() ? "" : " with " + block_text(b)) +
               " while " + text_of(before.site) + " " + does(before) + " " + number(before.bytes) + " bytes there on " +
               stream(before.stream) + " and is not known to be complete" +
               (what == finding::kind::possible_race ? why_possible(before) : "") + ". " + cause,
           before.site.at, site.at, {before.stream});
  if (what == finding::kind::possible_race)
    note_pair(index, before.site, site);
}

void knowledge::report_changed(source const& s) {
  note(finding::kind::source_changed, key_of(s.site, order.life_of(s.copy.stream)),
       bytes_of(s.at, s.bytes) + " were the source of " + text_of(s.site) + " on " + stream(s.copy.stream) +
           ", and changed before the host had waited for that copy. Remedy: before the next write, wait for the copy's "
           "stamp, for an event after it or for its stream; or use another buffer.",
       s.site.at, {nullptr, nullptr, 0}, {s.copy.stream});
}

// `where`: the place before which the program must wait.
void knowledge::report_early_host(access const& before, std::string user, std::string where, source_location second,
                                  std::string key, address at, std::size_t bytes, char const* how, finding::kind what) {
  std::size_t const index =
      note(what, "host|" + key_of_use(before, what) + '|' + std::move(key),
           bytes_of(at, bytes) + ": " + text_of(before.site) + " " + does(before) + " them on " +
               stream(before.stream) + ", " + std::move(user) + " " + how + " them. The host has not waited for that" +
               (what == finding::kind::possible_race ? why_possible(before) : grain_text(before)) +
               ". Remedy: before " + std::move(where) +
               " synchronize the stream, an event after it, or the stamp that copy returned (copied.synchronize()).",
           before.site.at, second, {before.stream});
  if (what == finding::kind::possible_race)
    note_pair(index, before.site, {"the host", {}});
}

void knowledge::report_undeclared(base::running_work const& work, char const* how, address at) {
  auto const b = blocks.find(at, 1);
  note(finding::kind::undeclared,
       key_of_call(work.given) + '|' + (b == blocks.end() ? "?" : key_of(b->second.allocated)),
       "work (" + base::text_of(work) + ") " + how + " " + (b == blocks.end() ? "pinned memory" : block_text(b)) +
           ", which it does not declare. weir neither keeps that memory for the work nor checks its order. Remedy: "
           "declare all memory that the work uses to launch or parallel_for: reads(p), writes(p), updates(p).",
       work.given.at, {nullptr, nullptr, 0});
}

void knowledge::stuck(std::string circle, base::site site) {
  note(finding::kind::stuck, key_of(site, 0),
       text_of(site) + " waits forever: " + std::move(circle) +
           ". Remedy: remove one of the waits, or enqueue the work that it waits for.",
       site.at, {nullptr, nullptr, 0});
}

}  // namespace weir::driver::check
