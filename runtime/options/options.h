// Which machine and which options a program asked for: one table of options, the environment and a file.
// Threads: any; the environment is read, never written.
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
  simulated sim{};           // of automatic and simulated
  std::vector<int> visible;  // of these simulated devices; empty: all
};

// One row an option: the parser, docs/options.md and `weir doctor` read this table and nothing else.
struct option_row {
  std::string_view name;      // in WEIR_CONF, and of the member
  std::variant<size_t options::*, std::chrono::milliseconds options::*, bool options::*, double options::*,
               options::wait_policy options::*, log_level options::*>
      at;
  std::string_view nothing;   // what a size or time of 0 stands for
  char const* variable;       // another variable that switches it on; null: none
  std::string_view meaning;   // one sentence or two for a person
};
std::span<option_row const> option_table() noexcept;
// what code may have put there and no text could. Throws: invalid_use, by its name
void check_options(options const&, source_location);
// as options::wait_policy counts them
inline constexpr std::string_view wait_policies[] = {"never", "when_short", "before_growth"};
inline constexpr std::string_view log_levels[] = {"silent", "error", "warning", "info", "debug"};  // as log_level does
std::string option_text(option_row const&, options const&);  // "512 MiB", "true", what nothing stands for
std::string options_document();                              // docs/options.md

// Options as the process' surroundings have them, and where each came from:
// "default", "WEIR_CONF", "weir.conf:3", a variable.
// Order: the file that WEIR_CONF_FILE names, then WEIR_CONF, then variables of CUDA's. The last word counts.
struct found_options {
  options in_force;
  std::vector<std::string> origin;  // one for each row of the table
};
// Throws: invalid_use (a file that cannot be read; as parse_options)
found_options find_options(source_location = source_location::current());

// Throws: invalid_use, which says where the text stood
machine_choice parse_devices(std::string_view text, std::string const& where = "WEIR_DEVICES",
                             source_location = source_location::current());
// WEIR_CONF. Throws: invalid_use
options parse_options(std::string_view text, source_location = source_location::current());
// WEIR_DEVICES and, for simulated devices, CUDA_VISIBLE_DEVICES. Throws:
// invalid_use, not_supported (none is visible)
machine_choice devices_from_environment(source_location = source_location::current());
// What CUDA_VISIBLE_DEVICES shows of `count` simulated devices, by CUDA's rules: numbers or UUIDs (SIM-2)
// with commas, up to the first that is none; nothing when one comes twice.
std::vector<int> visible_devices(std::string_view text, int count);
// of a simulated machine: as WEIR_SIM_GUARD says, else with a race check.
// Throws: invalid_use (it is no switch)
bool guard_wanted(options const&, source_location = source_location::current());
// WEIR_CHECK_RACES: races are looked for in the whole process; `fail`:
// and if some were found, it ends with a status of its own.
enum class race_check : std::uint8_t { off, report, fail };
race_check races_of_process(source_location = source_location::current());  // Throws: invalid_use (it is no word)
// by these options or by WEIR_CHECK_RACES. Throws: as races_of_process
bool races_wanted(options const&, source_location = source_location::current());
// Variables of the environment that begin with WEIR_ and that neither weir nor its tests and tools read: a
// sentence for each, with the nearest right name.
std::vector<std::string> unknown_variables();
// "512MiB", "2GiB", "4096": bytes. Nothing: it is no size.
std::optional<size_t> size_from_text(std::string_view);
// true, on, yes, 1, or false, off, no, 0, in letters of any size. Nothing: it is none.
std::optional<bool> switch_from_text(std::string_view);
// "0.02", "0": a part from 0 to 1. Nothing: it is none.
std::optional<double> part_from_text(std::string_view);
// "500ms", "30s", "2min", "0". Nothing: it is no time from 0 up.
std::optional<std::chrono::milliseconds> time_from_text(std::string_view);
std::string time_text(std::chrono::milliseconds);  // "90 s", "2 min"
// "1.5 GiB" for a person.
std::string bytes_text(size_t bytes);

}  // namespace weir
