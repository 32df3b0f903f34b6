// weir doctor: libraries, devices, limits and options with their origin, and advice.
// Threads: one.
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <boost/version.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "command_line.h"
#include "commands.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/options/options.h"
#include "weir/device.h"
#include "weir/peer.h"

extern char** environ;

namespace weir::tool {
namespace {

std::string options_document() {
  std::string out =
      "# Options\n\n"
      "Options come from the file that `WEIR_CONF_FILE` names, from `WEIR_CONF=key:value,key:value`, from the other "
      "variables below,\n"
      "or from `weir::options` in code. The later of these sources overrides the earlier. A runtime with options in "
      "code ignores the others, except WEIR_CHECK_RACES.\n\n"
      "- The file has lines `key:value`; `#` begins a comment. It is a regular file of at most 1 MiB.\n"
      "- A size is a number of bytes, or a number and KiB, MiB, GiB or TiB. A time is a number and ms, s or min.\n"
      "- A switch is true or false, on or off, yes or no, 1 or 0.\n"
      "- weir refuses an unknown key or value, and names the nearest valid one.\n"
      "- weir warns once, at any log level, of a variable `WEIR_*` that it does not read.\n"
      "- `weir doctor` prints the options in force and their origin.\n\n"
      "This page is `weir doctor --options`.\n\n"
      "| option | default | also | |\n| --- | --- | --- | --- |\n";
  for (option_row const& row : option_table())
    out += "| `" + std::string(row.name) + "` | " + option_text(row, {}) + " | " +
           (row.variable ? "`" + std::string(row.variable) + "=1`" : "") + " | " + std::string(row.meaning) + " |\n";
  return out;
}

enum class mark : std::uint8_t { none, ok, warn, fail };
constexpr char const* mark_names[] = {"info", "ok", "warn", "fail"};

struct row {
  std::string section, name, value;
  mark how = mark::none;
  std::string advice;
};

// What was looked at, in the order of the page.
class findings {
 public:
  void begin(char const* section) { section_ = section; }
  void say(std::string name, std::string value) {
    all_.push_back({section_, std::move(name), std::move(value), mark::none, {}});
  }
  // `advice` empty: ok. Else a sentence that says what to do.
  void check(std::string name, std::string value, std::string advice, mark bad = mark::warn) {
    mark const how = advice.empty() ? mark::ok : bad;
    all_.push_back({section_, std::move(name), std::move(value), how, std::move(advice)});
  }
  std::vector<row> const& all() const noexcept { return all_; }
  std::size_t count(mark m) const {
    return static_cast<std::size_t>(std::count_if(all_.begin(), all_.end(), [&](row const& r) { return r.how == m; }));
  }

 private:
  std::string section_;
  std::vector<row> all_;
};

// Formats CUDA's encoding of versions: 13000 is "13.0".
std::string cuda_version(int v) {
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}

// A library that weir loads at run time, and its version. Empty name: not found.
struct found_library {
  std::string name;
  int version = 0;
};
found_library find_library(std::initializer_list<char const*> names, char const* version_call) {
  for (char const* name : names) {
    void* const so = os::load_library(name);
    if (!so)
      continue;
    int version = 0;
    auto* const ask = reinterpret_cast<int (*)(int*)>(os::find_symbol(so, version_call));
    if (!ask || ask(&version) != 0)
      version = 0;
    return {name, version};
  }
  return {};
}

void libraries(findings& to) {
  to.begin("software");
  to.say("weir", version_line());
  auto const driver = find_library({"libcuda.so.1"}, "cuDriverGetVersion");
  std::string const text =
      driver.name.empty() ? "libcuda.so.1 not found" : driver.name + ", CUDA " + cuda_version(driver.version);
#if defined(WEIR_TOOLKIT)
  if (driver.name.empty())
    to.say("CUDA driver", text);
  else
    to.check("CUDA driver", text,
             driver.version < 12000 ? "The driver is older than CUDA 12.0, which weir needs: update it." : "",
             mark::fail);
#else
  to.check(
      "CUDA driver", text,
      driver.name.empty() ? "" : "This build has no CUDA in it: put nvcc on PATH (or set CUDA_HOME) and build again.");
#endif
  auto const blas = find_library({"libcublas.so.13", "libcublas.so.12"}, "cublasGetVersion");
  to.check("cuBLAS", blas.name.empty() ? "libcublas.so.13 or .12 not found" : blas.name,
           !driver.name.empty() && blas.name.empty()
               ? "matmul on GPUs needs cuBLAS: install it, or put its folder into LD_LIBRARY_PATH."
               : "");
  auto const nccl = find_library({"libnccl.so.2"}, "ncclGetVersion");
  to.check("NCCL",
           nccl.name.empty() ? "libnccl.so.2 not found"
                             : nccl.name + ", " + std::to_string(nccl.version / 10000) + "." +
                                   std::to_string(nccl.version / 100 % 100) + "." + std::to_string(nccl.version % 100),
           !driver.name.empty() && nccl.name.empty()
               ? "Collectives over GPUs need NCCL: install libnccl2, or put its folder into LD_LIBRARY_PATH."
               : "");
  to.say("Boost",
         "built with " + std::to_string(BOOST_VERSION / 100000) + "." + std::to_string(BOOST_VERSION / 100 % 1000));
}

std::string rlimit_text(rlim_t l) {
  return l == RLIM_INFINITY ? "unlimited" : bytes_text(l);
}

std::string first_line(char const* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void limits(findings& to) {
  rlimit addresses{}, locked{}, files{};
  (void)::getrlimit(RLIMIT_AS, &addresses);
  (void)::getrlimit(RLIMIT_MEMLOCK, &locked);
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  to.begin("host");
  to.say("processors", std::to_string(os::usable_processors()) + " for this process, " +
                           bytes_text(os::memory_of_host()) + " of memory");
  to.check("address space", rlimit_text(addresses.rlim_cur),
           addresses.rlim_cur == RLIM_INFINITY
               ? ""
               : "Addresses are limited (ulimit -v), and weir reserves them by the TiB: lift the limit, or set "
                 "address_space to what a device's blocks need.");
  to.say("locked memory", rlimit_text(locked.rlim_cur) + " (CUDA's page-locked memory does not count)");
  to.check("open files", std::to_string(files.rlim_cur),
           files.rlim_cur >= 1024 ? "" : "Many GPUs and processes need more open files: `ulimit -n 4096`.");
  std::string const maps = first_line("/proc/sys/vm/max_map_count");
  if (!maps.empty())
    to.say("mappings", maps + " a process");
  std::string const huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  if (!huge.empty())
    to.check("huge pages", huge,
             huge.find("[never]") == huge.npos ? ""
                                               : "Page-locking large host memory takes longer without them: `echo "
                                                 "madvise > /sys/kernel/mm/transparent_hugepage/enabled`.");
  struct statvfs shared {};
  if (::statvfs("/dev/shm", &shared) == 0)
    to.say("/dev/shm", bytes_text(shared.f_bavail * shared.f_frsize) + " free");
}

void variables(findings& to) {
  to.begin("environment");
  for (char** v = environ; v && *v; ++v) {
    std::string const entry = *v;
    for (char const* prefix : {"WEIR_", "CUDA_", "NCCL_"}) {
      std::size_t const equals = std::min(entry.find('='), entry.size());
      if (entry.starts_with(prefix))
        to.say(entry.substr(0, equals), entry.substr(std::min(equals + 1, entry.size())));
    }
  }
  for (std::string const& line : unknown_variables())
    to.check("unknown variable", "", line);
}

// Those that something sets; `whole`: the others, too.
void options_in_force(findings& to, bool whole) {
  to.begin("options");
  auto const found = find_options();
  for (std::size_t i = 0; i < option_table().size(); ++i) {
    option_row const& o = option_table()[i];
    if (found.origin[i] == "default" && !whole)
      continue;
    std::string const value = option_text(o, found.in_force) + ", from " + found.origin[i];
    std::string slow;
    if (o.name == "launch_blocking" && found.in_force.launch_blocking)
      slow = "Every launch waits for its work: for finding an error, not for speed.";
    if (o.name == "check_races" && found.in_force.check_races)
      slow = "Every call is checked: for finding a race, not for speed.";
    if (slow.empty())
      to.say(std::string(o.name), value);
    else
      to.check(std::string(o.name), value, slow);
  }
}

void devices(findings& to) {
  to.begin("devices");
  runtime& here = runtime::current();
  to.check("machine", here.description(),
           here.is_simulated()
               ? "Simulated: results are right, times mean nothing. WEIR_DEVICES=cuda says why there is no GPU."
               : "");
  int const count = device_count();
  for (int i = 0; i < count; ++i) {
    auto const p = get_device_properties(i);
    auto const m = mem_get_info(i);
    size_t const kept = driver_reserve_of(find_options().in_force, p.simulated, p.multi_processor_count);
    std::string const value = p.name + ", " + bytes_text(m.free) + " free of " + bytes_text(m.total) +
                              (p.numa_node >= 0 ? ", NUMA node " + std::to_string(p.numa_node) : "") +
                              (kept ? ", " + bytes_text(kept) + " left to the driver" : "");
    bool const old = !p.simulated && (p.major < 7 || (p.major == 7 && p.minor < 5));
    if (old)
      to.check(device(i).str(), value,
               "Compute capability " + std::to_string(p.major) + "." + std::to_string(p.minor) +
                   ": weir's kernels are built for 7.5 and newer.",
               mark::fail);
    else
      to.check(device(i).str(), value,
               !p.simulated && m.free < m.total / 2
                   ? "Others hold half of it or more: `nvidia-smi` names the processes; CUDA_VISIBLE_DEVICES chooses "
                     "devices."
                   : "");
  }
  if (count < 2)
    return;
  std::size_t good = 0, untried = 0;  // of links, one in each direction, as `weir info` counts them
  for (peer_link const& l : links()) {
    if (l.by == peer_link::kind::self)
      continue;
    good += l.verified;
    untried += l.access && !l.verified && !l.wrong;
    if (l.wrong)
      to.check("link", l.from.str() + " -> " + l.to.str(),
               "It gave wrong bytes, so copies go through host memory. Look for Xid errors in `dmesg`.", mark::fail);
    else if (l.by == peer_link::kind::host && !here.is_simulated() && l.from.index() < l.to.index())
      to.check("link", l.from.str() + " - " + l.to.str(),
               "No access, so copies go through host memory (IOMMU or ACS settings, or no link).");
  }
  if (good)
    to.check("links", std::to_string(good) + " verified by writing and reading back", "");
  if (untried)
    to.check("links", std::to_string(untried) + " not tested: the driver copies, kernels have no access", "");
}

void print_text(findings const& all) {
  std::string section;
  for (row const& r : all.all()) {
    if (r.section != section)
      std::printf("%s%s\n", section.empty() ? "" : "\n", r.section.c_str());
    section = r.section;
    char const* const blank = "      ";
    std::string const shown = r.how == mark::none   ? blank
                              : r.how == mark::ok   ? coloured("[ok]  ", colour::green)
                              : r.how == mark::warn ? coloured("[warn]", colour::yellow)
                                                    : coloured("[fail]", colour::red);
    std::printf("  %s %-22s %s\n", shown.c_str(), r.name.c_str(), r.value.c_str());
    if (!r.advice.empty())
      std::printf("  %s   %s\n", blank, r.advice.c_str());
  }
  std::size_t const warnings = all.count(mark::warn);
  std::printf("\n%zu ok, %zu %s, %zu failed\n", all.count(mark::ok), warnings, warnings == 1 ? "warning" : "warnings",
              all.count(mark::fail));
}

void print_json(findings const& all) {
  std::printf("{\"schema\": \"weir.doctor/1\", \"version\": %s, \"checks\": [", json_text(version_line()).c_str());
  bool first = true;
  for (row const& r : all.all()) {
    std::printf("%s{\"section\": %s, \"name\": %s, \"value\": %s, \"status\": \"%s\", \"advice\": %s}",
                first ? "" : ", ", json_text(r.section).c_str(), json_text(r.name).c_str(), json_text(r.value).c_str(),
                mark_names[static_cast<std::size_t>(r.how)], json_text(r.advice).c_str());
    first = false;
  }
  std::printf("], \"ok\": %zu, \"warnings\": %zu, \"failed\": %zu}\n", all.count(mark::ok), all.count(mark::warn),
              all.count(mark::fail));
}

}  // namespace

int doctor(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  po::options_description all("weir doctor: checks this machine, prints the options in force, and says what to do");
  std::string on;
  bool document = false, json = false, whole = false;
  all.add_options()("devices", po::value(&on),
                    "auto | cuda | sim[:N[:SIZE]][:seed=S] (default: WEIR_DEVICES, else auto)")(
      "all", po::bool_switch(&whole), "also options that have their default")("json", po::bool_switch(&json),
                                                                              "one line of JSON")(
      "options", po::bool_switch(&document), "the options as a document: docs/reference/options.md")("help,h",
                                                                                                     "this text");
  if (!understood(arguments, all))
    return all_well;
  if (document) {
    std::cout << options_document();
    return all_well;
  }
  use_devices(on);
  findings found;
  libraries(found);
  devices(found);
  limits(found);
  variables(found);
  options_in_force(found, whole);
  json ? print_json(found) : print_text(found);
  return found.count(mark::fail) ? finding : all_well;
}

}  // namespace weir::tool
