// Trains with each method from the same initial parameters.
// Threads: see table.h.
#include "table.h"

#include <cstdio>
#include <stdexcept>

#include "weir/observe.h"

namespace trainer {
namespace {

struct way {
  char const* name;
  model_options how;
  int parts;
};
constexpr way ways[] = {
    {"fp32", {}, 1},
    {"fp32, --checkpoint", {.recompute = true}, 1},
    {"fp32, --accumulate 4", {}, 4},
    {"bf16", {.type = weir::bfloat16}, 1},
    {"fp16", {.type = weir::float16}, 1},
    {"bf16, --checkpoint, --accumulate 4", {.type = weir::bfloat16, .recompute = true}, 4},
};

std::int64_t bytes_of_parameters(model_shape const& s, model_options const& how) {
  std::int64_t all = 0;
  for (auto const& p : parameter_table(s)) {
    all += p.count() * 3 * static_cast<std::int64_t>(sizeof(float));
    if (how.type != weir::float32 && p.name.ends_with(".weight"))
      all += p.count() * static_cast<std::int64_t>(weir::size_of(how.type));
  }
  return all;
}

std::int64_t kept_a_row(model_shape const& s, model_options const& how) {
  std::int64_t numbers = std::int64_t{s.context} * s.embedding;
  for (int layer = 0; layer < s.layers; ++layer)
    numbers += kept_until_backward(s, how, layer) ? s.hidden : 0;
  return numbers * static_cast<std::int64_t>(weir::size_of(how.type)) +
         s.vocabulary * static_cast<std::int64_t>(sizeof(float));
}

std::string mib(std::int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(bytes) / (1 << 20));
  return text;
}

}  // namespace

std::vector<row> compare_ways(settings s, text const& t, int replicas) {
  if (s.batch % (4 * replicas))
    throw std::runtime_error("--table: a batch of " + std::to_string(s.batch) + " over " + std::to_string(replicas) +
                             " replicas cannot be cut in four; take a multiple of " + std::to_string(4 * replicas));
  s.sample = 0, s.validation_rows = s.batch;
  s.load_file.clear(), s.save_file.clear();
  std::vector<row> rows;
  for (way const& w : ways) {
    s.how = w.how, s.accumulate = w.parts;
    weir::reset_peak_memory_stats(0);
    report told(replicas, s.steps, 0);
    outcome const out = train(s, t, nullptr, told);
    row r{.way = w.name,
          .parameters = bytes_of_parameters(s.shape, w.how),
          .kept_a_row = kept_a_row(s.shape, w.how),
          .rows = s.batch / replicas / w.parts};
    r.peak = static_cast<std::int64_t>(weir::max_memory_allocated(0));
    r.seconds_a_step = out.seconds_a_step;
    r.validation_loss = out.validation_loss;
    rows.push_back(r);
  }
  return rows;
}

std::string table_of(std::vector<row> const& rows) {
  std::string all =
      "MiB of gpu:0                          parameters  + rows x activations  = expected      peak   ms a step  "
      "validation loss\n";
  for (row const& r : rows) {
    char line[200];
    std::snprintf(line, sizeof line, "%-36s  %10s  %6lld x %9.1f KiB  %10s  %8s  %10.2f  %15.4f\n", r.way.c_str(),
                  mib(r.parameters).c_str(), static_cast<long long>(r.rows), static_cast<double>(r.kept_a_row) / 1024,
                  mib(r.expected()).c_str(), mib(r.peak).c_str(), r.seconds_a_step * 1e3, r.validation_loss);
    all += line;
  }
  return all;
}

}  // namespace trainer
