// Trains a transformer on the characters of a text, data-parallel over all GPUs or simulated devices, and lets it
// write a sample. Gradients are reduced while the backward pass still runs.
// Threads: one worker per device of this process.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "examples/ending.h"
#include "examples/ranks.h"
#include "trainer.h"
#include "weir/observe.h"
#include "weir/timeline.h"

namespace {

struct asked : trainer::settings {
  std::string dtype, losses_file, timeline_file;
  int replicas = 0;
  bool resume = false;
};

void require(bool good, std::string const& otherwise) {
  if (!good)
    throw examples::usage_error(otherwise);
}

// Returns: none if the program has said all that was asked.
std::optional<asked> parse(int argc, char** argv) {
  namespace po = boost::program_options;
  bool const simulated = weir::runtime::current().is_simulated();
  asked a;
  a.shape = simulated ? trainer::model_shape{64, 80, 2, 4} : trainer::model_shape{256, 384, 6, 6};
  a.batch = simulated ? 16 : 64, a.steps = simulated ? 3400 : 2500, a.how.rate = simulated ? 0.004 : 0.001;
  a.dtype = simulated ? "fp32" : "bf16";
  po::options_description all("options, with defaults for the devices here", 110);
  auto const file = [&](char const* name, std::string& to, char const* what) {
    all.add_options()(name, po::value(&to)->value_name("FILE"), what);
  };
  auto const value = [&](char const* name, auto& to, char const* what) {
    all.add_options()(name, po::value(&to)->default_value(to)->value_name("N"), what);
  };
  file("text", a.text_file, "what to learn; its last tenth is kept for validation");
  value("replicas", a.replicas, "devices to train on; 0: all that WEIR_DEVICES names");
  value("steps", a.steps, "training steps");
  value("batch", a.batch, "sequences of a step, over all replicas");
  value("context", a.shape.context, "characters that the model sees at most");
  value("width", a.shape.width, "numbers of a character between layers");
  value("layers", a.shape.layers, "layers, each of attention and a dense part");
  value("heads", a.shape.heads, "heads of attention, which divide the width");
  value("dtype", a.dtype, "type of activations and products: fp32 or bf16");
  value("rate", a.how.rate, "the highest learning rate");
  value("seed", a.seed, "of parameters, batches and sample");
  value("sample", a.sample, "characters that the model writes at the end");
  file("load", a.load_file, "checkpoint to start from");
  file("save", a.save_file, "checkpoint to write at the end");
  value("save-every", a.save_every, "steps between checkpoints, which replace each other in --save; 0: none");
  file("losses", a.losses_file, "write the training loss of each step, one a line");
  file("timeline", a.timeline_file, "write what each stream did, for ui.perfetto.dev; take few --steps");
  all.add_options()("resume", po::bool_switch(&a.resume), "start from the --save file if there is one")(
      "version", "print the version")("help,h", "print this text");
  po::variables_map given;
  try {
    po::store(po::command_line_parser(argc, argv).options(all).positional({}).run(), given);
    po::notify(given);
  } catch (po::error const& e) {
    throw examples::usage_error(e.what());
  }
  if (given.count("help")) {
    std::cout << "usage: trainer --text FILE [OPTIONS]\nTrains a transformer on characters. ./run demo has a text.\n\n"
              << all << "\nmpirun and torchrun start several processes of it (docs/how-to/several-processes.md).\n"
              << "exit status: 0 replicas agree, 1 they differ or an error, 2 usage\n";
    return {};
  }
  if (given.count("version"))
    return examples::says_version("trainer", "--version"), std::nullopt;
  require(!a.text_file.empty(), "the option '--text' is required but missing");
  trainer::model_shape const& m = a.shape;
  require(std::min({a.batch, m.context, m.width, m.layers, m.heads}) > 0 && a.steps > 0,
          "--steps, --batch, --context, --width, --layers and --heads: must be above 0");
  require(a.how.rate > 0 && a.save_every >= 0, "--rate: must be above 0; --save-every: 0 or more");
  require(m.width % m.heads == 0, "--heads: must divide --width");
  require(a.dtype == "fp32" || a.dtype == "bf16", "--dtype " + a.dtype + ": choose fp32 or bf16");
  require(!a.save_file.empty() || !(a.save_every || a.resume), "--save-every and --resume need --save FILE");
  a.type = a.dtype == "bf16" ? weir::bfloat16 : weir::float32;
  if (a.resume && std::filesystem::exists(a.save_file))
    a.load_file = a.save_file;
  return a;
}

int command(int argc, char** argv) {
  std::optional<asked> const given = parse(argc, argv);
  if (!given)
    return 0;
  asked a = *given;
  if (weir::this_launch().rank != 0) {  // rank 0 speaks for all, and writes the files; errors go to stderr
    require(std::freopen("/dev/null", "w", stdout), "/dev/null cannot be opened");
    a.losses_file.clear(), a.timeline_file.clear();
  }
  for (std::string const& file : {a.save_file, a.losses_file, a.timeline_file}) {
    if (!file.empty() && access((std::filesystem::path(file).parent_path() / ".").c_str(), W_OK) != 0)
      throw std::runtime_error(file + " cannot be written; name a file in a folder that can");
  }
  trainer::text const text(a.text_file, a.shape);
  std::string const machine = weir::runtime::current().description();
  std::printf("%s\n%zu characters, %zu different; %d layers of %d, %s; batches of %d x %d\n", machine.c_str(),
              text.tokens.size(), text.characters.size(), a.shape.layers, a.shape.width, a.dtype.c_str(), a.batch,
              a.shape.context);
  std::vector<weir::communicator> ranks = examples::ranks_of_launch(a.replicas);
  int const replicas = ranks[0].size(), here = ranks.size();
  require(a.batch % replicas == 0, "--batch: must be a multiple of " + std::to_string(replicas) + ", the replicas");
  if (!a.timeline_file.empty())
    weir::record_timeline();
  std::vector<float> losses;
  auto const began = std::chrono::steady_clock::now();
  auto const seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  bool const terminal = isatty(STDOUT_FILENO) != 0;
  trainer::outcome const out = trainer::train(a, text, std::move(ranks), [&](std::int64_t step, float loss) {
    losses.push_back(loss);
    bool const last = step + 1 == a.steps;
    double const read = static_cast<double>(losses.size()) * a.batch * a.shape.context;
    if (terminal || last || (step + 1) % std::max<std::int64_t>(a.steps / 10, 1) == 0)  // on a terminal over the last
      std::printf("%sstep %6lld of %lld   %.0f characters/s%s", terminal ? "\r" : "", static_cast<long long>(step + 1),
                  static_cast<long long>(a.steps), read / seconds(), terminal && !last ? "\033[K" : "\n");
    std::fflush(stdout);
  });
  if (!a.timeline_file.empty()) {
    weir::stop_timeline();
    weir::dump_timeline(a.timeline_file);
    std::printf("%s", weir::timeline_summary().c_str());
  }
  if (std::ofstream file(a.losses_file); !a.losses_file.empty()) {
    file.precision(9);
    for (float const loss : losses)
      file << loss << "\n";
    if (!file.flush())
      throw std::runtime_error("--losses " + a.losses_file + " cannot be written");
  }
  bool const agree = std::ranges::count(out.fingerprints, out.fingerprints[0]) == replicas;
  if (a.sample > 0)
    std::printf("\n--- a sample ---\n%s\n----------------\n", out.sample.c_str());
  std::printf(
      "\nlearned   in %zu steps, %.1f s; validation loss %.4f nats a character, of text that no step has seen\n",
      losses.size(), seconds(), out.validation_loss);
  std::printf("replicas  of %d %s %s (%016llx); gradients were shared in %d buckets during the backward pass\n",
              replicas, here == replicas ? "devices" : "processes", agree ? "agree bit for bit" : "DIFFER",
              static_cast<unsigned long long>(out.fingerprints[0]), out.buckets);
  std::printf("memory    at the peak");
  for (int i = 0; i < here; ++i)
    std::printf("%s gpu:%d %.1f MiB in use, %.1f MiB reserved", i ? ";" : "", i,
                static_cast<double>(weir::max_memory_allocated(i)) / (1 << 20),
                static_cast<double>(weir::max_memory_reserved(i)) / (1 << 20));
  std::printf("\nnext      --timeline t.json, --save model, --text FILE; ./run questions\n");
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("trainer", argc, argv, command);
}
