// The oldest stamps tell when bytes are free again.
// Threads: any. No driver call is made under the lock.
#include "streams/copy/room_in_use.h"

namespace weir::streams {

void room_in_use::forget_complete(books& all) {
  while (!all.in_use.empty() && clocks_.complete(all.in_use.front().until)) {
    all.bytes -= all.in_use.front().bytes;
    all.in_use.pop_front();
  }
}

bool room_in_use::may_have(std::size_t bytes, bool takes) {
  while (true) {
    clock::stamp oldest;
    {
      auto all = books_.lock();
      if (all->bytes + bytes > limit_)
        forget_complete(*all);
      if (all->bytes + bytes <= limit_) {
        all->bytes += takes ? bytes : 0;
        return true;
      }
      if (all->in_use.empty())
        return !takes;
      oldest = all->in_use.front().until;
    }
    auto const done = clocks_.poll(oldest);
    if (!done.ok() || !done.value)
      return false;
  }
}

bool room_in_use::has(std::size_t bytes) {
  return may_have(bytes, false);
}
bool room_in_use::take(std::size_t bytes) {
  return may_have(bytes, true);
}

void room_in_use::add(std::size_t bytes) noexcept {
  books_.lock()->bytes += bytes;
}

bool room_in_use::until(clock::stamp end, std::size_t bytes) noexcept {
  auto all = books_.lock();
  try {
    all->in_use.push_back({end, bytes});
  } catch (...) {
    all->bytes -= bytes;  // no memory for the stamp: the limit is exceeded once
  }
  return all->bytes >= limit_ / 2;
}

void room_in_use::give_back(std::size_t bytes) noexcept {
  books_.lock()->bytes -= bytes;
}

std::optional<clock::stamp> room_in_use::oldest() const {
  auto const all = books_.lock();
  if (all->in_use.empty())
    return std::nullopt;
  return all->in_use.front().until;
}

std::size_t room_in_use::bytes() {
  auto all = books_.lock();
  forget_complete(*all);
  return all->bytes;
}

}  // namespace weir::streams
