// Groups of collectives between several processes, which threads with runtimes of their own play.
#include "tests/ranks/rank_threads.h"

namespace weir::process_groups_tests {
namespace {

using namespace test;

device_span all_of(buffer const& b) {
  return {b.data(), static_cast<std::int64_t>(b.size() / 4), int32};
}

// A reduction, a gather and a ring at once, three times.
TEST(process_groups, bring_every_member) {
  for (int const n : {1, 2, 4, 8}) {
    as_ranks(n, [n](communicator& c) {
      int const rank = c.rank(), next = (rank + 1) % n, last = (rank + n - 1) % n;
      buffer const mine = to_device(encode(int32, {1. * rank})), its(4), all(static_cast<size_t>(n) * 4);
      collective_group g(c);
      for (int round = 0; round < 3; ++round) {
        buffer const sum = to_device(encode(int32, {1. + rank}));
        g.all_reduce(all_of(sum));
        if (n > 1)
          g.send(all_of(mine), next);
        g.all_gather(all_of(all), all_of(mine));
        if (n > 1)
          g.receive(all_of(its), last);
        g.end().synchronize();
        EXPECT_EQ(to_host(sum.data(), 4), encode(int32, {n * (n + 1) / 2.}));
        EXPECT_EQ(to_host(all.data(), all.size()), encode(int32, values_of(n, [](std::int64_t i) { return 1. * i; })));
        if (n > 1) {
          EXPECT_EQ(to_host(its.data(), 4), encode(int32, {1. * last}));
        }
      }
      c.barrier();
    });
  }
}

// A rank that calls the first member alone differs, although its request does not.
TEST(process_groups, of_a_rank_that_differs_are_named) {
  std::vector<std::string> caught;
  as_ranks(
      2,
      [](communicator& c) {
        buffer const x = to_device(encode(int32, {1})), y = to_device(encode(int32, {2}));
        if (c.rank() == 1) {
          c.all_reduce(all_of(x)).synchronize();
        } else {
          collective_group g(c);
          g.all_reduce(all_of(x));
          g.all_reduce(all_of(y));
          g.end().synchronize();
        }
        if (std::string const why = c.failure(); !why.empty())
          throw std::runtime_error(why);
      },
      {.start = std::chrono::seconds(20)}, &caught);
  for (std::string const& why : caught)
    EXPECT_NE(why.find("all_reduce of 1 int32 (sum), member 1 of a group of 2"), std::string::npos) << why;
}

}  // namespace
}  // namespace weir::process_groups_tests
