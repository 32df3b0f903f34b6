// The questions that operations on tensors ask before they begin, and the words in which they refuse.
// Threads: any.
#include "streams/context.h"
#include "tensor/state.h"

namespace weir::tensors {

std::string describe(tensor const& t) {
  if (!t.defined()) return "an undefined tensor";
  return std::string(name_of(t.dtype())) + " " + t.shape().str() + " on " + (t.is_pinned() ? "pinned cpu" : t.device().str());
}

void require_defined(tensor const& t, std::string_view operation, char const* name, here at) {
  if (!t.defined()) throw invalid_use(std::string(operation), std::string(name) + " is undefined", "Make it with a factory first, for example weir::empty", at);
}

void require_same_shape(tensor const& a, tensor const& b, std::string_view operation, char const* first, char const* second, here at) {
  if (a.shape() == b.shape()) return;
  throw invalid_use(std::string(operation), std::string(first) + " " + a.shape().str() + ", " + second + " " + b.shape().str(), "Shapes must be the same; nothing is broadcast", at);
}

void require_same_device(tensor const& a, tensor const& b, std::string_view operation, char const* first, char const* second, here at) {
  if (a.device() == b.device()) return;
  throw invalid_use(std::string(operation), std::string(first) + " on " + a.device().str() + ", " + second + " on " + b.device().str(), "Bring them together with to(device) or copy_", at);
}

void require_float32(tensor const& t, std::string_view operation, char const* name, here at) {
  if (t.dtype() == float32) return;
  throw not_supported(std::string(operation), std::string(name) + " is " + describe(t), "Arithmetic is float32: convert with to(weir::float32)", at);
}

void require_no_partial_overlap(tensor const& written, tensor const& read, std::string_view operation, here at) {
  if (!(written.storage() == read.storage()) || !written.is_contiguous() || !read.is_contiguous()) return;
  auto const w = reinterpret_cast<std::uintptr_t>(written.data()), r = reinterpret_cast<std::uintptr_t>(read.data());
  if (w == r && written.nbytes() == read.nbytes()) return;
  if (w + written.nbytes() <= r || r + read.nbytes() <= w) return;
  throw invalid_use(std::string(operation), "elements " + std::to_string(written.storage_offset()) + " and on of a storage are written, elements " + std::to_string(read.storage_offset()) + " and on read: " + written.shape().str() + " and " + read.shape().str() + " overlap in part",
                    "clone() what is read first", at);
}

strides row_major(shape const& s) noexcept {
  strides by = s;
  std::int64_t step = 1;
  for (int i = s.rank() - 1; i >= 0; --i) {
    by[i] = step;
    step *= s[i] > 0 ? s[i] : 1;
  }
  return by;
}

// Runs of dimensions that lie together without gaps are cut anew; a run that the new extents do not fill exactly forbids the view.
std::optional<strides> strides_of_view(tensor const& t, shape const& s) noexcept {
  if (t.numel() == 0 || t.is_contiguous()) return row_major(s);
  strides by = s;
  int to = s.rank() - 1;
  std::int64_t step = t.strides()[t.dim() - 1], old_run = 1, new_run = 1;
  for (int from = t.dim() - 1; from >= 0; --from) {
    old_run *= t.shape()[from];
    bool const run_ends = from == 0 || (t.shape()[from - 1] != 1 && t.strides()[from - 1] != old_run * step);
    if (!run_ends) continue;
    while (to >= 0 && (new_run < old_run || s[to] == 1)) {
      by[to] = new_run * step;
      new_run *= s[to];
      --to;
    }
    if (new_run != old_run) return std::nullopt;
    if (from > 0) {
      step = t.strides()[from - 1];
      old_run = new_run = 1;
    }
  }
  return to < 0 ? std::optional(by) : std::nullopt;
}

shape with_inferred_extent(shape s, std::int64_t numel, std::string_view operation, here at) {
  shape const asked = s;
  int unknown = -1;
  std::int64_t known = 1;
  bool overflows = false;
  for (int i = 0; i < s.rank(); ++i) {
    if (s[i] == -1 && unknown < 0) unknown = i;
    else if (s[i] < 0) throw invalid_use(std::string(operation), asked.str(), "Extents are 0 or more, and one may be -1", at);
    else overflows |= __builtin_mul_overflow(known, s[i], &known);
  }
  if (unknown >= 0 && !overflows && known != 0 && numel % known == 0) {
    s[unknown] = numel / known;
    known = numel;
  }
  if (overflows || known != numel || (unknown >= 0 && s[unknown] < 0)) {
    throw invalid_use(std::string(operation), std::to_string(numel) + " elements as " + asked.str(), "The extents must multiply to the number of elements", at);
  }
  return s;
}

int device_of(tensor const& t) noexcept { return t.device().is_cpu() ? -1 : t.device().index(); }

ops::place place_of(tensor const& t) {
  int const device = device_of(t);
  if (device < 0) return {};
  return streams::ref_of(streams::current_line(*tensor_access::block_of(t).owner, device));
}

ops::operand operand_of(tensor const& t) noexcept { return {t.data(), t.dtype(), t.shape(), t.strides()}; }

void changed(tensor const& t) noexcept { tensor_access::block_of(t).version.fetch_add(1, base::memory_order_relaxed); }

}  // namespace weir::tensors
