// The threads that copy between places of the host.
#include "streams/staging_crew.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace weir::streams {
namespace {

using task = copy_crew::task;

class staging_crew : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(threads, staging_crew, ::testing::Values(0, 1, 3));

TEST_P(staging_crew, every_finished_task_has_copied_its_bytes) {
  copy_crew crew(GetParam());
  std::vector<int> from(1 << 18), to(from.size());
  std::iota(from.begin(), from.end(), 1);
  std::vector<task> tasks(64);
  std::size_t const part = from.size() / tasks.size();
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[i].dst = to.data() + i * part;
    tasks[i].src = from.data() + i * part;
    tasks[i].bytes = part * sizeof(int);
    if (i % 3) crew.submit(tasks[i]);  // others are done by whoever finishes them
  }
  for (auto& one : tasks) crew.finish(one);
  EXPECT_EQ(to, from);
}

TEST_P(staging_crew, stores_past_the_caches_bring_every_byte_and_no_other_at_any_alignment) {
  copy_crew crew(GetParam());
  std::vector<unsigned char> from(4096);
  std::iota(from.begin(), from.end(), 1);
  for (std::size_t const into : {0u, 1u, 15u, 63u, 64u}) {
    for (std::size_t const bytes : {0u, 1u, 63u, 64u, 65u, 127u, 200u, 3000u}) {
      std::vector<unsigned char> to(4096, 0xee), want = to;
      std::copy_n(from.begin() + 3, bytes, want.begin() + static_cast<std::ptrdiff_t>(into));
      task one{to.data() + into, from.data() + 3, bytes};
      one.past_caches = true;
      crew.submit(one);
      crew.finish(one);
      EXPECT_EQ(to, want) << bytes << " B at " << into;
    }
  }
}

TEST_P(staging_crew, a_cancelled_task_is_never_copied_afterwards) {
  copy_crew crew(GetParam());
  int const from = 7;
  int to = 0;
  task idle{&to, &from, sizeof to};
  crew.cancel(idle);
  crew.submit(idle);
  crew.finish(idle);
  EXPECT_EQ(to, 0);
}

TEST_P(staging_crew, after_stop_tasks_are_done_by_whoever_finishes_them) {
  copy_crew crew(GetParam());
  crew.stop();
  int const from = 7;
  int to = 0;
  task one{&to, &from, sizeof to};
  crew.submit(one);
  crew.finish(one);
  EXPECT_EQ(to, 7);
}

}  // namespace
}  // namespace weir::streams
