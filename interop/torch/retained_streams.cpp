#include "interop/torch/retained_streams.h"

#include <cstdio>
#include <memory>

#include "weir/error.h"
#include "weir/peer.h"

namespace weir::interop {
namespace {
constexpr source_location unknown;  // a line of Python

}  // namespace

void open_memory(int owner, int reader) {
  try {
    if (can_access_peer(reader, owner, unknown))
      enable_peer_access(device(owner), {device(reader)}, unknown);
  } catch (std::exception const& e) {
    std::fprintf(stderr,
                 "weir-118: gpu:%d does not reach the memory of gpu:%d, so that copies between them may fail: %s\n",
                 reader, owner, e.what());
  }
}

// A process that sees eight devices and uses one opens nothing. When a second device is used, weir tests
// the links and opens the memory.
void retained_streams::open_to_others(int device) {
  std::uint64_t const bit = std::uint64_t{1} << (device & 63);
  if (devices_ & bit)
    return;
  devices_ |= bit;
  only_device_.store((devices_ & (devices_ - 1)) ? -1 : device, std::memory_order_relaxed);
  for (int other = 0; other < 64; ++other) {
    if (other == device || !(devices_ >> other & 1))
      continue;
    open_memory(device, other);
    open_memory(other, device);
  }
}

stream_ref retained_streams::enrol(int device, CUstream_st* handle) {
  std::uintptr_t const key = key_of(device, handle);
  std::unique_lock hold(lock_);
  entry const* known = find(key);
  if (auto const found = beyond_.find(key); !known && found != beyond_.end())
    known = &found->second;
  if (known && known->device != device) {
    throw invalid_use(
        "allocate", "a stream of gpu:" + std::to_string(known->device) + " for memory of gpu:" + std::to_string(device),
        "Make the stream's device current first (with torch.cuda.device(...))", unknown, error_id{384});
  }
  if (!known && lent_.contains(key)) {
    open_to_others(device);
    hold.unlock();
    return borrow_stream(weir::device(device), handle, unknown);
  }
  if (!known) {
    CUstream_st* const own = key < 4096 ? nullptr : handle;
    if (used_ < most) {
      std::size_t i = place_of(key);
      while (table_[i].key.load(std::memory_order_relaxed))
        i = (i + 1) % places;
      table_[i].device = device;
      std::construct_at(&table_[i].stream, weir::device(device), own, unknown);
      table_[i].key.store(key, std::memory_order_release);
      ++used_;
      known = &table_[i];
    } else {
      known = &beyond_.try_emplace(key, device, own).first->second;
    }
    open_to_others(device);
  }
  return known->stream;
}

stream_ref retained_streams::borrow(int device, CUstream_st* handle) {
  if (external_stream const* const known = registered(device, handle))
    return *known;
  {
    std::lock_guard const hold(lock_);
    auto const found = beyond_.find(key_of(device, handle));
    if (found != beyond_.end() && found->second.device == device)
      return found->second.stream;
    open_to_others(device);
  }
  return borrow_stream(weir::device(device), handle, unknown);
}

void retained_streams::lend(CUstream_st* handle) {
  if (reinterpret_cast<std::uintptr_t>(handle) < 2)
    return;  // the legacy stream, which never ends
  std::lock_guard const hold(lock_);
  lent_.insert(key_of(0, handle));
}

CUstream_st* retained_streams::handle_of(std::uint64_t stream_id) {
  auto const handle = [](std::uintptr_t key) { return key < 4096 ? nullptr : reinterpret_cast<CUstream_st*>(key); };
  for (entry const& e : table_) {
    std::uintptr_t const key = e.key.load(std::memory_order_acquire);
    if (key && stream_ref(e.stream).id() == stream_id)
      return handle(key);
  }
  std::lock_guard const hold(lock_);
  for (auto const& [key, e] : beyond_) {
    if (stream_ref(e.stream).id() == stream_id)
      return handle(key);
  }
  return nullptr;
}

stream_ref retained_streams::of_any_device(int guess, CUstream_st* handle) {
  if (entry const* const e = find(key_of(guess, handle)))
    return e->stream;
  {
    std::lock_guard const hold(lock_);
    if (auto const found = beyond_.find(key_of(guess, handle)); found != beyond_.end())
      return found->second.stream;
  }
  try {
    return enrol(guess, handle);
  } catch (invalid_use const&) {  // a stream of another device uses the block
    for (int d = 0; d < device_count(unknown); ++d) {
      if (d == guess)
        continue;
      try {
        return enrol(d, handle);
      } catch (invalid_use const&) {}
    }
    throw;
  }
}

}  // namespace weir::interop
