// Launches of a program: the pointers in their parameters. Graphs: their nodes, and the order of these.
// Threads: one.
#include "tests/watch/program.h"

namespace weir::watch_tests {
namespace {

CUfunction const f = handle<CUfunction>(0x9000);
CUstream const s = handle<CUstream>(0x50);

struct watched_launches : watched {
  void parameters(std::vector<std::pair<std::size_t, std::size_t>> all, CUfunction of = f, bool of_runtime = false) {
    driver_answers().kernels[of] = {std::move(all), of_runtime};
    cuModuleUnload_params const any{};  // forgets what it knew of the handle from another test
    call(CUPTI_DRIVER_TRACE_CBID_cuModuleUnload, "cuModuleUnload", any);
  }
  std::uint64_t first = 0x100000, second = 0x200000;
};

// scale(float*, float const*, int)
TEST_F(watched_launches, read_where_the_signature_says_const) {
  int n = 5;
  parameters({{0, 8}, {8, 8}, {16, 4}});
  launch(s, f, {&first, &second, &n}, "_Z5scalePfPKfi");
  launch(nullptr, f, {&first, &second, &n}, "scale_of_a_library");
  expect({"cuLaunchKernel _Z5scalePfPKfi on 0:50 w100000 r200000",
          "cuLaunchKernel scale_of_a_library on 0:0 w?100000 w?200000"});
}

TEST_F(watched_launches, find_pointers_inside_structures) {
  struct {
    std::uint64_t count = 7;  // no address
    std::uint64_t at = 0x100000;
  } view;
  parameters({{0, sizeof view}});
  launch(s, f, {&view}, "_Z3sum4view");
  expect({"cuLaunchKernel _Z3sum4view on 0:50 ws100000"});
}

TEST_F(watched_launches, with_a_packed_buffer_have_their_offsets) {
  parameters({{0, 8}, {8, 8}});
  std::uint64_t buffer[] = {first, second};
  std::size_t bytes = sizeof buffer;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  cuLaunchKernel_params given{};
  given.f = f;
  given.hStream = s;
  given.extra = extra;
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", given, CUDA_SUCCESS, "_Z5scalePfPKf");
  expect({"cuLaunchKernel _Z5scalePfPKf on 0:50 w100000 r200000"});
}

TEST_F(watched_launches, of_the_runtime_are_asked_as_its_kernels) {
  parameters({{0, 8}}, f, true);
  launch(s, f, {&first});
  expect({"cuLaunchKernel _Z5scalePf on 0:50 w100000"});
}

TEST_F(watched_launches, without_known_parameters_are_listed) {
  launch(s, handle<CUfunction>(0x9999), {&first});
  expect({"not understood: launches whose parameters the driver does not tell", "cuLaunchKernel _Z5scalePf on 0:50"});
}

// Another kernel gets the handle and the name.
TEST_F(watched_launches, after_an_unload_are_asked_anew) {
  parameters({{0, 8}});
  launch(s, f, {&first});
  driver_answers().kernels[f].parameters = {{0, 8}, {8, 8}};
  launch(s, f, {&first, &second});
  WEIR_CALLS(cuLibraryUnload, nullptr);
  launch(s, f, {&first, &second});
  expect({"cuLaunchKernel _Z5scalePf on 0:50 w100000", "cuLaunchKernel _Z5scalePf on 0:50 w100000",
          "cuLaunchKernel _Z5scalePf on 0:50 w?100000 w?200000"});
}

TEST_F(watched_launches, of_each_kind_are_told) {
  parameters({{0, 8}});
  void* values[] = {&first};
  cuLaunchCooperativeKernel_params together{};
  together.f = f;
  together.hStream = s;
  together.kernelParams = values;
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", together, CUDA_SUCCESS,
       "_Z5scalePf");
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.hStream = nullptr;
  cuLaunchKernelEx_params extended{&config, f, values, nullptr};
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx_ptsz, "cuLaunchKernelEx_ptsz", extended, CUDA_SUCCESS, "_Z5scalePf");
  config.attrs = &early;
  config.numAttrs = 1;
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, "cuLaunchKernelEx", extended, CUDA_SUCCESS, "_Z5scalePf");
  WEIR_CALLS(cuLaunch, f);
  expect({"cuLaunchCooperativeKernel _Z5scalePf on 0:50 w100000", "cuLaunchKernelEx _Z5scalePf on 0:2 w100000",
          "not understood: programmatic dependent launches, which may begin before the work in front of them has ended",
          "cuLaunchKernelEx _Z5scalePf on 0:0 w100000",
          "not understood: launches by interfaces of CUDA 3 or for several devices at once"});
}

// Graphs -----------------------------------------------------------------------------------------------------

struct watched_graphs : watched_launches {
  CUgraph const g = handle<CUgraph>(0x77);
  CUgraphExec const x = handle<CUgraphExec>(0x88);
  void* values[1] = {&first};
  node_of_graph kernel() {
    node_of_graph n;
    n.type = CU_GRAPH_NODE_TYPE_KERNEL;
    n.kernel.func = f;
    n.kernel.kernelParams = values;
    return n;
  }
  static node_of_graph of_type(CUgraphNodeType type, std::vector<std::size_t> after = {}) {
    node_of_graph n;
    n.type = type;
    n.after = std::move(after);
    return n;
  }
  void instantiated() {
    CUgraphExec made = x;
    WEIR_CALLS(cuGraphInstantiateWithFlags, &made, g, 0);
  }
};

TEST_F(watched_graphs, are_read_node_by_node) {
  parameters({{0, 8}});
  auto copy = of_type(CU_GRAPH_NODE_TYPE_MEMCPY, {0});
  copy.copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.copy.srcDevice = 0x100000;
  copy.copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.copy.dstHost = handle<void*>(0x300000);
  copy.copy.WidthInBytes = 64;
  copy.copy.Height = copy.copy.Depth = 1;
  auto rows = copy;
  rows.copy.Height = 4;
  rows.after = {};
  auto fill = of_type(CU_GRAPH_NODE_TYPE_MEMSET, {1});
  fill.fill.dst = 0x200000;
  fill.fill.elementSize = 4;
  fill.fill.width = 16;
  fill.fill.height = 1;
  driver_answers().graphs[g] = {kernel(),
                                copy,
                                fill,
                                of_type(CU_GRAPH_NODE_TYPE_HOST, {0, 1}),
                                rows,
                                of_type(CU_GRAPH_NODE_TYPE_EMPTY),
                                of_type(CU_GRAPH_NODE_TYPE_GRAPH)};
  instantiated();
  WEIR_CALLS(cuGraphLaunch, x, s);
  WEIR_CALLS(cuGraphExecDestroy, x);
  expect({"not understood: nodes of graphs that are no launch, copy or fill",
          "graph 88 [_Z5scalePf w100000] [ r100000+64 w300000+64 after 0] [ w200000+64 after 1] [host after 0 after 1] "
          "[a copy of rows in a graph r100000 w300000] [] []",
          "graph launch 88 on 0:50", "graph gone 88"});
}

TEST_F(watched_graphs, are_read_again_at_an_update) {
  parameters({{0, 8}});
  driver_answers().graphs[g] = {kernel()};
  instantiated();
  first = 0x500000;
  WEIR_CALLS(cuGraphExecUpdate_v2, x, g, nullptr);
  WEIR_CALLS_IN_VAIN(cuGraphExecUpdate_v2, x, g, nullptr);
  expect({"graph 88 [_Z5scalePf w100000]", "graph 88 [_Z5scalePf w500000]"});
}

TEST_F(watched_graphs, whose_nodes_change_are_judged_no_more) {
  parameters({{0, 8}});
  driver_answers().graphs[g] = {kernel()};
  instantiated();
  WEIR_CALLS(cuGraphExecKernelNodeSetParams_v2, x, nullptr, nullptr);
  expect({"graph 88 [_Z5scalePf w100000]", "graph 88",
          "not understood: nodes of graphs whose parameters changed after the graph was instantiated"});
}

// The launch inside a capture is a part of that graph.
TEST_F(watched_graphs, that_are_captured_are_not_told) {
  parameters({{0, 8}});
  WEIR_CALLS(cuStreamBeginCapture_v2, s, CU_STREAM_CAPTURE_MODE_GLOBAL);
  driver_answers().captured[s] = true;
  WEIR_CALLS(cuGraphLaunch, x, s);
  launch(s, f, {&first});
  driver_answers().captured[s] = false;
  WEIR_CALLS(cuStreamEndCapture, s, nullptr);
  WEIR_CALLS(cuGraphLaunch, x, s);
  expect({"graph launch 88 on 0:50"});
}

}  // namespace
}  // namespace weir::watch_tests
