// A bit of a register stands for a power of x, the highest bit for the lowest power. Tables take eight bytes at a time.
// Carry-less multiplication folds four registers of 128 bits over the blocks, then into one.
// Source of the constants: V. Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel, 2009.
// Threads: values.
#include "checkpoint/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weir::checkpoints {
namespace {

constexpr std::uint32_t polynomial = 0xedb88320;

// tables[k][b]: the register behind byte b and k zero bytes.
constexpr auto tables = [] {
  std::array<std::array<std::uint32_t, 256>, 8> all{};
  for (std::uint32_t b = 0; b < 256; ++b) {
    std::uint32_t r = b;
    for (int bit = 0; bit < 8; ++bit)
      r = r & 1 ? r >> 1 ^ polynomial : r >> 1;
    all[0][b] = r;
  }
  for (std::size_t k = 1; k < all.size(); ++k)
    for (std::size_t b = 0; b < 256; ++b)
      all[k][b] = all[k - 1][b] >> 8 ^ all[0][all[k - 1][b] & 255];
  return all;
}();

#if defined(__x86_64__)
constexpr std::size_t block = 64;
using lane = __m128i;

__attribute__((target("pclmul"))) lane folded(lane over, lane by, lane next) {
  lane const both = _mm_xor_si128(_mm_clmulepi64_si128(over, by, 0x00), _mm_clmulepi64_si128(over, by, 0x11));
  return _mm_xor_si128(both, next);
}
lane load(std::byte const* p) {
  return _mm_loadu_si128(reinterpret_cast<lane const*>(p));
}

// Requires: one block or more. Returns: 16 bytes that stand for all of them
__attribute__((target("pclmul"))) std::array<std::byte, 16> fold_blocks(std::uint32_t begin, std::byte const* p,
                                                                        std::size_t blocks) {
  lane const over_block = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
  lane const over_lane = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
  lane all[4] = {load(p), load(p + 16), load(p + 32), load(p + 48)};
  all[0] = _mm_xor_si128(all[0], _mm_cvtsi32_si128(static_cast<int>(begin)));
  for (std::size_t b = 1; b < blocks; ++b) {
    p += block;
    for (int i = 0; i < 4; ++i)
      all[i] = folded(all[i], over_block, load(p + 16 * i));
  }
  lane one = all[0];
  for (int i = 1; i < 4; ++i)
    one = folded(one, over_lane, all[i]);
  std::array<std::byte, 16> bytes{};
  std::memcpy(bytes.data(), &one, bytes.size());
  return bytes;
}
#endif

}  // namespace

void checksum::process_bytes_by_tables(void const* from, std::size_t bytes) noexcept {
  auto const* p = static_cast<unsigned char const*>(from);
  std::uint32_t r = register_;
  for (; bytes >= 8; p += 8, bytes -= 8) {
    std::uint32_t next = 0;
    for (std::size_t i = 0; i < 4; ++i)
      next ^= tables[7 - i][p[i] ^ (r >> 8 * i & 255)] ^ tables[3 - i][p[i + 4]];
    r = next;
  }
  for (; bytes > 0; ++p, --bytes)
    r = r >> 8 ^ tables[0][(r ^ *p) & 255];
  register_ = r;
}

void checksum::process_bytes(void const* from, std::size_t bytes) noexcept {
#if defined(__x86_64__)
  static bool const multiplies = __builtin_cpu_supports("pclmul");
  std::size_t const blocks = bytes / block;
  if (multiplies && blocks > 0) {
    auto const* const p = static_cast<std::byte const*>(from);
    auto const folded_bytes = fold_blocks(register_, p, blocks);
    register_ = 0;  // it is in the first of them
    process_bytes_by_tables(folded_bytes.data(), folded_bytes.size());
    from = p + blocks * block;
    bytes %= block;
  }
#endif
  process_bytes_by_tables(from, bytes);
}

}  // namespace weir::checkpoints
