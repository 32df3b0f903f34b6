// Snapshots: what lies where is a recount of the counters, and the file keeps the rules of PyTorch's viewer,
// which replays it backward. Seeds as tests/support/seeds.h says. Threads: one, but where a test says so.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "tests/streams/pickle_reader.h"
#include "tests/support/refused.h"
#include "tests/support/seeds.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace weir {
namespace {

using testing_pickle::value;

struct snapshot : testing::Test {
  ~snapshot() override { stop_memory_history(); }
  static void recount(device on) {
    auto const all = memory_snapshot(on);
    auto const n = memory_stats(on);
    std::int64_t bytes = 0, live = 0, requested = 0, pending = 0, blocks = 0;
    std::uintptr_t end = 0;
    for (memory_segment const& s : all) {
      EXPECT_GE(s.address, end);
      std::uintptr_t next = s.address;
      for (memory_block const& b : s.blocks) {
        EXPECT_EQ(b.address, next) << "side by side";
        next += b.bytes;
        requested += static_cast<std::int64_t>(b.requested);
        if (b.state == block_state::active_allocated)
          live += static_cast<std::int64_t>(b.bytes), ++blocks;
        if (b.state == block_state::active_pending_free)
          pending += static_cast<std::int64_t>(b.bytes);
      }
      end = next;
      EXPECT_EQ(next, s.address + s.bytes);
      bytes += static_cast<std::int64_t>(s.bytes);
    }
    EXPECT_EQ(bytes, n.reserved_bytes.all.current);
    EXPECT_EQ(live, n.allocated_bytes.all.current);
    EXPECT_EQ(requested, n.requested_bytes.all.current);
    EXPECT_EQ(pending, n.pending_bytes.all.current);
    EXPECT_EQ(blocks, n.allocation.all.current);
  }
};

struct blocks_of_a_program {  // taken and given back at random, on three streams, some used on a second one
  explicit blocks_of_a_program(std::uint64_t seed) : random(seed) {}
  std::mt19937_64 random;
  std::array<stream, 3> on;
  std::map<void*, stream_ref> live;

  void step() {
    if (live.empty() || random() % 5 < 3) {
      stream_ref const home = on[random() % 3];
      size_t const bytes = random() % 3 ? random() % 40'000 : random() % 9'000'000;
      live.emplace(allocate(home, bytes), home);
    } else {
      auto const at = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      if (random() % 3 == 0)
        record_stream(at->first, on[random() % 3]);
      deallocate(at->first);
      live.erase(at);
    }
    if (random() % 40 == 0)
      empty_cache();
  }
  ~blocks_of_a_program() {
    for (auto const& [p, s] : live)
      deallocate(p);
  }
};

TEST_F(snapshot, the_layout_is_a_recount_of_the_counters) {
  for (std::uint64_t const seed : tests::seeds("snapshot", 100, 0, 5)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    runtime machine(simulated{.devices = 1, .memory = 1_GiB, .seed = seed});
    runtime_guard const in(machine);
    blocks_of_a_program program(seed);
    for (int i = 0; i < 150; ++i) {
      program.step();
      if (i % 10 == 0)
        recount(0);
    }
    std::set<std::uintptr_t> found;
    for (auto const& s : memory_snapshot()) {
      for (auto const& b : s.blocks) {
        if (b.state == block_state::active_allocated)
          found.insert(b.address);
      }
    }
    std::set<std::uintptr_t> mine;
    for (auto const& [p, s] : program.live)
      mine.insert(reinterpret_cast<std::uintptr_t>(p));
    EXPECT_EQ(found, mine);
  }
}

// As MemoryViz does: from the segments as they are now, backward through the trace;
// every block lies in a segment of its time.
// Returns: frees that were not complete at once.
int replay_backward(value const& all, size_t device) {
  int later_complete = 0;
  std::map<std::int64_t, std::int64_t> mapped;  // address, end: merged with what follows at once
  auto const add = [&](std::int64_t at, std::int64_t bytes) {
    EXPECT_TRUE(mapped.emplace(at, at + bytes).second) << "mapped twice";
  };
  auto const covers = [&](std::int64_t at, std::int64_t bytes) {
    auto found = mapped.upper_bound(at);
    if (found == mapped.begin())
      return false;
    std::int64_t end = (--found)->second;
    for (++found; found != mapped.end() && found->first == end; ++found)
      end = found->second;
    return at + bytes <= end;
  };
  // a segment of the file is several handles side by side
  auto const remove = [&](std::int64_t at, std::int64_t bytes) {
    EXPECT_TRUE(covers(at, bytes)) << "unmapped is what was mapped";
    auto found = std::prev(mapped.upper_bound(at));
    while (found != mapped.end() && found->first < at + bytes) {
      auto const [from, to] = *found;
      found = mapped.erase(found);
      if (from < at)
        mapped.emplace(from, at);
      if (to > at + bytes)
        mapped.emplace(at + bytes, to);
      if (from >= at + bytes)
        break;
    }
  };
  std::map<std::int64_t, std::int64_t> active;
  for (auto const& s : all["segments"].items) {
    if (static_cast<size_t>((*s)["device"].number) != device)
      continue;
    add((*s)["address"].number, (*s)["total_size"].number);
    std::int64_t sum = 0, live = 0;
    for (auto const& b : (*s)["blocks"].items) {
      sum += (*b)["size"].number;
      std::string const state = (*b)["state"].text;
      if (state == "active_allocated")
        live += (*b)["size"].number;
      if (state != "inactive")
        active[(*b)["address"].number] = (*b)["size"].number;
    }
    EXPECT_EQ(sum, (*s)["total_size"].number);
    EXPECT_EQ(live, (*s)["allocated_size"].number);
  }
  auto const& trace = all["device_traces"].items.at(device)->items;
  std::int64_t later = INT64_MAX;
  for (size_t i = trace.size(); i-- > 0;) {
    value const& e = *trace[i];
    std::string const action = e["action"].text;
    EXPECT_NE(action, "");
    EXPECT_LE(e["time_us"].number, later);
    later = e["time_us"].number;
    if (action == "oom")
      continue;
    std::int64_t const at = e["addr"].number, bytes = e["size"].number;
    if (action == "segment_map")
      remove(at, bytes);
    if (action == "segment_unmap")
      add(at, bytes);
    if (action == "alloc") {
      EXPECT_TRUE(covers(at, bytes)) << "a block taken lies in a segment";
      EXPECT_EQ(active.erase(at), 1u) << "taken before it was given back";
    }
    if (action == "free_completed") {
      EXPECT_TRUE(covers(at, bytes));
      EXPECT_TRUE(active.emplace(at, bytes).second);
    }
    if (action == "free_requested") {
      EXPECT_TRUE(active.contains(at)) << "not completed is what is pending";
      later_complete += i + 1 == trace.size() || (*trace[i + 1])["action"].text != "free_completed";
    }
  }
  return later_complete;
}

value dumped() {
  auto const path = std::filesystem::temp_directory_path() / ("weir_snapshot_" + std::to_string(getpid()));
  dump_memory_snapshot(path.string());
  std::ifstream file(path, std::ios::binary);
  value out = testing_pickle::reader(std::string(std::istreambuf_iterator<char>(file), {})).read();
  std::filesystem::remove(path);
  return out;
}

// A small block that its thread has not sent home.
TEST_F(snapshot, a_deferred_free_is_pending_in_place_and_trace) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(machine);
  stream home, user;
  record_memory_history();
  buffer const other(1_MiB);
  {
    stream_guard const there(user);
    fill(other.data(), std::byte{1}, 1_MiB);
  }
  std::array<void*, 8> blocks{};
  for (void*& p : blocks)
    p = allocate(home, 100);
  for (void* p : blocks)
    record_stream(p, user);
  for (void* p : blocks)
    deallocate(p);
  EXPECT_EQ(replay_backward(dumped(), 0), 8);
}

TEST_F(snapshot, the_file_replays_backward_to_its_start) {
  int later_complete = 0;
  tests::seeds const wanted("snapshot file", 100, 0, 10);
  for (std::uint64_t const seed : wanted) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    runtime machine(simulated{.devices = 2, .memory = 1_GiB, .seed = seed});
    runtime_guard const in(machine);
    blocks_of_a_program program(seed);
    for (int i = 0; i < 20; ++i)
      program.step();
    record_memory_history({.events = seed % 2 ? 100u : 10'000u});
    for (int i = 0; i < 300; ++i)
      program.step();
    value const all = dumped();
    ASSERT_EQ(all["device_traces"].items.size(), 2u);
    // An allocation has one entry, a free two. A free that waits for another stream has one, for two events.
    EXPECT_GE(all["device_traces"].items[0]->items.size() + all["device_traces"].items[1]->items.size(), 50u);
    later_complete += replay_backward(all, 0);
    bool named = false;
    for (auto const& e : all["device_traces"].items[0]->items) {
      for (auto const& f : (*e)["frames"].items)
        named |= (*f)["filename"].text.ends_with("snapshot_test.cpp") && (*f)["line"].number > 0;
    }
    EXPECT_TRUE(named) << "a frame says whose line it was";
  }
  if (wanted.count() < 5)
    return;  // a part of few seeds may have none
  EXPECT_GT(later_complete, 0);
}

TEST_F(snapshot, the_summary_names_owners_and_what_blocks_wait_for) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(machine);
  stream idle, busy, user;
  deallocate(allocate(idle, 96_MiB));
  void* const p = allocate(busy, 64_MiB);
  buffer const other(1_MiB);
  copy(user, p, other.data(), other.size());
  record_stream(p, user);
  deallocate(p);
  auto const streams = memory_by_stream();
  ASSERT_EQ(streams.size(), 3u);
  EXPECT_EQ(streams[0].stream, idle.id());
  EXPECT_EQ(streams[0].cached, 96_MiB);
  EXPECT_EQ(streams[1].pending, 64_MiB);
  ASSERT_EQ(streams[1].waits_for.size(), 1u);
  EXPECT_EQ(streams[1].waits_for[0].stream, user.id());
  std::string const text = memory_summary();
  EXPECT_NE(text.find("96 MiB belong to stream " + std::to_string(idle.id()) + ", which holds nothing else"), text.npos)
      << text;
  EXPECT_NE(text.find("64 MiB of stream " + std::to_string(busy.id()) + " on stream " + std::to_string(user.id())),
            text.npos)
      << text;
  EXPECT_EQ(text.find("failed for lack"), text.npos) << text;
  while (simulation::of(machine).step(user)) {}
  deallocate(allocate(busy, 64_MiB));
  EXPECT_EQ(memory_summary().find("may still be in use"), std::string::npos) << memory_summary();
}

TEST_F(snapshot, a_file_that_cannot_be_written_is_named) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB});
  runtime_guard const in(machine);
  auto const says = [](std::string const& path, std::string_view remedy) {
    std::string const said = test::refused([&] { dump_memory_snapshot(path); });
    EXPECT_NE(said.find(path), std::string::npos) << said;
    EXPECT_NE(said.find(remedy), std::string::npos) << said;
    EXPECT_EQ(said.find(" B free") != said.npos, remedy.ends_with(" B free")) << "the disk's room is another matter";
  };
  says("/no/such/folder/snapshot.pickle", "in a folder that is there");
  says(std::filesystem::temp_directory_path(), "Is a directory");
  if (std::filesystem::exists("/dev/full"))
    says("/dev/full", " B free");
}

// When its user is done.
TEST_F(snapshot, a_block_freed_before_recording_completes_in_trace) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(machine);
  stream home, user;
  void* const p = allocate(home, 5_MiB);
  {
    stream_guard const there(user);
    fill(p, std::byte{1}, 5_MiB);
  }
  record_memory_history();
  deallocate(p);
  record_memory_history();  // what was written so far is forgotten
  user.synchronize();
  void* const again = allocate(home, 5_MiB);
  value const all = dumped();
  bool completed = false;
  for (auto const& e : all["device_traces"].items.at(0)->items) {
    if ((*e)["action"].text != "free_completed")
      continue;
    completed |= (*e)["addr"].number == static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(p)) &&
                 (*e)["size"].number > 0;
  }
  EXPECT_TRUE(completed);
  deallocate(again);
}

TEST_F(snapshot, a_late_completion_has_its_requests_bytes_and_stream) {
  runtime machine(simulated{.devices = 1, .memory = 1_GiB, .schedule = simulated::scheduling::stepped});
  runtime_guard const in(machine);
  stream home, user;
  record_memory_history();
  void* const p = allocate(home, 5'000'000);
  {
    stream_guard const there(user);
    fill(p, std::byte{1}, 5'000'000);
  }
  record_stream(p, user);
  deallocate(p);
  user.synchronize();
  void* const again = allocate(home, 5'000'000);
  value const all = dumped();
  std::vector<std::string> frees;
  for (auto const& e : all["device_traces"].items.at(0)->items) {
    if (!(*e)["action"].text.starts_with("free_"))
      continue;
    frees.push_back((*e)["action"].text);
    EXPECT_EQ((*e)["size"].number, 5'000'000);
    EXPECT_EQ((*e)["stream"].number, static_cast<std::int64_t>(home.id()));
    if (frees.size() > 1)
      continue;
    EXPECT_EQ((*e)["still_used_by"].number, static_cast<std::int64_t>(user.id()));
  }
  EXPECT_EQ(frees, (std::vector<std::string>{"free_requested", "free_completed"}));
  deallocate(again);
}

}  // namespace
}  // namespace weir
