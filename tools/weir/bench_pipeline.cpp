// weir bench pipeline: copies batches in, works on them and copies them out, on three streams. Compares the
// time per batch with its slowest stage, measured while all three stages run, and reports the memory use.
// Threads: one.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"
#include "weir/observe.h"
#include "weir/tensor.h"

namespace weir::tool {
namespace {

constexpr double longest_work = 1000;

struct settings {
  size_t batch = 0;  // bytes
  int batches = 48;
  int depth = 4;      // batches that the host enqueues ahead
  double work = 0.9;  // duration of the work relative to the slower copy
};

std::string work_text(double work) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", work);
  return text;
}

struct stage_times {  // ms
  double in = 0, work = 0, out = 0;
  double slower_copy() const { return std::max(in, out); }
  double slowest() const { return std::max(slower_copy(), work); }
};
struct figures {
  stage_times stages;  // measured while all three stages run
  double batch = 0;    // ms per batch
};

class pipeline {
 public:
  explicit pipeline(settings const& s)
      : s_(s),
        columns_(s.batch >= 64_MiB ? 4096 : 512),
        rows_(static_cast<std::int64_t>(s.batch / sizeof(float)) / columns_) {
    for (int i = 0; i < s_.depth; ++i) {
      sources_.push_back(ones({rows_, columns_}, {.on = cpu, .kind = memory_kind::pinned}));
      results_.push_back(zeros({rows_, columns_}, {.on = cpu, .kind = memory_kind::pinned}));
    }
    depth_of_work(rows_ / 4);
  }

  // The work is a product of a rows x k matrix with the first k rows of the batch. It writes every byte of
  // the result, and its duration is roughly proportional to k.
  void depth_of_work(std::int64_t k) {
    k_ = std::clamp<std::int64_t>(k, 1, rows_);
    stream_guard const in{work_};
    weights_ = full({rows_, k_}, 1.0 / static_cast<double>(k_));
    work_.synchronize();
  }
  std::int64_t depth_of_work() const { return k_; }

  // Runs the selected stages.
  figures run(bool in, bool work, bool out, int batches) {
    std::vector<marks> timed(static_cast<size_t>(batches));
    std::vector<stamp> done(static_cast<size_t>(batches));
    tensor x, y;
    for (int i = 0; i < batches; ++i) {
      auto& at = timed[static_cast<size_t>(i)];
      size_t const slot = static_cast<size_t>(i % s_.depth);
      // The slot's result has been consumed and its source may be refilled.
      if (i >= s_.depth)
        done[static_cast<size_t>(i - s_.depth)].synchronize();
      if (in || !x.defined()) {
        stream_guard const on{in_};
        x = empty({rows_, columns_});
        at.start(0, in_);
        x.copy_(sources_[slot], non_blocking);
        at.end(0, in_);
        work_.wait(in_);
      }
      if (work || !y.defined()) {
        stream_guard const on{work_};
        at.start(1, work_);
        y = matmul(weights_, x.slice(0, 0, k_));
        at.end(1, work_);
        out_.wait(work_);
      }
      if (in)
        x = {};
      if (out) {
        stream_guard const on{out_};
        at.start(2, out_);
        results_[slot].copy_(y, non_blocking);
        at.end(2, out_);
      }
      if (work)
        y = {};
      done[static_cast<size_t>(i)] = (out ? out_ : work ? work_ : in_).stamp();
    }
    for (auto const* s : {&in_, &work_, &out_})
      s->synchronize();
    return sum(timed, {in, work, out});
  }

  // The same by hand: three buffers per stage, allocated once, with waits for reuse. Returns: ms per batch
  figures run_by_hand(int batches) {
    std::vector<marks> timed(static_cast<size_t>(batches));
    std::vector<event> read(static_cast<size_t>(batches)), out(static_cast<size_t>(batches));
    std::array<tensor, 3> xs, ys;
    for (int i = 0; i < 3; ++i) {
      stream_guard const on{work_};
      xs[static_cast<size_t>(i)] = empty({rows_, columns_});
      ys[static_cast<size_t>(i)] = empty({rows_, columns_});
    }
    work_.synchronize();
    for (int i = 0; i < batches; ++i) {
      auto const n = static_cast<size_t>(i);
      auto& at = timed[n];
      size_t const slot = static_cast<size_t>(i % s_.depth);
      tensor &x = xs[n % 3], &y = ys[n % 3];
      if (i >= s_.depth)
        out[static_cast<size_t>(i - s_.depth)].synchronize();
      if (i >= 3)
        in_.wait(read[n - 3]);
      at.start(0, in_);
      copy(in_, x.data(), sources_[slot].data(), s_.batch, non_blocking);
      at.end(0, in_);
      work_.wait(in_);
      if (i >= 3)
        work_.wait(out[n - 3]);
      {
        stream_guard const on{work_};
        at.start(1, work_);
        matmul_out(y, weights_, x.slice(0, 0, k_));
        at.end(1, work_);
      }
      read[n].record(work_);
      out_.wait(work_);
      at.start(2, out_);
      copy(out_, results_[slot].data(), y.data(), s_.batch, non_blocking);
      at.end(2, out_);
      out[n].record(out_);
    }
    for (auto const* s : {&in_, &work_, &out_})
      s->synchronize();
    return sum(timed, {true, true, true});
  }

  bool right() const {
    auto const is_one = [](float v) { return v > 0.999f && v < 1.001f; };
    return std::all_of(results_.begin(), results_.end(), [&](tensor const& r) {
      auto const values = r.host<float>();
      return std::all_of(values.begin(), values.end(), is_one);
    });
  }

 private:
  struct marks {
    std::array<event, 3> from{event{{.timing = true}}, event{{.timing = true}}, event{{.timing = true}}};
    std::array<event, 3> to{event{{.timing = true}}, event{{.timing = true}}, event{{.timing = true}}};
    void start(size_t stage, stream_ref s) { from[stage].record(s); }
    void end(size_t stage, stream_ref s) { to[stage].record(s); }
  };

  // Averages the batches of the middle: the first ones fill the pipeline, and the last ones drain it.
  figures sum(std::vector<marks> const& timed, std::array<bool, 3> ran) const {
    size_t const skip = static_cast<size_t>(s_.depth), n = timed.size() - 2 * skip;
    size_t const last = ran[2] ? 2 : ran[1] ? 1 : 0;
    figures f;
    for (size_t i = skip; i < skip + n; ++i) {
      if (ran[0])
        f.stages.in += timed[i].from[0].elapsed_time(timed[i].to[0]).count();
      if (ran[1])
        f.stages.work += timed[i].from[1].elapsed_time(timed[i].to[1]).count();
      if (ran[2])
        f.stages.out += timed[i].from[2].elapsed_time(timed[i].to[2]).count();
    }
    auto const each = static_cast<double>(n);
    f.stages = {f.stages.in / each, f.stages.work / each, f.stages.out / each};
    f.batch = timed[skip - 1].to[last].elapsed_time(timed[skip + n - 1].to[last]).count() / each;
    return f;
  }

  settings const s_;
  std::int64_t const columns_, rows_;
  std::int64_t k_ = 1;
  stream in_{device(0)}, work_{device(0)}, out_{device(0)};
  std::vector<tensor> sources_, results_;
  tensor weights_;
};

// Chooses k for the desired duration. The duration is nearly proportional to k.
void tune(pipeline& p, settings const& s) {
  for (int i = 0; i < 4; ++i) {
    figures const f = p.run(true, true, true, 4 * s.depth);
    double const wanted = s.work * f.stages.slower_copy();
    if (f.stages.work <= 0 || wanted <= 0)
      return;
    p.depth_of_work(static_cast<std::int64_t>(static_cast<double>(p.depth_of_work()) * wanted / f.stages.work));
  }
}

struct outcome {
  figures all, by_hand;
  stage_times alone;
  double ratio = 0, reserved_mib = 0, pinned_mib = 0;
  bool right = false;
};

void print(outcome const& o, settings const& s, bool json) {
  if (json) {
    std::string line = "{\"devices\": " + base::json_text(runtime::current().description()) +
                       ", \"batch_bytes\": " + std::to_string(s.batch) + ", \"batches\": " + std::to_string(s.batches);
    auto const add = [&](char const* key, double value, int digits) {
      line += std::string(", \"") + key + "\": " + base::json_number(value, digits);
    };
    add("in_ms", o.all.stages.in, 4), add("work_ms", o.all.stages.work, 4), add("out_ms", o.all.stages.out, 4);
    add("in_alone_ms", o.alone.in, 4), add("work_alone_ms", o.alone.work, 4), add("out_alone_ms", o.alone.out, 4);
    add("batch_ms", o.all.batch, 4), add("ratio", o.ratio, 4), add("by_hand_ms", o.by_hand.batch, 4),
        add("by_hand_ratio", o.by_hand.batch / o.by_hand.stages.slowest(), 4);
    add("reserved_mib", o.reserved_mib, 1), add("pinned_mib", o.pinned_mib, 1);
    std::printf("%s, \"right\": %s}\n", line.c_str(), o.right ? "true" : "false");
    return;
  }
  std::printf("%s; batches of %s\n", runtime::current().description().c_str(), bytes_text(s.batch).c_str());
  std::printf("%-10s %12s %12s\n", "ms", "alone", "all running");
  std::printf("%-10s %12.3f %12.3f\n%-10s %12.3f %12.3f\n%-10s %12.3f %12.3f\n", "copy in", o.alone.in, o.all.stages.in,
              "work", o.alone.work, o.all.stages.work, "copy out", o.alone.out, o.all.stages.out);
  std::printf("%-10s %12s %12.3f  %.3f of its slowest stage\n", "a batch", "", o.all.batch, o.ratio);
  std::printf("%-10s %12s %12.3f  %.3f of its slowest stage\n", "by hand", "", o.by_hand.batch,
              o.by_hand.batch / o.by_hand.stages.slowest());
  std::printf("reserved %.0f MiB, pinned %.0f MiB; results are %s\n", o.reserved_mib, o.pinned_mib,
              o.right ? "right" : "WRONG");
}

}  // namespace

int bench_pipeline(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices, batch;
  settings s;
  int rounds = 5;
  bool json = false, equal = false;
  po::options_description all(
      "weir bench pipeline: copy in, work, copy out on three streams; a batch against its slowest stage");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "json", po::bool_switch(&json), "print a line of JSON")("batch", po::value(&batch),
                                                              "size of a batch; 64MiB, 1MiB on simulated devices")(
      "batches", po::value(&s.batches)->default_value(s.batches), "a round")(
      "depth", po::value(&s.depth)->default_value(s.depth), "most batches in flight")(
      "work", po::value(&s.work)->default_value(s.work, "0.9"), "duration of the work, as a part of the slower copy")(
      "equal", po::bool_switch(&equal), "equal duration of all stages: --work 1")(
      "rounds", po::value(&rounds)->default_value(rounds), "rounds; the median counts");
  if (!understood(arguments, all))
    return 0;
  auto const refuse = [](std::string const& what, char const* remedy) {
    throw invalid_use("bench pipeline", what, remedy, source_location::current());
  };
  if (equal)
    s.work = 1;
  if (rounds < 1)
    refuse("--rounds " + std::to_string(rounds), "Use at least one");
  if (s.depth < 1)
    refuse("--depth " + std::to_string(s.depth), "Use a depth of at least one");
  if (s.batches < 3 * s.depth)
    refuse("--batches " + std::to_string(s.batches) + " with --depth " + std::to_string(s.depth),
           "Use three times the depth: the first and the last batches do not count");
  if (!(s.work > 0 && s.work <= longest_work))
    refuse("--work " + work_text(s.work), "Use more than 0, and 1000 at most");
  use_devices(devices);
  device_guard const on(0);
  bool const simulated = get_device_properties(0).simulated;
  auto const size = batch.empty() ? std::optional<size_t>(simulated ? 1_MiB : 64_MiB) : size_from_text(batch);
  if (!size || *size < 64_KiB)
    refuse("--batch \"" + batch + "\"", "Use 64KiB or more");
  s.batch = *size / 64_KiB * 64_KiB;

  pipeline p(s);
  tune(p, s);
  empty_cache();
  reset_peak_memory_stats();
  std::vector<figures> got;
  for (int i = 0; i < rounds; ++i)
    got.push_back(p.run(true, true, true, s.batches));
  auto const of = [](figures const& f) { return f.batch / f.stages.slowest(); };
  std::sort(got.begin(), got.end(), [&](figures const& a, figures const& b) { return of(a) < of(b); });
  outcome o;
  o.all = got[got.size() / 2];
  o.ratio = of(o.all);
  o.reserved_mib = static_cast<double>(max_memory_reserved()) / 1_MiB;
  o.pinned_mib = static_cast<double>(pinned_memory_stats().reserved_bytes.all.peak) / 1_MiB;
  o.right = p.right();
  o.by_hand = p.run_by_hand(s.batches);
  o.right &= p.right();
  o.alone = {p.run(true, false, false, s.batches).stages.in, p.run(false, true, false, s.batches).stages.work,
             p.run(false, false, true, s.batches).stages.out};
  print(o, s, json);
  return o.right ? 0 : 1;
}

}  // namespace weir::tool
