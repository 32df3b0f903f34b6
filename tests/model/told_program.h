// Random programs of calls past weir, judged by the checker and by an oracle that keeps every use and searches the
// graph of their order. The checker must report the pairs that the oracle does, and no other.
// Threads: one. The machine is stepped: nothing completes but what the program waits for.
//
// Both report, of each stream, the gravest use that clashes, and of equal ones the last. A use is left out if a later
// one that comes after it would clash no less surely. tests/check/random_test.cpp judges pairs of two exact uses.
#pragma once
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/driver/allocation_observer.h"
#include "runtime/driver/seen_calls.h"
#include "simulator/checker/race_checker.h"
#include "simulator/machine/machine.h"
#include "tests/model/verdict.h"

namespace weir::tests::past_weir {

inline constexpr std::size_t unit = 64, units = 8, block_bytes = unit * units;
inline constexpr int block_count = 4, device_blocks = 3, event_count = 3;  // the last block is of the host
enum stream_name : int { independent, other, blocking, second_blocking, legacy, stream_count };

using report = std::tuple<std::string, int, int>;  // kind, first line, second line
using reports = std::set<report>;

enum class bytes_by : std::uint8_t { exact, pointer, structure };

struct use {
  int block = 0;
  std::size_t from = 0, to = 0;
  bool writes = false;
  bytes_by known = bytes_by::exact;
};

enum class does : std::uint8_t {
  launch,
  copy,
  declared,
  graph,
  record,
  wait,
  stream_done,
  event_done,
  device_done,
  renew,  // the stream ends, and another one takes its part
  host_use,
  end_block,
  begin_block,
};

struct step {
  does is = does::launch;
  int on = 0, event = 0, block = 0;
  bool writes = false;  // of a host use
  struct pointer {
    int block = 0;
    std::size_t at = 0;
    bool writes = false, in_structure = false;
  };
  std::vector<pointer> pointers;
  std::vector<use> exact;
};
using listing = std::vector<step>;

// Every operation with its direct predecessors. A search walks back.
class oracle {
 public:
  reports judge(listing const& all) {
    for (block& b : blocks_)
      b = {};
    for (std::size_t i = 0; i < all.size(); ++i)
      perform(all[i], static_cast<int>(i) + 1);
    return std::move(found_);
  }

 private:
  static constexpr int none = -1;
  struct kept {
    use what;
    int node = none, stream = 0, line = 0;
  };
  struct block {
    bool live = true;
    int freed = 0;
    std::vector<kept> uses{};
  };

  int node(std::vector<int> after) {
    after_.push_back(std::move(after));
    return static_cast<int>(after_.size()) - 1;
  }
  bool comes_before(int first, int later) const {
    std::vector<bool> seen(after_.size());
    std::vector<int> to_do{later};
    while (!to_do.empty()) {
      int const at = to_do.back();
      to_do.pop_back();
      if (at == none || seen[static_cast<std::size_t>(at)])
        continue;
      seen[static_cast<std::size_t>(at)] = true;
      if (at == first)
        return true;
      for (int const b : after_[static_cast<std::size_t>(at)])
        to_do.push_back(b);
    }
    return false;
  }
  std::vector<int> what_comes_before(int stream) const {
    std::vector<int> all{last_[stream], host_};
    if (is_blocking(stream))
      all.push_back(last_[legacy]);
    if (stream != legacy)
      return all;
    all.push_back(last_[blocking]);
    all.push_back(last_[second_blocking]);
    all.insert(all.end(), ended_blocking_.begin(), ended_blocking_.end());
    return all;
  }
  static bool is_blocking(int stream) { return stream == blocking || stream == second_blocking; }
  int life_of(int stream) const { return stream + stream_count * lives_[stream]; }
  void perform(step const& s, int line) {
    switch (s.is) {
      case does::record: event_[s.event] = last_[s.on] = node(what_comes_before(s.on)); break;
      case does::wait: {
        auto after = what_comes_before(s.on);
        after.push_back(event_[s.event]);
        counted_[s.on] = last_[s.on] = node(std::move(after));
        break;
      }
      case does::stream_done: host_ = node({host_, last_[s.on]}); break;
      case does::event_done: host_ = node({host_, event_[s.event]}); break;
      case does::device_done: {
        std::vector<int> all{host_};
        all.insert(all.end(), std::begin(last_), std::end(last_));
        all.insert(all.end(), ended_.begin(), ended_.end());
        host_ = node(std::move(all));
        break;
      }
      case does::renew:
        ++lives_[s.on];
        ended_.push_back(last_[s.on]);
        if (is_blocking(s.on))
          ended_blocking_.push_back(last_[s.on]);
        counted_[s.on] = last_[s.on] = none;
        break;
      case does::host_use: {
        int const now = node({host_});
        clash({s.exact[0], now, none, line}, "host too early");
        break;
      }
      case does::end_block: end(s, line); break;
      case does::begin_block:
        blocks_[s.block] = {};
        if (counted_[independent] != none)  // an allocation is a write that comes after what its stream has
          blocks_[s.block].uses.push_back(
              {{s.block, 0, block_bytes, true, bytes_by::exact}, counted_[independent], independent, line});
        break;
      default: work(s, line);
    }
  }
  void work(step const& s, int line) {
    int const now = counted_[s.on] = last_[s.on] = node(what_comes_before(s.on));
    std::vector<use> uses = s.exact;
    for (std::size_t i = 0; i < s.pointers.size(); ++i)
      uses.push_back(reach_of(s.pointers, i));
    for (use const& u : uses) {
      if (blocks_[u.block].live)
        clash({u, now, life_of(s.on), line}, "race");
      else if (u.known == bytes_by::pointer)
        found_.insert({"use after free", blocks_[u.block].freed, line});
    }
    for (use const& u : uses)
      if (blocks_[u.block].live)
        blocks_[u.block].uses.push_back({u, now, life_of(s.on), line});
  }
  // To the end of the block, or to the next pointer of the launch; a direct one looks at direct ones alone.
  static use reach_of(std::vector<step::pointer> const& all, std::size_t i) {
    step::pointer const& p = all[i];
    std::size_t to = block_bytes;
    for (step::pointer const& q : all)
      if (q.block == p.block && q.at > p.at && (p.in_structure || !q.in_structure))
        to = std::min(to, q.at);
    return {p.block, p.at, to, p.writes, p.in_structure ? bytes_by::structure : bytes_by::pointer};
  }
  // 0: no clash, 1: a possible one, 2: a certain one.
  static int gravity(use const& a, use const& b) {
    if (a.from >= b.to || b.from >= a.to || (!a.writes && !b.writes))
      return 0;
    if (a.known == bytes_by::exact && b.known == bytes_by::exact)
      return 0;
    auto const holds = [](use const& exact, use const& p) {
      return exact.known == bytes_by::exact && p.known == bytes_by::pointer && p.from >= exact.from && p.to <= exact.to;
    };
    return holds(a, b) || holds(b, a) ? 2 : 1;
  }
  static bool stands_for(use const& later, use const& old) {
    if (later.from > old.from || later.to < old.to || later.writes < old.writes)
      return false;
    if (later.known == bytes_by::pointer)
      return old.known == bytes_by::structure ||
             (old.known == bytes_by::pointer && old.from == later.from && old.to == later.to);
    return old.known == later.known;
  }
  bool is_replaced(std::vector<kept> const& all, std::size_t i) const {
    for (std::size_t k = i + 1; k < all.size(); ++k)
      if (stands_for(all[k].what, all[i].what) && comes_before(all[i].node, all[k].node))
        return true;
    return false;
  }
  static std::set<int> streams_of(std::vector<kept> const& all) {
    std::set<int> streams;
    for (kept const& k : all)
      streams.insert(k.stream);
    return streams;
  }
  void clash(kept const& now, char const* certain) {
    auto const& all = blocks_[now.what.block].uses;
    for (int const s : streams_of(all)) {
      kept const* worst = nullptr;
      int how = 0;
      for (std::size_t i = 0; i < all.size(); ++i) {
        kept const& old = all[i];
        int const g = gravity(old.what, now.what);
        if (old.stream != s || s == now.stream || g == 0 || comes_before(old.node, now.node) || is_replaced(all, i))
          continue;
        if (g >= how) {
          worst = &old;
          how = g;
        }
      }
      if (worst)
        found_.insert({how == 2 ? certain : "possible race", worst->line, now.line});
    }
  }
  void end(step const& s, int line) {
    block& b = blocks_[s.block];
    int const now = node(what_comes_before(independent));  // the block's own stream
    for (int const on : streams_of(b.uses)) {
      kept const* worst = nullptr;
      for (std::size_t i = 0; i < b.uses.size(); ++i) {
        kept const& old = b.uses[i];
        bool const is_vague = old.what.known == bytes_by::structure;
        if (old.stream != on || on == independent || old.what.known == bytes_by::exact || comes_before(old.node, now) ||
            is_replaced(b.uses, i))
          continue;
        if (!worst || !is_vague || worst->what.known == bytes_by::structure)
          worst = &old;
      }
      if (worst)
        found_.insert({worst->what.known == bytes_by::structure ? "possible race" : "freed in use", worst->line, line});
    }
    b.live = false;
    b.freed = line;
    b.uses.clear();
  }

  std::vector<std::vector<int>> after_;
  int host_ = none;
  int last_[stream_count] = {none, none, none, none, none};
  int counted_[stream_count] = {none, none, none, none, none};  // the last one that is work or a wait
  int lives_[stream_count] = {};
  std::vector<int> ended_, ended_blocking_;  // the last nodes of streams that ended
  int event_[event_count] = {none, none, none};
  block blocks_[block_count];
  reports found_;
};

class author {
 public:
  explicit author(std::uint64_t seed) : draw_(seed) {}
  listing write() {
    listing all;
    for (int i = 0, n = 20 + below(50); i < n; ++i)
      all.push_back(next());
    return all;
  }

 private:
  int below(int n) { return static_cast<int>(draw_() % static_cast<unsigned>(n)); }
  std::size_t place(std::size_t n) { return static_cast<std::size_t>(below(static_cast<int>(n))); }
  use exact_use(bool writes) {
    int b = below(block_count);
    while (!live_[b])
      b = below(block_count);
    std::size_t const from = place(units), to = from + 1 + place(units - from);
    return {b, from * unit, to * unit, writes, bytes_by::exact};
  }
  void draw_pointers(step& s) {
    for (int i = 0, n = 1 + below(3); i < n; ++i) {
      step::pointer p{below(block_count), below(3) ? 0 : place(units) * unit, below(3) != 0, below(3) == 0};
      bool const is_there =
          std::ranges::any_of(s.pointers, [&](step::pointer const& q) { return q.block == p.block && q.at == p.at; });
      if (!is_there)
        s.pointers.push_back(p);
    }
  }
  step next() {
    step s;
    s.on = below(stream_count);
    s.event = below(event_count);
    int const draw = below(21);
    if (draw < 7) {
      draw_pointers(s);
    } else if (draw < 9) {
      s.is = draw == 7 ? does::copy : does::declared;
      s.exact = {exact_use(false), exact_use(true)};
      if (s.exact[0].block == s.exact[1].block)
        s.exact.pop_back();
      else if (s.is == does::copy)
        s.exact[0].to = s.exact[0].from + unit, s.exact[1].to = s.exact[1].from + unit;
      if (s.exact.size() == 1)
        s.is = does::declared;
    } else if (draw == 9) {
      s.is = does::graph;
      draw_pointers(s);
    } else if (draw < 12) {
      s.is = does::record;
    } else if (draw < 15) {
      s.is = does::wait;
    } else if (draw == 15) {
      constexpr does seen[] = {does::stream_done, does::event_done, does::device_done};
      s.is = seen[below(3)];
    } else if (draw == 20) {
      s.is = does::renew;
      s.on = other + below(3);
    } else if (draw == 16) {
      s.is = does::host_use;
      s.exact = {{block_count - 1, place(units) * unit, block_bytes, below(2) != 0, bytes_by::exact}};
    } else {
      s.block = below(device_blocks);
      bool& is_live = live_[s.block];
      s.is = is_live ? does::end_block : does::begin_block;
      is_live = !is_live;
    }
    return s;
  }
  std::mt19937_64 draw_;
  bool live_[block_count] = {true, true, true, true};
};

// The program as a watcher tells it: step i is at line i + 1.
class performed {
 public:
  explicit performed(std::uint64_t seed) {
    auto made =
        driver::sim::make({.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::stepped, .seed = seed});
    auto checked = driver::check::wrap(std::move(made.machine));
    machine_ = std::move(checked.machine);
    judge_ = checked.control;
    calls_ = judge_->calls();
    (void)machine_->open(0);
    streams_[independent] = stream_of(independent);
    streams_[other] = stream_of(other);
    streams_[blocking] = stream_of(blocking);
    streams_[second_blocking] = stream_of(second_blocking);
    streams_[legacy] = driver::stream_handle::legacy;
    for (int b = 0; b < device_blocks; ++b) {
      at_[b] = machine_->reserve(page, page).value;
      begin(b, 0);
    }
    at_[device_blocks] = reinterpret_cast<driver::address>(host_);
    calls_->allocated(-1, driver::check::seen_calls::no_stream, at_[device_blocks], block_bytes, {});
  }
  ~performed() {
    for (int b = 0; b < device_blocks; ++b)
      (void)machine_->unreserve(at_[b], page);
    for (int const s : {independent, other, blocking, second_blocking})
      (void)machine_->destroy_stream(0, streams_[s]);
  }
  performed(performed const&) = delete;

  reports run(listing const& all) {
    for (std::size_t i = 0; i < all.size(); ++i)
      perform(all[i], static_cast<int>(i) + 1);
    reports found;
    for (driver::check::finding const& f : judge_->findings()) {
      auto const first = static_cast<int>(f.first.line()), second = static_cast<int>(f.second.line());
      if (!is_exact(all, first) || !is_exact(all, second))
        found.insert({std::string(name_of(f.what)), first, second});
    }
    return found;
  }

 private:
  static constexpr std::size_t page = 2_MiB;

  // As the host's uses, and the begin and the end of a block.
  static bool is_exact(listing const& all, int line) {
    if (line == 0)
      return true;
    does const is = all[static_cast<std::size_t>(line - 1)].is;
    return is != does::launch && is != does::graph;
  }
  driver::stream_handle stream_of(int stream) {
    bool const is_blocking = stream == blocking || stream == second_blocking;
    auto const kind = is_blocking ? driver::stream_kind::blocking : driver::stream_kind::independent;
    return machine_->create_stream(0, kind, 0).value;
  }
  // Others come and go, so that the checker looks for streams to forget.
  void renew(int stream) {
    constexpr std::uintptr_t idle = 0x500000, idle_count = 80;
    (void)machine_->destroy_stream(0, streams_[stream]);
    for (std::uintptr_t i = 0; i < idle_count; ++i)
      calls_->stream_made(0, idle + 16 * i, i % 2);
    for (std::uintptr_t i = 0; i < idle_count; ++i)
      calls_->stream_gone(0, idle + 16 * i);
    streams_[stream] = stream_of(stream);
  }
  static source_location here(int line) { return {"program.cpp", "", static_cast<unsigned>(line)}; }
  static std::uintptr_t cuda(driver::stream_handle s) { return static_cast<std::uintptr_t>(s); }
  void begin(int block, int line) {
    machine_->watching()->allocated({0, streams_[independent]}, at_[block], block_bytes, here(line));
  }
  void perform(step const& s, int line) {
    if (s.is <= does::graph)
      work(s, line);
    else if (s.is <= does::device_done)
      order(s);
    else if (s.is == does::renew)
      renew(s.on);
    else if (s.is == does::host_use)
      driver::check::host_uses(host_ + s.exact[0].from, block_bytes - s.exact[0].from,
                               s.exact[0].writes ? driver::check::host_use::writes : driver::check::host_use::reads,
                               "host", here(line));
    else if (s.is == does::begin_block)
      begin(s.block, line);
    else
      end(s.block, line);
  }
  void end(int block, int line) {
    driver::allocation_observer::user const home{0, streams_[independent]};
    machine_->watching()->freed(at_[block], block_bytes, {&home, 1}, here(line));
  }
  void work(step const& s, int line) {
    std::uintptr_t const on = cuda(streams_[s.on]);
    std::vector<driver::check::seen_pointer> given;
    for (step::pointer const& p : s.pointers)
      given.push_back({at_[p.block] + p.at, p.writes, p.in_structure});
    if (s.is == does::launch) {
      calls_->launched(0, on, "scale", given, {nullptr, here(line)});
    } else if (s.is == does::graph) {
      auto const executable = 0x100000 + static_cast<std::uintptr_t>(line);
      calls_->graph_made(executable, {{"scale", given, {}, {}}});
      calls_->graph_launched(0, on, executable, {nullptr, here(line)});
    } else if (s.is == does::copy) {
      calls_->copied(0, on, place(s.exact[1]), place(s.exact[0]), unit, false, {nullptr, here(line)});
    } else {
      std::vector<driver::touch> touches;
      for (use const& u : s.exact)
        touches.push_back({place(u), u.to - u.from, u.writes});
      base::call_site const in(true, "launch", here(line));
      machine_->touched(0, streams_[s.on], touches);
    }
  }
  void order(step const& s) {
    std::uintptr_t const on = cuda(streams_[s.on]), event = 0x1000 + static_cast<std::uintptr_t>(s.event) * 16;
    switch (s.is) {
      case does::record: calls_->recorded(0, on, event); break;
      case does::wait: calls_->waited(0, on, event); break;
      case does::stream_done: calls_->stream_done(0, on); break;
      case does::event_done: calls_->event_done(event); break;
      default: calls_->device_done(0);
    }
  }
  driver::address place(use const& u) const { return at_[u.block] + u.from; }

  std::unique_ptr<driver::driver> machine_;
  driver::check::test_control* judge_ = nullptr;
  driver::check::seen_calls* calls_ = nullptr;
  driver::stream_handle streams_[stream_count] = {};
  driver::address at_[block_count] = {};
  alignas(64) char host_[block_bytes] = {};
};

// The first report that one of the two lacks; empty: none.
inline std::string missing(reports const& from, reports const& in) {
  for (report const& r : in) {
    auto const& [what, first, second] = r;
    if (!from.contains(r))
      return what + " of lines " + std::to_string(first) + " and " + std::to_string(second);
  }
  return {};
}

}  // namespace weir::tests::past_weir

namespace weir::tests {

class told_program {
 public:
  explicit told_program(std::uint64_t seed) : seed_(seed) {}
  verdict run() {
    using namespace past_weir;
    listing const all = author(seed_).write();
    wanted_ = oracle().judge(all);
    reports const found = performed(seed_).run(all);
    verdict wrong;
    if (auto const missed = missing(found, wanted_); !missed.empty())
      wrong.note(check::race, "the checker misses: " + missed);
    if (auto const made_up = missing(wanted_, found); !made_up.empty())
      wrong.note(check::race, "the checker makes up: " + made_up);
    return wrong;
  }
  // What the program does wrong.
  std::set<std::string> kinds() const {
    std::set<std::string> all;
    for (auto const& [what, first, second] : wanted_)
      all.insert(what);
    return all;
  }

 private:
  std::uint64_t const seed_;
  past_weir::reports wanted_;
};

}  // namespace weir::tests
