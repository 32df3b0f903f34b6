// Loops and native launches on whatever machine there is:
// a real stream where there is a GPU, the machine's where not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "weir/copy.h"
#include "weir/parallel_rows.h"
#include "weir/runtime.h"

namespace {

using namespace weir;

struct count_up {
  int* visits;
  WEIR_HOST_DEVICE void operator()(size_t i) const { visits[i] += static_cast<int>(i % 1000) + 1; }
};

std::vector<int> to_host(buffer const& b) {
  std::vector<int> v(b.size() / sizeof(int));
  copy(v.data(), b.data(), b.size());
  return v;
}

TEST(parallel_for, visits_every_index_once_and_no_other) {
  for (size_t const n : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{255}, size_t{257},
                         size_t{100000}, size_t{65535} * 256 + 300}) {
    buffer const b((n + 1) * sizeof(int));
    fill(b.data(), std::byte{0}, b.size());
    parallel_for(current_stream(), n, {updates(b)}, count_up{b.data<int>()});
    std::vector<int> const is = to_host(b);
    for (size_t i = 0; i < n; ++i)
      ASSERT_EQ(is[i], static_cast<int>(i % 1000) + 1) << i << " of " << n;
    ASSERT_EQ(is[n], 0);
  }
}

struct sum_and_max {  // of the row's numbers, behind them
  float* x;
  int columns;
  WEIR_HOST_DEVICE void operator()(size_t r, row_team t) const {
    float* const row = x + r * static_cast<size_t>(columns + 2);
    float const sum = t.sum_of(columns, [=](int c) { return row[c]; });
    float const most = t.max_of(columns, [=](int c) { return row[c]; });
    if (t.lane() == 0) {
      row[columns] = sum;
      row[columns + 1] = most;
    }
  }
};

// 600,000 rows are more than a grid of GPUs has at once, in the loop of weir.
TEST(parallel_for_rows, a_team_reduces_each_row) {
  for (auto const& [rows, columns] : {std::pair<size_t, int>{0, 3}, {1, 1}, {5, 31}, {9, 32}, {7, 100}, {600'000, 3}}) {
    size_t const wide = static_cast<size_t>(columns) + 2;
    std::vector<float> host(rows * wide);
    for (size_t i = 0; i < host.size(); ++i)
      host[i] = static_cast<float>(i * 7 % 31) - 40;
    buffer const x((host.size() + 1) * sizeof(float));
    copy(x.data(), host.data(), host.size() * sizeof(float));
    parallel_for_rows(current_stream(), rows, {updates(x)}, sum_and_max{x.data<float>(), columns});
    std::vector<float> is(host.size());
    copy(is.data(), x.data(), is.size() * sizeof(float));
    for (size_t r = 0; r < rows; ++r) {
      auto const row = host.begin() + static_cast<std::ptrdiff_t>(r * wide);
      ASSERT_EQ(is[r * wide + wide - 2], std::accumulate(row, row + columns, 0.f)) << "row " << r << " of " << rows;
      ASSERT_EQ(is[r * wide + wide - 1], *std::max_element(row, row + columns)) << "row " << r << " of " << rows;
    }
  }
}

struct max_of_lanes {  // the answer of each of the threads that share row 0: element lane() of `x` is its number
  float *x, *answers;
  WEIR_HOST_DEVICE void operator()(size_t, row_team t) const { answers[t.lane()] = t.max(x[t.lane()]); }
};

// On the host a row has one thread. The join is the one of a warp.
TEST(parallel_for_rows, a_nan_is_the_largest_on_all_threads) {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  for (size_t const at : {size_t{0}, size_t{5}, size_t{31}}) {
    std::vector<float> host(32);
    std::iota(host.begin(), host.end(), 0.f);
    host[at] = nan;
    std::vector<float> lanes = host;
    for (size_t far = 16; far > 0; far /= 2) {
      std::vector<float> const before = lanes;
      for (size_t lane = 0; lane < 32; ++lane)
        lanes[lane] = detail::larger(before[lane], before[lane ^ far]);
    }
    for (float const lane : lanes)
      EXPECT_TRUE(std::isnan(lane)) << at;
    buffer const x(32 * sizeof(float)), answers(32 * sizeof(float));
    copy(x.data(), host.data(), 32 * sizeof(float));
    copy(answers.data(), host.data(), 32 * sizeof(float));
    parallel_for_rows(current_stream(), 1, {reads(x), updates(answers)},
                      max_of_lanes{x.data<float>(), answers.data<float>()});
    copy(host.data(), answers.data(), 32 * sizeof(float));
    EXPECT_EQ(std::isnan(host[0]), at == 0 || !runtime::current().is_simulated());
    parallel_for_rows(current_stream(), 1, {updates(x)}, sum_and_max{x.data<float>(), 30});
    copy(host.data(), x.data(), 32 * sizeof(float));
    EXPECT_EQ(std::isnan(host[31]), at < 30);
  }
}

struct scale_add {
  float* y;
  float const* x;
  float a;
  WEIR_HOST_DEVICE void operator()(size_t i) const { y[i] = a * x[i] + y[i]; }
};
struct fill {
  float* y;
  float value;
  WEIR_HOST_DEVICE void operator()(size_t i) const { y[i] = value; }
};

TEST(parallel_for, loops_are_ordered_by_their_streams) {
  size_t const n = 1 << 16;
  stream a, b;
  buffer x, y;
  {
    stream_guard const in{a};
    x = buffer(n * sizeof(float));
    y = buffer(n * sizeof(float));
  }
  parallel_for(a, n, {writes(x)}, fill{x.data<float>(), 1});
  parallel_for(a, n, {writes(y)}, fill{y.data<float>(), 2});
  for (int i = 0; i < 10; ++i) {
    stream &from = i % 2 ? b : a, &to = i % 2 ? a : b;
    to.ref().wait(from);
    parallel_for(to, n, {reads(x), updates(y)}, scale_add{y.data<float>(), x.data<float>(), 1});
  }
  std::vector<float> is(n);
  copy(a, is.data(), y.data(), y.size());
  for (float const v : is)
    ASSERT_EQ(v, 12);
}

// The reader is behind a long queue when its block is freed and the place asked for again.
TEST(parallel_for, a_declared_use_keeps_memory_until_done) {
  size_t const n = 1 << 20;
  stream home, reader;
  buffer sum;
  {
    stream_guard const in{reader};
    sum = buffer(n * sizeof(float));
  }
  parallel_for(reader, n, {writes(sum)}, fill{sum.data<float>(), 0});
  for (int round = 0; round < 20; ++round) {
    auto* const x = static_cast<float*>(allocate(home, n * sizeof(float)));
    parallel_for(home, n, {writes(x)}, fill{x, 1});
    reader.ref().wait(home);
    parallel_for(reader, n, {reads(x), updates(sum)}, scale_add{sum.data<float>(), x, 1});
    deallocate(x);
    auto* const y = static_cast<float*>(allocate(home, n * sizeof(float)));
    parallel_for(home, n, {writes(y)}, fill{y, -1000});
    deallocate(y);
  }
  std::vector<float> is(n);
  copy(reader, is.data(), sum.data(), sum.size());
  for (float const v : is)
    ASSERT_EQ(v, 20);
}

TEST(launch, calls_one_of_its_two_forms) {
  stream s;
  bool const simulated = runtime::current().is_simulated();
  int on_gpu = 0, on_host = 0;
  launch(
      s, {},
      [&](CUstream_st* native) {
        ++on_gpu;
        EXPECT_EQ(native, s.ref().native());
      },
      [&on_host] { ++on_host; });
  s.ref().synchronize();
  EXPECT_EQ(on_gpu, simulated ? 0 : 1);
  EXPECT_EQ(on_host, simulated ? 1 : 0);
}

// The stream goes on.
TEST(native_launch, an_exception_comes_through) {
  if (runtime::current().is_simulated())
    GTEST_SKIP() << "no GPU: the native form is not called";
  stream s, home;
  void* const x = allocate(home, 4096);
  EXPECT_THROW(launch(
                   s, {reads(x)}, [](CUstream_st*) { throw std::out_of_range("mine"); }, [] {}),
               std::out_of_range);
  parallel_for(s, 1024, {writes(x)}, fill{static_cast<float*>(x), 3});
  s.ref().synchronize();
  deallocate(x);
}

TEST(launch, host_functions_run_in_stream_order) {
  stream s;
  std::vector<int> log;
  for (int i = 0; i < 20; ++i)
    launch_host(s, [&log, i] { log.push_back(i); });
  s.ref().synchronize();
  ASSERT_EQ(log.size(), 20u);
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(log[static_cast<size_t>(i)], i);
}

}  // namespace
