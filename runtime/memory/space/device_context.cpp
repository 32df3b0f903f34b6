// What all objects of one device's memory share: opens it, and checks addresses.
// Threads: as device_context.h.
#include "runtime/memory/space/device_context.h"

#include <algorithm>

#include "runtime/options/options.h"

namespace weir::memory {
namespace {
constexpr std::size_t nearly_full = 16;  // part of a device: with less left, places are chosen with care (growth)
}  // namespace

device_context::device_context(weir::runtime::impl& r, int index, allocator* a, source_location const& at)
    : runtime(r),
      machine(r.machine()),
      clocks(r.part<clock::clocks>()),
      device(index),
      entry(a),
      announced(r.options().nvtx_memory),
      space(machine, device),
      epsilon(r.options().epsilon),
      widest_epsilon(r.options().widest_epsilon),
      polls(r.options().poll_on_miss),
      deterministic(r.options().deterministic),
      waits(r.options().device_waits),
      fence_interval(r.options().fence_interval),
      streams_with_pages(r.options().streams_with_pages) {
  auto info = machine.info(device);
  require(info.is, "allocate", base::gpu_name(device), "", at);
  driver_reserve = driver_reserve_of(r.options(), machine.simulated(), info.value.multi_processor_count);
  // compute-sanitizer accepts segments; mapped pages are untested with a current context
  if (announced)
    info.value.maps = false;
  require(space.open(info.value, r.options().address_space), "allocate",
          "address space of gpu:" + std::to_string(device), "Raise the limit of virtual memory (ulimit -v)", at);
  counts.set_limit(r.options().device_limit);
}

std::size_t device_context::may_take(std::size_t bytes) {
  if (!driver_reserve)
    return bytes;
  auto unasked_left = unasked.lock();
  // The last answer still covers these bytes.
  if (bytes <= *unasked_left) {
    *unasked_left -= bytes;
    return bytes;
  }
  auto const now = machine.memory(device);
  // The call that takes the bytes reports what is wrong with the device.
  if (!now.ok())
    return bytes;
  // Other threads have charged bytes that the driver may not have given yet.
  std::size_t const kept = driver_reserve + counts.under_way();
  std::size_t const spare = now.value.free - std::min(now.value.free, kept);
  bool const is_short = spare < space.info().total_memory / nearly_full;
  found_full_.store(is_short, base::memory_order_relaxed);
  std::size_t const taken = std::min(bytes, round_down(spare, space.page_bytes()));
  // Other programs may take the rest meanwhile: half of it passes without another question.
  *unasked_left = (spare - taken) / 2;
  return taken;
}

bool device_context::is_nearly_full() const {
  std::size_t const all = space.info().total_memory;
  return found_full_.load(base::memory_order_relaxed) || counts.reserved() > all - all / nearly_full;
}

bool device_context::is_complete(clock::stamp s) {
  if (clocks.complete(s))
    return true;
  auto const done = clocks.poll(s);
  return done.ok() && done.value;
}

void device_context::record_pending(observe::action what, address at, std::size_t bytes,
                                    std::uint64_t user) const noexcept {
  observe::note(what, reinterpret_cast<void const*>(at), bytes, user, runtime.id(), device, {nullptr, nullptr, 0});
}

region* device_context::must_find(void const* p, char const* operation, source_location at) const {
  region* const r = space.find(p);
  if (!r) {
    throw invalid_use(operation, base::address_text(p) + " is not memory of " + base::gpu_name(device),
                      "Pass an address that weir::allocate of this runtime returned", at, error_id{165});
  }
  return r;
}

block_ref device_context::must_locate(void const* p, region* r, char const* operation, source_location at) const {
  block_ref const found = block_ref::find(*r, reinterpret_cast<address>(p));
  if (found.live)
    return found;
  throw invalid_use(
      operation,
      base::address_text(p) + " on " + base::gpu_name(device) +
          (found.block ? " was freed already" : " lies in no live block"),
      "It was freed before, or never allocated: free each block once, by the address that allocate returned", at,
      error_id{166});
}

}  // namespace weir::memory
