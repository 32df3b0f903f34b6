// Memory that is open to peers, on GPUs if there are any, else on simulated devices. Skipped if no other
// device reaches the first.
// Threads: one.
#include <algorithm>
#include <iostream>
#include <memory>

#include "peer/link/links.h"
#include "tests/peer/machine_fixture.h"
#include "weir/observe.h"

namespace weir {
namespace {

std::unique_ptr<test::machine> machine_for_peers(options o = {}) {
  ::setenv("WEIR_DEVICES", "cuda", 1);
  std::unique_ptr<test::machine> made;
  try {
    made = std::make_unique<test::machine>(o);
  } catch (not_supported const&) {
    made = std::make_unique<test::machine>(simulated{.devices = 4, .memory = 2_GiB}, o);
  }
  ::unsetenv("WEIR_DEVICES");
  return made;
}

std::vector<device> readers_of(int owner) {
  std::vector<device> all;
  for (int d = 0; d < device_count(); ++d) {
    if (d != owner && can_access_peer(device(d), device(owner)))
      all.emplace_back(d);
  }
  return all;
}

// Reads as a kernel of the reader does: by a plain copy there, which is refused if the memory is not open.
void expect_read_in_place(test::machine& m, void const* at, test::bytes_of_host const& expected, device reader) {
  buffer const mine(expected.size(), {.on = reader});
  auto& line = streams::clock_of(default_stream(reader));
  auto const s = m.driver().copy(reader.index(), line.handle(), mine.data(), at, expected.size());
  ASSERT_TRUE(s.ok()) << driver::name_of(s.what) << " for gpu:" << reader.index();
  EXPECT_TRUE(test::read_back(mine.data(), expected.size(), reader.index()) == expected)
      << "for gpu:" << reader.index();
}

void fill_with(void* to, test::bytes_of_host const& bytes) {
  copy(to, bytes.data(), bytes.size());
  synchronize(device(0));
}

#define NEED_READERS(readers)                                                           \
  do {                                                                                  \
    if ((readers).empty())                                                              \
      GTEST_SKIP() << "no other device reaches device 0; there are " << device_count(); \
  } while (false)

TEST(visible_here, every_reader_sees_each_handle_from_the_first_on) {
  auto const m = machine_for_peers();
  auto const readers = readers_of(0);
  NEED_READERS(readers);
  enable_peer_access(device(0), readers);
  for (int round = 0; round < 2; ++round) {
    std::vector<buffer> all;
    for (size_t n : {size_t{48}, size_t{70'000}, size_t{5'000'000}, size_t{300'000'000}})
      all.emplace_back(n, buffer_options{.on = device(0)});
    for (auto const& b : all) {
      auto const bytes = test::pattern(std::min<size_t>(b.size(), 4'000'000), b.size());
      char* const last = b.data<char>() + (b.size() - bytes.size());
      fill_with(last, bytes);
      for (device const r : readers) {
        EXPECT_TRUE(m->memory(0).granted(b.data(), r.index()));
        expect_read_in_place(*m, last, bytes, r);
        buffer const there(bytes.size(), {.on = r});
        EXPECT_EQ(explain_copy(there.data(), last, bytes.size()).by, copy_route::peer);
        copy(there.data(), last, bytes.size());
        EXPECT_TRUE(test::read_back(there.data(), bytes.size(), r.index()) == bytes);
      }
    }
    EXPECT_GE(memory_stats(device(0)).peer_access_bytes, 300'000'000u);
    all.clear();
    synchronize(device(0));
    empty_cache(device(0));  // the next round uses new handles
    EXPECT_EQ(m->memory(0).validate(), std::vector<std::string>{});
  }
}

TEST(visible_here, memory_held_by_then_is_opened_under_work) {
  auto const m = machine_for_peers();
  auto const readers = readers_of(0);
  NEED_READERS(readers);
  buffer const early(9'000'000, {.on = device(0)});
  buffer(20'000'000, {.on = device(0)}).reset();
  auto const bytes = test::pattern(early.size(), 3);
  fill_with(early.data(), bytes);
  (void)links();  // tries the links before the stream is held
  {
    test::held const gate(*m, default_stream(device(0)));
    fill(early.data(), std::byte{9}, 1);
    enable_peer_access(default_stream(device(0)), readers);  // waits for no work
  }
  synchronize(device(0));
  auto expected = bytes;
  expected[0] = std::byte{9};
  for (device const r : readers)
    expect_read_in_place(*m, early.data(), expected, r);
  EXPECT_EQ(memory_readers(default_stream(device(0))), readers);
}

TEST(visible_here, with_the_option_a_first_copy_goes_straight) {
  auto const m = machine_for_peers({.peer_access = true});
  auto const readers = readers_of(0);
  NEED_READERS(readers);
  device const other = readers.front();
  buffer const near(6'000'000, {.on = device(0)}), far(6'000'000, {.on = other});
  auto const bytes = test::pattern(near.size(), 4);
  fill_with(near.data(), bytes);
  copy(far.data(), near.data(), near.size());
  EXPECT_TRUE(m->memory(0).granted(near.data(), other.index()));
  EXPECT_TRUE(test::read_back(far.data(), far.size(), other.index()) == bytes);
  buffer const later(80'000'000, {.on = other});
  EXPECT_EQ(m->memory(other.index()).granted(later.data(), 0), can_access_peer(device(0), other));
  expect_read_in_place(*m, near.data(), bytes, other);
}

// The cost for docs/reference/copies.md: printed, not tested.
TEST(visible_here, the_price_of_a_handle_is_printed) {
  auto const m = machine_for_peers();
  auto const readers = readers_of(0);
  NEED_READERS(readers);
  (void)links();
  auto const us_a_handle = [&] {
    constexpr int rounds = 20;
    std::int64_t all = 0;
    for (int i = 0; i < rounds; ++i) {
      std::int64_t const from = base::now_ns();
      buffer b(64'000'000, {.on = device(0)});
      all += base::now_ns() - from;
      b.reset();
      synchronize(device(0));
      empty_cache(device(0));
    }
    return static_cast<double>(all) / rounds / 1000;
  };
  double const closed = us_a_handle();
  std::cout << "a block of 64 MB: " << closed << " us";
  std::vector<device> some;
  for (device const r : readers) {
    some.push_back(r);
    enable_peer_access(device(0), some);
    std::cout << ", open to " << some.size() << ": " << us_a_handle() << " us";
  }
  std::cout << '\n';
  EXPECT_GT(closed, 0);
}

}  // namespace
}  // namespace weir
