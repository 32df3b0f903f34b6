// Registered pools between several processes: sums in them, and ranks that differ.
// The processes are played by threads with runtimes of their own.
#include "tests/ranks/rank_threads.h"
#include "weir/pool.h"
#include "weir/sim.h"

namespace {

using namespace weir;
using namespace weir::test;

pool registered(size_t limit = 4_MiB) {
  return pool("mine", {.limit = limit, .registered = true});
}

TEST(process_registered, serves_collectives_and_transfers) {
  as_ranks(3, [](communicator& c) {
    pool const mine = registered();
    c.register_pool(mine);
    constexpr std::int64_t count = 5000;
    auto const values = [&](int rank) {
      return encode(float32, values_of(count, [&](std::int64_t i) { return brought(float32, rank, i); }));
    };
    elements const own = values(c.rank());
    void* const sum = mine.allocate(own.size());
    void* const got = mine.allocate(own.size());
    copy(sum, own.data(), own.size());
    c.all_reduce({sum, count, float32});
    EXPECT_EQ(
        to_host(sum, own.size()),
        encode(float32, values_of(count, [&](std::int64_t i) { return reduced(float32, reduce_op::sum, 3, i); })));
    copy(sum, own.data(), own.size());
    c.send_receive({sum, count, float32}, (c.rank() + 1) % 3, {got, count, float32}, (c.rank() + 2) % 3);
    EXPECT_EQ(to_host(got, own.size()), values((c.rank() + 2) % 3));
    deallocate(sum), deallocate(got);
    c.barrier();
  });
}

// Each rank learns of it, and which ranks differ.
TEST(process_registered, ends_ranks_that_differ) {
  for (bool const by_place : {false, true}) {
    std::vector<std::string> caught;
    as_ranks(
        2,
        [&](communicator& c) {
          pool const mine = registered(by_place || c.rank() == 0 ? 4_MiB : 2_MiB);
          c.register_pool(mine);
          void* const first = mine.allocate(1000);
          void* const second = mine.allocate(64_KiB);
          for (int k = 0; k < 1000; ++k) {
            c.all_reduce({by_place && c.rank() ? second : first, 4, int32}).synchronize();
            c.barrier();
          }
          deallocate(first), deallocate(second);
        },
        {.start = std::chrono::seconds(20)}, &caught);
    for (std::string const& why : caught) {
      EXPECT_NE(why.find(by_place ? " of registered pool 1" : "register_pool of "), std::string::npos)
          << why << by_place;
      EXPECT_NE(why.find("rank 1"), std::string::npos) << why << by_place;
    }
  }
}

}  // namespace
