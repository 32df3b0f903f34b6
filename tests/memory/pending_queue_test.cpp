// Pending blocks: which stamp each waits for, and what one poll costs.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "runtime/memory/blocks/pending_queue.h"

namespace weir::memory {
namespace {

pending_block block_of(heap_block& p, std::vector<clock::stamp> const& stamps) {
  return {&p, nullptr, 0, p.bytes, stamps};
}

TEST(pending_queue, a_block_waits_for_the_last_of_its_stamps) {
  pending_queue q;
  heap_block p;
  p.bytes = 512;
  q.push(block_of(p, {{1, 5}, {2, 3}}));
  std::map<std::uint64_t, std::uint64_t> done;
  int reclaimed = 0;
  auto const reclaim = [&] {
    q.reclaim([&](clock::stamp s, pending_block&) { return done[s.stream] >= s.n; },
              [&](pending_block const&) { ++reclaimed; });
  };
  done[2] = 3;
  reclaim();
  EXPECT_EQ(reclaimed, 0);
  EXPECT_EQ(q.fronts().front(), (clock::stamp{1, 5}));
  done[1] = 5;
  reclaim();
  EXPECT_EQ(reclaimed, 1);
  EXPECT_TRUE(q.empty());
  EXPECT_EQ(q.bytes(), 0u);
}

// A server's streams come and go while some block always waits.
TEST(pending_queue, streams_that_come_and_go_leave_no_entry) {
  pending_queue q;
  std::vector<heap_block> blocks(100'000);
  std::size_t most = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].bytes = 512;
    q.push(block_of(blocks[i], {{i + 1, 1}}));
    q.reclaim([&](clock::stamp s, pending_block&) { return s.stream + 3 <= i; }, [](pending_block const&) {});
    if (i % 100 == 0)
      most = std::max(most, q.newest().size());
  }
  EXPECT_LE(q.size(), 4u);
  EXPECT_LE(most, 200u) << "four blocks wait at a time";
  auto const all = q.newest();
  for (std::size_t stream : {blocks.size(), blocks.size() - 1})
    EXPECT_EQ(std::ranges::count(all, clock::stamp{stream, 1}), 1) << "a block waits for it";
}

TEST(pending_queue, settling_looks_at_one_more_block_a_stream) {
  pending_queue q;
  std::vector<heap_block> blocks(10'000);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].bytes = 512;
    q.push(block_of(blocks[i], {{1 + i % 4, i + 1}}));
  }
  std::size_t asked = 0, reclaimed = 0;
  std::uint64_t done = 0;
  auto const reclaim = [&] {
    q.reclaim([&](clock::stamp s, pending_block&) { return ++asked, s.n <= done; },
              [&](pending_block const&) { ++reclaimed; });
  };
  for (; done < blocks.size(); done += 100)
    reclaim();
  EXPECT_EQ(reclaimed, done - 100);
  EXPECT_LE(asked, 2 * reclaimed + 4 * 2 * (done / 100))
      << "amortized: twice what was settled, and one a stream each time";
}

TEST(pending_queue, only_the_sole_remaining_stream_takes_a_block) {
  pending_queue q;
  std::array<heap_block, 2> p;
  p[0].bytes = p[1].bytes = 512;
  q.push(block_of(p[0], {{1, 1}, {2, 1}}));
  q.push(block_of(p[1], {{2, 1}}));
  pending_block out;
  auto const alone = [](pending_block const& b) { return b.stamps.size() == 1; };
  EXPECT_FALSE(q.take(1, alone, out));
  EXPECT_FALSE(q.take(3, alone, out));
  ASSERT_TRUE(q.take(2, alone, out));
  EXPECT_EQ(out.block, &p[1]);
  EXPECT_EQ(q.bytes(), 512u);
}

TEST(pending_queue, the_smallest_fit_comes_first_then_the_oldest) {
  pending_queue q;
  std::mt19937_64 random(3);
  std::deque<heap_block> blocks;
  std::vector<std::pair<std::size_t, std::size_t>> model;  // bytes, turn
  for (std::size_t i = 0; i < 2000; ++i) {
    blocks.emplace_back().bytes = 512 * (1 + random() % 300);
    model.emplace_back(blocks.back().bytes, i + 1);
    q.push(block_of(blocks.back(), {{1 + random() % 5, i + 1}}));
  }
  std::sort(model.begin(), model.end());
  for (std::size_t const wanted :
       {std::size_t{1}, std::size_t{512 * 40}, std::size_t{512 * 300}, std::size_t{512 * 301}}) {
    auto expected = std::lower_bound(model.begin(), model.end(), std::pair{wanted, std::size_t{0}});
    int looked_at = 0;
    q.fitting(wanted, 64, [&](pending_block const& b) {
      EXPECT_NE(expected, model.end());
      EXPECT_EQ(std::pair(b.bytes, static_cast<std::size_t>(b.sequence)), *expected++);
      ++looked_at;
      return false;
    });
    EXPECT_LE(looked_at, 64);
    EXPECT_TRUE(looked_at == 64 || expected == model.end());
  }
  EXPECT_EQ(q.newest().size(), 5u);
}

TEST(pending_queue, the_oldest_is_taken_whatever_it_waits_for) {
  pending_queue q;
  std::deque<heap_block> blocks;
  for (std::uint64_t i = 0; i < 100; ++i) {
    blocks.emplace_back().bytes = 512;
    q.push(block_of(blocks.back(), {{1 + i % 3, i + 1}, {9, 1}}));
  }
  // those then wait for stream 9
  q.reclaim([&](clock::stamp s, pending_block&) { return s.stream == 2; },
            [&](pending_block const&) { ADD_FAILURE(); });
  for (heap_block& p : blocks) {
    ASSERT_EQ(q.oldest()->block, &p);
    heap_block const* out = nullptr;
    q.reclaim_oldest([&](pending_block const& b) { out = b.block; });
    EXPECT_EQ(out, &p);
  }
  EXPECT_EQ(q.oldest(), nullptr);
  EXPECT_TRUE(q.empty() && q.fronts().empty() && q.newest().empty());
  EXPECT_EQ(q.bytes(), 0u);
}

TEST(pending_queue, random_pushes_and_settlings_agree_with_a_list) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    std::mt19937_64 random(seed);
    pending_queue q;
    std::deque<heap_block> blocks;
    std::map<heap_block*, std::vector<clock::stamp>> model;
    std::array<std::uint64_t, 4> now{}, done{};
    for (int i = 0; i < 500; ++i) {
      if (random() % 2) {
        blocks.emplace_back().bytes = 512;
        std::vector<clock::stamp> stamps;
        for (std::uint64_t s = 0; s < 4; ++s) {
          if (random() % 3 == 0)
            stamps.push_back({s + 1, now[s] += random() % 3});
        }
        if (stamps.empty())
          continue;
        model[&blocks.back()] = stamps;
        q.push(block_of(blocks.back(), stamps));
      } else {
        std::size_t const s = random() % 4;
        done[s] = std::min(now[s], done[s] + random() % 5);
        auto const passed = [&](clock::stamp t) { return done[t.stream - 1] >= t.n; };
        q.reclaim([&](clock::stamp t, pending_block&) { return passed(t); },
                  [&](pending_block const& b) {
                    auto const found = model.find(b.block);
                    ASSERT_NE(found, model.end()) << "settled twice, seed " << seed;
                    for (clock::stamp t : found->second)
                      ASSERT_TRUE(passed(t)) << "settled too early, seed " << seed;
                    model.erase(found);
                  });
      }
    }
    done = now;
    q.reclaim([](clock::stamp, pending_block&) { return true; }, [&](pending_block const& b) { model.erase(b.block); });
    EXPECT_TRUE(model.empty()) << "a block was forgotten, seed " << seed;
    EXPECT_EQ(q.bytes(), 0u);
  }
}

}  // namespace
}  // namespace weir::memory
