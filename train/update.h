// The table of an optimizer in device memory, and its kernels. Each declares its memory as a launch does.
// Threads: any.
//
// Invariant: chunk c of the table belongs to one row, and a thread to one chunk.
#pragma once
#include <vector>

#include "peer/collective/bucket_kernels.h"
#include "weir/collective.h"
#include "weir/launch.h"

namespace weir::train {

inline constexpr std::int64_t lanes = 256, chunk = 16 * lanes;  // threads and elements of a chunk

struct row {      // an item that is updated
  void* value;    // float or double: the parameter, or its master copy
  void* rounded;  // the parameter of a 16-bit type; null: `value` is the parameter
  void const* gradient;
  void* first;  // state; null: none
  void* second;
  std::int64_t count, first_chunk;
  double rate, decay;
  dtype type, of_gradient, of_rounded;
  bool in_norm;  // adds its squares
};

struct control {  // numbers of one optimizer on the device
  std::int64_t steps, skipped;
  double rate;
  // Of the step under way:
  double factor;      // of each gradient
  double size, root;  // adamw: rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t)
  bool skips;
  float norm;
};

struct rule {
  bool adaptive = false;  // adamw
  double beta1 = 0, beta2 = 0, epsilon = 0, momentum = 0, decay = 0, max_norm = 0;
  bool nesterov = false;
};

struct scale_state {
  float scale, good_steps;
};
struct growth {
  float most, steps_to_grow;
};

struct kernels {
  row const* rows;
  std::int32_t const* row_of;  // each chunk
  std::int64_t chunks;
  control* numbers;
  double* sums;        // norm_threads() of them, at least peer::few_sums; null: no norm is computed
  scale_state* scale;  // null: none
  rule how;
  growth grows;
  // Declared by the kernels of these names. They outlive this.
  std::vector<memory_use> const *to_add_squares, *to_read;

  static std::int64_t norm_threads(std::int64_t chunks) noexcept;
  // Parts of a step, in turn on one stream. Throw: as launch
  void add_squares(stream_ref, source_location) const;
  void add_few(stream_ref, source_location) const;  // leaves peer::few_sums of them
  void begin(stream_ref, source_location) const;
  // Of some chunks, all parts of rows that `to_update` declares
  void update(stream_ref, std::int64_t first, std::int64_t count, memory_uses to_update, source_location) const;
  // Not of a step: the master copies. Throws: as launch
  void read_parameters(stream_ref, source_location) const;
};
// Throws: as launch
void put(stream_ref, double* to, double, source_location);
void put(stream_ref, std::int64_t* to, std::int64_t, source_location);

}  // namespace weir::train
