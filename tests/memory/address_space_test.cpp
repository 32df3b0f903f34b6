// The address space of a device: one reservation, and regions found by subtraction.
// Threads: one.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/memory/space/address_space.h"
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
  char place = 0;
  stream_heap& no_heap = reinterpret_cast<stream_heap&>(place);  // only its address is used
};

TEST_F(address_spaces, an_address_has_one_owner) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::vector<region*> all;
  while (region* const r = space.take(1, no_heap))
    all.push_back(r);
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
  region* const r = space.take(40 * info.total_memory, no_heap);
  ASSERT_NE(r, nullptr);
  EXPECT_GE(r->bytes, 40 * info.total_memory);
  EXPECT_EQ(space.take(40 * info.total_memory, no_heap), nullptr);
}

TEST_F(address_spaces, the_reservation_is_halved_until_it_fits) {
  for (std::uint64_t k = 1; k <= 3; ++k)
    control->fail_call("reserve", k, driver::code::out_of_memory);
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t bytes = 0;
  while (region* const r = space.take(1, no_heap))
    bytes += r->bytes;
  EXPECT_EQ(bytes, 8 * info.total_memory);
}

TEST_F(address_spaces, the_least_reservation_is_the_devices_memory) {
  for (bool const fits : {true, false}) {
    for (std::uint64_t k = 1; k <= (fits ? 6 : 7); ++k)
      control->fail_call("reserve", k, driver::code::out_of_memory);
    address_space space(*machine, 0);
    EXPECT_EQ(space.open(info, 0).what, fits ? driver::code::ok : driver::code::out_of_memory);
    EXPECT_EQ(space.bytes(), fits ? info.total_memory : 0);
  }
}

// Any other refusal is passed on.
TEST_F(address_spaces, its_size_is_an_option) {
  {
    address_space space(*machine, 0);
    ASSERT_TRUE(space.open(info, 16 << 20).ok());
    std::size_t bytes = 0;
    while (region* const r = space.take(1, no_heap))
      bytes += r->bytes;
    EXPECT_EQ(bytes, std::size_t{16} << 20);
  }
  control->fail_call("reserve", 1, driver::code::failed);
  address_space refused(*machine, 0);
  EXPECT_EQ(refused.open(info, 0).what, driver::code::failed);
}

TEST_F(address_spaces, the_reservation_is_given_back_at_the_end) {
  {
    address_space space(*machine, 0);
    ASSERT_TRUE(space.open(info, 0).ok());
  }
  EXPECT_EQ(control->census(), std::vector<std::string>{});
}

TEST_F(address_spaces, handle_sizes_follow_block_and_reserved) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t const page = space.page_bytes();
  // the pages of each handle under a block
  auto const pages_of = [&](std::size_t block, std::size_t reserved, std::size_t capacity, double epsilon) {
    std::vector<std::size_t> out;
    auto const sizes = space.handles_under(block * page, reserved * page, capacity * page, epsilon);
    for (std::size_t left = block; left > 0; left -= out.back())
      out.push_back(sizes.next(left * page) / page);
    return out;
  };
  using handles = std::vector<std::size_t>;
  // An eighth of the capacity or more is reserved.
  EXPECT_EQ(pages_of(7, 16383, 16383, 0.02), (handles{1, 1, 1, 1, 1, 1, 1})) << "under 1/8192 of 16,384 pages";
  EXPECT_EQ(pages_of(7, 16384, 16384, 0.02), (handles{2, 2, 2, 1}));
  EXPECT_EQ(pages_of(7, 32768, 32768, 0), (handles{4, 2, 1})) << "whatever epsilon is";
  EXPECT_EQ(pages_of(70, 1 << 20, 1 << 20, 0), (handles{32, 32, 4, 2})) << "and never more than 32";
  EXPECT_EQ(pages_of(19, 4096, 4 * 8192, 0.02).front(), 2u) << "a fifth of the block is 3 pages";
  EXPECT_EQ(pages_of(21, 4096, 4 * 8192, 0.02).front(), 4u);
  EXPECT_EQ(pages_of(21, 4096, 4 * 8192 - 1, 0.02).front(), 2u) << "the capacity has room for fewer ends";
  EXPECT_EQ(pages_of(21, 4096, 8191, 0.02).front(), 1u);
  EXPECT_EQ(pages_of(21, 4096, 4 * 8192, 0.01).front(), 2u);
  EXPECT_EQ(pages_of(21, 4096, 4 * 8192, 0).front(), 1u);
}

TEST_F(address_spaces, handles_are_larger_where_there_is_room) {
  address_space space(*machine, 0);
  ASSERT_TRUE(space.open(info, 0).ok());
  std::size_t const page = space.page_bytes();
  auto const first_of = [&](std::size_t block, std::size_t reserved, std::size_t capacity, double epsilon) {
    return space.handles_under(block * page, reserved * page, capacity * page, epsilon).next(block * page) / page;
  };
  EXPECT_EQ(first_of(210, 1000, 8001, 0), 2u) << "1/256 of what is reserved";
  EXPECT_EQ(first_of(210, 1000, 8000, 0), 1u) << "an eighth of the capacity is reserved";
  EXPECT_EQ(first_of(210, 500, 4 * 4096, 0.02), 4u) << "1/4096 of the capacity";
  EXPECT_EQ(first_of(210, 500, 4 * 4096 - 1, 0.02), 2u);
  EXPECT_EQ(first_of(210, 128, 1 << 20, 0.02), 4u) << "1/32 of what is reserved";
  EXPECT_EQ(first_of(210, 127, 1 << 20, 0.02), 2u);
  EXPECT_EQ(first_of(21, 1000, 1 << 20, 0.02), 4u) << "a fifth of the block";
  EXPECT_EQ(first_of(210, 1 << 16, 1 << 20, 0.02), 32u) << "and never more than 32 pages";
}

}  // namespace
}  // namespace weir::memory
