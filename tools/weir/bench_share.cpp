// weir bench share: cost of sharing memory with another process, beside the driver's own calls. This process
// owns the memory. It starts a second one, which reads the memory on another device if there is one.
// Threads: one in each process.
#include "bench_share.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/os_socket.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"
#include "weir/device.h"

extern char** environ;

namespace weir::tool {
namespace {

constexpr int line_of_reader = 50, plain_of_reader = 51;
constexpr std::chrono::seconds timeout{60};
constexpr int no_reader = std::numeric_limits<int>::min();  // no reader was requested

// The reader process: the same program and arguments, with two sockets.
class reader_process {
 public:
  reader_process(std::vector<std::string> const& arguments, int line, int plain) {
    std::vector<std::string> words{"weir", "bench", "share", "--as-reader"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> all;
    for (auto& w : words)
      all.push_back(w.data());
    all.push_back(nullptr);
    posix_spawn_file_actions_t files;
    ::posix_spawn_file_actions_init(&files);
    ::posix_spawn_file_actions_adddup2(&files, line, line_of_reader);
    ::posix_spawn_file_actions_adddup2(&files, plain, plain_of_reader);
    int const refused = ::posix_spawn(&id_, "/proc/self/exe", &files, nullptr, all.data(), environ);
    ::posix_spawn_file_actions_destroy(&files);
    if (refused != 0)
      throw driver_error(refused, "bench share", "the second process", "Try again: the system could not start it",
                         source_location::current());
  }
  reader_process(reader_process const&) = delete;
  ~reader_process() {
    if (id_ > 0)
      ::kill(id_, SIGKILL), ::waitpid(id_, nullptr, 0);
  }
  bool ended_well() {
    int status = 0;
    ::waitpid(std::exchange(id_, 0), &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t id_ = 0;
};

// Ignores the first round. NaN: this process measured nothing.
double median(std::vector<double> of) {
  if (of.size() < 2)
    return std::nan("");
  std::sort(of.begin() + 1, of.end());
  return of[1 + (of.size() - 2) / 2];
}

std::string text_of(double value, char const* otherwise) {
  if (std::isnan(value))
    return otherwise;
  return base::json_number(value, value < 10 ? 3 : value < 100 ? 2 : 1);
}

void print(share_row const& r, double ours, double raw, int reader, bool json) {
  char const* const none = json ? "null" : "-";
  std::string const w = text_of(ours, none), d = text_of(raw, none), ratio = text_of(ours / raw, none);
  if (json) {
    std::printf(
        "{\"row\": \"%s\", \"bytes\": %zu, \"unit\": \"%s\", \"weir\": %s, \"raw\": %s, \"ratio\": %s, \"reader\": "
        "%d}\n",
        r.name.c_str(), r.bytes, r.unit, w.c_str(), d.c_str(), ratio.c_str(), reader);
  } else {
    std::printf("%-12s %10s %5s %10s %10s %7s  %s\n", r.name.c_str(), bytes_text(r.bytes).c_str(), r.unit, w.c_str(),
                d.c_str(), ratio.c_str(), r.note);
  }
  std::fflush(stdout);
}

struct wanted {
  size_t bytes = 0;
  int rounds = 7, reader = 0;
  bool json = false;
  std::vector<share_row> rows;
};

void play_reader(wanted const& w) {
  share_half h{share_channel(line_of_reader, timeout), peer::owned_file(plain_of_reader), w.reader, w.bytes, w.rounds};
  for (share_row const& r : w.rows) {
    share_samples mine;
    h.hear();
    r.reader(h, r.bytes, mine);
    for (double const figure : {median(mine.weir), median(mine.raw)})
      h.say(std::bit_cast<std::uint64_t>(figure));
  }
}

int play_owner(wanted const& w, std::vector<std::string> const& arguments) {
  auto const line = os::make_sockets(), plain = os::make_sockets();
  peer::owned_file own_line(line.first), its_line(line.second), own_plain(plain.first), its_plain(plain.second);
  if (!own_line.is_open() || !own_plain.is_open())
    throw driver_error(0, "bench share", "two sockets", "Close descriptors, or raise the limit (ulimit -n)",
                       source_location::current());
  reader_process other(arguments, its_line.get(), its_plain.get());
  its_line.close();
  its_plain.close();
  share_half h{share_channel(own_line.get(), timeout), std::move(own_plain), 0, w.bytes, w.rounds};
  static_cast<void>(own_line.release());  // the channel owns the descriptor now
  for (share_row const& r : w.rows) {
    share_samples mine;
    h.say(0);
    r.owner(h, r.bytes, mine);
    double ours = std::bit_cast<double>(h.hear()), raw = std::bit_cast<double>(h.hear());
    if (std::isnan(ours))
      ours = median(mine.weir), raw = median(mine.raw);
    print(r, ours, raw, w.reader, w.json);
  }
  return other.ended_well() ? 0 : 1;
}

}  // namespace

int bench_share(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices, bytes;
  std::vector<std::string> names;
  wanted w;
  bool as_reader = false;
  constexpr char const* caption =
      "weir bench share [ROW…]: memory that a second process reads, through weir and by the driver's own calls, "
      "medians";
  po::options_description all(caption);
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "rounds", po::value(&w.rounds)->default_value(w.rounds), "rounds, weir and the raw calls in turn")(
      "json", po::bool_switch(&w.json), "print a line of JSON for each row")(
      "bytes", po::value(&bytes), "size of a large buffer; 256MiB, 16MiB on simulated devices")(
      "reader", po::value(&w.reader)->default_value(no_reader, "1, if there is one"), "device of the second process")(
      "row", po::value(&names), "only these");
  po::options_description hidden(caption);
  hidden.add(all).add_options()("as-reader", po::bool_switch(&as_reader), "the second process");
  bool const help =
      std::any_of(arguments.begin(), arguments.end(), [](auto const& a) { return a == "--help" || a == "-h"; });
  if (!understood(arguments, help ? all : hidden, "row", -1))
    return 0;
  if (w.rounds < 1)
    throw invalid_use("bench share", "--rounds " + std::to_string(w.rounds), "Use at least one",
                      source_location::current());
  use_devices(devices);
  w.bytes = get_device_properties(0).simulated ? 16_MiB : 256_MiB;
  if (!bytes.empty()) {
    auto const size = size_from_text(bytes);
    if (!size || *size == 0 || *size % 4096)
      throw invalid_use("bench share", "--bytes \"" + bytes + "\" is not a multiple of 4 KiB",
                        "Write bytes, or a number and KiB, MiB or GiB", source_location::current());
    w.bytes = *size;
  }
  if (w.reader == no_reader)
    w.reader = device_count() > 1 ? 1 : 0;
  if (w.reader < 0 || w.reader >= device_count())
    throw invalid_use(
        "bench share",
        "--reader " + std::to_string(w.reader) + ": there are " + std::to_string(device_count()) + " devices",
        "Name one from 0", source_location::current());
  std::string known;
  auto unknown = names;
  for (share_row& r : share_rows(w.bytes)) {
    known += (known.empty() ? "" : ", ") + r.name;
    std::erase(unknown, r.name);
    if (names.empty() || std::find(names.begin(), names.end(), r.name) != names.end())
      w.rows.push_back(std::move(r));
  }
  if (!unknown.empty())
    throw invalid_use("bench share", "no row \"" + unknown.front() + "\"", "Choose among " + known,
                      source_location::current());
  if (as_reader) {
    play_reader(w);
    return 0;
  }
  if (!w.json) {
    std::printf("%s, the reader on gpu:%d\n%-12s %10s %5s %10s %10s %7s\n", runtime::current().description().c_str(),
                w.reader, "row", "of", "in", "weir", "raw", "/ raw");
    std::fflush(stdout);
  }
  return play_owner(w, arguments);
}

}  // namespace weir::tool
