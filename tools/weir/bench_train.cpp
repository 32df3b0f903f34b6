// weir bench train: steps of data-parallel models, on one device and on all of them.
// Threads: one for each rank of this process.
#include "bench_train.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/observe.h"

namespace weir::tool {
namespace {

struct train_settings {
  int steps = 50, warm = 10, more = 0;  // more: steps after the measured ones, before the loss is read
  bool graph = false;                   // a step is captured once and launched
};

struct train_figures {                           // of the slowest rank
  double step = 0, exposed = 0, reductions = 0;  // ms
  double loss = 0;                               // of rank 0
  int buckets = 0;
  std::size_t peak_in_use = 0, peak_reserved = 0;
  double hidden() const { return reductions > 0 ? 1 - exposed / reductions : 1; }
};

double median_of(std::vector<double> all) {
  auto const middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  return *middle;
}

train_figures measure_rank(model_shape const& shape, std::size_t bucket, train_settings const& s, communicator& ranks) {
  device_guard const on(ranks.device());
  stream const own(ranks.device());  // a capture needs a stream that weir made
  stream_guard const in(own);
  int const device = ranks.device().index();
  empty_cache(device);
  reset_peak_memory_stats(device);
  std::unique_ptr<trained_model> const model = make_model(shape, ranks, bucket);
  struct marks {
    event begun{event_options{.timing = true}}, computed{event_options{.timing = true}},
        reduced{event_options{.timing = true}}, done{event_options{.timing = true}};
  };
  std::vector<marks> all(static_cast<std::size_t>(s.steps));
  auto const enqueue = [&](marks* m) {
    model->forward_backward();
    if (m)
      m->computed.record();
    model->finish();
    if (m)
      m->reduced.record();
    model->update();
  };
  for (int i = 0; i < s.warm; ++i)
    enqueue(nullptr);
  std::optional<graph> captured;
  if (s.graph) {
    current_stream().synchronize();
    empty_cache(device);  // of the first steps: a graph has memory of its own
    captured = graph::capture(own, [&] { enqueue(nullptr); });
  }
  auto const step = [&](marks* m) {
    if (m)
      m->begun.record();
    captured ? captured->launch() : enqueue(m);
    if (m)
      m->done.record();
  };
  if (captured)
    captured->instantiate();
  for (marks& m : all)
    step(&m);
  for (int i = 0; i < s.more; ++i)
    step(nullptr);
  current_stream().synchronize();
  train_figures f;
  f.loss = model->loss();
  f.buckets = model->buckets().bucket_count();
  std::vector<double> steps, exposed, alone;
  for (std::size_t i = 0; i < all.size(); ++i) {
    // from end to end: what the host cannot enqueue in time counts too
    event const& from = i ? all[i - 1].done : all[i].begun;
    steps.push_back(static_cast<double>(from.elapsed_time(all[i].done).count()));
    if (!captured)
      exposed.push_back(static_cast<double>(all[i].computed.elapsed_time(all[i].reduced).count()));
  }
  f.step = median_of(std::move(steps));
  if (!captured)
    f.exposed = median_of(std::move(exposed));
  f.peak_in_use = max_memory_allocated(device);
  f.peak_reserved = max_memory_reserved(device);
  for (marks& m : all) {
    m.begun.record();
    model->reduce_alone();
    m.done.record();
  }
  current_stream().synchronize();
  for (marks const& m : all)
    alone.push_back(static_cast<double>(m.begun.elapsed_time(m.done).count()));
  f.reductions = median_of(std::move(alone));
  return f;
}

train_figures measure_threads(model_shape const& shape, std::size_t bucket, train_settings const& s, int devices) {
  auto ranks = communicator::create_launched(devices);
  std::vector<train_figures> all(ranks.size());
  run_ranks(ranks,
            [&](communicator& c) { all[static_cast<std::size_t>(c.rank())] = measure_rank(shape, bucket, s, c); });
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

void print(model_shape const& m, train_settings const& s, int ranks, train_figures const& f, double of_one, bool json) {
  double const efficiency = of_one > 0 ? of_one / f.step : 0;
  bool const timed = ranks > 1 && !s.graph;  // the work inside a graph has no events
  if (json) {
    std::string line = base::text("{\"device\": ", base::json_text(runtime::current().description()),
                                  ", \"ranks\": ", ranks, ", \"graph\": ", s.graph ? "true" : "false");
    line += m.heads ? base::text(", \"transformer\": [", m.width, ", ", m.layers, ", ", m.heads, ", ", m.context, ", ",
                                 m.rows, "], \"type\": \"", name_of(m.type), "\"")
                    : base::text(", \"mlp\": [", m.width, ", ", m.layers, ", ", m.rows, "]");
    auto const add = [&](char const* key, double value, int digits) {
      line += std::string(", \"") + key + "\": " + base::json_number(value, digits);
    };
    add("ms_a_step", f.step, 4);
    if (timed)
      add("exposed_ms", f.exposed, 4), add("reductions_ms", f.reductions, 4), add("hidden", f.hidden(), 3);
    if (of_one > 0)
      add("efficiency", efficiency, 3);
    add("loss", f.loss, 7);
    line += base::text(", \"buckets\": ", f.buckets, ", \"peak_in_use\": ", f.peak_in_use,
                       ", \"peak_reserved\": ", f.peak_reserved, "}");
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    return;
  }
  std::printf("%d x %d, ", m.layers, m.width);
  if (m.heads)
    std::printf("%d heads, %s, %d sequences of %d", m.heads, std::string(name_of(m.type)).c_str(), m.rows, m.context);
  else
    std::printf("%d rows", m.rows);
  std::printf(", %d rank%s: %.3f ms a step%s", ranks, ranks == 1 ? "" : "s", f.step, s.graph ? " as a graph" : "");
  if (of_one > 0)
    std::printf(" (efficiency %.2f)", efficiency);
  if (timed)
    std::printf("; %.3f of %.3f ms of reductions in %d buckets exposed (%.0f %% hidden)", f.exposed, f.reductions,
                f.buckets, 100 * f.hidden());
  std::printf("; peak %.1f MiB in use, %.1f reserved; loss %.6f\n", static_cast<double>(f.peak_in_use) / 1_MiB,
              static_cast<double>(f.peak_reserved) / 1_MiB, f.loss);
}

}  // namespace

int bench_train(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  train_settings s;
  model_shape own;
  std::vector<std::string> names, bucket_texts;
  bool json = false, full = false;
  po::options_description all(
      "weir bench train [MODEL…]: steps of data-parallel models, on one device and on all. Models: large (8 layers of "
      "4096), small (8 of 1024), transformer (12 of 768, 12 heads, 12 sequences of 512 a rank, bfloat16); default all");
  all.add_options()("help,h", "this text")("model", po::value(&names), "")(
      "devices", po::value(&devices), "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "json", po::bool_switch(&json), "print lines of JSON")(
      "graph", po::bool_switch(&s.graph), "launch each step as a CUDA graph; needs a process for each device")(
      "bucket", po::value(&bucket_texts)->composing(), "gradients of one reduction; more than once: each in turn")(
      "width", po::value(&own.width)->default_value(0, "those models"), "of each layer, in a model of one's own")(
      "layers", po::value(&own.layers)->default_value(own.layers), "of that model")(
      "rows", po::value(&own.rows)->default_value(own.rows), "of that model, on each rank; sequences with --heads")(
      "heads", po::value(&own.heads)->default_value(own.heads), "of a transformer; 0: linear layers")(
      "context", po::value(&own.context)->default_value(own.context), "of that transformer")(
      "steps", po::value(&s.steps)->default_value(s.steps), "measured; the median counts")(
      "warm", po::value(&s.warm)->default_value(s.warm), "steps before them")(
      "more", po::value(&s.more)->default_value(s.more), "steps after them, before the loss is read")(
      "fp32", po::bool_switch(&full), "full precision, not TF32 and bfloat16");
  if (!understood(arguments, all, "model", -1))
    return 0;
  auto const refuse_value = [](std::string const& what, std::string const& instead) {
    throw invalid_use("bench train", what, instead, source_location::current());
  };
  for (auto const& [name, value, least] :
       {std::tuple("steps", s.steps, 1), std::tuple("warm", s.warm, s.graph ? 1 : 0), std::tuple("more", s.more, 0),
        std::tuple("width", own.width, 0), std::tuple("layers", own.layers, 1), std::tuple("rows", own.rows, 1),
        std::tuple("heads", own.heads, 0), std::tuple("context", own.context, 1)}) {
    if (value < least)
      refuse_value(base::text("--", name, " ", value), base::text("Use ", least, " or more"));
  }
  std::vector<std::size_t> buckets;
  for (std::string const& text : bucket_texts) {
    auto const size = size_from_text(text);
    if (!size || *size == 0)
      refuse_value("\"" + text + "\" is not a size", "Write bytes, or a number and KiB, MiB or GiB");
    buckets.push_back(*size);
  }
  if (buckets.empty())
    buckets.push_back(0);
  std::vector<model_shape> models = chosen_models(names, own);
  use_devices(devices);
  allow_tf32(!full);
  for (model_shape& m : models)
    if (full)
      m.type = float32;
  launch_info const launched = this_launch();
  bool const alone = launched.how == launch_info::by::itself;
  int const local = device_count();
  if (s.graph && alone && local > 1)
    throw invalid_use("bench train", base::text("--graph with ", local, " devices in one process"),
                      "Start a process for each: mpirun -np N weir bench train --graph. Captures of several devices in "
                      "one process can deadlock",
                      source_location::current());
  std::optional<communicator> of_launch;
  if (!alone)
    of_launch = communicator::from_environment();
  for (model_shape const& m : models) {
    for (std::size_t const bucket : buckets) {
      if (of_launch) {
        train_figures const f = measure_rank(m, bucket, s, *of_launch);
        of_launch->barrier();
        if (of_launch->rank() == 0)
          print(m, s, of_launch->size(), f, 0, json);
        continue;
      }
      train_figures const one = measure_threads(m, bucket, s, 1);
      print(m, s, 1, one, 0, json);
      if (local > 1)
        print(m, s, local, measure_threads(m, bucket, s, local), one.step, json);
    }
  }
  return 0;
}

}  // namespace weir::tool
