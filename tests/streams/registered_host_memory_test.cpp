// Memory of the program's own that is page-locked while a registered_host_memory lives.
// Threads: one.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "streams/pinned/locked_ranges.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"

namespace weir {
namespace {

using test::held;

// Such a range is pageable to an engine, and the driver would read it after the call.
TEST(registered_host_memory, a_small_copy_that_leaves_it_goes_through_a_slot) {
  test::machine m;
  alignas(4096) static std::byte pages[8 << 10];
  registered_host_memory const first(std::span(pages, 4096));
  stream s{device(0)};
  buffer on_gpu(s, sizeof pages);
  auto const expected = test::pattern(sizeof pages, 7);
  std::memcpy(pages, expected.data(), sizeof pages);
  copy(s, on_gpu.data(), pages, sizeof pages, non_blocking);
  std::memset(pages, 0, sizeof pages);
  copy(s, pages, on_gpu.data(), sizeof pages);
  EXPECT_EQ(std::memcmp(pages, expected.data(), sizeof pages), 0);
}

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
    EXPECT_THROW(registered_host_memory twice{mine}, invalid_use) << "its bytes are registered already";
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

TEST(registered_host_memory, wraps_around_from_the_last_page) {
  test::machine m;
  auto* const last = reinterpret_cast<std::byte*>(~std::uintptr_t{0});
  std::string const said = test::refused([&] { registered_host_memory const one(std::span(last, 10)); });
  EXPECT_NE(said.find("wraps around the address space"), std::string::npos) << said;
}

// Two threads register ranges with common bytes: at any time at most one of them has succeeded.
TEST(registered_host_memory, overlaps_of_two_threads_are_refused) {
  test::machine m;
  auto mine = test::pattern(1 << 20, 1);
  std::barrier<> both(2);
  std::atomic<int> held = 0, most = 0;
  runtime& here = runtime::current();
  auto const register_it = [&](std::span<std::byte> its) {
    runtime_guard const in(here);
    for (int k = 0; k < 500; ++k) {
      both.arrive_and_wait();
      try {
        registered_host_memory const lock(its);
        int const now = ++held;
        most = std::max(most.load(), now);
        both.arrive_and_wait();
        --held;
      } catch (invalid_use const& e) {
        EXPECT_EQ(e.id(), error_id{457}) << e.what();
        both.arrive_and_wait();
      }
    }
  };
  std::jthread const other(register_it, std::span(mine).subspan(0, 600'000));
  register_it(std::span(mine).subspan(500'000));
  EXPECT_EQ(most, 1);
  EXPECT_EQ(m.get().part<streams::locked_ranges>().validate(), std::vector<std::string>{});
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
    for (std::uint64_t k = 1; k <= times; ++k)
      m.control().fail_call("unpin", k, driver::code::not_permitted);
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
  EXPECT_NO_THROW(registered_host_memory{mine}) << "refused again, so that it takes the pages that stayed locked";
  EXPECT_NO_THROW(registered_host_memory{mine});
  EXPECT_EQ(route_of_mine(), copy_route::staged);
}

// Regression: its end waited for the device by a call that spoiled the captures of all threads, in every mode.
TEST(registered_host_memory, ends_beside_captures_of_others) {
  for (auto const mode :
       {driver::capture_mode::global, driver::capture_mode::this_thread, driver::capture_mode::relaxed}) {
    test::machine m;
    auto mine = test::pattern(300'001, 1), other = test::pattern(100, 2);
    buffer on_gpu(mine.size(), {.on = device(0)});
    stream const s{device(0)}, captured{device(0)};
    EXPECT_TRUE(m.driver().begin_capture(0, streams::clock_of(captured).handle(), mode).ok());
    std::thread([&] {
      runtime_guard const here(m.own);
      registered_host_memory const lock(mine);
      copy(s, on_gpu.data(), mine.data(), mine.size(), non_blocking);
      s.synchronize();  // the end cannot wait beside a capture
    }).join();          // ends it
    auto const kept = m.driver().end_capture(0, streams::clock_of(captured).handle());
    EXPECT_TRUE(kept.ok()) << "the capture was spoiled";
    EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), mine.size()).by, copy_route::engine) << "still locked";
    EXPECT_NO_THROW(registered_host_memory{other});
    EXPECT_EQ(explain_copy(on_gpu.data(), mine.data(), mine.size()).by, copy_route::staged) << "unlocked since";
    EXPECT_EQ(test::read_back(on_gpu.data(), mine.size(), 0), mine);
    EXPECT_EQ(m.get().part<streams::locked_ranges>().validate(), std::vector<std::string>{});
  }
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

// Two tensors of a weights file are adjacent, and so are small objects of a heap.
TEST(registered_host_memory, ranges_may_share_a_page) {
  test::machine m;
  alignas(4096) static std::byte pages[16 << 10];
  buffer on_gpu(sizeof pages, {.on = device(0)});
  auto const route = [&](std::size_t at, std::size_t n) { return explain_copy(on_gpu.data(), pages + at, n).by; };
  std::optional<registered_host_memory> first, second, third;
  first.emplace(std::span(pages + 4096, 80));
  second.emplace(std::span(pages + 4096 + 80, 20));
  third.emplace(std::span(pages + 4096 + 100, 8000));
  EXPECT_EQ(route(4096 + 80, 20), copy_route::engine);
  first.reset();
  EXPECT_EQ(route(4096 + 80, 20), copy_route::engine) << "its page is locked as long as it lives";
  EXPECT_EQ(route(4096 + 100, 8000), copy_route::engine);
  second.reset();
  EXPECT_EQ(route(4096 + 100, 8000), copy_route::engine);
  third.reset();
  EXPECT_EQ(route(4096, 80), copy_route::staged);
  EXPECT_EQ(m.get().part<streams::locked_ranges>().validate(), std::vector<std::string>{});
}

// The driver takes no range over the end of a registration, though all of its pages are locked.
TEST(registered_host_memory, is_copied_in_parts_across_two) {
  struct counts final : driver::fault_injector::watcher {
    int copies = 0;
    void comes(driver::call c) noexcept override { copies += c == driver::call::copy; }
  } counted;
  test::machine m;
  alignas(4096) static std::byte pages[96 << 10];
  constexpr std::size_t half = 50'000, n = 2 * half - 4096;  // not the multiple of a page
  registered_host_memory const first(std::span(pages, half)), second(std::span(pages + half, n - half));
  stream s{device(0)};
  buffer on_gpu(s, n);
  auto const expected = test::pattern(n, 7);
  std::memcpy(pages, expected.data(), n);
  m.control().refusing().watch(&counted);
  copy(s, on_gpu.data(), pages, n, non_blocking);
  EXPECT_EQ(counted.copies, 2);
  copy(s, on_gpu.data(), pages, 1000, non_blocking);
  EXPECT_EQ(counted.copies, 3);
  s.synchronize();
  std::memset(pages, 0, n);
  copy(s, pages, on_gpu.data(), n);
  EXPECT_EQ(counted.copies, 5);
  m.control().refusing().watch(nullptr);
  EXPECT_EQ(std::memcmp(pages, expected.data(), n), 0);
}

TEST(registered_host_memory, a_refusal_says_what_the_memory_is) {
  test::machine m;
  auto const says = [](std::span<std::byte> what, std::string_view words) {
    std::string const said = test::refused([&] { registered_host_memory const one(what); });
    EXPECT_NE(said.find(words), std::string::npos) << said;
  };
  auto const at = [](void* p, std::size_t n) { return std::span(static_cast<std::byte*>(p), n); };
  alignas(4096) static std::byte page[4096];
  registered_host_memory const one(std::span(page, 80));
  says(std::span(page, 80), "of which bytes are in the registered range");
  says(std::span(page + 40, 80), "of which bytes are in the registered range");
  buffer const on_gpu(5000, {.on = device(0)}), own = pinned(5000);
  says(at(on_gpu.data(), 5000), "which is device memory");
  says(at(own.data(), 5000), "which is page-locked by weir already");
  says(at(reinterpret_cast<void*>(0x10000), 4096), "of which no memory is mapped at some addresses");
  alignas(4096) static std::byte foreign[4096];
  ASSERT_TRUE(m.driver().pin(foreign, sizeof foreign).ok());
  says(foreign, "which is page-locked by other code already");
  ASSERT_TRUE(m.driver().unpin(foreign).ok());
}

// Against the pages that some range is on, while unlocks are refused at random.
TEST(registered_host_memory, random_ranges_lock_their_pages) {
  constexpr std::size_t page = 4096, count = 12;
  alignas(page) static std::byte memory[count * page];
  for (auto const seed : tests::seeds("registered", 40)) {
    std::mt19937_64 bits(seed);
    auto const draw = [&](std::size_t below) { return static_cast<std::size_t>(bits() % below); };
    test::machine m({.devices = 1, .memory = 8_MiB});
    auto& locked = m.get().part<streams::locked_ranges>();
    struct one {
      std::size_t from, to;
      std::unique_ptr<registered_host_memory> lock;
    };
    std::vector<one> live;
    for (int step = 0; step < 60; ++step) {
      if (draw(4) == 0)
        m.control().fail_call(draw(2) ? "unpin" : "pin", 1 + draw(3), driver::code::failed);
      if (!live.empty() && draw(2)) {
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(draw(live.size())));
      } else {
        std::size_t const from = draw(sizeof memory - 1),
                          to = from + 1 + draw(std::min(3 * page, sizeof memory - from - 1));
        bool const free = std::ranges::none_of(live, [&](one const& o) { return o.from < to && from < o.to; });
        try {
          auto made = std::make_unique<registered_host_memory>(std::span(memory + from, to - from));
          EXPECT_TRUE(free);
          live.push_back({from, to, std::move(made)});
        } catch (invalid_use const&) {
          EXPECT_FALSE(free);
        } catch (driver_error const&) {}  // a refused call
      }
      ASSERT_EQ(locked.validate(), std::vector<std::string>{}) << "step " << step;
      for (one const& o : live)
        for (std::size_t at = o.from / page; at * page < o.to; ++at)
          ASSERT_EQ(m.driver().find(memory + at * page).value.in, driver::where::pinned) << "step " << step;
    }
    live.clear();
    m.control().refusing().forget_orders();
    { registered_host_memory const last(std::span(memory, 1)); }  // what was refused goes with it
    for (std::size_t at = 0; at < count; ++at)
      ASSERT_EQ(m.driver().find(memory + at * page).value.in, driver::where::pageable) << "page " << at;
  }
}

}  // namespace
}  // namespace weir
