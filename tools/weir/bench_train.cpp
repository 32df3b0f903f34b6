// weir bench train: steps of a data-parallel model, on one device and on all of them.
// Threads: one for each rank of this process.
#include "bench_train.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <thread>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/text.h"
#include "weir/device.h"
#include "weir/observe.h"

namespace weir::tool {
namespace {

struct train_settings {
  int steps = 50, warm = 10, more = 0;  // more: steps after the measured ones, before the loss is read
};

struct train_figures {                           // of the slowest rank
  double step = 0, exposed = 0, reductions = 0;  // ms
  double loss = 0;                               // of rank 0
  std::size_t peak_in_use = 0, peak_reserved = 0;
  double hidden() const { return reductions > 0 ? 1 - exposed / reductions : 1; }
};

double median_of(std::vector<double> all) {
  auto const middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

train_figures measure_rank(mlp_shape const& shape, train_settings const& s, communicator& ranks) {
  device_guard const on(ranks.device());
  int const device = ranks.device().index();
  empty_cache(device);
  reset_peak_memory_stats(device);
  mlp model(shape, ranks);
  struct marks {
    event begun{event_options{.timing = true}}, computed{event_options{.timing = true}},
        reduced{event_options{.timing = true}}, done{event_options{.timing = true}};
  };
  std::vector<marks> all(static_cast<std::size_t>(s.steps));
  auto const step = [&](marks* m) {
    if (m) m->begun.record();
    model.forward_backward();
    if (m) m->computed.record();
    model.finish();
    if (m) m->reduced.record();
    model.update();
    if (m) m->done.record();
  };
  for (int i = 0; i < s.warm; ++i) step(nullptr);
  for (marks& m : all) step(&m);
  for (int i = 0; i < s.more; ++i) step(nullptr);
  current_stream().synchronize();
  train_figures f;
  f.loss = model.loss();
  std::vector<double> steps, exposed, alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // from end to end: what the host cannot enqueue in time counts too
    event const& from = i ? all[i - 1].done : all[i].begun;
    steps.push_back(static_cast<double>(from.elapsed_time(all[i].done).count()));
    exposed.push_back(static_cast<double>(all[i].computed.elapsed_time(all[i].reduced).count()));
  }
  f.step = median_of(std::move(steps));
  f.exposed = median_of(std::move(exposed));
  f.peak_in_use = max_memory_allocated(device);
  f.peak_reserved = max_memory_reserved(device);
  for (marks& m : all) {
    m.begun.record();
    model.reduce_alone();
    m.done.record();
  }
  current_stream().synchronize();
  for (marks const& m : all) alone.push_back(static_cast<double>(m.begun.elapsed_time(m.done).count()));
  f.reductions = median_of(std::move(alone));
  return f;
}

train_figures measure_threads(mlp_shape const& shape, train_settings const& s, int devices) {
  std::vector<weir::device> on;
  for (int i = 0; i < devices; ++i) on.emplace_back(i);
  auto ranks = communicator::create_all(on);
  std::vector<train_figures> all(ranks.size());
  std::vector<std::exception_ptr> failures(ranks.size());
  std::vector<std::thread> threads;
  runtime& machine = runtime::current();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      runtime_guard const in(machine);
      try {
        all[i] = measure_rank(shape, s, ranks[i]);
      } catch (...) {
        failures[i] = std::current_exception();
        ranks[i].abort();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (auto const& f : failures) {
    if (f) std::rethrow_exception(f);
  }
  train_figures slowest = all[0];
  for (train_figures const& f : all) {
    slowest.step = std::max(slowest.step, f.step);
    slowest.exposed = std::max(slowest.exposed, f.exposed);
    slowest.reductions = std::max(slowest.reductions, f.reductions);
    slowest.peak_in_use = std::max(slowest.peak_in_use, f.peak_in_use);
    slowest.peak_reserved = std::max(slowest.peak_reserved, f.peak_reserved);
  }
  return slowest;
}

void print(mlp_shape const& m, int ranks, train_figures const& f, double of_one, bool json) {
  double const efficiency = of_one > 0 ? of_one / f.step : 0;
  if (json) {
    std::string line = base::text("{\"device\": ", base::json_text(runtime::current().description()),
                                  ", \"ranks\": ", ranks, ", \"mlp\": [", m.width, ", ", m.layers, ", ", m.rows, "]");
    auto const add = [&](char const* key, double value, int digits) {
      line += std::string(", \"") + key + "\": " + base::json_number(value, digits);
    };
    add("ms_a_step", f.step, 4);
    if (ranks > 1) add("exposed_ms", f.exposed, 4), add("reductions_ms", f.reductions, 4), add("hidden", f.hidden(), 3);
    if (of_one > 0) add("efficiency", efficiency, 3);
    add("loss", f.loss, 7);
    line += base::text(", \"peak_in_use\": ", f.peak_in_use, ", \"peak_reserved\": ", f.peak_reserved, "}");
    std::printf("%s\n", line.c_str());
    return;
  }
  std::printf("%d x %d, %d rows, %d rank%s: %.3f ms a step", m.layers, m.width, m.rows, ranks, ranks == 1 ? "" : "s",
              f.step);
  if (of_one > 0) std::printf(" (efficiency %.2f)", efficiency);
  if (ranks > 1)
    std::printf("; %.3f of %.3f ms of reductions exposed (%.0f %% hidden)", f.exposed, f.reductions, 100 * f.hidden());
  std::printf("; peak %.1f MiB in use, %.1f reserved; loss %.6f\n", static_cast<double>(f.peak_in_use) / 1_MiB,
              static_cast<double>(f.peak_reserved) / 1_MiB, f.loss);
}

}  // namespace

int bench_train(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  train_settings s;
  mlp_shape own;
  bool json = false, full = false;
  po::options_description all(
      "weir bench train: steps of a data-parallel model, 8 x 4096 and 8 x 1024, on one device and on all");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]]; WEIR_DEVICES, else auto")(
      "json", po::bool_switch(&json), "print lines of JSON")(
      "width", po::value(&own.width)->default_value(0, "both models"), "of each layer, in a model of one's own")(
      "layers", po::value(&own.layers)->default_value(own.layers), "of that model")(
      "rows", po::value(&own.rows)->default_value(own.rows), "of that model, on each rank")(
      "steps", po::value(&s.steps)->default_value(s.steps), "measured; the median counts")(
      "warm", po::value(&s.warm)->default_value(s.warm), "steps before them")(
      "more", po::value(&s.more)->default_value(s.more), "steps after them, before the loss is read")(
      "fp32", po::bool_switch(&full), "products in full precision, not in TF32");
  if (!understood(arguments, all)) return 0;
  for (auto const& [name, value, least] :
       {std::tuple("steps", s.steps, 1), std::tuple("warm", s.warm, 0), std::tuple("more", s.more, 0),
        std::tuple("width", own.width, 0), std::tuple("layers", own.layers, 1), std::tuple("rows", own.rows, 1)}) {
    if (value < least)
      throw invalid_use("bench train", base::text("--", name, " ", value), base::text("Use ", least, " or more"),
                        source_location::current());
  }
  use_devices(devices);
  allow_tf32(!full);
  std::vector<mlp_shape> models{{4096, 8, 2048}, {1024, 8, 1024}};
  if (own.width > 0) models = {own};
  launch_info const launched = this_launch();
  if (launched.how != launch_info::by::itself) {
    auto ranks = communicator::from_environment();
    for (mlp_shape const& m : models) {
      train_figures const f = measure_rank(m, s, ranks);
      ranks.barrier();
      if (ranks.rank() == 0) print(m, ranks.size(), f, 0, json);
    }
    return 0;
  }
  for (mlp_shape const& m : models) {
    train_figures const one = measure_threads(m, s, 1);
    print(m, 1, one, 0, json);
    if (device_count() > 1) print(m, device_count(), measure_threads(m, s, device_count()), one.step, json);
  }
  return 0;
}

}  // namespace weir::tool
