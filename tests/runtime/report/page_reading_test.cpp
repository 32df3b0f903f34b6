// What a reader sees of the page: where it opens, what it says of a failure, how its table is ordered and
// searched, and what was added to a recording (marks, an earlier snapshot). Needs Chromium on the PATH, else
// skipped.
// Threads: one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/report/snapshot.h"
#include "tests/support/browser.h"

namespace weir::report {
namespace {

constexpr std::size_t kib = 1024;
constexpr source_location attention{"/home/me/model/attention.py", "forward", 41};
constexpr source_location loss{"/home/me/train.py", "train", 30};

struct page_reading : ::testing::Test {
  void SetUp() override {
    if (!tests::has_browser())
      GTEST_SKIP() << "no chromium on this machine (apt-get install chromium), or under the checker";
  }
};

std::string of(char const* id) {
  return std::string("document.getElementById('") + id + "').textContent";
}

// 1,024 KiB of one stream, with blocks of `live` KiB at the given places, and a request that failed.
device_snapshot refused(std::vector<std::pair<std::size_t, std::size_t>> const& blocks, std::size_t asked,
                        std::uint64_t stream = 1) {
  device_snapshot d{0, {{0x100000, 1024 * kib, 1, false, {}}}, {}};
  d.trace.push_back({"segment_map", 0x100000, 1024 * kib, 1, 1});
  for (auto const& [at, bytes] : blocks)
    d.trace.push_back({"alloc", 0x100000 + at * kib, bytes * kib, 1, 2, attention});
  d.trace.push_back({"oom", 0, asked * kib, stream, 3, loss});
  return d;
}

// A page of a program that died shows why, before a reader clicks anything.
TEST_F(page_reading, begins_at_the_failure_and_else_at_the_peak) {
  device_snapshot d = refused({{0, 600}}, 800);
  std::string const expression = of("moment_text") + " + ' | ' + " + of("why");
  std::string const said = tests::told_by(page({&d, 1}, {}, ""), expression, "failure");
  EXPECT_EQ(said.find("The failure, operation 2,"), 0u) << said;
  EXPECT_NE(said.find("Asked: 800 KiB for stream 1, at me/train.py:30"), std::string::npos) << said;
  EXPECT_NE(said.find("Most is held by model/attention.py:41 (600 KiB)"), std::string::npos) << said;
  d.trace.pop_back();
  d.trace.push_back({"free_requested", 0x100000, 0, 1, 4});
  d.trace.push_back({"free_completed", 0x100000, 0, 1, 4});
  std::string const without = tests::told_by(page({&d, 1}, {}, ""), expression, "peak");
  EXPECT_EQ(without.find("The peak, operation 1,"), 0u) << without;
  EXPECT_TRUE(without.ends_with(" | ")) << without;
}

// Each layout has another reason, and the page names that one.
TEST_F(page_reading, names_why_a_request_did_not_fit) {
  struct row {
    char const* name;
    device_snapshot d;
    char const* reason;
  };
  device_snapshot pending = refused({{0, 600}, {600, 400}}, 500);
  pending.trace.insert(pending.trace.end() - 1, {"free_requested", 0x100000, 0, 1, 3, {}, 0, 2});
  std::vector<row> const rows = {
      {"too little", refused({{0, 600}}, 800), "All of it together is 376 KiB less than was asked"},
      {"in pieces", refused({{0, 200}, {400, 300}, {900, 24}}, 400), "but the largest piece was 200 KiB too short"},
      {"pending", pending, "It would be enough with the 600 KiB that other streams still used"},
      {"of another stream", refused({{0, 100}}, 200, 2), "belongs to stream 1, whose work may still have used it"},
      {"of no known reason", refused({{0, 100}}, 200), "what refused it is not in this recording"}};
  std::vector<device_snapshot> all;
  for (row const& r : rows) {
    all.push_back(r.d);
    all.back().device = static_cast<int>(all.size());
  }
  std::string const expression =
      "names.devices.map((_, i) => (showDevice(i), draw(), " + of("why") + ")).join('\\n\\n')";
  std::string said = tests::told_by(page(all, {}, ""), expression, "why");
  for (row const& r : rows) {
    std::string const one = said.substr(0, said.find("\n\n"));
    EXPECT_NE(one.find(r.reason), std::string::npos) << r.name << ": " << one;
    said.erase(0, one.size() + 2);
  }
}

// 30 lines of which the chart has room for 12. The table begins with the largest, and the search finds the rest.
TEST_F(page_reading, sorts_its_table_and_finds_lines_of_no_colour) {
  std::vector<std::string> files;
  for (int i = 0; i < 30; ++i)
    files.push_back("/home/me/layers/layer" + std::to_string(i) + ".py");
  device_snapshot d{0, {{0x100000, 1 << 20, 1, false, {}}}, {{"segment_map", 0x100000, 1 << 20, 1, 1}}};
  std::uintptr_t at = 0x100000;
  for (std::size_t i = 0; i < 30; ++i) {
    std::size_t const bytes = kib * (1 + i * 7 % 30);
    d.trace.push_back({"alloc", at, bytes, 1, 2, {files[i].c_str(), "f", 7}});
    at += bytes;
  }
  std::string const script = R"js((() => {
    const rows = () => (draw(), legend.lines.filter(l => l.querySelector("button")).map(l => l.querySelector(".file").textContent + " " + l.cells[1].textContent));
    const out = [rows().slice(0, 3).join("; ")];
    legend.table.tHead.rows[0].cells[0].firstChild.click();
    out.push(rows().slice(0, 2).join("; "));
    const find = document.getElementById("find");
    find.value = "LAYER0.", find.oninput({target: find});
    out.push(rows().join("; ") + ", " + document.getElementById("found").textContent);
    legend.lines[0].querySelector("button").click();
    out.push(stack.names.includes("layers/layer0.py:7") + " " + stack.names.length + " " + (stack.names[state.chosen]) + " " + rows().join("; "));
    out.push(stack.at(recording.peak).reduce((a, b) => a + b, 0) === recording.live[recording.peak]);
    find.value = "nowhere", find.oninput({target: find}), draw();
    out.push(document.getElementById("found").textContent);
    return out.join("\n");
  })())js";
  EXPECT_EQ(tests::told_by(page({&d, 1}, {}, ""), script, "table"),
            "layer17.py:7 30.0 KiB; layer4.py:7 29.0 KiB; layer21.py:7 28.0 KiB\n"
            "layer3.py:7 22.0 KiB; layer4.py:7 29.0 KiB\n"
            "layer0.py:7 1.00 KiB, 1 match\n"
            "true 12 layers/layer0.py:7 layer0.py:7 1.00 KiB\n"
            "true\n"
            "No line has “nowhere” in its name.");
}

// The keyboard's focus stays on a row while the moment moves under it.
TEST_F(page_reading, keeps_its_rows_while_the_moment_changes) {
  device_snapshot const d = refused({{0, 100}, {100, 50}}, 2000);
  std::string const script = R"js((() => {
    draw();
    const button = legend.lines[0].querySelector("button");
    button.focus();
    for (const m of [0, 1, 2]) state.hovered = recording.before + m, draw();
    const same = document.activeElement === button && button.isConnected;
    button.click(), draw();
    return same + " " + button.getAttribute("aria-pressed") + " " + document.getElementById("chart").getAttribute("role");
  })())js";
  EXPECT_EQ(tests::told_by(page({&d, 1}, {}, ""), script, "rows"), "true true slider");
}

// A narrow window has fewer labels on its axis, and none of them touches the next.
TEST_F(page_reading, keeps_labels_apart_in_a_narrow_window) {
  device_snapshot d{0, {{0x100000, 1 << 20, 1, false, {}}}, {{"segment_map", 0x100000, 1 << 20, 1, 1}}};
  for (int i = 0; i < 30'000; ++i) {
    d.trace.push_back({"alloc", 0x100000, 512, 1, i * 50, attention});
    d.trace.push_back({"free_requested", 0x100000, 0, 1, i * 50 + 1});
    d.trace.push_back({"free_completed", 0x100000, 0, 1, i * 50 + 1});
  }
  std::string const script = R"js((() => {
    const drawn = [], pen = CanvasRenderingContext2D.prototype, fill = pen.fillText;
    pen.fillText = function(words, x, y) {
      if (this.canvas.id === "chart" && this.textAlign === "center") drawn.push([x - this.measureText(words).width / 2, x + this.measureText(words).width / 2]);
      fill.call(this, words, x, y);
    };
    const out = [];
    for (const axis of [0, 1]) {
      document.getElementById("axis").children[axis].click();
      for (let zoom = 0; zoom < 8; ++zoom) {
        drawn.length = 0, chart.zoom(zoom ? 0.4 : 1, 150), draw();
        if (drawn.length < 2) out.push("axis " + axis + " has " + drawn.length + " labels after " + zoom);
        if (drawn.some((d, i) => i && d[0] < drawn[i - 1][1] + 4)) out.push("they touch after " + zoom + " on axis " + axis);
      }
      chart.view = [...chart.whole];
    }
    return out.join("; ") || "apart";
  })())js";
  EXPECT_EQ(tests::told_by(page({&d, 1}, {}, ""), script, "narrow", 500, 900), "apart");
}

// What gives way is the folder: file and line are whole, and the table shows all of its rows.
TEST_F(page_reading, keeps_file_and_line_whole_and_rows_unclipped) {
  constexpr source_location deep{"/home/me/a_package_with_a_long_name/modules_for_attention_and_more/multi_head.py",
                                 "f", 1234};
  device_snapshot d{0, {{0x100000, 64 << 20, 1, false, {}}}, {{"segment_map", 0x100000, 64 << 20, 1, 1}}};
  std::vector<std::string> files;
  for (int i = 0; i < 10; ++i)
    files.push_back("/home/me/another_package_of_many/file_" + std::to_string(i) + ".py");
  std::uintptr_t at = 0x100000;
  for (int i = 0; i < 10; ++i, at += 1 << 20)
    d.trace.push_back({"alloc", at, 1 << 20, 1, 2 + i, {files[static_cast<std::size_t>(i)].c_str(), "f", 7}});
  d.trace.push_back({"alloc", at, 2 << 20, 1, 20, deep});
  std::string const script = R"js((() => {
    const out = [], table = document.getElementById("legend"), box = table.parentElement;
    const names = [...table.querySelectorAll(".name .file")], rows = [...table.querySelectorAll("tbody tr")];
    for (const name of names) {
      if (!/\.py:\d+$/.test(name.textContent)) out.push("a name without file and line: " + name.textContent);
      if (name.scrollWidth > name.clientWidth + 1) out.push("cut: " + name.textContent);
    }
    if (names.length !== 11) out.push(names.length + " names");
    if (names[0].textContent !== "multi_head.py:1234") out.push("the largest is not first: " + names[0].textContent);
    if (rows.some(row => row.getBoundingClientRect().bottom > box.getBoundingClientRect().bottom)) out.push("rows are clipped");
    if (rows[0].getBoundingClientRect().bottom > innerHeight) out.push("the largest is below the first screen");
    return out.join("; ") || "whole";
  })())js";
  for (auto const& [width, height] : {std::pair{1600, 1000}, {390, 844}})
    EXPECT_EQ(tests::told_by(page({&d, 1}, {}, ""), script, "names", width, height), "whole") << width << " wide";
}

// A replay's rounds are told apart.
TEST_F(page_reading, names_the_part_that_a_moment_is_in) {
  device_snapshot d{0, {{0x100000, 1 << 20, 1, false, {}}}, {{"segment_map", 0x100000, 1 << 20, 1, 100}}};
  for (int i = 0; i < 4; ++i)
    d.trace.push_back({"alloc", 0x100000u + i * kib, kib, 1, 200 + i * 100, attention});
  page_extras const more{{{150, "round 1"}, {350, "round 2"}}, {}, ""};
  std::string const script = "[1, 2, 3, 4].map(i => (setMoment(i), draw(), " + of("moment_text") + ")).join('; ')";
  EXPECT_EQ(tests::told_by(page({&d, 1}, {}, "", more), script, "marks"),
            "Operation 1, 100 µs, round 1; Operation 2, 200 µs, round 1; Operation 3, 300 µs, round 2; "
            "The peak, operation 4, 400 µs, round 2");
}

// What grew between two snapshots, by line, is a column.
TEST_F(page_reading, tells_what_grew_since_an_earlier_snapshot) {
  auto const with = [](std::size_t first, std::size_t second) {
    return device_snapshot{0,
                           {{0x100000,
                             1 << 20,
                             1,
                             false,
                             {{0x100000, first, first, block_state::active_allocated, attention},
                              {0x140000, second, second, block_state::active_allocated, loss}}}},
                           {}};
  };
  device_snapshot earlier = with(64 * kib, 64 * kib);
  device_snapshot const now = with(16 * kib, 192 * kib);
  constexpr source_location over{"/home/me/warmup.py", "warm", 3};  // holds nothing any more
  earlier.segments[0].blocks.push_back({0x180000, 32 * kib, 32 * kib, block_state::active_allocated, over});
  page_extras const more{{}, {&earlier, 1}, "an_hour_ago.pickle"};
  std::string const script =
      R"js((restack("line"), draw(), legend.lines.map(l => l.cells[0].textContent + " " + l.cells[3].textContent).join("; ") + " | " + document.getElementById("facts").textContent))js";
  std::string const said = tests::told_by(page({&now, 1}, {}, "", more), script, "since");
  EXPECT_EQ(said.find("me/train.py:30 +128 KiB; model/attention.py:41 −48.0 KiB; live +48.0 KiB"), 0u) << said;
  EXPECT_NE(said.find("compared with an_hour_ago.pickle"), std::string::npos) << said;
}

}  // namespace
}  // namespace weir::report
