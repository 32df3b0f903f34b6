// The HTML page shows its recording and reacts to wheel, drag, click and keys. Needs Chromium on the PATH,
// else skipped. WEIR_TEST_EVENTS=1000000 reports the cost of a million events.
// Threads: one.
#include "runtime/report/snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <sstream>

#include "tests/support/browser.h"
#include "tests/support/seeds.h"

namespace weir::report {
namespace {

constexpr source_location lines[] = {
    {"model/attention.cpp", "forward", 41}, {"model/attention.cpp", "backward", 97},
    {"model/mlp.cpp", "forward", 23},       {"train/optimizer.cpp", "step", 12},
    {"data/loader.cpp", "next<batch>", 64}, {"model/embedding.cpp", "lookup & scale", 8},
    {"tensor/ops.cpp", "softmax", 300}};

// A random recording, and live, pending and reserved bytes after each of its entries.
struct made_up {
  explicit made_up(std::uint64_t seed, std::size_t entries) : random(seed) {
    snapshot.device = 1;
    for (std::uint64_t s = 0; s < 3; ++s)
      map(arena(s), 2 << 20, s);
    while (snapshot.trace.size() < entries)
      step();
    finish();
  }
  std::mt19937_64 random;
  device_snapshot snapshot;
  std::vector<double> live{}, pending{}, reserved{};

 private:
  struct block {
    std::uintptr_t at;
    std::size_t bytes;
    std::uint64_t stream;
    source_location where;
    bool pending = false;
  };
  std::map<std::uintptr_t, block> blocks;
  std::size_t ends[3] = {}, mapped[3] = {};
  double now_live = 0, now_pending = 0, now_reserved = 0;
  std::int64_t us = 1'700'000'000'000'000;
  std::multimap<std::size_t, std::uintptr_t> holes[3];

  static std::uintptr_t arena(std::uint64_t stream) { return 0x7f00'0000'0000 + stream * (std::uintptr_t{1} << 38); }
  void add(char const* action, std::uintptr_t at, std::size_t bytes, std::uint64_t stream,
           source_location where = {nullptr, nullptr, 0}, std::uint64_t user = 0) {
    us += static_cast<std::int64_t>(random() % 7 == 0 ? random() % 5 : 0);
    snapshot.trace.push_back({action, at, bytes, stream, us, where, 0, user});
    live.push_back(now_live), pending.push_back(now_pending), reserved.push_back(now_reserved);
  }
  void map(std::uintptr_t at, std::size_t bytes, std::uint64_t stream) {
    now_reserved += static_cast<double>(bytes), mapped[stream] += bytes;
    add("segment_map", at, bytes, stream);
  }
  void take() {
    auto const wave = static_cast<double>(snapshot.trace.size() % 20000) / 20000;
    std::size_t const kind = random() % 16;
    std::size_t const bytes = kind < 9 ? 512 << random() % 7
                              : kind < 15
                                  ? (std::size_t{1} << 18) * (1 + random() % 9)
                                  : (std::size_t{1} << 21) * (1 + random() % static_cast<std::size_t>(1 + 30 * wave));
    std::uint64_t const stream = random() % 9 == 0 ? 1 + random() % 2 : 0;
    std::size_t const line = kind < 9 ? random() % 3 : kind < 15 ? 2 + random() % 4 : 5 + random() % 2;
    std::uintptr_t at = arena(stream) + ends[stream];
    if (auto const hole = holes[stream].lower_bound(bytes); hole != holes[stream].end()) {
      at = hole->second;
      std::size_t const rest = hole->first - bytes;
      holes[stream].erase(hole);
      if (rest)
        holes[stream].emplace(rest, at + bytes);
    } else {
      std::size_t const more =
          (ends[stream] + bytes > mapped[stream] ? ends[stream] + bytes - mapped[stream] + (2 << 20) - 1 : 0) &
          ~std::size_t{(2 << 20) - 1};
      if (more)
        map(arena(stream) + mapped[stream], more, stream);
      ends[stream] += bytes;
    }
    blocks[at] = {at, bytes, stream, lines[line]};
    now_live += static_cast<double>(bytes);
    add("alloc", at, bytes, stream, lines[line]);
  }
  void step() {
    if (snapshot.trace.size() % 5003 == 5002)
      return add("oom", 0, std::size_t{1} << 34, 0, lines[3]);
    if (blocks.size() < 60 || random() % 100 < (snapshot.trace.size() % 20000 < 12000 ? 54 : 46))
      return take();
    auto at = blocks.lower_bound(arena(0) + random() % (ends[0] + 1));
    if (at == blocks.end())
      at = blocks.begin();
    block& b = at->second;
    if (b.pending) {
      now_pending -= static_cast<double>(b.bytes);
      add("free_completed", b.at, b.bytes, b.stream);
    } else {
      now_live -= static_cast<double>(b.bytes);
      bool const used = random() % 6 == 0;
      if (used)
        now_pending += static_cast<double>(b.bytes), b.pending = true;
      add("free_requested", b.at, b.bytes, b.stream, lines[random() % 7], used ? (b.stream + 1) % 3 : 0);
      if (used)
        return;
      add("free_completed", b.at, b.bytes, b.stream);
    }
    holes[b.stream].emplace(b.bytes, b.at);
    blocks.erase(at);
  }
  void finish() {
    for (std::uint64_t s = 0; s < 3; ++s) {
      memory_segment& g = snapshot.segments.emplace_back(memory_segment{arena(s), mapped[s], s, false, {}});
      std::uintptr_t end = g.address;
      auto const free_up_to = [&](std::uintptr_t to) {
        if (to > end)
          g.blocks.push_back({end, to - end, 0, block_state::inactive, {nullptr, nullptr, 0}});
      };
      for (auto const& [at, b] : blocks) {
        if (b.stream != s)
          continue;
        free_up_to(at);
        g.blocks.push_back({at, b.bytes, b.pending ? 0 : b.bytes,
                            b.pending ? block_state::active_pending_free : block_state::active_allocated, b.where});
        end = at + b.bytes;
      }
      free_up_to(g.address + g.bytes);
    }
  }
};

// The second part of the recording only. The page derives the earlier state from the final one.
device_snapshot later_part(made_up const& p, std::size_t from) {
  device_snapshot d = p.snapshot;
  d.trace.erase(d.trace.begin(), d.trace.begin() + static_cast<std::ptrdiff_t>(from));
  return d;
}

// The trace's entries as the page counts them: a free that completes at once is one event.
std::string expected(made_up const& p, std::size_t from) {
  std::ostringstream out;
  out << "[";
  auto const& t = p.snapshot.trace;
  for (std::size_t i = from, n = 0; i < t.size(); ++i, ++n) {
    std::int64_t const us = t[i].us - t[from].us;
    if (i + 1 < t.size() && t[i].action == "free_requested" && t[i + 1].action == "free_completed" &&
        t[i].at == t[i + 1].at)
      ++i;
    if (n % 97 && i + 1 < t.size())
      continue;
    out << (n ? "," : "") << '[' << n << ',' << std::uint64_t(p.live[i]) << ',' << std::uint64_t(p.pending[i]) << ','
        << std::uint64_t(p.reserved[i]) << ',' << us << ']';
  }
  out << "]";
  return out.str();
}

// Each check computes its value in another way than the page.
constexpr char const* checks = R"js(
const check = (what, yes) => { if (!yes) failures.push(what); };
const near = (a, b) => Math.abs(a - b) <= 1;
const r = recording, at = id => document.getElementById(id);
for (const [n, live, pending, reserved, us] of EXPECTED) {
  const i = r.before + n;
  check("live after " + n + ": " + r.live[i] + " not " + live, near(r.live[i], live));
  check("pending after " + n + ": " + r.pending[i] + " not " + pending, near(r.pending[i], pending));
  check("reserved after " + n + ": " + r.reserved[i] + " not " + reserved, near(r.reserved[i], reserved));
  check("time of " + n, near(r.us[i], us));
}
check("the last event", r.events - r.before - 1 === EXPECTED[EXPECTED.length - 1][0]);
let seed = 7;
const random = n => (seed = seed * 48271 % 2147483647) % n;
for (const by of ["size", "line", "stream"]) {
  restack(by);
  for (let k = 0; k < 200; ++k) {
    const i = random(r.events), sum = stack.at(i).reduce((a, b) => a + b, 0);
    check("sum by " + by + " at " + i + ": " + sum + " not " + r.live[i], near(sum, r.live[i]));
  }
  check("no more than 12 of " + by, stack.names.length <= 12 && stack.names.length > 1);
}
for (let k = 0; k < 200; ++k) {
  const from = random(r.events), to = from + 1 + random(Math.min(3000, r.events - from));
  let most = -1;
  for (let i = from; i < to; ++i) most = Math.max(most, r.live[i] + r.pending[i]);
  const found = chart.peaks.in(from, to);
  check("peak in " + from + " to " + to, found >= from && found < to && near(r.live[found] + r.pending[found], most));
}
for (let k = 0; k < 20; ++k) {
  const i = r.before + random(r.events - r.before), all = r.layout(i);
  const sum = key => all.reduce((a, s) => a + s[key], 0);
  check("layout at " + i, near(sum("bytes"), r.reserved[i]) && near(sum("live"), r.live[i]) && near(sum("pending"), r.pending[i]));
  check("blocks side by side at " + i, all.every(s => s.blocks.every((b, n) => r.at[b] >= (n ? r.at[s.blocks[n - 1]] + r.bytes[s.blocks[n - 1]] : s.at))));
}
const send = (id, type, x, y, more = {}) => {
  const box = at(id).getBoundingClientRect();
  const event = type === "wheel" ? new WheelEvent(type, {clientX: box.x + x, clientY: box.y + y, bubbles: true, cancelable: true, ...more})
                                 : new PointerEvent(type, {clientX: box.x + x, clientY: box.y + y, bubbles: true, pointerId: 1, ...more});
  at(id).setPointerCapture = () => {};
  at(id).dispatchEvent(event);
};
draw();
const colours = id => { const c = at(id), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, s = new Set(); for (let i = 0; i < d.length; i += 4) s.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return s.size; };
for (const id of ["chart", "overview", "map"]) check(id + " is painted", colours(id) > 6);
const under = chart.xAt(500);
send("chart", "wheel", 500, 100, {deltaY: -600});
check("wheel zooms", chart.view[1] - chart.view[0] < 0.5 * (chart.whole[1] - chart.whole[0]));
check("about the pointer", Math.abs(chart.xAt(500) - under) < (chart.view[1] - chart.view[0]) * 0.01);
const edge = chart.view[0];
send("chart", "pointerdown", 500, 100), send("chart", "pointermove", 460, 100), send("chart", "pointerup", 460, 100);
check("drag moves", chart.view[0] > edge);
send("chart", "pointermove", 400, 100), draw();
check("hover tells", !at("tip").hidden && /live and pending, .* reserved\noperation /.test(at("tip").textContent));
check("the moment is the hovered one", at("moment_text").textContent.toLowerCase().includes("operation " + countText(chart.momentUnder(400) - r.before) + ","));
send("chart", "pointerdown", 400, 100), send("chart", "pointerup", 400, 100), send("chart", "pointerleave", 400, 100);
check("click chooses", state.moment === chart.momentUnder(400) && state.hovered === null);
const chosen = state.moment;
document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
check("a key steps", state.moment === chosen + 1);
at("axis").children[1].click(), draw();
check("time is an axis", chart.axis === "time" && near(chart.whole[1], r.us[r.events - 1]));
check("in view as before", r.us[chosen] >= chart.view[0] && r.us[chosen] <= chart.view[1]);
at("whole").click(), at("peak").click(), draw();
check("the peak", state.moment === r.peak && r.live[r.peak] + r.pending[r.peak] >= Math.max(...EXPECTED.map(e => e[1] + e[2])));
const big = map.layout[0].blocks.reduce((a, b) => r.bytes[b] > r.bytes[a] ? b : a), lane = map.shown.find(l => l.stream === map.layout[0].stream);
const place = MemoryMap.placeOf(lane, r.at[big]) + r.bytes[big] / 2, row = Math.floor(place / map.rowBytes);
map.frame.scrollTop = lane.top + HEAD + row * (ROW + GAP) - 40, draw();
send("map", "pointermove", SIDE + (place / map.rowBytes - row) * map.rowWidth, lane.top + HEAD + row * (ROW + GAP) + 4 - map.frame.scrollTop);
check("a block under the pointer", state.lit === big && at("tip").textContent.includes("0x" + r.at[big].toString(16)));
const rowBytes = map.rowBytes;
at("closer").click(), draw();
check("closer", map.rowBytes === rowBytes / 2);
at("farther").click(), at("arena").value = String(map.lanes[1].stream), at("arena").onchange({target: at("arena")}), draw();
check("one stream", map.layout.every(s => s.stream === map.lanes[1].stream) && map.layout.length > 0);
at("arena").value = "", at("arena").onchange({target: at("arena")});
at("legend").querySelector(".name").click(), draw();
check("a category is chosen", state.chosen >= 0);
at("by").children[1].click(), draw();
check("names are text, not tags", stack.names.includes("model/embedding.cpp:8") && stack.details.some(d => d.includes("lookup & scale")));
const cost = what => { const t = []; for (let k = 0; k < 15; ++k) { what(k), draw(), t.push(lastDraw); } return t.sort((a, b) => a - b)[7].toFixed(1) + " ms"; };
const costs = "scrolled " + cost(k => map.frame.scrollTop = k * 40) + ", whole " + cost(() => {}) + ", hover " + cost(k => state.hovered = r.before + Math.floor(k * (r.events - r.before) / 16)) + ", zoomed " + cost(k => chart.zoom(0.7, 400));
at("answer").textContent = failures.length ? failures.slice(0, 12).join("\n") : "well; " + costs;
)js";

std::string script_for(made_up const& p, std::size_t from) {
  return "const EXPECTED = " + expected(p, from) + ";\ntry {" + checks +
         "} catch (e) { document.getElementById('answer').textContent = e.stack; }";
}

TEST(page, shows_events_and_takes_pointer_and_keys) {
  if (!tests::has_browser())
    GTEST_SKIP() << "no chromium on this machine (apt-get install chromium), or under the checker";
  std::size_t const entries = tests::number_from_environment("WEIR_TEST_EVENTS", 30'000);
  made_up const p(tests::seeds("page", 1).first(), entries);
  for (std::size_t const from : {std::size_t{0}, entries / 2}) {
    SCOPED_TRACE("from entry " + std::to_string(from));
    device_snapshot const d = later_part(p, from);
    std::string const answer =
        tests::in_browser(page({&d, 1}, {}, "a <b>made up</b> & random program"), script_for(p, from), "page");
    std::printf("%s\n", answer.c_str());
    EXPECT_TRUE(answer.starts_with("well")) << answer;
  }
  if (std::getenv("WEIR_TEST_KEEP"))
    (void)tests::in_browser(page({&p.snapshot, 1}, {}, "a made up program"), "", "picture", true);
}

// The text of a snapshot tells the peak from the same events as the page.
TEST(page, has_the_peak_that_the_text_tells) {
  constexpr std::size_t entries = 20'000;
  made_up const p(tests::seeds("peaks", 1).first(), entries);
  for (std::size_t const from : {std::size_t{0}, entries / 2}) {
    SCOPED_TRACE("from entry " + std::to_string(from));
    auto const most = std::max_element(p.live.begin() + static_cast<std::ptrdiff_t>(from), p.live.end());
    peak_of_recording const told = peak_of(later_part(p, from));
    EXPECT_EQ(told.live, static_cast<std::size_t>(*most));
    EXPECT_EQ(told.us, p.snapshot.trace[static_cast<std::size_t>(most - p.live.begin())].us);
    std::size_t sum = 0;
    for (auto const& [line, use] : told.lines)
      sum += use.bytes;
    EXPECT_EQ(sum, told.live);
  }
}

std::string answer_of(device_snapshot const& d, std::span<stack_of const> stacks, std::string const& expression,
                      char const* name) {
  return tests::told_by(page({&d, 1}, stacks, ""), expression, name);
}

// Two ways to one line are one colour. What is under the pointer tells which way it was.
TEST(page, a_line_is_one_category_whichever_calls_led_there) {
  if (!tests::has_browser())
    GTEST_SKIP() << "no chromium on this machine (apt-get install chromium), or under the checker";
  source_location const line{"/home/me/train.py", "train", 30}, other{"/home/me/train.py", "train", 34};
  std::vector<stack_of> const stacks{{1, {{"norm", "functional.py", 2935}, {"train", "/home/me/train.py", 30}}},
                                     {2, {{"linear", "linear.py", 134}, {"train", "/home/me/train.py", 30}}}};
  device_snapshot const d{0,
                          {},
                          {{"alloc", 0x1000, 512, 1, 5, line, 1},
                           {"alloc", 0x2000, 512, 1, 6, line, 2},
                           {"alloc", 0x3000, 512, 1, 7, other, 0},
                           {"alloc", 0x4000, 512, 1, 8, {}, 0}}};
  EXPECT_EQ(answer_of(d, stacks,
                      "(restack('line'), stack.names.toSorted().join()) + '; ' + [0, 1, 2].map(b => "
                      "callsText(recording.site[b]).replaceAll('\\n  ', ' ').replaceAll('\\n', ', ')).join('; ')",
                      "lines"),
            "(line not known),me/train.py:30,me/train.py:34; "
            "norm functional.py:2935, train /home/me/train.py:30; linear linear.py:134, train /home/me/train.py:30; "
            "train /home/me/train.py:34");
}

// A page must not look like the whole of a program of which it has a part.
TEST(page, of_a_part_says_so) {
  if (!tests::has_browser())
    GTEST_SKIP() << "no chromium on this machine (apt-get install chromium), or under the checker";
  device_snapshot d{0, {{0x1000, 1 << 20, 1, false, {{0x1000, 4096, 4096, block_state::active_allocated, {}}}}}, {}};
  constexpr char const* facts = "document.getElementById('facts').textContent";
  std::string const state =
      answer_of(d, {}, std::string(facts) + " + ' | ' + document.getElementById('moment_text').textContent", "state");
  EXPECT_NE(state.find("no history: the state at one moment"), std::string::npos) << state;
  EXPECT_TRUE(state.ends_with(" | The state at one moment")) << state;
  for (char const* const of_a_history : {"peak", "operation", "events", "most"})
    EXPECT_EQ(state.find(of_a_history), std::string::npos) << of_a_history << " of a state: " << state;
  d.trace.push_back({"alloc", 0x3000, 64, 1, 5, lines[0]});
  d.trace.push_back({"free_requested", 0x9000, 0, 1, 6});
  std::string const said = answer_of(d, {}, facts, "part");
  EXPECT_NE(said.find("live before the recording began 4.00 KiB"), std::string::npos) << said;
  EXPECT_NE(said.find("of unknown size, from before 1 block"), std::string::npos) << said;
}

TEST(page, of_nothing_says_so) {
  if (!tests::has_browser())
    GTEST_SKIP() << "no chromium on this machine (apt-get install chromium), or under the checker";
  EXPECT_EQ(tests::told_by(page({}, {}, ""), "document.getElementById('facts').textContent", "nothing"),
            "Nothing was recorded.");
}

TEST(page, needs_no_network_and_names_cannot_end_its_script) {
  device_snapshot d{0, {}, {{"alloc", 0x1000, 64, 1, 5, {"</script><script>alert(1)</script>.cpp", "f", 3}}}};
  std::string const text = page({&d, 1}, {}, "</title><script>");
  EXPECT_EQ(text.find("http"), text.npos) << "no address outside";
  EXPECT_EQ(text.find("src="), text.npos);
  std::size_t scripts = 0;
  for (std::size_t at = 0; (at = text.find("<script", at)) != text.npos; ++at)
    ++scripts;
  EXPECT_EQ(scripts, 2u) << "the recording and the page's own";
}

}  // namespace
}  // namespace weir::report
