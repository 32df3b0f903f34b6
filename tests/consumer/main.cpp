// On every device: copies to it, runs a kernel on its own stream, copies back, checks every value.
// Threads: one.
#include <cstdio>
#include <exception>
#include <vector>

#include <weir/copy.h>

#include "scale.h"

int main() try {
  std::size_t const n = 1000, bytes = n * sizeof(float);
  std::vector<float> host(n);
  int right = 0;
  for (int i = 0; i < weir::device_count(); ++i) {
    weir::device_guard on{i};
    weir::stream side;
    weir::stream_guard in{side};
    weir::buffer x(bytes), y(bytes);
    for (std::size_t k = 0; k < n; ++k)
      host[k] = static_cast<float>(k);
    weir::copy(x.data(), host.data(), bytes);
    scale(side, y.data<float>(), x.data<float>(), n, 2);
    weir::copy(host.data(), y.data(), bytes);
    std::size_t k = 0;
    while (k < n && host[k] == 2 * static_cast<float>(k))
      ++k;
    right += k == n;
  }
  std::printf("%d devices computed the right values\n", right);
  return right == weir::device_count() && right > 0 ? 0 : 1;
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
