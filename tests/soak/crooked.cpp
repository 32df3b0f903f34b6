// Counts each stream's work, records weir's queries, and lies.
// Threads: as the seam.
#include "tests/soak/crooked.h"

#include "runtime/options/options.h"
#include "simulator/machine/machine.h"

namespace weir::soak {
namespace {
thread_local noted* notes_of_thread = nullptr;
constexpr std::uint64_t grants_between_lies = 20;
}  // namespace

std::string_view name_of(lie l) noexcept {
  switch (l) {
    case lie::none: return "none";
    case lie::drops_waits: return "drops_waits";
    case lie::answers_early: return "answers_early";
    case lie::records_nothing: return "records_nothing";
    case lie::returns_early: return "returns_early";
    case lie::skips_grants: return "skips_grants";
  }
  return "unknown";
}

opened open_machine() {
  auto const choice = devices_from_environment();
  if (choice.which != machine_choice::kind::simulated) {
    auto found = weir::driver::open_cuda();
    if (found.machine)
      return {std::move(found.machine), std::move(found.why)};
    if (choice.which == machine_choice::kind::cuda)
      throw not_supported("soak", "WEIR_DEVICES=cuda, and " + found.why, "Run it where there is a GPU",
                          source_location::current());
  }
  return {weir::driver::sim::make(choice.sim).machine, std::to_string(choice.sim.devices) + " simulated devices"};
}

crooked::asking::asking(noted& n) noexcept : before_(std::exchange(notes_of_thread, &n)) {}
crooked::asking::~asking() {
  notes_of_thread = before_;
}
bool crooked::deciding() noexcept {
  return notes_of_thread != nullptr;
}

void crooked::count(int device, weir::driver::stream_handle s) {
  std::lock_guard const hold(lock_);
  ++given_[{device, s}];
}

std::uint64_t crooked::given(stream_key s) const {
  std::lock_guard const hold(lock_);
  auto const found = given_.find(s);
  return found == given_.end() ? 0 : found->second;
}

weir::driver::status crooked::record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  if (lies(lie::records_nothing))
    return {};
  {
    std::lock_guard const hold(lock_);
    last_record_[e] = {{device, s}, given_[{device, s}]};
  }
  return fault_injector::record(device, s, e);
}

weir::driver::status crooked::wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  if (deciding()) {
    std::lock_guard const hold(lock_);
    auto const& last = last_record_[e];
    notes_of_thread->waits.push_back({last.on, last.position});
  }
  if (lies(lie::drops_waits))
    return {};
  return fault_injector::wait(device, s, e);
}

weir::driver::status crooked::query_event(weir::driver::event_handle e) {
  weir::driver::status const said = lies(lie::answers_early) ? weir::driver::status{} : fault_injector::query_event(e);
  if (deciding() && said.ok())
    ++notes_of_thread->yes;
  return said;
}

weir::driver::status crooked::synchronize_event(weir::driver::event_handle e) {
  if (lies(lie::returns_early))
    return {};
  return fault_injector::synchronize_event(e);
}

weir::driver::result<weir::driver::memory_handle> crooked::create(int device, std::size_t bytes) {
  auto const made = fault_injector::create(device, bytes);
  if (made.ok() && deciding())
    ++notes_of_thread->created;
  return made;
}

weir::driver::status crooked::map(weir::driver::address at, std::size_t bytes, weir::driver::memory_handle h) {
  auto const said = fault_injector::map(at, bytes, h);
  if (said.ok())
    mapped_.fetch_add(1);
  return said;
}

weir::driver::status crooked::unmap(weir::driver::address at, std::size_t bytes) {
  auto const said = fault_injector::unmap(at, bytes);
  if (said.ok())
    unmapped_.fetch_add(1);
  return said;
}

weir::driver::status crooked::grant(weir::driver::address at, std::size_t bytes, int device) {
  if (lies(lie::skips_grants) && grants_.fetch_add(1) % grants_between_lies == grants_between_lies - 1)
    return {};
  return fault_injector::grant(at, bytes, device);
}

weir::driver::status crooked::copy(int device, weir::driver::stream_handle s, void* dst, void const* src,
                                   std::size_t bytes) {
  count(device, s);
  return fault_injector::copy(device, s, dst, src, bytes);
}
weir::driver::status crooked::copy_peer(int device, weir::driver::stream_handle s, void* dst, int dst_device,
                                        void const* src, int src_device, std::size_t bytes) {
  count(device, s);
  return fault_injector::copy_peer(device, s, dst, dst_device, src, src_device, bytes);
}
weir::driver::status crooked::upload(int device, weir::driver::stream_handle s, void* dst, void const* src,
                                     std::size_t bytes) {
  count(device, s);
  return fault_injector::upload(device, s, dst, src, bytes);
}
weir::driver::status crooked::fill(int device, weir::driver::stream_handle s, void* dst, std::uint32_t pattern,
                                   int pattern_bytes, std::size_t n) {
  count(device, s);
  return fault_injector::fill(device, s, dst, pattern, pattern_bytes, n);
}
weir::driver::status crooked::enqueue(int device, weir::driver::stream_handle s, std::span<weir::driver::touch const> t,
                                      weir::driver::work w) {
  count(device, s);
  return fault_injector::enqueue(device, s, t, w);
}
void crooked::touched(int device, weir::driver::stream_handle s, std::span<weir::driver::touch const> t) {
  count(device, s);
  fault_injector::touched(device, s, t);
}

}  // namespace weir::soak
