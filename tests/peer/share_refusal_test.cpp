// Every wrong message is refused with its reason. Nothing of it is kept, and the channel still works. Uses of
// shared memory outside its buffer or after its end are refused, too.
// Threads: one.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "tests/peer/raw_end.h"
#include "tests/peer/share_fixture.h"
#include "weir/collective.h"
#include "weir/launch.h"
#include "weir/observe.h"

namespace weir {
namespace {

using namespace test::sharing;

struct refusals : ::testing::Test {
  refusals() {
    auto const [a, b] = os::make_sockets();
    raw = a;
    line.emplace(b, 1s);
  }
  ~refusals() override { os::close_file(raw); }
  std::string answer(test::lent_memory const& c, std::size_t bytes = sizeof(peer::message)) {
    os::send_message(raw, peer::bytes_of(c.what).first(bytes), c.files(), {});
    try {
      (void)line->receive();
    } catch (error const& e) {
      return std::string(e.operands());
    }
    return "taken";
  }
  test::machine m{small()};
  int raw = -1;
  std::optional<share_channel> line;
  exportable_buffer b{some_bytes};
};

TEST_F(refusals, of_any_bit_that_is_wrong) {
  auto c = test::caught(b);
  auto* const bytes = reinterpret_cast<unsigned char*>(&c.what);
  for (std::size_t i = 0; i < sizeof c.what; ++i) {
    bytes[i] ^= 0x10;
    EXPECT_NE(answer(c), "taken") << "byte " << i;
    bytes[i] ^= 0x10;
  }
  EXPECT_EQ(answer(c), "taken");
}

TEST_F(refusals, name_the_error) {
  auto const with = [&](auto change) {
    auto c = test::caught(b);
    change(c);
    return answer(c);
  };
  EXPECT_NE(with([](auto& c) { c.what.magic = 1; }).find("foreign"), std::string::npos);
  EXPECT_NE(with([](auto& c) {
              c.what.version = 9;
              c.sealed();
            }).find("version 9"),
            std::string::npos);
  EXPECT_NE(with([](auto& c) { c.what.bytes = 1; }).find("checksum"), std::string::npos);
  EXPECT_NE(with([](auto& c) {
              c.what.bytes = c.what.handle_bytes + 1;
              c.sealed();
            }).find("sizes"),
            std::string::npos);
  EXPECT_NE(with([](auto& c) {
              c.what.offset = c.what.handle_bytes - c.what.bytes + 1;
              c.sealed();
            }).find("sizes"),
            std::string::npos);
  EXPECT_NE(with([](auto& c) {
              c.what.offset = ~std::uint64_t{0} - 5;
              c.sealed();
            }).find("sizes"),
            std::string::npos)
      << "it overflows";
  EXPECT_NE(with([](auto& c) {
              c.what.handle_bytes *= 2;
              c.sealed();
            }).find("descriptor"),
            std::string::npos)
      << "a handle of another size";
  EXPECT_NE(
      with([](auto& c) { c.memory = test::owned_file(::open("/dev/null", O_RDWR | O_CLOEXEC)); }).find("descriptor"),
      std::string::npos);
  EXPECT_NE(with([](auto& c) { c.life.close(); }).find("1 descriptors"), std::string::npos);
  EXPECT_NE(with([](auto& c) {
              c.what.device = {"GPU ~of another host"};  // the first and the last character that may be in it
              c.sealed();
            }).find("GPU ~of another host"),
            std::string::npos);
  auto const cut = test::caught(b);
  EXPECT_NE(answer(cut, 40).find("40 B"), std::string::npos);
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 0u);
  EXPECT_EQ(with([](auto&) {}), "taken") << "the line is as good as before";
}

TEST_F(refusals, of_messages_that_are_too_long) {
  std::array<std::byte, 400> text{};
  peer::message m;
  std::memcpy(text.data(), &m, sizeof m);
  os::send_message(raw, text, {}, {});
  try {
    (void)line->wait();
    FAIL() << "taken";
  } catch (invalid_use const& e) {
    EXPECT_NE(e.operands().find("400 B"), std::string::npos) << e.operands();
  }
  os::send_message(raw, {}, {}, {});
  EXPECT_THROW((void)line->wait(), error) << "an empty one";
}

// While it is live, the process cannot open another descriptor.
struct no_more_descriptors {
  no_more_descriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before);
    int const next = ::dup(0);
    ::close(next);
    rlimit now{static_cast<rlim_t>(next), before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &now), 0);
  }
  ~no_more_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

TEST_F(refusals, for_want_of_descriptors_lose_none) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "the sanitizer looks at exceptions by means of a pipe, and takes them for broken when it has none";
#endif
  auto [here, there] = lines();
  {
    no_more_descriptors const none;
    EXPECT_THROW(here.send(b, default_stream(0)), driver_error);
  }
  EXPECT_EQ(b.importers(), 0);
  here.send(b, default_stream(0));
  {
    no_more_descriptors const none;
    EXPECT_THROW((void)there.receive(), invalid_use) << "they did not all arrive";
  }
  EXPECT_EQ(b.importers(), 0) << "closed with the message";
  here.send(b, default_stream(0));
  EXPECT_EQ(there.receive().size(), some_bytes);
}

TEST_F(refusals, of_a_message_that_comes_again) {
  auto c = test::caught(b);
  EXPECT_EQ(answer(c), "taken");
  EXPECT_NE(answer(c).find("stale"), std::string::npos);
}

TEST_F(refusals, of_a_repeated_message_but_not_of_a_late_one) {
  share_pool pool;
  exportable_buffer const one = pool.allocate(1000), two = pool.allocate(1000);
  auto const first = test::caught(one), second = test::caught(two), third = test::caught(one);
  EXPECT_EQ(answer(third), "taken");
  EXPECT_EQ(answer(first), "taken") << "over another line, say";
  EXPECT_EQ(answer(second), "taken");
  for (auto const* c : {&first, &second, &third})
    EXPECT_NE(answer(*c).find("stale"), std::string::npos);
}

TEST_F(refusals, of_a_handle_of_another_size) {
  auto [here, there] = lines();
  here.send(b, default_stream(0));
  auto const open = there.receive();
  auto c = test::caught(b);
  c.what.handle_bytes *= 2;
  c.sealed();
  EXPECT_NE(answer(c).find("but that memory has"), std::string::npos);
}

TEST_F(refusals, for_want_of_memory_leave_the_message_the_next_one) {
  auto [here, there] = lines();
  here.send(b, default_stream(0));
  os::refuse_by([](os::call c) noexcept { return c == os::call::duplicate_file; });
  for (int i = 0; i < 600; ++i) {
    try {
      (void)there.receive();
      FAIL() << "taken";
    } catch (out_of_memory const& e) {
      ASSERT_EQ(e.report().requested, some_bytes);
      ASSERT_EQ(e.report().rounded, 2_MiB) << "all of its handle";
    }
  }
  os::refuse_by(nullptr);
  EXPECT_EQ(b.importers(), 1);
  EXPECT_EQ(there.receive().size(), some_bytes) << "its word was taken, and it is not stale";
}

// Not as a damaged message, and not at the other end.
TEST_F(refusals, by_the_driver_are_told_as_the_drivers) {
  auto [here, there] = lines();
  m.control().fail_call("export_handle", 1, driver::code::failed);
  EXPECT_THROW(here.send(b, default_stream(0)), driver_error);
  here.send(b, default_stream(0));
  struct refused {
    char const* call;
    int turn;
  };
  for (auto const [call, turn] : {refused{"info", 1}, {"info", 3}, {"import_handle", 1}, {"map", 1}, {"grant", 1}}) {
    m.control().fail_call(call, turn, driver::code::failed);
    EXPECT_THROW((void)there.receive(), driver_error) << call << " " << turn;
  }
  EXPECT_EQ(there.receive().size(), some_bytes) << "the buffer stayed the next one";
}

TEST(a_pool, is_charged_nothing_when_a_reader_is_refused) {
  test::machine m(small());
  share_pool pool({.on = 0, .handle_bytes = 4_MiB, .limit = 4_MiB, .readers = {1}});
  int refused = 0;
  for (std::uint64_t k = 1; k <= 3; ++k) {
    auto const order = m.control().fail_call("grant", k, driver::code::failed);
    try {
      EXPECT_EQ(pool.allocate(4_MiB).size(), 4_MiB);
    } catch (driver_error const&) {
      ++refused;
      EXPECT_EQ(pool.statistics().reserved, 0u) << "grant " << k;
    }
    m.control().cancel_failure(order);
  }
  EXPECT_GE(refused, 2) << "the owner's grant, and the reader's";
  EXPECT_EQ(pool.allocate(4_MiB).size(), 4_MiB);
}

TEST_F(refusals, of_calls_out_of_turn_change_nothing) {
  auto [here, there] = lines();
  here.signal(3, default_stream(0));
  here.send(b, default_stream(0));
  EXPECT_THROW((void)there.receive(), invalid_use);
  EXPECT_EQ(there.wait(), 3u);
  EXPECT_THROW((void)there.wait(), invalid_use);
  EXPECT_EQ(there.receive().size(), some_bytes);
}

TEST_F(refusals, of_sockets_that_are_none) {
  EXPECT_THROW(share_channel(-1), invalid_use);
  int both[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
  EXPECT_THROW(share_channel{both[0]}, invalid_use);
  for (int f : both)
    EXPECT_EQ(::close(f), 0) << "still ours";
}

TEST_F(refusals, of_moved_lines_and_of_negative_leases) {
  auto [here, there] = lines();
  share_channel const now = std::move(here);
  EXPECT_THROW((void)here.wait(), invalid_use);
  EXPECT_THROW((void)here.receive(), invalid_use);
  EXPECT_THROW(here.send(b, default_stream(0)), invalid_use);
  EXPECT_THROW(here.signal(1, default_stream(0)), invalid_use);
  EXPECT_THROW((void)here.timeout(), invalid_use);
  EXPECT_THROW(here.set_timeout(1s), invalid_use);
  EXPECT_THROW(there.set_timeout(-1ms), invalid_use);
  EXPECT_THROW(there.set_timeout(0ms), invalid_use);
  EXPECT_EQ(there.timeout(), now.timeout());
}

TEST_F(refusals, of_handles_whose_size_overflowed) {
  EXPECT_THROW(share_pool({.handle_bytes = ~std::size_t{0}}), invalid_use);
  EXPECT_THROW(share_pool({.handle_bytes = ~std::size_t{0} - 2_MiB}), invalid_use);
}

TEST_F(refusals, of_buffers_that_are_none) {
  EXPECT_THROW(exportable_buffer(0), invalid_use);
  EXPECT_THROW(exportable_buffer(~std::size_t{0}), out_of_memory);
  EXPECT_THROW(exportable_buffer(65_MiB), out_of_memory);
  auto [here, there] = lines();
  EXPECT_THROW(here.send(exportable_buffer(), default_stream(0)), invalid_use);
}

// Uses ------------------------------------------------------------------------------------------------------

auto const no_gpu = [](CUstream_st*) { FAIL() << "there is no GPU here"; };
constexpr auto nothing = [] {};

// Two buffers side by side in one handle, both opened by another process.
struct neighbours : ::testing::Test {
  explicit neighbours(options o = {})
      : m({.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded}, o) {
    here.send(x, default_stream(0)), here.send(y, default_stream(0));
    first = there.receive(), second = there.receive();
  }
  template <class F>
  static std::string why(F use) {
    try {
      use();
    } catch (invalid_use const& e) {
      return std::string(e.operands());
    }
    return "accepted";
  }
  test::machine m;
  std::pair<share_channel, share_channel> both = lines();
  share_channel &here = both.first, &there = both.second;
  share_pool pool;
  exportable_buffer x = pool.allocate(1000), y = pool.allocate(1000);
  imported_buffer first, second;
  buffer of_host = pinned(4096);
};
struct watched_neighbours : neighbours {
  watched_neighbours() : neighbours(options{.check_races = true}) {}
  static std::uint64_t races() {
    std::uint64_t all = 0;
    for (auto const& r : race_reports())
      all += r.times;
    return all;
  }
};

TEST_F(watched_neighbours, are_used_to_their_ends_without_a_size) {
  for (auto const& [of_x, of_y] : {std::pair{writes(x), writes(y)}, std::pair{writes(first), writes(second)}}) {
    auto const before = races();
    stream const a, b;
    a.wait(default_stream(0)), b.wait(default_stream(0));
    launch(a, {of_x}, no_gpu, [p = const_cast<void*>(of_x.address)] { std::memset(p, 1, 1000); });
    launch(b, {of_y}, no_gpu, [p = const_cast<void*>(of_y.address)] { std::memset(p, 1, 1000); });
    EXPECT_EQ(races(), before) << "they are two";
    launch(b, {{static_cast<char const*>(of_x.address) + 999, access_mode::read, 1}}, no_gpu, nothing);
    EXPECT_EQ(races(), before + 1) << "the last byte is one's own";
    synchronize(0);
  }
  x.record_stream(default_stream(0));
}

TEST_F(neighbours, are_not_reached_by_an_overlong_access) {
  auto const* const of_y = static_cast<char const*>(y.data());
  ASSERT_EQ(of_y - static_cast<char const*>(x.data()), 1024);
  for (auto* const p : {x.data(), first.data()}) {
    auto* const last = static_cast<char*>(p) + 999;
    EXPECT_NE(why([&] { copy(p, of_host.data(), 1001); }).find("holds 1000 B, asked 1001 B"), std::string::npos);
    EXPECT_NE(why([&] { copy(of_host.data(), last, 2); }).find("holds 1 B to the end of its block of 1000 B"),
              std::string::npos);
    EXPECT_NE(why([&] { fill(p, std::byte{1}, 1025); }).find("holds 1000 B"), std::string::npos);
    EXPECT_NE(
        why([&] { launch(default_stream(0), {writes(p, 1001)}, no_gpu, nothing); }).find("holds 1000 B, asked 1001 B"),
        std::string::npos);
    EXPECT_NE(why([&] { copy(last + 1, of_host.data(), 1); }).find("in no buffer"), std::string::npos)
        << "the gap between two buffers belongs to no buffer";
    EXPECT_NO_THROW(fill(last, std::byte{1}, 1));
    EXPECT_NO_THROW(launch(default_stream(0), {writes(last, 1)}, no_gpu, nothing));
  }
}

TEST_F(neighbours, are_not_reached_by_an_overlong_collective) {
  auto ranks = communicator::create_all(std::array{device(0)});
  ASSERT_EQ(static_cast<char*>(y.data()) - static_cast<char*>(x.data()), 1024);
  ranks[0].all_reduce({x.data(), 1000, uint8});
  auto const& driver = m.control().refusing();
  auto const calls_before = driver.calls_so_far();
  for (auto* const p : {x.data(), first.data()}) {
    EXPECT_NE(why([&] {
                ranks[0].broadcast({p, 1001, uint8}, 0);
              }).find("holds 1000 B, asked 1001 B"),
              std::string::npos);
    EXPECT_NE(why([&] {
                ranks[0].all_reduce({p, std::int64_t{1} << 30, float32});
              }).find("holds 1000 B"),
              std::string::npos)
        << "past the handle, too";
    EXPECT_NE(why([&] {
                ranks[0].all_reduce({static_cast<char*>(p) + 1000, 4, uint8});
              }).find("in no buffer"),
              std::string::npos);
  }
  EXPECT_EQ(driver.calls_so_far(), calls_before) << "the driver is not asked first";
  for (auto* const p : {x.data(), first.data()})
    EXPECT_NO_THROW(ranks[0].all_reduce({p, 1000, uint8}));
  synchronize(0);
}

TEST_F(neighbours, that_are_gone_are_used_no_more) {
  void *const of_owner = x.data(), *const of_other = first.data();
  auto const refused = [&](void* p) {
    EXPECT_NE(why([&] { copy(of_host.data(), p, 1); }).find("in no buffer"), std::string::npos);
    EXPECT_NE(why([&] { fill(p, std::byte{1}, 1); }).find("in no buffer"), std::string::npos);
    EXPECT_NE(why([&] { launch(default_stream(0), {reads(p, 1)}, no_gpu, nothing); }).find("in no buffer"),
              std::string::npos);
    EXPECT_FALSE(find_block(p));
  };
  here.send(x, default_stream(0));
  auto again = there.receive();
  ASSERT_EQ(again.data(), of_other);
  first.release(default_stream(0));
  EXPECT_NO_THROW(fill(of_other, std::byte{1}, 1000)) << "it is open once more";
  again.release(default_stream(0));
  refused(of_other);
  x.reset();
  refused(of_owner);
  EXPECT_NO_THROW(fill(second.data(), std::byte{1}, 1000));
  EXPECT_NO_THROW(fill(y.data(), std::byte{1}, 1000));
  synchronize(0);
  EXPECT_EQ(pool.statistics().held, 0u);
  auto const next = pool.allocate(900);
  ASSERT_EQ(next.data(), of_owner);
  EXPECT_EQ(find_block(of_owner)->bytes, 900u);
}

TEST_F(neighbours, are_used_by_work_of_devices_that_reach_them) {
  EXPECT_NE(why([&] { launch(default_stream(1), {reads(x)}, no_gpu, nothing); }).find("gpu:1 has no access"),
            std::string::npos);
  share_pool wide({.readers = {1}});
  auto const seen = wide.allocate(100);
  EXPECT_NO_THROW(launch(default_stream(1), {reads(seen)}, no_gpu, nothing));
  here.send(x, default_stream(0));
  auto const o = there.receive(1);
  EXPECT_NO_THROW(launch(default_stream(1), {reads(o)}, no_gpu, nothing));
  synchronize(1);
}

TEST_F(neighbours, are_blocks_that_no_allocator_takes) {
  for (auto* const p : {y.data(), second.data()}) {
    auto const found = find_block(static_cast<char*>(p) + 999);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->base, p);
    EXPECT_EQ(found->bytes, 1000u);
    EXPECT_EQ(found->on, device(0));
    EXPECT_EQ(found->kind, memory_kind::device);
    EXPECT_NE(why([&] { deallocate(p); }).find("exportable_buffer"), std::string::npos);
    EXPECT_NE(why([&] { record_stream(p, default_stream(0)); }).find("exportable_buffer"), std::string::npos);
    EXPECT_NE(why([&] { (void)buffer::adopt(p); }).find("exportable_buffer"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
