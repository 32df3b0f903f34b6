// The threads that copy between places of the host.
#include "streams/copy/copy_workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace weir::streams {
namespace {

using task = copy_workers::task;

class staging_workers : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(threads, staging_workers, ::testing::Values(0, 1, 3));

TEST_P(staging_workers, every_finished_task_has_copied_its_bytes) {
  copy_workers workers(GetParam());
  std::vector<int> from(1 << 18), to(from.size());
  std::iota(from.begin(), from.end(), 1);
  std::vector<task> tasks(64);
  std::size_t const part = from.size() / tasks.size();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].dst = to.data() + i * part;
    tasks[i].src = from.data() + i * part;
    tasks[i].bytes = part * sizeof(int);
    if (i % 3)
      workers.submit(tasks[i]);  // others are done by the thread that finishes them
  }
  for (auto& one : tasks)
    workers.finish(one);
  EXPECT_EQ(to, from);
}

TEST_P(staging_workers, a_task_is_shared_by_pieces_and_copied_once) {
  copy_workers workers(GetParam());
  for (bool const helps : {false, true}) {
    workers.work_by({GetParam(), helps, helps ? 50'000 : 0});
    std::vector<int> from(3 << 16), to(from.size());
    std::iota(from.begin(), from.end(), 1);
    std::vector<task> tasks(3);
    std::size_t const part = from.size() / tasks.size();
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      tasks[i] = {to.data() + i * part, from.data() + i * part, part * sizeof(int), stores::plain, 1000};
      workers.submit(tasks[i]);
    }
    workers.finish(tasks[0]);
    EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(part), to.begin()))
        << "all of its pieces, when it is finished";
    workers.finish(tasks[1]);
    workers.cancel(tasks[2]);
    auto const after = to;
    EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<std::ptrdiff_t>(2 * part), to.begin()));
    for (auto& one : tasks) {
      EXPECT_EQ(one.is, task::state::done);
      EXPECT_EQ(one.hands, 0);
    }
    workers.submit(tasks[2]);
    workers.finish(tasks[2]);
    EXPECT_EQ(to, after) << "no piece of a cancelled task begins after the cancellation";
  }
}

// And no other, at any alignment.
TEST_P(staging_workers, nontemporal_stores_bring_every_byte) {
  copy_workers workers(GetParam());
  constexpr std::size_t most = 66'000;
  std::vector<unsigned char> from(most);
  for (std::size_t i = 0; i < most; ++i)
    from[i] = static_cast<unsigned char>(i * 2654435761u >> 13);
  auto const brings = [&](std::size_t into, std::size_t bytes, stores by) {
    std::vector<unsigned char> to(most, 0xee), want = to;
    std::copy_n(from.begin() + 3, bytes, want.begin() + static_cast<std::ptrdiff_t>(into));
    task one{to.data() + into, from.data() + 3, bytes, by};
    workers.submit(one);
    workers.finish(one);
    EXPECT_EQ(to, want) << bytes << " B at " << into;
  };
  for (auto const by : {stores::past_caches, stores::to_shared_cache}) {
    for (std::size_t const into : {0u, 1u, 15u, 63u, 64u}) {
      for (std::size_t const bytes : {0u, 1u, 63u, 64u, 65u, 127u, 200u, 3000u, 16'384u, 16'600u, 65'536u})
        brings(into, bytes, by);
    }
  }
}

TEST_P(staging_workers, a_cancelled_task_is_never_copied_afterwards) {
  copy_workers workers(GetParam());
  int const from = 7;
  int to = 0;
  task idle{&to, &from, sizeof to};
  workers.cancel(idle);
  workers.submit(idle);
  workers.finish(idle);
  EXPECT_EQ(to, 0);
}

TEST_P(staging_workers, after_stop_the_caller_finishes_tasks) {
  copy_workers workers(GetParam());
  workers.stop();
  int const from = 7;
  int to = 0;
  task one{&to, &from, sizeof to};
  workers.submit(one);
  workers.finish(one);
  EXPECT_EQ(to, 7);
}

}  // namespace
}  // namespace weir::streams
