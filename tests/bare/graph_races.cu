// Graphs beside other work, and graphs that lack an order inside.
#include "tests/bare/races.cuh"

namespace bare {
namespace {

// The graph reads what an upload on another stream writes.
void graph_beside_an_upload(bool right) {
  scene s;
  executable const work(s.a, [&] { read<<<grid, threads, 0, s.a>>>(s.x, count, late, s.last); });
  work.launch(s.a);
  if (right)
    order(s.a, s.b);
  to_device(s.x, s.host, s.b);
}

// The graph is launched without a wait for the kernel that writes its input.
void graph_beside_its_writer(bool right) {
  scene s;
  executable const work(s.a, [&] { read<<<grid, threads, 0, s.a>>>(s.x, count, 0, s.last); });
  write<<<grid, threads, 0, s.b>>>(s.x, count, late);
  if (right)
    order(s.b, s.a);
  work.launch(s.a);
}

// A fill inside a graph beside a reader of the same block.
void graph_with_a_fill_beside_a_reader(bool right) {
  scene s;
  executable const work(s.a, [&] { MUST(cudaMemsetAsync(s.x, 0, bytes, s.a)); });
  read<<<grid, threads, 0, s.b>>>(s.x, count, late, s.last);
  if (right)
    order(s.b, s.a);
  work.launch(s.a);
}

// After its update the graph reads the second block, which another stream writes.
void updated_graph_beside_its_writer(bool right) {
  scene s;
  executable work(s.a, [&] { read<<<grid, threads, 0, s.a>>>(s.x, count, 0, s.last); });
  work.launch(s.a);
  write<<<grid, threads, 0, s.b>>>(s.y, count, late);
  work.change(s.a, [&] { read<<<grid, threads, 0, s.a>>>(s.y, count, 0, s.last); });
  if (right)
    order(s.b, s.a);
  work.launch(s.a);
}

// Two graphs were captured with one work space, and run on two streams.
void two_graphs_with_one_workspace(bool right) {
  scene s;
  executable const first(s.a, [&] { update<<<grid, threads, 0, s.a>>>(s.x, count, late); });
  executable const second(s.a, [&] { update<<<grid, threads, 0, s.a>>>(s.x, count, 0); });
  first.launch(s.a);
  if (right)
    order(s.a, s.b);
  second.launch(s.b);
}

cudaGraphNode_t add_node(cudaGraph_t g, void (*kernel)(float*, int, int), float* block, cudaGraphNode_t const* after) {
  int n = count, time = after ? 0 : late;
  void* parameters[] = {&block, &n, &time};
  cudaKernelNodeParams how{};
  how.func = reinterpret_cast<void*>(kernel);
  how.gridDim = dim3(grid);
  how.blockDim = dim3(threads);
  how.kernelParams = parameters;
  cudaGraphNode_t made = nullptr;
  MUST(cudaGraphAddKernelNode(&made, g, after, after ? 1 : 0, &how));
  return made;
}

// Two nodes of a graph write one block, and no edge leads from one to the other.
void nodes_without_an_edge(bool right) {
  scene s;
  cudaGraph_t g = nullptr;
  MUST(cudaGraphCreate(&g, 0));
  cudaGraphNode_t const first = add_node(g, write, s.x, nullptr);
  add_node(g, update, s.x, right ? &first : nullptr);
  executable const work(g);
  work.launch(s.a);
}

// The captured branch begins before the writer, and is joined at the end alone.
void captured_without_a_wait(bool right) {
  scene s;
  executable const work(s.a, [&] {
    order(s.a, s.b);
    write<<<grid, threads, 0, s.a>>>(s.x, count, late);
    if (right)
      order(s.a, s.b);
    read<<<grid, threads, 0, s.b>>>(s.x, count, 0, s.last);
    order(s.b, s.a);
  });
  work.launch(s.a);
}

// The graph was launched on a stream of the program, the results are read through the legacy stream.
void results_of_a_graph_read_early(bool right) {
  scene s;
  std::vector<float> results(count);
  executable const work(s.a, [&] { write<<<grid, threads, 0, s.a>>>(s.x, count, late); });
  work.launch(s.a);
  if (right)
    MUST(cudaStreamSynchronize(s.a));
  MUST(cudaMemcpy(results.data(), s.x, bytes, cudaMemcpyDeviceToHost));
}

constexpr known_case all[] = {
    {"graph_beside_an_upload", "race", graph_beside_an_upload},
    {"graph_beside_its_writer", "possible", graph_beside_its_writer},
    {"graph_with_a_fill_beside_a_reader", "race", graph_with_a_fill_beside_a_reader},
    {"updated_graph_beside_its_writer", "possible", updated_graph_beside_its_writer},
    {"two_graphs_with_one_workspace", "possible", two_graphs_with_one_workspace},
    {"nodes_without_an_edge", "possible", nodes_without_an_edge},
    {"captured_without_a_wait", "possible", captured_without_a_wait},
    {"results_of_a_graph_read_early", "race", results_of_a_graph_read_early},
};

}  // namespace

cases graph_races() {
  return all;
}

}  // namespace bare
