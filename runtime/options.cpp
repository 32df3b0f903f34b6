// The options' table, WEIR_CONF and WEIR_DEVICES: unknown words are refused with the nearest right one.
// Threads: any.
#include "runtime/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "runtime/base/os.h"

namespace weir {
namespace {

constexpr option_row table[] = {
    {"device_limit", &options::device_limit, "none", nullptr, "Bytes of device memory that weir may reserve on each device."},
    {"pinned_limit", &options::pinned_limit, "what the host has to spare", nullptr,
     "Bytes of page-locked host memory that weir may hold. Unless said: what is available, of this process' control group too, when more is wanted, but for an eighth of the host's memory or 8 GiB, which is left to others."},
    {"pinned_idle", &options::pinned_idle, "never", nullptr,
     "How long page-locked memory that nobody uses is kept: at some later allocation of such memory it goes back to the system. See copies.md."},
    {"address_space", &options::address_space, "16 TiB, halved until it fits", nullptr,
     "Bytes of addresses reserved for each device. Addresses cost nothing; a process with a limit on them (`ulimit -v`) may want fewer."},
    {"launch_blocking", &options::launch_blocking, "", "CUDA_LAUNCH_BLOCKING", "Every launch waits for its work, so that an error names the right line. Slow."},
    {"announce_blocks", &options::announce_blocks, "", nullptr,
     "Blocks are made known to tools that listen to NVTX: compute-sanitizer then sees what a kernel does between two of them. Implies launch_blocking."},
    {"check_races", &options::check_races, "", "WEIR_CHECK_RACES",
     "Races are looked for: two uses of a byte that nothing orders, and memory used before or after its time. See testing.md."},
    {"epsilon", &options::epsilon, "", nullptr,
     "The part, from 0 to 1, by which memory reserved of a device may exceed the most that was in use: less lies idle with a smaller one, and more is moved. See memory.md."},
    {"poll_on_miss", &options::poll_on_miss, "", nullptr,
     "An allocation that finds nothing free asks the driver which memory is complete that other streams used. Without: only before out_of_memory."},
    {"device_waits", &options::device_waits, "", nullptr,
     "When a stream is made to wait on the device for memory that another one still uses: `never`; `when_short`, before out_of_memory; "
     "`before_growth`, also instead of taking more, where four blocks that would do wait for a stream that is behind. Never a stream that carries collectives."},
    {"fence_every", &options::fence_every, "16 MiB, or a part of what the stream holds", nullptr,
     "Bytes given back between two events, with a second stream active. Fewer: a wait for memory covers less that came after its last use, and frees cost more."},
    {"deterministic", &options::deterministic, "", nullptr,
     "Where blocks of device memory lie depends on the program's calls alone, not on when work is seen to be complete, unless memory is short while collectives are under way. Costs memory and overlap: see decisions/reuse.md."},
    {"chains_from", &options::chains_from, "as measured; simulated devices: never", nullptr,
     "Bytes in all from which weir's own copies carry a broadcast, scatter or gather, not NCCL; such a call waits until all ranks have asked. 1: all of them; 1024TiB: none. See collectives.md."},
    {"peer_visible", &options::peer_visible, "", nullptr,
     "Once two devices have something to do with each other, all memory of either is open to the other, that which is taken later from its first byte on. Each handle costs some 0.15 ms more, 50 us for each peer after the first, and is not moved. See copies.md."},
    {"log", &options::log, "", nullptr,
     "What is told on the standard error output, or to who asked for it with on_log: `silent`; `error`: out of memory, a device lost; `warning`: memory was short; "
     "`info`: machines and devices; `debug`: memory taken from the driver and given back, waits inserted."},
};

[[noreturn]] void refuse(std::string operation, std::string operands, std::string remedy) {
  throw invalid_use(std::move(operation), std::move(operands), std::move(remedy), here::current());
}

std::string in_quotes(std::string_view s) { return "\"" + std::string(s) + "\""; }

std::optional<size_t> whole_number(std::string_view text) {
  size_t n = 0;
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size()) return {};
  return n;
}

std::string all_of(std::span<std::string_view const> words) {
  std::string all;
  for (std::string_view const w : words) all += (all.empty() ? "" : ", ") + std::string(w);
  return all;
}

// Which of the words it is.
std::size_t word_of(std::span<std::string_view const> words, std::string_view key, std::string_view value, std::string_view where) {
  auto const found = std::find(words.begin(), words.end(), value);
  if (found != words.end()) return static_cast<std::size_t>(found - words.begin());
  refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is none of " + all_of(words), "Did you mean " + std::string(key) + ":" + std::string(nearest(value, words)) + "?");
}

// `where`: WEIR_CONF, or a file and its line. Returns: the row that was set.
size_t set_option(options& into, std::string_view key, std::string_view value, std::string_view where) {
  size_t number = 0;
  for (option_row const& row : table) {
    if (key != row.name) {
      ++number;
      continue;
    }
    if (auto const* const size = std::get_if<size_t options::*>(&row.at)) {
      auto const bytes = size_from_text(value);
      if (!bytes) refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is no size", "Write bytes, or a number and KiB, MiB, GiB or TiB: 512MiB");
      into.**size = *bytes;
    } else if (auto const* const time = std::get_if<std::chrono::milliseconds options::*>(&row.at)) {
      auto const given = time_from_text(value);
      if (!given) refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is no time", "Write a number and ms, s or min, or 0: " + std::string(key) + ":30s");
      into.**time = *given;
    } else if (auto const* const part = std::get_if<double options::*>(&row.at)) {
      auto const given = part_from_text(value);
      if (!given) refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is no number from 0 to 1", "Write " + std::string(key) + ":0.02");
      into.**part = *given;
    } else if (auto const* const policy = std::get_if<options::wait_policy options::*>(&row.at)) {
      into.**policy = static_cast<options::wait_policy>(word_of(wait_policies, key, value, where));
    } else if (auto const* const level = std::get_if<log_level options::*>(&row.at)) {
      into.**level = static_cast<log_level>(word_of(log_levels, key, value, where));
    } else {
      auto const given = switch_from_text(value);
      if (!given) refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is neither true nor false", "Write " + std::string(key) + ":true");
      into.*std::get<bool options::*>(row.at) = *given;
    }
    return number;
  }
  std::vector<std::string_view> names;
  for (option_row const& row : table) names.push_back(row.name);
  refuse(std::string(where), "no option is called " + in_quotes(key), "Did you mean " + std::string(nearest(key, names)) + "? docs/options.md lists them");
}

constexpr std::chrono::milliseconds longest{std::int64_t{1000} * 3600 * 24 * 365 * 100};  // a hundred years fit a count of nanoseconds
bool is_time(std::chrono::milliseconds t) { return t.count() >= 0 && t <= longest; }
bool is_part(double part) { return part >= 0 && part <= 1; }  // and no NaN

std::string in_small_letters(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

char const* variable(char const* name) {
  char const* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace

std::optional<size_t> size_from_text(std::string_view text) {
  struct unit {
    std::string_view name;
    int shift;
  };
  for (unit const u : {unit{"KiB", 10}, unit{"MiB", 20}, unit{"GiB", 30}, unit{"TiB", 40}}) {
    if (!text.ends_with(u.name)) continue;
    auto const n = whole_number(text.substr(0, text.size() - u.name.size()));
    if (!n || *n > (std::numeric_limits<size_t>::max() >> u.shift)) return {};
    return *n << u.shift;
  }
  return whole_number(text);
}

std::optional<std::chrono::milliseconds> time_from_text(std::string_view text) {
  struct unit {
    std::string_view name;
    size_t ms;
  };
  if (text == "0") return std::chrono::milliseconds(0);
  for (unit const u : {unit{"ms", 1}, unit{"s", 1000}, unit{"min", 60'000}}) {
    auto const n = text.ends_with(u.name) ? whole_number(text.substr(0, text.size() - u.name.size())) : std::nullopt;
    if (n) return *n <= static_cast<size_t>(longest.count()) / u.ms ? std::optional(std::chrono::milliseconds(*n * u.ms)) : std::nullopt;
  }
  return {};
}

std::string time_text(std::chrono::milliseconds t) {
  auto const ms = t.count();
  if (ms % 1000) return std::to_string(ms) + " ms";
  return ms % 60'000 ? std::to_string(ms / 1000) + " s" : std::to_string(ms / 60'000) + " min";
}

std::optional<double> part_from_text(std::string_view text) {
  double part = 0;
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), part);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size() || !is_part(part)) return {};
  return part;
}

std::optional<bool> switch_from_text(std::string_view text) {
  std::string const word = in_small_letters(text);
  for (char const* const yes : {"true", "on", "yes", "1"}) {
    if (word == yes) return true;
  }
  for (char const* const no : {"false", "off", "no", "0"}) {
    if (word == no) return false;
  }
  return {};
}

std::string_view nearest(std::string_view word, std::span<std::string_view const> candidates) {
  auto const edits = [](std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
      size_t diagonal = std::exchange(row[0], i);
      for (size_t j = 1; j <= b.size(); ++j) {
        size_t const change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = std::exchange(row[j], std::min({change, row[j] + 1, row[j - 1] + 1}));
      }
    }
    return row.back();
  };
  return *std::min_element(candidates.begin(), candidates.end(), [&](auto a, auto b) { return edits(word, a) < edits(word, b); });
}

std::string bytes_text(size_t bytes) {
  char const* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(units)) amount /= 1024, ++unit;
  char text[32];
  bool const whole = amount == static_cast<double>(static_cast<size_t>(amount));
  std::snprintf(text, sizeof text, whole ? "%.0f %s" : "%.1f %s", amount, units[unit]);
  return text;
}

namespace {

std::string_view trimmed(std::string_view s) {
  char const* const blank = " \t\r";
  size_t const from = s.find_first_not_of(blank);
  return from == s.npos ? std::string_view{} : s.substr(from, s.find_last_not_of(blank) - from + 1);
}

// key:value,key:value.
void read_options(std::string_view text, options& into, std::vector<std::string>* origin, std::string const& where) {
  while (!text.empty()) {
    std::string_view const item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    std::string_view const pair = trimmed(item);
    if (pair.empty()) continue;
    size_t const colon = pair.find(':');
    if (colon == pair.npos) refuse(where, in_quotes(pair) + " has no value", "Write key:value,key:value");
    size_t const row = set_option(into, trimmed(pair.substr(0, colon)), trimmed(pair.substr(colon + 1)), where);
    if (origin) (*origin)[row] = where;
  }
}

// The same, a line for each or several; # begins a comment.
void read_file(std::string const& path, found_options& into) {
  std::ifstream file(path);
  if (!file) refuse("WEIR_CONF_FILE", in_quotes(path) + " cannot be read", "Name a file of lines key:value, or unset WEIR_CONF_FILE");
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    read_options(std::string_view(line).substr(0, line.find('#')), into.in_force, &into.origin, path + ":" + std::to_string(number));
  }
}

}  // namespace

options parse_options(std::string_view text) {
  options result;
  read_options(text, result, nullptr, "WEIR_CONF");
  return result;
}

std::span<option_row const> option_table() noexcept { return table; }

void check_options(options const& o, here at) {
  for (option_row const& row : table) {
    auto const refuse_it = [&](std::string const& value, std::string remedy) { throw invalid_use("runtime", "options::" + std::string(row.name) + " of " + value, std::move(remedy), at); };
    auto const one_of = [&](std::size_t n, std::span<std::string_view const> words) {
      if (n >= words.size()) refuse_it(std::to_string(n), "Name one of " + all_of(words));
    };
    if (auto const* const time = std::get_if<std::chrono::milliseconds options::*>(&row.at)) {
      if (!is_time(o.**time)) refuse_it(std::to_string((o.**time).count()) + " ms", "Name a time from 0 to 100 years; 0: " + std::string(row.nothing));
    } else if (auto const* const part = std::get_if<double options::*>(&row.at)) {
      if (!is_part(o.**part)) refuse_it(std::to_string(o.**part), "Name a number from 0 to 1, like 0.02");
    } else if (auto const* const policy = std::get_if<options::wait_policy options::*>(&row.at)) {
      one_of(static_cast<std::size_t>(o.**policy), wait_policies);
    } else if (auto const* const level = std::get_if<log_level options::*>(&row.at)) {
      one_of(static_cast<std::size_t>(o.**level), log_levels);
    }
  }
}

std::string option_text(option_row const& row, options const& o) {
  if (auto const* const size = std::get_if<size_t options::*>(&row.at)) return o.**size ? bytes_text(o.**size) : std::string(row.nothing);
  if (auto const* const time = std::get_if<std::chrono::milliseconds options::*>(&row.at)) return (o.**time).count() ? time_text(o.**time) : std::string(row.nothing);
  if (auto const* const part = std::get_if<double options::*>(&row.at)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", o.**part);
    return text;
  }
  if (auto const* const policy = std::get_if<options::wait_policy options::*>(&row.at)) return std::string(wait_policies[static_cast<size_t>(o.**policy)]);
  if (auto const* const level = std::get_if<log_level options::*>(&row.at)) return std::string(log_levels[static_cast<size_t>(o.**level)]);
  return o.*std::get<bool options::*>(row.at) ? "true" : "false";
}

std::string options_document() {
  std::string out =
      "# Options\n\n"
      "`WEIR_CONF=key:value,key:value`, the lines of the file that `WEIR_CONF_FILE` names (`key:value`, `#` begins a comment), or the\n"
      "members of `weir::options` in code. The file is read first, then `WEIR_CONF`, then the other variables; the last word counts, and\n"
      "what code passes to a runtime counts alone. Sizes are bytes, or a number and KiB, MiB, GiB or TiB; times a number and ms, s or min; parts are numbers; switches are true or false, on or off, yes or no, 1 or 0; policies and levels are words.\n"
      "An unknown key or value is refused, with the nearest right one. `weir doctor` prints what is in force and where it came from.\n\n"
      "This page is `weir doctor --options`.\n\n"
      "| option | default | also | |\n| --- | --- | --- | --- |\n";
  for (option_row const& row : table) {
    out += "| `" + std::string(row.name) + "` | " + option_text(row, {}) + " | " + (row.variable ? "`" + std::string(row.variable) + "=1`" : "") + " | " + std::string(row.meaning) + " |\n";
  }
  return out;
}

machine_choice parse_devices(std::string_view text, std::string const& where) {
  std::string_view const word = text.substr(0, text.find(':'));
  machine_choice choice;
  if (word == "auto" || word == "cuda") {
    if (word.size() != text.size()) refuse(where, in_quotes(text) + ": " + in_quotes(word) + " takes no number", "Choose among GPUs with CUDA_VISIBLE_DEVICES");
    choice.which = word == "auto" ? machine_choice::kind::automatic : machine_choice::kind::cuda;
    return choice;
  }
  if (word != "sim") {
    refuse(where, in_quotes(text) + " is no machine", "Did you mean " + std::string(nearest(word, {"auto", "cuda", "sim"})) + "? Write auto, cuda or sim[:devices[:GiB]]");
  }
  choice.which = machine_choice::kind::simulated;
  if (word.size() == text.size()) return choice;
  std::string_view rest = text.substr(word.size() + 1);
  std::string_view const count = rest.substr(0, rest.find(':'));
  auto const devices = whole_number(count);
  if (!devices || *devices < 1 || *devices > 64) refuse(where, in_quotes(text) + ": " + in_quotes(count) + " is no number of devices", "Write sim:1 to sim:64");
  choice.sim.devices = static_cast<int>(*devices);
  if (count.size() == rest.size()) return choice;
  rest.remove_prefix(count.size() + 1);
  auto const gib = whole_number(rest);
  if (!gib || *gib < 1 || *gib > 1024) refuse(where, in_quotes(text) + ": " + in_quotes(rest) + " is no number of GiB", "Write sim:N:1 to sim:N:1024");
  choice.sim.memory = *gib << 30;
  return choice;
}

race_check races_of_process() {
  char const* const text = variable("WEIR_CHECK_RACES");
  if (!text) return race_check::off;
  if (auto const given = switch_from_text(text)) return *given ? race_check::report : race_check::off;
  std::string const word = in_small_letters(text);
  if (word == "report") return race_check::report;
  if (word == "fail") return race_check::fail;
  refuse("WEIR_CHECK_RACES", in_quotes(text) + " is none of on, off, report, fail", "Did you mean " + std::string(nearest(word, {"on", "off", "report", "fail"})) + "?");
}

bool races_wanted(options const& o) { return races_of_process() != race_check::off || o.check_races; }

bool guard_wanted(options const& o) {
  char const* const text = variable("WEIR_SIM_GUARD");
  if (!text) return races_wanted(o);
  auto const given = switch_from_text(text);
  if (!given) refuse("WEIR_SIM_GUARD", in_quotes(text) + " is neither on nor off", "Write WEIR_SIM_GUARD=on");
  return *given;
}

std::vector<int> visible_devices(std::string_view text, int count) {
  constexpr std::string_view uuid = "SIM-";
  std::vector<int> shown;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t const end = std::min(text.find(',', at), text.size());
    std::string_view word = text.substr(at, end - at);
    at = end + 1;
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    auto const n = whole_number(word.starts_with(uuid) ? word.substr(uuid.size()) : word);
    if (!n || *n >= static_cast<size_t>(count)) break;
    if (std::find(shown.begin(), shown.end(), static_cast<int>(*n)) != shown.end()) return {};
    shown.push_back(static_cast<int>(*n));
  }
  return shown;
}

machine_choice devices_from_environment() {
  char const* const text = variable("WEIR_DEVICES");
  machine_choice choice = text ? parse_devices(text) : machine_choice{};
  auto const visible = os::environment("CUDA_VISIBLE_DEVICES");  // empty is a word, too: none
  if (!visible || choice.which == machine_choice::kind::cuda) return choice;
  choice.visible = visible_devices(*visible, choice.sim.devices);
  if (choice.visible.empty() && choice.which == machine_choice::kind::simulated) {
    throw not_supported("runtime", "CUDA_VISIBLE_DEVICES=" + in_quotes(*visible) + " shows none of " + std::to_string(choice.sim.devices) + " simulated devices",
                        "Name devices from 0 to " + std::to_string(choice.sim.devices - 1) + ", each once, or unset it", here::current());
  }
  return choice;
}

found_options find_options() {
  found_options found{{}, std::vector<std::string>(std::size(table), "default")};
  if (char const* const path = variable("WEIR_CONF_FILE")) read_file(path, found);
  if (char const* const text = variable("WEIR_CONF")) read_options(text, found.in_force, &found.origin, "WEIR_CONF");
  for (size_t i = 0; i < std::size(table); ++i) {
    char const* const value = table[i].variable ? variable(table[i].variable) : nullptr;
    bool const races = table[i].name == "check_races";
    if (!value || (races ? races_of_process() == race_check::off : std::string_view(value) == "0")) continue;  // of CUDA's variable any number but 0 is on
    found.in_force.*std::get<bool options::*>(table[i].at) = true;
    found.origin[i] = table[i].variable;
  }
  return found;
}

options options::from_environment() { return find_options().in_force; }

}  // namespace weir
