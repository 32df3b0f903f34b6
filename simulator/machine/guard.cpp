// Explains illegal memory accesses, and decides whether the program continues.
// Threads: any; a fault is explained on its own thread.
#include "simulator/machine/guard.h"

#include <cxxabi.h>
#include <sanitizer/asan_interface.h>  // without AddressSanitizer its macros do nothing

#include <algorithm>
#include <optional>

#include "runtime/base/byte_range.h"
#include "runtime/base/call_site.h"
#include "runtime/base/lasting.h"
#include "runtime/base/os_call_watch.h"
#include "runtime/base/process.h"
#include "runtime/base/text.h"
#include "simulator/machine/memory.h"

namespace weir::driver::sim {
namespace {

struct watched {
  std::vector<memory*> all;
  onlooker more;
};
base::guarded<watched>& watching() noexcept {
  static base::lasting<base::guarded<watched>> w;  // needed until the process ends
  return *w;
}

// Pins that have had a shield. Threads: any; one adds or drops a pin at a time.
// A call looks here without a lock, because a signal handler may make it on the thread that holds one.
class shown_pins {
 public:
  int add(address at, std::size_t bytes) noexcept {
    for (int i = 0; i < most; ++i) {
      address free = 0;
      if (pins_[i].from.seen() || !pins_[i].from.compare_exchange(free, at))
        continue;
      pins_[i].to.store(at + bytes);
      used_.raise(i + 1);
      return i;
    }
    return -1;
  }
  void drop(int i) noexcept {
    pins_[i].to.store(0);
    pins_[i].from.store(0);
  }
  bool concern(touch const& t) const noexcept {
    for (int i = 0, n = used_.seen(); i < n; ++i)
      if (t.at < pins_[i].to.seen() && pins_[i].from.seen() < t.at + t.bytes)
        return true;
    return false;
  }

 private:
  static constexpr int most = shields::most;
  struct pin {
    base::atomic<address> from{0}, to{0};  // from 0: free. to 0: it concerns no call
  };
  pin pins_[most]{};
  base::atomic<int> used_{0};  // none is in use from there on
};
constinit shown_pins shown;

// Returns: the bytes of a system call. Empty: it concerns no pin
std::optional<touch> call_on_a_pin(void const* at, std::size_t bytes, bool writes) noexcept {
  auto const from = reinterpret_cast<address>(at);
  touch const call{from, std::min(bytes, ~from - os::page_size()), writes};  // the end of its last page is an address
  if (!shown.concern(call)) [[likely]]
    return {};
  return call;
}

// The program calls C functions, which do not throw. Out of memory: a page stays closed, or a use is not reported.
template <class F>
void without_throwing(F f) {
  try {
    f();
  } catch (abi::__forced_unwind&) {
    throw;  // the thread is cancelled
  } catch (...) {}
}

// The system refuses a closed page without a signal, and a datagram that meets one is lost.
void open_to_call(void const* at, std::size_t bytes, bool writes) {
  auto const call = call_on_a_pin(at, bytes, writes);
  if (!call) [[likely]]
    return;
  without_throwing([&] {
    auto const w = watching().lock();
    for (memory* m : w->all)
      m->open_to_call(*call);
  });
}

// Tells what a fault would tell.
void judge_call(void const* at, std::size_t bytes, bool writes, void const* code) {
  auto const call = call_on_a_pin(at, bytes, writes);
  // What a child does races with nothing here.
  if (!call || process_was_forked()) [[likely]]
    return;
  auto const how = writes ? os::bad_access::kind::write : os::bad_access::kind::read;
  without_throwing([&] {
    for (std::uint64_t after = 0;;) {
      shields::refusal first;
      onlooker then;
      {
        auto const w = watching().lock();
        then = w->more;
        for (memory* m : w->all)
          if (auto const next = m->refuses(*call, after); next.shield && (!first.shield || next.shield < first.shield))
            first = next;
      }
      if (!first.shield)
        return;
      if (then.met_shield)
        then.met_shield(first.shield, {reinterpret_cast<void const*>(first.at), code, how});
      after = first.shield;
    }
  });
}
constinit os::call_watcher watcher{open_to_call, judge_call};
constinit base::atomic<bool> calls_are_told{false};

bool explain(os::bad_access const& a) {
  std::string owner, more;
  auto const where = reinterpret_cast<address>(a.at);
  std::uint64_t shield = 0;
  onlooker then;
  bool again = false;
  {
    auto const w = watching().lock();
    then = w->more;
    for (memory* m : w->all) {
      again = m->let_through(a, shield);
      if (again)
        break;
      owner = m->owner_of(where);
      if (!owner.empty())
        break;
    }
  }
  if (again) {
    // What a child does races with nothing here.
    if (shield && then.met_shield && !process_was_forked())
      then.met_shield(shield, a);
    return true;
  }
  if (owner.empty())
    return false;
  if (then.block)
    more = then.block(where);
  base::running_work const* const work = base::this_call().running;
  os::print_error(
      "weir-109: " + (work ? "work (" + base::text_of(*work) + ")" : "host code") + " touched " + owner +
      (more.empty() ? "" : ", in " + more) +
      (work ? ", which it does not declare, or not up to there. Remedy: declare all memory that the work "
              "uses to launch or parallel_for: reads(p), writes(p), updates(p).\n"
            : ", outside work that declares it. Only work on a stream may read and write device memory. Remedy: "
              "declare it to launch or parallel_for, or copy it with weir::copy.\n"));
  if (then.the_end)
    then.the_end();
  return false;
}

// A fork waits until no thread is inside, so that a child, which has none of these threads, explains its own faults.
std::optional<base::guarded<watched>::access>& held_by_a_fork() noexcept {
  static base::lasting<std::optional<base::guarded<watched>::access>> held;
  return *held;
}
void before_a_fork() {
  auto& held = held_by_a_fork();
  held.emplace(watching().lock());
  for (memory* m : (*held)->all)
    m->lock();
}
void after_a_fork() {
  auto& held = held_by_a_fork();
  for (memory* m : (*held)->all)
    m->unlock();
  held.reset();
}

}  // namespace

void watch_faults(memory& m) {
  static bool const installed = [] {
    (void)os::around_forks(before_a_fork, after_a_fork, after_a_fork);
    calls_are_told.store(os::watch_calls(watcher));
    return os::on_bad_access(explain);
  }();
  (void)installed;
  watching().lock()->all.push_back(&m);
}
void unwatch_faults(memory& m) noexcept {
  std::erase(watching().lock()->all, &m);
}
void explain_faults_with(onlooker more) {
  watching().lock()->more = more;
}

bool calls_are_seen() noexcept {
  return calls_are_told.load();
}

void poison_bytes(address at, std::size_t n) noexcept {
  ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(at), n);
}
void unpoison_bytes(address at, std::size_t n) noexcept {
  ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(at), n);
}

bool memory::reach(std::map<address, mapping>::value_type const& m, bool open) const {
  return os::protect(reinterpret_cast<void*>(m.first), m.second.bytes, open ? os::reach::all : os::reach::nothing);
}

// Pages first, then bytes: a page is open while any use of it runs, a byte while a declared use runs.
bool memory::open_to(use const& u) {
  bool open = true;
  if (u.everything && open_to_all_++ == 0) {
    for (auto const& m : mappings_)
      open &= reach(m, true), unpoison_bytes(m.first, m.second.bytes);
  }
  if (u.what.bytes == 0)
    return open;
  // The first mapping may end before the range.
  for (auto m = base::at_or_before(mappings_, u.what.at); m != mappings_.end() && m->first < u.what.at + u.what.bytes;
       ++m)
    if (u.what.at - m->first < m->second.bytes || m->first > u.what.at)
      open &= reach(*m, true);
  if (base::holder_of(mappings_, u.what.at) == mappings_.end())
    return open;  // pinned memory
  open_bytes(u);
  running_.push_back(u);
  return open;
}

// Opens all bytes except those freed before the work was enqueued.
void memory::open_bytes(use const& u) const {
  address next = u.what.at;
  address const end = next + u.what.bytes;
  auto at = ended_.upper_bound(next);
  if (at != ended_.begin())
    --at;
  for (; at != ended_.end() && at->first < end; ++at) {
    address const to = at->first + at->second.bytes;
    if (to <= next || at->second.when > u.ends)
      continue;
    if (at->first > next)
      unpoison_bytes(next, at->first - next);
    next = std::min(to, end);
  }
  if (next < end)
    unpoison_bytes(next, end - next);
}

void memory::forget_ended(address from, std::size_t bytes) {
  address const to = from + bytes;
  auto at = ended_.upper_bound(from);
  if (at != ended_.begin())
    --at;
  while (at != ended_.end() && at->first < to) {
    address const start = at->first, end = start + at->second.bytes;
    ended const was = at->second;
    if (end <= from) {
      ++at;
      continue;
    }
    at = ended_.erase(at);
    if (start < from)
      ended_[start] = {from - start, was.when};
    if (end > to)
      ended_[to] = {end - to, was.when};
  }
}

void memory::block_taken(address at, std::size_t bytes) {
  if (!bytes_are_guarded || !shape_.guarded)
    return;
  base::lock_guard lock(mutex_);
  forget_ended(at, bytes);
  blocks_[at] = bytes;
}

void memory::block_given_back(address at) {
  if (!bytes_are_guarded || !shape_.guarded)
    return;
  base::lock_guard lock(mutex_);
  auto const found = blocks_.find(at);
  if (found == blocks_.end())
    return;
  forget_ended(at, found->second);
  ended_[at] = {found->second, ++ends_};
  blocks_.erase(found);
}

std::uint64_t memory::blocks_ended() const {
  if (!bytes_are_guarded || !shape_.guarded)
    return 0;
  base::lock_guard lock(mutex_);
  return ends_;
}

void memory::close_to(use const& u) {
  auto const same = std::find_if(running_.begin(), running_.end(), [&](use const& r) {
    return r.what.at == u.what.at && r.what.bytes == u.what.bytes && r.ends == u.ends;
  });
  if (same != running_.end()) {
    running_.erase(same);
    if (open_to_all_ == 0)
      close_bytes(u.what.at, u.what.bytes);
  }
  if (u.everything && --open_to_all_ == 0) {
    for (auto const& m : mappings_)
      close_bytes(m.first, m.second.bytes);
  }
  if (open_to_all_ > 0)
    return;
  for (auto const& m : mappings_) {
    bool const concerns = u.everything || (m.first < u.what.at + u.what.bytes && u.what.at < m.first + m.second.bytes);
    if (concerns && m.second.users == 0)
      reach(m, false);
  }
}

// Closes all bytes except those that running work uses, perhaps on another thread.
void memory::close_bytes(address from, std::size_t bytes) const {
  if (!bytes_are_guarded)
    return;
  std::vector<touch> used;
  for (use const& r : running_)
    if (r.what.at < from + bytes && from < r.what.at + r.what.bytes)
      used.push_back(r.what);
  std::sort(used.begin(), used.end(), [](touch const& a, touch const& b) { return a.at < b.at; });
  address next = from;
  for (touch const& t : used) {
    if (t.at > next)
      poison_bytes(next, t.at - next);
    next = std::max(next, t.at + t.bytes);
  }
  if (next < from + bytes)
    poison_bytes(next, from + bytes - next);
}

std::uint64_t memory::shield(touch const& t) {
  if (!shape_.guarded || !os::bad_accesses_are_explained())
    return 0;  // other data on the page must stay accessible
  base::lock_guard lock(mutex_);
  auto const in = base::holder_of(pins_, t.at);
  if (in == pins_.end() || t.bytes > in->second.bytes - (t.at - in->first))
    return 0;
  return show(in->first, in->second) ? shields_.raise(t) : 0;
}

void memory::unshield(std::uint64_t number) {
  base::lock_guard lock(mutex_);
  shields_.lower(number);
}

void memory::confine_work_from(touch const& pages) {
  if (!shape_.guarded)
    return;
  base::lock_guard lock(mutex_);
  if (auto const in = base::holder_of(pins_, pages.at); in != pins_.end())
    in->second.alone = pages;
}

memory::at_work::at_work(memory& m, std::span<use const> uses, pins how) : uses_(uses), how_(how) {
  if (!m.shape_.guarded)
    return;
  base::lock_guard lock(m.mutex_);
  of_ = &m;
  for (use const& u : uses)
    if (u.everything)
      how_ = pins::anywhere;
  if (how_ == pins::anywhere) {
    m.shields_.open_all();
    return;
  }
  for (use const& u : uses)
    m.shields_.open_for(u.what);
  if (how_ != pins::alone || m.pins_.empty() || !os::bad_accesses_are_explained())
    return;
  std::vector<touch> all;
  std::size_t bytes = 0;
  for (auto& [at, p] : m.pins_) {
    if (p.alone.bytes == 0 || !show(at, p))
      continue;
    bytes += p.alone.bytes;
    all.push_back(p.alone);
  }
  if (bytes <= confined_at_most)
    m.shields_.confine_to(std::move(all));
}

memory::at_work::~at_work() {
  if (!of_)
    return;
  base::lock_guard lock(of_->mutex_);
  if (how_ == pins::anywhere) {
    of_->shields_.close_all();
    return;
  }
  if (how_ == pins::alone)
    of_->shields_.release();
  for (use const& u : uses_)
    of_->shields_.close_after(u.what);
}

bool memory::let_through(os::bad_access const& a, std::uint64_t& into) {
  auto const at = reinterpret_cast<address>(a.at);
  base::lock_guard lock(mutex_);
  auto const in = base::holder_of(pins_, at);
  return in != pins_.end() && in->second.shown >= 0 && shields_.let_through(a, into);
}

shields::refusal memory::refuses(touch const& call, std::uint64_t after) const {
  base::lock_guard lock(mutex_);
  return shields_.refuses(call, after);
}

void memory::open_to_call(touch const& call) const {
  base::lock_guard lock(mutex_);
  shields_.open_to(call);
}

bool memory::show(address at, pinned& p) {
  if (p.shown < 0)
    p.shown = shown.add(at, p.bytes);
  return p.shown >= 0;
}
void memory::hide(pinned const& p) {
  if (p.shown >= 0)
    shown.drop(p.shown);
}

std::string memory::owner_of(address at) const {
  base::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !in_one_reservation(at, 1))
    return {};
  auto const m = base::holder_of(mappings_, at);
  bool const mapped = m != mappings_.end();
  return base::address_text(at) + (mapped ? ", memory of " + base::gpu_name(handles_[m->second.handle].device)
                                          : ", an address where no device memory is mapped");
}

}  // namespace weir::driver::sim
