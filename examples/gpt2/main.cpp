// Trains GPT-2 on all devices: a thread a rank, or a process a rank under torchrun or mpirun.
// Threads: one for each rank.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <variant>

#include "examples/ending.h"
#include "examples/gpt2/gpt2.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/runtime.h"

namespace {

char const* const usage =
    "usage: gpt2 --tokens FILE [OPTIONS]\n"
    "Trains GPT-2 (124M), data-parallel over all devices.\n"
    "\n"
    "options:\n"
    "  --tokens FILE      text, or tokens of llm.c if its name ends in .bin\n"
    "  --load FILE        begins with a file of --save, or of GPT-2 in float32 (safetensors)\n"
    "  --save FILE        writes the parameters at the end, and what continues the training\n"
    "  --layers, --heads, --width, --context, --vocabulary N\n"
    "                     (default: 12, 12, 768, 1024, 50257)\n"
    "  --batch N          rows of a device in a pass (default: 8)\n"
    "  --accumulate N     passes of a step (default: 1)\n"
    "  --steps N          in all, with those before --load (default: 200)\n"
    "  --warmup N         steps in which the rate rises; then it falls to a tenth (default: 10)\n"
    "  --rate R, --decay D, --clip NORM\n"
    "                     of AdamW (default: 6e-4, 0.1, 1)\n"
    "  --dtype TYPE       of products: fp32, tf32 or bf16 (default: fp32)\n"
    "  --reduce TYPE      of gradients between ranks: fp32 or bf16 (default: fp32)\n"
    "  --allocator NAME   of tensors on GPUs: weir or torch (default: weir)\n"
    "  --seed N           of parameters and rows (default: 1)\n"
    "  --every N          steps between lines (default: 10)\n"
    "  -h, --help         this text\n"
    "\n"
    "in several processes, one for each device: torchrun --no-python --nproc-per-node 2 gpt2 ...\n"
    "\n"
    "exit status: 0 trained, 1 an error, 2 usage\n";

gpt2::settings parse(int argc, char** argv) {
  gpt2::settings s;
  std::map<std::string, std::variant<std::string*, std::int64_t*, double*>> const options = {
      {"--tokens", &s.tokens},   {"--load", &s.load},    {"--save", &s.save},
      {"--dtype", &s.dtype},     {"--rate", &s.rate},    {"--allocator", &s.allocator},
      {"--layers", &s.layers},   {"--heads", &s.heads},  {"--width", &s.width},
      {"--context", &s.context}, {"--batch", &s.batch},  {"--vocabulary", &s.vocabulary},
      {"--steps", &s.steps},     {"--seed", &s.seed},    {"--accumulate", &s.accumulate},
      {"--warmup", &s.warmup},   {"--every", &s.every},  {"--decay", &s.decay},
      {"--clip", &s.clip},       {"--reduce", &s.reduce}};
  for (int i = 1; i < argc; i += 2) {
    auto const found = options.find(argv[i]);
    if (found == options.end() || i + 1 == argc)
      throw examples::usage_error(argv[i] + std::string(found == options.end() ? " is no option" : " lacks its value"));
    std::string const value = argv[i + 1];
    auto const read = [&]<class T>(T* to) {
      if constexpr (std::is_same_v<T, std::string>)
        *to = value;
      else if (auto const [end, failed] = std::from_chars(value.data(), value.data() + value.size(), *to);
               failed != std::errc() || *end || !(*to >= 0 && *to < 1e15))
        throw examples::usage_error(found->first + " " + value + " is no number that it takes");
    };
    std::visit(read, found->second);
  }
  if (s.tokens.empty())
    throw examples::usage_error("--tokens FILE is missing");
  if (std::min({s.layers, s.heads, s.width, s.context, s.vocabulary, s.batch, s.accumulate, s.every}) < 1)
    throw examples::usage_error("only --steps, --warmup, --seed, --rate, --decay and --clip may be 0");
  if (s.width % s.heads)
    throw examples::usage_error("--width is no multiple of --heads");
  using words = std::set<std::string>;
  if (!words{"fp32", "tf32", "bf16"}.contains(s.dtype) || !words{"fp32", "bf16"}.contains(s.reduce) ||
      !words{"weir", "torch"}.contains(s.allocator))
    throw examples::usage_error("--dtype is fp32, tf32 or bf16, --reduce fp32 or bf16, --allocator weir or torch");
  return s;
}

void run(gpt2::settings const& s) {
  std::filesystem::path const folder = std::filesystem::path(s.save).parent_path();
  if (!s.save.empty() && access((folder / ".").c_str(), W_OK) != 0)
    throw std::runtime_error(s.save + " cannot be written; name a file in a folder that can");
  gpt2::corpus const from = gpt2::read(s);
  gpt2::prepare(s);
  auto ranks = weir::communicator::create_launched();
  if (ranks[0].rank() == 0)
    std::printf("%s; ranks: %d; %zu tokens\n", weir::runtime::current().description().c_str(), ranks[0].size(),
                from.training.size());
  weir::run_ranks(ranks, [&](weir::communicator& rank) {
    bool const prints = rank.rank() == 0;
    double const loss = gpt2::train(s, from, rank, prints).validation;
    if (prints)
      std::printf("validation loss %.5f\n", loss);
  });
}

int command(int argc, char** argv) {
  std::string_view const first = argc > 1 ? argv[1] : "";
  if (first == "-h" || first == "--help")
    std::fputs(usage, stdout);
  else if (!examples::says_version("gpt2", first))
    run(parse(argc, argv));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("gpt2", argc, argv, command);
}
