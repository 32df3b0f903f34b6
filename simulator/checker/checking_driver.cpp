// The calls on streams, events and work.
// Threads: as checking_driver.h says.
#include "simulator/checker/checking_driver.h"

#include <new>

#include "runtime/base/lasting.h"
#include "runtime/base/process.h"
#include "runtime/options/options.h"
#include "simulator/machine/guard.h"

namespace weir::driver::check {
namespace {

base::site site_of(char const* operation) {
  base::site s = base::this_call().in;
  if (!s.operation)
    s.operation = operation;
  return s;
}
trust trust_here() {
  return base::this_call().internal_ordering ? trust::known : trust::promised;
}

// All live checkers. The default runtime's is never destroyed.
base::guarded<std::vector<checking_driver*>>& alive() noexcept {
  static base::lasting<base::guarded<std::vector<checking_driver*>>> all;
  return *all;
}
base::atomic<bool> any_found{false}, any_printed{false};
base::atomic<std::uint64_t> uses_seen{0};   // by checkers that have ended or printed
base::guarded<unjudged>& unseen_by_all() {  // the same
  static base::lasting<base::guarded<unjudged>> all;
  return *all;
}
constexpr int status_of_reports = 66;  // as in other sanitizers

// A call in a forked child returns early: a thread that is not in the child may hold the lock.
void print_at_exit() {
  if (process_was_forked())
    return;
  print_all_findings();
  try {
    race_check const wanted = races_of_process();
    if (wanted == race_check::off)
      return;
    if (!any_found.load()) {
      std::uint64_t const n = uses_seen.load();
      std::string const scope = unseen_by_all().lock()->text();
      os::print_error("weir-434: the race checker found no error" +
                      (n ? " in " + std::to_string(n) + " uses of memory" : std::string(", and saw no use of memory")) +
                      (scope.empty() ? "" : ". " + scope) + "\n");
    } else if (any_printed.load() && wanted == race_check::fail) {
      os::end_process(status_of_reports);
    }
  } catch (invalid_use const&) {}  // the variable changed to an invalid word after the checker was made
}

std::string block_at(address at) {  // after a fault; never blocks on a checker's lock
  auto const all = alive().lock();
  for (checking_driver* c : *all)
    if (auto said = c->describe(at); !said.empty())
      return said;
  return {};
}
void shield_met(std::uint64_t shield, os::bad_access const& a) {
  auto const all = alive().lock();
  for (checking_driver* c : *all)
    if (c->met_shield(shield, a))
      return;
}
void print_at_a_fault() {
  auto const all = alive().lock();
  for (checking_driver* c : *all)
    c->print_findings_at_a_fault();
}

void see_host_use(void const* at, std::size_t bytes, host_use how, base::site site) noexcept {
  if (process_was_forked() || base::this_call().running)
    return;  // work on a stream is no host use
  try {
    auto const all = alive().lock();
    for (checking_driver* c : *all)
      c->host_uses(reinterpret_cast<address>(at), bytes, how, site);
  } catch (...) {}  // out of memory: this use is missed
}
void print_findings_of_all() noexcept {
  auto const all = alive().lock();
  for (checking_driver* c : *all)
    c->print_findings();
}
constexpr detail::all_checkers of_process{see_host_use, print_findings_of_all};

}  // namespace

wrapped wrap(std::unique_ptr<driver> inner) {
  auto made = std::make_unique<checking_driver>(std::move(inner));
  test_control* const c = made.get();
  return {std::move(made), c};
}

checking_driver::checking_driver(std::unique_ptr<driver> inner)
    : driver_front(std::move(inner)), machine_(sim::controls_of(*inner_)) {
  {
    auto const known = judge_.lock();
    known->machine = machine_;
    known->quiet = suppressions::of_process();
  }
  auto all = alive().lock();
  static int const registered =
      (sim::explain_faults_with({block_at, shield_met, print_at_a_fault}), std::atexit(print_at_exit));
  (void)registered;
  all->push_back(this);
  detail::checkers.store(&of_process);
}

checking_driver::~checking_driver() {
  if (process_was_forked())
    return;
  {
    auto const all = alive().lock();
    std::erase(*all, this);
    if (all->empty())
      detail::checkers.store(nullptr);
  }
  print_findings();
}

void checking_driver::print(knowledge& known) {
  uses_seen.fetch_add(std::exchange(known.uses, 0));
  *unseen_by_all().lock() += unseen(known);
  known.forget_unseen();
  calls_.forget_missed();
  auto const is_possible = [](finding const& f) { return f.what == finding::kind::possible_race; };
  auto const possible = static_cast<std::size_t>(std::ranges::count_if(known.found, is_possible));
  std::size_t const n = known.found.size() - possible;
  if (n)
    any_found.store(true);
  if (known.found.empty() || std::exchange(known.taken, true))
    return;  // told by findings(), or printed before
  std::vector<finding> const all = known.in_words();
  auto const print_those = [&](bool wanted) {
    for (finding const& f : all)
      if (is_possible(f) == wanted)
        os::print_error("weir: " + f.text +
                        (f.times > 1 ? " (" + std::to_string(f.times) + " times at these two lines)" : "") + "\n");
  };
  if (n) {
    any_printed.store(true);
    os::print_error("weir-108: the race checker found " + std::to_string(n) + (n == 1 ? " error:\n" : " errors:\n"));
    print_those(false);
  }
  if (possible) {
    os::print_error("weir-584: the race checker found " + std::to_string(possible) +
                    (possible == 1 ? " possible race" : " possible races") +
                    ", where the bytes that a launch uses are known by a pointer alone:\n");
    print_those(true);
  }
}

check::unjudged checking_driver::unseen(knowledge const& known) const {
  auto all = known.unseen();
  all.missed_calls = calls_.missed_calls();
  return all;
}

seen_calls* checking_driver::calls() {
  judge_.lock()->watched = true;
  return &calls_;
}

void checking_driver::print_findings() noexcept {
  try {
    print(*judge_.lock());
  } catch (...) {}
}

void checking_driver::print_findings_at_a_fault() noexcept {
  try {
    if (auto const known = judge_.try_lock())
      print(**known);
  } catch (...) {}
}

// Effects of a call -----------------------------------------------------------------------------------------

// Asks a stream of the program for its kind. A captured one cannot be asked: its next work asks again.
stream_id checking_driver::asked(int device, stream_handle s) {
  auto const kind = noted(inner_->kind_of(device, s), device);
  auto const known = judge_.lock();
  stream_id const id =
      known->order.knows(device, s) ? known->order.find(device, s) : known->order.add(device, s, graph::joins::unasked);
  if (kind.ok())
    known->order.set_joins(id, kind.value == stream_kind::blocking ? graph::joins::legacy : graph::joins::nothing);
  return id;
}

moment checking_driver::before(int device, stream_handle s, trust t) {
  if (process_was_forked())
    return {};
  {
    auto const known = judge_.lock();
    stream_id const id = known->order.find(device, s);
    known->order.keep(id);
    if (!known->order.is_unasked(id)) [[likely]]
      return known->order.now(id, t);
  }
  stream_id const id = asked(device, s);
  return judge_.lock()->order.now(id, t);
}

status checking_driver::note(status is, int device) {
  if (is.what != code::lost || process_was_forked())
    return is;
  {
    auto m = made_.lock();
    m->lost.resize(std::max(m->lost.size(), static_cast<std::size_t>(device) + 1));
    m->lost[static_cast<std::size_t>(device)] = true;
  }
  auto const known = judge_.lock();
  known->order.lost(device);
  let_host_back(*known);
  known->reading.forget([&](source const& s) { return known->order.device_of(s.copy.stream) == device; });
  return is;
}

status checking_driver::after(status is, int device, moment const& before, std::span<range const> ranges,
                              char const* operation) {
  if (!is.ok())
    return note(is, device);
  if (!before.at.stream)
    return is;
  base::site const site = site_of(operation);
  auto const known = judge_.lock();
  if (known->keep_for_graph(before.at.stream, ranges, site))
    return is;
  keep_host_away(*known, known->used(before.at.stream, before, ranges, site, trust::promised), ranges, site);
  return is;
}

status checking_driver::seen(status is, int device, moment const& what) {
  if (!is.ok())
    return note(is, device);
  if (what.at.stream)
    saw_complete(what);
  return is;
}

void checking_driver::saw_complete(moment const& what) {
  auto const known = judge_.lock();
  known->order.saw_complete(what, trust_here());
  let_host_back(*known);
  known->look_at_sources();
}

// If a wait on the machine answers failed, the machine's last finding names the circle.
status checking_driver::note_stuck(status is) {
  if (is.what != code::failed || !machine_ || process_was_forked())
    return is;
  auto const said = machine_->findings();
  constexpr std::string_view word = "stuck: ";
  if (said.empty() || !said.back().starts_with(word))
    return is;
  bool const is_noted = stuck_said_.exchange(said.size()) == said.size();
  if (is_noted)
    return is;
  judge_.lock()->stuck(said.back().substr(word.size()), site_of("a wait of the host"));
  return is;
}

// Streams and events ----------------------------------------------------------------------------------------

result<stream_handle> checking_driver::create_stream(int device, stream_kind kind, int priority) {
  auto const r = inner_->create_stream(device, kind, priority);
  if (!r.ok()) {
    note(r.is, device);
    return r;
  }
  made_.lock()->streams[{device, r.value}] = device;
  judge_.lock()->order.add(device, r.value,
                           kind == stream_kind::blocking ? graph::joins::legacy : graph::joins::nothing);
  return r;
}

void checking_driver::number_stream(int device, stream_handle s, std::uint64_t number) {
  inner_->number_stream(device, s, number);
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  known->order.set_number(known->order.find(device, s), number);
}

status checking_driver::destroy_stream(int device, stream_handle s) {
  if (process_was_forked())
    return inner_->destroy_stream(device, s);
  // Removed first: the driver may give the same handle to another thread at once.
  bool const was_made = made_.lock()->streams.erase({device, s}) != 0;
  stream_id const id = judge_.lock()->order.unlink(device, s);
  status const is = inner_->destroy_stream(device, s);
  if (is.ok()) {
    try {
      judge_.lock()->stream_ended(id);
    } catch (std::bad_alloc const&) {}  // it is forgotten later, or not at all
    return is;
  }
  if (was_made)
    made_.lock()->streams[{device, s}] = device;
  if (id)
    judge_.lock()->order.link(device, s, id);
  return note(is, device);
}

result<stream_handle> checking_driver::adopt(int device, CUstream_st* native) {
  auto const r = noted(inner_->adopt(device, native), device);
  if (!r.ok() || process_was_forked())
    return r;
  bool const is_predefined = r.value == stream_handle::legacy || r.value == stream_handle::per_thread;
  if (is_predefined || made_.lock()->streams.contains({device, r.value}))
    return r;
  stream_id const id = asked(device, r.value);
  auto const known = judge_.lock();
  if (!known->watched)
    known->of_program.insert(known->order.life_of(id));
  return r;
}

result<event_handle> checking_driver::create_event(int device, event_kind kind) {
  auto const r = inner_->create_event(device, kind);
  if (!r.ok())
    note(r.is, device);
  else
    made_.lock()->events[static_cast<std::uintptr_t>(r.value)] = device;
  return r;
}

result<CUevent_st*> checking_driver::native_event(event_handle e) {
  auto const r = noted(inner_->native_event(e), call_subject::no_device);
  if (r.ok() && !process_was_forked())
    judge_.lock()->events_by_cuda[reinterpret_cast<std::uintptr_t>(r.value)] = e;
  return r;
}

status checking_driver::destroy_event(int device, event_handle e) {
  if (process_was_forked())
    return inner_->destroy_event(device, e);
  // Removed first, as a stream.
  bool const was_made = made_.lock()->events.erase(static_cast<std::uintptr_t>(e)) != 0;
  moment const last = judge_.lock()->order.forget(e);
  {
    auto const known = judge_.lock();
    known->captured.forget(e);
    std::erase_if(known->events_by_cuda, [e](auto const& one) { return one.second == e; });
  }
  status const is = inner_->destroy_event(device, e);
  if (is.ok())
    return is;
  if (was_made)
    made_.lock()->events[static_cast<std::uintptr_t>(e)] = device;
  if (last.at.stream)
    judge_.lock()->order.recorded(e, last);
  return note(is, device);
}

status checking_driver::record(int device, stream_handle s, event_handle e) {
  moment const now = before(device, s, trust_here());
  std::uint64_t const in = now.at.stream ? judge_.lock()->captured.number_of(now.at.stream) : 0;
  status const is = inner_->record(device, s, e);
  if (!is.ok())
    return note(is, device);
  if (!now.at.stream)
    return is;
  auto const known = judge_.lock();
  if (known->captured.recorded(e, now.at.stream, in)) {
    known->order.recorded(e, moment{{}, now.seen, 0});  // no operation: outside the capture it stands for no work
  } else {
    known->order.recorded(e, now);
    known->order.recorded_on(now.at.stream, trust_here());
  }
  return is;
}

status checking_driver::wait(int device, stream_handle s, event_handle e) {
  if (process_was_forked())
    return inner_->wait(device, s, e);
  // A wait on the legacy stream comes after the blocking streams, as other work does.
  (void)before(device, s, trust_here());
  moment const what = judge_.lock()->order.record_of(e);
  status const is = inner_->wait(device, s, e);
  if (!is.ok())
    return is;  // other calls report which device is lost
  auto const known = judge_.lock();
  stream_id const id = known->order.find(device, s);
  if (!known->captured.waited(id, e) && !known->captured.of(id))
    known->order.waited(id, what, trust_here());
  return is;
}

// so_far(), not now(): completion of one of a blocking and the legacy stream says nothing about the other.
moment checking_driver::given(int device, stream_handle s) {
  if (process_was_forked())
    return {};
  auto const known = judge_.lock();
  return known->order.so_far(known->order.find(device, s));
}

status checking_driver::query_stream(int device, stream_handle s) {
  moment const all = given(device, s);
  return seen(inner_->query_stream(device, s), device, all);
}

status checking_driver::synchronize_stream(int device, stream_handle s) {
  moment const all = given(device, s);
  return seen(note_stuck(inner_->synchronize_stream(device, s)), device, all);
}

status checking_driver::synchronize_device(int device) {
  std::vector<moment> all;
  if (!process_was_forked()) {
    auto const known = judge_.lock();
    for (stream_id s = 1; s <= known->order.streams(); ++s)
      if (known->order.device_of(s) == device)
        all.push_back(known->order.now(s, trust_here()));
  }
  status const is = note_stuck(inner_->synchronize_device(device));
  if (!is.ok())
    return note(is, device);
  for (moment const& m : all)
    seen(is, device, m);
  return is;
}

// An event that answers lost means that the device of its recording stream is lost.
status checking_driver::note_of_recorder(status is, moment const& what) {
  if (is.what != code::lost)
    return is;
  int const device = judge_.lock()->order.device_of(what.at.stream);
  return note(is, device);
}

// If the event was recorded again meanwhile, the answer may concern either record.
template <class Ask>
status checking_driver::of_event(event_handle e, Ask ask) {
  if (process_was_forked())
    return ask();
  moment const what = judge_.lock()->order.record_of(e);
  status const is = ask();
  if (!what.at.stream)
    return is;
  if (!is.ok())
    return note_of_recorder(is, what);
  if (judge_.lock()->order.record_of(e).version == what.version)
    saw_complete(what);
  return is;
}

status checking_driver::query_event(event_handle e) {
  return of_event(e, [&] { return inner_->query_event(e); });
}

status checking_driver::synchronize_event(event_handle e) {
  return of_event(e, [&] { return note_stuck(inner_->synchronize_event(e)); });
}

// Work ------------------------------------------------------------------------------------------------------

status checking_driver::after_copy(status is, int device, moment const& before, void* dst, void const* src,
                                   std::size_t bytes) {
  if (!is.ok())
    return note(is, device);
  if (!before.at.stream || bytes == 0)
    return is;
  auto const from = reinterpret_cast<address>(src), to = reinterpret_cast<address>(dst);
  range const uses[] = {{.at = from, .bytes = bytes, .copied = true}, {.at = to, .bytes = bytes, .writes = true}};
  base::site const site = site_of("copy");
  auto const known = judge_.lock();
  if (known->keep_for_graph(before.at.stream, uses, site))
    return is;
  epoch const e = known->used(before.at.stream, before, uses, site, trust::promised);
  known->copies_from(e, before, from, bytes, site);
  keep_host_away(*known, e, uses, site);
  return is;
}

// The device may write at once. Another thread may then see an earlier copy complete before this call is recorded.
void checking_driver::may_write(std::span<touch const> touches) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  if (known->reading.empty()) [[likely]]
    return;
  for (touch const& t : touches) {
    if (t.writes)
      known->drop_sources(t.at, t.bytes);
  }
}

status checking_driver::copy(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  moment const now = before(device, s);
  touch const written{reinterpret_cast<address>(dst), bytes, true};
  may_write({&written, 1});
  status const is = inner_->copy(device, s, dst, src, bytes);
  return after_copy(is, device, now, dst, src, bytes);
}

status checking_driver::upload(int device, stream_handle s, void* dst, void const* src, std::size_t bytes) {
  moment const now = before(device, s);
  touch const written{reinterpret_cast<address>(dst), bytes, true};
  may_write({&written, 1});
  status const is = inner_->upload(device, s, dst, src, bytes);
  range const uses[] = {{.at = written.at, .bytes = bytes, .writes = true}};
  return after(is, device, now, uses, "copy");
}

status checking_driver::copy_peer(int device, stream_handle s, void* dst, int dst_device, void const* src,
                                  int src_device, std::size_t bytes) {
  moment const now = before(device, s);
  status const is = inner_->copy_peer(device, s, dst, dst_device, src, src_device, bytes);
  if (!is.ok())
    return is;  // three devices are involved; any may be lost
  return after_copy(is, device, now, dst, src, bytes);
}

status checking_driver::fill(int device, stream_handle s, void* dst, std::uint32_t pattern, int pattern_bytes,
                             std::size_t count) {
  moment const now = before(device, s);
  status const is = inner_->fill(device, s, dst, pattern, pattern_bytes, count);
  range const uses[] = {
      {reinterpret_cast<address>(dst), count * static_cast<std::size_t>(std::max(pattern_bytes, 0)), true}};
  return after(is, device, now, uses, "fill");
}

status checking_driver::host_function(int device, stream_handle s, work w) {
  moment const now = before(device, s);
  status const is = inner_->host_function(device, s, w);
  if (!is.ok() || !now.at.stream)
    return note(is, device);
  auto const known = judge_.lock();
  known->host_function(known->used(now.at.stream, now, {}, {}, trust::promised));
  return is;
}

status checking_driver::enqueue(int device, stream_handle s, std::span<touch const> touches, work w) {
  moment const now = before(device, s);
  boost::container::small_vector<range, 8> uses;
  for (touch const& t : touches)
    uses.push_back({t.at, t.bytes, t.writes});
  may_write(touches);
  return after(inner_->enqueue(device, s, touches, w), device, now, {uses.data(), uses.size()}, "enqueue");
}

void checking_driver::touched(int device, stream_handle s, std::span<touch const> touches) {
  inner_->touched(device, s, touches);
  moment const now = before(device, s);
  boost::container::small_vector<range, 8> uses;
  for (touch const& t : touches)
    uses.push_back({t.at, t.bytes, t.writes});
  after({}, device, now, {uses.data(), uses.size()}, "native work");
}

result<gate_handle> checking_driver::hold(int device, stream_handle s) {
  moment const now = before(device, s);
  auto const r = inner_->hold(device, s);
  after(r.is, device, now, {}, "hold");
  return r;
}

}  // namespace weir::driver::check
