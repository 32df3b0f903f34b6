// Plays a trace: streams, blocks, and gates in the place of the program's other streams.
// Threads: one.
#include "replayed.h"

#include <algorithm>
#include <deque>

#include "meter.h"
#include "runtime/core/parts.h"
#include "streams/report/recording.h"
#include "streams/stream/context.h"
#include "weir/device.h"
#include "weir/memory.h"

namespace weir::tool {
namespace {

// The streams, blocks and gates of one trace on one device. What it does in the place of the program's other
// streams (closing gates, opening them, seeing their work done) is no part of any time it tells.
class player {
 public:
  player(trace const& t, runtime& r, meter& m, bool until_refused)
      : until_refused_(until_refused),
        operations_(t.operations),
        end_(t.operations.size()),
        machine_(r.get().machine()),
        meter_(m),
        blocks_(t.blocks),
        gates_(t.blocks) {
    operations_.resize(end_ + ahead);
    for (std::uint32_t i = 0; i < t.streams; ++i)
      streams_.emplace_back(), by_number_.push_back(streams_.back().ref());
    std::size_t in_use = 0;
    for (auto const& op : t.operations) {
      if (op.does == trace::kind::done)
        --in_use;
      if (op.does == trace::kind::give_in_use && ++in_use > users_.size())
        users_.emplace_back();
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
    try {
      operate();
    } catch (refused const&) {
      (void)open_all();
    }
    std::int64_t const whole = base::now_ns() - from - apart_.whole_ns;
    meter::reading const after = meter_.read();
    std::int64_t const spent = after.spent_ns - before.spent_ns - apart_.spent_ns;
    for (void*& p : blocks_)
      deallocate(std::exchange(p, nullptr));
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
  struct refused {};
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
      blocks_[op.block] = allocate(by_number_[op.stream], op.bytes, default_alignment, unknown);
    } catch (out_of_memory const& e) {
      if (ladder_.empty())
        ladder_ = e.report().text();
      if (until_refused_)
        throw refused{};
    }
  }
  // Another stream is held at a gate with the block marked for it. Gates are few:
  // a block that gets none is given back when its c comes.
  void give_in_use(std::uint32_t block) {
    if (!blocks_[block])
      return;
    user& by = idle_user();
    driver::result<driver::gate_handle> held{};
    apart([&] { held = machine_.hold(0, streams::clock_of(by.on.ref()).handle()); });
    if (!held.ok())
      return;
    by.busy = true;
    gates_[block] = {&by, held.value};
    closed_.push_back(block);
    deallocate(by.on, std::exchange(blocks_[block], nullptr));
  }
  void done(std::uint32_t block) {
    if (blocks_[block])
      return deallocate(std::exchange(blocks_[block], nullptr));
    if (!gates_[block].by)
      return;  // opened before, as memory was short
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
    for (std::uint32_t const block : closed_)
      open(block);
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
      if (!u.busy)
        return u;
    }
    return users_.emplace_back();
  }

  static constexpr std::size_t ahead = 16;     // operations
  static constexpr source_location unknown{};  // a trace does not have the program's lines
  bool const until_refused_;
  std::vector<trace::operation> operations_;  // and as many as `ahead` that are none
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

// One device is enough. A simulated one is as large as an H200 unless its size was given;
// it costs what is touched, and nothing is.
machine_choice one_device(replay_settings const& s) {
  machine_choice m = s.machine;
  m.sim.devices = 1;
  if (!s.size_given)
    m.sim.memory = size_t{141} << 30;
  return m;
}

}  // namespace

replay_outcome replay_one(std::string const& path, trace const& t, replay_settings const& s) {
  auto opened = open_machine(one_device(s));
  auto made = std::make_unique<meter>(std::move(opened.machine));
  meter& m = *made;
  options o = options::from_environment();
  if (s.limit)
    o.device_limit = *s.limit;
  if (s.epsilon)
    o.epsilon = *s.epsilon;
  auto const rt = make_runtime(std::move(made), o, opened.why);
  runtime_guard const in(*rt);
  device_guard const on(0);
  replay_outcome out;
  out.epsilon = o.epsilon, out.limit = o.device_limit;
  out.devices = rt->description() + (m.simulated() ? "; driver time modelled" : "");
  out.capacity = get_device_properties(0).total_memory;
  player p(t, *rt, m, s.until_refused);
  auto const operations = static_cast<double>(t.operations.size());
  struct spent {
    double host_ns, driver_ns;
    std::uint64_t moved;
  };
  report::page_extras rounds;
  auto const round = [&]() -> spent {
    rounds.marks.push_back({base::calendar_ns() / 1000, "round " + std::to_string(rounds.marks.size() + 1)});
    auto const before = m.read();
    auto const took = p.play();
    return {static_cast<double>(took.host_ns) / operations, static_cast<double>(took.driver_ns) / operations,
            m.read().moved - before.moved};
  };
  if (!s.snapshot.empty() || !s.page.empty())
    record_memory_history({.events = size_t{1} << 21});
  spent const first = round();
  out.first_ns = first.host_ns, out.first_driver_ns = first.driver_ns;
  std::vector<spent> warm;
  for (int i = 1; i < s.rounds && (!s.until_refused || p.ladder().empty()); ++i)
    warm.push_back(round());
  if (warm.empty())
    warm.push_back(first);  // refused
  auto const median_of = [&](auto spent::*what) {
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
  if (!s.snapshot.empty())
    dump_memory_snapshot(s.snapshot);
  if (!s.page.empty()) {
    auto const all = streams::take_recording(rt->get());
    streams::write_file(
        s.page, report::page(all.devices, all.stacks, path.substr(path.rfind('/') + 1) + '\n' + out.devices, rounds),
        "replay", source_location::current());
  }
  return out;
}

std::string refusal_text(trace const& t) {
  return "The program ran out of memory while it was recorded: " + bytes_text(t.refused) +
         " was refused. It needs more than " + bytes_text(t.needed) +
         ". Record it with a smaller batch or on a larger GPU.";
}

std::string began_text(trace const& t) {
  return "The recording began in the middle of the program: " + bytes_text(t.began_with) +
         " were in use then and count. An earlier peak is not in it. Record from the start to have that, too.";
}

std::string number_or_null(std::optional<std::size_t> n) {
  return n ? std::to_string(*n) : "null";
}

double ratio(trace const& t, replay_outcome const& o) {
  return t.peak_requested
             ? static_cast<double>(o.memory.reserved_bytes.all.peak) / static_cast<double>(t.peak_requested)
             : 0;
}

}  // namespace weir::tool
