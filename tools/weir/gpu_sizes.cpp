// The usual sizes of GPUs.
// Threads: any.
#include "fit.h"

namespace weir::tool {
namespace {
constexpr std::size_t mib = 1 << 20;
constexpr gpu_size sizes[] = {
    {4, 3'700 * mib, "GTX 1650, T1000"},
    {6, 5'700 * mib, "RTX 2060, A2000"},
    {8, 7'600 * mib, "RTX 4060"},
    {10, 9'600 * mib, "RTX 3080"},
    {11, 10'700 * mib, "RTX 2080 Ti"},
    {12, 11'400 * mib, "RTX 3060, 4070"},
    {16, 14'900 * mib, "T4, V100, RTX 4080"},
    {20, 18'900 * mib, "A4500"},
    {24, 22'500 * mib, "L4, A10, RTX 4090"},
    {32, 30'400 * mib, "RTX 5090, V100 32GB"},
    {40, 40'300 * mib, "A100 40GB"},
    {48, 45'400 * mib, "L40S, A6000"},
    {80, 81'000 * mib, "A100, H100"},
    {96, 95'000 * mib, "GH200, RTX PRO 6000"},
    {141, 143'100 * mib, "H200"},
    {180, 182'600 * mib, "B200"},
};
}  // namespace

std::span<gpu_size const> gpu_sizes() noexcept {
  return sizes;
}

gpu_size const* smallest_gpu(std::size_t limit) noexcept {
  for (gpu_size const& g : sizes) {
    if (g.usable >= beside_weir && g.usable - beside_weir >= limit)
      return &g;
  }
  return nullptr;
}

}  // namespace weir::tool
