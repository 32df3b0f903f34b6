// Timelines: the file is JSON as trace viewers read it, spans of a track lie in each other, times are those
// of the machine. Seeds as tests/support/seeds.h says. Threads: several where a test says so.
#include "weir/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json/src.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <random>

#include "runtime/core/parts.h"
#include "simulator/machine/machine.h"
#include "tests/support/seeds.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

struct span {
  std::string name;
  std::int64_t pid, tid;
  double begin, end;  // microseconds
  boost::json::object args;
};
struct file {
  std::vector<span> spans, instants, counters;
  std::map<std::int64_t, int> calls, works;  // ends of arrows by id
  std::map<std::string, int> names;          // of processes and tracks

  span const& one(std::string const& name, bool on_device) const {
    span const* found = nullptr;
    for (span const& s : spans) {
      if (s.name != name || (s.pid > 0) != on_device)
        continue;
      EXPECT_EQ(found, nullptr) << name << " is there twice";
      found = &s;
    }
    if (!found)
      throw std::runtime_error("no span " + name);
    return *found;
  }
};

struct timelines : testing::Test {
  std::filesystem::path const path =
      std::filesystem::temp_directory_path() / ("weir_timeline_" + std::to_string(getpid()));
  ~timelines() override {
    stop_timeline();
    stop_memory_history();
    std::filesystem::remove(path);
  }

  file written() const {
    dump_timeline(path.string());
    std::ifstream in(path);
    auto const all = boost::json::parse(std::string(std::istreambuf_iterator<char>(in), {})).as_object();
    file f;
    for (auto const& v : all.at("traceEvents").as_array()) {
      auto const& e = v.as_object();
      std::string const phase(e.at("ph").as_string());
      std::int64_t const pid = e.at("pid").as_int64(), tid = e.at("tid").as_int64();
      std::string const name(e.at("name").as_string());
      auto const number = [&](char const* key) { return e.contains(key) ? e.at(key).to_number<double>() : 0.0; };
      span const s{name,
                   pid,
                   tid,
                   number("ts"),
                   number("ts") + number("dur"),
                   e.contains("args") ? e.at("args").as_object() : boost::json::object()};
      if (phase == "X")
        f.spans.push_back(s);
      else if (phase == "i")
        f.instants.push_back(s);
      else if (phase == "C")
        f.counters.push_back(s);
      else if (phase == "s")
        ++f.calls[e.at("id").as_int64()];
      else if (phase == "f")
        ++f.works[e.at("id").as_int64()];
      else if (phase == "M")
        ++f.names[std::string(e.at("args").as_object().at("name").as_string())];
      else
        ADD_FAILURE() << "phase " << phase;
    }
    nested(f);
    return f;
  }

  // What viewers need: of two spans of a track one lies in the other, or they do not meet.
  static void nested(file const& f) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::vector<span const*>> tracks;
    for (span const& s : f.spans) {
      EXPECT_GE(s.begin, 0);
      EXPECT_GE(s.end, s.begin) << s.name;
      tracks[{s.pid, s.tid}].push_back(&s);
    }
    constexpr double rounding = 0.0011;
    for (auto& [track, all] : tracks) {
      std::vector<span const*> open;
      for (span const* s : all) {  // in the file by their begin, the outer one first
        while (!open.empty() && open.back()->end <= s->begin + rounding)
          open.pop_back();
        if (open.empty()) {
          open.push_back(s);
          continue;
        }
        EXPECT_GE(s->begin + rounding, open.back()->begin);
        EXPECT_LE(s->end, open.back()->end + rounding) << s->name << " reaches out of " << open.back()->name;
        if (track.first > 0)
          ADD_FAILURE() << s->name << " and " << open.back()->name << " at once on one stream";
        open.push_back(s);
      }
    }
    for (auto const& [id, n] : f.works)
      EXPECT_TRUE(n == 1 && f.calls.contains(id) && f.calls.at(id) == 1) << "arrow " << id;
  }
};

// However many parts a copy goes in.
TEST_F(timelines, copies_are_counted_as_the_program_made_them) {
  runtime own{simulated{.devices = 1, .memory = 256_MiB}};
  runtime_guard const in(own);
  constexpr std::size_t bytes = 8_MiB, times = 6;
  std::vector<std::byte> pageable(bytes);
  for (bool const up : {true, false}) {
    buffer block(bytes);
    synchronize();
    record_timeline();
    for (std::size_t i = 0; i < times; ++i)
      up ? copy(block.data(), pageable.data(), bytes) : copy(pageable.data(), block.data(), bytes);
    synchronize();
    std::string const said = timeline_summary();
    stop_timeline();
    EXPECT_NE(said.find("6 copies, 48 MiB in all"), std::string::npos) << said;
    file const f = written();
    EXPECT_EQ(
        std::count_if(f.spans.begin(), f.spans.end(), [](span const& s) { return s.name == "copy" && s.pid == 0; }),
        static_cast<std::ptrdiff_t>(times))
        << "calls";
  }
}

TEST_F(timelines, a_launch_that_cannot_be_copied_leaves_no_span) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in(own);
  struct thrower {
    thrower() = default;
    thrower(thrower const&) { throw std::runtime_error("no copy"); }
    void operator()() const {}
  };
  stream s;
  record_timeline();
  thrower const t;
  EXPECT_THROW(launch(
                   s, {}, [](CUstream_st*) {}, t),
               std::runtime_error);
  launch_host(s, [] {});
  synchronize();
  stop_timeline();
  file const f = written();
  for (span const& one : f.spans)
    EXPECT_NE(one.name, "launch");
}

TEST_F(timelines, a_refused_launch_is_over_when_later_work_begins) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in(own);
  stream s;
  record_timeline();
  driver::sim::controls_of(own.get().machine())->fail_call("enqueue", 1, driver::code::failed);
  EXPECT_THROW(launch(
                   s, {}, [](CUstream_st*) {}, [] {}),
               driver_error);
  launch_host(s, [] {
    for (std::int64_t const from = base::now_ns(); base::now_ns() - from < 1'000'000;) {}
  });
  launch(
      s, {}, [](CUstream_st*) {}, [] {});
  synchronize();
  stop_timeline();
  file const f = written();
  span const& worked = f.one("launch_host", true);
  EXPECT_GE(worked.end - worked.begin, 999) << "spans of a stream do not meet: the launch's would cover it";
}

// A kernel that runs until it is let go.
struct held {
  std::shared_ptr<std::atomic<bool>> go = std::make_shared<std::atomic<bool>>(false);
  void launch_on(stream_ref s, memory_uses u) {
    launch(
        s, u, [](CUstream_st*) {},
        [flag = go] {
          while (!flag->load())
            std::this_thread::yield();
        });
  }
};

TEST_F(timelines, calls_waits_ranges_and_memory_are_in_their_places) {
  runtime machine(simulated{.devices = 2, .memory = 1_GiB});
  runtime_guard const in(machine);
  stream a, b;
  buffer host(3_MiB, {.kind = memory_kind::pinned});
  record_timeline();
  void* block = nullptr;
  {
    profile_range const outer("step 1 \"quoted\"");
    block = allocate(a, 3_MiB);
    held kernel;
    {
      profile_range const inner("kernels");
      kernel.launch_on(a, {writes(block)});
    }
    b.wait(a);
    copy(b, host.data(), block, 3_MiB, non_blocking);
    EXPECT_FALSE(b.query());
    kernel.go->store(true);
    b.synchronize();
  }
  deallocate(b, block);
  file const f = written();
  span const &outer = f.one("step 1 \"quoted\"", false), &inner = f.one("kernels", false),
             &call = f.one("launch", false), &work = f.one("launch", true), &wait = f.one("wait", true),
             &copied = f.one("copy", true), &asked = f.one("copy", false), &slept = f.one("synchronize", false);
  EXPECT_TRUE(outer.begin <= inner.begin && inner.end <= outer.end);
  EXPECT_TRUE(inner.begin <= call.begin && call.end <= inner.end);
  EXPECT_GE(work.begin + 1, call.begin) << "no work before its call";
  EXPECT_GE(work.end, asked.end) << "the kernel was let go after the copy had been given";
  EXPECT_GE(wait.end + 1, work.end) << "a wait lasts until what it waits for";
  EXPECT_GE(copied.begin + 1, wait.end);
  EXPECT_GE(slept.end + 1000, copied.begin);
  EXPECT_EQ(work.tid, static_cast<std::int64_t>(a.id()));
  EXPECT_EQ(copied.tid, static_cast<std::int64_t>(b.id()));
  EXPECT_EQ(copied.pid, 1);
  EXPECT_EQ(copied.args.at("bytes").as_int64(), 3 << 20);
  EXPECT_EQ(wait.args.at("for stream").as_int64(), static_cast<std::int64_t>(a.id()));
  EXPECT_NE(std::string(copied.args.at("line").as_string()).find("timeline_test.cpp:"), std::string::npos);
  EXPECT_EQ(f.works.size(), 3u) << "launch, wait, copy";
  ASSERT_EQ(f.instants.size(), 2u);
  EXPECT_EQ(f.instants[0].name, "alloc 3 MiB");
  EXPECT_TRUE(outer.begin <= f.instants[0].begin && f.instants[0].begin <= inner.begin);
  ASSERT_EQ(f.counters.size(), 2u);
  EXPECT_EQ(f.counters[0].args.at("live bytes").as_int64(), 3 << 20);
  EXPECT_EQ(f.counters[1].args.at("live bytes").as_int64(), 0);
  for (std::string const& name : {std::string("host"), std::string("gpu:0"), "stream " + std::to_string(a.id())})
    EXPECT_EQ(f.names.count(name), 1u) << name;
}

// Whatever surrounds the call, also a range of the same name.
TEST_F(timelines, a_copy_of_many_parts_is_one_call) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  stream on;
  std::vector<std::byte> pageable(24_MiB);
  buffer device_memory(on, pageable.size());
  for (std::string const range : {"", "step", "copy"}) {
    record_timeline();
    {
      std::optional<profile_range> surrounds;
      if (!range.empty())
        surrounds.emplace(range);
      copy(on, device_memory.data(), pageable.data(), pageable.size());
    }
    file const f = written();
    auto const is_copy = [](bool of_stream) {
      return [of_stream](span const& s) { return s.name == "copy" && (s.pid > 0) == of_stream; };
    };
    long const ranges = range == "copy";
    EXPECT_EQ(std::ranges::count_if(f.spans, is_copy(false)), 1 + ranges) << range;
    EXPECT_GT(std::ranges::count_if(f.spans, is_copy(true)), 1) << range;
    stop_timeline();
  }
}

// What it waits for may itself wait for a call of another thread, as a collective does.
TEST_F(timelines, work_goes_on_while_a_summary_waits) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  stream busy, other;
  buffer memory(other, 1_MiB);
  record_timeline();
  held kernel;
  kernel.launch_on(busy, {});
  std::thread asks([&] {
    runtime_guard const here(machine);
    EXPECT_NE(timeline_summary(), "");
  });
  std::atomic<bool> is_filled = false;
  std::thread lets_go([&, go = kernel.go] {
    for (int k = 0; k < 3000 && !is_filled; ++k)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(is_filled) << "the fill waited for the summary, which waits for the kernel";
    go->store(true);
  });
  // By then the summary waits, nearly always.
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  fill(other, memory.data(), std::byte{1}, 1_MiB);
  is_filled = true;
  asks.join();
  lets_go.join();
  stop_timeline();
}

TEST_F(timelines, random_ranges_of_several_threads_lie_in_each_other) {
  for (std::uint64_t const seed : tests::seeds("timeline", 100, 0, 33)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    runtime machine(simulated{.devices = 2, .memory = 1_GiB});
    record_timeline();
    std::atomic<int> ranges{0}, copies{0};
    auto const program = [&](std::uint64_t mine) {
      runtime_guard const in(machine);
      std::mt19937_64 random(mine);
      stream on(static_cast<int>(mine % 2));
      stream_guard const current(on);
      buffer from(1_MiB), to(1_MiB);
      auto const part = [&](auto& self, int deep) -> void {
        profile_range const here("depth " + std::to_string(deep));
        ++ranges;
        for (auto n = random() % 3; n-- > 0;) {
          if (deep < 4 && random() % 2)
            self(self, deep + 1);
          else
            copy(on, to.data(), from.data(), 1 + random() % 1_MiB, non_blocking), ++copies;
        }
        if (random() % 4 == 0)
          on.synchronize();
      };
      for (int i = 0; i < 30; ++i)
        part(part, 0);
    };
    std::thread one(program, seed), two(program, seed + 1);
    one.join();
    two.join();
    runtime_guard const in(machine);
    file const f = written();
    int seen_ranges = 0, seen_copies = 0;
    for (span const& s : f.spans)
      seen_ranges += s.name.starts_with("depth"), seen_copies += s.name == "copy" && s.pid > 0;
    EXPECT_EQ(seen_ranges, ranges.load());
    EXPECT_EQ(seen_copies, copies.load());
    EXPECT_EQ(f.works.size(), static_cast<size_t>(seen_copies));
    stop_timeline();
  }
}

TEST_F(timelines, the_newest_spans_are_kept_and_off_means_none) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  stream on;
  buffer from(1000), to(1000);
  record_timeline({.spans = 4});
  for (int i = 0; i < 10; ++i)
    profile_range const r("r" + std::to_string(i));
  file const few = written();
  ASSERT_EQ(few.spans.size(), 4u);
  EXPECT_EQ(few.spans[0].name, "r6");
  EXPECT_EQ(few.spans[3].name, "r9");
  record_timeline();
  stop_timeline();
  {
    profile_range const r("not seen");
    copy(on, to.data(), from.data(), 1000, non_blocking);
  }
  EXPECT_TRUE(written().spans.empty());
  EXPECT_THROW(record_timeline({.spans = 0}), invalid_use);
}

// What is complete is collected at some thousand pieces; the others stay.
TEST_F(timelines, of_thousands_of_pending_pieces_none_is_lost) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  std::vector<stream> all(16);  // of one, a launch would wait for room
  record_timeline();
  held first;
  first.launch_on(all[0], {});
  event e;
  e.record(all[0]);
  for (stream const& s : all)
    s.ref().wait(e);
  std::ptrdiff_t const n = 2560;
  for (std::ptrdiff_t i = 0; i < n; ++i)
    launch_host(all[static_cast<std::size_t>(i) % all.size()], [] {});
  *first.go = true;
  synchronize();
  stop_timeline();
  file const f = written();
  EXPECT_EQ(std::ranges::count_if(f.spans, [](span const& one) { return one.name == "launch_host" && one.pid > 0; }),
            n);
}

TEST_F(timelines, collectives_are_spans_of_each_rank) {
  runtime machine(simulated{.devices = 2, .memory = 1_GiB});
  runtime_guard const in(machine);
  record_timeline();
  auto ranks = communicator::create_all(std::array<device, 2>{device(0), device(1)});
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      runtime_guard const mine(machine);
      stream on(r);
      stream_guard const current(on);
      buffer data(4096);
      ranks[static_cast<size_t>(r)].all_reduce({data.data(), 1024, float32});
      on.synchronize();
    });
  }
  for (auto& t : threads)
    t.join();
  file const f = written();
  int on_device = 0;
  for (span const& s : f.spans)
    on_device += s.name == "all_reduce" && s.pid > 0 && s.args.at("bytes").as_int64() == 4096;
  EXPECT_EQ(on_device, 2);
  EXPECT_NE(timeline_summary().find("Of the collectives, "), std::string::npos) << timeline_summary();
}

TEST_F(timelines, a_file_that_cannot_be_written_is_named) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  try {
    dump_timeline("/no/such/folder/timeline.json");
    FAIL() << "nothing was thrown";
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("/no/such/folder/timeline.json"), std::string::npos) << e.what();
  }
}

TEST_F(timelines, work_keeps_its_times_where_events_are_reused) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  for (int round : {1, 2, 3}) {
    record_timeline();
    launch(
        current_stream(), {}, [](CUstream_st*) {},
        [] {
          for (auto const from = std::chrono::steady_clock::now();
               std::chrono::steady_clock::now() - from < std::chrono::milliseconds(2);) {}
        });
    synchronize();
    stop_timeline();
    file const f = written();
    span const& s = f.one("launch", true);
    EXPECT_GE(s.end - s.begin, 1000) << "round " << round;
  }
}

}  // namespace
}  // namespace weir
