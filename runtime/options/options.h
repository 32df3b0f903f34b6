// The machine and the options that a program asked for, from code, the environment and a file.
// Threads: any; the environment is only read.
#pragma once
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "weir/runtime.h"

namespace weir {

struct machine_choice {
  enum class kind : std::uint8_t { automatic, cuda, simulated } which = kind::automatic;
  simulated sim{};           // if automatic or simulated
  std::vector<int> visible;  // the visible simulated devices; empty: all
};

// One row per option. The parser, docs/reference/options.md and `weir doctor` read only this table.
struct option_row {
  std::string_view name;  // in WEIR_CONF, and the name of the member
  std::variant<size_t options::*, std::chrono::milliseconds options::*, bool options::*, double options::*,
               options::wait_policy options::*, log_level options::*, std::uint32_t options::*>
      at;
  std::string_view nothing;  // the meaning of a size or time of 0
  char const* variable;      // an environment variable that switches it on; null: none
  std::string_view meaning;  // one or two sentences for people
};
// Bytes that options::driver_reserve leaves on a device.
size_t driver_reserve_of(options const&, bool simulated, int multiprocessors) noexcept;

std::span<option_row const> option_table() noexcept;
// Checks values that code can set and text cannot. Throws: invalid_use, with the option's name
void check_options(options const&, source_location);
// in the order of options::wait_policy
inline constexpr std::string_view wait_policies[] = {"never", "when_short", "before_growth"};
inline constexpr std::string_view log_levels[] = {"silent", "error", "warning", "info", "debug"};  // as log_level
std::string option_text(option_row const&, options const&);  // "512 MiB", "true", or the meaning of 0

// Options from the environment, with their origins: "default", "WEIR_CONF", "weir.conf:3" or a variable.
// Order: the file WEIR_CONF_FILE, then WEIR_CONF, then CUDA's variables. The last one wins.
struct found_options {
  options in_force;
  std::vector<std::string> origin;  // one per row of the table
};
// Throws: invalid_use (an unreadable file, or as parse_options)
found_options find_options(source_location = source_location::current());

// `where`: the origin of the text, for the error. Throws: invalid_use
machine_choice parse_devices(std::string_view text, std::string const& where = "WEIR_DEVICES",
                             source_location = source_location::current());
// Parses the text of WEIR_CONF. Throws: invalid_use
options parse_options(std::string_view text, source_location = source_location::current());
// WEIR_DEVICES, CUDA_VISIBLE_DEVICES (simulated devices). Throws: invalid_use, not_supported (none visible)
machine_choice devices_from_environment(source_location = source_location::current());
// Applies CUDA's rules: numbers or UUIDs (SIM-2), up to the first invalid one; empty if one is repeated.
std::vector<int> visible_devices(std::string_view text, int count);
// Guards a simulated machine: by WEIR_SIM_GUARD, else with a race check. Throws: invalid_use (not a switch)
bool guard_wanted(options const&, source_location = source_location::current());
// WEIR_CHECK_RACES, for the whole process. `fail`: races also set the exit status.
enum class race_check : std::uint8_t { off, report, fail };
race_check races_of_process(source_location = source_location::current());  // Throws: invalid_use (unknown word)
// Set in these options or by WEIR_CHECK_RACES. Throws: as races_of_process
bool races_wanted(options const&, source_location = source_location::current());
// One sentence for each unknown environment variable WEIR_*, with the nearest right name.
std::vector<std::string> unknown_variables();
// "512MiB", "1.5GiB", "4096": bytes. None: not a size.
std::optional<size_t> size_from_text(std::string_view);
// true, on, yes, 1, or false, off, no, 0, in any case. None: not a switch.
std::optional<bool> switch_from_text(std::string_view);
// "0.02", "0": from 0 to 1. None: not a share.
std::optional<double> part_from_text(std::string_view);
// "500ms", "30s", "2min", "0". None: not a time of 0 or more.
std::optional<std::chrono::milliseconds> time_from_text(std::string_view);
std::string time_text(std::chrono::milliseconds);  // "90 s", "2 min"
// "1.5 GiB", for people.
std::string bytes_text(size_t bytes);

}  // namespace weir
