// Scrambles or restores a file on a device with overlapped I/O, copies and kernels. Checks every byte.
//   pipeline [--input FILE] [--output FILE] [--bytes N] [--batch BYTES] [--depth N]
// Without --input, the program creates a file of --bytes. Without --output, or with --check, it restores the
// output and compares it with the input.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "examples/options.h"
#include "examples/pipeline/pipeline.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace {

void make_file(std::filesystem::path const& path, std::size_t bytes) {
  std::ofstream file(path, std::ios::binary);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> part(std::size_t{1} << 16);
  for (std::size_t left = bytes; left > 0;) {
    for (auto& word : part)
      word = random();
    std::size_t const n = std::min(left, part.size() * 8);
    file.write(reinterpret_cast<char const*>(part.data()), static_cast<std::streamsize>(n));
    left -= n;
  }
  if (!file.flush())
    throw std::runtime_error(path.string() + " cannot be written");
}

void bar(std::size_t done, std::size_t total) {
  constexpr int width = 40;
  int const full = total ? static_cast<int>(done * width / total) : width;
  std::fprintf(stderr, "\r[%s%s] %3d %%%s", std::string(static_cast<std::size_t>(full), '=').c_str(),
               std::string(static_cast<std::size_t>(width - full), ' ').c_str(), full * 100 / width,
               done == total ? "\n" : "");
}

struct scratch {  // temporary files, removed on exit
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("weir-pipeline-" + std::to_string(::getpid()));
  scratch() { std::filesystem::create_directories(folder); }
  ~scratch() {
    std::error_code whatever;
    std::filesystem::remove_all(folder, whatever);
  }
};

int command(int argc, char** argv) {
  pipeline::settings s;
  std::string input, output;
  std::size_t bytes = std::size_t{256} << 20;
  bool check = false;
  examples::options all("pipeline", "",
                        "Takes a file through a device into another file: reads, copies, work and writes "
                        "overlap. Draws what overlapped.");
  all.file("--input", input, "what is scrambled; none: a file of --bytes is made");
  all.file("--output", output, "where to; none: a file that is restored, compared and removed");
  all.number("--bytes", bytes, "of the file that is made", 1);
  all.number("--batch", s.batch, "bytes, a multiple of 8", 1);
  all.number("--depth", s.depth, "batches under way at most", 1);
  all.flag("--check", check, "restore and compare also what --output keeps");
  if (!all.understood(argc, argv,
                      "examples:\n"
                      "  ./run pipeline\n"
                      "  ./run pipeline --input big.bin --output scrambled.bin --check\n"
                      "\n"
                      "exit status: 0 every byte is right, 1 wrong bytes or an error, 2 usage\n"))
    return 0;
  s.input = input, s.output = output;
  scratch const temporary;
  check |= s.output.empty();
  if (s.input.empty()) {
    s.input = temporary.folder / "input";
    pipeline::require_room(
        s.input, s.output.empty() && bytes <= std::numeric_limits<std::size_t>::max() / 2 ? 2 * bytes : bytes);
    make_file(s.input, bytes);
  }
  if (s.output.empty())
    s.output = temporary.folder / "output";
  if (::isatty(STDERR_FILENO))
    s.progress = bar;

  auto const o = pipeline::run(s);
  std::printf(
      "%s: %.1f MiB in %.1f ms, %.2f GB/s from file to file; %.0f MiB of the device and %.0f MiB of pinned memory\n%s",
      weir::runtime::current().description().c_str(), static_cast<double>(o.bytes) / (1 << 20), o.ms,
      static_cast<double>(o.bytes) / o.ms * 1e-6, static_cast<double>(weir::max_memory_reserved()) / (1 << 20),
      static_cast<double>(weir::pinned_memory_stats().reserved_bytes.all.peak) / (1 << 20),
      pipeline::picture(o.spans).c_str());
  std::printf("overlap  %.1f of the five stages at a time, in the mean\n", pipeline::at_a_time(o.spans));
  if (!check)
    return 0;
  bool const right = pipeline::checksum_of_restored(s.output) == o.checksum;
  std::printf("checksum %016llx: %s\n", static_cast<unsigned long long>(o.checksum),
              right ? "every byte is right" : "WRONG BYTES");
  return right ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("pipeline", argc, argv, command);
}
