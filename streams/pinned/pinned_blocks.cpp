// Pinned blocks after allocation: their noted uses, and their reuse once those are complete.
// Threads: any.
#include "runtime/driver/allocation_observer.h"
#include "streams/pinned/pinned_pool.h"

namespace weir::streams {
namespace {

using state_of = pinned_space::state;

// Freed bytes between fences: without them, the first fence at a miss would cover the whole backlog.
constexpr std::size_t fence_after = std::size_t{1} << 20;

// Requires: in.lock() is held.
[[noreturn]] void refuse_free(pinned_space& space, void* block, pinned_space::place found, source_location at) {
  std::string const what = base::address_text(block);
  if (found == space.end())
    throw invalid_use("deallocate", what + ", which is not pinned memory of this runtime",
                      "Free the block with the runtime that allocated it", at, error_id{212});
  if (found->second.is == state_of::live)
    throw invalid_use("deallocate",
                      what + ", inside the pinned block " + base::address_text(found->first) + " of " +
                          std::to_string(found->second.requested) + " B",
                      "Free the address that allocate returned", at, error_id{213});
  throw invalid_use("deallocate", what + ", pinned memory that was freed before", "Free each block once", at,
                    error_id{214});
}

using fences_due = pinned_space::few<clock::stamp>;

// `behind` are the marked streams that still exist. The observer knows exact uses, and the work of ended
// streams, from tell_marked().
void tell_freed(driver::allocation_observer& observer, driver::address block, pinned_space::range const& one,
                source_location at) {
  std::vector<driver::allocation_observer::user> behind;
  for (auto const& user : one.users)
    if (user.stream->alive() != clock::life::retired && !user.stream->has_no_stream())
      behind.push_back({user.stream->device(), user.stream->handle()});
  observer.freed(block, one.requested, behind, at);
}
void tell_marked(driver::allocation_observer* observer, driver::address block, clock::stream_clock const* user) {
  if (observer && user) [[unlikely]]
    observer->marked({user->device(), user->handle()}, block);
}

// As many as fit: a free allocates nothing.
void add_fences(fences_due& due, pinned_space::range const& one) {
  for (auto const s : one.stamps) {
    if (due.size() < due.capacity())
      due.push_back(s);
  }
}

// Best effort: a refused fence is recorded at the next miss. Requires: no lock is held
void record(fences_due const& due) {
  for (auto const s : due) {
    auto* const user = clock::find(s.stream);
    if (user && user->alive() != clock::life::retired)
      static_cast<void>(user->fence());
  }
}

}  // namespace

void pinned_memory::deallocate(void* block, source_location at) {
  if (!block || process_was_forked())
    return;
  fences_due due;
  {
    auto p = state_->in.lock();
    auto freed = p->space.end();
    if (!state_->outside(block))
      freed = p->space.find(number(block));
    if (freed == p->space.end() || freed->first != number(block) || freed->second.is != state_of::live)
      refuse_free(p->space, block, freed, at);
    auto& one = freed->second;
    pinned_uses::version().fetch_add(1);  // from here on no thread finds the block in its cache of uses
    state::gather(*p, one);
    if (auto* const observer = state_->owner.observer()) [[unlikely]]
      tell_freed(*observer, number(block), one, at);
    // From now on its uses are stamps.
    for (auto const& user : one.users)
      join(one.stamps, user.stream->of_marks().now());
    one.users.clear();
    drop_if(one.stamps, [&](clock::stamp s) { return state_->clocks.complete(s); });
    --p->live;
    p->counters.take_back(one.requested, one.bytes);
    if (one.use_forgotten) {
      one.is = state_of::quarantined;  // no stamp tells when that use ends
    } else if (one.stamps.empty()) {
      state_->reclaim(*p, freed);
    } else {
      one.is = state_of::pending;
      p->unfenced += one.bytes;
      if (p->unfenced >= fence_after) {
        add_fences(due, one);
        p->unfenced = 0;
      }
      p->pending.push_back(freed->first);
    }
  }
  record(due);
}

void pinned_memory::record_use(void const* block, clock::stream_clock& user) noexcept {
  if (state_->outside(block))
    return;
  auto p = state_->in.lock();
  auto const found = p->space.find(number(block));
  if (found == p->space.end() || found->second.is != state_of::live)
    return;
  auto& users = found->second.users;
  if (std::ranges::find(users, &user, &memory::block_user::stream) != users.end())
    return;
  try {
    state::forget_ended(*p, found->second);
    user.note_mark();
    // A borrowed stream may be forgotten before the free: its clock is held.
    users.push_back({&user, user.alive() == clock::life::borrowed ? user.hold() : nullptr});
    state::reserve_stamps(found->second);
    tell_marked(state_->owner.observer(), found->first, &user);
  } catch (...) {
    found->second.use_forgotten = true;  // no host memory: the block is never reused
  }
}

void pinned_memory::record_use(void const* block, clock::stamp s) noexcept {
  if (state_->outside(block))
    return;
  auto p = state_->in.lock();
  auto const found = p->space.find(number(block));
  if (found == p->space.end() || found->second.is != state_of::live)
    return;
  try {
    state::forget_ended(*p, found->second);
    join(found->second.stamps, s);
    state::reserve_stamps(found->second);
    tell_marked(state_->owner.observer(), found->first, clock::find(s.stream));
  } catch (...) {
    found->second.use_forgotten = true;  // as above
  }
}

pinned_spot const* pinned_memory::look(void const* at, std::size_t bytes, std::uint64_t stream,
                                       pinned_uses& mine) noexcept {
  if (state_->outside(at))
    return nullptr;
  std::uint64_t const version = pinned_uses::version().load(base::memory_order_acquire);
  auto p = state_->in.lock();
  auto const found = p->space.find(number(at));
  if (found == p->space.end() || found->second.is != state_of::live)
    return nullptr;
  pinned_spot spot{found->first, found->second.requested, stream, this, nullptr};
  if (!spot.holds(number(at), bytes))
    return nullptr;
  try {
    spot.last = state::use_of(*p, found->second, stream);
    tell_marked(state_->owner.observer(), found->first, clock::find(stream));
  } catch (...) {
    return nullptr;
  }
  return mine.remember(spot, version);
}

std::optional<memory::block> pinned_memory::find(void const* inside) const noexcept {
  if (state_->outside(inside))
    return {};
  auto p = state_->in.lock();
  auto const found = p->space.find(number(inside));
  if (found == p->space.end() || found->second.is != state_of::live)
    return {};
  return memory::block{reinterpret_cast<void*>(found->first), found->second.requested, -1, memory_kind::pinned,
                       nullptr};
}

std::uint64_t pinned_memory::runtime_id() const noexcept {
  return state_->owner.id();
}

bool pinned_memory::reserves(void const* p) const noexcept {
  if (state_->outside(p))
    return false;
  auto in = state_->in.lock();
  return in->space.find(number(p)) != in->space.end();
}

}  // namespace weir::streams
