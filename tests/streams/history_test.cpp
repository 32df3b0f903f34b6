// History: what is written down is what happened, sums by line are a recount,
// also under threads and after the ring forgot.
#include "weir/observe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "runtime/base/process.h"
#include "runtime/observe/history.h"
#include "weir/collective.h"
#include "weir/memory.h"
#include "weir/pool.h"
#include "weir/stream.h"
#include "weir/tensor.h"

namespace weir {
namespace {

struct history : testing::Test {
  runtime machine{simulated{.devices = 2, .memory = 1_GiB}};
  runtime_guard in{machine};
  ~history() override { stop_memory_history(); }
  static line_statistics at_line(unsigned line, device on = gpu) {
    for (auto const& l : memory_by_line(on)) {
      if (l.where.line() == line && l.where.file_name() &&
          std::string_view(l.where.file_name()).ends_with("history_test.cpp"))
        return l;
    }
    return {};
  }
};

TEST_F(history, an_allocation_and_its_free_are_two_events) {
  record_memory_history();
  void* const p = allocate(1000);
  unsigned const line = __LINE__ - 1;
  deallocate(p);
  auto const all = memory_history();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].what, "alloc");
  EXPECT_EQ(all[0].where.line(), line);
  EXPECT_EQ(all[0].bytes, 1000u);
  EXPECT_EQ(all[0].address, reinterpret_cast<std::uintptr_t>(p));
  EXPECT_EQ(all[0].stream, current_stream().id());
  EXPECT_EQ(all[1].what, "free");
  EXPECT_EQ(all[1].where.line(), line + 2);
  EXPECT_EQ(all[1].bytes, 1000u);
  EXPECT_EQ(all[1].address, all[0].address);
  EXPECT_GE(all[1].ns, all[0].ns);
}

TEST_F(history, nothing_is_written_before_and_after) {
  void* const before = allocate(100);
  record_memory_history();
  deallocate(before);
  stop_memory_history();
  deallocate(allocate(200));
  ASSERT_EQ(memory_history().size(), 1u) << "the free of the block from before";
  EXPECT_TRUE(memory_by_line().empty());
}

// The block's owner, another thread or any call may free it.
TEST_F(history, the_free_of_a_block_from_before_is_whole) {
  stream side;
  void *const plain = allocate(700), *const of_a_stream = allocate(side, 5_MiB);
  std::optional<buffer> owned(std::in_place, 3000),
      pinned(std::in_place, 300, buffer_options{.kind = memory_kind::pinned});
  std::optional<std::vector<int, pinned_allocator<int>>> listed(std::in_place, 100);
  pool const steps("steps");
  std::optional<pool_guard> from_pool(std::in_place, steps);
  void* const pooled = allocate(64_KiB);
  from_pool.reset();
  record_memory_history();
  EXPECT_THROW(deallocate(static_cast<std::byte*>(of_a_stream) + 1), invalid_use);
  deallocate(plain);
  deallocate(side, of_a_stream);
  owned.reset();
  pinned.reset();
  listed.reset();
  std::thread([&] {
    runtime_guard const here{machine};
    deallocate(pooled);
  }).join();
  auto const sizes = [](device on) {
    std::vector<size_t> out;
    for (memory_event const& e : memory_history(on)) {
      EXPECT_EQ(e.what, "free");
      out.push_back(e.bytes);
    }
    return out;
  };
  EXPECT_EQ(sizes(gpu), (std::vector<size_t>{700, 5_MiB, 3000, 64_KiB}));
  EXPECT_EQ(memory_history()[1].stream, side.id());
  EXPECT_EQ(sizes(cpu), (std::vector<size_t>{300, 400}));
  EXPECT_TRUE(memory_by_line().empty());
}

TEST_F(history, every_way_to_take_memory_is_written) {
  record_memory_history();
  stream side;
  {
    buffer const one(100), three(300, {.kind = memory_kind::pinned});
    tensor const x = empty({25});
    void* const q = allocate(side, 500);
    EXPECT_EQ(memory_by_line().size(), 3u);
    EXPECT_EQ(memory_by_line(cpu).size(), 1u);
    EXPECT_EQ(memory_by_line(cpu)[0].bytes, 300);
    deallocate(side, q);
  }
  for (device const d : {gpu, cpu}) {
    for (auto const& l : memory_by_line(d))
      EXPECT_EQ(l.bytes, 0) << l.where.line();
  }
  EXPECT_EQ(memory_history().size(), 6u);
  EXPECT_EQ(memory_history(cpu).size(), 2u);
}

TEST_F(history, the_block_of_gradient_buckets_is_written) {
  auto ranks = communicator::create_all(std::vector<device>{device(0)});
  record_memory_history();
  {
    gradient_buckets all(ranks[0]);
    all.add("weights", 1000);
    all.build();
    ASSERT_EQ(memory_by_line().size(), 1u);
    EXPECT_GE(memory_by_line()[0].bytes, 8000);
  }
  ASSERT_EQ(memory_by_line().size(), 1u);
  EXPECT_EQ(memory_by_line()[0].bytes, 0);
}

TEST_F(history, devices_and_runtimes_are_kept_apart) {
  record_memory_history();
  buffer const here_one(100), there(200, {.on = device(1)});
  runtime other{simulated{.devices = 1, .memory = 1_GiB}};
  runtime_guard const also{other};
  buffer const elsewhere(400);
  EXPECT_EQ(memory_history().size(), 1u);
  EXPECT_EQ(memory_history()[0].bytes, 400u);
  runtime_guard const back{machine};
  EXPECT_EQ(memory_history()[0].bytes, 100u);
  EXPECT_EQ(memory_history(device(1))[0].bytes, 200u);
}

TEST_F(history, the_peak_by_line_has_the_live_bytes_then) {
  record_memory_history();
  auto const take_a = [](size_t n) { return buffer(n); };
  unsigned const a = __LINE__ - 1;
  auto const take_b = [](size_t n) { return buffer(n); };
  unsigned const b = __LINE__ - 1;
  {
    buffer const one = take_a(1000);
    buffer const two = take_b(5000);  // 6000 in all
  }
  buffer const three = take_a(3000);
  buffer const four = take_b(2000);  // 5000: no peak
  EXPECT_EQ(at_line(a).bytes_at_peak, 1000);
  EXPECT_EQ(at_line(b).bytes_at_peak, 5000);
  EXPECT_EQ(at_line(a).bytes, 3000);
  EXPECT_EQ(at_line(b).bytes, 2000);
  buffer const five = take_a(2000);  // 7000
  EXPECT_EQ(at_line(a).bytes_at_peak, 5000);
  EXPECT_EQ(at_line(b).bytes_at_peak, 2000);
  EXPECT_EQ(at_line(a).blocks_at_peak, 2);
  EXPECT_EQ(at_line(a).total_blocks, 3);
}

// Programs of several threads that free each other's blocks:
// sums by line equal a recount, whatever the ring forgot.
TEST_F(history, sums_by_line_are_a_recount_under_threads) {
  record_memory_history({.events = 64});
  constexpr int threads = 4, steps = 3000;
  std::vector<std::vector<std::pair<void*, size_t>>> held(threads);
  std::vector<std::thread> workers;
  std::vector<std::int64_t> taken(threads);
  std::mutex exchange;
  std::vector<std::pair<void*, size_t>> common;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      runtime_guard const mine{machine};
      std::mt19937_64 random(static_cast<std::uint64_t>(t) + 1);
      auto& own = held[static_cast<size_t>(t)];
      for (int i = 0; i < steps; ++i) {
        if (random() % 2 || own.empty()) {
          size_t const bytes = 1 + random() % (random() % 8 ? 2000 : 100000);
          own.emplace_back(allocate(bytes), bytes);
          taken[static_cast<size_t>(t)] += static_cast<std::int64_t>(bytes);
        } else {
          std::pair<void*, size_t> mine_now = own.back();
          own.pop_back();
          std::lock_guard const hold(exchange);
          common.push_back(mine_now);
        }
        void* theirs = nullptr;
        if (std::lock_guard const hold(exchange); common.size() > 20)
          theirs = common.front().first, common.erase(common.begin());
        if (theirs)
          deallocate(theirs);
      }
    });
  }
  for (auto& t : workers)
    t.join();
  std::int64_t live = 0, ever = 0, blocks = 0;
  for (auto const& own : held) {
    for (auto const& [p, bytes] : own)
      live += static_cast<std::int64_t>(bytes), ++blocks;
  }
  for (auto const& [p, bytes] : common)
    live += static_cast<std::int64_t>(bytes), ++blocks;
  for (std::int64_t const n : taken)
    ever += n;
  ASSERT_EQ(memory_by_line().size(), 1u);
  line_statistics const l = memory_by_line()[0];
  EXPECT_EQ(l.bytes, live);
  EXPECT_EQ(l.blocks, blocks);
  EXPECT_EQ(l.total_bytes, ever);
  EXPECT_GE(l.bytes_at_peak, live);
  EXPECT_EQ(memory_history().size(), 64u);
  for (auto const& own : held) {
    for (auto const& [p, bytes] : own)
      deallocate(p);
  }
  for (auto const& [p, bytes] : common)
    deallocate(p);
  EXPECT_EQ(memory_by_line()[0].bytes, 0);
  EXPECT_EQ(memory_by_line()[0].blocks, 0);
}

TEST_F(history, the_end_of_its_thread_loses_nothing) {
  record_memory_history();
  std::thread([&] {
    runtime_guard const mine{machine};
    for (int i = 0; i < 700; ++i)
      deallocate(allocate(64));
  }).join();
  EXPECT_EQ(memory_history().size(), 1400u);
}

TEST_F(history, failed_allocations_and_frees_change_no_sums) {
  record_memory_history();
  EXPECT_THROW((void)allocate(2_GiB), out_of_memory);
  void* const p = allocate(100);
  EXPECT_THROW(deallocate(static_cast<std::byte*>(p) + 8), invalid_use);
  ASSERT_EQ(memory_by_line().size(), 1u);
  EXPECT_EQ(memory_by_line()[0].bytes, 100);
  EXPECT_EQ(memory_history()[0].what, "oom");
  deallocate(p);
  EXPECT_THROW(deallocate(p), invalid_use);
  EXPECT_EQ(memory_by_line()[0].bytes, 0);
}

TEST_F(history, stacks_are_taken_on_request) {
  record_memory_history({.stacks = true});
  deallocate(allocate(100));
  auto const all = memory_history();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_GE(all[0].stack.size(), 2u);
  EXPECT_TRUE(all[1].stack.empty());
}

// Without an end a history takes all memory there is (pytorch#155889, #129674).
// Where there is room for fewer.
TEST_F(history, the_newest_events_are_kept_and_sums_count_all) {
  record_memory_history({.events = 100});
  std::vector<buffer> all;
  for (std::size_t i = 0; i < 2000; ++i)
    all.push_back(buffer(100 + i));
  unsigned const line = __LINE__ - 1;
  auto const kept = memory_history();
  ASSERT_EQ(kept.size(), 100u);
  for (std::size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(kept[i].bytes, 2000 + i);
  EXPECT_GE(observe::history::process().forgotten(), 1900u);  // pages that were mapped are events, too
  EXPECT_EQ(at_line(line).blocks, 2000);
  all.clear();
  EXPECT_EQ(at_line(line).blocks, 0);
  EXPECT_EQ(memory_history().size(), 100u);
}

TEST_F(history, room_for_no_event_is_refused) {
  EXPECT_THROW(record_memory_history({.events = 0}), invalid_use);
}

TEST_F(history, a_tracker_prints_new_and_vanished_blocks) {
  std::ostringstream out;
  memory_tracker tracker(out);
  buffer one(4096);
  auto const line = std::string("streams/history_test.cpp:").append(std::to_string(__LINE__ - 1));
  tracker.track();
  EXPECT_NE(out.str().find("+4 KiB in +1 of " + line), std::string::npos) << out.str();
  EXPECT_NE(out.str().find("+4 KiB in +1 block\n"), std::string::npos) << out.str();
  out.str("");
  tracker.track();
  EXPECT_NE(out.str().find("+0 B in +0 blocks\n"), std::string::npos) << out.str();
  one = {};
  out.str("");
  tracker.track();
  EXPECT_NE(out.str().find("-4 KiB in -1 of " + line), std::string::npos) << out.str();
}

// Two trackers look whether a history is recorded, and one of them starts it. The other would discard its block.
TEST(history_among_threads, a_start_if_off_discards_nothing) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto const until = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  for (std::size_t found = 2; found == 2 && std::chrono::steady_clock::now() < until;) {
    std::atomic<int> ready{0};
    void* blocks[2] = {};
    auto const track_and_allocate = [&](void*& block) {
      runtime_guard const here(machine);
      std::ostringstream out;
      ready.fetch_add(1);
      while (ready.load() < 2) {}
      memory_tracker const tracker(out);
      block = allocate(1000);
    };
    std::thread another([&] { track_and_allocate(blocks[0]); });
    track_and_allocate(blocks[1]);
    another.join();
    found = memory_history().size();
    EXPECT_EQ(found, 2u);
    stop_memory_history();
    deallocate(blocks[0]), deallocate(blocks[1]);
  }
}

// An even version opens the fast paths, which record nothing.
TEST(history_among_threads, turns_keep_the_fast_paths_closed) {
  std::uint64_t const off = fast_path_version();
  std::atomic<bool> over{false};
  std::vector<std::thread> turning;
  for (int i = 0; i < 4; ++i) {
    turning.emplace_back([&] {
      while (!over) {
        record_memory_history({.events = 1});
        stop_memory_history();
      }
    });
  }
  std::uint64_t wrong = 0;
  auto const until = std::chrono::steady_clock::now() + std::chrono::milliseconds(800);
  while (!wrong && std::chrono::steady_clock::now() < until) {
    std::uint64_t const seen = fast_path_version();
    if (seen != off && seen != off + 1)
      wrong = seen;
  }
  over = true;
  for (auto& one : turning)
    one.join();
  EXPECT_EQ(wrong, 0u) << "with " << off << " while nothing is recorded";
  EXPECT_EQ(fast_path_version(), off);
}

TEST_F(history, the_table_by_line_names_file_and_line) {
  record_memory_history();
  buffer const one(3_MiB);
  std::string const text = format(memory_by_line());
  EXPECT_NE(text.find("3 MiB"), std::string::npos) << text;
  EXPECT_NE(text.find("streams/history_test.cpp:" + std::to_string(__LINE__ - 3)), std::string::npos) << text;
}

TEST_F(history, lines_are_sorted_by_bytes_then_by_first_allocation) {
  record_memory_history();
  buffer const small(4096);
  buffer const first(3_MiB);
  buffer const second(3_MiB);
  unsigned const line = __LINE__ - 3;
  std::vector<unsigned> order;
  for (auto const& l : memory_by_line())
    order.push_back(l.where.line());
  EXPECT_EQ(order, (std::vector{line + 1, line + 2, line}));
}

TEST_F(history, a_tracker_prints_the_lines_that_grew_most_first) {
  std::ostringstream out;
  memory_tracker tracker(out);
  buffer const small(4096), same(4096);
  unsigned const line = __LINE__ - 1;
  buffer const large(3_MiB);
  tracker.track();
  auto const place = [&](unsigned l) { return out.str().find("history_test.cpp:" + std::to_string(l)); };
  ASSERT_NE(place(line), std::string::npos) << out.str();
  EXPECT_LT(out.str().find("+3 MiB in +1 of"), place(line)) << out.str();
  EXPECT_NE(out.str().find(" in +3 blocks\n"), std::string::npos) << "in all: " << out.str();
}

}  // namespace
}  // namespace weir
