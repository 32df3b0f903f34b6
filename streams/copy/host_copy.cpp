// Plain copies, and copies by streaming stores.
// Threads: any.
#include "streams/copy/host_copy.h"

#include <algorithm>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace weir::streams {
namespace {

#if defined(__SSE2__)
constexpr std::size_t line_bytes = 64;
constexpr std::size_t demoted_bytes = 4096;  // bytes demoted at a time

void stream_line(char* to, char const* from) noexcept {
  auto const* const in = reinterpret_cast<__m128i const*>(from);
  auto* const out = reinterpret_cast<__m128i*>(to);
  __m128i const a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2),
                d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a), _mm_stream_si128(out + 1, b), _mm_stream_si128(out + 2, c), _mm_stream_si128(out + 3, d);
}

// CLDEMOTE is a hint: other processors execute it as a no-op.
void copy_and_hand_on(char* to, char const* from, std::size_t bytes) noexcept {
  while (bytes) {
    std::size_t const n = std::min(bytes, demoted_bytes);
    std::memcpy(to, from, n);
    for (std::size_t at = 0; at < n; at += line_bytes)
      asm volatile(".byte 0x0f, 0x1c, 0x00" ::"a"(to + at) : "memory");
    to += n, from += n, bytes -= n;
  }
}
#endif

}  // namespace

void copy_in_host(void* dst, void const* src, std::size_t bytes, stores by) noexcept {
#if defined(__SSE2__)
  if (by == stores::to_shared_cache)
    return copy_and_hand_on(static_cast<char*>(dst), static_cast<char const*>(src), bytes);
  if (by == stores::past_caches) {
    auto* to = static_cast<char*>(dst);
    auto const* from = static_cast<char const*>(src);
    auto const step = [&](std::size_t n) { to += n, from += n, bytes -= n; };
    std::size_t const into_line = reinterpret_cast<std::uintptr_t>(dst) % line_bytes;
    std::size_t const to_next_line = std::min(bytes, (line_bytes - into_line) % line_bytes);
    std::memcpy(to, from, to_next_line);
    step(to_next_line);
    for (; bytes >= line_bytes; step(line_bytes))
      stream_line(to, from);
    std::memcpy(to, from, bytes);
    _mm_sfence();  // streaming stores become visible before the completion does
    return;
  }
#endif
  static_cast<void>(by);
  std::memcpy(dst, src, bytes);
}

}  // namespace weir::streams
