// Finds host uses of pinned memory before its copies complete, by the call or by the touched page.
// Threads: one; the machine's besides.
#include <signal.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/os.h"
#include "tests/check/programs.h"
#include "weir/tensor.h"

namespace weir::check_tests {
namespace {

constexpr size_t size = 4096, n = size / sizeof(float);
std::string here_line(int at) {
  return "host_test.cpp:" + std::to_string(at);
}

enum class waits { no, for_the_stream, for_the_stamp, for_an_event, for_the_device, for_a_query };
constexpr waits all_waits[] = {waits::for_the_stream, waits::for_the_stamp, waits::for_an_event, waits::for_the_device,
                               waits::for_a_query};

// A copy to pinned memory, a wait or none, then the host's use.
void fetch_then(waits how, int& copied_at, std::function<void(buffer const&)> const& use) {
  stream s;
  stream_guard const home{s.ref()};
  buffer x(size), to = pinned(size);
  fill(x.data(), std::byte{7}, size);
  stamp const copied = copy(s, to.data(), x.data(), size, non_blocking);
  copied_at = __LINE__ - 1;
  event e;
  e.record(s);
  if (how == waits::for_the_stream)
    s.synchronize();
  if (how == waits::for_the_stamp)
    copied.synchronize();
  if (how == waits::for_an_event)
    e.synchronize();
  if (how == waits::for_the_device)
    synchronize();
  while (how == waits::for_a_query && !copied.query()) {
    if (by_hand)
      simulation::of(runtime::current()).step(s);
  }
  use(to);
  synchronize();
}

TEST(host_uses, a_read_before_the_wait_is_reported_for_every_seed) {
  int copied = 0, used = 0;
  auto const use = [&](buffer const& to) { (void)to.host<float>(), used = __LINE__; };
  auto const all = found([&] { fetch_then(waits::no, copied, use); });
  expect_one(
      all, "host too early",
      {"bytes 0-4095 of pinned block 1 (4096 B", "copy at " + here_line(copied) + " writes them on stream 1 of gpu:0",
       "buffer::host at " + here_line(used) + " reads them",
       "Remedy: before " + here_line(used) + " synchronize the stream", "copied.synchronize()"});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].first.line(), static_cast<unsigned>(copied));
  EXPECT_EQ(all[0].second.line(), static_cast<unsigned>(used));
  for (waits const how : all_waits)
    expect_none(found([&] { fetch_then(how, copied, use); }));
}

TEST(host_uses, only_wrong_bytes_vary_with_the_seed) {
  int wrong = 0, copied = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    auto const all = found_in(
        {.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
        [&] { fetch_then(waits::no, copied, [&](buffer const& to) { wrong += to.host<char>()[size - 1] != 7; }); });
    EXPECT_EQ(all.size(), 1u) << "seed " << seed << "\n" << texts(all);
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 50);
}

// weir waits for this copy, and the checker then reads bytes that are still protected from the host.
TEST(host_uses, the_checker_may_read_a_shielded_source) {
  auto const run = [](bool early) {
    stream home, other;
    stream_guard const here{home.ref()};
    buffer x(size), to = pinned(size);
    fill(x.data(), std::byte{7}, size);
    home.synchronize();
    void* const most = allocate(home, 40_MiB);
    copy(other, to.data(), x.data(), size, non_blocking);
    record_stream(most, other);
    deallocate(most);
    void* const again = allocate(home, 40_MiB);
    copy(other, x.data(), to.data(), size, non_blocking);
    if (early)
      (void)*static_cast<char volatile*>(to.data());
    deallocate(again);
    synchronize();
  };
  expect_none(found_without_threads([&] { run(false); }));
  expect_one(found_without_threads([&] { run(true); }), "host too early", {"bytes 0-4095 of pinned block 1"});
}

// Each call gets a pinned tensor that a copy still writes or reads.
struct tensor_use {
  char const* name;
  char const* operation;
  bool writes;
  void (*does)(tensor const& pinned, source_location at);
};
constexpr tensor_use tensor_uses[] = {
    {"host", "tensor::host", false, [](tensor const& t, source_location at) { (void)t.host<float>(at); }},
    {"item", "tensor::item", false, [](tensor const& t, source_location at) { (void)t[0].item<float>(at); }},
    {"str", "tensor::str", false, [](tensor const& t, source_location at) { (void)t.str(at); }},
    {"add", "a tensor operation", false, [](tensor const& t, source_location at) { (void)add(t, t, at); }},
    {"sum", "a tensor operation", false, [](tensor const& t, source_location at) { (void)sum(t, at); }},
    {"clone", "tensor::copy_", false, [](tensor const& t, source_location at) { (void)t.clone(at); }},
    {"fill_", "a tensor operation", true, [](tensor const& t, source_location at) { tensor(t).fill_(3, at); }},
    {"copy_", "tensor::copy_", true,
     [](tensor const& t, source_location at) {
       tensor(t).copy_(ones({static_cast<std::int64_t>(n)}, {.on = cpu}), blocking::yes, at);
     }},
};

TEST(host_uses, operations_on_a_pinned_tensor_are_host_uses) {
  for (tensor_use const& use : tensor_uses) {
    auto const run = [&](bool right) {
      tensor const x = ones({static_cast<std::int64_t>(n)}), y = x.to(cpu, non_blocking);
      if (right)
        synchronize();
      use.does(y, source_location::current());
      synchronize();
    };
    auto const all = found([&] { run(false); });
    ASSERT_FALSE(all.empty()) << use.name;
    EXPECT_EQ(all[0].kind, "host too early");
    EXPECT_NE(all[0].text.find(use.operation), std::string::npos) << use.name << ": " << all[0].text;
    EXPECT_NE(all[0].text.find("host_test.cpp:"), std::string::npos) << use.name << ": " << all[0].text;
    expect_none(found([&] { run(true); }));
  }
}

TEST(host_uses, a_copys_source_may_be_read_but_not_written) {
  for (tensor_use const& use : tensor_uses) {
    auto const run = [&](bool right) {
      tensor const x = empty({static_cast<std::int64_t>(n)}),
                   y = ones({static_cast<std::int64_t>(n)}, {.on = cpu, .kind = memory_kind::pinned});
      tensor(x).copy_(y, non_blocking);
      if (right)
        synchronize();
      use.does(y, source_location::current());
      synchronize();
    };
    auto const all = found([&] { run(false); });
    if (use.writes) {
      ASSERT_EQ(all.size(), 1u) << use.name << "\n" << texts(all);
      EXPECT_EQ(all[0].kind, "host too early");
      EXPECT_NE(all[0].text.find(" writes them. The host has not waited"), std::string::npos) << all[0].text;
    } else {
      expect_none(all);
    }
    expect_none(found([&] { run(true); }));
  }
}

TEST(host_uses, copies_and_fills_of_host_memory_are_host_uses) {
  auto const run = [](int how) {
    stream s, other;
    stream_guard const home{other.ref()};
    buffer x(size), to = pinned(size);
    std::vector<char> pageable(size);
    s.wait(other);
    copy(s, to.data(), x.data(), size, non_blocking);
    if (how == 0)
      copy(pageable.data(), to.data(), size);  // a copy within the host waits for `other` only
    if (how == 1)
      copy(to.data(), pageable.data(), size);
    if (how == 2)
      fill(to.data(), std::byte{1}, size);
    if (how == 3)
      (void)pin_memory(std::as_bytes(std::span(to.data<char>(), size)));
    synchronize();
  };
  for (int how = 0; how < 4; ++how) {
    auto const all = found([&] { run(how); });
    ASSERT_EQ(all.size(), 1u) << how << "\n" << texts(all);
    EXPECT_EQ(all[0].kind, "host too early");
  }
}

TEST(host_uses, a_kernels_declared_writes_are_waited_for_too) {
  auto const run = [](bool right) {
    stream s;
    buffer to = pinned(size);
    write(s, to.data(), size, source_location::current());
    if (right)
      s.synchronize();
    (void)to.host<char>();
    synchronize();
  };
  expect_one(found([&] { run(false); }), "host too early", {"launch at host_test.cpp:", "writes them on stream 1"});
  expect_none(found([&] { run(true); }));
}

TEST(host_uses, a_host_function_behind_the_copy_is_in_order) {
  expect_none(found([] {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size), to = pinned(size);
    fill(x.data(), std::byte{7}, size);
    copy(s, to.data(), x.data(), size, non_blocking);
    int seen = 0;
    launch_host(s, [&] { seen = to.host<char>()[5] + to.data<char>()[6]; });
    s.synchronize();
    EXPECT_EQ(seen, 14);
  }));
}

// Page protection. A machine with threads opens a page for its engine, and misses accesses meanwhile. ---

using floats = std::vector<float, pinned_allocator<float>>;

TEST(host_uses, an_element_of_a_container_is_seen_by_its_page) {
  int copied = 0;
  auto const run = [&](bool writing, bool to_device, bool right) {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size);
    floats v(n, 1);
    fill(x.data(), std::byte{0}, size);
    if (to_device)
      copy(s, x.data(), v.data(), size, non_blocking), copied = __LINE__;
    else
      copy(s, v.data(), x.data(), size, non_blocking), copied = __LINE__;
    if (right)
      s.synchronize();
    auto* const at = const_cast<float volatile*>(v.data() + 17);
    if (writing)
      *at = 5;
    else
      (void)*at;
    synchronize();
  };
  for (bool const writing : {false, true}) {
    for (bool const to_device : {false, true}) {
      auto const all = found_without_threads([&] { run(writing, to_device, false); });
      if (!writing && to_device)
        expect_none(all);
      else
        expect_one(all, "host too early", {
          "bytes 0-4095 of pinned block 1", "copy at " + here_line(copied),
              to_device ? " reads them on stream 1" : " writes them on stream 1", "host code",
#if defined(__x86_64__)
              writing ? " writes them" : " reads them", "for addr2line"
#endif
        });
      expect_none(found([&] { run(writing, to_device, true); }));
    }
  }
}

TEST(host_uses, a_span_taken_before_the_copy_is_seen_by_its_page) {
  expect_one(found_without_threads([] {
               stream s;
               stream_guard const home{s.ref()};
               buffer x(size), to = pinned(size);
               auto const early = to.host<char>();
               fill(x.data(), std::byte{7}, size);
               copy(s, to.data(), x.data(), size, non_blocking);
               (void)*const_cast<char volatile*>(&early[100]);
               (void)*const_cast<char volatile*>(&early[200]);
               synchronize();
             }),
             "host too early", {"host code"});
}

TEST(host_uses, a_neighbour_on_the_same_page_is_not_reported) {
  expect_none(found([] {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(64), to = pinned(64), beside = pinned(64);
    buffer wide = pinned(3 * size);
    fill(x.data(), std::byte{7}, 64);
    for (int i = 0; i < 3; ++i) {
      copy(s, to.data(), x.data(), 64, non_blocking);
      copy(s, wide.data<char>() + size + 100, x.data(), 64, non_blocking);
      std::memset(beside.data(), i, 64);
      std::memset(wide.data<char>() + size, i, 100);
      std::memset(wide.data<char>() + size + 164, i, size);
      EXPECT_EQ(beside.host<char>()[63], i);
    }
    s.synchronize();
    EXPECT_EQ(to.host<char>()[63], 7);
    EXPECT_EQ(wide.data<char>()[size + 163], 7);
    synchronize();
  }));
}

int handled = 0;
void open_the_page(int, siginfo_t* info, void*) {
  ++handled;
  auto const at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  ::mprotect(reinterpret_cast<void*>(at / size * size), size, PROT_READ | PROT_WRITE);
}

// weir protects no page while a handler of the program is installed.
TEST(host_uses, no_page_is_guarded_under_the_programs_own_handler) {
  handled = 0;
  expect_none(found_without_threads([] {
    struct sigaction own {
    }, before{};
    own.sa_sigaction = open_the_page;
    own.sa_flags = SA_SIGINFO;
    stream s;
    stream_guard const home{s.ref()};
    buffer x(64), to = pinned(64), beside = pinned(64);
    ASSERT_EQ(::sigaction(SIGSEGV, &own, &before), 0);
    copy(s, to.data(), x.data(), 64, non_blocking);
    std::memset(beside.data(), 1, 64);
    parallel_for(s, 64, {writes(x)}, [p = beside.data<char>(), q = x.data<char>()](size_t i) { q[i] = p[i]; });
    s.synchronize();
    ::sigaction(SIGSEGV, &before, nullptr);
  }));
  EXPECT_EQ(handled, 0);
}

TEST(host_uses, memory_that_came_back_is_open_to_its_next_owner) {
  expect_none(found([] {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size);
    fill(x.data(), std::byte{7}, size);
    for (int i = 0; i < 10; ++i) {
      buffer to = pinned(size);
      std::memset(to.data(), i, size);
      copy(s, x.data(), to.data(), size, non_blocking);
      to.reset();
      floats v(n, 1);
      copy(s, v.data(), x.data(), size, non_blocking);
    }
    synchronize();
  }));
}

TEST(host_uses, copies_through_weirs_own_slots_are_in_order) {
  expect_none(found([] {
    stream s;
    stream_guard const home{s.ref()};
    std::vector<char> up(3 << 20, 5), down(up.size());
    buffer x(up.size());
    for (int i = 0; i < 3; ++i) {
      copy(s, x.data(), up.data(), up.size(), non_blocking);
      copy(s, down.data(), x.data(), down.size(), non_blocking);
    }
    s.synchronize();
    EXPECT_EQ(down, up);
    copy(s, down.data(), x.data(), down.size());
    synchronize();
  }));
}

// A ring of slots in one buffer: the host takes a span of all slots during a copy to one of them.
TEST(host_uses, an_idle_slot_may_be_read_the_others_are_seen) {
  auto const run = [](size_t read) {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size), ring = pinned(4 * size);
    fill(x.data(), std::byte{7}, size);
    for (size_t i = 0; i < 2; ++i)
      copy(s, ring.data<char>() + i * size, x.data(), size, non_blocking);
    s.synchronize();
    for (size_t i = 2; i < 4; ++i)
      copy(s, ring.data<char>() + i * size, x.data(), size, non_blocking);
    auto const all = ring.host<char>();
    EXPECT_TRUE(read > 1 || all[read * size + 9] == 7);
    (void)*const_cast<char volatile*>(&all[read * size + 10]);
    s.synchronize();
  };
  for (size_t const done : {0, 1})
    expect_none(found([&] { run(done); }));
  for (size_t const under_way : {2, 3})
    expect_one(found_without_threads([&] { run(under_way); }), "host too early",
               {"bytes " + std::to_string(under_way * size), "host code"});
}

TEST(host_uses, a_pinned_range_is_open_once_it_is_unpinned) {
  std::vector<std::byte> own(5 * size);
  expect_none(found([&] {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size);
    fill(x.data(), std::byte{7}, size);
    {
      registered_host_memory const pin(own);
      copy(s, own.data() + 100, x.data(), size, non_blocking);
    }
    EXPECT_EQ(own[100], std::byte{7});
    own[99] = std::byte{1};
  }));
}

// The first and last page also hold bytes outside the range, perhaps of the heap that the report needs.
TEST(host_uses, a_pinned_range_is_watched_on_its_whole_pages) {
  std::vector<std::byte> room(5 * size + 5000);
  std::size_t const into_page = reinterpret_cast<std::uintptr_t>(room.data()) % 4096;
  auto const own = std::span(room).subspan(4096 + 100 - into_page, 5 * size + 200);
  auto const run = [&](size_t at) {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(own.size());
    fill(x.data(), std::byte{7}, own.size());
    registered_host_memory const pin(own);
    copy(s, own.data(), x.data(), own.size(), non_blocking);
    (void)*const_cast<std::byte volatile*>(&own[at]);
    s.synchronize();
  };
  expect_one(found_without_threads([&] { run(own.size() / 2); }), "host too early", {"copy at host_test.cpp:"});
  expect_none(found([&] { run(0); }));
}

// Kernels touch pinned memory outside declared uses, on machines that run kernels inside driver calls.
TEST(undeclared_use, a_pinned_read_of_a_kernel_names_its_launch) {
  int launched = 0;
  auto const run = [&](bool right) {
    stream s;
    stream_guard const home{s.ref()};
    buffer x(size), table = pinned(2 * size), other = pinned(2 * size);
    std::memset(table.data(), 3, table.size());
    std::memset(other.data(), 3, table.size());
    auto* const from = table.data<char>();
    auto* const to = x.data<char>();
    auto const body = [from, to](size_t i) { to[i] = from[i]; };
    if (right)
      parallel_for(s, size, {writes(x), reads(table)}, body);
    else
      parallel_for(s, size, {writes(x), reads(other)}, body), launched = __LINE__;
    s.synchronize();
    std::memset(table.data(), 4, table.size());
  };
  for (auto const how : {simulated::scheduling::stepped, simulated::scheduling::seeded}) {
    auto const all = found_in({.devices = 1, .memory = 64_MiB, .schedule = how, .seed = 4}, [&] { run(false); });
    expect_one(all, "undeclared use",
               {"work (launch at " + here_line(launched) + " on stream 1 of gpu:0) ", "pinned block 1",
                "does not declare", "reads(p)"});
    expect_none(found_in({.devices = 1, .memory = 64_MiB, .schedule = how, .seed = 4}, [&] { run(true); }));
  }
}

// The heap shares the page at the end of a pinned range: kernels and the code that runs them allocate there.
TEST(undeclared_use, work_may_use_the_heap_beside_a_pinned_range) {
  expect_none(found([] {
    std::vector<std::vector<std::byte>> own(20, std::vector<std::byte>(size + 8));
    std::vector<std::unique_ptr<registered_host_memory>> pins;
    for (auto& one : own) {
      try {
        pins.push_back(std::make_unique<registered_host_memory>(one));
      } catch (invalid_use const&) {}  // the page is pinned with its neighbour
    }
    stream s;
    stream_guard const home{s.ref()};
    for (int i = 0; i < 20; ++i)
      launch(s, {}, on_gpu, [] { std::vector<std::string>(50, std::string(50, 'x')).clear(); });
    s.synchronize();
  }));
}

// The page between two of three ranges in a row has other data, such as the heap's.
TEST(undeclared_use, work_may_use_bytes_between_pinned_ranges) {
  expect_none(found([] {
    std::size_t const page = os::page_size(), half = page / 2;
    std::vector<std::byte> memory(9 * page);
    void* start = memory.data();
    std::size_t room = memory.size();
    auto* const at = static_cast<std::byte*>(std::align(page, 8 * page, start, room));
    std::vector<std::unique_ptr<registered_host_memory>> pins;
    for (std::size_t from = 0; from < 3; ++from)
      pins.push_back(
          std::make_unique<registered_host_memory>(std::span(at + 2 * from * page + half + 16, 2 * page - 16)));
    stream s;
    stream_guard const home{s.ref()};
    for (std::size_t from = 1; from < 3; ++from)
      launch(s, {}, on_gpu, [byte = at + 2 * from * page + half + 8] { *byte = std::byte{1}; });
    s.synchronize();
  }));
}

TEST(host_uses, without_the_guard_only_calls_are_seen) {
  ::setenv("WEIR_SIM_GUARD", "0", 1);
  int copied = 0;
  auto const by_page = found_in(
      {.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 2},
      [&] { fetch_then(waits::no, copied, [](buffer const& to) { (void)*static_cast<char volatile*>(to.data()); }); });
  auto const by_call =
      found_in({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 2},
               [&] { fetch_then(waits::no, copied, [](buffer const& to) { (void)to.host<char>(); }); });
  ::unsetenv("WEIR_SIM_GUARD");
  expect_none(by_page);
  EXPECT_EQ(by_call.size(), 1u) << texts(by_call);
}

// The result of a loop comes into the memory that a copy has read, and another thread sees that copy complete. The
// device may have written it before the call that enqueues the write is recorded.
TEST(host_uses, a_source_that_later_work_overwrites_passes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    simulated const like{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed};
    expect_none(found_in(like, [] {
      auto machine = simulation::of(runtime::current());
      stream const s;
      buffer const host = pinned(size), x(s, size), other(s, size);
      fill(s, other.data(), std::byte{7}, size);
      machine.spawn("writer", [&] {
        copy(s, x.data(), host.data(), size, non_blocking);
        copy(s, host.data(), other.data(), size, non_blocking);
        write(s, host.data(), size);
      });
      machine.spawn("waiter", [&] {
        for (int i = 0; i < 4; ++i)
          s.synchronize();
      });
      machine.join();
      s.synchronize();
    }));
  }
}

}  // namespace
}  // namespace weir::check_tests
