// The checker judges random programs, and so does an oracle that keeps every operation and searches the graph
// of their order. The checker must miss no race and invent none, with the same reports for every seed of the
// machine. WEIR_TEST_BASE_SEED is the first program. Each program runs on WEIR_TEST_SEEDS/30 machines, at
// least 5 (with 6000, on 200); WEIR_TEST_SEED runs one program.
// Threads: one.
#include <bitset>
#include <random>

#include "tests/check/programs.h"

namespace weir::check_tests {
namespace {

constexpr std::size_t grain = 64, grains = 16, block_count = 4;  // bytes; a range consists of whole grains
constexpr int line_count = 5;  // streams: three of gpu:0, its default stream, one of gpu:1
constexpr int programs = 24;   // of each kind

struct touched {
  int block = 0;
  std::size_t from = 0, to = 0;  // grains
  bool writes = false;
};
struct operation {
  enum class what : std::uint8_t {
    launch,
    copy,
    set,
    wait_stream,
    record,
    wait_event,
    synchronize_stream,
    synchronize_event
  } is = what::launch;
  int on = 0;     // its stream; unused for synchronize_event
  int other = 0;  // stream or event
  std::vector<touched> uses;
};
using listing = std::vector<operation>;

bool of_gpu_1(int line) {
  return line == line_count - 1;
}

// The order of operations: an edge from each operation to its direct predecessors. A query walks back.
class oracle {
 public:
  // Appends an operation. Returns: its number.
  int add(operation const& o) {
    using enum operation::what;
    int const me = static_cast<int>(before_.size());
    std::vector<int> edges;
    auto const edge = [&](int from) {
      if (from >= 0)
        edges.push_back(from);
    };
    edge(host_);  // work that the host enqueues follows what it saw complete
    switch (o.is) {
      case synchronize_stream: edge(last_[o.on]); break;
      case synchronize_event: edge(event_[o.other]); break;
      case wait_stream: edge(last_[o.on]), edge(last_[o.other]); break;
      case wait_event: edge(last_[o.on]), edge(event_[o.other]); break;
      default: edge(last_[o.on]);
    }
    before_.push_back(std::move(edges));
    uses_.push_back(o.uses);
    if (o.is == synchronize_stream || o.is == synchronize_event)
      host_ = me;
    else if (o.is == record)
      event_[o.other] = last_[o.on];
    else
      last_[o.on] = me;
    return me;
  }
  bool comes_before(int first, int later) const {
    std::vector<bool> seen(before_.size());
    std::vector<int> to_do{later};
    while (!to_do.empty()) {
      int const at = to_do.back();
      to_do.pop_back();
      if (at == first)
        return true;
      for (int const b : before_[static_cast<std::size_t>(at)]) {
        if (!seen[static_cast<std::size_t>(b)])
          seen[static_cast<std::size_t>(b)] = true, to_do.push_back(b);
      }
    }
    return false;
  }
  static bool conflict(touched const& a, touched const& b) {
    return a.block == b.block && (a.writes || b.writes) && a.from < b.to && b.from < a.to;
  }
  bool race(int first, int later) const {
    bool meet = false;
    for (auto const& a : uses_[static_cast<std::size_t>(first)]) {
      for (auto const& b : uses_[static_cast<std::size_t>(later)])
        meet |= conflict(a, b);
    }
    return meet && !comes_before(first, later);
  }
  // For each grain, the first operation that races. Up to there a checker knows everything about it.
  std::set<int> first_to_race() const {
    std::set<int> all;
    for (int block = 0; block < static_cast<int>(block_count); ++block) {
      for (std::size_t g = 0; g < grains; ++g) {
        if (int const found = first_to_race(block, g); found >= 0)
          all.insert(found);
      }
    }
    return all;
  }

 private:
  int first_to_race(int block, std::size_t g) const {
    struct use {
      int of;
      bool writes;
    };
    std::vector<use> so_far;
    for (int i = 0; i < static_cast<int>(uses_.size()); ++i) {
      for (touched const& t : uses_[static_cast<std::size_t>(i)]) {
        if (t.block != block || g < t.from || g >= t.to)
          continue;
        for (use const& u : so_far) {
          if (u.of != i && (u.writes || t.writes) && !comes_before(u.of, i))
            return i;
        }
        so_far.push_back({i, t.writes});
      }
    }
    return -1;
  }
  std::vector<std::vector<int>> before_;
  std::vector<std::vector<touched>> uses_;
  int host_ = -1;
  std::array<int, line_count> last_{-1, -1, -1, -1, -1};
  std::array<int, 3> event_{-1, -1, -1};
};

class author {
 public:
  author(std::uint64_t seed, bool careful) : draw_(seed * 2 + careful), careful_(careful) {}
  listing write() {
    for (int i = 0, n = 20 + below(40); i < n; ++i)
      next();
    return std::move(all_);
  }

 private:
  int below(int n) { return static_cast<int>(draw_() % static_cast<unsigned>(n)); }
  // Blocks 0 and 1 belong to gpu:0, block 2 to gpu:1. Block 3 is pinned: every stream may use it.
  touched some_use(int line, bool writes) {
    int const block = of_gpu_1(line) ? 2 + below(2) : below(3) == 2 ? 3 : below(2);
    std::size_t const from = static_cast<std::size_t>(below(grains));
    return {block, from, from + 1 + static_cast<std::size_t>(below(static_cast<int>(grains - from))), writes};
  }
  void next() {
    using enum operation::what;
    operation o;
    o.on = below(line_count);
    o.other = below(3);
    switch (below(careful_ ? 12 : 16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        for (int i = 0, n = 1 + below(3); i < n; ++i)
          o.uses.push_back(some_use(o.on, below(2) != 0));
        break;
      case 4:
        o.is = copy, o.on = below(line_count - 1);
        o.uses = {{0, 0, 4, false}, {1, 0, 4, true}};
        for (touched& t : o.uses)
          t.from += static_cast<std::size_t>(below(12)), t.to += t.from;
        if (below(2))
          std::swap(o.uses[0].block, o.uses[1].block);
        break;
      case 5: {
        o.is = set, o.on = below(line_count - 1);
        touched t = some_use(o.on, true);
        t.block = below(2);
        o.uses = {t};
        break;
      }
      case 6: o.is = wait_stream, o.other = below(line_count); break;
      case 7:
      case 12: o.is = record, o.other = of_gpu_1(o.on) ? 2 : below(2); break;
      case 8:
      case 13: o.is = wait_event; break;
      case 9:
        o.is = below(4) ? wait_stream : synchronize_stream;
        if (o.is == wait_stream)
          o.other = below(line_count);
        break;
      case 10:
        o.is = below(4) ? record : synchronize_event;
        if (o.is == record)
          o.other = of_gpu_1(o.on) ? 2 : below(2);
        break;
      default: o.uses = {some_use(o.on, below(3) == 0)};
    }
    if (o.is == wait_stream && o.other == o.on)
      return;
    if (careful_)
      wait_for_all(o);
    add(std::move(o));
  }
  void add(operation o) {
    lines_.push_back(o.is == operation::what::synchronize_event ? -1 : o.on);
    known_.add(o);
    all_.push_back(std::move(o));
  }
  // A careful program waits for each stream whose work conflicts with `o`.
  void wait_for_all(operation const& o) {
    for (int i = 0; i < static_cast<int>(all_.size()); ++i) {
      oracle then = known_;
      int const me = then.add(o);
      if (!then.race(i, me))
        continue;
      operation w;
      w.is = operation::what::wait_stream;
      w.on = o.on;
      w.other = lines_[static_cast<std::size_t>(i)];
      add(w);
    }
  }

  std::mt19937_64 draw_;
  bool careful_;
  listing all_;
  std::vector<int> lines_;
  oracle known_;
};

// The program as weir's user would write it: operation i is at line i + 1 of program.cpp.
void perform(listing const& all) {
  using enum operation::what;
  stream a, b, c, far(device(1));
  stream_ref const lines[line_count] = {a, b, c, default_stream(), far};
  buffer blocks[block_count] = {buffer(grain * grains), buffer(grain * grains),
                                buffer(grain * grains, {.on = device(1)}), pinned(grain * grains)};
  event events[3];
  auto const place = [&](touched const& t) { return blocks[t.block].data<char>() + t.from * grain; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    operation const& o = all[i];
    stream_ref const on = lines[o.on];
    source_location const at{"program.cpp", "", static_cast<unsigned>(i + 1)};
    switch (o.is) {
      case launch: {
        std::vector<memory_use> declared;
        for (touched const& t : o.uses)
          declared.push_back({place(t), t.writes ? access_mode::write : access_mode::read, (t.to - t.from) * grain});
        weir::launch(
            on, declared, on_gpu, [] {}, at);
        break;
      }
      case copy: weir::copy(on, place(o.uses[1]), place(o.uses[0]), 4 * grain, non_blocking, at); break;
      case set: {
        stream_guard const here_now{on};
        weir::fill(place(o.uses[0]), std::byte{1}, (o.uses[0].to - o.uses[0].from) * grain, at);
        break;
      }
      case wait_stream: on.wait(lines[o.other], at); break;
      case record: events[o.other].record(on, at); break;
      case wait_event: on.wait(events[o.other], at); break;
      case synchronize_stream: on.synchronize(at); break;
      case synchronize_event: events[o.other].synchronize(at); break;
    }
  }
  for (int d = 0; d < 2; ++d)
    synchronize(device(d));
}

std::uint64_t number(char const* name, std::uint64_t otherwise) {
  char const* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Returns: the number of reports.
std::size_t judge(listing const& all, std::vector<race_report> const& found) {
  oracle truth;
  for (operation const& o : all)
    (void)truth.add(o);
  std::set<int> reported;
  for (race_report const& r : found) {
    int const first = static_cast<int>(r.first.line()) - 1, later = static_cast<int>(r.second.line()) - 1;
    EXPECT_EQ(r.kind, "race") << r.text;
    EXPECT_TRUE(first >= 0 && first < later && truth.race(first, later)) << "made up: " << r.text;
    reported.insert(later);
  }
  for (int const i : truth.first_to_race())
    EXPECT_TRUE(reported.count(i)) << "missed: a race of program.cpp:" << i + 1 << "\n" << texts(found);
  return found.size();
}

std::size_t reports_of(std::uint64_t program, bool careful) {
  SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(program));
  auto const all = author(program, careful).write();
  simulated like{.devices = 2, .memory = 16_MiB, .schedule = simulated::scheduling::stepped, .seed = 1};
  auto const once = found_in(like, [&] { perform(all); });
  std::size_t const n = judge(all, once);
  like.schedule = simulated::scheduling::seeded;
  for (std::uint64_t seed = 1, end = std::max<std::uint64_t>(5, number("WEIR_TEST_SEEDS", 600) / 30); seed <= end;
       ++seed) {
    like.seed = seed + program;
    EXPECT_EQ(texts(found_in(like, [&] { perform(all); })), texts(once)) << "machine " << like.seed;
    if (::testing::Test::HasFailure())
      break;
  }
  return n;
}

void many(bool careful, std::size_t& with_reports) {
  std::uint64_t const first = number("WEIR_TEST_SEED", number("WEIR_TEST_BASE_SEED", 1)),
                      last = first + (std::getenv("WEIR_TEST_SEED") ? 0 : programs - 1);
  for (std::uint64_t program = first; program <= last && !::testing::Test::HasFailure(); ++program)
    with_reports += reports_of(program, careful) != 0;
}

TEST(random_programs, races_agree_with_an_oracle_for_every_seed) {
  std::size_t racy = 0;
  many(false, racy);
  EXPECT_TRUE(2 * racy >= programs || std::getenv("WEIR_TEST_SEED")) << "programs without races prove little";
}

TEST(random_programs, careful_ones_have_none_under_any_seed) {
  std::size_t racy = 0;
  many(true, racy);
  EXPECT_EQ(racy, 0u);
}

}  // namespace
}  // namespace weir::check_tests
