// The stand-ins of the driver and of CUPTI, and the recorder.
// Threads: as program.h says.
#include "tests/watch/program.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "runtime/base/process.h"

namespace weir::watch_tests {
namespace {

answers all;

CUcontext context_of(int device) {
  return handle<CUcontext>(static_cast<std::uintptr_t>(device) + 0x100);
}
int device_of(CUcontext c) {
  return static_cast<int>(reinterpret_cast<std::uintptr_t>(c)) - 0x100;
}
thread_local std::vector<int> pushed;

CUresult get_device(CUdevice* d) {
  *d = pushed.empty() ? current_device : pushed.back();
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext c) {
  pushed.push_back(device_of(c));
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* c) {
  *c = context_of(pushed.back());
  pushed.pop_back();
  return CUDA_SUCCESS;
}
CUresult stream_context(CUstream s, CUcontext* c) {
  auto const found = all.device_of.find(s);
  *c = context_of(found == all.device_of.end() ? current_device : found->second);
  return CUDA_SUCCESS;
}
CUresult is_capturing(CUstream s, CUstreamCaptureStatus* is) {
  auto const found = all.captured.find(s);
  *is = found != all.captured.end() && found->second ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
// Of memory that it does not know the driver says: success, and 0.
CUresult pointer_attributes(unsigned n, CUpointer_attribute* which, void** to, CUdeviceptr p) {
  auto block = all.blocks.upper_bound(p);
  bool const is_known = block != all.blocks.begin() && p - std::prev(block)->first < std::prev(block)->second.bytes;
  answers::memory const of = is_known ? std::prev(block)->second : answers::memory{0, 0};
  for (unsigned i = 0; i < n; ++i) {
    if (which[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
      *static_cast<unsigned*>(to[i]) = of.kind;
    else if (which[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)
      *static_cast<CUdeviceptr*>(to[i]) = is_known ? std::prev(block)->first : 0;
    else if (which[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE)
      *static_cast<std::size_t*>(to[i]) = of.bytes;
  }
  return CUDA_SUCCESS;
}

CUresult parameter_of(CUfunction f, std::size_t i, std::size_t* offset, std::size_t* bytes, bool of_runtime) {
  auto const found = all.kernels.find(f);
  if (found == all.kernels.end() || found->second.of_runtime != of_runtime)
    return CUDA_ERROR_INVALID_HANDLE;
  if (i >= found->second.parameters.size())
    return CUDA_ERROR_INVALID_VALUE;
  std::tie(*offset, *bytes) = found->second.parameters[i];
  return CUDA_SUCCESS;
}
CUresult function_parameter(CUfunction f, std::size_t i, std::size_t* offset, std::size_t* bytes) {
  return parameter_of(f, i, offset, bytes, false);
}
CUresult kernel_parameter(CUkernel k, std::size_t i, std::size_t* offset, std::size_t* bytes) {
  return parameter_of(reinterpret_cast<CUfunction>(k), i, offset, bytes, true);
}
CUresult function_name(char const** name, CUfunction f) {
  auto const found = all.kernels.find(f);
  if (found == all.kernels.end())
    return CUDA_ERROR_INVALID_HANDLE;
  *name = found->second.name;
  return CUDA_SUCCESS;
}

// A node is the graph's number times 256, and its place.
node_of_graph const& node_at(CUgraphNode n) {
  auto const number = reinterpret_cast<std::uintptr_t>(n);
  return all.graphs.at(handle<CUgraph>(number >> 8)).at(number & 255);
}
CUgraphNode node_of(CUgraph g, std::size_t place) {
  return handle<CUgraphNode>(reinterpret_cast<std::uintptr_t>(g) << 8 | place);
}
CUresult graph_nodes(CUgraph g, CUgraphNode* to, std::size_t* n) {
  std::size_t const count = all.graphs.at(g).size();
  for (std::size_t i = 0; to && i < std::min(*n, count); ++i)
    to[i] = node_of(g, i);
  *n = count;
  return CUDA_SUCCESS;
}
CUresult graph_edges(CUgraph g, CUgraphNode* from, CUgraphNode* to, std::size_t* n) {
  std::size_t count = 0;
  auto const& nodes = all.graphs.at(g);
  for (std::size_t i = 0; i < nodes.size(); ++i)
    for (std::size_t const before : nodes[i].after) {
      if (from && count < *n) {
        from[count] = node_of(g, before);
        to[count] = node_of(g, i);
      }
      ++count;
    }
  *n = count;
  return CUDA_SUCCESS;
}
CUresult node_type(CUgraphNode n, CUgraphNodeType* type) {
  *type = node_at(n).type;
  return CUDA_SUCCESS;
}
CUresult kernel_node(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS* p) {
  *p = node_at(n).kernel;
  return CUDA_SUCCESS;
}
CUresult copy_node(CUgraphNode n, CUDA_MEMCPY3D* p) {
  *p = node_at(n).copy;
  return CUDA_SUCCESS;
}
CUresult fill_node(CUgraphNode n, CUDA_MEMSET_NODE_PARAMS* p) {
  *p = node_at(n).fill;
  return CUDA_SUCCESS;
}

void* entry_of(char const* name) {
  static std::map<std::string, void*> const entries{
      {"cuCtxGetDevice", reinterpret_cast<void*>(get_device)},
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push_context)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop_context)},
      {"cuStreamGetCtx", reinterpret_cast<void*>(stream_context)},
      {"cuStreamIsCapturing", reinterpret_cast<void*>(is_capturing)},
      {"cuPointerGetAttributes", reinterpret_cast<void*>(pointer_attributes)},
      {"cuFuncGetParamInfo", reinterpret_cast<void*>(function_parameter)},
      {"cuKernelGetParamInfo", reinterpret_cast<void*>(kernel_parameter)},
      {"cuFuncGetName", reinterpret_cast<void*>(function_name)},
      {"cuGraphGetNodes", reinterpret_cast<void*>(graph_nodes)},
      {"cuGraphGetEdges", reinterpret_cast<void*>(graph_edges)},
      {"cuGraphNodeGetType", reinterpret_cast<void*>(node_type)},
      {"cuGraphKernelNodeGetParams", reinterpret_cast<void*>(kernel_node)},
      {"cuGraphMemcpyNodeGetParams", reinterpret_cast<void*>(copy_node)},
      {"cuGraphMemsetNodeGetParams", reinterpret_cast<void*>(fill_node)},
  };
  auto const found = entries.find(name);
  return found == entries.end() ? nullptr : found->second;
}

using teller = void (*)(CUpti_CallbackDomain, CUpti_CallbackId, CUpti_CallbackData const*);
struct stand_ins {
  teller tells = nullptr;
  void (*refuses)(CUptiResult) = nullptr;
};
template <class Function>
void look_up(void* library, Function& to, char const* name) {
  to = reinterpret_cast<Function>(::dlsym(library, name));
  if (!to)
    ADD_FAILURE() << name << " is not in a stand-in";
}
// The loader finds a library that is loaded by its name.
stand_ins const& loaded() {
  static stand_ins const made = [] {
    stand_ins found;
    void* const driver = ::dlopen(WEIR_STAND_IN_DRIVER, RTLD_NOW | RTLD_LOCAL);
    void* const cupti = ::dlopen(WEIR_STAND_IN_CUPTI, RTLD_NOW | RTLD_LOCAL);
    if (!driver || !cupti) {
      ADD_FAILURE() << ::dlerror();
      return found;
    }
    void (*entries)(void* (*)(char const*)) = nullptr;
    look_up(driver, entries, "weir_stand_in_entries");
    look_up(cupti, found.tells, "weir_stand_in_tells");
    look_up(cupti, found.refuses, "weir_stand_in_refuses");
    entries(entry_of);
    return found;
  }();
  return made;
}

std::string hex(std::uintptr_t number) {
  char text[20];
  std::snprintf(text, sizeof text, "%zx", number);
  return text;
}
std::string on(int device, std::uintptr_t stream) {
  return " on " + std::to_string(device) + ":" +
         (stream == driver::check::seen_calls::no_stream ? std::string("none") : hex(stream));
}
std::string words(std::span<driver::check::seen_pointer const> pointers) {
  std::string text;
  for (auto const& p : pointers)
    text += std::string(p.writes ? " w" : " r") + (p.in_structure ? "s" : "") + (p.is_typed ? "" : "?") + hex(p.at);
  return text;
}

}  // namespace

answers& driver_answers() {
  return all;
}
void load_stand_ins() {
  watch_process();
  (void)loaded();
}
void cupti_refuses(CUptiResult with) {
  loaded().refuses(with);
}
void tell(CUpti_CallbackDomain domain, CUpti_CallbackId id, CUpti_CallbackData const& data) {
  loaded().tells(domain, id, &data);
}

void synchronize_device() {
  call(CUPTI_DRIVER_TRACE_CBID_cuCtxSynchronize, "cuCtxSynchronize", 0);
}
void launch(CUstream s, CUfunction f, std::vector<void*> parameters, char const* name) {
  cuLaunchKernel_params given{};
  given.f = f;
  given.hStream = s;
  given.kernelParams = parameters.data();
  call(CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel, "cuLaunchKernel", given, CUDA_SUCCESS, name);
}

// The recorder -----------------------------------------------------------------------------------------------

std::vector<std::string> recorder::take() {
  std::lock_guard const hold(lock_);
  return std::exchange(lines_, {});
}
void recorder::note(std::string line) {
  std::lock_guard const hold(lock_);
  lines_.push_back(std::move(line));
}
void recorder::stream_made(int device, stream s, bool blocking) noexcept {
  note(std::string("made") + (blocking ? " blocking" : "") + on(device, s));
}
void recorder::stream_gone(int device, stream s) noexcept {
  note("gone" + on(device, s));
}
void recorder::launched(int device, stream s, char const* kernel, std::span<driver::check::seen_pointer const> p,
                        base::site site) noexcept {
  note(std::string(site.operation) + " " + kernel + on(device, s) + words(p));
}
void recorder::copied(int device, stream s, driver::address to, driver::address from, std::size_t bytes, bool waits,
                      base::site site) noexcept {
  note(std::string(site.operation) + on(device, s) + " to " + hex(to) + " from " + hex(from) + " " +
       std::to_string(bytes) + (waits ? " waits" : ""));
}
void recorder::filled(int device, stream s, driver::address to, std::size_t bytes, bool waits,
                      base::site site) noexcept {
  note(std::string(site.operation) + on(device, s) + " to " + hex(to) + " " + std::to_string(bytes) +
       (waits ? " waits" : ""));
}
void recorder::host_function(int device, stream s, base::site site) noexcept {
  note(std::string(site.operation) + on(device, s));
}
void recorder::recorded(int device, stream s, event e) noexcept {
  note("record " + hex(e) + on(device, s));
}
void recorder::waited(int device, stream s, event e) noexcept {
  note("wait " + hex(e) + on(device, s));
}
void recorder::event_gone(event e) noexcept {
  note("event gone " + hex(e));
}
void recorder::stream_done(int device, stream s) noexcept {
  note("done" + on(device, s));
}
void recorder::event_done(event e) noexcept {
  note("event done " + hex(e));
}
void recorder::device_done(int device) noexcept {
  note("device done " + std::to_string(device));
}
void recorder::allocated(int device, stream s, driver::address at, std::size_t bytes, base::site site) noexcept {
  note(std::string(site.operation) + on(device, s) + " at " + hex(at) + " " + std::to_string(bytes));
}
void recorder::freed(int device, stream s, driver::address at, base::site site) noexcept {
  note(std::string(site.operation) + on(device, s) + " at " + hex(at));
}
void recorder::unmapped(driver::address at, std::size_t bytes, base::site) noexcept {
  note("unmap at " + hex(at) + " " + std::to_string(bytes));
}
void recorder::found(int device, driver::address at, std::size_t bytes, base::site) noexcept {
  note("found by " + std::to_string(device) + " at " + hex(at) + " " + std::to_string(bytes));
}
void recorder::closed(driver::address at, base::site) noexcept {
  note("closed at " + hex(at));
}
void recorder::hidden(driver::address at, std::size_t bytes) noexcept {
  note("hidden at " + hex(at) + " " + std::to_string(bytes));
}
void recorder::graph_made(executable x, std::vector<node> nodes, base::site) noexcept {
  std::string text = "graph " + hex(x);
  for (node const& n : nodes) {
    text += " [" + std::string(n.kernel ? n.kernel : n.is_host ? "host" : "") + words(n.pointers);
    for (auto const& t : n.bytes)
      text += std::string(t.writes ? " w" : " r") + hex(t.at) + "+" + std::to_string(t.bytes);
    for (std::uint32_t const before : n.after)
      text += " after " + std::to_string(before);
    text += "]";
  }
  note(text);
}
void recorder::graph_launched(int device, stream s, executable x, base::site) noexcept {
  note("graph launch " + hex(x) + on(device, s));
}
void recorder::graph_gone(executable x) noexcept {
  note("graph gone " + hex(x));
}
void recorder::not_understood(char const* what) noexcept {
  note(std::string("not understood: ") + what);
}

}  // namespace weir::watch_tests
