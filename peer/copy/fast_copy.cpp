// Detects copies for the fast path: each test takes a few loads, and each block is found once.
// Threads: any.
#include "peer/copy/fast_copy.h"

#include "peer/copy/stripes.h"

namespace weir::peer {

copy_settings& make_copy_settings() {
  static base::per_thread<copy_settings> of_thread;
  return *(copy_settings::own::value = &of_thread.get());
}

namespace {
// Of the given stream's device, or else of a device that holds one of the ranges. Null: there is none.
memory::allocator* memory_at_an_end(memory::device_memory& devices, clock::stream_clock const* given, asked const& a) {
  if (given)
    return devices.if_made(given->device());
  if (auto* const of_dst = devices.owner(a.dst))
    return of_dst;
  return devices.owner(a.src);
}
}  // namespace

bool fast_copy::find_device_end(memory::allocator& on, asked const& a, bool up_first) {
  for (bool const upwards : {up_first, !up_first}) {
    up = upwards;
    void const* const end = up ? a.dst : a.src;
    device_ = on.use(end, *stream);
    if (in_device(end, a.bytes))
      return true;
  }
  return false;
}

bool fast_copy::find(runtime::impl& r, clock::stream_clock* given, asked const& a, source_location const& at) {
  auto& mine = settings();
  if (mine.by != copy_route::automatic || (a.bytes >= stripes::worth && !mine.helpers.empty()))
    return false;
  driver::address const to = number(a.dst), from = number(a.src);
  // A range that wraps around is an error, which copy.cpp reports.
  if (to + a.bytes < a.bytes || from + a.bytes < a.bytes)
    return false;
  auto* const devices = r.part_if_made<memory::device_memory>();
  if (!devices)
    return false;
  memory::allocator* const on = memory_at_an_end(*devices, given, a);
  if (!on)
    return false;
  stream = given ? given : &streams::current_clock(r, on->device(), at);

  if (!find_device_end(*on, a, !mine.down))
    return false;
  mine.down = !up;
  void const* const other = up ? a.src : a.dst;
  if (auto* const pool = r.part_if_made<streams::pinned_memory>()) {
    auto const* spot = mine.known.find(pool, stream->id(), number(other), a.bytes);
    if (!spot)
      spot = pool->look(other, a.bytes, stream->id(), mine.known);
    if (spot) {
      pinned = *spot;
      return true;
    }
  }
  // The other end is not pinned memory of weir. The copy is fast if this device's memory holds it.
  pinned.last = nullptr;
  auto const apart = to < from ? from - to : to - from;
  if (apart < a.bytes)
    return false;  // the ranges overlap
  return within(on->use(other, *stream), other, a.bytes);
}

clock::stream_clock* find_to_fill(runtime::impl& r, clock::stream_clock* given, void* dst, std::size_t bytes,
                                  source_location const& at) {
  auto* const devices = r.part_if_made<memory::device_memory>();
  memory::allocator* const on = devices ? devices->owner(dst) : nullptr;
  if (!on || (given && given->device() != on->device()))
    return nullptr;
  auto& stream = given ? *given : streams::current_clock(r, on->device(), at);
  auto const block = on->use(dst, stream);
  base::byte_range const held{reinterpret_cast<driver::address>(block.base), block.bytes};
  return held.holds(reinterpret_cast<driver::address>(dst), bytes) ? &stream : nullptr;
}

bool fast_copies::find(runtime::impl& r, clock::stream_clock& stream, std::span<copy_item const> items,
                       source_location const& at) {
  for (auto const& item : items) {
    asked const a{item.dst, item.src, item.bytes};
    if (!a.bytes)
      continue;
    // An item in the same blocks as the one before it needs no search. A large one does: it may be striped.
    if (!all_.empty() && a.bytes < stripes::worth && all_.back().holds(a))
      continue;
    if (!all_.emplace_back().find(r, &stream, a, at))
      return false;
    of_host_ |= all_.back().pinned.last != nullptr;
  }
  return !all_.empty();
}

driver::status fast_copies::enqueue(std::span<copy_item const> items, std::size_t& done, source_location const& at) {
  struct notes {  // also after a refusal: the engine may have begun
    decltype(all_) const& of;
    ~notes() {
      for (auto const& one : of)
        one.note_use();
    }
  } const at_the_end{all_};
  for (done = 0; done < items.size(); ++done) {
    auto const& item = items[done];
    if (!item.bytes)
      continue;
    if (auto const answer = streams::try_copy(*all_.back().stream, item.dst, item.src, item.bytes, at); !answer.ok())
        [[unlikely]]
      return answer;
  }
  return {};
}

}  // namespace weir::peer
