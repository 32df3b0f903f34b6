// Chooses pools to sleep, and wakes those that a call names.
// Threads: as spills.h.
#include "streams/api/spills.h"

#include <algorithm>

#include "runtime/memory/device/shortage.h"
#include "streams/api/neighbour_store.h"

namespace weir::streams {

spills::spills(runtime::impl& r)
    : runtime_(r),
      memory_(r.part<memory::device_memory>()),
      turns_(static_cast<std::size_t>(r.machine().device_count())) {
  memory_.set_spiller(this);
}

spills::~spills() {
  memory_.set_spiller(nullptr);
}

namespace {
// Of live blocks at these addresses
std::vector<memory::memory_pool*> pools_of(memory::device_memory& all, std::span<void const* const> addresses) {
  std::vector<memory::memory_pool*> out;
  for (void const* const p : addresses) {
    auto* const owner = p ? all.owner(p) : nullptr;
    auto const block = owner ? owner->find(p) : std::nullopt;
    if (block && block->pool && !std::ranges::count(out, block->pool))
      out.push_back(block->pool);
  }
  return out;
}
}  // namespace

void spills::add(std::span<member const> pools, source_location at) {
  for (member const& m : pools)
    if (m.its->here->is_registered())
      throw invalid_use("spill", "pool " + m.its->name + ", which is registered",
                        "Peers may use its memory at any time: name ordinary pools", at, error_id{448});
  base::lock_guard const hold(lock_);
  std::size_t added = 0;
  // A call that marks itself from here on finds the pools, once it has the lock.
  earlier_calls before;
  before.note();
  try {
    for (member m : pools) {
      m.last_use = ++uses_;
      m.before = before;
      bool const is_added = m.its->of.if_alive() == &runtime_ && members_.emplace(m.its->here, m).second;
      if (!is_added)
        throw invalid_use("spill", "pool " + m.its->name + ", of another spill or runtime",
                          "Name each pool in one spill", at, error_id{430});
      ++added;
    }
  } catch (...) {
    for (member const& m : pools.first(added))
      members_.erase(m.its->here);
    throw;
  }
}

void spills::remove(std::span<memory::memory_pool const* const> pools) noexcept {
  base::unique_lock lock(lock_);
  for (auto const* const p : pools) {
    auto const known = members_.find(p);
    if (known == members_.end())
      continue;
    int const device = known->second.its->on.index();
    // With the turn, no other thread puts the pool to sleep or wakes it. take_turn() is false if this thread
    // has it already, or has a hold: but no pool ends inside the callable of a launch (weir/pool.h).
    bool const took_turn = take_turn(device, lock);
    members_.erase(p);
    if (took_turn)
      turn_of(device) = 0;
  }
  changed_.notify_all();
}

void spills::leave(pool_state const& s) noexcept {
  auto* const all = s.of.if_alive()->part_if_made<spills>();
  memory::memory_pool const* const its = s.here;
  if (all)
    all->remove({&its, 1});
}

spills::set spills::under_spill(set of) const {
  std::erase_if(of, [&](memory::memory_pool const* p) { return !members_.contains(p); });
  return of;
}

bool spills::holds_any() const noexcept {
  auto const mine = held_.find(base::this_thread_id());
  return mine != held_.end() && std::ranges::any_of(mine->second, [](set const& s) { return !s.empty(); });
}

bool spills::take_turn(int device, base::unique_lock& lock) noexcept {
  std::uint64_t const me = base::this_thread_id();
  std::uint64_t& holder = turn_of(device);
  auto const other_has_it = [&] { return holder && holder != me; };
  if (holds_any() && other_has_it())
    return false;  // it may wait for this thread
  changed_.wait(lock, [&] { return !other_has_it(); });
  if (holder == me)
    return false;
  holder = me;
  return true;
}

void spills::end_turn(int device) noexcept {
  base::lock_guard const hold(lock_);
  turn_of(device) = 0;
  changed_.notify_all();
}

spills::turn::turn(pool_state const& s) : device_(s.on.index()) {
  auto* const all = s.of.if_alive()->part_if_made<spills>();
  if (!all)
    return;
  base::unique_lock lock(all->lock_);
  if (all->members_.contains(s.here) && all->take_turn(device_, lock))
    of_ = all;
}

void spills::hold(std::string_view operation, clock::stream_clock* on, std::span<void const* const> what,
                  source_location at, until end) {
  set needs = pools_of(memory_, what);
  base::unique_lock lock(lock_);
  auto& mine = held_[base::this_thread_id()];
  mine.emplace_back();  // even if the call needs no pool: its let_go() takes one entry away
  try {
    needs = under_spill(std::move(needs));
    if (needs.empty())
      return;
    int const device = members_.at(needs.front()).its->on.index();
    lock.unlock();  // for the driver call
    auto const captured = (on ? *on : current_clock(runtime_, device, at)).captured();
    bool const inside_capture = captured.ok() && captured.value;
    lock.lock();
    needs = under_spill(std::move(needs));  // some may have left meanwhile
    bool const inside_hold = holds_any();
    for (auto* const p : needs) {
      member& m = members_.at(p);
      bool const would_wake = m.falls_asleep || p->is_asleep();
      if (would_wake && (inside_hold || inside_capture))
        throw invalid_use(std::string(operation), "memory in pool " + p->name() + ", which is asleep",
                          "No pool wakes in a capture, or in the callable of a launch: use the memory before", at,
                          error_id{431});
      m.stays |= inside_capture;
    }
    // Inside a hold the loop has found all awake, and the lock was not given up since.
    if (!inside_hold)
      memory::as_called(operation, [&] { wake_all(needs, lock, at); });
    needs = under_spill(std::move(needs));  // as above
    for (auto* const p : needs) {
      member& m = members_.at(p);
      ++m.holds, m.last_use = ++uses_;
      m.stays |= end == until::the_end;
    }
    mine.back() = std::move(needs);
  } catch (...) {
    if (!lock.owns_lock())
      lock.lock();
    mine.pop_back();
    throw;
  }
}

void spills::let_go() noexcept {
  base::lock_guard const hold(lock_);
  auto const mine = held_.find(base::this_thread_id());
  if (mine == held_.end() || mine->second.empty())
    return;  // this call began before the first spill: nothing was held for it
  for (auto* const p : mine->second.back()) {
    if (auto const m = members_.find(p); m != members_.end() && m->second.holds)
      --m->second.holds;
  }
  mine->second.pop_back();
  if (mine->second.empty())
    held_.erase(mine);
  changed_.notify_all();
}

bool spills::must_wait_for(set const& needs, std::vector<pool_state*>& asleep) {
  std::uint64_t const me = base::this_thread_id();
  bool wait = false;
  for (auto* const p : needs) {
    auto const m = members_.find(p);
    if (m == members_.end())
      continue;
    if (m->second.falls_asleep)
      wait = true;
    if (!p->is_asleep())
      continue;
    std::uint64_t const has_turn = turn_of(m->second.its->on.index());
    if (has_turn && has_turn != me)
      wait = true;
    asleep.push_back(m->second.its);
  }
  return wait;
}

std::vector<int> spills::take_turns(std::vector<pool_state*> const& asleep) {
  std::uint64_t const me = base::this_thread_id();
  std::vector<int> taken;
  taken.reserve(asleep.size());
  for (pool_state const* const s : asleep) {
    std::uint64_t& holder = turn_of(s->on.index());
    if (holder == me)
      continue;
    holder = me;
    taken.push_back(s->on.index());
  }
  return taken;
}

// A pool may have left the spill meanwhile.
void spills::note_wanted(set const& pools, int change) {
  for (auto* const p : pools) {
    if (auto const m = members_.find(p); m != members_.end())
      m->second.wanted += change;
  }
}

// Returns with all of them awake and the lock held. The caller counts its holds before it gives the lock up.
void spills::wake_all(set const& needs, base::unique_lock& lock, source_location at) {
  for (;;) {
    std::vector<pool_state*> asleep;
    if (must_wait_for(needs, asleep)) {
      changed_.wait(lock);
      continue;
    }
    if (asleep.empty())
      return;
    set const wanted = under_spill(needs);
    std::vector<int> const taken = take_turns(asleep);
    note_wanted(wanted, 1);  // what is awake stays so while the others wake
    std::exception_ptr refused;
    lock.unlock();
    try {
      for (pool_state* const s : asleep)
        s->wake(at);
    } catch (...) {
      refused = std::current_exception();
    }
    lock.lock();
    note_wanted(wanted, -1);
    for (int const device : taken)
      turn_of(device) = 0;
    changed_.notify_all();
    if (refused)
      std::rethrow_exception(refused);
  }
}

bool spills::wake(memory::memory_pool& pool, source_location at) {
  base::unique_lock lock(lock_);
  if (!members_.contains(&pool) || holds_any())
    return false;
  wake_all({&pool}, lock, at);
  if (auto const m = members_.find(&pool); m != members_.end())
    m->second.last_use = ++uses_;
  return true;
}

spills::member* spills::coldest(int device, std::uint64_t but, std::uint64_t search, bool unheld) {
  member* out = nullptr;
  for (auto& [pool, m] : members_) {
    if (m.its->on.index() != device || pool->number() == but || pool->is_asleep())
      continue;
    if (!pool->now().charged || m.stays || m.wanted || (unheld && m.holds) || m.stayed_awake == search)
      continue;
    if (!out || m.last_use < out->last_use)
      out = &m;
  }
  return out;
}

bool spills::is_in_an_earlier_call() const {
  return std::ranges::any_of(members_, [](auto const& m) { return m.second.before.has_mine(); });
}

// False: it gave no memory. Its bytes go to the first neighbour with room, else to the host.
bool spills::put_to_sleep(member const& m) {
  int const own = m.its->on.index();
  memory_report short_of{};
  for (int const neighbour : m.neighbours) {
    try {
      auto store = std::make_unique<neighbour_store>(runtime_, own, neighbour, m.at);
      if (auto const gave = m.its->sleep(std::move(store), short_of, m.at))
        return *gave > 0;
    } catch (...) {}  // as without room: the next one
  }
  try {
    return m.its->sleep(std::make_unique<host_store>(runtime_, own, m.at), short_of, m.at).value_or(0) > 0;
  } catch (...) {
    return false;
  }
}

bool spills::make_room(memory_report const& why) {
  int const device = why.on.index();
  auto* const memory = memory_.if_made(device);
  if (!memory)
    return false;
  // The pool's own limit refuses it, not the device: other pools that sleep do not help.
  if (why.pool.limit && why.pool.reserved + why.rounded > why.pool.limit)
    return false;
  base::unique_lock lock(lock_);
  // A thread with a hold waits for no hold of another: then only pools without a hold may sleep.
  bool const unheld = holds_any();
  bool const took_turn = take_turn(device, lock);
  if (turn_of(device) != base::this_thread_id())
    return false;  // another thread has the turn, and may wait for this one
  bool room = false;
  std::uint64_t const search = ++searches_;
  for (;;) {
    lock.unlock();
    room = memory->free_pages() >= why.rounded;
    lock.lock();
    member* const next = room ? nullptr : coldest(device, why.pool.pool, search, unheld);
    if (!next)
      break;
    if (!next->before.are_over()) {
      // Two threads in earlier calls could wait for each other.
      if (!took_turn || unheld || is_in_an_earlier_call()) {
        next->stayed_awake = search;
        continue;
      }
      // The call may wait for the turn. It tells no one of its end.
      turn_of(device) = 0;
      changed_.notify_all();
      lock.unlock();
      constexpr std::int64_t nap_ns = 200'000;
      base::sleep_ns(nap_ns);
      lock.lock();
      (void)take_turn(device, lock);  // true: this thread had it not, and has no hold
      continue;
    }
    next->falls_asleep = true;
    changed_.wait(lock, [&] { return !next->holds; });
    lock.unlock();
    bool const slept = put_to_sleep(*next);
    lock.lock();
    next->falls_asleep = false;
    changed_.notify_all();
    if (!slept)
      next->stayed_awake = search;
  }
  if (took_turn)
    turn_of(device) = 0;
  changed_.notify_all();
  return room;
}

}  // namespace weir::streams
