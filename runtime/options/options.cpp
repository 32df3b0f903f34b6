// The table of options, WEIR_CONF and WEIR_DEVICES. Unknown words are refused with the nearest right one.
// Threads: any.
#include "runtime/options/options.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/base/os.h"
#include "runtime/base/text.h"

namespace weir {
namespace {

constexpr option_row table[] = {
    {"device_limit", &options::device_limit, "none", nullptr,
     "Bytes of device memory that weir may reserve on each device."},
    {"driver_reserve", &options::driver_reserve, "64 MiB and 1 MiB a multiprocessor; simulated devices: none", nullptr,
     "Bytes that weir leaves free on each device for the driver: kernels that are loaded later, their local memory, "
     "the first calls of cuBLAS and NCCL. 1: none. Memory that device_limit forbids is not part of it. See "
     "docs/explanation/memory.md."},
    {"device_idle", &options::device_idle, "never", nullptr,
     "How long device memory stays reserved while it is free. weir looks at an allocation that finds no free block, "
     "and after a synchronization. Not with `deterministic`."},
    {"pinned_limit", &options::pinned_limit, "what the host can spare", nullptr,
     "Bytes of page-locked host memory that weir may reserve. The default is the memory that the host, or the "
     "process's control group, has available at the request. An eighth of the host's memory, at most 8 GiB, is left "
     "free."},
    {"pinned_idle", &options::pinned_idle, "never", nullptr,
     "How long unused page-locked memory is kept. A later allocation of page-locked memory then returns it to the "
     "system. See docs/reference/copies.md."},
    {"address_space", &options::address_space, "16 TiB, halved until it fits", nullptr,
     "Bytes of address space reserved for each device. It uses no memory. A process with a limit (`ulimit -v`) may "
     "need less."},
    {"launch_blocking", &options::launch_blocking, "", "CUDA_LAUNCH_BLOCKING",
     "Each launch waits for its work, so that an error names the line of its cause. Slow."},
    {"nvtx_memory", &options::nvtx_memory, "", nullptr,
     "Registers blocks with NVTX, so that compute-sanitizer sees a kernel's accesses outside blocks. "
     "Implies launch_blocking."},
    {"check_races", &options::check_races, "", "WEIR_CHECK_RACES",
     "Reports races: two uses of a byte without an order, and uses of memory before its allocation or after its free. "
     "See docs/how-to/test-without-a-gpu.md."},
    {"epsilon", &options::epsilon, "", nullptr,
     "The fraction, from 0 to 1, by which reserved memory may exceed the most that was in use. A smaller value "
     "reserves less and moves more handles. See docs/explanation/memory.md."},
    {"widest_epsilon", &options::widest_epsilon, "", nullptr,
     "The fraction, from 0 to 1, to which `epsilon` may widen while moves are frequent and the device has room. "
     "Not above epsilon: never. See docs/decisions/bound-width.md."},
    {"poll_on_miss", &options::poll_on_miss, "", nullptr,
     "An allocation without a free block asks the driver which other streams' work is complete. If false, weir asks "
     "only before out_of_memory."},
    {"device_waits", &options::device_waits, "", nullptr,
     "When weir lets a stream wait on the device for memory that another stream still uses. `never`. `when_short`: "
     "before out_of_memory. "
     "`before_growth`: also instead of growth, if four suitable blocks are pending on a stream that is behind. "
     "A stream that carries collectives never waits."},
    {"fence_interval", &options::fence_interval, "16 MiB, or a fraction of the stream's memory", nullptr,
     "Bytes freed between two fences while a second stream is active. With fewer bytes a wait for memory covers less "
     "work after the last use, and frees cost more."},
    {"streams_with_pages", &options::streams_with_pages, "", nullptr,
     "How many streams of a device get pages of their own at their first block. Small blocks of a later stream come "
     "from pages that such streams share, until the stream is busy. See docs/decisions/shared-pages.md."},
    {"deterministic", &options::deterministic, "", nullptr,
     "Addresses of device blocks depend on the program's calls alone, not on when work completes. The exception is "
     "short memory during collectives. Costs memory and overlap: see docs/decisions/reuse.md."},
    {"peer_access", &options::peer_access, "", nullptr,
     "From the first copy or collective between two devices on, each device can access all memory of the other, "
     "later memory included. A handle costs about 0.15 ms more, and 50 us for each further peer. Open handles are "
     "not moved. See docs/reference/copies.md."},
    {"log", &options::log, "", nullptr,
     "What weir writes to the standard error output, or passes to on_log. `silent`; `error`: out of memory, "
     "a lost device; `warning`: short memory; "
     "`info`: machines and devices; `debug`: memory mapped and returned, waits inserted."},
};

[[noreturn]] void refuse(std::string operation, std::string operands, std::string remedy, source_location at,
                         error_id id) {
  if (operation.starts_with("WEIR_"))
    at = {};  // no line of the program is wrong
  throw invalid_use(std::move(operation), std::move(operands), std::move(remedy), at, id);
}

using base::all_of, base::did_you_mean, base::in_quotes;

template <class T>
std::optional<T> number_from(std::string_view text) {
  T n{};
  auto const [end, failed] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (text.empty() || failed != std::errc{} || end != text.data() + text.size())
    return {};
  return n;
}
std::optional<size_t> whole_number(std::string_view text) {
  return number_from<size_t>(text);
}

std::size_t word_of(std::span<std::string_view const> words, std::string_view key, std::string_view value,
                    std::string_view where, source_location at) {
  auto const found = std::find(words.begin(), words.end(), value);
  if (found != words.end())
    return static_cast<std::size_t>(found - words.begin());
  std::string meant = did_you_mean(value, words, std::string(key) + ":");
  if (!meant.empty())
    meant.pop_back();  // the blank behind the question
  refuse(std::string(where), std::string(key) + ":" + in_quotes(value) + " is none of " + all_of(words),
         meant.empty() ? "Write " + std::string(key) + ":" + std::string(words.front()) + ", for example" : meant, at,
         error_id{167});
}

// Options of PYTORCH_CUDA_ALLOC_CONF, and their replacement in weir.
constexpr std::pair<std::string_view, std::string_view> of_pytorch[] = {
    {"max_split_size_mb", "Leave it out: weir moves free memory together. `epsilon` bounds what lies idle"},
    {"max_non_split_rounding_mb", "Leave it out: weir moves free memory together. `epsilon` bounds what lies idle"},
    {"roundup_power2_divisions", "Leave it out: weir rounds small blocks to 16 B. `epsilon` bounds what lies idle"},
    {"garbage_collection_threshold", "Leave it out: `epsilon` bounds the free memory that weir keeps"},
    {"expandable_segments", "Leave it out: weir always maps memory in segments that expand, if the driver can"},
    {"backend", "Leave it out: weir has one allocator"},
    {"per_process_memory_fraction", "Use device_limit:SIZE, or weir::set_per_process_memory_fraction"},
    {"release_lock_on_cudamalloc", "Leave it out: weir holds no lock of a heap during driver calls"},
    {"pinned_use_cuda_host_register", "Leave it out: weir registers its pages with the driver"},
    {"pinned_num_register_threads", "Leave it out, and reserve pinned memory with weir::reserve_pinned_memory"},
    {"pinned_use_background_threads", "Leave it out: weir queries events in the calls that need memory"},
};

// One KEY:VALUE, and where it stands: WEIR_CONF, or a file and a line.
struct setting {
  std::string key, value, where;
  source_location at;

  template <class T>
  T required(std::optional<T> const& given, char const* is_none, std::string remedy) const {
    if (!given)
      refuse(where, key + ":" + in_quotes(value) + is_none, std::move(remedy), at,
             error_id{168});  // KEY:"VALUE" is no value of that option. The remedy has an example
    return *given;
  }
  // One for each kind of value that a row may have.
  void set(options& into, size_t options::*size) const {
    into.*size =
        required(size_from_text(value), " is not a size", "Write bytes, or a number and KiB, MiB, GiB or TiB: 512MiB");
  }
  void set(options& into, std::chrono::milliseconds options::*time) const {
    into.*time =
        required(time_from_text(value), " is not a time", "Write a number and ms, s or min, or 0: " + key + ":30s");
  }
  void set(options& into, double options::*part) const {
    into.*part = required(part_from_text(value), " is not a number from 0 to 1", "Write " + key + ":0.02");
  }
  void set(options& into, std::uint32_t options::*count) const {
    into.*count = required(number_from<std::uint32_t>(value), " is not a number", "Write " + key + ":16");
  }
  void set(options& into, options::wait_policy options::*policy) const {
    into.*policy = static_cast<options::wait_policy>(word_of(wait_policies, key, value, where, at));
  }
  void set(options& into, log_level options::*level) const {
    into.*level = static_cast<log_level>(word_of(log_levels, key, value, where, at));
  }
  void set(options& into, bool options::*on) const {
    into.*on = required(switch_from_text(value), " is neither true nor false", "Write " + key + ":true");
  }

  [[noreturn]] void refuse_unknown() const {
    for (auto const& [of_torch, instead] : of_pytorch) {
      if (key == of_torch)
        refuse(where, in_quotes(key) + " is an option of PyTorch, not of weir",
               std::string(instead) + ". See docs/reference/coming-from-pytorch.md", at, error_id{169});
    }
    std::vector<std::string_view> names;
    for (option_row const& row : table)
      names.push_back(row.name);
    refuse(where, "there is no option " + in_quotes(key),
           did_you_mean(key, names) + "docs/reference/options.md lists the options", at, error_id{170});
  }
};

// `where`: WEIR_CONF, or a file and a line. Returns: the row that was set.
size_t set_option(options& into, std::string_view key, std::string_view value, std::string_view where,
                  source_location at) {
  setting const s{std::string(key), std::string(value), std::string(where), at};
  auto const row = std::ranges::find(table, key, &option_row::name);
  if (row == std::end(table))
    s.refuse_unknown();
  std::visit([&](auto const member) { s.set(into, member); }, row->at);
  return static_cast<size_t>(row - std::begin(table));
}

// a hundred years fit in a count of nanoseconds
constexpr std::chrono::milliseconds longest{std::int64_t{1000} * 3600 * 24 * 365 * 100};
bool is_time(std::chrono::milliseconds t) {
  return t.count() >= 0 && t <= longest;
}
// False for NaN.
bool is_part(double part) {
  return part >= 0 && part <= 1;
}

std::string in_small_letters(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

char const* variable(char const* name) {
  char const* const value = std::getenv(name);
  return value && *value ? value : nullptr;
}

}  // namespace

std::optional<size_t> size_from_text(std::string_view text) {
  using unit = std::pair<std::string_view, int>;
  for (auto const& [name, shift] : {unit{"KiB", 10}, unit{"MiB", 20}, unit{"GiB", 30}, unit{"TiB", 40}}) {
    if (!text.ends_with(name))
      continue;
    text.remove_suffix(name.size());
    size_t const most = std::numeric_limits<size_t>::max() >> shift;
    if (auto const n = whole_number(text))
      return *n <= most ? std::optional(*n << shift) : std::nullopt;
    auto const decimal = number_from<double>(text);
    bool const plain = text.find_first_not_of("0123456789.") == text.npos;  // not "1e3", "inf" or "-1"
    if (!decimal || !plain || *decimal >= static_cast<double>(most))
      return {};
    auto const bytes = static_cast<size_t>(*decimal * static_cast<double>(size_t{1} << shift));
    return bytes || *decimal == 0 ? std::optional(bytes) : std::nullopt;  // less than a byte must not mean: no limit
  }
  return whole_number(text);
}

std::optional<std::chrono::milliseconds> time_from_text(std::string_view text) {
  using unit = std::pair<std::string_view, size_t>;
  if (text == "0")
    return std::chrono::milliseconds(0);
  for (auto const& [name, ms] : {unit{"ms", 1}, unit{"s", 1000}, unit{"min", 60'000}}) {
    if (!text.ends_with(name))
      continue;
    auto const n = whole_number(text.substr(0, text.size() - name.size()));
    if (!n || *n > static_cast<size_t>(longest.count()) / ms)
      return {};
    return std::chrono::milliseconds(*n * ms);
  }
  return {};
}

std::string time_text(std::chrono::milliseconds t) {
  auto const ms = t.count();
  if (ms % 1000)
    return std::to_string(ms) + " ms";
  return ms % 60'000 ? std::to_string(ms / 1000) + " s" : std::to_string(ms / 60'000) + " min";
}

std::optional<double> part_from_text(std::string_view text) {
  auto const part = number_from<double>(text);
  return part && is_part(*part) ? part : std::nullopt;
}

std::optional<bool> switch_from_text(std::string_view text) {
  std::string const word = in_small_letters(text);
  for (char const* const yes : {"true", "on", "yes", "1"})
    if (word == yes)
      return true;
  for (char const* const no : {"false", "off", "no", "0"})
    if (word == no)
      return false;
  return {};
}

std::string bytes_text(size_t bytes) {
  char const* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double amount = static_cast<double>(bytes);
  size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(units))
    amount /= 1024, ++unit;
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

void read_options(std::string_view text, options& into, std::vector<std::string>* origin, std::string const& where,
                  source_location at) {
  while (!text.empty()) {
    std::string_view const item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    std::string_view const pair = trimmed(item);
    if (pair.empty())
      continue;
    size_t const colon = pair.find(':');
    if (colon == pair.npos)
      refuse(where, in_quotes(pair) + " has no value", "Write key:value,key:value", at, error_id{171});
    size_t const row = set_option(into, trimmed(pair.substr(0, colon)), trimmed(pair.substr(colon + 1)), where, at);
    if (origin)
      (*origin)[row] = where;
  }
}

// Each line is read as the text of WEIR_CONF, up to a #, which begins a comment.
void read_file(std::string const& path, found_options& into, source_location at) {
  constexpr std::size_t most = std::size_t{1} << 20;
  auto const file = os::read_text(path.c_str(), most);
  if (!file.text)
    refuse("WEIR_CONF_FILE", in_quotes(path) + " " + file.why_not,
           "Name a file of lines key:value, or unset WEIR_CONF_FILE", at, error_id{172});
  std::string_view left = *file.text;
  for (int number = 1; !left.empty(); ++number) {
    std::string_view const line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    read_options(line.substr(0, line.find('#')), into.in_force, &into.origin, path + ":" + std::to_string(number), at);
  }
}

}  // namespace

options parse_options(std::string_view text, source_location at) {
  options result;
  read_options(text, result, nullptr, "WEIR_CONF", at);
  return result;
}

// 64 MiB: code of kernels, cuBLAS's workspace of 32 MiB, events. A kernel whose threads have 512 B of local
// memory each needs 1 MiB for each multiprocessor of 2048 threads.
size_t driver_reserve_of(options const& o, bool simulated, int multiprocessors) noexcept {
  constexpr size_t mib = 1 << 20;
  if (o.driver_reserve)
    return o.driver_reserve > 1 ? o.driver_reserve : 0;
  return simulated ? 0 : 64 * mib + mib * static_cast<size_t>(std::max(multiprocessors, 0));
}

std::span<option_row const> option_table() noexcept {
  return table;
}

void check_options(options const& o, source_location at) {
  if (o.deterministic && o.device_idle.count())
    throw invalid_use("runtime", "options::device_idle of " + time_text(o.device_idle) + " with options::deterministic",
                      "Leave one of them out: addresses would depend on the time", at, error_id{429});
  for (option_row const& row : table) {
    auto const refuse_it = [&](std::string const& value, std::string remedy, error_id id) {
      throw invalid_use("runtime", "options::" + std::string(row.name) + " of " + value, std::move(remedy), at, id);
    };
    auto const one_of = [&](std::size_t n, std::span<std::string_view const> words) {
      if (n >= words.size())
        refuse_it(std::to_string(n), "Choose one of " + all_of(words), error_id{173});
    };
    if (auto const* const time = std::get_if<std::chrono::milliseconds options::*>(&row.at)) {
      if (!is_time(o.**time))
        refuse_it(std::to_string((o.**time).count()) + " ms",
                  "Choose a time from 0 to 100 years; 0: " + std::string(row.nothing), error_id{174});
    } else if (auto const* const part = std::get_if<double options::*>(&row.at)) {
      if (!is_part(o.**part))
        refuse_it(std::to_string(o.**part), "Choose a number from 0 to 1, such as 0.02", error_id{175});
    } else if (auto const* const policy = std::get_if<options::wait_policy options::*>(&row.at)) {
      one_of(static_cast<std::size_t>(o.**policy), wait_policies);
    } else if (auto const* const level = std::get_if<log_level options::*>(&row.at)) {
      one_of(static_cast<std::size_t>(o.**level), log_levels);
    }  // every size, switch and count is right
  }
}

std::string option_text(option_row const& row, options const& o) {
  if (auto const* const size = std::get_if<size_t options::*>(&row.at))
    return o.**size ? bytes_text(o.**size) : std::string(row.nothing);
  if (auto const* const time = std::get_if<std::chrono::milliseconds options::*>(&row.at))
    return (o.**time).count() ? time_text(o.**time) : std::string(row.nothing);
  if (auto const* const part = std::get_if<double options::*>(&row.at)) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", o.**part);
    return text;
  }
  if (auto const* const count = std::get_if<std::uint32_t options::*>(&row.at))
    return std::to_string(o.**count);
  if (auto const* const policy = std::get_if<options::wait_policy options::*>(&row.at))
    return std::string(wait_policies[static_cast<size_t>(o.**policy)]);
  if (auto const* const level = std::get_if<log_level options::*>(&row.at))
    return std::string(log_levels[static_cast<size_t>(o.**level)]);
  return o.*std::get<bool options::*>(row.at) ? "true" : "false";
}

machine_choice parse_devices(std::string_view text, std::string const& where, source_location at) {
  static constexpr std::string_view machines[] = {"auto", "cuda", "sim"};
  std::string_view const word = text.substr(0, text.find(':'));
  machine_choice choice;
  if (word == "auto" || word == "cuda") {
    if (word.size() != text.size())
      refuse(where, in_quotes(text) + ": " + in_quotes(word) + " takes no number",
             "Select GPUs with CUDA_VISIBLE_DEVICES", at, error_id{176});
    choice.which = word == "auto" ? machine_choice::kind::automatic : machine_choice::kind::cuda;
    return choice;
  }
  if (word != "sim")
    refuse(where, in_quotes(text) + " is not a machine",
           did_you_mean(word, machines) + "Write auto, cuda or sim[:devices[:size]][:seed=S]", at, error_id{177});
  choice.which = machine_choice::kind::simulated;
  std::string_view rest = text.substr(word.size());
  // The seed stands at the end.
  if (auto const end = rest.rfind(":seed="); end != rest.npos) {
    std::string_view const digits = rest.substr(end + std::string_view(":seed=").size());
    auto const seed = whole_number(digits);
    if (!seed)
      refuse(where, in_quotes(text) + ": " + in_quotes(digits) + " is not a seed",
             "Write a number, as in sim:2:seed=7; seed=0 chooses one and prints it", at, error_id{433});
    choice.sim.schedule = simulated::scheduling::seeded;
    choice.sim.seed = *seed;
    rest = rest.substr(0, end);
  }
  // What is left is empty, ":devices" or ":devices:size".
  if (rest.empty())
    return choice;
  rest.remove_prefix(1);
  std::string_view const count = rest.substr(0, rest.find(':'));
  auto const devices = whole_number(count);
  if (!devices || *devices < 1 || *devices > 64)
    refuse(where, in_quotes(text) + ": " + in_quotes(count) + " is not a number of devices", "Write sim:1 to sim:64",
           at, error_id{178});
  choice.sim.devices = static_cast<int>(*devices);
  if (count.size() == rest.size())
    return choice;  // without a size
  rest.remove_prefix(count.size() + 1);
  bool const is_in_gib = number_from<double>(rest).has_value();  // a number without a unit
  auto const bytes = size_from_text(std::string(rest) + (is_in_gib ? "GiB" : ""));
  if (!bytes || *bytes < 2_MiB || *bytes > 1024_GiB)
    refuse(where, in_quotes(text) + ": " + in_quotes(rest) + " is not a size",
           "Write a number of GiB, or a size from 2MiB to 1TiB: sim:N:16, sim:N:640MiB", at, error_id{179});
  choice.sim.memory = *bytes;
  return choice;
}

race_check races_of_process(source_location at) {
  char const* const text = variable("WEIR_CHECK_RACES");
  if (!text)
    return race_check::off;
  if (auto const given = switch_from_text(text))
    return *given ? race_check::report : race_check::off;
  std::string const word = in_small_letters(text);
  if (word == "report")
    return race_check::report;
  if (word == "fail")
    return race_check::fail;
  static constexpr std::string_view words[] = {"on", "off", "report", "fail"};
  refuse("WEIR_CHECK_RACES", in_quotes(text) + " is none of on, off, report, fail",
         did_you_mean(word, words) + "Write WEIR_CHECK_RACES=on", at, error_id{180});
}

bool races_wanted(options const& o, source_location at) {
  return races_of_process(at) != race_check::off || o.check_races;
}

bool guard_wanted(options const& o, source_location at) {
  char const* const text = variable("WEIR_SIM_GUARD");
  if (!text)
    return races_wanted(o, at);
  auto const given = switch_from_text(text);
  if (!given)
    refuse("WEIR_SIM_GUARD", in_quotes(text) + " is neither on nor off", "Write WEIR_SIM_GUARD=on", at, error_id{181});
  return *given;
}

// As CUDA: a word that names no device ends the list, and a device that is named twice empties it.
std::vector<int> visible_devices(std::string_view text, int count) {
  constexpr std::string_view uuid = "SIM-";
  std::vector<int> shown;
  for (std::size_t at = 0; at <= text.size();) {
    std::size_t const end = std::min(text.find(',', at), text.size());
    std::string_view word = text.substr(at, end - at);
    at = end + 1;
    while (word.starts_with(' '))
      word.remove_prefix(1);
    while (word.ends_with(' '))
      word.remove_suffix(1);
    auto const n = whole_number(word.starts_with(uuid) ? word.substr(uuid.size()) : word);
    if (!n || *n >= static_cast<size_t>(count))
      break;
    if (std::find(shown.begin(), shown.end(), static_cast<int>(*n)) != shown.end())
      return {};
    shown.push_back(static_cast<int>(*n));
  }
  return shown;
}

machine_choice devices_from_environment(source_location at) {
  char const* const text = variable("WEIR_DEVICES");
  machine_choice choice = text ? parse_devices(text, "WEIR_DEVICES", at) : machine_choice{};
  auto const visible = os::environment("CUDA_VISIBLE_DEVICES");  // an empty value means: no device
  if (!visible || choice.which == machine_choice::kind::cuda)
    return choice;
  choice.visible = visible_devices(*visible, choice.sim.devices);
  // An automatic choice passes: the variable may name GPUs.
  if (choice.visible.empty() && choice.which == machine_choice::kind::simulated)
    throw not_supported("runtime",
                        "CUDA_VISIBLE_DEVICES=" + in_quotes(*visible) + " shows none of " +
                            std::to_string(choice.sim.devices) + " simulated devices",
                        "Name devices from 0 to " + std::to_string(choice.sim.devices - 1) + ", each once, or unset it",
                        {}, error_id{182});
  return choice;
}

found_options find_options(source_location at) {
  found_options found{{}, std::vector<std::string>(std::size(table), "default")};
  if (char const* const path = variable("WEIR_CONF_FILE"))
    read_file(path, found, at);
  if (char const* const text = variable("WEIR_CONF"))
    read_options(text, found.in_force, &found.origin, "WEIR_CONF", at);
  for (size_t i = 0; i < std::size(table); ++i) {
    // Null: the option has no variable, or that is not set.
    char const* const value = table[i].variable ? variable(table[i].variable) : nullptr;
    if (!value)
      continue;
    bool is_on = std::string_view(value) != "0";  // as CUDA's variable: on for any number except 0
    if (table[i].name == "check_races")
      is_on = races_of_process(at) != race_check::off;
    if (!is_on)
      continue;  // no variable switches an option off
    found.in_force.*std::get<bool options::*>(table[i].at) = true;
    found.origin[i] = table[i].variable;
  }
  return found;
}

options options::from_environment(source_location at) {
  return find_options(at).in_force;
}

}  // namespace weir
