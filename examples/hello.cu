// The first program: one file, GPUs or simulated devices.
#include <cstdio>
#include "weir/device.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/stream.h"
#include "weir/tensor.h"

struct scale_by {  // a kernel: plain C++ that nvcc and the host compiler both read
  float* y;
  float const* x;
  float a;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { y[i] = a * x[i]; }
};

int main(int argc, char**) try {
  if (argc > 1)
    return std::fputs("usage: hello (no options; WEIR_DEVICES chooses the devices)\n", stderr), 2;
  using namespace weir::literals;
  auto const shape = weir::shape{1024, 1024};
  weir::device_guard on{0};                 // with torch.cuda.device(0):
  weir::stream side{weir::priority::high};  // torch.cuda.Stream(priority=-1)
  weir::tensor host = weir::empty(shape, {.on = weir::cpu, .kind = weir::memory_kind::pinned});
  for (float& v : host.host<float>())
    v = 1;

  weir::tensor x;
  {
    weir::stream_guard in{side};        // with torch.cuda.stream(side):
    x = weir::empty(shape);             // side is its home
    x.copy_(host, weir::non_blocking);  // host's block is kept until the copy has read it
  }
  weir::current_stream().wait(side);  // wait_stream
  weir::tensor y = weir::empty_like(x);
  // the use of x on this stream is recorded: no record_stream to forget
  weir::parallel_for(weir::current_stream(), x.numel(), {weir::reads(x), weir::writes(y)},
                     scale_by{y.data<float>(), x.data<float>(), 2.f});
  float const mean = weir::mean(y).item<float>();
  std::printf("mean = %.1f, expected 2.0: %s\n", static_cast<double>(mean), mean == 2 ? "ok" : "WRONG");
  std::printf("memory of gpu:0, %s: %zu MiB in use, %zu MiB reserved\n", weir::get_device_properties().name.c_str(),
              weir::memory_allocated() >> 20, weir::memory_reserved() >> 20);
  return mean == 2 ? 0 : 1;
} catch (weir::out_of_memory const& e) {
  std::fputs(e.report().text().c_str(), stderr);
  return 1;
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
