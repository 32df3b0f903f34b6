// Topic 9: several GPUs in one process: replicate, scatter, one thread per device, gather. And fork().
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

#include "examples/seeds/topics.h"
#include "weir/collective.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

weir::tensor net(weir::tensor const& x, weir::tensor const& weights) {
  return weir::relu(weir::mul(x, weights));
}

// The four steps of nn.DataParallel.
weir::tensor data_parallel(weir::tensor const& x, weir::tensor const& weights, int devices, table& t) {
  std::int64_t const rows = x.size(0) / devices, part = rows * x.size(1) * 4;
  std::vector<weir::tensor> replicas, parts, outputs(static_cast<std::size_t>(devices));
  for (int i = 0; i < devices; ++i) {
    replicas.push_back(weights.slice(0, 0, rows).to(weir::device(i)));
    parts.push_back(x.slice(0, i * rows, (i + 1) * rows).to(weir::device(i)));
  }
  for (int i = 1; i < devices; ++i)
    t.row("replicated and scattered: gpu:" + std::to_string(i), {exactly(2 * part), range{}},
          "a replica and a part of the batch each", i);
  weir::runtime& here = weir::runtime::current();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    threads.emplace_back([&, i] {
      weir::runtime_guard const in(here);
      outputs[i] = net(parts[i], replicas[i]);  // runs on the operands' device, not on the current one
    });
  }
  for (std::thread& one : threads)
    one.join();
  for (int i = 1; i < devices; ++i)
    t.row("run, a thread a device: gpu:" + std::to_string(i), {exactly(3 * part), range{}}, "the output, too", i);
  weir::tensor all = weir::empty_like(x);
  for (int i = 0; i < devices; ++i)
    all.slice(0, i * rows, (i + 1) * rows).copy_(outputs[static_cast<std::size_t>(i)]);
  return all;
}

bool same(weir::tensor const& a, weir::tensor const& b) {
  weir::tensor const x = a.cpu(), y = b.cpu();
  return x.shape() == y.shape() && std::memcmp(x.data(), y.data(), x.nbytes()) == 0;
}

// Returns: 0 if the child got a typed error and the parent's memory is unchanged.
int forked(weir::tensor const& of_parent) {
  float const before = weir::sum(of_parent).item<float>();
  pid_t const child = ::fork();
  if (child == 0) {
    try {
      (void)weir::ones({4});
    } catch (weir::error const&) {
      ::_exit(0);
    } catch (...) {}
    ::_exit(1);
  }
  int status = -1;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return 1;
  return weir::sum(of_parent).item<float>() == before ? 0 : 2;
}

template <class F>
std::string refused(F f) {
  try {
    f();
  } catch (weir::invalid_use const& e) {
    return e.what();
  }
  return {};
}

// Recomputation in data-parallel training may mark a gradient as ready twice, because its layer's forward
// pass runs again. The buckets reject that.
void gradients_that_come_twice_or_never(table& t) {
  weir::device const only[] = {0};
  std::vector<weir::communicator> ranks = weir::communicator::create_all(only);
  weir::gradient_buckets buckets(ranks[0]);
  int const first = buckets.add("embedding", 16), last = buckets.add("dense1.weight", 64);
  buckets.build();
  buckets.mark_ready(last, weir::current_stream());
  std::string const twice = refused([&] { buckets.mark_ready(last, weir::current_stream()); }),
                    never = refused([&] { buckets.finish(weir::current_stream()); });
  t.holds(twice.find("dense1.weight") != std::string::npos,
          "a gradient that is ready twice in a step is refused: " + twice);
  t.holds(never.find("embedding") != std::string::npos, "and one that never was: " + never);
  buckets.mark_ready(first, weir::current_stream());
  buckets.finish(weir::current_stream());
}

}  // namespace

int several(settings const& with) {
  machine const on(with, {.devices = 4, .memory = 256_MiB}, {});
  table t(with, "9. Several GPUs in one process");
  int const devices = std::min(4, weir::device_count());
  t.row("", {exactly(0), exactly(0)}, "", 0);
  weir::tensor const x = weir::randn({1024, 256}), weights = weir::randn({1, 256}), all = weir::empty({1024, 256});
  // The same row for every sample.
  for (std::int64_t i = 0; i < 1024; ++i)
    weir::tensor(all.slice(0, i, i + 1)).copy_(weights);
  weir::tensor const y = data_parallel(x, all, devices, t);
  t.row("gathered on gpu:0", {exactly((3 << 20) + 1024), range{}},
        "gpu:0 holds the whole output, too: more than its share", 0);
  for (int i = 1; i < devices; ++i)
    t.row("afterwards: gpu:" + std::to_string(i), {exactly(0), range{}}, "", i);
  t.holds(same(y, net(x, all)), "on " + std::to_string(devices) + " devices: the same bits as on one");
  gradients_that_come_twice_or_never(t);
  t.holds(forked(x) == 0,
          "a child of fork() is refused with a typed error, and the parent goes on: start workers before the first "
          "use, or as programs");
  return t.failures();
}

}  // namespace seeds
