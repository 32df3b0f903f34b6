// Pools that sleep and wake: bytes and addresses, what is refused meanwhile, memory that is short, calls that fail.
// Threads: one, but where a test makes more.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "runtime/memory/device/device_memory.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct sleepers : ::testing::Test {
  struct block {
    void* at;
    size_t bytes;
    int pattern;
  };
  explicit sleepers(options o = {}, simulated like = {.devices = 2, .memory = 64_MiB}) : own(like, o), in(own) {}
  ~sleepers() override { sound(); }
  memory::allocator& device() { return own.get().part<memory::device_memory>().on(0); }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{});
    EXPECT_EQ(simulation::of(own).findings(), std::vector<std::string>{});
  }
  // Slots, blocks that share pages, and blocks of several handles; some on another stream.
  std::vector<block> fill_some(pool const& p, size_t largest = 9_MiB) {
    std::vector<block> all;
    int pattern = 1;
    for (size_t const bytes : std::initializer_list<size_t>{100, 100, 5000, 40000, 300_KiB, 3_MiB, largest, 100}) {
      stream_ref const on = pattern % 3 ? current_stream() : other.ref();
      block const b{p.allocate(on, bytes), bytes, pattern++};
      fill(on, b.at, static_cast<std::byte>(b.pattern), bytes);
      all.push_back(b);
    }
    return all;
  }
  static bool holds(block const& b) {
    std::vector<unsigned char> host(b.bytes);
    copy(host.data(), b.at, b.bytes);
    return host[0] == b.pattern && std::memcmp(host.data(), host.data() + 1, b.bytes - 1) == 0;
  }
  static void expect_bytes(std::vector<block> const& all) {
    synchronize();
    for (block const& b : all)
      EXPECT_TRUE(holds(b)) << b.bytes << " B of pattern " << b.pattern;
  }
  static void free_all(std::vector<block>& all) {
    for (block const& b : all)
      deallocate(b.at);
    all.clear();
  }

  runtime own;
  runtime_guard in;
  stream other{weir::device(0)};
};

TEST_F(sleepers, wake_with_their_bytes_at_their_addresses) {
  pool model("model");
  auto all = fill_some(model);
  size_t const before = memory_reserved();
  EXPECT_GE(model.sleep(), 13_MiB);
  EXPECT_TRUE(model.is_asleep());
  sound();
  EXPECT_EQ(model.statistics().reserved, 0u);
  EXPECT_GE(model.statistics().asleep, 12_MiB);
  EXPECT_EQ(memory_reserved(), 0u);
  EXPECT_EQ(memory_allocated(), 0u);
  EXPECT_EQ(model.sleep(), 0u) << "it sleeps already";
  {  // all of the device serves others, with other bytes
    buffer const whole(60_MiB);
    fill(whole.data(), std::byte{0xee}, whole.size());
    synchronize();
  }
  empty_cache();
  model.wake();
  EXPECT_FALSE(model.is_asleep());
  sound();
  EXPECT_LE(memory_reserved(), before);
  expect_bytes(all);
  model.wake();
  free_all(all);
  deallocate(model.allocate(100));
  sound();
}

// Nine blocks lie in handles of a page or two. They wake in one handle.
TEST_F(sleepers, wake_on_few_large_handles) {
  auto control = simulation::of(own);
  pool model("model");
  std::vector<block> all;
  for (int i = 0; i < 9; ++i) {
    all.push_back({model.allocate(5_MiB), 5_MiB, i + 1});
    fill(all.back().at, static_cast<std::byte>(i + 1), 5_MiB);
  }
  auto const creates = [&](auto act) {  // how many calls can be refused
    int n = 0;
    for (;; ++n) {
      auto const number = control.fail_call("create", static_cast<std::uint64_t>(n + 1));
      try {
        act();
      } catch (error const&) {}
      if (control.cancel_failure(number))
        return n;
    }
  };
  model.sleep();
  EXPECT_EQ(creates([&] { model.wake(); }), 1);
  expect_bytes(all);
  for (size_t i = 1; i < all.size(); i += 2)
    deallocate(all[i].at);
  EXPECT_GE(model.sleep(), 40_MiB) << "free pages between live blocks have the same handle";
  model.wake();
  EXPECT_LE(memory_reserved(), 30_MiB) << "free pages do not come back";
  for (size_t i = 0; i < all.size(); i += 2) {
    EXPECT_TRUE(holds(all[i]));
    deallocate(all[i].at);
  }
}

// The k-th grant of a wake is refused, and then the first unmap that takes back what was mapped.
TEST_F(sleepers, what_stays_mapped_after_a_failed_wake_wakes_later) {
  auto control = simulation::of(own);
  std::uint64_t k = 1;
  for (bool failed = true; failed; ++k) {
    pool model("model");
    auto all = fill_some(model);
    model.sleep();
    auto const grant = control.fail_call("grant", k), unmap = control.fail_call("unmap", 1);
    try {
      model.wake();
    } catch (error const&) {}
    failed = !control.cancel_failure(grant);
    (void)control.cancel_failure(unmap);
    sound();
    if (model.is_asleep())
      model.wake();
    expect_bytes(all);
    model.sleep(), model.wake();
    expect_bytes(all);
    free_all(all);
    sound();
    ASSERT_FALSE(::testing::Test::HasFailure()) << "grant " << k;
  }
  EXPECT_GT(k, 3u);
}

TEST_F(sleepers, sleep_again_and_again) {
  pool model("model");
  auto all = fill_some(model);
  for (int round = 0; round < 5; ++round) {
    model.sleep();
    model.wake();
    expect_bytes(all);
    for (block const& b : all)
      fill(b.at, static_cast<std::byte>(b.pattern), b.bytes);
  }
  free_all(all);
}

// A wake reads what the last sleep wrote, also if that sleep has not returned yet.
TEST_F(sleepers, a_wake_beside_a_sleep_brings_every_byte) {
  pool model("model");
  auto all = fill_some(model);
  int met = 0;  // wakes that began before the sleep had returned
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (met < 20 && std::chrono::steady_clock::now() < end) {
    std::atomic<bool> slept{false};
    std::thread other([&] {
      runtime_guard const here(own);
      EXPECT_NO_THROW(model.sleep());
      slept = true;
    });
    while (!model.is_asleep() && !slept)
      std::this_thread::yield();
    met += !slept;
    EXPECT_NO_THROW(model.wake());
    other.join();
    EXPECT_FALSE(model.is_asleep()) << "the wake came last";
    expect_bytes(all);
  }
  free_all(all);
}

// The second call has no effect, and throws nothing.
TEST_F(sleepers, two_sleeps_or_wakes_at_once_are_as_one) {
  pool model("model");
  auto all = fill_some(model);
  auto const both = [&](auto call) {
    std::atomic<int> ready{0};
    auto const run = [&] {
      runtime_guard const here(own);
      ++ready;
      while (ready < 2) {}
      EXPECT_NO_THROW(call());
    };
    std::thread first(run), second(run);
    first.join(), second.join();
  };
  for (int i = 0; i < 20; ++i) {
    both([&] { model.sleep(); });
    EXPECT_TRUE(model.is_asleep());
    both([&] { model.wake(); });
    EXPECT_FALSE(model.is_asleep());
  }
  expect_bytes(all);
  free_all(all);
}

TEST_F(sleepers, blocks_can_be_freed_meanwhile) {
  pool model("model");
  auto all = fill_some(model);
  model.sleep();
  for (size_t i = 0; i < all.size(); i += 2)
    deallocate(all[i].at);
  EXPECT_THROW(deallocate(all[0].at), invalid_use) << "freed already";
  sound();
  for (size_t i = all.size(); i-- > 0;)
    if (i % 2 == 0)
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
  model.wake();
  sound();
  expect_bytes(all);
  model.sleep();
  free_all(all);
  model.wake();
  EXPECT_EQ(model.statistics().reserved, 0u) << "nothing lives there: no page comes back";
}

TEST_F(sleepers, the_last_free_gives_back_the_copy) {
  for (int round = 0; round < 3; ++round) {
    auto model = std::make_optional<pool>("model");
    auto all = fill_some(*model);
    model->sleep();
    EXPECT_GE(pinned_memory_stats().allocated_bytes.all.current, static_cast<std::int64_t>(12_MiB));
    block const last = all.back();
    all.pop_back();
    if (round == 2)
      model.reset();
    free_all(all);
    if (model) {
      EXPECT_GT(model->statistics().asleep, 0u);
    }
    deallocate(last.at);
    EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
    sound();
    if (round == 2) {
      for (auto const& p : memory_by_pool())
        EXPECT_EQ(p.asleep + p.blocks, 0u) << p.name;
      continue;
    }
    EXPECT_EQ(model->statistics().asleep, 0u);
    EXPECT_TRUE(model->is_asleep());
    if (round == 0)
      model->wake();
    EXPECT_EQ(model->statistics().reserved, 0u);
    sound();
  }
}

TEST_F(sleepers, may_drop_their_bytes) {
  pool model("model");
  auto all = fill_some(model);
  EXPECT_GE(model.sleep(sleep_to::nowhere), 13_MiB);
  EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
  model.wake();
  for (block const& b : all)
    fill(b.at, static_cast<std::byte>(b.pattern), b.bytes);
  expect_bytes(all);
  free_all(all);
}

template <class F>
std::string refusal_of(F f) {
  try {
    f();
  } catch (invalid_use const& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

TEST_F(sleepers, uses_are_refused_by_name) {
  pool model("model");
  void* const p = model.allocate(1000);
  std::vector<char> host(1000);
  model.sleep();
  auto const names_it = [](std::string const& text) {
    return text.find("model, which is asleep") != std::string::npos && text.find("pool::wake") != std::string::npos;
  };
  std::string text;
  EXPECT_TRUE(names_it(text = refusal_of([&] { (void)model.allocate(100); }))) << text;
  EXPECT_TRUE(names_it(text = refusal_of([&] { copy(host.data(), p, 1000); }))) << text;
  EXPECT_TRUE(names_it(text = refusal_of([&] { copy(p, host.data(), 1000); }))) << text;
  EXPECT_TRUE(names_it(text = refusal_of([&] { fill(p, std::byte{1}, 1000); }))) << text;
  EXPECT_TRUE(names_it(text = refusal_of([&] {
                         launch(
                             current_stream(), {reads(p, 1000)}, [](CUstream_st*) {}, [] {});
                       })))
      << text;
  EXPECT_TRUE(find_block(p)) << "it still is a block";
  buffer const elsewhere(1000);
  model.wake();
  copy(host.data(), p, 1000);
  deallocate(p);
}

TEST_F(sleepers, out_of_memory_leaves_them_asleep_and_whole) {
  pool model("model");
  auto all = fill_some(model);
  model.sleep();
  std::optional<buffer> hog(std::in_place, 58_MiB);
  EXPECT_THROW(model.wake(), out_of_memory);
  EXPECT_TRUE(model.is_asleep());
  sound();
  hog.reset();
  model.wake();  // takes what is free
  expect_bytes(all);
  free_all(all);
}

struct reserved_sleepers : sleepers {
  reserved_sleepers() : sleepers(options{.driver_reserve = 10_MiB}) {}
};

TEST_F(reserved_sleepers, a_wake_past_the_reserve_blames_no_driver) {
  pool model("model");
  auto all = fill_some(model);
  model.sleep();
  std::optional<buffer> hog(std::in_place, 46_MiB);  // 18 MiB are free, and 8 of them may be taken
  try {
    model.wake();
    ADD_FAILURE() << "it woke";
  } catch (out_of_memory const& e) {
    EXPECT_EQ(e.report().cause, memory_cause::in_use) << e.report().text();
  }
  hog.reset();
  model.wake();
  expect_bytes(all);
  free_all(all);
}

TEST_F(sleepers, the_summary_says_which_sleep) {
  pool model("model");
  auto all = fill_some(model);
  EXPECT_EQ(memory_summary().find("asleep"), std::string::npos) << memory_summary();
  model.sleep();
  std::string const text = memory_summary();
  EXPECT_NE(text.find("pool model: reserved 0 B"), std::string::npos) << text;
  EXPECT_NE(text.find(", asleep "), std::string::npos) << text;
  model.wake();
  EXPECT_EQ(memory_summary().find("asleep"), std::string::npos) << memory_summary();
  free_all(all);
}

TEST_F(sleepers, a_callback_may_free_memory_for_them) {
  pool model("model");
  auto all = fill_some(model);
  model.sleep();
  std::optional<buffer> hog(std::in_place, 58_MiB);
  auto const freed = on_out_of_memory([&](memory_report const& why) {
    EXPECT_EQ(why.pool.name, "model");
    hog.reset();
    return true;
  });
  model.wake();
  expect_bytes(all);
  free_all(all);
}

TEST_F(sleepers, a_limit_holds_for_waking_too) {
  pool model("model", {.limit = 20_MiB});
  auto all = fill_some(model);
  model.sleep();
  model.set_limit(4_MiB);
  EXPECT_THROW(model.wake(), out_of_memory);
  sound();
  model.set_limit(0);
  model.wake();
  expect_bytes(all);
  free_all(all);
}

TEST_F(sleepers, a_pool_may_end_asleep) {
  std::vector<block> all;
  {
    pool model("model");
    all = fill_some(model);
    model.sleep();
  }
  sound();
  free_all(all);
  sound();
  EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
}

// Each of forty pools is dropped while it sleeps, before its blocks end or after.
TEST_F(sleepers, a_pool_that_ends_asleep_leaves_its_addresses) {
  for (bool blocks_end_first : {true, false}) {
    std::set<void*> places;
    for (int round = 0; round < 20; ++round) {
      std::vector<block> all;
      {
        pool model("model");
        all = fill_some(model);
        places.insert(all.front().at);
        model.sleep();
        if (blocks_end_first)
          free_all(all);
      }
      free_all(all);
      empty_cache();
    }
    EXPECT_LE(places.size(), 2u) << (blocks_end_first ? "blocks, then the pool" : "the pool, then its blocks");
    sound();
  }
  EXPECT_EQ(memory_stats(weir::device(0)).reserved_bytes.all.current, 0);
}

struct limited_host : sleepers {
  limited_host() : sleepers({.pinned_limit = 4_MiB}) {}
};
TEST_F(limited_host, a_short_host_leaves_the_pool_awake) {
  pool model("model");
  auto all = fill_some(model);
  EXPECT_THROW(model.sleep(), out_of_memory);
  EXPECT_FALSE(model.is_asleep());
  expect_bytes(all);
  EXPECT_GT(model.sleep(sleep_to::nowhere), 0u);
  model.wake();
  free_all(all);
}

// The k-th driver call of sleep, and of wake, is refused, for each k.
TEST_F(sleepers, a_refused_call_leaves_one_state_or_the_other) {
  auto control = simulation::of(own);
  for (bool in_sleep : {true, false}) {
    std::uint64_t k = 1;
    for (bool failed = true; failed; ++k) {
      pool model("model");
      auto all = fill_some(model, 1_MiB);
      synchronize();
      if (!in_sleep)
        model.sleep();
      auto const number = control.fail_call("any", k);
      try {
        in_sleep ? (void)model.sleep() : model.wake();
      } catch (error const&) {}
      failed = !control.cancel_failure(number);
      sound();
      if (model.is_asleep())
        model.wake();
      expect_bytes(all);
      free_all(all);
      sound();
      ASSERT_FALSE(::testing::Test::HasFailure()) << (in_sleep ? "sleep" : "wake") << ", call " << k;
    }
    EXPECT_GT(k, 20u) << "few calls were refused";
  }
  empty_cache();
  sound();
}

// A refused grant and a refused unmap leave a handle that no block can use.
TEST_F(sleepers, an_unusable_handle_outlives_a_sleep) {
  auto control = simulation::of(own);
  pool model("model");
  auto all = fill_some(model, 1_MiB);
  control.fail_call("grant", 1);
  control.fail_call("unmap", 1);
  EXPECT_THROW((void)model.allocate(9_MiB), error);
  sound();
  control.fail_call("unmap", 1);  // sleep tries to release the handle first
  model.sleep();
  sound();
  model.wake();
  expect_bytes(all);
  sound();
  free_all(all);
  synchronize();
  empty_cache();
  sound();
  EXPECT_EQ(memory_stats(weir::device(0)).reserved_bytes.all.current, 0);
}

struct checked : sleepers {
  checked() : sleepers({.check_races = true}) {}
};
TEST_F(checked, sleeping_and_waking_race_with_nothing) {
  pool model("model");
  auto all = fill_some(model);
  for (int round = 0; round < 3; ++round) {
    for (block const& b : all) {
      record_stream(b.at, other);
      other.wait(current_stream());
      fill(other, b.at, static_cast<std::byte>(b.pattern), b.bytes);
    }
    model.sleep();
    buffer const meanwhile(20_MiB);
    fill(meanwhile.data(), std::byte{9}, meanwhile.size());
    model.wake();
    for (block const& b : all)
      fill(other, b.at, static_cast<std::byte>(b.pattern), b.bytes);
    expect_bytes(all);
  }
  free_all(all);
  EXPECT_EQ(race_reports().size(), 0u);
  for (auto const& r : race_reports())
    ADD_FAILURE() << r.text;
}

TEST_F(sleepers, memory_open_to_peers_is_open_again) {
  enable_peer_access(weir::device(0), {weir::device(1)});
  pool model("model");
  void* const p = model.allocate(3_MiB);
  fill(p, std::byte{7}, 3_MiB);
  model.sleep();
  sound();
  model.wake();
  sound();
  buffer const there(3_MiB, {.on = 1});
  copy(there.data(), p, 3_MiB);
  deallocate(p);
}

}  // namespace
}  // namespace weir
