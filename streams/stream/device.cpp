// weir/device.h over the driver and the clocks.
// Threads: any.
#include "weir/device.h"

#include "runtime/base/call_site.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/span_recorder.h"
#include "streams/stream/context.h"

namespace weir {

int device_count(source_location at) {
  return streams::current_runtime(at).device_count();
}

bool is_available() noexcept {
  try {
    return device_count() > 0;
  } catch (...) {
    return false;
  }
}

device current_device(source_location at) {
  return device(streams::current_ordinal(streams::current_runtime(at)));
}

void set_device(device d, source_location at) {
  if (d.is_cpu())
    return;
  auto& r = streams::current_runtime(at);
  streams::choose(r, streams::resolve(d, r, "set_device", at), nullptr, "set_device", at);
}

device_properties get_device_properties(device d, source_location at) {
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, "get_device_properties", at);
  auto const got = r.machine().info(i);
  require(got.is, "get_device_properties", base::gpu_name(i), "", at);
  auto const& v = got.value;
  return {v.name, v.total_memory,         v.major, v.minor, v.multi_processor_count, v.numa_node, v.pci_bus_id,
          v.uuid, r.machine().simulated()};
}

memory_info mem_get_info(device d, source_location at) {
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, "mem_get_info", at);
  r.open(i, "mem_get_info", at);
  auto const got = r.machine().memory(i);
  require(got.is, "mem_get_info", base::gpu_name(i), "", at);
  return {got.value.free, got.value.total};
}

void synchronize(device d, source_location at) {
  auto& r = streams::current_runtime(at);
  int const i = streams::resolve(d, r, "synchronize", at);
  r.open(i, "synchronize", at);
  observe::host_span const waits("synchronize", at);
  base::call_site const in(r.observer(), "synchronize", at);
  auto const is = r.part<clock::clocks>().synchronize_device(i);
  streams::require_not_stuck(r.machine(), is, "synchronize", at);
  require(is, "synchronize", base::gpu_name(i),
          is.what == driver::code::not_permitted
              ? "End the capture on this device first, or synchronize with other streams one by one"
              : "",
          at);
  memory::device_memory::return_idle(r, i);
}

device_guard::device_guard(device d, source_location at) {
  if (d.is_cpu())
    return;
  auto& r = streams::current_runtime(at);
  mark_ = streams::enter(r, streams::resolve(d, r, "device_guard", at), nullptr, "device_guard", at);
}

device_guard::~device_guard() {
  streams::leave(mark_);
}

}  // namespace weir
