// Creates, leases and destroys driver streams.
// Threads: any.
#include "streams/stream/stream_pool.h"

#include <algorithm>

#include "runtime/base/room.h"
#include "runtime/memory/device/device_memory.h"

namespace weir::streams {

stream_pool::stream_pool(runtime::impl& r)
    : runtime_(r),
      clocks_(r.part<clock::clocks>()),
      defaults_(new base::atomic<clock::stream_clock*>[static_cast<std::size_t>(r.device_count())]) {}

stream_pool::~stream_pool() {
  auto made = made_.lock();
  for (clock::stream_clock* t : *made) {
    clocks_.retire(*t);
    (void)clocks_.synchronize(t->now());  // a lost device answers at once
    (void)runtime_.machine().destroy_stream(t->device(), t->handle());
  }
}

clock::stream_clock& stream_pool::make(int device, driver::stream_kind kind, priority p, source_location at) {
  runtime_.open(device, "stream", at);
  auto const s = runtime_.machine().create_stream(device, kind, static_cast<int>(p));
  if (!s.ok())
    throw_refusal(s.is, "stream", base::gpu_name(device), "Destroy streams that are not needed", at);
  try {
    auto made = made_.lock();
    base::make_room(*made);
    made->push_back(&clocks_.make(device, s.value, clock::life::own));
    return *made->back();
  } catch (...) {
    (void)runtime_.machine().destroy_stream(device, s.value);
    throw;
  }
}

clock::stream_clock& stream_pool::default_line(int device, source_location at) {
  auto& slot = defaults_[static_cast<std::size_t>(device)];
  if (auto* known = slot.load(base::memory_order_acquire))
    return *known;
  runtime_.open(device, "default_stream", at);
  auto& made = make(device, driver::stream_kind::blocking, priority::normal, at);  // may block: no lock is held
  clock::stream_clock* first = nullptr;
  if (slot.compare_exchange(first, &made))
    return made;
  return *first;  // another thread's; the one made here is unused until the pool's end
}

clock::stream_clock& stream_pool::lease(int device, driver::stream_kind kind, priority p, source_location at) {
  auto const is_of_that_kind = [&](leased const& l) { return l.device == device && l.kind == kind && l.at == p; };
  {
    auto leases = leases_.lock();
    auto const idle = std::ranges::find_if(*leases, [&](leased const& l) { return !l.out && is_of_that_kind(l); });
    if (idle != leases->end()) {
      idle->out = true;
      return *idle->stream;
    }
    // The entry comes before the stream: a stream without an entry would be lost.
    leases->push_back({nullptr, device, kind, p, true});
  }
  // Perhaps the entry of another thread: those of one kind are alike, and each gets one stream.
  auto const without_stream = [&](leased const& l) { return !l.stream && is_of_that_kind(l); };
  try {
    auto& stream = make(device, kind, p, at);  // may block: no lock is held
    auto leases = leases_.lock();
    std::ranges::find_if(*leases, without_stream)->stream = &stream;
    return stream;
  } catch (...) {
    auto leases = leases_.lock();
    leases->erase(std::ranges::find_if(*leases, without_stream));
    throw;
  }
}

driver::stream_kind stream_pool::kind_of(clock::stream_clock const& stream) {
  auto const leases = leases_.lock();
  auto const it = std::find_if(leases->begin(), leases->end(), [&](leased const& l) { return l.stream == &stream; });
  return it == leases->end() ? driver::stream_kind::blocking : it->kind;  // the default stream is not leased
}

void stream_pool::give_back(clock::stream_clock& stream) noexcept {
  stream.set_carries_collectives(false);
  auto* const memory = runtime_.part_if_made<memory::device_memory>();
  // What its next lease allocates is not open to the readers of this one.
  if (auto* const of = memory ? memory->if_made(stream.device()) : nullptr)
    of->forget_own_readers(stream);
  auto leases = leases_.lock();
  auto const it = std::find_if(leases->begin(), leases->end(), [&](leased const& l) { return l.stream == &stream; });
  if (it == leases->end())
    return;
  stream.end_tenure();
  it->out = false;
  // To the end: leases take the one that was idle longest.
  std::rotate(it, it + 1, leases->end());
}

}  // namespace weir::streams
