// Tensors over memory that another library owns, and its return to it.
// Threads: any.
#include <algorithm>
#include <limits>

#include "runtime/base/process.h"
#include "streams/stream/context.h"
#include "tensor/state.h"

namespace weir {
namespace {

constexpr char const* this_call = "tensor::from_blob";

// Bytes from the first to the last element.
size_t extent_in_bytes(shape const& s, strides const& by, dtype type, source_location at) {
  bool const negative = std::any_of(by.begin(), by.end(), [](std::int64_t step) { return step < 0; });
  if (by.rank() != s.rank() || negative)
    throw invalid_use(this_call, s.str() + " with strides " + by.str(),
                      "Give one stride for each extent, none negative; copy what runs backwards first", at,
                      error_id{341});
  if (s.numel(at) == 0)
    return 0;
  std::int64_t last = 0;
  bool overflows = false;
  for (int i = 0; i < s.rank(); ++i) {
    std::int64_t step = 0;
    overflows |= __builtin_mul_overflow(s[i] - 1, by[i], &step) || __builtin_add_overflow(last, step, &last);
  }
  size_t bytes = 0;
  if (overflows || __builtin_mul_overflow(static_cast<size_t>(last) + 1, size_of(type), &bytes) ||
      bytes > static_cast<size_t>(std::numeric_limits<std::int64_t>::max()))
    throw invalid_use(this_call, s.str() + " with strides " + by.str() + " has more than 2^63 bytes",
                      "The strides have overflowed: check what they were made from", at, error_id{342});
  return bytes;
}

void require_memory_of(runtime::impl& owner, void const* p, int device, source_location at) {
  std::string where;
  if (std::optional<block_info> const known = find_block(p)) {
    if (known->kind == memory_kind::device && known->on == weir::device(device))
      return;
    where = known->on.str();
  } else {
    auto const found = owner.machine().find(p);
    require(found.is, this_call, base::address_text(p), "", at);
    if (found.value.in == driver::where::device && found.value.device == device)
      return;
    where = found.value.in == driver::where::device           ? base::gpu_name(found.value.device)
            : found.value.in == driver::where::unknown_device ? "a device that this runtime does not have"
                                                              : "the cpu";
  }
  throw invalid_use(this_call, base::address_text(p) + " as memory of " + base::gpu_name(device) + " is on " + where,
                    "Name the device it is on", at, error_id{343});
}

}  // namespace

void foreign_memory::add_user(stream_ref user) {
  auto const its = owner_.lock();
  if (auto& all = its->users; std::find(all.begin(), all.end(), user) == all.end())
    all.push_back(user);
}

void foreign_memory::give_back() noexcept {
  if (process_is_ending() || process_was_forked())
    return;
  auto const its = owner_.lock();
  for (stream_ref const user : its->users) {
    if (!its->home || user == *its->home)
      continue;
    stamp const used = user.stamp();  // also of a stream whose lease has ended
    try {
      its->home->wait(used);
    } catch (...) {
      try {
        used.synchronize();
      } catch (...) {}  // the device is lost: nothing runs on it
    }
  }
  try {
    if (its->release)
      its->release();
  } catch (...) {}
}

tensor tensor::from_blob(void* p, weir::shape s, weir::strides by, weir::dtype type, weir::device on, blob_owner owner,
                         source_location at) {
  auto block = std::make_shared<storage::state>();
  block->nbytes = extent_in_bytes(s, by, type, at);
  if (block->nbytes == 0) {
    static char none;  // no element is read
    p = &none;
  }
  tensor const checked = from_blob(p, {static_cast<std::int64_t>(block->nbytes)}, uint8, on, at);
  storage::state const& its = tensor_access::block_of(checked);
  block->data = its.data, block->device = its.device, block->kind = its.kind, block->owner = its.owner;
  if (!on.is_cpu()) {
    if (block->nbytes)
      require_memory_of(block->owner.get(this_call, s.str(), at), p, block->device.index(), at);
    if (owner.home && streams::clock_or_throw(*owner.home, this_call, at).device() != block->device.index())
      throw invalid_use(
          this_call,
          "memory of " + block->device.str() + ", and its home is " + streams::describe(streams::clock_of(*owner.home)),
          "Name a stream of the memory's device", at, error_id{344});
  }
  auto foreign = std::make_unique<foreign_memory>(std::move(owner));
  tensor made = tensor_access::make(block, s, by, 0, type);
  block->foreign = std::move(foreign);  // last: what fails before leaves the memory to the caller
  return made;
}

}  // namespace weir
