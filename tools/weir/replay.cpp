// weir replay: runs the recorded allocations of a program through weir, twice, and says what that took.
// Threads: one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "meter.h"
#include "runtime/base/text.h"
#include "runtime/core/parts.h"
#include "runtime/options/options.h"
#include "streams/stream/context.h"
#include "trace.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/observe.h"

namespace weir::tool {
namespace {

struct outcome {
  std::string devices;
  double epsilon = 0;
  double first_ns = 0, warm_ns = 0;                // an operation, on the host, without the driver's
  double first_driver_ns = 0, warm_driver_ns = 0;  // an operation; modelled on a simulated machine
  std::uint64_t created = 0, moved = 0, warm_moved = 0;
  std::uint64_t opened_early = 0;  // blocks whose other stream was waited for because memory was short, before their c
  memory_statistics memory{};
  std::string ladder;  // of the first allocation that found no memory
};

// The streams, blocks and gates of one trace on one device. What it does in the place of the program's other
// streams (closing gates, opening them, seeing their work done) is no part of any time it tells.
class player {
 public:
  player(trace const& t, runtime& r, meter& m)
      : operations_(t.operations),
        end_(t.operations.size()),
        machine_(r.get().machine()),
        meter_(m),
        blocks_(t.blocks),
        gates_(t.blocks) {
    operations_.resize(end_ + ahead);
    for (std::uint32_t i = 0; i < t.streams; ++i) streams_.emplace_back(), by_number_.push_back(streams_.back().ref());
    std::size_t in_use = 0;
    for (auto const& op : t.operations) {
      if (op.does == trace::kind::done) --in_use;
      if (op.does == trace::kind::give_in_use && ++in_use > users_.size()) users_.emplace_back();
    }
  }
  struct taken {
    std::int64_t host_ns, driver_ns;  // the host's without the driver's
  };
  // All operations in order, then gives back what is left. Returns: what the operations took
  taken play() {
    apart_ = {};
    // A program's other streams go on while one waits for memory:
    // without this the replay would wait for a c that only it can come to.
    auto const short_of_memory = on_out_of_memory([this](memory_report const&) { return open_all(); });
    meter::reading const before = meter_.read();
    std::int64_t const from = base::now_ns();
    operate();
    std::int64_t const whole = base::now_ns() - from - apart_.whole_ns;
    meter::reading const after = meter_.read();
    std::int64_t const spent = after.spent_ns - before.spent_ns - apart_.spent_ns;
    for (void*& p : blocks_) deallocate(std::exchange(p, nullptr));
    return {whole - spent, meter_.simulated() ? after.modelled_ns - before.modelled_ns - apart_.modelled_ns : spent};
  }
  [[gnu::noinline]] void operate() {  // what is timed, and nothing else: profilers find it by its name
    auto const* const end = operations_.data() + end_;
    void** const blocks = blocks_.data();
    for (auto const* i = operations_.data(); i < end; ++i) {
      auto const& op = *i;
      __builtin_prefetch(&blocks[i[ahead].block]);  // a program has its pointers at hand
      switch (op.does) {
        case trace::kind::take: take(op); break;
        case trace::kind::give: deallocate(std::exchange(blocks[op.block], nullptr)); break;
        case trace::kind::give_in_use: give_in_use(op.block); break;
        case trace::kind::done: done(op.block); break;
      }
    }
  }
  std::string const& ladder() const noexcept { return ladder_; }
  std::uint64_t opened_early() const noexcept { return opened_early_; }

 private:
  struct user {  // a stream that still uses a block
    stream on;
    bool busy = false;
  };
  struct gate {
    user* by = nullptr;
    driver::gate_handle closed = driver::gate_handle::none;
  };

  void take(trace::operation const& op) {
    try {
      blocks_[op.block] = allocate(by_number_[op.stream], op.bytes);
    } catch (out_of_memory const& e) {
      if (ladder_.empty()) ladder_ = e.report().text();
    }
  }
  // Another stream is held at a gate with the block marked for it. Gates are few:
  // a block that gets none is given back when its c comes.
  void give_in_use(std::uint32_t block) {
    if (!blocks_[block]) return;
    user& by = idle_user();
    driver::result<driver::gate_handle> held{};
    apart([&] { held = machine_.hold(0, streams::clock_of(by.on.ref()).handle()); });
    if (!held.ok()) return;
    by.busy = true;
    gates_[block] = {&by, held.value};
    closed_.push_back(block);
    deallocate(by.on, std::exchange(blocks_[block], nullptr));
  }
  void done(std::uint32_t block) {
    if (blocks_[block]) return deallocate(std::exchange(blocks_[block], nullptr));
    if (!gates_[block].by) return;  // opened before, as memory was short
    open(block);
    std::erase(closed_, block);
  }
  void open(std::uint32_t block) {
    gate const g = std::exchange(gates_[block], {});
    apart([&] {
      require(machine_.open_gate(g.closed), "replay", "a gate", "", source_location::current());
      g.by->on.synchronize();
    });
    g.by->busy = false;
  }
  bool open_all() {  // Returns: whether one was closed
    opened_early_ += closed_.size();
    for (std::uint32_t const block : closed_) open(block);
    return !std::exchange(closed_, {}).empty();
  }
  template <class Act>
  void apart(Act act) {
    meter::reading const before = meter_.read();
    std::int64_t const from = base::now_ns();
    act();
    meter::reading const after = meter_.read();
    apart_.whole_ns += base::now_ns() - from;
    apart_.spent_ns += after.spent_ns - before.spent_ns;
    apart_.modelled_ns += after.modelled_ns - before.modelled_ns;
  }
  user& idle_user() {
    for (user& u : users_) {
      if (!u.busy) return u;
    }
    return users_.emplace_back();
  }

  static constexpr std::size_t ahead = 16;     // operations
  std::vector<trace::operation> operations_;   // and as many as `ahead` that are none
  std::size_t const end_;
  driver::driver& machine_;
  meter& meter_;
  struct {
    std::int64_t whole_ns = 0, spent_ns = 0, modelled_ns = 0;
  } apart_;
  std::deque<stream> streams_;
  std::vector<stream_ref> by_number_;
  std::deque<user> users_;
  std::vector<void*> blocks_;
  std::vector<gate> gates_;            // by block
  std::vector<std::uint32_t> closed_;  // blocks whose gate is; few
  std::uint64_t opened_early_ = 0;
  std::string ladder_;
};

struct settings {
  machine_choice machine;
  bool size_given = false;  // of simulated devices
  std::optional<size_t> limit;
  std::optional<double> epsilon;
  int rounds = 2;
  bool json = false;
  std::string snapshot, page;  // files; empty: none is wanted
};

// One device is enough. A simulated one is as large as an H200 unless its size was given;
// it costs what is touched, and nothing is.
machine_choice one_device(settings const& s) {
  machine_choice m = s.machine;
  m.sim.devices = 1;
  if (!s.size_given) m.sim.memory = size_t{141} << 30;
  return m;
}

outcome replay_one(std::string const& path, trace const& t, settings const& s) {
  auto opened = open_machine(one_device(s));
  auto made = std::make_unique<meter>(std::move(opened.machine));
  meter& m = *made;
  options o = options::from_environment();
  if (s.limit) o.device_limit = *s.limit;
  if (s.epsilon) o.epsilon = *s.epsilon;
  auto const rt = make_runtime(std::move(made), o, opened.why);
  runtime_guard const in(*rt);
  device_guard const on(0);
  outcome out;
  out.epsilon = o.epsilon;
  out.devices = rt->description() + (m.simulated() ? "; driver time modelled" : "");
  player p(t, *rt, m);
  auto const operations = static_cast<double>(t.operations.size());
  struct spent {
    double host_ns, driver_ns;
    std::uint64_t moved;
  };
  auto const round = [&]() -> spent {
    auto const before = m.read();
    auto const took = p.play();
    return {static_cast<double>(took.host_ns) / operations, static_cast<double>(took.driver_ns) / operations,
            m.read().moved - before.moved};
  };
  if (!s.snapshot.empty() || !s.page.empty()) record_memory_history({.events = size_t{1} << 21});
  spent const first = round();
  out.first_ns = first.host_ns, out.first_driver_ns = first.driver_ns;
  std::vector<spent> warm;
  for (int i = 1; i < s.rounds; ++i) warm.push_back(round());
  auto const median_of = [&](auto spent::* what) {
    std::sort(warm.begin(), warm.end(), [&](spent const& a, spent const& b) { return a.*what < b.*what; });
    return warm[(warm.size() - 1) / 2].*what;
  };
  out.warm_ns = median_of(&spent::host_ns), out.warm_driver_ns = median_of(&spent::driver_ns),
  out.warm_moved = median_of(&spent::moved);
  out.created = m.read().created;
  out.moved = m.read().moved;
  out.memory = memory_stats(0);
  out.ladder = p.ladder();
  out.opened_early = p.opened_early();
  if (!s.snapshot.empty()) dump_memory_snapshot(s.snapshot);
  if (!s.page.empty()) dump_memory_page(s.page, path.substr(path.rfind('/') + 1) + " on " + out.devices);
  return out;
}

double ratio(trace const& t, outcome const& o) {
  return t.peak_requested
             ? static_cast<double>(o.memory.reserved_bytes.all.peak) / static_cast<double>(t.peak_requested)
             : 0;
}

template <class Say>
std::string recovered_by(memory_statistics const& n, Say say) {
  std::string out;
  for (size_t i = 0; i < recovery_steps.size(); ++i) {
    if (n.recovered_by[i]) out += (out.empty() ? "" : ", ") + say(recovery_steps[i], std::to_string(n.recovered_by[i]));
  }
  return out;
}

std::string part_text(double part) {  // finite: it was read as one
  char text[32];
  std::snprintf(text, sizeof text, "%g", part);
  return text;
}

void print_json(std::string const& path, trace const& t, outcome const& o) {
  std::printf(
      "{\"trace\": %s, \"devices\": %s, \"epsilon\": %s, \"ops\": %zu, \"peak_requested\": %zu, \"peak_allocated\": "
      "%lld, \"peak_reserved\": %lld, \"ratio\": %s, "
      "\"first_ns_per_op\": %s, \"warm_ns_per_op\": %s, \"first_driver_ns_per_op\": %s, \"warm_driver_ns_per_op\": %s, "
      "\"handles_created\": %llu, \"handles_moved\": %llu, \"warm_handles_moved\": %llu, \"ooms\": %llu, "
      "\"ladders\": %llu, \"opened_early\": %llu, \"recovered_by\": {%s}}\n",
      base::json_text(path).c_str(), base::json_text(o.devices).c_str(), part_text(o.epsilon).c_str(),
      t.operations.size(), t.peak_requested, static_cast<long long>(o.memory.allocated_bytes.all.peak),
      static_cast<long long>(o.memory.reserved_bytes.all.peak), base::json_number(ratio(t, o), 4).c_str(),
      base::json_number(o.first_ns, 1).c_str(), base::json_number(o.warm_ns, 1).c_str(),
      base::json_number(o.first_driver_ns, 1).c_str(), base::json_number(o.warm_driver_ns, 1).c_str(),
      static_cast<unsigned long long>(o.created), static_cast<unsigned long long>(o.moved),
      static_cast<unsigned long long>(o.warm_moved), static_cast<unsigned long long>(o.memory.num_ooms),
      static_cast<unsigned long long>(o.memory.num_alloc_retries), static_cast<unsigned long long>(o.opened_early),
      recovered_by(o.memory, [](std::string_view rung, std::string const& times) {
        return base::json_text(std::string(rung)) + ": " + times;
      }).c_str());
}

void print_text(std::string const& path, trace const& t, outcome const& o, settings const& s) {
  std::printf("%s: %zu operations of %u stream%s on %s\n", base::visible(path).c_str(), t.operations.size(), t.streams,
              t.streams == 1 ? "" : "s", o.devices.c_str());
  std::printf("  requested at most %s, reserved at most %s: %.4f times that\n", bytes_text(t.peak_requested).c_str(),
              bytes_text(static_cast<size_t>(o.memory.reserved_bytes.all.peak)).c_str(), ratio(t, o));
  std::printf("  an operation    host        driver\n  first replay %8.1f ns %10.1f ns\n  %-12s %8.1f ns %10.1f ns\n",
              o.first_ns, o.first_driver_ns, s.rounds > 2 ? "later" : "second", o.warm_ns, o.warm_driver_ns);
  std::printf(
      "  handles created %llu, moved %llu, in %s %llu\n", static_cast<unsigned long long>(o.created),
      static_cast<unsigned long long>(o.moved),
      s.rounds > 2 ? ("the median of " + std::to_string(s.rounds - 1) + " later replays").c_str() : "the second replay",
      static_cast<unsigned long long>(o.warm_moved));
  if (s.limit || o.memory.num_ooms || o.memory.num_alloc_retries) {
    std::printf(
        "  %s: %llu allocations found no memory, the ladder was climbed %llu times, %llu blocks in use on another "
        "stream were waited for\n",
        o.memory.num_ooms ? "does not fit" : "fits", static_cast<unsigned long long>(o.memory.num_ooms),
        static_cast<unsigned long long>(o.memory.num_alloc_retries), static_cast<unsigned long long>(o.opened_early));
    auto const found = recovered_by(
        o.memory, [](std::string_view rung, std::string const& times) { return std::string(rung) + " " + times; });
    if (!found.empty()) std::printf("  found by: %s\n", found.c_str());
  }
}

double part_or_throw(std::string const& text) {
  auto const part = part_from_text(text);
  if (!part)
    throw invalid_use("replay", "--epsilon \"" + text + "\" is no number from 0 to 1", "Write --epsilon 0.02",
                      source_location::current());
  return *part;
}

size_t size_or_throw(std::string const& text) {
  auto const bytes = size_from_text(text);
  if (!bytes || !*bytes)
    throw invalid_use("replay", "--limit \"" + text + "\" is no size",
                      "Write bytes, or a number and KiB, MiB, GiB or TiB: 8GiB", source_location::current());
  return *bytes;
}

}  // namespace

int replay(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices, limit, epsilon;
  std::vector<std::string> paths;
  settings s;
  po::options_description all(
      "weir replay TRACE…: replays recorded allocations (plain or gzip) twice on one device.\nOn a simulated machine "
      "the driver's time is modelled on an H200's");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:GiB]]; WEIR_DEVICES, else auto")(
      "epsilon", po::value(&epsilon), "how far reserved memory may exceed what is in use, as a part of it: 0.02, …")(
      "rounds", po::value(&s.rounds),
      "so many replays in all, 2 unless said; of those after the first the medians are told")(
      "limit", po::value(&limit), "reserve at most so much: bytes, or 512MiB, 8GiB, …")(
      "json", po::bool_switch(&s.json), "a line of JSON a trace")(
      "snapshot", po::value(&s.snapshot),
      "write to this file what PyTorch's memory viewer opens; what recording costs: docs/how-to/where-did-my-memory-go.md")(
      "html", po::value(&s.page),
      "write a page for a browser to this file: memory over time, and what lies where at any moment")(
      "trace", po::value(&paths), "files");
  if (!understood(arguments, all, "trace", -1)) return 0;
  if (s.rounds < 2)
    throw invalid_use("replay", "--rounds " + std::to_string(s.rounds), "Ask for 2 at least: a first and a warm one",
                      source_location::current());
  if (paths.empty())
    throw invalid_use("replay", "no trace", "Name one or more files: weir replay TRACE…", source_location::current());
  use_devices(devices);
  char const* const from_environment = std::getenv("WEIR_DEVICES");
  if (from_environment) devices = from_environment;
  if (!devices.empty()) s.machine = parse_devices(devices);
  s.size_given = std::count(devices.begin(), devices.end(), ':') == 2;
  if (!limit.empty()) s.limit = size_or_throw(limit);
  if (!epsilon.empty()) s.epsilon = part_or_throw(epsilon);
  bool fits = true;
  for (std::string const& path : paths) {
    trace const t = read_trace(path);
    outcome const o = replay_one(path, t, s);
    s.json ? print_json(path, t, o) : print_text(path, t, o, s);
    if (!o.ladder.empty()) std::fprintf(s.json ? stderr : stdout, "%s\n", o.ladder.c_str());
    std::fflush(stdout);
    fits &= o.memory.num_ooms == 0;
  }
  return fits ? 0 : 1;
}

}  // namespace weir::tool
