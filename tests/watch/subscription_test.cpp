// Which callbacks are told at all, to whom, and on which threads.
// Threads: several.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "runtime/base/call_site.h"
#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

CUstream const s = handle<CUstream>(0x50);
CUevent const e = handle<CUevent>(0x70);

using watched_calls = watched;

// What its parameters point to was not written.
TEST_F(watched_calls, that_failed_are_not_told) {
  CUdeviceptr stale = 0x100000;
  WEIR_CALLS_IN_VAIN(cuMemAlloc_v2, &stale, 4096);
  WEIR_CALLS_IN_VAIN(cuEventRecord, e, s);
  WEIR_CALLS_IN_VAIN(cuStreamSynchronize, s);
  expect({});
}

TEST_F(watched_calls, of_other_domains_or_numbers_are_not_told) {
  cuEventRecord_params const given{e, s};
  call(CUPTI_DRIVER_TRACE_CBID_cuEventRecord, "cudaEventRecord", given, CUDA_SUCCESS, nullptr,
       CUPTI_CB_DOMAIN_RUNTIME_API);
  for (CUpti_CallbackId const id : {CUpti_CallbackId{0}, CUpti_CallbackId{1000}, CUpti_CallbackId{1023},
                                    CUpti_CallbackId{1024}, ~CUpti_CallbackId{0}})
    call(id, "cuOfTheFuture", given);
  expect({});
}

TEST_F(watched_calls, of_weir_are_not_told) {
  {
    base::unwatched const own;
    WEIR_CALLS(cuEventRecord, e, s);
  }
  WEIR_CALLS(cuEventRecord, e, s);
  expect({"record 70 on 0:50"});
}

TEST_F(watched_calls, are_told_to_each_watch_until_it_ends) {
  recorder second;
  auto begun = driver::watch_calls(second);
  WEIR_CALLS(cuEventRecord, e, s);
  begun.watch.reset();
  WEIR_CALLS(cuStreamSynchronize, s);
  expect({"record 70 on 0:50", "done on 0:50"});
  EXPECT_EQ(second.take(), std::vector<std::string>{"record 70 on 0:50"});
}

// What a checker asks of CUDA during a call is no call of the program.
TEST_F(watched_calls, inside_a_callback_are_not_told) {
  static int awaited = 0;
  EXPECT_EQ(driver::call_when_told([] {
              ++awaited;
              synchronize_device();
            }),
            "");
  WEIR_CALLS(cuEventRecord, e, s);
  WEIR_CALLS(cuEventRecord, e, s);
  EXPECT_EQ(awaited, 1);
  expect({"record 70 on 0:50", "record 70 on 0:50"});
}

TEST_F(watched_calls, of_threads_that_begin_and_end_are_all_told) {
  constexpr int threads = 8, rounds = 10, calls = 20;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::thread> all;
    for (int t = 0; t < threads; ++t)
      all.emplace_back([t] {
        auto const own = handle<CUstream>(0x1000 + static_cast<std::uintptr_t>(t));
        for (int i = 0; i < calls; ++i)
          WEIR_CALLS(cuEventRecord, e, own);
      });
    for (std::thread& t : all)
      t.join();
  }
  EXPECT_EQ(notes.take().size(), static_cast<std::size_t>(threads * rounds * calls));
}

// The end of a watch waits for the calls that are being told to it.
TEST_F(watched_calls, are_told_to_no_watch_that_has_ended) {
  std::atomic<bool> stop{false};
  std::atomic<int> running{0};
  std::vector<std::thread> all;
  for (int t = 0; t < 4; ++t)
    all.emplace_back([&] {
      WEIR_CALLS(cuEventRecord, e, s);
      ++running;
      while (!stop.load())
        WEIR_CALLS(cuEventRecord, e, s);
    });
  while (running.load() < 4)
    std::this_thread::yield();
  for (int i = 0; i < 200; ++i) {
    auto const shortly = std::make_unique<recorder>();
    auto begun = driver::watch_calls(*shortly);
    EXPECT_TRUE(begun.watch);
    begun.watch.reset();
  }
  stop = true;
  for (std::thread& t : all)
    t.join();
  EXPECT_FALSE(notes.take().empty());
}

// A thread of the parent may have held the checker's lock.
TEST_F(watched_calls, of_a_forked_child_are_not_told) {
  WEIR_CALLS(cuEventRecord, e, s);
  pid_t const child = ::fork();
  if (child == 0) {
    WEIR_CALLS(cuEventRecord, e, s);
    ::_exit(notes.take().size() == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect({"record 70 on 0:50"});
}

// In a process of its own: the subscription is made once.
int words_of_refusal(CUptiResult with, char const* words) {
  load_stand_ins();
  cupti_refuses(with);
  recorder notes;
  auto const begun = driver::watch_calls(notes);
  return !begun.watch && begun.why.find(words) != std::string::npos ? 0 : 1;
}

TEST(watch, that_cupti_refuses_says_why) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(words_of_refusal(CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED,
                                          "another tool has CUPTI's callbacks in this process")),
              ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(
      std::_Exit(words_of_refusal(CUPTI_ERROR_NOT_INITIALIZED, "CUPTI refused its callbacks: a stand-in's reason")),
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace weir::watch_tests
