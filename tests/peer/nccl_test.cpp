// NCCL behind the communicator: what says that it is missing, and what large data shows on GPUs.
#include <dlfcn.h>

#include "peer/collective.h"
#include "runtime/parts.h"
#include "tests/peer/ranks.h"

namespace {

using namespace weir;
using namespace weir::test;

TEST(nccl, without_gpus_or_without_the_library_the_error_says_which_and_what_to_do) {
  if (!runtime::current().is_simulated()) GTEST_SKIP() << "there are GPUs";
  runtime machine(simulated{.devices = 2});
  auto const connect = [&] { peer::carried_by_nccl(machine.get(), {0, 1}, here::current()); };
  void* const so = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  try {
    connect();
    FAIL() << "no GPU, and NCCL connects two";
  } catch (not_supported const& e) {
    EXPECT_NE(std::string(e.operands()).find(so ? "<nccl.h>" : "nccl"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.remedy()).find("Install NCCL"), std::string::npos) << e.what();
  } catch (driver_error const& e) {
    EXPECT_TRUE(so);
    EXPECT_NE(e.code(), 0);
    EXPECT_NE(std::string(e.operands()).find("2 GPUs: NCCL answers"), std::string::npos) << e.what();
  }
}

class nccl_on_gpus : public testing::Test {
 protected:
  void SetUp() override {
    if (runtime::current().is_simulated()) GTEST_SKIP() << "no GPUs: " << runtime::current().description();
    if (device_count() < 2) GTEST_SKIP() << "one GPU";
  }
};

TEST_F(nccl_on_gpus, megabytes_are_summed_and_all_ranks_hold_the_same_bits) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::in_process(first_devices(n));
  std::int64_t const count = (std::int64_t{1} << 22) + 3;
  std::vector<elements> results(ranks.size());
  on_each(runtime::current(), ranks, [&](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    std::vector<float> mine(static_cast<std::size_t>(count));
    for (float& f : mine) f = static_cast<float>(random()) * 1e-9f;
    elements host(mine.size() * 4);
    std::memcpy(host.data(), mine.data(), host.size());
    buffer const b = to_device(host);
    for (int round = 0; round < 10; ++round) c.all_reduce({b.data(), count, float32}, reduction::average);
    results[static_cast<std::size_t>(c.rank())] = to_host(b.data(), b.size());
  });
  for (elements const& e : results) EXPECT_EQ(e, results[0]);
}

TEST_F(nccl_on_gpus, abort_frees_a_stream_that_waits_for_a_rank_and_a_new_communicator_works) {
  auto ranks = communicator::in_process(first_devices(2));
  on_each(runtime::current(), ranks, [](communicator& c) {  // connected
    buffer const b = to_device(encode(int32, {1, 2}));
    c.all_reduce({b.data(), 2, int32});
    current_stream().synchronize();
  });
  {
    device_guard const on(0);
    buffer const b = to_device(encode(int32, {1, 2}));
    stamp const waits = ranks[0].all_reduce({b.data(), 2, int32});
    EXPECT_FALSE(waits.query());
    ranks[1].abort();
    waits.synchronize();
    EXPECT_NE(refusal<driver_error>([&] { ranks[0].all_reduce({b.data(), 2, int32}); }), "");
  }
  ranks = communicator::in_process(first_devices(2));
  on_each(runtime::current(), ranks, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1, 2}));
    c.all_reduce({b.data(), 2, int32});
    EXPECT_EQ(to_host(b.data(), b.size()), encode(int32, {2, 4}));
  });
}

TEST_F(nccl_on_gpus, two_communicators_of_other_devices_live_side_by_side) {
  if (device_count() < 4) GTEST_SKIP() << "fewer than four GPUs";
  std::vector<device> const left{device(0), device(1)}, right{device(3), device(2)};
  auto a = communicator::in_process(left), b = communicator::in_process(right);
  for (auto* ranks : {&a, &b}) {
    on_each(runtime::current(), *ranks, [](communicator& c) {
      buffer const mine = to_device(encode(int32, {1.0 + c.rank()}));
      c.broadcast({mine.data(), 1, int32}, 1);
      EXPECT_EQ(to_host(mine.data(), mine.size()), encode(int32, {2}));
    });
  }
}

}  // namespace
