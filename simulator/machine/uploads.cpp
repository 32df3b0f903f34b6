// Copies from pageable memory, which is read in the call.
// Threads: as the driver interface.
#include <algorithm>
#include <memory>
#include <vector>

#include "simulator/machine/machine_state.h"

namespace weir::driver::sim {
namespace {

// Bytes on their way from pageable memory, and the room of the device that they take meanwhile.
class uploaded {
 public:
  uploaded(void* to, std::vector<std::byte> bytes) : to_(to), bytes_(std::move(bytes)) {}
  ~uploaded() { leave(); }
  uploaded(uploaded const&) = delete;
  // Returns: whether the room has them
  bool takes(base::atomic<std::size_t>& used, upload_room const& all) noexcept {
    room_ = &used;
    counted_ = all.taken_by(bytes_.size());
    return used.fetch_add(counted_) + counted_ <= all.bytes;
  }
  void arrive() noexcept {
    std::copy(bytes_.begin(), bytes_.end(), static_cast<std::byte*>(to_));  // perhaps none
    leave();
  }

 private:
  void leave() noexcept {
    if (room_)
      room_->fetch_sub(counted_);
    room_ = nullptr;
  }
  void* to_;
  std::vector<std::byte> bytes_;
  base::atomic<std::size_t>* room_ = nullptr;
  std::size_t counted_ = 0;
};

}  // namespace

bool machine::is_idle(int device, stream_handle h) {
  base::lock_guard const lock(all_.mutex);
  status why;
  stream const* const s = find_stream(device, h, why);
  return !s || s->queue.empty();
}

status machine::upload(int device, stream_handle h, void* dst, void const* src, std::size_t bytes) {
  if (status const s = may_call(); !s.ok())
    return s;
  use const target{{reinterpret_cast<address>(dst), bytes, true}, device};
  auto const source = find(src);
  if (bytes > 0 && (!source.ok() || source.value.in != where::pageable || !pages_.judge(target).empty()))
    return invalid;
  auto const* const from = static_cast<std::byte const*>(src);
  auto state = std::make_unique<uploaded>(dst, std::vector<std::byte>(from, from + bytes));
  bool waits = bytes > room_for_uploads().bytes && !is_idle(device, h);
  if (exists(device))
    waits |= !state->takes(all_.uploading[static_cast<std::size_t>(device)], room_for_uploads());
  if (waits)
    all_.note_finding("stray: an upload of " + std::to_string(bytes) + " B to gpu:" + std::to_string(device) +
                      " finds no room, and would wait for the earlier work of its stream");
  work w;
  w.run = [](void* p) { static_cast<uploaded*>(p)->arrive(); };
  w.drop = [](void* p) { delete static_cast<uploaded*>(p); };
  w.state = state.get();
  // A call that throws leaves the work to its caller.
  status const said = enqueue(device, h, {&target.what, 1}, w);
  static_cast<void>(state.release());
  return said;
}

// Small, so that copies of tests go both ways.
upload_room machine::room_for_uploads() noexcept {
  constexpr std::size_t kib = 1024;
  return {.bytes = 16 * kib, .most_of_a_small_one = 4 * kib, .most_of_one = 32 * kib};
}

}  // namespace weir::driver::sim
