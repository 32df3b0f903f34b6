// Memory that is open to peers: each handle of such a stream is granted to all of its readers with the call
// that gives it to its own device.
// Threads: any. Handles neither come nor go while a stream's memory is opened;
// no stream's lock is held over a driver call.
//
// Invariants: a handle at rest in the memory of a stream is open to its readers, but those that are lost;
//             none that is open to a peer moves, and none moves to where peers read.
// A reader that the driver does not let in any more is none from then on: its owner goes on.
#include <bit>

#include "runtime/memory/device/device_allocator.h"

namespace weir::memory {

std::uint64_t device_allocator::living(std::uint64_t devices) const noexcept {
  std::uint64_t out = 0;
  for (; devices; devices &= devices - 1) {
    if (int const d = std::countr_zero(devices); !clocks_.lost(d)) out |= std::uint64_t{1} << d;
  }
  return out;
}

void device_allocator::note_readers(stream_memory& m, handle& h, std::uint64_t more) noexcept {
  m.open_bytes -= open_bytes(h);
  h.readers |= more;
  m.open_bytes += open_bytes(h);
}

void device_allocator::forget_readers(std::uint64_t devices) {
  base::lock_guard const hold(making_);
  for (auto const& m : memories_) m->readers.store(m->readers.load() & ~devices);
  readers_ &= ~devices;
}

void device_allocator::forget_own_readers(clock::timeline& home) noexcept {
  base::lock_guard const hold(making_);
  auto const found = by_stream_.find(home.id());
  if (found != by_stream_.end()) found->second->readers.store(found->second->readers.load() & readers_);
}

driver::status device_allocator::open_handles(stream_memory& m, std::uint64_t readers) {
  std::vector<handle> closed;
  {
    base::owned_lock hold(m.lock);
    for (auto const& [at, h] : m.handles) {
      if ((h.readers & own_bit()) && (readers & ~h.readers)) closed.push_back(h);
    }
  }
  for (handle const& h : closed) {
    if (auto const s = machine_.grant_all(h.at, h.bytes, readers); !s.ok()) return s;
    base::owned_lock hold(m.lock);
    note_readers(m, m.handles.at(h.at), readers);
  }
  return {};
}

driver::status device_allocator::open_to(clock::timeline* home, std::uint64_t readers) {
  readers &= ~own_bit();
  if (!readers) return {};
  if (!space_.maps()) return {driver::code::not_supported};
  for (std::uint64_t left = readers; left; left &= left - 1) {
    if (auto const s = machine_.open(std::countr_zero(left)); !s.ok()) return s;
  }
  stream_memory* const one = home ? &memory_of(*home) : nullptr;
  base::lock_guard const alone(granting_);
  traffic::halt const stay(traffic_);
  if (one) {
    if (auto const s = open_handles(*one, readers); !s.ok()) return s;
    base::lock_guard const hold(making_);
    one->readers.store(one->readers.load() | readers);
    return {};
  }
  for (std::size_t opened = 0;;) {
    auto const all = memories();
    for (; opened < all.size(); ++opened) {
      if (auto const s = open_handles(*all[opened], readers); !s.ok()) return s;
    }
    base::lock_guard hold(making_);
    if (memories_.size() != opened) continue;  // one came meanwhile
    for (auto const& m : memories_) m->readers.store(m->readers.load() | readers);
    readers_ |= readers;
    return {};
  }
}

void device_allocator::validate_readers(stream_memory const& m, std::vector<std::string>& wrong,
                                        std::string const& who) const {
  std::uint64_t const expected = m.readers.load();
  std::size_t open = 0;
  for (auto const& [at, h] : m.handles) {
    open += open_bytes(h);
    if ((h.readers & own_bit()) && living(expected & ~h.readers))
      wrong.push_back(who + ": a handle is open to whom its memory is open to, at " + std::to_string(at));
  }
  if (open != m.open_bytes)
    wrong.push_back(who + ": bytes open to peers: counted " + std::to_string(m.open_bytes) + ", found " +
                    std::to_string(open));
}

}  // namespace weir::memory
