// Which machine a program asked for, read from the environment.
// Threads: any; the environment is read, never written.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "weir/runtime.h"

namespace weir {

struct machine_choice {
  enum class kind : std::uint8_t { automatic, cuda, simulated } which = kind::automatic;
  simulated sim{};  // of automatic and simulated
};
machine_choice parse_devices(std::string_view text);  // WEIR_DEVICES. Throws: invalid_use
options parse_options(std::string_view text);         // WEIR_CONF. Throws: invalid_use
machine_choice devices_from_environment();
bool guard_wanted(options const&);                    // of a simulated machine: with a race check, unless WEIR_SIM_GUARD=0
bool races_wanted(options const&);                    // by these options, or by WEIR_CHECK_RACES for the whole process
// The candidate with the fewest edits from `word`.
std::string_view nearest(std::string_view word, std::span<std::string_view const> candidates);
inline std::string_view nearest(std::string_view word, std::initializer_list<std::string_view> candidates) { return nearest(word, std::span(candidates.begin(), candidates.size())); }
// "512MiB", "2GiB", "4096": bytes. Nothing: it is no size.
std::optional<size_t> size_from_text(std::string_view);
// "1.5 GiB" for a person.
std::string bytes_text(size_t bytes);

}  // namespace weir
