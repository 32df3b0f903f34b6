// Registered memory on GPUs if there are any, else on simulated devices: ranges that share a page, whose copies the
// driver would refuse over the end of a registration.
// Threads: one.
#include <cstdlib>
#include <memory>
#include <span>

#include "streams/pinned/locked_ranges.h"
#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

std::unique_ptr<test::machine> gpus_or_simulated() {
  auto gpus = test::machine::of_gpus();
  return gpus ? std::move(gpus) : std::make_unique<test::machine>();
}

constexpr std::size_t page = 4096, bytes = 16 * page;

// The reason for what locked_ranges does. Of a copy over two registrations the driver may think what it likes.
TEST(registered_pages, the_driver_locks_no_page_twice) {
  auto const m = gpus_or_simulated();
  alignas(page) static std::byte memory[bytes];
  m->get().open_any(0, "a test", source_location::current());
  ASSERT_TRUE(m->driver().pin(memory, 2 * page).ok());
  EXPECT_EQ(m->driver().pin(memory + page, 2 * page).what, driver::code::invalid);
  EXPECT_TRUE(m->driver().unpin(memory).ok());
}

TEST(registered_pages, copies_of_ranges_on_one_page_are_right) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "open: the checker takes the end of a registration for a free";
  auto const m = gpus_or_simulated();
  alignas(page) static std::byte memory[bytes];
  stream s{device(0)};
  buffer on_gpu(s, bytes);
  auto const expected = test::pattern(bytes, 3);
  constexpr std::size_t cut = 5 * page + 1000;
  auto first = std::make_unique<registered_host_memory>(std::span(memory, cut));
  auto const second = std::make_unique<registered_host_memory>(std::span(memory + cut, bytes - cut));
  for (bool const both : {true, false}) {
    if (!both)
      first.reset();
    struct part {
      std::size_t at, n;
    } const parts[] = {{0, bytes}, {cut, bytes - cut}, {cut - 1, 2}, {cut + 1, page}};
    for (auto const [at, n] : parts) {
      std::memcpy(memory, expected.data(), bytes);
      copy(s, on_gpu.data<std::byte>() + at, memory + at, n, non_blocking);
      s.synchronize();
      std::memset(memory + at, 0, n);
      copy(s, memory + at, on_gpu.data<std::byte>() + at, n, non_blocking);
      s.synchronize();
      EXPECT_EQ(std::memcmp(memory, expected.data(), bytes), 0) << n << " B from " << at << (both ? "" : ", one left");
    }
  }
  EXPECT_EQ(m->get().part<streams::locked_ranges>().validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
