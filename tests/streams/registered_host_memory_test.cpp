// Memory of the program's own that is page-locked while a registered_host_memory lives.
// Threads: one.
#include <optional>
#include <span>

#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

using test::held;

// It is pageable again afterwards.
TEST(registered_host_memory, is_copied_by_the_engine) {
  test::machine m;
  std::size_t const n = 300'001;
  auto mine = test::pattern(n, 1);
  buffer on_gpu(n, {.on = device(0)});
  stream s{device(0)};
  EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, copy_route::staged);
  {
    registered_host_memory const lock(mine);
    EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, copy_route::engine);
    held gate(m, s);
    EXPECT_FALSE(copy(s, on_gpu.data(), mine.data(), n, non_blocking).query());
    EXPECT_THROW(registered_host_memory twice{mine}, invalid_use) << "its pages are locked already";
    gate.open();
  }  // waits for the copy
  EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), n).by, copy_route::staged);
  EXPECT_EQ(test::read_back(on_gpu.data(), n, 0), mine);
  EXPECT_NO_THROW(registered_host_memory(std::span<std::byte>(mine.data(), 0)));
  EXPECT_THROW(registered_host_memory(std::span<std::byte>()), invalid_use);
  EXPECT_THROW(registered_host_memory(std::span(mine.data(), SIZE_MAX)), invalid_use);
  m.control().fail_call("pin", 1, driver::code::out_of_memory);
  EXPECT_THROW(registered_host_memory{mine}, driver_error);
  registered_host_memory const again(mine);
}

// A capture forbids it, for one.
TEST(registered_host_memory, unlocks_refused_pages_later) {
  test::machine m;
  alignas(64 << 10) static std::byte pages[2][128 << 10];
  std::span const mine(pages[0]), other(pages[1]);
  buffer on_gpu(mine.size(), {.on = device(0)});
  auto const route_of_mine = [&] { return explain_copy(on_gpu.data(), mine.data(), mine.size()).by; };
  auto const refuse_unlock = [&](std::uint64_t times) {
    registered_host_memory const lock(mine);
    for (std::uint64_t k = 1; k <= times; ++k) m.control().fail_call("unpin", k, driver::code::not_permitted);
  };
  refuse_unlock(1);
  EXPECT_NO_THROW(registered_host_memory{mine});
  EXPECT_EQ(route_of_mine(), copy_route::staged);
  refuse_unlock(1);
  EXPECT_NO_THROW(registered_host_memory{other});
  EXPECT_EQ(route_of_mine(), copy_route::staged);
  {
    registered_host_memory const before(other);
    refuse_unlock(1);
    EXPECT_EQ(route_of_mine(), copy_route::engine);
  }
  EXPECT_EQ(route_of_mine(), copy_route::staged) << "with the end of another range";
  refuse_unlock(2);
  EXPECT_THROW(registered_host_memory{mine}, invalid_use) << "refused again";
  EXPECT_NO_THROW(registered_host_memory{mine});
  EXPECT_EQ(route_of_mine(), copy_route::staged);
}

TEST(registered_host_memory, is_unlocked_by_a_runtime_that_ends) {
  struct unlocks final : driver::fault_injector::watcher {
    int n = 0;
    void comes(driver::call c) noexcept override { n += c == driver::call::unpin; }
  } counted;
  alignas(64 << 10) static std::byte pages[2][128 << 10];
  std::span const mine(pages[0]), refused(pages[1]);
  std::optional<registered_host_memory> lock;
  {
    test::machine m;
    lock.emplace(mine);
    {
      registered_host_memory const one(refused);
      m.control().fail_call("unpin", 1, driver::code::failed);
    }
    m.control().refusing().watch(&counted);
  }
  EXPECT_EQ(counted.n, 2);
  test::machine next;
  registered_host_memory const there(mine);
  lock.reset();
  EXPECT_EQ(explain_copy(buffer(1000).data(), mine.data(), 1000).by, copy_route::engine) << "it is the other runtime's";
}

}  // namespace
}  // namespace weir
