// Memory of the program's own that is page-locked while a pinned_range lives.
// Threads: one.
#include <optional>
#include <span>

#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

using test::held;

// It is pageable again afterwards.
TEST(pinned_range, is_copied_by_the_engine_while_it_lives) {
  test::machine m;
  std::size_t const n = 300'001;
  auto mine = test::pattern(n, 1);
  buffer on_gpu(n, {.on = device(0)});
  stream s{device(0)};
  EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, route::staged);
  {
    pinned_range const lock(mine);
    EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, route::engine);
    held gate(m, s);
    EXPECT_FALSE(copy(s, on_gpu.data(), mine.data(), n, non_blocking).query());
    EXPECT_THROW(pinned_range twice{mine}, invalid_use) << "its pages are locked already";
    gate.open();
  }  // waits for the copy
  EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, route::staged);
  EXPECT_EQ(test::read_back(on_gpu.data(), n, 0), mine);
  EXPECT_NO_THROW(pinned_range(std::span<std::byte>(mine.data(), 0)));
  EXPECT_THROW(pinned_range(std::span<std::byte>()), invalid_use);
  EXPECT_THROW(pinned_range(std::span(mine.data(), SIZE_MAX)), invalid_use);
  m.control().fail_call("pin", 1, driver::code::out_of_memory);
  EXPECT_THROW(pinned_range{mine}, driver_error);
  pinned_range const again(mine);
}

// A capture forbids it, for one.
TEST(pinned_range, pages_not_unlocked_are_unlocked_with_the_next) {
  test::machine m;
  alignas(64 << 10) static std::byte pages[2][128 << 10];
  std::span const mine(pages[0]), other(pages[1]);
  buffer on_gpu(mine.size(), {.on = device(0)});
  auto const route_of_mine = [&] { return explain_copy(on_gpu.data(), mine.data(), mine.size()).by; };
  auto const refuse_unlock = [&](std::uint64_t times) {
    pinned_range const lock(mine);
    for (std::uint64_t k = 1; k <= times; ++k) m.control().fail_call("unpin", k, driver::code::not_permitted);
  };
  refuse_unlock(1);
  EXPECT_NO_THROW(pinned_range{mine});
  EXPECT_EQ(route_of_mine(), route::staged);
  refuse_unlock(1);
  EXPECT_NO_THROW(pinned_range{other});
  EXPECT_EQ(route_of_mine(), route::staged);
  {
    pinned_range const before(other);
    refuse_unlock(1);
    EXPECT_EQ(route_of_mine(), route::engine);
  }
  EXPECT_EQ(route_of_mine(), route::staged) << "with the end of another range";
  refuse_unlock(2);
  EXPECT_THROW(pinned_range{mine}, invalid_use) << "refused again";
  EXPECT_NO_THROW(pinned_range{mine});
  EXPECT_EQ(route_of_mine(), route::staged);
}

TEST(pinned_range, a_runtime_that_ends_first_unlocks_the_pages) {
  struct unlocks final : driver::faulty::watcher {
    int n = 0;
    void comes(driver::call c) noexcept override { n += c == driver::call::unpin; }
  } counted;
  alignas(64 << 10) static std::byte pages[2][128 << 10];
  std::span const mine(pages[0]), refused(pages[1]);
  std::optional<pinned_range> lock;
  {
    test::machine m;
    lock.emplace(mine);
    {
      pinned_range const one(refused);
      m.control().fail_call("unpin", 1, driver::code::failed);
    }
    dynamic_cast<driver::faulty&>(m.control()).watch(&counted);
  }
  EXPECT_EQ(counted.n, 2);
  test::machine next;
  pinned_range const there(mine);
  lock.reset();
  EXPECT_EQ(explain_copy(buffer(1000).data(), mine.data(), 1000).by, route::engine) << "it is the other runtime's";
}

}  // namespace
}  // namespace weir
