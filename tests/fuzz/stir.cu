// The kernel as a GPU runs it, and as a simulated machine does.
// Threads: as stir.h says.
#include "tests/fuzz/stir.h"

#include <memory>

namespace weir::fuzz {
namespace {

struct task {
  std::uint32_t* to;
  std::uint32_t const* from;
  std::size_t words;
  std::uint32_t k;
};

#ifdef __CUDACC__
__global__ void stir_words(task t) {
  for (std::size_t i = blockIdx.x * std::size_t(blockDim.x) + threadIdx.x; i < t.words;
       i += std::size_t(gridDim.x) * blockDim.x) {
    t.to[i] = 3 * t.from[i] + static_cast<std::uint32_t>(i) + t.k;
  }
}
driver::status on_gpu(driver::driver& m, int device, driver::stream_handle s, task const& t) {
  auto const native = m.native(device, s);
  if (!native.ok())
    return native.is;
  if (auto const is = m.make_current(device); !is.ok())
    return is;
  stir_words<<<4, 64, 0, native.value>>>(t);
  auto const error = cudaGetLastError();
  if (error == cudaSuccess)
    return {};
  bool const of_a_capture = error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorStreamCaptureWrongThread;
  return {of_a_capture ? driver::code::not_permitted : driver::code::failed, static_cast<int>(error)};
}
#else
driver::status on_gpu(driver::driver&, int, driver::stream_handle, task const&) {
  return {driver::code::not_supported, 0};
}
#endif

}  // namespace

driver::status stir(driver::driver& m, int device, driver::stream_handle s, driver::address to, driver::address from,
                    std::size_t words, std::uint32_t k) {
  task const t{reinterpret_cast<std::uint32_t*>(to), reinterpret_cast<std::uint32_t const*>(from), words, k};
  if (!m.simulated())
    return on_gpu(m, device, s, t);
  driver::touch const uses[] = {{from, 4 * words, false}, {to, 4 * words, true}};
  return m.enqueue(device, s, uses,
                   {[](void* p) {
                      task const& t = *static_cast<task*>(p);
                      for (std::size_t i = 0; i < t.words; ++i)
                        t.to[i] = 3 * t.from[i] + static_cast<std::uint32_t>(i) + t.k;
                    },
                    [](void* p) { delete static_cast<task*>(p); }, new task(t)});
}

}  // namespace weir::fuzz
