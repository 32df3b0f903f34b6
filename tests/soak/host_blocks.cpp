// Operator new and delete over malloc and free. A count is one atomic, so a forked child waits for no thread.
// Threads: any.
#include "tests/soak/host_blocks.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <new>

namespace weir::soak {
namespace {

constinit std::array<std::atomic<std::int64_t>, block_sizes> live{};
constinit std::atomic<std::int64_t> live_bytes{0};

std::size_t size_of(std::size_t bytes) noexcept {
  std::size_t const steps = (bytes - 1) / block_step;
  if (steps < exact_sizes)
    return steps;
  return std::min(exact_sizes + static_cast<std::size_t>(std::bit_width(steps / exact_sizes)) - 1, block_sizes - 1);
}

void count(void* p, std::int64_t by) noexcept {
  std::size_t const bytes = ::malloc_usable_size(p) + sizeof(void*);  // with the heap's own word
  std::size_t const size = size_of(bytes);
  live[size].fetch_add(by, std::memory_order_relaxed);
  if (size + 1 < block_sizes)
    live_bytes.fetch_add(by * static_cast<std::int64_t>(bytes), std::memory_order_relaxed);
}

void* take(std::size_t bytes, std::size_t alignment) noexcept {
  bytes = std::max<std::size_t>(bytes, 1);
  void* const p =
      alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment) : std::malloc(bytes);
  if (p)
    count(p, 1);
  return p;
}
void* take_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const p = take(bytes, alignment))
    return p;
  throw std::bad_alloc();
}
void give(void* p) noexcept {
  if (!p)
    return;
  count(p, -1);
  std::free(p);
}

}  // namespace

std::array<std::int64_t, block_sizes> host_blocks_now() noexcept {
  std::array<std::int64_t, block_sizes> all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = live[i].load(std::memory_order_relaxed);
  return all;
}

std::int64_t host_block_bytes_now() noexcept {
  return live_bytes.load(std::memory_order_relaxed);
}

std::size_t most_bytes_of(std::size_t size) noexcept {
  if (size < exact_sizes)
    return size * block_step + sizeof(void*);
  return (exact_sizes << (size - exact_sizes + 1)) * block_step - sizeof(void*);
}

}  // namespace weir::soak

void* operator new(std::size_t n) {
  return weir::soak::take_or_throw(n, 0);
}
void* operator new[](std::size_t n) {
  return weir::soak::take_or_throw(n, 0);
}
void* operator new(std::size_t n, std::nothrow_t const&) noexcept {
  return weir::soak::take(n, 0);
}
void* operator new[](std::size_t n, std::nothrow_t const&) noexcept {
  return weir::soak::take(n, 0);
}
void* operator new(std::size_t n, std::align_val_t a) {
  return weir::soak::take_or_throw(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return weir::soak::take_or_throw(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept {
  weir::soak::give(p);
}
void operator delete[](void* p) noexcept {
  weir::soak::give(p);
}
void operator delete(void* p, std::size_t) noexcept {
  weir::soak::give(p);
}
void operator delete[](void* p, std::size_t) noexcept {
  weir::soak::give(p);
}
void operator delete(void* p, std::nothrow_t const&) noexcept {
  weir::soak::give(p);
}
void operator delete[](void* p, std::nothrow_t const&) noexcept {
  weir::soak::give(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  weir::soak::give(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  weir::soak::give(p);
}
void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  weir::soak::give(p);
}
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept {
  weir::soak::give(p);
}
