// Clipping of gradients by their global norm.
// Threads: as the communicator.
#include <algorithm>
#include <cmath>

#include "peer/collective/bucket_kernels.h"
#include "peer/collective/gradient_buckets.h"
#include "runtime/memory/device/shortage.h"
#include "streams/stream/context.h"
#include "weir/memory.h"

namespace weir {

std::vector<device_span> gradient_buckets::state::ranges_to_clip(source_location at) const {
  if (options.sharded)
    throw not_supported("gradient_buckets::clip", "sharded buckets: a rank has its own part of the sums alone",
                        "Let the optimizer clip (weir/optimizer.h: max_norm)", at, error_id{557});
  std::vector<device_span> all_ranges;
  for (int i = 0; i < static_cast<int>(ones.size()); ++i) {
    one const& o = ones[static_cast<std::size_t>(i)];
    if (o.was_ready)
      throw invalid_use("gradient_buckets::clip", named(i) + " is ready, and its step is not finished",
                        "Call finish() first", at, error_id{493});
    dtype const type = o.reduced.dtype;
    if (type != float32 && type != float64 && type != float16 && type != bfloat16)
      throw not_supported("gradient_buckets::clip", named(i) + " of " + std::string(name_of(type)),
                          "Keep numbers that are no gradients in buckets of their own", at, error_id{494});
  }
  for (bucket const& b : buckets) {
    if (b.sent.data)
      all_ranges.push_back(b.sent);
    else
      all_ranges.insert(all_ranges.end(), b.ranges.begin(), b.ranges.end());
  }
  std::erase_if(all_ranges, [](device_span r) { return r.count == 0; });
  return all_ranges;
}

namespace {

void compute_norm(std::vector<device_span> const& ranges, peer::norm_kernels k, double max_norm, stream_ref on,
                  source_location at) {
  std::int64_t most = 0;
  for (device_span const r : ranges)
    most = std::max(most, r.count);
  k.all = peer::norm_sums(most);
  buffer const workspace = memory::as_called("gradient_buckets::clip", [&] {
    return buffer(on, static_cast<std::size_t>(k.all) * sizeof(double), default_alignment, at);
  });
  k.sums = workspace.data<double>();
  k.add(on, ranges.empty() ? device_span{workspace.data(), 0, float64} : ranges[0], true, at);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    k.add(on, ranges[i], false, at);
  k.finish(on, max_norm, at);
}

}  // namespace

device_span gradient_buckets::clip(double max_norm, stream_ref on, source_location at) {
  state& s = *state_;
  s.find(0, "gradient_buckets::clip", at);
  (void)s.all->owner("gradient_buckets::clip", at);  // throws after the runtime has ended
  clock::stream_clock const& stream = streams::clock_or_throw(on, "gradient_buckets::clip", at);
  if (stream.device() != s.device())
    throw invalid_use("gradient_buckets::clip",
                      base::text(streams::describe(stream), " for the rank of gpu:", s.device()),
                      "Pass a stream of the rank's device", at, error_id{495});
  if (!(max_norm >= 0))
    throw invalid_use("gradient_buckets::clip", base::text("max_norm is ", max_norm), "Pass a norm of 0 or more", at,
                      error_id{496});
  std::vector<device_span> const ranges = s.ranges_to_clip(at);
  auto* const factor = static_cast<std::byte*>(s.norm.data) + sizeof(double);
  peer::norm_kernels k{nullptr, 0, static_cast<float*>(s.norm.data), reinterpret_cast<double*>(factor)};
  // A call that was refused behind the first scaling goes on there: the norm is of the numbers before.
  if (s.clipped == 0)
    compute_norm(ranges, k, max_norm, on, at);
  // An infinite norm scales nothing: only the norm is asked for.
  for (; std::isfinite(max_norm) && s.clipped < ranges.size(); ++s.clipped)
    k.scale(on, ranges[s.clipped], at);
  s.clipped = 0;
  return s.norm;
}

}  // namespace weir
