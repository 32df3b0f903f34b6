// Trains a transformer on the characters of a text, data-parallel over all GPUs or simulated devices, and lets it
// write a sample. Gradients are reduced while the backward pass still runs.
// Threads: one worker per device of this process.
#include <chrono>
#include <fstream>

#include "examples/options.h"
#include "trainer.h"
#include "weir/device.h"
#include "weir/observe.h"
#include "weir/timeline.h"

namespace {

using examples::require;

struct asked : trainer::settings {
  std::string losses_file, timeline_file;
  int replicas = 0;
};

// Returns: false if the program has said all that was asked.
bool parse(int argc, char** argv, asked& a) {
  bool const simulated = weir::runtime::current().is_simulated();
  trainer::model_shape& m = a.shape;
  m = simulated ? trainer::model_shape{64, 80, 2, 4} : trainer::model_shape{256, 384, 6, 6};
  a.batch = simulated ? 16 : 64, a.steps = simulated ? 3400 : 2500, a.how.rate = simulated ? 0.004 : 0.001;
  a.type = simulated ? weir::float32 : weir::bfloat16;
  bool const is_alone = weir::this_launch().how == weir::launch_info::by::itself;
  examples::options all("trainer", "--text FILE ", "Trains a transformer on characters. ./run demo has a text.");
  all.file("--text", a.text_file, "what to learn; its last tenth is kept for validation");
  all.number("--replicas", a.replicas, "devices to train on; 0: all that WEIR_DEVICES names", 0,
             is_alone ? weir::device_count() : 0);
  all.number("--steps", a.steps, "training steps", 1);
  all.number("--batch", a.batch, "sequences of a step, over all replicas", 1);
  all.number("--context", m.context, "characters that the model sees at most", 1);
  all.number("--width", m.width, "numbers of a character between layers", 1);
  all.number("--layers", m.layers, "layers, each of attention and a dense part", 1);
  all.number("--heads", m.heads, "heads of attention, which divide the width", 1);
  all.choice("--dtype", a.type, {{"fp32", weir::float32}, {"bf16", weir::bfloat16}}, "of activations and products");
  all.number("--rate", a.how.rate, "the highest learning rate");
  all.number("--seed", a.seed, "of parameters, batches and sample");
  all.number("--sample", a.sample, "characters that the model writes at the end");
  all.file("--save", a.save_file, "checkpoint to write at the end");
  all.number("--save-every", a.save_every, "steps between checkpoints, which replace each other in --save; 0: none");
  all.flag("--resume", a.resume, "start from the --save file if there is one");
  all.file("--losses", a.losses_file, "write the training loss of each step, one a line");
  all.file("--timeline", a.timeline_file, "write what each stream did, for ui.perfetto.dev; take few --steps");
  return all.understood(argc, argv,
                        "mpirun and torchrun start several processes of it (docs/how-to/several-processes.md).\n"
                        "exit status: 0 replicas agree, 1 they differ or an error, 2 usage\n");
}

int command(int argc, char** argv) {
  asked a;
  if (!parse(argc, argv, a))
    return 0;
  require(!a.text_file.empty(), "--text FILE is missing");
  require(a.shape.width % a.shape.heads == 0, "--heads: must divide --width");
  require(!a.save_file.empty() || !(a.save_every || a.resume), "--save-every and --resume need --save FILE");
  if (weir::this_launch().rank != 0) {  // rank 0 speaks for all, and writes the files; errors go to stderr
    require(std::freopen("/dev/null", "w", stdout), "/dev/null cannot be opened");
    a.losses_file.clear(), a.timeline_file.clear();
  }
  std::ofstream losses(a.losses_file);
  losses.precision(9);
  trainer::text const text(a.text_file, a.shape);
  std::printf("%s\n%zu characters, %zu different; %d layers of %d, %s; batches of %d x %d\n",
              weir::runtime::current().description().c_str(), text.tokens.size(), text.characters.size(),
              a.shape.layers, a.shape.width, name_of(a.type).data(), a.batch, a.shape.context);
  auto ranks = weir::communicator::create_launched(a.replicas);
  int const replicas = ranks[0].size(), here = ranks.size();
  require(a.batch % replicas == 0, "--batch: must be a multiple of " + std::to_string(replicas) + ", the replicas");
  if (!a.timeline_file.empty())
    weir::record_timeline();
  auto const began = std::chrono::steady_clock::now();
  auto const seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
  std::int64_t steps = 0;
  trainer::outcome const out = trainer::train(a, text, ranks, [&](std::int64_t step, float loss) {
    losses << loss << "\n";
    ++steps;
    if (++step == a.steps || step % std::max<std::int64_t>(a.steps / 10, 1) == 0) {
      std::printf("step %6lld of %lld   %.0f characters/s\n", static_cast<long long>(step),
                  static_cast<long long>(a.steps), steps * a.batch * a.shape.context / seconds());
      std::fflush(stdout);
    }
  });
  if (!a.timeline_file.empty()) {
    weir::dump_timeline(a.timeline_file);
    std::printf("%s", weir::timeline_summary().c_str());
  }
  if (!a.losses_file.empty() && !losses.flush())
    throw std::runtime_error("--losses " + a.losses_file + " cannot be written");
  if (a.sample > 0)
    std::printf("\n--- a sample ---\n%s\n----------------\n", out.sample.c_str());
  std::printf("\nlearned   in %lld steps, %.1f s; validation loss %.4f nats a character, of unseen text\n",
              static_cast<long long>(steps), seconds(), out.validation_loss);
  bool const agree = std::ranges::count(out.fingerprints, out.fingerprints[0]) == replicas;
  std::printf("replicas  of %d %s %s (%016llx); gradients were shared in %d buckets during the backward pass\n",
              replicas, here == replicas ? "devices" : "processes", agree ? "agree bit for bit" : "DIFFER",
              static_cast<unsigned long long>(out.fingerprints[0]), out.buckets);
  std::printf("memory    of the first device at the peak: %.1f MiB in use, %.1f MiB reserved\n",
              static_cast<double>(weir::max_memory_allocated(ranks[0].device())) / (1 << 20),
              static_cast<double>(weir::max_memory_reserved(ranks[0].device())) / (1 << 20));
  std::printf("next      --timeline t.json, --save model, --text FILE; ./run questions\n");
  return agree ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("trainer", argc, argv, command);
}
