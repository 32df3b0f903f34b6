// A device filled to its last page leaves the driver what it needs: for cuBLAS's first product and for a kernel that
// was never loaded. On GPUs it is the one program of its process; WEIR_TEST_SECONDS=300 fills for five minutes.
// Threads: four that allocate; the test's own.
#include <gtest/gtest.h>

#include <iostream>
#include <random>
#include <thread>

#include "runtime/base/sync.h"
#include "tests/support/seeds.h"
#include "weir/device.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/parallel_for.h"
#include "weir/tensor.h"

namespace weir {
namespace {

constexpr int threads = 4;

// 1 KiB of local memory a thread: the driver makes room for all threads that the device may run at once.
struct with_local_memory {
  std::uint32_t* out;
  std::size_t rounds;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const {
    std::uint32_t volatile local[256];
    for (std::size_t k = 0; k < 256; ++k)
      local[k] = static_cast<std::uint32_t>(i + k);
    std::uint32_t sum = 0;
    for (std::size_t k = 0; k < rounds; ++k)
      sum += local[(i * 7 + k * 13) % 256];
    out[i] = sum;
  }
};

// Blocks of a page's quarter to a 32nd of the device, a third of them freed after each refusal.
void fill(int number, std::int64_t until_ns, std::vector<buffer>& all) {
  set_device(0);
  stream const mine;
  stream_guard const on(mine);
  std::mt19937_64 random(static_cast<unsigned>(number) + 1);
  std::size_t const most = get_device_properties(0).total_memory / 32;
  while (base::now_ns() < until_ns) {
    try {
      all.push_back(buffer(random() % (std::size_t{512} << 10 << random() % 8) % most + 1));
    } catch (out_of_memory const&) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (random() % 3 == 0)
          std::swap(all[i], all.back()), all.pop_back();
      }
    }
  }
}

TEST(full_device, leaves_the_driver_what_first_calls_need) {
  if (runtime::current().is_simulated() && !tests::number_from_environment("WEIR_TEST_SECONDS", 0))
    GTEST_SKIP() << "a simulated device keeps nothing for a driver";
  constexpr std::int64_t n = 512;
  tensor const a = ones({n, n}), b = ones({n, n});
  tensor product = zeros({n, n});
  buffer counted(std::size_t{4} << 16);
  synchronize();
  std::int64_t const until =
      base::now_ns() +
      static_cast<std::int64_t>(tests::number_from_environment("WEIR_TEST_SECONDS", 2)) * 1'000'000'000;
  std::vector<buffer> held[threads];
  std::vector<std::thread> all;
  for (int i = 0; i < threads; ++i)
    all.emplace_back(fill, i, until, std::ref(held[i]));
  for (auto& t : all)
    t.join();
  std::vector<buffer> rest;
  for (std::size_t bytes = std::size_t{1} << 30; bytes >= 64 << 10; bytes /= 2) {
    try {
      for (;;)
        rest.push_back(buffer(bytes));
    } catch (out_of_memory const&) {}
  }
  auto const left = [] { return mem_get_info().free >> 20; };
  std::cout << "full: " << left() << " MiB left, reserved " << (memory_reserved() >> 20) << " MiB\n";
  matmul_out(product, a, b);
  synchronize();
  std::cout << "after the first product: " << left() << " MiB\n";
  parallel_for(current_stream(), counted.size() / 4, {writes(counted.data(), counted.size())},
               with_local_memory{counted.data<std::uint32_t>(), 100});
  synchronize();
  std::cout << "after a kernel with 1 KiB of local memory a thread: " << left() << " MiB\n";
  for (auto& h : held)
    h.clear();
  rest.clear();
  EXPECT_EQ(sum(product).item<float>(), static_cast<float>(n * n * n));
  EXPECT_GT(empty_cache(), 0u);
}

}  // namespace
}  // namespace weir
