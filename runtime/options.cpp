// WEIR_CONF and WEIR_DEVICES: unknown words are refused with the nearest right one.
// Threads: any.
#include "runtime/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace weir {
namespace {

// One row an option: its name in WEIR_CONF and where its value goes.
struct size_row {
  std::string_view name;
  size_t options::*at;
};
constexpr size_row size_rows[] = {
    {"device_limit", &options::device_limit},
    {"pinned_limit", &options::pinned_limit},
    {"address_space", &options::address_space},
};

struct switch_row {
  std::string_view name;
  bool options::*at;
};
constexpr switch_row switch_rows[] = {
    {"launch_blocking", &options::launch_blocking},
    {"announce_blocks", &options::announce_blocks},
    {"check_races", &options::check_races},
};

[[noreturn]] void refuse(std::string operation, std::string operands, std::string remedy) {
  throw invalid_use(std::move(operation), std::move(operands), std::move(remedy), here::current());
}

std::string quoted(std::string_view s) { return "\"" + std::string(s) + "\""; }

std::optional<size_t> whole_number(std::string_view text) {
  size_t n = 0;
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size()) return {};
  return n;
}

void set_option(options& into, std::string_view key, std::string_view value) {
  for (auto const& row : size_rows) {
    if (key != row.name) continue;
    auto const bytes = size_from_text(value);
    if (!bytes) refuse("WEIR_CONF", std::string(key) + ":" + quoted(value) + " is no size", "Write bytes, or a number and KiB, MiB, GiB or TiB: 512MiB");
    into.*row.at = *bytes;
    return;
  }
  for (auto const& row : switch_rows) {
    if (key != row.name) continue;
    if (value == "true" || value == "1") into.*row.at = true;
    else if (value == "false" || value == "0") into.*row.at = false;
    else refuse("WEIR_CONF", std::string(key) + ":" + quoted(value) + " is neither true nor false", "Write " + std::string(key) + ":true");
    return;
  }
  refuse("WEIR_CONF", "no option is called " + quoted(key),
         "Did you mean " + std::string(nearest(key, {"device_limit", "pinned_limit", "address_space", "launch_blocking", "announce_blocks", "check_races"})) + "?");
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

options parse_options(std::string_view text) {
  options result;
  while (!text.empty()) {
    std::string_view const item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (item.empty()) continue;
    size_t const colon = item.find(':');
    if (colon == item.npos) refuse("WEIR_CONF", quoted(item) + " has no value", "Write key:value,key:value");
    set_option(result, item.substr(0, colon), item.substr(colon + 1));
  }
  return result;
}

machine_choice parse_devices(std::string_view text) {
  std::string_view const word = text.substr(0, text.find(':'));
  machine_choice choice;
  if (word == "auto" || word == "cuda") {
    if (word.size() != text.size()) refuse("WEIR_DEVICES", quoted(text) + ": " + quoted(word) + " takes no number", "Choose among GPUs with CUDA_VISIBLE_DEVICES");
    choice.which = word == "auto" ? machine_choice::kind::automatic : machine_choice::kind::cuda;
    return choice;
  }
  if (word != "sim") {
    refuse("WEIR_DEVICES", quoted(text) + " is no machine", "Did you mean " + std::string(nearest(word, {"auto", "cuda", "sim"})) + "? Write auto, cuda or sim[:devices[:GiB]]");
  }
  choice.which = machine_choice::kind::simulated;
  if (word.size() == text.size()) return choice;
  std::string_view rest = text.substr(word.size() + 1);
  std::string_view const count = rest.substr(0, rest.find(':'));
  auto const devices = whole_number(count);
  if (!devices || *devices < 1 || *devices > 64) refuse("WEIR_DEVICES", quoted(text) + ": " + quoted(count) + " is no number of devices", "Write sim:1 to sim:64");
  choice.sim.devices = static_cast<int>(*devices);
  if (count.size() == rest.size()) return choice;
  rest.remove_prefix(count.size() + 1);
  auto const gib = whole_number(rest);
  if (!gib || *gib < 1 || *gib > 1024) refuse("WEIR_DEVICES", quoted(text) + ": " + quoted(rest) + " is no number of GiB", "Write sim:N:1 to sim:N:1024");
  choice.sim.memory = *gib << 30;
  return choice;
}

bool races_wanted(options const& o) {
  char const* const text = variable("WEIR_CHECK_RACES");
  return o.check_races || (text && std::string_view(text) != "0");
}

bool guard_wanted(options const& o) {
  char const* const text = variable("WEIR_SIM_GUARD");
  return text ? std::string_view(text) != "0" : races_wanted(o);
}

machine_choice devices_from_environment() {
  char const* const text = variable("WEIR_DEVICES");
  return text ? parse_devices(text) : machine_choice{};
}

options options::from_environment() {
  char const* const text = variable("WEIR_CONF");
  options result = text ? parse_options(text) : options{};
  if (char const* const blocking = variable("CUDA_LAUNCH_BLOCKING"); blocking && std::string_view(blocking) != "0") result.launch_blocking = true;
  return result;
}

}  // namespace weir
