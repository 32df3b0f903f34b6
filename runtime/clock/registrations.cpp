// Registrations of streams: begun and ended by name, and counted.
// Threads: any.
#include "runtime/clock/clocks_state.h"

namespace weir::clock {

stream_clock& clocks::enrol(int device, driver::stream_handle h, bool announces) {
  auto all = state_->registered.lock();
  auto const at = all->try_emplace({device, h}).first;
  if (!at->second.stream) {
    try {
      at->second.stream = &make(device, h, life::foreign);  // locks `registered` only for one of weir's own
    } catch (...) {
      all->erase(at);
      throw;
    }
    at->second.stream->announces_.store(announces);
  }
  // Threads may remember that this stream need not be asked whether it is captured.
  if (!announces && at->second.stream->announces_.exchange(false))
    invalidate_fast_paths();
  ++at->second.times;
  return *at->second.stream;
}

stream_clock* clocks::known(int device, driver::stream_handle h) const {
  auto const all = state_->registered.lock();
  auto const at = all->find({device, h});
  return at == all->end() ? nullptr : at->second.stream;
}

auto clocks::state::end_one(registrations& all, stream_clock& t) -> left {
  auto const at = all.find({t.device(), t.handle()});
  bool const has_entry = at != all.end() && at->second.stream == &t;
  if (has_entry) {
    if (at->second.times == 0)
      return left::none;
    --at->second.times;
    // It is registered once more, or weir's own.
    if (at->second.times > 0 || t.alive() == life::own)
      return left::one;
    all.erase(at);
  }
  // Without an entry one of weir's streams has got its handle since, see make(), or another call ends it.
  bool const is_last = t.alive() == life::foreign && t.claim_end();
  return is_last ? left::last : left::none;
}

// The look and the end are under one lock: meanwhile no stream object is reused for another registration.
bool clocks::leave(std::uint64_t id) {
  state::left what = state::left::none;
  stream_clock* its = nullptr;
  {
    auto all = state_->registered.lock();
    its = find(id);
    if (its)
      what = state::end_one(*all, *its);
  }
  if (what == state::left::last)
    (void)finish(*its);
  return what != state::left::none;
}

bool clocks::leave(int device, driver::stream_handle h) {
  state::left what = state::left::none;
  stream_clock* its = nullptr;
  {
    auto all = state_->registered.lock();
    auto const at = all->find({device, h});
    if (at != all->end()) {
      its = at->second.stream;
      what = state::end_one(*all, *its);
    }
  }
  if (what == state::left::last)
    (void)finish(*its);
  return what != state::left::none;
}

}  // namespace weir::clock
