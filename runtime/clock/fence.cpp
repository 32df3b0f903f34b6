// The pool of driver events and the bounded list of a stream's fences.
// Threads: see fence.h.
#include "runtime/clock/fence.h"

#include <algorithm>

#include "runtime/base/process.h"
#include "runtime/base/room.h"
#include "runtime/base/rule.h"

namespace weir::clock {
pooled_event::~pooled_event() {
  if (!process_was_forked())
    pool_->give_back(device_, kind_, handle_, !given_away());
}

event_pool::event_pool(driver::driver& machine, int devices) : machine_(machine) {
  contents_.lock()->devices.resize(static_cast<std::size_t>(devices));
}

driver::result<driver::event_handle> event_pool::take_handle(int device, driver::event_kind kind) {
  auto const k = static_cast<std::size_t>(kind);
  std::vector<driver::event_handle> doomed;
  driver::event_handle h = driver::event_handle::none;
  {
    auto c = contents_.lock();
    if (c->closed)
      return {{driver::code::unloading}, h};
    auto& d = c->devices[static_cast<std::size_t>(device)];
    if (!d.doomed.empty()) {
      // give_back() allocates nothing: it needs the room that the pool's vector has.
      doomed.reserve(d.doomed.capacity());
      for (auto gone : d.doomed)
        std::erase(d.made, gone);
      doomed.swap(d.doomed);
    }
    if (!d.idle[k].empty()) {
      h = d.idle[k].back();
      d.idle[k].pop_back();
    } else {
      // Makes room, so that nothing allocates after the event is made, nor when it is returned.
      for (auto& idle : d.idle)
        base::make_room(idle, std::min(kept, d.made.size() + 1));
      base::make_room(d.doomed, d.made.size() + 1);
      d.made.push_back(driver::event_handle::none);  // the place of the event that make_in_place() makes
    }
  }
  for (auto gone : doomed)
    machine_.destroy_event(device, gone);
  if (h == driver::event_handle::none)
    return make_in_place(device, kind);
  return {{}, h};
}

driver::result<driver::event_handle> event_pool::make_in_place(int device, driver::event_kind kind) {
  auto const made = machine_.create_event(device, kind);
  {
    auto c = contents_.lock();
    if (!c->closed) {
      auto& all = c->devices[static_cast<std::size_t>(device)].made;
      // Another thread's place serves as well.
      auto const place = std::find(all.rbegin(), all.rend(), driver::event_handle::none);
      if (!made.ok()) {
        all.erase(std::next(place).base());  // the element at `place`, which runs backwards
        return {made.is, driver::event_handle::none};
      }
      *place = made.value;
      return {{}, made.value};
    }
  }
  // close() has destroyed the events that it found. This one came later.
  if (made.ok())
    machine_.destroy_event(device, made.value);
  return {{driver::code::unloading}, driver::event_handle::none};
}

driver::result<event_ref> event_pool::take(int device, driver::event_kind kind) {
  auto const h = take_handle(device, kind);
  if (!h.ok())
    return {h.is, {}};
  try {
    return {{}, std::make_shared<pooled_event>(shared_from_this(), device, kind, h.value)};
  } catch (...) {
    give_back(device, kind, h.value, true);
    throw;
  }
}

driver::result<fence_ref> event_pool::take_fence(int device) {
  struct with_event : fence {
    with_event(std::shared_ptr<event_pool> pool, int device, driver::event_handle h) noexcept
        : own(std::move(pool), device, driver::event_kind::order_only, h) {
      event = event_ref(event_ref(), &own);  // owns nothing: no copy of it outlives its fence
    }
    pooled_event own;
  };
  auto const h = take_handle(device, driver::event_kind::order_only);
  if (!h.ok())
    return {h.is, {}};
  try {
    return {{}, std::make_shared<with_event>(shared_from_this(), device, h.value)};
  } catch (...) {
    give_back(device, driver::event_kind::order_only, h.value, true);
    throw;
  }
}

void event_pool::give_back(int device, driver::event_kind kind, driver::event_handle h, bool reusable) noexcept {
  auto c = contents_.lock();
  if (c->closed)
    return;
  auto& d = c->devices[static_cast<std::size_t>(device)];
  auto& idle = d.idle[static_cast<std::size_t>(kind)];
  (reusable && idle.size() < kept ? idle : d.doomed).push_back(h);
}

void event_pool::close() noexcept {
  std::vector<one_device> devices;
  {
    auto c = contents_.lock();
    c->closed = true;
    devices.swap(c->devices);
  }
  for (std::size_t i = 0; i < devices.size(); ++i)
    for (auto h : devices[i].made)
      if (h != driver::event_handle::none)
        machine_.destroy_event(static_cast<int>(i), h);
}

bool event_pool::closed() const {
  return contents_.lock()->closed;
}

void fence_list::publish(fence_ref f, dropped& out) {
  auto at = list_.end();
  // two threads may record at once; nearly always the end
  while (at != list_.begin() && (*std::prev(at))->n > f->n)
    --at;
  WEIR_RULE(at == list_.begin() || (*std::prev(at))->n < f->n, "the fences are not in ascending order");
  list_.insert(at, std::move(f));
  if (list_.size() <= most)
    return;
  out.reserve(out.size() + list_.size());  // nothing below allocates
  std::size_t const older_half = list_.size() / 2;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    bool const goes = list_[i]->stale.load() || (i < older_half && i % 2 == 0);
    // The last one stays: it covers those that go.
    if (goes && i + 1 < list_.size()) {
      out.push_back(std::move(list_[i]));
      continue;
    }
    if (i != kept)
      list_[kept] = std::move(list_[i]);
    ++kept;
  }
  list_.resize(kept);
  WEIR_RULE(list_.size() <= most, "there are more fences than `most`");
}

fence_ref fence_list::covering(std::uint64_t n, dropped& out) {
  if (list_.empty() || list_.back()->n < n)
    return nullptr;  // the usual case
  auto at = std::lower_bound(list_.begin(), list_.end(), n,
                             [](fence_ref const& f, std::uint64_t wanted) { return f->n < wanted; });
  while (at != list_.end() && (*at)->stale.load()) {
    out.push_back(std::move(*at));
    at = list_.erase(at);
  }
  return at == list_.end() ? nullptr : *at;
}

std::vector<fence_ref> fence_list::newer_than(std::uint64_t n) const {
  auto const at = std::upper_bound(list_.begin(), list_.end(), n,
                                   [](std::uint64_t known, fence_ref const& f) { return known < f->n; });
  return {at, list_.end()};
}

void fence_list::drop_done(std::uint64_t done, dropped& out) {
  while (!list_.empty() && list_.front()->n <= done) {
    out.push_back(std::move(list_.front()));
    list_.pop_front();
  }
}

void fence_list::clear(dropped& out) noexcept {
  try {
    out.reserve(out.size() + list_.size());
    for (auto& f : list_)
      out.push_back(std::move(f));
  } catch (...) {}  // no memory: they are released here
  list_.clear();
}

}  // namespace weir::clock
