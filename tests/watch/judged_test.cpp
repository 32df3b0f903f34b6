// Programs as CUPTI tells them, with the checker behind the watch: the reports of whole stories.
// Threads: several.
#include <thread>

#include "tests/check/bench.h"
#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

using driver::check::kind;

struct judged_program : driver::check::bench {
  judged_program() {
    load_stand_ins();
    driver_answers() = {};
    driver_answers().kernels[f].parameters = {{0, 8}};
    driver_answers().blocks[x] = {bytes, CU_MEMORYTYPE_DEVICE};
    auto begun = driver::watch_calls(*judge);
    EXPECT_TRUE(begun.watch) << begun.why;
    watch = std::move(begun.watch);
    CUdeviceptr made = x;
    WEIR_CALLS(cuMemAlloc_v2, &made, bytes);
    for (CUstream made_stream : {a, b})
      WEIR_CALLS(cuStreamCreate, &made_stream, CU_STREAM_NON_BLOCKING);
  }
  void use(CUstream s, CUdeviceptr p = x) { launch(s, f, {&p}); }
  void expect(std::vector<kind> const& wanted) { EXPECT_EQ(kinds(), wanted) << text(); }

  static constexpr CUdeviceptr x = 0x7000000;
  static constexpr std::size_t bytes = 65536;
  CUfunction const f = handle<CUfunction>(0x9000);
  CUstream const a = handle<CUstream>(0x5000), b = handle<CUstream>(0x6000);
  CUevent const e = handle<CUevent>(0x70);
  std::unique_ptr<driver::call_watch> watch;
};

TEST_F(judged_program, without_a_wait_may_race) {
  use(a);
  WEIR_CALLS(cuEventRecord, e, a);
  WEIR_CALLS(cuStreamWaitEvent, b, e, 0);
  use(b);
  expect({});
  use(a);
  expect({kind::possible_race});
}

// llm.c's port: one launch names no stream.
TEST_F(judged_program, beside_the_legacy_stream_may_race) {
  use(a);
  use(nullptr);
  expect({kind::possible_race});
  synchronize_device();
  use(b);
  WEIR_CALLS(cuMemsetD8_v2, x, 0, bytes);
  expect({kind::possible_race, kind::race});
}

// The copy from pageable memory may still be under way.
TEST_F(judged_program, behind_a_copy_of_pageable_memory_races) {
  static char host[bytes];
  WEIR_CALLS(cuMemcpyHtoD_v2, x, host, bytes);
  use(a);
  expect({kind::race});
}

TEST_F(judged_program, that_frees_in_order_of_another_is_wrong) {
  CUdeviceptr block = 0x8000000;
  WEIR_CALLS(cuMemAllocAsync, &block, bytes, a);
  WEIR_CALLS(cuEventRecord, e, a);
  WEIR_CALLS(cuStreamWaitEvent, b, e, 0);
  use(b, block);
  WEIR_CALLS(cuMemFreeAsync, block, a);
  expect({kind::freed_in_use});
}

TEST_F(judged_program, that_opens_memory_where_a_block_was_is_right) {
  use(a);
  WEIR_CALLS(cuMemFree_v2, x);
  CUdeviceptr opened = x;
  WEIR_CALLS(cuIpcOpenMemHandle_v2, &opened, {}, 0);
  use(a);
  expect({});
  WEIR_CALLS(cuStreamSynchronize, a);
  WEIR_CALLS(cuIpcCloseMemHandle, x);
  use(a);
  expect({kind::use_after_free});
}

TEST_F(judged_program, with_a_graph_beside_its_writer_may_race) {
  void* values[] = {const_cast<CUdeviceptr*>(&x)};
  node_of_graph n;
  n.type = CU_GRAPH_NODE_TYPE_KERNEL;
  n.kernel.func = f;
  n.kernel.kernelParams = values;
  auto const g = handle<CUgraph>(0x77);
  driver_answers().graphs[g] = {n};
  auto made = handle<CUgraphExec>(0x88);
  WEIR_CALLS(cuGraphInstantiateWithFlags, &made, g, 0);
  use(a);
  WEIR_CALLS(cuGraphLaunch, made, b);
  expect({kind::possible_race});
}

// Each thread has its per-thread stream. They run at once, and end.
TEST_F(judged_program, of_threads_with_streams_of_their_own_may_race) {
  auto const together = [&](bool own_blocks) {
    std::vector<std::thread> all;
    for (std::uintptr_t t = 0; t < 4; ++t)
      all.emplace_back([&, t] {
        CUdeviceptr block = own_blocks ? 0x9000000 + t * bytes : x;
        void* values[] = {&block};
        cuLaunchKernel_params given{};
        given.f = f;
        given.kernelParams = values;
        if (own_blocks) {
          CUdeviceptr made = block;
          WEIR_CALLS(cuMemAlloc_v2, &made, bytes);
        }
        for (int i = 0; i < 50; ++i) {
          call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, "cuLaunchKernel_ptsz", given, CUDA_SUCCESS, "_Z5scalePf");
          WEIR_CALLS(cuStreamSynchronize_ptsz, nullptr);
        }
        call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel_ptsz, "cuLaunchKernel_ptsz", given, CUDA_SUCCESS, "_Z5scalePf");
      });
    for (std::thread& t : all)
      t.join();
  };
  together(true);
  expect({});
  together(false);
  EXPECT_FALSE(kinds().empty());
  for (kind const k : kinds())
    EXPECT_EQ(k, kind::possible_race) << text();
}

}  // namespace
}  // namespace weir::watch_tests
