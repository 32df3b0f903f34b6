// NCCL behind the communicator: the errors without it, and large data on GPUs.
#include <dlfcn.h>

#include "peer/collective/group.h"
#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "tests/peer/first_collectives.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pool.h"

namespace {

using namespace weir;
using namespace weir::test;

// The error also says what to do.
TEST(nccl, without_gpus_or_library_the_error_says_which) {
  if (!runtime::current().is_simulated())
    GTEST_SKIP() << "there are GPUs";
  runtime machine(simulated{.devices = 2});
  auto const connect = [&] { peer::carried_by_nccl(machine.get(), {0, 1}, source_location::current()); };
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
    EXPECT_NE(std::string(e.operands()).find("2 GPUs: NCCL returns"), std::string::npos) << e.what();
  }
}

class nccl_on_gpus : public testing::Test {
 protected:
  void SetUp() override {
    if (runtime::current().is_simulated())
      GTEST_SKIP() << "no GPUs: " << runtime::current().description();
    if (device_count() < 2)
      GTEST_SKIP() << "one GPU";
  }
};

TEST_F(nccl_on_gpus, megabytes_are_summed_to_equal_bits) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const count = (std::int64_t{1} << 22) + 3;
  std::vector<elements> results(ranks.size());
  on_each(runtime::current(), ranks, [&](communicator& c) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    std::vector<float> mine(static_cast<std::size_t>(count));
    for (float& f : mine)
      f = static_cast<float>(random()) * 1e-9f;
    elements host(mine.size() * 4);
    std::memcpy(host.data(), mine.data(), host.size());
    buffer const b = to_device(host);
    for (int round = 0; round < 10; ++round)
      c.all_reduce({b.data(), count, float32}, reduce_op::average);
    results[static_cast<std::size_t>(c.rank())] = to_host(b.data(), b.size());
  });
  for (elements const& e : results)
    EXPECT_EQ(e, results[0]);
}

// NCCL connects ranks in the first call that takes an algorithm. That call waits for all ranks.
TEST_F(nccl_on_gpus, first_collectives_wait_for_no_thread) {
  auto ranks = communicator::create_all(first_devices(2));
  base::atomic<int> calls{0};  // of rank 1
  on_each(runtime::current(), ranks, [&](communicator& c) {
    int seen = 0;
    call_first_collectives(
        c,
        [&] {
          auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          while (calls.load() <= seen && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
          EXPECT_GT(calls.load(), seen);
          ++seen;
        },
        [&] { calls.fetch_add(1); });
  });
}

// Rank 0 waits inside NCCL, which connects it to rank 1. Then both work again.
TEST_F(nccl_on_gpus, abort_frees_a_rank_that_is_connected_alone) {
  for (int round = 0; round < 3; ++round) {
    auto ranks = communicator::create_all(first_devices(2));
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ranks[1].abort();
    });
    device_guard const on(0);
    buffer const b = to_device(encode(int32, {1, 2}));
    auto const begin = std::chrono::steady_clock::now();
    try {
      ranks[0].send({b.data(), 2, int32}, 1);
      current_stream().synchronize();
    } catch (driver_error const&) {}
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1500));
    EXPECT_NE(ranks[0].failure(), "");
    other.join();
  }
}

// A new communicator works.
TEST_F(nccl_on_gpus, abort_frees_a_stream_that_waits_for_a_rank) {
  auto ranks = communicator::create_all(first_devices(2));
  on_each(runtime::current(), ranks, [](communicator& c) {  // connects the ranks
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
  ranks = communicator::create_all(first_devices(2));
  on_each(runtime::current(), ranks, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1, 2}));
    c.all_reduce({b.data(), 2, int32});
    EXPECT_EQ(to_host(b.data(), b.size()), encode(int32, {2, 4}));
  });
}

TEST_F(nccl_on_gpus, parts_go_from_and_to_every_root) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const count = 1001;
  for (int root = 0; root < n; ++root) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      bool const mine = c.rank() == root;
      buffer const whole =
          to_device(encode(float32, values_of(count * n, [&](std::int64_t i) { return brought(float32, root, i); })));
      buffer const part(static_cast<std::size_t>(count) * 4), all(static_cast<std::size_t>(count * n) * 4);
      c.scatter({part.data(), count}, {whole.data(), count * n}, root);
      EXPECT_EQ(to_host(part.data(), part.size()),
                encode(float32,
                       values_of(count, [&](std::int64_t i) { return brought(float32, root, c.rank() * count + i); })))
          << "from " << root;
      c.gather({all.data(), count * n}, {part.data(), count}, root);
      if (mine) {
        EXPECT_EQ(to_host(all.data(), all.size()), to_host(whole.data(), whole.size())) << "to " << root;
      }
      current_stream().synchronize();
    });
  }
}

TEST_F(nccl_on_gpus, megabytes_go_between_two_ranks_and_in_rings) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const count = (std::int64_t{1} << 22) + 3;
  auto const of = [&](int rank) {
    return encode(int32, values_of(count, [&](std::int64_t i) { return brought(int32, rank, i); }));
  };
  on_each(runtime::current(), ranks, [&](communicator& c) {
    int const next = (c.rank() + 1) % n, last = (c.rank() + n - 1) % n;
    buffer const mine = to_device(of(c.rank())), got(mine.size());
    for (int round = 0; round < 3; ++round)
      c.send_receive({mine.data(), count, int32}, next, {got.data(), count, int32}, last);
    EXPECT_TRUE(to_host(got.data(), got.size()) == of(last));
    if (c.rank() == 0)
      c.send({got.data(), count, int32}, 1);
    if (c.rank() == 1)
      c.receive({got.data(), count, int32}, 0);
    if (c.rank() == 1) {
      EXPECT_TRUE(to_host(got.data(), got.size()) == of(n - 1));
    }
    current_stream().synchronize();
  });
}

TEST_F(nccl_on_gpus, a_split_reverses_two_ranks_and_both_groups_work) {
  auto ranks = communicator::create_all(first_devices(2));
  on_each(runtime::current(), ranks, [](communicator& c) {
    auto part = c.split(3, -c.rank());
    EXPECT_EQ(part->rank(), 1 - c.rank());
    buffer const b = to_device(encode(int32, {1.0 + c.rank()}));
    part->broadcast({b.data(), 1, int32}, 0);  // rank 1 of the parent
    EXPECT_EQ(to_host(b.data(), 4), encode(int32, {2}));
    c.all_reduce({b.data(), 1, int32});
    EXPECT_EQ(to_host(b.data(), 4), encode(int32, {4}));
    EXPECT_FALSE(c.split(communicator::no_color).has_value());
  });
}

// Broadcast, scatter and gather of opened memory: every byte arrives.
TEST_F(nccl_on_gpus, large_collectives_with_a_root_are_right) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  std::int64_t const bytes = (std::int64_t{48} << 20) + 5, part = bytes / n;
  std::vector<buffer> whole, out;
  for (int k = 0; k < n; ++k) {
    whole.emplace_back(static_cast<std::size_t>(bytes), buffer_options{.on = device(k)});
    out.emplace_back(static_cast<std::size_t>(bytes), buffer_options{.on = device(k)});
  }
  for (auto const* all : {&whole, &out}) {
    for (buffer const& b : *all) {
      for (int reader = 0; reader < n; ++reader)
        enable_peer_access(b.data(), device(reader));
    }
  }
  elements first(static_cast<std::size_t>(bytes));
  std::mt19937 random(7);
  for (auto& b : first)
    b = static_cast<std::byte>(random());
  for (int root = 0; root < n; ++root) {
    on_each(runtime::current(), ranks, [&](communicator& c) {
      auto const k = static_cast<std::size_t>(c.rank());
      if (c.rank() == root)
        copy(whole[k].data(), first.data(), first.size());
      c.broadcast({whole[k].data(), bytes, uint8}, root);
      EXPECT_EQ(to_host(whole[k].data(), first.size()) == first, true) << "broadcast from " << root;
      c.scatter({out[k].data(), part, uint8}, {whole[k].data(), part * n, uint8}, root);
      EXPECT_EQ(to_host(out[k].data(), static_cast<std::size_t>(part)) ==
                    elements(first.begin() + c.rank() * part, first.begin() + (c.rank() + 1) * part),
                true)
          << "from " << root;
      fill(whole[k].data(), std::byte{0}, whole[k].size());
      c.gather({whole[k].data(), part * n, uint8}, {out[k].data(), part, uint8}, root);
      if (c.rank() == root) {
        EXPECT_EQ(to_host(whole[k].data(), static_cast<std::size_t>(part * n)) ==
                      elements(first.begin(), first.begin() + part * n),
                  true)
            << "to " << root;
      }
      current_stream().synchronize();
    });
  }
}

TEST_F(nccl_on_gpus, two_communicators_live_side_by_side) {
  if (device_count() < 4)
    GTEST_SKIP() << "fewer than four GPUs";
  std::vector<device> const left{device(0), device(1)}, right{device(3), device(2)};
  auto a = communicator::create_all(left), b = communicator::create_all(right);
  for (auto* ranks : {&a, &b}) {
    on_each(runtime::current(), *ranks, [](communicator& c) {
      buffer const mine = to_device(encode(int32, {1.0 + c.rank()}));
      c.broadcast({mine.data(), 1, int32}, 1);
      EXPECT_EQ(to_host(mine.data(), mine.size()), encode(int32, {2}));
    });
  }
}

// Sums go by NCCL's symmetric kernels, if it has windows; the others by its usual ones.
TEST_F(nccl_on_gpus, registered_pools_serve_every_collective) {
  int const n = std::min(4, device_count());
  auto ranks = communicator::create_all(first_devices(n));
  on_each(runtime::current(), ranks, [&](communicator& c) {
    pool const mine("registered", {.limit = 64_MiB, .registered = true});
    c.register_pool(mine);
    for (std::int64_t const count : {std::int64_t{1}, std::int64_t{1027}, std::int64_t{1} << 20}) {
      for (dtype const type : {float32, float16, bfloat16, int32}) {
        std::size_t const bytes = static_cast<std::size_t>(count) * size_of(type);
        auto const brought_by = [&](int rank) {
          return encode(type, values_of(count, [&](std::int64_t i) { return brought(type, rank, i); }));
        };
        void* const one = mine.allocate(bytes);
        void* const all = mine.allocate(bytes * static_cast<std::size_t>(n));
        void* const sent = mine.allocate(bytes * static_cast<std::size_t>(n));
        elements const own = brought_by(c.rank());
        for (reduce_op const how : {reduce_op::sum, reduce_op::max}) {
          copy(one, own.data(), bytes);
          c.all_reduce({one, count, type}, how);
          EXPECT_EQ(to_host(one, bytes),
                    encode(type, values_of(count, [&](std::int64_t i) { return reduced(type, how, n, i); })));
        }
        copy(one, own.data(), bytes);
        c.all_gather({all, count * n, type}, {one, count, type});
        for (int r = 0; r < n; ++r)
          EXPECT_EQ(to_host(static_cast<std::byte*>(all) + bytes * static_cast<std::size_t>(r), bytes), brought_by(r));
        c.reduce_scatter({one, count, type}, {all, count * n, type});
        c.broadcast({one, count, type}, 1);
        c.all_to_all({all, count * n, type}, {sent, count * n, type});
        synchronize();
        for (void* const p : {one, all, sent})
          deallocate(p);
        c.barrier();
      }
    }
  });
}

// NCCL keeps the memory mapped until the communicator ends; then all of it goes back.
TEST_F(nccl_on_gpus, registered_memory_goes_back_at_the_end) {
  auto const held = [] { return memory_stats(device(0)).reserved_bytes.all.current; };
  (void)empty_cache(device(0));
  std::int64_t const before = held();
  for (int round = 0; round < 3; ++round) {
    auto ranks = communicator::create_all(first_devices(2));
    on_each(runtime::current(), ranks, [&](communicator& c) {
      pool const mine("registered", {.limit = 64_MiB, .registered = true});
      c.register_pool(mine);
      void* const p = mine.allocate(1_MiB);
      fill(p, std::byte{1}, 1_MiB);
      c.all_reduce({p, 1 << 20, uint8}).synchronize();
      deallocate(p);
    });
    EXPECT_EQ(held(), before + std::int64_t{64_MiB});
    ranks.clear();
    (void)empty_cache(device(0));
    EXPECT_EQ(held(), before);
  }
}

// The rank that registers waits for the others on the host.
TEST_F(nccl_on_gpus, abort_frees_a_rank_that_registers_alone) {
  auto ranks = communicator::create_all(first_devices(2));
  pool const mine("registered", {.on = 0, .limit = 2_MiB, .registered = true});
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ranks[1].abort();
  });
  EXPECT_THROW(ranks[0].register_pool(mine), driver_error);
  other.join();
}

}  // namespace
