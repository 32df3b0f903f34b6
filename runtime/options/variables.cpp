// Which variables of the environment weir reads.
// Threads: any.
#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"

namespace weir {

std::vector<std::string> unknown_variables() {
  static constexpr std::string_view ours[] = {"WEIR_CONF",        "WEIR_CONF_FILE",     "WEIR_DEVICES",
                                              "WEIR_CHECK_RACES", "WEIR_SIM_GUARD",     "WEIR_SIM_CENSUS",
                                              "WEIR_TORCH",       "WEIR_TORCH_LIBRARY", "WEIR_TORCH_NATIVE",
                                              "WEIR_TORCH_CACHE", "WEIR_CHECK_SUPPRESS"};
  static constexpr std::string_view prefixes_of_tests_and_tools[] = {
      "WEIR_TEST_",      "WEIR_KILL_",       "WEIR_MISHAP_",       "WEIR_PLANTED_",     "WEIR_PROVE_", "WEIR_FUZZ_",
      "WEIR_CHECKED_",   "WEIR_CHECK_LINES", "WEIR_CHECK_SECONDS", "WEIR_CONFORMANCE_", "WEIR_GPU_",   "WEIR_TRAINER_",
      "WEIR_WRITE_DOCS", "WEIR_SYSTEM_ROOT", "WEIR_DEPS",          "WEIR_TOOL",         "WEIR_MUTANT", "WEIR_STRESS_"};
  std::vector<std::string> lines;
  for (std::string const& name : os::environment_names("WEIR_")) {
    auto const begins = [&](std::string_view with) { return name.starts_with(with); };
    if (std::find(std::begin(ours), std::end(ours), name) != std::end(ours))
      continue;
    if (std::any_of(std::begin(prefixes_of_tests_and_tools), std::end(prefixes_of_tests_and_tools), begins))
      continue;
    std::string meant = base::did_you_mean(name, ours);
    if (!meant.empty())
      meant.pop_back();  // the blank behind the question
    lines.push_back("weir-112: weir does not read the variable " + base::in_quotes(name) + ". " +
                    (meant.empty() ? "It reads " + base::all_of(ours) : meant));
  }
  return lines;
}

}  // namespace weir
