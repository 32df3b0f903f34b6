// Ranks that save parts of values, and any other number of ranks that reads them. A failure of the ranks
// leaves the old file.
// Threads: one for each rank.
#include <numeric>
#include <thread>

#include "tests/checkpoint/files.h"
#include "tests/peer/machine_fixture.h"
#include "tests/ranks/rank_threads.h"
#include "tests/support/refused.h"
#include "weir/launch.h"
#include "weir/sim.h"

namespace weir {
namespace {

using namespace weir::test;

struct checkpoints_of_ranks : in_a_folder {
  // Runs body(communicator) as each rank of one process, on a machine with as many devices.
  template <class Body>
  static void as_ranks(int size, Body body) {
    runtime machine(simulated{.devices = size, .memory = 64_MiB});
    runtime_guard const in(machine);
    std::vector<device> devices;
    for (int i = 0; i < size; ++i)
      devices.emplace_back(i);
    std::vector<communicator> ranks = communicator::create_all(devices);
    std::vector<std::thread> threads;
    for (communicator& c : ranks) {
      threads.emplace_back([&] {
        runtime_guard const here(machine);
        device_guard const on(c.device());
        body(c);
      });
    }
    for (std::thread& t : threads)
      t.join();
  }
  static tensor counted(std::int64_t from, std::int64_t n) {
    tensor const t = empty({n}, {.dtype = int32, .on = cpu});
    std::iota(t.host<std::int32_t>().begin(), t.host<std::int32_t>().end(), static_cast<std::int32_t>(from));
    return t.gpu();
  }
};

constexpr std::int64_t elements = 1003;  // no number of ranks divides it

// "all" lies on all ranks, in parts of one size; "one" is equal on each.
TEST_F(checkpoints_of_ranks, is_read_by_any_number_of_ranks) {
  for (int const writers : {1, 2, 4}) {
    as_ranks(writers, [&](communicator& c) {
      std::int64_t const part = (elements + c.size() - 1) / c.size();
      checkpoint_writer w(file(), c);
      for (int step = 0; step < 3; ++step) {
        tensor mine = counted(part * c.rank() + step, part);
        tensor const one = full({17}, step);
        w.save({checkpoint_item::part("all", {mine.data(), part, int32}, {17, 59}), {"one", one}},
               {{"step", std::to_string(step)}});
        mine.zero_();
      }
      w.finish();
    });
    EXPECT_EQ(files(), 1u);
    for (int const readers : {1, 3, 8}) {
      as_ranks(readers, [&](communicator& c) {
        checkpoint_reader const r(file());
        EXPECT_EQ(r.metadata().at("step"), "2");
        EXPECT_EQ(r.find("all")->extents, shape({17, 59}));
        std::int64_t const part = (elements + c.size() - 1) / c.size(), first = part * c.rank(),
                           count = std::min(part, elements - first);
        tensor const mine = empty({count}, {.dtype = int32});
        r.read("all", {mine.data(), count, int32}, first);
        tensor const host = mine.cpu();
        for (std::int64_t i = 0; i < count; ++i)
          ASSERT_EQ(host.host<std::int32_t>()[static_cast<std::size_t>(i)], first + i + 2);
        EXPECT_EQ(r.read("one").cpu().host<float>()[16], 2);
        r.check();
      });
    }
  }
}

// Ranks of several processes, which exchange bytes over sockets.
TEST_F(checkpoints_of_ranks, are_written_across_processes) {
  test::as_ranks(3, [&](communicator& c) {
    checkpoint_writer w(file(), c);
    tensor const mine = counted(10 * c.rank(), 10);
    w.save({checkpoint_item::part("all", {mine.data(), 10, int32}, {29})});
    w.finish();
    c.barrier();
    tensor const all = checkpoint_reader(file()).read("all", cpu);
    for (std::int32_t i = 0; i < 29; ++i)
      EXPECT_EQ(all.host<std::int32_t>()[static_cast<std::size_t>(i)], i);
  });
}

// Reductions of failed ranks end without a result: what follows them is not written.
TEST_F(checkpoints_of_ranks, stay_as_they_are_when_the_ranks_fail) {
  as_ranks(2, [&](communicator& c) {
    checkpoint_writer w(file(), c);
    tensor const x = full({100}, 1);
    w.save({{"x", x}});
    w.finish();
    c.barrier();
    if (c.rank() == 1) {
      c.abort();
      return;
    }
    while (c.failure().empty())
      std::this_thread::yield();
    w.save({{"x", full({100}, 2)}});
    std::string const text = unreadable([&] { w.finish(); });
    EXPECT_NE(text.find("stays as it is: the ranks have failed"), std::string::npos) << text;
  });
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  EXPECT_EQ(checkpoint_reader(file()).read("x", cpu).host<float>()[0], 1);
}

// Rank 0 alone has no memory for the parts of all. The ranks stay together for what they call next.
void save_too_much(communicator& c, std::filesystem::path const& file) {
  checkpoint_writer w(file, c);
  std::int64_t const many = 6'000'000;
  {
    tensor const mine = full({many}, 1);
    auto const save = [&] { w.save({checkpoint_item::part("all", {mine.data(), many, float32}, {many * c.size()})}); };
    if (c.rank() == 0) {
      EXPECT_THROW(save(), out_of_memory);
    } else {
      EXPECT_NE(unreadable(save).find("another rank cannot save its parts"), std::string::npos);
    }
  }
  tensor const few = full({10}, 2);
  w.save({checkpoint_item::part("all", {few.data(), 10, float32}, {10 * c.size()})});
  c.all_reduce({few.data(), 10, float32});
  EXPECT_EQ(few.cpu().host<float>()[9], 2 * c.size());
  w.finish();
  c.barrier();
  EXPECT_EQ(checkpoint_reader(file).read("all", cpu).host<float>()[19], 2);
}
TEST_F(checkpoints_of_ranks, stay_together_when_rank_0_has_no_memory) {
  as_ranks(2, [&](communicator& c) { save_too_much(c, file()); });
}
TEST_F(checkpoints_of_ranks, agree_across_processes_without_memory) {
  test::as_ranks(2, [&](communicator& c) { save_too_much(c, file()); });
}

// Rank 0 copies each item behind its gather. The others call the gathers that follow a refused copy.
TEST_F(checkpoints_of_ranks, stay_together_when_a_copy_is_refused) {
  as_ranks(2, [&](communicator& c) {
    checkpoint_writer w(file(), c);
    tensor const x = full({10}, 1);
    auto const save = [&] {
      w.save({checkpoint_item::part("a", {x.data(), 10, float32}, {20}),
              checkpoint_item::part("b", {x.data(), 5, float32}, {10})});
    };
    c.barrier();
    if (c.rank() == 0) {
      driver::fault_injector_of(runtime::current().get().machine())->refuse({.of = driver::call::copy});
      EXPECT_THROW(save(), driver_error);
    } else {
      save();
    }
    save();
    w.finish();
  });
}

TEST_F(checkpoints_of_ranks, refuses_parts_that_are_too_small) {
  as_ranks(2, [&](communicator& c) {
    checkpoint_writer w(file(), c);
    tensor const x = full({4}, 1);
    std::string const text = refused([&] { w.save({checkpoint_item::part("x", {x.data(), 4, float32}, {9})}); });
    EXPECT_NE(text.find("9 elements, and 4 are given"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace weir
