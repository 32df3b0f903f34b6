// The loss scale: two numbers on the device, which optimizers change.
// Threads: as weir/optimizer.h.
#include <cmath>

#include "runtime/base/text.h"
#include "train/update.h"
#include "weir/copy.h"
#include "weir/optimizer.h"

namespace weir {

loss_scale::loss_scale(loss_scale_options o, source_location at) : options_(o) {
  if (!(o.first >= 1 && o.first <= o.most && std::isfinite(static_cast<float>(o.most)) && o.steps_to_grow >= 1))
    throw invalid_use("loss_scale",
                      base::text("first ", o.first, ", most ", o.most, ", steps_to_grow ", o.steps_to_grow),
                      "Pass scales from 1 to those that float32 has, and 1 or more steps", at, error_id{547});
  stream_ref const on = current_stream(gpu, at);
  block_ = buffer(on, sizeof(train::scale_state), default_alignment, at);
  train::scale_state const begin{static_cast<float>(o.first), 0};
  copy(on, block_.data(), &begin, sizeof begin, blocking::yes, at);
}

device_span loss_scale::value() const {
  return {block_.data(), 1, float32};
}
device_span loss_scale::state() const {
  return {block_.data(), 2, float32};
}

float loss_scale::read(stream_ref on, source_location at) const {
  float scale = 0;
  copy(on, &scale, block_.data(), sizeof scale, blocking::yes, at);
  return scale;
}

}  // namespace weir
