// array<T>: what it keeps when it grows, which stream its memory follows, and what it refuses.
// Threads: one; order is proved by gates.
#include "weir/array.h"

#include <numeric>
#include <vector>

#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"
#include "weir/observe.h"

namespace weir {
namespace {

using test::held;

struct array_of : ::testing::Test {
  test::machine m;
  stream s{device(0)};
  static std::vector<int> counted(int n) {
    std::vector<int> v(static_cast<size_t>(n));
    std::iota(v.begin(), v.end(), 1);
    return v;
  }
  static std::vector<int> read(array<int> const& a) {
    std::vector<int> v(a.size());
    if (!v.empty())
      copy(a.stream(), v.data(), a.data(), a.size_bytes());
    return v;
  }
};

TEST_F(array_of, elements_are_copied_in_and_read_one_by_one) {
  auto const host = counted(1000);
  array<int> a(s, host);
  EXPECT_EQ(a.size(), 1000u);
  EXPECT_EQ(a.size_bytes(), 4000u);
  EXPECT_EQ(a.end() - a.begin(), 1000);
  EXPECT_EQ(a.element(0), 1);
  EXPECT_EQ(a.element(999), 1000);
  a.set_element(0, 70);
  a.set_element(999, 80);
  EXPECT_EQ(a.front(), 70);
  EXPECT_EQ(a.back(), 80);
  EXPECT_EQ(a.element(1), 2);
  ASSERT_TRUE(find_block(a.data()));
  EXPECT_EQ(find_block(a.data())->home, s.ref());
}

TEST_F(array_of, any_trivial_type_can_be_an_element) {
  struct pair {
    double weight;
    char name;
  };
  array<pair> a(s, 3);
  a.set_element(2, {0.5, 'x'});
  EXPECT_EQ(a.element(2).weight, 0.5);
  EXPECT_EQ(a.element(2).name, 'x');
}

TEST_F(array_of, resize_keeps_the_elements_that_fit) {
  auto const host = counted(100);
  array<int> a(s, host);
  a.resize(5000);
  EXPECT_EQ(a.size(), 5000u);
  a.set_element(4999, -1);
  a.resize(60);
  EXPECT_EQ(a.capacity(), 5000u) << "smaller keeps the memory";
  auto const some = read(a);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), host.begin())) << "60 of 100";
  a.resize(5000);
  EXPECT_EQ(a.element(4999), -1);
}

TEST_F(array_of, reserve_and_shrink_change_the_capacity_alone) {
  auto const host = counted(10);
  array<int> a(s, host);
  a.reserve(1000);
  int const* const there = a.data();
  EXPECT_EQ(a.size(), 10u);
  EXPECT_EQ(a.capacity(), 1000u);
  a.resize(1000);
  EXPECT_EQ(a.data(), there);
  a.resize(10);
  a.reserve(5);
  EXPECT_EQ(a.capacity(), 1000u);
  a.shrink_to_fit();
  EXPECT_EQ(a.capacity(), 10u);
  EXPECT_EQ(read(a), host);
  a.resize(0);
  a.shrink_to_fit();
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(memory_allocated(), 0u);
}

// The host does not wait, and what the stream has yet to write is moved.
TEST_F(array_of, growth_is_ordered_on_the_stream) {
  array<int> a(s, 4);
  held gate(m, s);
  int* const old = a.data();
  launch(
      s, {writes(a)}, [](CUstream_st*) {}, [old] { old[3] = 44; });
  a.resize(100);
  EXPECT_NE(a.data(), old);
  gate.open();
  EXPECT_EQ(a.element(3), 44);
}

TEST_F(array_of, moving_hands_over_memory_and_stream) {
  auto const host = counted(10);
  array<int> a(s, host), b(default_stream(), 3);
  int* const there = a.data();
  b = std::move(a);
  EXPECT_EQ(b.data(), there);
  EXPECT_EQ(b.stream(), s.ref());
  EXPECT_TRUE(a.empty() && !a.data());
  array<int> c(std::move(b));
  EXPECT_EQ(read(c), host);
  EXPECT_TRUE(b.empty());
  a.resize(3);  // it can be used again
  a.set_element(2, 5);
  EXPECT_EQ(a.back(), 5);
}

TEST_F(array_of, a_clone_waits_for_the_stream_of_its_source) {
  array<int> a(s, 1);
  stream other{device(0)};
  held gate(m, s);
  a.set_element(0, 9);
  array<int> const b = a.clone(other);
  EXPECT_EQ(b.stream(), other.ref());
  EXPECT_NE(b.data(), a.data());
  gate.open();
  EXPECT_EQ(b.element(0), 9);
  EXPECT_EQ(a.clone().front(), 9);
}

// The block's next owner on the old stream comes after the work of the new one.
TEST_F(array_of, set_stream_moves_the_home_and_orders_the_uses) {
  array<int> a(s, 1);
  stream next{device(0)};
  held gate(m, s);
  a.set_element(0, 3);
  a.set_stream(next);
  EXPECT_EQ(a.stream(), next.ref());
  EXPECT_EQ(find_block(a.data())->home, next.ref());
  EXPECT_FALSE(next.query()) << "it waits for the old stream";
  gate.open();
  EXPECT_EQ(a.front(), 3);
  array<int> none(s);
  none.set_stream(next);
  none.resize(1);
  EXPECT_EQ(find_block(none.data())->home, next.ref());
}

TEST_F(array_of, a_tensor_takes_the_memory) {
  auto const host = counted(6);
  array<int> a(s, host);
  int* const there = a.data();
  test::refused([&] { (void)std::move(a).to_tensor({3, 3}); });
  ASSERT_EQ(a.size(), 6u);
  tensor const t = std::move(a).to_tensor({2, 3});
  EXPECT_TRUE(a.empty() && !a.data());
  EXPECT_EQ(t.data<std::int32_t>(), there);
  EXPECT_EQ(t.shape(), (shape{2, 3}));
  s.synchronize();
  EXPECT_EQ(t[1][2].item<int>(), 6);
  tensor const nothing = array<float>(s).to_tensor();
  EXPECT_EQ(nothing.shape(), (shape{0}));
  EXPECT_EQ(nothing.dtype(), float32);
  EXPECT_EQ(nothing.device(), device(0));
}

TEST_F(array_of, a_borrowing_tensor_sees_the_elements) {
  array<float> a(default_stream(), 8);
  tensor t = a.as_tensor();
  t.fill_(2.5);
  EXPECT_EQ(a.back(), 2.5f);
  EXPECT_EQ(t.data(), a.data());
  EXPECT_EQ(array<float>().as_tensor().numel(), 0);
}

TEST_F(array_of, spans_name_the_elements) {
  array<std::int64_t> a(s, 5);
  std::span<std::int64_t> const all = a;
  EXPECT_EQ(all.data(), a.data());
  EXPECT_EQ(all.size(), 5u);
  device_span const typed = a;
  EXPECT_EQ(typed.data, a.data());
  EXPECT_EQ(typed.count, 5);
  EXPECT_EQ(typed.dtype, int64);
  EXPECT_EQ(writes(a).bytes, 40u);
}

TEST_F(array_of, bad_input_is_refused_and_nothing_changes) {
  array<int> a(s, 3);
  int* const there = a.data();
  EXPECT_NE(test::refused([&] { (void)a.element(3); }).find("element 3 of 3"), std::string::npos);
  test::refused([&] { a.set_element(3, 1); });
  test::refused([&] { (void)array<int>(s).back(); });
  EXPECT_NE(test::refused([&] { a.resize(static_cast<size_t>(-1)); }).find("was negative"), std::string::npos);
  test::refused([&] { a.reserve(std::numeric_limits<size_t>::max() / 2); });
  EXPECT_THROW(a.resize(size_t{1} << 40), out_of_memory);
  test::refused([&] { a.set_stream(default_stream(device(1))); });
  EXPECT_EQ(a.data(), there);
  EXPECT_EQ(a.size(), 3u);
  EXPECT_EQ(a.capacity(), 3u);
  EXPECT_EQ(a.stream(), s.ref());
}

TEST_F(array_of, its_memory_goes_back_at_its_end) {
  { array<double> const a(s, 1000); }
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(array_of, errors_name_the_line_of_the_call) {
  array<int> a(s, 3);
  try {
    a.resize(static_cast<size_t>(-1));
    FAIL();
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.where().file_name()).find("array_test"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
