// Counts what the driver stages, so that no upload waits for its stream.
// Threads: any.
#include "streams/copy/driver_uploads.h"

#include <algorithm>

#include "runtime/base/call_site.h"
#include "streams/copy/copy_engine.h"

namespace weir::streams {
namespace {
constexpr std::size_t most_uploads = 512;  // of a room: the smallest ones count for more than their bytes
}  // namespace

bool is_idle(clock::stream_clock& stream) {
  auto const idle = stream.query();
  return idle.ok() && idle.value;
}

driver_uploads::driver_uploads(runtime::impl& r) : owner_(r), room_(r.machine().room_for_uploads()) {
  for (int d = 0; d < r.device_count(); ++d)
    in_use_.emplace_back(r.part<clock::clocks>(), room_.bytes);
}

// Work of a blocking stream may come behind that of the legacy stream, too, of which weir does not know all.
bool driver_uploads::has_nothing_before(clock::stream_clock& stream) {
  auto const kind = owner_.machine().kind_of(stream.device(), stream.handle());
  return kind.ok() && kind.value == driver::stream_kind::independent && is_idle(stream);
}

bool driver_uploads::begin(clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                           source_location where) {
  if (bytes > room_.most_of_one)
    return false;
  base::internal_ordering const own_affair(owner_.observer());
  if (bytes > room_.bytes && !has_nothing_before(stream))
    return false;
  std::size_t const counted = std::max(room_.taken_by(bytes), room_.bytes / most_uploads);
  room_in_use& of_device = in_use_[static_cast<std::size_t>(stream.device())];
  if (!of_device.take(counted))
    return false;
  try {
    enqueue_upload(stream, dst, src, bytes, where);
  } catch (...) {
    of_device.give_back(counted);
    throw;
  }
  // The fence lets a later copy see the end of this one.
  if (of_device.until(stream.now(), counted))
    static_cast<void>(stream.fence());
  return true;
}

}  // namespace weir::streams
