// Addresses and pages on CUDA: reserve, create, map, grant, pin, find.
// Threads: any. The books are never locked during a driver call.
#include <algorithm>
#include <array>
#include <bit>

#include "runtime/base/byte_range.h"
#include "runtime/driver/cuda/cuda_driver.h"

namespace weir::driver::cuda {
namespace {

constexpr std::size_t host_page = 4096;  // the smallest page of any host with CUDA
constexpr int looked_ahead = 32;         // mappings

using base::holder_of;
using base::overlaps;

bool wraps(address at, std::size_t bytes) {
  return at + bytes < at;
}

// Makes the node before the driver call, so that entering the range afterwards cannot fail.
template <class Ranges, class Range>
auto node_for(Range const& r) {
  Ranges one;
  one.emplace(0, r);
  return one.extract(one.begin());
}

}  // namespace

// A call about a range has ended: it is busy no more, and stays in the books or leaves them.
void cuda_driver::end_busy(ranges books::*which, address at, bool stays) {
  auto b = books_.lock();
  if (stays) {
    ((*b).*which).find(at)->second.busy = false;
    return;
  }
  // Threads cache no reservations.
  if (which != &books::reservations)
    outdate();
  ((*b).*which).erase(at);
}

result<address> cuda_driver::reserve(std::size_t bytes, std::size_t alignment) {
  if (status const may = may_call(); !may.ok())
    return {may};
  bool const is_power_of_two = (alignment & (alignment - 1)) == 0;  // or 0: any alignment
  if (bytes == 0 || bytes % granularity_ != 0 || !is_power_of_two || alignment % granularity_ != 0)
    return {invalid};
  auto node = node_for<ranges>(range{.bytes = bytes});
  CUdeviceptr at = 0;
  auto const aligned_to = std::max(alignment, granularity_);
  if (CUresult const r = in_relaxed([&] { return api_.cuMemAddressReserve(&at, bytes, aligned_to, 0, 0); }))
    return {to_status(r)};
  node.key() = at;
  books_.lock()->reservations.insert(std::move(node));
  return {{}, static_cast<address>(at)};
}

status cuda_driver::unreserve(address at, std::size_t bytes) {
  if (status const may = may_call(); !may.ok())
    return may;
  {
    auto b = books_.lock();
    auto const found = b->reservations.find(at);
    if (found == b->reservations.end() || found->second.bytes != bytes || found->second.busy)
      return invalid;
    if (overlaps(b->mappings, at, bytes))
      return invalid;
    found->second.busy = true;
  }
  CUresult const r = in_relaxed([&] { return api_.cuMemAddressFree(at, bytes); });
  end_busy(&books::reservations, at, r != CUDA_SUCCESS);
  return to_status(r);
}

result<memory_handle> cuda_driver::create(int device, std::size_t bytes) {
  return create(device, bytes, CU_MEM_HANDLE_TYPE_NONE);
}

result<memory_handle> cuda_driver::create(int device, std::size_t bytes, CUmemAllocationHandleType exportable_as) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (bytes == 0 || bytes % granularity_ != 0)
    return {invalid};
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.requestedHandleTypes = exportable_as;
  wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, at(device).id};
  if (exportable_as != CU_MEM_HANDLE_TYPE_NONE)
    wanted.allocFlags.gpuDirectRDMACapable = serves_network_cards(at(device).id);
  // Entered before the call, so that nothing can fail after it.
  std::uint64_t id = 0;
  {
    auto b = books_.lock();
    id = b->next_handle++;
    b->handles.emplace(
        id, physical{
                .handle = 0, .device = device, .bytes = bytes, .exportable = exportable_as != CU_MEM_HANDLE_TYPE_NONE});
  }
  CUmemGenericAllocationHandle handle = 0;
  status const said = in.answer(api_.cuMemCreate(&handle, bytes, &wanted, 0));
  auto b = books_.lock();
  if (!said.ok()) {
    b->handles.erase(id);
    return {said};
  }
  b->handles.find(id)->second.handle = handle;
  return {{}, static_cast<memory_handle>(id)};
}

status cuda_driver::release(memory_handle handle) {
  if (status const may = may_call(); !may.ok())
    return may;
  auto node = books_.lock()->handles.extract(static_cast<std::uint64_t>(handle));
  if (node.empty())
    return invalid;
  CUresult const r = in_relaxed([&] { return api_.cuMemRelease(node.mapped().handle); });
  status const said = to_status(r);
  if (said.what == code::lost)
    found_lost(node.mapped().device, r);
  if (!said.ok())
    books_.lock()->handles.insert(std::move(node));
  return said;
}

status cuda_driver::map(address at, std::size_t bytes, memory_handle handle) try {
  if (status const may = may_call(); !may.ok())
    return may;
  physical page;
  {
    auto b = books_.lock();
    auto const found = b->handles.find(static_cast<std::uint64_t>(handle));
    if (found == b->handles.end() || found->second.handle == 0 || found->second.bytes != bytes)
      return invalid;
    page = found->second;
    auto const home = holder_of(b->reservations, at);
    if (home == b->reservations.end() || home->second.busy || at % granularity_ != 0)
      return invalid;
    if (bytes > home->second.bytes - (at - home->first) || overlaps(b->mappings, at, bytes))
      return invalid;
    b->mappings.emplace(at, range{.bytes = bytes, .device = page.device, .busy = true});
  }
  CUresult const r = in_relaxed([&] { return api_.cuMemMap(at, bytes, 0, page.handle, 0); });
  end_busy(&books::mappings, at, r == CUDA_SUCCESS);
  status const said = to_status(r);
  if (said.what == code::lost)
    found_lost(page.device, r);
  return said;
} catch (std::bad_alloc const&) {
  return {code::out_of_memory};
}

status cuda_driver::unmap(address at, std::size_t bytes) {
  if (status const may = may_call(); !may.ok())
    return may;
  int device = -1;
  {
    auto b = books_.lock();
    auto const found = b->mappings.find(at);
    if (found == b->mappings.end() || found->second.bytes != bytes || found->second.busy)
      return invalid;
    found->second.busy = true;
    device = found->second.device;
  }
  if (announcer_)
    announcer_->unusable(at);
  CUresult const r = in_relaxed([&] { return api_.cuMemUnmap(at, bytes); });
  end_busy(&books::mappings, at, r != CUDA_SUCCESS);
  status const said = to_status(r);
  if (said.what == code::lost)
    found_lost(device, r);
  return said;
}

status cuda_driver::grant(address at, std::size_t bytes, int device) {
  if (device < 0 || device >= most_devices)
    return invalid;
  return grant_all(at, bytes, std::uint64_t{1} << device);
}

status cuda_driver::grant_all(address at, std::size_t bytes, std::uint64_t devices) {
  if (!devices)
    return invalid;
  call in(*this, std::countr_zero(devices), call::mode::survives);
  if (in.refused())
    return in.refusal();
  if (bytes == 0 || wraps(at, bytes) || static_cast<int>(std::bit_width(devices)) > device_count())
    return invalid;
  {
    auto b = books_.lock();
    address next = at;
    for (auto m = b->mappings.find(at); next < at + bytes; ++m) {
      if (m == b->mappings.end() || m->first != next || m->second.busy)
        return invalid;
      next += m->second.bytes;
    }
    if (next != at + bytes)
      return invalid;
  }
  std::array<CUmemAccessDesc, most_devices> access{};
  std::size_t n = 0;
  for (std::uint64_t left = devices; left; left &= left - 1, ++n) {
    access[n].location = {CU_MEM_LOCATION_TYPE_DEVICE, this->at(std::countr_zero(left)).id};
    access[n].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  base::unique_lock alone(granting_);  // CUDA refuses one of two concurrent changes of a range (208)
  status const said = in.answer(api_.cuMemSetAccess(at, bytes, access.data(), n));
  alone.unlock();
  if (said.ok() && announcer_) {
    auto b = books_.lock();
    for (auto m = b->mappings.lower_bound(at); m != b->mappings.end() && m->first < at + bytes; ++m)
      announcer_->usable(m->first, m->second.bytes);
  }
  return said;
}

bool cuda_driver::nvtx_memory() {
  if (!announcer::possible())
    return false;
  if (!announcer_)
    announcer_ = std::make_unique<announcer>();
  return true;
}

result<address> cuda_driver::create_segment(int device, std::size_t bytes) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return {in.refusal()};
  if (bytes == 0)
    return {invalid};
  auto node = node_for<ranges>(range{.bytes = bytes, .device = device});
  CUdeviceptr at = 0;
  if (status const said = in.answer(api_.cuMemAlloc(&at, bytes)); !said.ok())
    return {said};
  node.key() = at;
  books_.lock()->segments.insert(std::move(node));
  if (announcer_)
    announcer_->usable(at, bytes);
  return {{}, static_cast<address>(at)};
}

status cuda_driver::release_segment(int device, address at) {
  call in(*this, device, call::mode::asks);
  if (in.refused())
    return in.refusal();
  ranges::node_type node;
  {
    auto b = books_.lock();
    auto const found = b->segments.find(at);
    if (found == b->segments.end() || found->second.device != device)
      return invalid;
    outdate();
    node = b->segments.extract(found);
  }
  if (announcer_)
    announcer_->unusable(at);
  status const said = in.answer(api_.cuMemFree(at));
  if (!said.ok())
    books_.lock()->segments.insert(std::move(node));
  return said;
}

status cuda_driver::pin(void* host, std::size_t bytes) {
  address const at = reinterpret_cast<address>(host);
  if (status const may = may_call(); !may.ok())
    return may;
  if (!host || bytes == 0 || at % host_page != 0 || bytes % host_page != 0 || wraps(at, bytes))
    return invalid;
  call in(*this, pinning_device(), call::mode::asks);
  if (in.refused())
    return in.refusal();
  {
    auto b = books_.lock();
    if (overlaps(b->pins, at, bytes))
      return invalid;
    b->pins.emplace(at, range{.bytes = bytes, .busy = true});
  }
  CUresult const r = api_.cuMemHostRegister(host, bytes, CU_MEMHOSTREGISTER_PORTABLE);
  end_busy(&books::pins, at, r == CUDA_SUCCESS);
  // The system refuses to lock more memory.
  if (r == CUDA_ERROR_OPERATING_SYSTEM)
    return {code::out_of_memory, r};
  return in.answer(r);
}

status cuda_driver::unpin(void* host) {
  call in(*this, any_device(), call::mode::asks);
  if (in.refused() && in.refusal().what != code::lost)
    return in.refusal();
  // A lost device refuses only after this look: what is not pinned is invalid even then.
  address const at = reinterpret_cast<address>(host);
  {
    auto b = books_.lock();
    auto const found = b->pins.find(at);
    if (found == b->pins.end() || found->second.busy)
      return invalid;
    if (in.refused())
      return in.refusal();
    found->second.busy = true;
  }
  CUresult const r = api_.cuMemHostUnregister(host);
  end_busy(&books::pins, at, r != CUDA_SUCCESS);
  return in.answer(r);
}

result<place> cuda_driver::find(void const* p) {
  if (status const may = may_call(); !may.ok())
    return {may};
  address const at = reinterpret_cast<address>(p);
  if (auto const ours = place_in_books(at))
    return {{}, *ours};
  return place_by_cuda(at);
}

std::optional<place> cuda_driver::place_in_books(address at) {
  auto b = books_.lock();
  if (holder_of(b->pins, at) != b->pins.end())
    return place{.in = where::pinned};
  for (ranges const* in : {&b->mappings, &b->segments})
    if (auto const found = holder_of(*in, at); found != in->end())
      return place{.in = where::device, .device = found->second.device};
  // A reservation without a mapping there.
  if (holder_of(b->reservations, at) != b->reservations.end())
    return place{.in = where::unknown_device};
  return std::nullopt;
}

result<place> cuda_driver::place_by_cuda(address at) {
  int const device = any_device();
  if (device < 0)
    return {{}, {.in = where::pageable}};  // no context: memory of others cannot be looked up
  call in(*this, device, call::mode::survives);
  if (in.refused())
    return {in.refusal()};
  unsigned type = 0;
  int ordinal = -1;
  std::array<CUpointer_attribute, 2> which{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 2> into{&type, &ordinal};
  CUresult const r = api_.cuPointerGetAttributes(which.size(), which.data(), into.data(), at);
  if (r == CUDA_ERROR_INVALID_VALUE)
    return {{}, {.in = where::pageable}};  // not known to the driver
  if (status const said = in.answer(r); !said.ok())
    return {said};
  if (type == CU_MEMORYTYPE_HOST)
    return {{}, {.in = where::pinned}};
  if (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
    return {{}, {.in = where::pageable}};
  if (!exists(ordinal))
    return {{}, {.in = where::unknown_device}};
  return {{}, {.in = where::device, .device = ordinal}};
}

// none: `at` is in no range of weir. Else whether a copy may touch all bytes. CUDA copies across adjacent
// mappings, but not across adjacent pins, and crashes on reserved addresses without a mapping.
std::optional<bool> cuda_driver::in_books(books const& b, address at, std::size_t bytes, extent& where) noexcept {
  for (ranges const* in : {&b.pins, &b.mappings, &b.segments}) {
    auto found = holder_of(*in, at);
    if (found == in->end())
      continue;
    address const begin = found->first;
    address end = begin + found->second.bytes;
    if (in == &b.mappings) {
      auto const follows = [&] { return found != in->end() && found->first == end; };
      for (++found; end - at < bytes && follows(); ++found)
        end += found->second.bytes;
      // What is remembered serves later copies beside this one, too.
      for (int more = 0; more < looked_ahead && follows(); ++more, ++found)
        end += found->second.bytes;
    }
    where = {begin, end, in == &b.pins};
    return end - at >= bytes;
  }
  if (overlaps(b.reservations, at, bytes))
    return false;
  return std::nullopt;
}

// Invalidates what threads cached about the ranges. Requires: the books' lock, before the ranges are removed.
void cuda_driver::outdate() noexcept {
  static base::atomic<std::uint64_t> editions{1};  // unique among all drivers
  edition_.store(editions.fetch_add(1, base::memory_order_relaxed), base::memory_order_release);
}

// Ranges that this thread's copies were allowed to touch, for one edition of the books.
struct cuda_driver::remembered {
  std::uint64_t edition = 0;
  std::array<extent, 4> known{};
  std::size_t next = 0;

  extent const* find(address at, std::size_t bytes) const noexcept {
    for (extent const& e : known)
      if (at - e.begin < e.end - e.begin && bytes <= e.end - at)
        return &e;
    return nullptr;
  }
  // Forgets what is of another edition.
  void follow(std::uint64_t now) noexcept {
    if (edition == now)
      return;
    edition = now;
    known = {};
  }
  void note(extent const& e) noexcept {
    if (!find(e.begin, e.end - e.begin))
      known[next++ % known.size()] = e;
  }
  // null: none yet, or the thread is ending
  using own = base::thread_pointer<remembered, static_cast<remembered*>(nullptr)>;
  ~remembered() { own::value = nullptr; }
};

cuda_driver::seen cuda_driver::look_at(void const* dst, void const* src, std::size_t bytes) noexcept {
  address const to = reinterpret_cast<address>(dst), from = reinterpret_cast<address>(src);
  if (wraps(to, bytes) || wraps(from, bytes))
    return {.dst = false, .src = false};
  if (auto const* const mine = remembered::own::value;
      mine && mine->edition == edition_.load(base::memory_order_acquire)) [[likely]] {
    auto const *const of_dst = mine->find(to, bytes), *const of_src = mine->find(from, bytes);
    if (of_dst && of_src) [[likely]]
      return {.dst = true, .src = true, .both_pinned = of_dst->pinned && of_src->pinned};
  }
  return look_in_books(to, from, bytes);
}

cuda_driver::seen cuda_driver::look_in_books(address to, address from, std::size_t bytes) noexcept {
  extent dst_extent, src_extent;
  auto const b = books_.lock();
  auto const of_dst = in_books(*b, to, bytes, dst_extent), of_src = in_books(*b, from, bytes, src_extent);
  try {
    static base::per_thread<remembered> of_thread;
    remembered& mine = of_thread.get();
    remembered::own::value = &mine;
    mine.follow(edition_.load(base::memory_order_relaxed));
    if (of_dst.value_or(false))
      mine.note(dst_extent);
    if (of_src.value_or(false))
      mine.note(src_extent);
  } catch (...) {}  // no memory: not cached
  return {.dst = of_dst, .src = of_src, .both_pinned = dst_extent.pinned && src_extent.pinned};
}

// NVTX's listener looks up memory in the current context.
void cuda_driver::block_taken(address at, std::size_t bytes) {
  if (!announcer_)
    return;
  call in(*this, device_of_segment(at), call::mode::asks);
  if (!in.refused())
    announcer_->taken(at, bytes);
}

void cuda_driver::block_given_back(address at) {
  if (!announcer_)
    return;
  call in(*this, device_of_segment(at), call::mode::asks);
  if (!in.refused())
    announcer_->given_back(at);
}

int cuda_driver::device_of_segment(address at) noexcept {
  auto const b = books_.lock();
  auto const in = base::at_or_before(b->segments, at);
  return in == b->segments.end() ? 0 : in->second.device;
}

// As a copy onto itself, so that what the thread remembers of its copies serves.
bool cuda_driver::copyable(void const* p, std::size_t bytes) noexcept {
  return copyable(p, bytes, look_at(p, p, bytes).dst);
}

bool cuda_driver::copyable(void const* p, std::size_t bytes, std::optional<bool> const& ours) noexcept {
  if (ours)
    return *ours;
  address next = reinterpret_cast<address>(p);
  relaxed const mode(api_);
  for (address const end = next + bytes; next < end;) {  // memory of others: one allocation after another
    unsigned type = 0;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    std::array<CUpointer_attribute, 3> which{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                             CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    std::array<void*, 3> into{&type, &start, &size};
    if (api_.cuPointerGetAttributes(which.size(), which.data(), into.data(), next) != CUDA_SUCCESS || type == 0)
      return false;
    if (start + size <= next)
      return true;  // known to the driver, but not its extent
    next = start + size;
  }
  return true;
}

}  // namespace weir::driver::cuda
