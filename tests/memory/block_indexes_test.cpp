// The indexes of free blocks: the lowest fit against a scan, and bins by size.
// Threads: one.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "runtime/memory/device/device_allocator.h"
#include "tests/memory/names.h"

namespace weir::memory {
namespace {

TEST(lowest_fit, agrees_with_a_scan) {
  // Pages: of one leaf, a few leaves, many leaves.
  for (std::size_t n : {std::size_t{8}, std::size_t{200}, std::size_t{1200}, std::size_t{10'000}}) {
    std::mt19937_64 random(n);
    region in(page, n * page, page, nullptr);
    lowest_fit all(n);
    // Key: a group of four pages. Each block starts in one of the first three pages of its group.
    std::map<std::size_t, std::unique_ptr<heap_block>> plain;
    auto const begin = [&](heap_block& p, std::size_t fourth, std::size_t bytes) {
      p.at = in.base + (fourth * 4 + random() % 3) * page + random() % 3 * bins::unit, p.bytes = bytes;
    };
    for (int i = 0; i < 6000; ++i) {
      std::size_t const at = random() % n / 4;
      bool const more = random() % 300 == 0;  // now and then most blocks go
      auto& p = plain[at];
      std::size_t const bytes = (2 + random() % 100) * lowest_fit::unit;
      if (!p) {
        p = std::make_unique<heap_block>();
        p->in = &in;
        begin(*p, at, bytes);
        all.insert(*p);
      } else if (random() % 3) {
        begin(*p, at, bytes);  // maybe in another page, which may belong to another leaf
        all.change(*p);
      } else {
        all.erase(*p);
        plain.erase(at);
      }
      if (more) {
        std::erase_if(plain, [&](auto const& q) {
          bool const goes = random() % 8 != 0;
          if (goes)
            all.erase(*q.second);
          return goes;
        });
      }
      ASSERT_EQ(all.validate(
                    [&](std::size_t leaf) { ADD_FAILURE() << "leaf " << leaf << " of " << n << " pages, step " << i; }),
                plain.size());
      std::size_t const from = random() % 2 ? 0 : random() % (n + 1),
                        wanted = (random() % 110 + 1) * lowest_fit::unit - random() % 2;
      auto const found = std::find_if(plain.begin(), plain.end(), [&](auto const& q) {
        return in.page_index(q.second->at) >= from && q.second->bytes >= wanted;
      });
      ASSERT_EQ(all.find(wanted, from), found == plain.end() ? nullptr : found->second.get())
          << n << " pages, step " << i;
    }
  }
}

// All blocks have one size. A walk over a given number of leaves shows how many blocks a leaf has. Of equal
// blocks the last one inserted or changed is the tightest.
TEST(lowest_fit, sixty_four_lie_in_one_leaf) {
  region in(page, 4096 * page, page, nullptr);
  lowest_fit all(4096);
  std::vector<heap_block> blocks(1000);
  auto const visited = [&](std::size_t leaves) {
    std::size_t n = 0;
    all.each([&](heap_block&) { ++n; }, leaves);
    return n;
  };
  auto const tightest = [&] { return all.tightest(4 * page, [](heap_block const&) { return true; }); };
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].in = &in, blocks[i].at = in.base + 4 * i * page, blocks[i].bytes = 4 * page;
    all.insert(blocks[i]);
    if (i == 63) {
      EXPECT_EQ(visited(1), 64u);
      EXPECT_EQ(tightest(), &blocks[63]);
    }
    if (i == 63 || i == 200) {
      all.change(blocks[10]);
      EXPECT_EQ(tightest(), &blocks[10]) << "of " << i + 1;
    }
  }
  EXPECT_LT(visited(lowest_fit::some_leaves), visited(lowest_fit::some_leaves + 1));
}

TEST(bins, a_piece_of_the_next_bin_fits) {
  bins b;
  std::vector<heap_block> blocks(100);
  for (std::size_t i = 0; i < 99; ++i) {
    blocks[i].bytes = 100 * bins::unit;  // all in one bin with those of 101 units
    b.insert(blocks[i]);
  }
  blocks[99].bytes = 4000 * bins::unit;
  b.insert(blocks[99]);
  EXPECT_EQ(b.find(101 * bins::unit, [](heap_block const&) { return true; }), &blocks[99]);
  EXPECT_EQ(b.find(100 * bins::unit, [](heap_block const&) { return true; })->bytes, 100 * bins::unit);
  EXPECT_EQ(b.find(4001 * bins::unit, [](heap_block const&) { return true; }), nullptr);
}

}  // namespace
}  // namespace weir::memory
