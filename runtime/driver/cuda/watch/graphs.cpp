// Graphs of the program: their nodes are read when they become executable.
// Threads: any.
#include "runtime/driver/cuda/watch/seen_call.h"

#if WEIR_HAS_CUPTI
#include <unordered_map>

namespace weir::driver::cuda {
namespace {

using node_list = std::vector<seen_calls::node>;

char const* kernel_of(CUDA_KERNEL_NODE_PARAMS const& p) {
  watch_entries const& api = entries_of_watch();
  char const* name = nullptr;
  if (p.func && api.function_name && api.function_name(&name, p.func) == CUDA_SUCCESS)
    return name;
  if (p.kern && api.kernel_name && api.kernel_name(&name, p.kern) == CUDA_SUCCESS)
    return name;
  return "a kernel without a name";
}

void read_kernel(seen_call const& call, CUgraphNode from, seen_calls::node& to) {
  CUDA_KERNEL_NODE_PARAMS p{};
  if (entries_of_watch().kernel_node(from, &p) != CUDA_SUCCESS) {
    call.not_understood("launches in graphs whose parameters the driver does not tell");
    return;
  }
  to.kernel = lasting_name(kernel_of(p));
  CUfunction const kernel = p.func ? p.func : reinterpret_cast<CUfunction>(p.kern);
  pointer_list found;
  if (!add_pointers(found, kernel, to.kernel, p.kernelParams, p.extra))
    call.not_understood("launches in graphs whose parameters the driver does not tell");
  to.pointers.assign(found.begin(), found.end());
}

// A copy of one row has exact bytes. One of several rows is told by its pointers, as one outside a graph.
void read_copy(seen_call const& call, CUgraphNode from, seen_calls::node& to) {
  CUDA_MEMCPY3D p{};
  if (entries_of_watch().copy_node(from, &p) != CUDA_SUCCESS) {
    call.not_understood("copies in graphs that the driver does not tell");
    return;
  }
  bool const from_host = p.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = p.dstMemoryType == CU_MEMORYTYPE_HOST;
  auto const source = from_host ? number_of(p.srcHost) : number_of(p.srcDevice);
  auto const target = to_host ? number_of(p.dstHost) : number_of(p.dstDevice);
  bool const is_one_row = p.Height <= 1 && p.Depth <= 1 && p.srcY + p.srcZ + p.dstY + p.dstZ == 0;
  if (is_one_row) {
    to.bytes.push_back({.at = source + p.srcXInBytes, .bytes = p.WidthInBytes, .writes = false});
    to.bytes.push_back({.at = target + p.dstXInBytes, .bytes = p.WidthInBytes, .writes = true});
    return;
  }
  to.kernel = "a copy of rows in a graph";
  to.pointers = {{.at = source, .writes = false}, {.at = target, .writes = true}};
}

void read_fill(seen_call const& call, CUgraphNode from, seen_calls::node& to) {
  CUDA_MEMSET_NODE_PARAMS p{};
  if (entries_of_watch().fill_node(from, &p) != CUDA_SUCCESS) {
    call.not_understood("fills in graphs that the driver does not tell");
    return;
  }
  auto const at = static_cast<address>(p.dst);
  if (p.height <= 1) {
    to.bytes.push_back({.at = at, .bytes = p.width * p.elementSize, .writes = true});
    return;
  }
  to.kernel = "a fill of rows in a graph";
  to.pointers = {{.at = at, .writes = true}};
}

void read_node(seen_call const& call, CUgraphNode from, seen_calls::node& to) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (entries_of_watch().node_type(from, &type) != CUDA_SUCCESS)
    return;
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return read_kernel(call, from, to);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return read_copy(call, from, to);
    case CU_GRAPH_NODE_TYPE_MEMSET: return read_fill(call, from, to);
    case CU_GRAPH_NODE_TYPE_EMPTY: return;
    case CU_GRAPH_NODE_TYPE_HOST: to.is_host = true; return;
    default: call.not_understood("nodes of graphs that are no launch, copy or fill");
  }
}

void add_edges(CUgraph g, std::unordered_map<CUgraphNode, std::uint32_t> const& place_of, node_list& all) {
  watch_entries const& api = entries_of_watch();
  std::size_t n = 0;
  if (!api.graph_edges || api.graph_edges(g, nullptr, nullptr, &n) != CUDA_SUCCESS || n == 0)
    return;
  std::vector<CUgraphNode> from(n), to(n);
  if (api.graph_edges(g, from.data(), to.data(), &n) != CUDA_SUCCESS)
    return;
  for (std::size_t i = 0; i < n; ++i) {
    auto const before = place_of.find(from[i]), after = place_of.find(to[i]);
    if (before != place_of.end() && after != place_of.end())
      all[after->second].after.push_back(before->second);
  }
}

node_list nodes_of(seen_call const& call, CUgraph g) {
  watch_entries const& api = entries_of_watch();
  std::size_t n = 0;
  if (!api.graph_nodes || api.graph_nodes(g, nullptr, &n) != CUDA_SUCCESS)
    return {};
  std::vector<CUgraphNode> made(n);
  if (n != 0 && api.graph_nodes(g, made.data(), &n) != CUDA_SUCCESS)
    return {};
  node_list all(n);
  std::unordered_map<CUgraphNode, std::uint32_t> place_of;
  for (std::size_t i = 0; i < n; ++i) {
    place_of[made[i]] = static_cast<std::uint32_t>(i);
    read_node(call, made[i], all[i]);
  }
  add_edges(g, place_of, all);
  return all;
}

void tell_graph(seen_call const& call, CUgraphExec x, CUgraph g) {
  node_list const all = nodes_of(call, g);
  call.each([&](seen_calls& to) { to.graph_made(number_of(x), all, call.site()); });
}
template <class Parameters>
void tell_instantiated(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_graph(call, *p.phGraphExec, p.hGraph);
}
template <class Parameters>
void tell_updated(seen_call const& call) {
  auto const& p = call.given<Parameters>();
  tell_graph(call, p.hGraphExec, p.hGraph);
}
void tell_graph_launched(seen_call const& call) {
  auto const& p = call.given<cuGraphLaunch_params>();
  call.each_on(p.hStream, [&](seen_calls& to, int device, seen_calls::stream on) {
    to.graph_launched(device, on, number_of(p.hGraph), call.site());
  });
}
void tell_gone(seen_call const& call) {
  CUgraphExec const x = call.given<cuGraphExecDestroy_params>().hGraphExec;
  call.each([&](seen_calls& to) { to.graph_gone(number_of(x)); });
}
// What the graph does now is not known: it is judged no more.
template <class Parameters>
void tell_node_changed(seen_call const& call) {
  CUgraphExec const x = call.given<Parameters>().hGraphExec;
  call.each([&](seen_calls& to) { to.graph_made(number_of(x), {}); });
  call.not_understood("nodes of graphs whose parameters changed after the graph was instantiated");
}

constexpr watched_call graph_rows[] = {
    WEIR_CALL(cuGraphInstantiate_v2, EXIT, tell_instantiated<cuGraphInstantiate_v2_params>),
    WEIR_CALL(cuGraphInstantiateWithFlags, EXIT, tell_instantiated<cuGraphInstantiateWithFlags_params>),
    WEIR_CALL_OF_STREAM(cuGraphInstantiateWithParams, _ptsz, EXIT,
                        tell_instantiated<cuGraphInstantiateWithParams_params>),
    WEIR_CALL(cuGraphExecUpdate, EXIT, tell_updated<cuGraphExecUpdate_params>),
    WEIR_CALL(cuGraphExecUpdate_v2, EXIT, tell_updated<cuGraphExecUpdate_v2_params>),
    WEIR_CALL_OF_STREAM(cuGraphLaunch, _ptsz, EXIT, tell_graph_launched),
    WEIR_CALL(cuGraphExecDestroy, ENTER, tell_gone),
    WEIR_CALL(cuGraphExecKernelNodeSetParams, EXIT, tell_node_changed<cuGraphExecKernelNodeSetParams_params>),
    WEIR_CALL(cuGraphExecKernelNodeSetParams_v2, EXIT, tell_node_changed<cuGraphExecKernelNodeSetParams_v2_params>),
    WEIR_CALL(cuGraphExecMemcpyNodeSetParams, EXIT, tell_node_changed<cuGraphExecMemcpyNodeSetParams_params>),
    WEIR_CALL(cuGraphExecMemsetNodeSetParams, EXIT, tell_node_changed<cuGraphExecMemsetNodeSetParams_params>),
    WEIR_CALL(cuGraphNodeSetEnabled, EXIT, tell_node_changed<cuGraphNodeSetEnabled_params>),
#if CUDA_VERSION >= 12020
    WEIR_CALL(cuGraphExecNodeSetParams, EXIT, tell_node_changed<cuGraphExecNodeSetParams_params>),
#endif
    WEIR_CALL(cuGraphExecChildGraphNodeSetParams, EXIT, tell_node_changed<cuGraphExecChildGraphNodeSetParams_params>),
};

}  // namespace

std::span<watched_call const> graph_calls() {
  return graph_rows;
}

}  // namespace weir::driver::cuda
#endif
