// Data-parallel training of a character-level language model. Runs on GPUs and on simulated devices. Gradient
// buckets are reduced while the backward pass still runs.
// Threads: one worker per device, and the main thread, which observes them.
#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/ending.h"
#include "progress.h"
#include "table.h"
#include "train.h"
#include "weir/observe.h"
#include "weir/timeline.h"

namespace {

namespace po = boost::program_options;
using trainer::settings;

struct asked {
  settings with;
  std::string devices, type = "fp32", optimizer = "sgd";
  int replicas = 0;
  bool table = false, resume = false;
  double silence = 30;
  std::string timeline_file, memory_file;
};

std::size_t edits(std::string const& a, std::string const& b) {  // Levenshtein distance
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      std::size_t const change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({change, row[j] + 1, row[j - 1] + 1}));
    }
  }
  return row.back();
}

weir::dtype type_of(std::string const& name) {
  for (auto const& [known, type] :
       {std::pair{"fp32", weir::float32}, std::pair{"bf16", weir::bfloat16}, std::pair{"fp16", weir::float16}}) {
    if (name == known)
      return type;
  }
  throw examples::usage_error("--dtype " + name + ": choose fp32, bf16 or fp16");
}

// The options in two columns, with defaults, in lines of at most 100 characters.
std::string help_of(po::options_description const& all) {
  std::string out;
  std::size_t wide = 0;
  auto const left = [](po::option_description const& o) {
    if (o.long_name() == "help")
      return std::string("-h, --help");
    std::string const value = o.semantic()->max_tokens() ? " " + o.semantic()->name() : "";
    return "--" + o.long_name() + value.substr(0, value.find(" (="));
  };
  for (auto const& o : all.options())
    wide = std::max(wide, left(*o).size());
  for (auto const& o : all.options()) {
    std::string line = "  " + left(*o) + std::string(wide - left(*o).size() + 1, ' ');
    std::string const value = o->semantic()->max_tokens() ? o->semantic()->name() : "";
    std::size_t const given = value.find("(=");
    std::istringstream words(o->description() + (given == value.npos ? "" : " (default: " + value.substr(given + 2)));
    for (std::string word; words >> word;) {
      if (line.size() + 1 + word.size() > 100)
        out += line + "\n", line = std::string(wide + 3, ' ');
      line += " " + word;
    }
    out += line + "\n";
  }
  return out;
}

std::optional<asked> parse(int argc, char** argv) {
  asked a;
  settings& s = a.with;
  po::options_description all("trainer");
  all.add_options()("text", po::value(&s.text_file)->required()->value_name("FILE"),
                    "The text to learn. Its last tenth is kept for validation.")(
      "devices", po::value(&a.devices)->value_name("DEVICES"),
      "auto, cuda or sim[:N[:SIZE]]. Without the option, WEIR_DEVICES, else auto.")(
      "replicas", po::value(&a.replicas)->value_name("N"), "Number of devices to train on. Without the option, all.")(
      "steps", po::value(&s.steps)->default_value(s.steps)->value_name("N"), "Number of training steps.")(
      "batch", po::value(&s.batch)->default_value(s.batch)->value_name("N"),
      "Number of rows of a global batch, of all replicas together.")(
      "context", po::value(&s.shape.context)->default_value(s.shape.context)->value_name("N"),
      "Number of characters from which the model predicts the next one.")(
      "embedding", po::value(&s.shape.embedding)->default_value(s.shape.embedding)->value_name("N"),
      "Length of the vector of a character.")(
      "hidden", po::value(&s.shape.hidden)->default_value(s.shape.hidden)->value_name("N"), "Width of a dense layer.")(
      "layers", po::value(&s.shape.layers)->default_value(s.shape.layers)->value_name("N"),
      "Number of dense layers before the last one.")(
      "dtype", po::value(&a.type)->default_value(a.type)->value_name("TYPE"),
      "fp32, bf16 or fp16: the type of activations and of the inputs of products. Parameters stay fp32. With fp16 "
      "the loss is scaled.")("checkpoint", po::bool_switch(&s.how.recompute),
                             "Keeps few activations, and computes the others again in the backward pass.")(
      "accumulate", po::value(&s.accumulate)->default_value(s.accumulate)->value_name("N"),
      "Number of parts in which a replica computes its share of a batch.")(
      "table", po::bool_switch(&a.table),
      "Prints the memory and the time of a step for each of these choices, and does no more. Then --steps is 20 "
      "unless it is given.")("timeline", po::value(&a.timeline_file)->value_name("FILE"),
                             "Writes what each stream did and when, for ui.perfetto.dev. Take few --steps.")(
      "memory", po::value(&a.memory_file)->value_name("FILE"),
      "Writes which line took which memory: a page for a browser if the name ends in .html, else a snapshot for "
      "torch.cuda._memory_viz.")("optimizer", po::value(&a.optimizer)->default_value(a.optimizer)->value_name("NAME"),
                                 "sgd or adamw.")(
      "rate", po::value(&s.update.rate)->value_name("R"),
      "The highest learning rate. Without the option, 0.2 for sgd and 0.002 for adamw.")(
      "momentum", po::value(&s.update.momentum)->default_value(s.update.momentum, "0.9")->value_name("M"),
      "Momentum of sgd.")("decay", po::value(&s.update.decay)->default_value(s.update.decay, "0.01")->value_name("D"),
                          "Weight decay of adamw.")(
      "clip", po::value(&s.update.clip)->default_value(s.update.clip, "0")->value_name("NORM"),
      "The limit of the norm of all gradients. 0 sets no limit.")(
      "seed", po::value(&s.seed)->default_value(s.seed)->value_name("N"), "Seed of parameters, batches and sample.")(
      "sample", po::value(&s.sample)->default_value(s.sample)->value_name("N"),
      "Number of characters that the model writes at the end.")("load", po::value(&s.load_file)->value_name("FILE"),
                                                                "The checkpoint from which training starts.")(
      "save", po::value(&s.save_file)->value_name("FILE"), "The checkpoint that is written at the end.")(
      "save-every", po::value(&s.save_every)->value_name("N"),
      "Number of steps between checkpoints. Each replaces the one before in --save.")(
      "resume", po::bool_switch(&a.resume), "Starts from the --save file if there is one.")(
      "silence", po::value(&a.silence)->default_value(a.silence, "30")->value_name("SECONDS"),
      "A process that gives no sign of life for that long counts as frozen.")(
      "losses", po::value(&s.losses_file)->value_name("FILE"), "Writes the training loss of each step, one a line.")(
      "version", "Prints the version.")("help,h", "Prints this text.");
  po::variables_map values;
  try {
    po::store(po::command_line_parser(argc, argv).options(all).positional({}).run(), values);
  } catch (po::unknown_option const& e) {
    std::string const name = e.get_option_name();
    auto const& known = all.options();
    auto const best = std::min_element(known.begin(), known.end(), [&](auto const& x, auto const& y) {
      return edits(name, "--" + x->long_name()) < edits(name, "--" + y->long_name());
    });
    bool const near = edits(name, "--" + (*best)->long_name()) <= 2;
    throw examples::usage_error("no option is called " + name +
                                (near ? "; did you mean --" + (*best)->long_name() + "?" : ""));
  } catch (po::error const& e) {
    throw examples::usage_error(e.what());
  }
  if (values.count("help")) {
    std::cout << "usage: trainer --text FILE [OPTIONS]\n"
                 "Trains a character-level language model, data-parallel over all devices. ./run demo has a text.\n"
                 "\noptions:\n"
              << help_of(all)
              << "\nexamples:\n  ./run demo --steps 200 --timeline t.json\n  ./run demo --table --dtype bf16\n"
                 "\nin several processes, one for each device (docs/how-to/several-processes.md):\n"
                 "  mpirun -np 4 trainer --text FILE --save m --save-every 100 --resume\n"
                 "  torchrun --no-python --nproc-per-node 4 trainer --text FILE\n"
                 "\nexit status: 0 replicas agree, 1 they differ or an error, 2 usage\n";
    return {};
  }
  if (values.count("version")) {
    examples::says_version("trainer", "--version");
    return {};
  }
  try {
    po::notify(values);
  } catch (po::error const& e) {
    throw examples::usage_error(e.what());
  }
  auto const positive = [](char const* name, std::int64_t v) {
    if (v < 1)
      throw examples::usage_error(std::string("--") + name + " " + std::to_string(v) + ": must be at least 1");
  };
  positive("steps", s.steps), positive("batch", s.batch), positive("context", s.shape.context),
      positive("embedding", s.shape.embedding);
  positive("hidden", s.shape.hidden), positive("layers", s.shape.layers), positive("accumulate", s.accumulate);
  if (a.table && values["steps"].defaulted())
    s.steps = 20;
  if (a.table)
    positive("steps", s.steps - 1);
  if (s.save_every)
    positive("save-every", s.save_every);
  if ((s.save_every || a.resume) && s.save_file.empty())
    throw examples::usage_error("--save-every and --resume need --save FILE");
  if (a.resume && !s.load_file.empty())
    throw examples::usage_error("--resume and --load: choose one of them");
  if (!(a.silence > 0 && a.silence < 1e6))
    throw examples::usage_error("--silence: must be above 0");
  s.how.type = type_of(a.type);
  if (a.optimizer != "sgd" && a.optimizer != "adamw")
    throw examples::usage_error("--optimizer " + a.optimizer + ": choose sgd or adamw");
  s.how.by = a.optimizer == "sgd" ? trainer::optimizer::sgd : trainer::optimizer::adamw;
  if (s.how.by == trainer::optimizer::adamw && !values.count("rate"))
    s.update.rate = 0.002f;
  for (float const v : {s.update.rate, s.update.momentum, s.update.decay, s.update.clip}) {
    if (!std::isfinite(v) || v < 0)
      throw examples::usage_error("--rate, --momentum, --decay and --clip: must be numbers, 0 or more");
  }
  return a;
}

// Draws the bar until all steps are done or a replica has failed.
void watch(settings const& s, trainer::report const& report, std::int64_t first) {
  trainer::progress bar(s.steps);
  for (std::int64_t done = first; done < s.steps && !report.failed.load();) {
    done = report.steps_done();
    if (done > first)
      bar.show(done, static_cast<double>(done - first) * s.batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  bar.end();
}

// Reports an output file that cannot be written before training starts. Leaves no new file behind.
void check_writable(char const* option, std::string const& path) {
  if (path.empty())
    return;
  bool const was_there = std::filesystem::exists(path);
  bool const opens = static_cast<bool>(std::ofstream(path, std::ios::app));
  if (!opens)
    throw std::runtime_error(std::string(option) + " " + path + " cannot be written");
  if (!was_there)
    std::filesystem::remove(path);
}

double mib(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// What was shown, in five lines.
void panel(int replicas, settings const& s, trainer::report const& report, trainer::outcome const& out,
           double seconds) {
  bool const one_process = report.replicas == static_cast<std::size_t>(replicas);
  std::printf("\nshown     data-parallel training on %s, a replica on each of %d%s\n",
              weir::runtime::current().description().c_str(), replicas, one_process ? "" : " processes");
  std::printf("learned   in %lld steps, %.1f s; validation loss %.4f, over %lld characters that no step has seen\n",
              static_cast<long long>(s.steps - report.first_step), seconds, out.validation_loss,
              static_cast<long long>(out.validation_rows));
  std::printf("replicas  %s; gradients were shared in %d buckets during the backward pass\n",
              out.agree() ? "agree bit for bit" : "DIFFER", out.buckets);
  std::printf("memory    at the peak");
  for (int i = 0; i < static_cast<int>(report.replicas); ++i)
    std::printf("%s gpu:%d %.1f MiB in use, %.1f MiB reserved", i ? ";" : "", i, mib(weir::max_memory_allocated(i)),
                mib(weir::max_memory_reserved(i)));
  std::printf("\nnext      --table, --timeline t.json, --memory m.html, --text FILE; ./run questions\n");
}

int run(asked a) {
  auto const began = std::chrono::steady_clock::now();
  if (!a.devices.empty())
    setenv("WEIR_DEVICES", a.devices.c_str(), 1);
  settings& s = a.with;
  weir::launch_info const launched = weir::this_launch();
  bool const one_process = launched.how == weir::launch_info::by::itself;
  if (launched.rank != 0) {  // rank 0 speaks for all, and writes the files; errors go to stderr
    if (!std::freopen("/dev/null", "w", stdout))
      throw std::runtime_error("/dev/null cannot be opened");
    s.losses_file.clear(), a.timeline_file.clear(), a.memory_file.clear();
  } else {
    check_writable("--save", s.save_file);
  }
  check_writable("--losses", s.losses_file);
  check_writable("--timeline", a.timeline_file);
  check_writable("--memory", a.memory_file);
  trainer::text const text(s.text_file, s.shape.context);
  s.shape.vocabulary = text.vocabulary();

  std::printf("%s\n", weir::runtime::current().description().c_str());
  if (!one_process && (a.table || a.replicas))
    throw examples::usage_error("--table and --replicas are for one process");
  std::vector<weir::communicator> ranks;
  if (!one_process)
    ranks.push_back(weir::communicator::from_environment(
        {.silence = std::chrono::milliseconds(static_cast<std::int64_t>(1e3 * a.silence) + 1)}));
  int const available = one_process ? weir::device_count() : launched.size;
  int const replicas = a.replicas ? a.replicas : available;
  if (replicas < 1 || replicas > available)
    throw examples::usage_error("--replicas " + std::to_string(replicas) + ": there are " + std::to_string(available) +
                                " devices");
  if (s.batch % replicas)
    throw examples::usage_error("--batch " + std::to_string(s.batch) + " cannot be divided among " +
                                std::to_string(replicas) + " replicas; take a multiple");
  if (s.batch / replicas % s.accumulate) {
    throw examples::usage_error("--accumulate " + std::to_string(s.accumulate) + ": a replica's " +
                                std::to_string(s.batch / replicas) +
                                " rows cannot be cut in so many parts; take a divisor");
  }
  std::optional<trainer::checkpoint> from;
  if (a.resume && std::filesystem::exists(s.save_file))
    s.load_file = s.save_file;
  if (launched.rank == 0 && !s.load_file.empty()) {
    from = trainer::read_checkpoint(s.load_file);
    if (from->shape != s.shape || from->characters != text.characters() || from->by != s.how.by)
      throw std::runtime_error("checkpoint: " + s.load_file +
                               " is of another model, text or optimizer; use the same options and text");
    if (from->step >= s.steps)
      throw std::runtime_error("checkpoint: " + s.load_file + " has " + std::to_string(from->step) +
                               " steps; ask for more with --steps");
  }
  std::int64_t first_step = from ? from->step : 0;
  if (!one_process)
    first_step = trainer::from_rank_0(ranks[0], first_step);

  std::int64_t count = 0;
  for (auto const& row : trainer::parameter_table(s.shape))
    count += row.count();
  std::printf("%zu characters, %d different; %lld parameters; batch %d over %d replica%s\n", text.size(),
              s.shape.vocabulary, static_cast<long long>(count), s.batch, replicas, replicas == 1 ? "" : "s");

  if (a.table) {
    std::printf("%s", trainer::table_of(trainer::compare_ways(s, text, replicas)).c_str());
    return 0;
  }
  if (!a.memory_file.empty())
    weir::record_memory_history();
  if (!a.timeline_file.empty())
    weir::record_timeline();
  trainer::report report(one_process ? replicas : 1, s.steps, first_step);
  std::thread watcher([&] { watch(s, report, report.first_step); });
  trainer::outcome out;
  try {
    trainer::checkpoint const* const begin = from ? &*from : nullptr;
    out =
        one_process ? trainer::train(s, text, begin, report) : trainer::train(s, text, begin, report, std::move(ranks));
  } catch (...) {
    report.failed = true;
    watcher.join();
    throw;
  }
  watcher.join();
  if (!a.timeline_file.empty()) {
    weir::stop_timeline();
    weir::dump_timeline(a.timeline_file);
    std::printf("%stimeline written to %s\n", weir::timeline_summary().c_str(), a.timeline_file.c_str());
  }
  if (!a.memory_file.empty()) {
    if (a.memory_file.ends_with(".html"))
      weir::dump_memory_page(a.memory_file);
    else
      weir::dump_memory_snapshot(a.memory_file);
    std::printf("memory written to %s\n", a.memory_file.c_str());
  }
  std::printf("parameters of all replicas: %016llx\n", static_cast<unsigned long long>(out.fingerprints[0]));
  if (s.how.type == weir::float16)
    std::printf("losses were scaled by %.0f at the end; %d step%s left out\n", static_cast<double>(out.scale.by),
                out.scale.steps_skipped, out.scale.steps_skipped == 1 ? " was" : "s were");
  if (s.sample > 0)
    std::printf("\n--- a sample ---\n%s\n----------------\n\n", out.sample.c_str());
  if (!s.losses_file.empty()) {
    std::ofstream file(s.losses_file);
    file.precision(9);
    for (std::int64_t step = report.first_step; step < s.steps; ++step)
      file << report.loss(step) << "\n";
    if (!file.flush())
      throw std::runtime_error("--losses " + s.losses_file + " cannot be written");
  }
  if (launched.rank == 0 && !s.save_file.empty()) {
    trainer::write_checkpoint(s.save_file, {s.shape, s.how.by, s.steps, text.characters(), out.values});
    std::printf("checkpoint written to %s\n", s.save_file.c_str());
  }
  panel(replicas, s, report, out, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return out.agree() ? 0 : 1;
}

int command(int argc, char** argv) try {
  auto const a = parse(argc, argv);
  return a ? run(*a) : 0;
} catch (weir::out_of_memory const& e) {
  std::fprintf(stderr, "%s\n", e.report().text().c_str());
  return 1;
} catch (examples::usage_error const& e) {
  return examples::wrong_usage("trainer", e);
} catch (std::exception const& e) {
  std::fprintf(stderr, "trainer: %s\n", e.what());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::ending("trainer", command(argc, argv));
}
