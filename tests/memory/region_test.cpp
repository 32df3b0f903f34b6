// The address space of a device: one reservation, and regions found by subtraction.
// Threads: one.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "runtime/memory/device/device_allocator.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"

namespace weir::memory {
namespace {

struct address_spaces : ::testing::Test {
  address_spaces() {
    auto made =
        driver::sim::make({.devices = 1, .memory = 4 << 20, .schedule = simulated::scheduling::stepped, .seed = 1});
    machine = std::move(made.machine);
    control = made.control;
    EXPECT_TRUE(machine->open(0).ok());
    info = machine->info(0).value;
  }
  std::unique_ptr<driver::driver> machine;
  driver::sim::controls* control;
  driver::device_info info;
  alignas(16) char place[sizeof(stream_heap)] = {};
  stream_heap& nobody = reinterpret_cast<stream_heap&>(place);  // only its address is kept
};

TEST_F(address_spaces, an_address_has_one_owner) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::vector<region*> all;
  while (region* const r = space.take(1, nobody)) all.push_back(r);
  ASSERT_GE(all.size(), 64u) << "many streams find room";
  std::size_t bytes = 0;
  for (region* r : all) {
    bytes += r->bytes;
    EXPECT_EQ(space.find(reinterpret_cast<void*>(r->base)), r);
    EXPECT_EQ(space.find(reinterpret_cast<void*>(r->base + r->bytes - 1)), r);
    EXPECT_NE(space.find(reinterpret_cast<void*>(r->base + r->bytes)), r);
  }
  EXPECT_EQ(bytes, 64 * info.total_memory) << "the whole reservation serves";
  EXPECT_EQ(space.find(&bytes), nullptr);
  EXPECT_EQ(space.find(nullptr), nullptr);
}

TEST_F(address_spaces, a_region_is_as_large_as_its_request) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  region* const r = space.take(40 * info.total_memory, nobody);
  ASSERT_NE(r, nullptr);
  EXPECT_GE(r->bytes, 40 * info.total_memory);
  EXPECT_EQ(space.take(40 * info.total_memory, nobody), nullptr);
}

TEST_F(address_spaces, the_reservation_is_halved_until_it_fits) {
  for (std::uint64_t k = 1; k <= 3; ++k) control->fail_call("reserve", k, driver::code::out_of_memory);
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t bytes = 0;
  while (region* const r = space.take(1, nobody)) bytes += r->bytes;
  EXPECT_EQ(bytes, 8 * info.total_memory);
}

TEST_F(address_spaces, the_least_reservation_is_the_devices_memory) {
  for (bool const fits : {true, false}) {
    for (std::uint64_t k = 1; k <= (fits ? 6 : 7); ++k) control->fail_call("reserve", k, driver::code::out_of_memory);
    address_space space(*machine, 0);
    EXPECT_EQ(space.open(info, 0).what, fits ? driver::code::ok : driver::code::out_of_memory);
    EXPECT_EQ(space.bytes(), fits ? info.total_memory : 0);
  }
}

// Another refusal is passed on.
TEST_F(address_spaces, its_size_is_an_option) {
  {
    address_space space(*machine, 0);
    ASSERT_TRUE(space.open(info, 16 << 20).ok());
    std::size_t bytes = 0;
    while (region* const r = space.take(1, nobody)) bytes += r->bytes;
    EXPECT_EQ(bytes, std::size_t{16} << 20);
  }
  control->fail_call("reserve", 1, driver::code::failed);
  address_space refused(*machine, 0);
  EXPECT_EQ(refused.open(info, 0).what, driver::code::failed);
}

TEST_F(address_spaces, the_reservation_is_given_back_at_the_end) {
  { address_space space(*machine, 0); ASSERT_TRUE(space.open(info, 0).ok()); }
  EXPECT_EQ(control->census(), std::vector<std::string>{});
}

TEST_F(address_spaces, handles_are_small_where_memory_would_idle) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t const page = space.page_bytes();
  // of all handles under a block, in pages
  auto const pages_of = [&](std::size_t block, std::size_t reserved, std::size_t blocks, double epsilon) {
    std::vector<std::size_t> out;
    auto const sizes = space.handles_under(block * page, {reserved * page, (reserved - block) * page, blocks}, epsilon);
    for (std::size_t left = block; left > 0; left -= out.back()) out.push_back(sizes.next(left * page) / page);
    return out;
  };
  using handles = std::vector<std::size_t>;
  EXPECT_EQ(pages_of(112, 4096, 20, 0.027), (handles{32, 32, 48}))
      << "what is left of a large block goes with its last handle";
  EXPECT_EQ(pages_of(113, 4096, 20, 0.027), (handles{32, 32, 32, 17}));
  EXPECT_EQ(pages_of(113, 511, 3, 0.027), (handles{32, 32, 32, 16, 1}))
      << "a program of less than a GiB has little idle memory";
  EXPECT_EQ(pages_of(113, 512, 3, 0.027), (handles{32, 32, 32, 17})) << "and blocks that are few leave few rests";
  EXPECT_EQ(pages_of(113, 4095, 40, 0.027), (handles{32, 32, 32, 16, 1})) << "of forty only where much is reserved";
  EXPECT_EQ(pages_of(113, 4096, 40, 0.027), (handles{32, 32, 32, 17}));
  EXPECT_EQ(pages_of(41, 4096, 20, 0.027), (handles{16, 16, 9}));
  EXPECT_EQ(pages_of(41, 4096, 400, 0.027), (handles{16, 16, 8, 1})) << "among blocks of ten pages a rest is much";
  EXPECT_EQ(pages_of(112, 4096, 600, 0.027), (handles{16, 16, 16, 16, 16, 16, 16}))
      << "many small blocks leave many free pieces";
  EXPECT_EQ(pages_of(6, 512, 20, 0.027), (handles{1, 1, 1, 1, 1, 1}))
      << "several small blocks on one handle keep it mapped";
  EXPECT_EQ(pages_of(20, 1024, 20, 0.01), (handles{2, 2, 2, 2, 2, 2, 2, 2, 2, 2})) << "a hundredth of it is little";
  EXPECT_EQ(pages_of(20, 8000, 20, 0.01), (handles{16, 4})) << "a hundredth of much is not";
  EXPECT_EQ(pages_of(3, 6400, 20, 0), (handles{1, 1, 1}));
}

TEST_F(address_spaces, handles_shrink_after_keeping_too_much_mapped) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t const page = space.page_bytes();
  // under 113 of 4,096 pages
  auto const sizes = [&](std::size_t blocks, std::size_t free_pieces, bool past_bound, double epsilon = 0.027) {
    return space.handles_under(113 * page,
                               {.reserved = 4096 * page,
                                .live = 3983 * page,
                                .blocks = blocks,
                                .free_pieces = free_pieces,
                                .past_bound = past_bound},
                               epsilon);
  };
  EXPECT_EQ(sizes(30, 27, false).most, 32 * page) << "as ever, where the bound had room";
  EXPECT_EQ(sizes(30, 27, true).most, 4 * page) << "221 pages among 28 pieces are 7, and 4 a power of two";
  EXPECT_EQ(sizes(30, 27, true).last, 0);
  EXPECT_EQ(sizes(30, 27, true).moved, 8 * page) << "what is much larger does not move";
  EXPECT_EQ(sizes(30, 5, true).most, 32 * page) << "few pieces";
  EXPECT_EQ(sizes(30, 500, true).most, page);
  EXPECT_EQ(sizes(70, 27, true).most, 4 * page) << "the blocks are more, but large";
  EXPECT_EQ(sizes(1000, 27, true).most, sizes(1000, 27, false).most)
      << "small blocks are many: they would be moved for ever";
  auto const among_many = [&](std::size_t reserved, bool past_bound, double epsilon = 0.027) {  // of two pages each
    return space.handles_under(113 * page,
                               {.reserved = reserved * page,
                                .live = (reserved - 113) * page,
                                .blocks = reserved / 2,
                                .free_pieces = 27,
                                .past_bound = past_bound},
                               epsilon);
  };
  EXPECT_EQ(among_many(512, false).most, 16 * page);
  EXPECT_EQ(among_many(512, true).most, 4 * page) << "half of what epsilon leaves idle is 6.9 pages";
  EXPECT_EQ(among_many(512, true, 0.05).most, 8 * page);
  EXPECT_EQ(among_many(2000, true).most, 16 * page) << "27 pages are more than it has anyway";
  EXPECT_EQ(sizes(30, 0, true).last, 48 * page) << "a rest goes with the last handle where these are as large as ever";
  EXPECT_EQ(
      space
          .handles_under(
              113 * page,
              {.reserved = 2000 * page, .live = 1887 * page, .blocks = 30, .free_pieces = 0, .past_bound = true}, 0.027)
          .last,
      0)
      << "and not where they are not";
  EXPECT_EQ(sizes(30, 27, true, 0.01).most, sizes(30, 27, false, 0.01).most)
      << "where little may be idle they are small already";
}

// Against a plain table of one word a granule:
// blocks that start anywhere, and runs that are entered at each granule.
TEST(granule_table, knows_the_last_entry_of_each_granule) {
  constexpr std::size_t granules = 64 * 12;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::minstd_rand random(seed);
    address const base = granule * (1 + random() % 1000);
    granule_table table(base, granules);
    std::vector<piece*> model(granules);
    std::deque<piece> pieces;
    unsigned const crowded = 1 + random() % 40;
    for (int step = 0; step < 600; ++step) {
      std::size_t const first = random() % granules,
                        last = random() % 4 ? first : std::min(granules - 1, first + random() % 100);
      if (piece* const there = model[first]) {
        for (std::size_t i = 0; i < granules; ++i) {
          if (model[i] == there) table.clear(i), model[i] = nullptr;
        }
        continue;
      }
      if (random() % 40 > crowded ||
          std::any_of(&model[first], &model[last] + 1, [](piece const* p) { return p != nullptr; }))
        continue;
      piece& p = pieces.emplace_back();
      p.at = base + first * granule + random() % 64 * bins::unit;
      for (std::size_t i = first; i <= last; ++i) table.set(i, model[i] = &p, first == last);
    }
    for (std::size_t i = 0; i < granules; ++i) {
      ASSERT_EQ(table.at(i), model[i]) << "granule " << i << ", seed " << seed;
      if (model[i]) {
        ASSERT_EQ(table.near(i), model[i]) << "granule " << i << ", seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace weir::memory
