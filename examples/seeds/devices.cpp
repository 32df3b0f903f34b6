// Topic 6: choosing a tensor's device by guards, by name and by its source; errors that name a line.
#include <cstdlib>
#include <optional>
#include <string>

#include "examples/seeds/topics.h"
#include "weir/launch.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

void the_articles_lines(table& t) {
  weir::device const cuda("cuda"), cuda0("cuda:0"), cuda2("cuda:2");
  weir::tensor const x = weir::tensor_of({1.f, 2.f}, {.on = cuda0}), y = weir::tensor_of({1.f, 2.f}).gpu();
  t.holds(x.device() == 0 && y.device() == 0, "x on cuda:0 and y on cuda are on " + x.device().str());
  {
    weir::device_guard const in(1);
    weir::tensor const a = weir::tensor_of({1.f, 2.f}, {.on = cuda}),
                       b = weir::tensor_of({1.f, 2.f}, {.on = weir::cpu}).gpu(),
                       b2 = weir::tensor_of({1.f, 2.f}, {.on = weir::cpu}).to(cuda);
    t.holds(a.device() == 1 && b.device() == 1 && b2.device() == 1,
            "with device(1): a, b and b2 are on " + a.device().str() + ", for cuda is the current one");
    weir::tensor const d = weir::randn({2}, {.on = cuda2}), e = weir::randn({2}, {.on = weir::cpu}).to(cuda2);
    t.holds(d.device() == 2 && e.device() == 2, "and d and e on " + d.device().str() + ", as they say");
    weir::tensor const z = weir::add(x, y);
    t.holds(z.device() == 0, "x + y is on " + z.device().str() + ", where x and y are");
    {
      weir::device_guard const inner(2);
      t.holds(weir::current_device() == 2, "a guard inside a guard: 2");
    }
    t.holds(weir::current_device() == 1, "after it: 1");
    t.row("on gpu:0: x, y and x + y", {exactly(48), held_for(48)}, "", 0);
  }
  t.holds(weir::current_device() == 0, "outside: 0, as before");
  std::string said;
  try {
    (void)weir::add(x, weir::ones({2}, {.on = 1}));
  } catch (weir::invalid_use const& e) {
    said = e.what();
  }
  weir::tensor const z = weir::add(x, weir::full({2}, 10., {.on = 1}).peer_view(0));
  t.holds(z.device() == 0 && weir::sum(z).item<float>() == 23,
          "asked for in place, by peer_view(0), it is read over the link: " + z.str());
  t.holds(said.find("gpu:0") != std::string::npos && said.find("gpu:1") != std::string::npos,
          "x + one on gpu:1 is refused: " + said);
}

void like_another(table& t) {
  weir::tensor const x_cpu = weir::empty({2}, {.on = weir::cpu}), x_gpu = weir::empty({2}),
                     x_cpu_long = weir::empty({2}, {.dtype = weir::int64, .on = weir::cpu});
  auto const prints = [&](weir::tensor const& x, std::string const& should) {
    t.holds(x.str() == should, "prints " + x.str());
  };
  prints(x_cpu.new_full({3, 2}, 0.3),
         "tensor([[0.3000, 0.3000],\n        [0.3000, 0.3000],\n        [0.3000, 0.3000]])");
  prints(x_gpu.new_full({3, 2}, -5), "tensor([[-5., -5.],\n        [-5., -5.],\n        [-5., -5.]], device='gpu:0')");
  prints(x_cpu_long.new_tensor({{1, 2, 3}}), "tensor([[1, 2, 3]])");
  t.holds(weir::ones_like(x_cpu).device().is_cpu() && weir::zeros_like(x_gpu).device() == 0,
          "ones_like and zeros_like stay with what they are like");
}

// The same code for the CPU and for a GPU: the device is a parameter.
float anywhere(weir::device on) {
  weir::tensor const x = weir::ones({8, 42}, {.on = on}), net = weir::full({8, 42}, 0.5).to(on);
  return weir::sum(weir::mul(x, net)).item<float>();
}

class variable {  // sets an environment variable during its lifetime
 public:
  variable(char const* name, char const* value) : name_(name) {
    if (char const* const was = std::getenv(name))
      before_ = was;
    ::setenv(name, value, 1);
  }
  ~variable() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  variable(variable const&) = delete;

 private:
  char const* name_;
  std::optional<std::string> before_;
};

// What a process sees that was started with CUDA_VISIBLE_DEVICES=2,0. Each new runtime enumerates simulated
// devices again; CUDA reads the variable once per process.
void chosen_by_the_environment(table& t) {
  variable const visible("CUDA_VISIBLE_DEVICES", "2,0"), simulated("WEIR_DEVICES", "sim:4:1");
  weir::runtime rt{weir::options{}};
  weir::runtime_guard const in{rt};
  bool const both = weir::device_count() == 2 && weir::get_device_properties(0).uuid == "SIM-2" &&
                    weir::get_device_properties(1).uuid == "SIM-0";
  t.holds(both, "CUDA_VISIBLE_DEVICES=2,0: there are " + std::to_string(weir::device_count()) + " devices, gpu:0 is " +
                    weir::get_device_properties(0).uuid + " and gpu:1 is " + weir::get_device_properties(1).uuid);
}

// An asynchronous failure, and the line that its error names. Always on simulated devices: the error would
// make a GPU unusable for the rest of the process.
struct told {
  unsigned launched, named;  // line numbers
};
told late_error(bool launch_blocking) {
  weir::runtime rt{weir::simulated{.devices = 1, .memory = 64_MiB}, {.launch_blocking = launch_blocking}};
  weir::runtime_guard const in{rt};
  weir::simulation machine = weir::simulation::of(rt);
  auto const on_device = [](CUstream_st*) {};
  auto const on_host = [machine]() mutable { machine.lose_device(0); };
  unsigned const launched = __LINE__ + 2;
  try {
    weir::launch(weir::current_stream(), {}, on_device, on_host);
    weir::synchronize();
  } catch (weir::device_lost const& e) {
    return {launched, e.where().line()};
  }
  return {launched, 0};
}

}  // namespace

int devices(settings const& with) {
  machine const on(with, {.devices = 4, .memory = 256_MiB}, {});
  table t(with, "6. Devices");
  t.row("", {exactly(0), exactly(0)}, "", 0);
  if (weir::device_count() >= 3)
    the_articles_lines(t);
  else
    with.out << "  (" << weir::device_count() << " GPUs: the article's lines want three)\n";
  if (!with.on_gpus)
    chosen_by_the_environment(t);
  like_another(t);
  t.holds(anywhere(weir::cpu) == anywhere(weir::is_available() ? weir::gpu : weir::cpu),
          "code that asks is_available() gives the same on the cpu and on a device");
  told const late = late_error(false), blocking = late_error(true);
  t.holds(late.named == late.launched + 1, "a kernel's error, told by the next wait, names its line: one too late");
  t.holds(blocking.named == blocking.launched, "with launch_blocking (CUDA_LAUNCH_BLOCKING=1) it names the launch");
  return t.failures();
}

}  // namespace seeds
