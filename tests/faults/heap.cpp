// Operator new and delete over malloc and free.
// Threads: any.
#include "tests/faults/heap.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace weir::faults::heap {
namespace {

constinit std::atomic<std::int64_t> blocks{0};

struct of_thread {
  std::uint64_t asked = 0, left = 0, more = 0, refused = 0;
  int paused = 0;
  bool due = false;
};
constinit thread_local of_thread mine;

bool refused() noexcept {
  if (mine.paused > 0)
    return false;
  ++mine.asked;
  if (mine.left && --mine.left == 0)
    mine.due = true;
  if (!mine.due)
    return false;
  ++mine.refused;
  if (mine.more == 0)
    mine.due = false;
  else if (mine.more != without_end)
    --mine.more;
  return true;
}

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  if (refused())
    return nullptr;
  if (!bytes)
    bytes = 1;
  void* const p =
      alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : std::malloc(bytes);
  if (p)
    blocks.fetch_add(1, std::memory_order_relaxed);
  return p;
}

}  // namespace

std::int64_t live() noexcept {
  return blocks.load();
}

void fail(std::uint64_t k, std::uint64_t more) noexcept {
  mine.left = k;
  mine.more = more;
  mine.refused = 0;
  mine.due = false;
}

std::uint64_t stop() noexcept {
  mine.left = 0;
  mine.due = false;
  return mine.refused;
}

std::uint64_t asked() noexcept {
  return mine.asked;
}

void pause() noexcept {
  ++mine.paused;
}
void go_on() noexcept {
  --mine.paused;
}

}  // namespace weir::faults::heap

namespace {
void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const p = weir::faults::heap::take(bytes, alignment))
    return p;
  throw std::bad_alloc();
}
void give(void* p) noexcept {
  if (!p)
    return;
  weir::faults::heap::blocks.fetch_sub(1, std::memory_order_relaxed);
  std::free(p);
}
}  // namespace

void* operator new(std::size_t n) {
  return take_or_throw(n, 0);
}
void* operator new[](std::size_t n) {
  return take_or_throw(n, 0);
}
void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  return weir::faults::heap::take(n, 0);
}
void* operator new[](std::size_t n, std::nothrow_t const&) noexcept {
  return weir::faults::heap::take(n, 0);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return take_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return take_or_throw(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  give(p);
}
void operator delete[](void* p) noexcept {
  give(p);
}
void operator delete(void* p, std::size_t) noexcept {
  give(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  give(p);
}
void operator delete(void* p, std::nothrow_t const&) noexcept {
  give(p);
}
void operator delete[](void* p, std::nothrow_t const&) noexcept {
  give(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  give(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  give(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  give(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  give(p);
}
