// The links that a thread lends to its copies, and to the pools that it lets sleep or wakes.
// Threads: any; a link_sharing_guard affects its own thread only.
#include <utility>

#include "peer/copy/fast_copy.h"
#include "peer/copy/stripes.h"
#include "streams/copy/copy_engine.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir {
namespace peer {
namespace {
// Both are for pools that sleep and wake.
void prepare_lent_links(runtime::impl& r, int device, source_location const& at) {
  if (auto const& lent = settings().helpers; !lent.empty())
    r.part<stripes>().prepare(device, lent, at);
}
bool carry_over_lent_links(runtime::impl& r, clock::stream_clock& stream, void* dst, void const* src, std::size_t bytes,
                           bool to_device, source_location const& at) {
  auto const& lent = settings().helpers;
  if (lent.empty() || bytes < stripes::worth)
    return false;
  // The ends name no blocks, so that no use is marked: the device's range may span several.
  endpoint to, from;
  to.at = dst, from.at = src;
  endpoint &own = to_device ? to : from, &host = to_device ? from : to;
  own.in = driver::where::device, own.device = stream.device();
  host.in = driver::where::pinned;
  return r.part<stripes>().carry(stream, to, from, bytes, lent, at, stripes::lanes::made);
}
constexpr streams::lent_links for_pools{prepare_lent_links, carry_over_lent_links};
}  // namespace
}  // namespace peer

link_sharing_guard::link_sharing_guard(std::span<device const> lent, source_location at) {
  auto& r = streams::current_runtime(at);
  streams::over_lent_links.store(&peer::for_pools, base::memory_order_release);
  std::vector<int> ordinals;
  for (device const one : lent)
    ordinals.push_back(streams::resolve(one, r, "link_sharing_guard", at));
  found_ = std::exchange(peer::settings().helpers, std::move(ordinals));
}
link_sharing_guard::~link_sharing_guard() {
  peer::settings().helpers = std::move(found_);
}

}  // namespace weir
