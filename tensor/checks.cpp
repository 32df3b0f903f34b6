// The checks that tensor operations make before they begin, and their error texts.
// Threads: any.
#include <algorithm>
#include <limits>
#include <vector>

#include "runtime/driver/race_control.h"
#include "streams/stream/context.h"
#include "tensor/state.h"

namespace weir::tensors {

std::string describe(tensor const& t) {
  if (!t.defined())
    return "an undefined tensor";
  return std::string(name_of(t.dtype())) + " " + t.shape().str() + " on " +
         (t.is_pinned() ? "pinned cpu" : t.device().str());
}

void require_defined(tensor const& t, std::string_view operation, char const* name, source_location at) {
  if (!t.defined())
    throw invalid_use(std::string(operation), std::string(name) + " is undefined",
                      "Create it with a factory first, for example weir::empty", at, error_id{325});
  storage::state const& block = tensor_access::block_of(t);
  if (block.kind == memory_kind::device && !block.owner.if_alive()) [[unlikely]]
    (void)block.owner.get(operation, std::string(name) + " " + describe(t), at);
}

void require_same_shape(tensor const& a, tensor const& b, std::string_view operation, char const* first,
                        char const* second, source_location at) {
  if (a.shape() == b.shape())
    return;
  throw invalid_use(std::string(operation),
                    std::string(first) + " " + a.shape().str() + ", " + second + " " + b.shape().str(),
                    "Use equal shapes: weir does not broadcast", at, error_id{326});
}

void require_same_device(tensor const& a, tensor const& b, std::string_view operation, char const* first,
                         char const* second, source_location at) {
  if (a.device() == b.device())
    return;
  throw invalid_use(std::string(operation),
                    std::string(first) + " on " + a.device().str() + ", " + second + " on " + b.device().str(),
                    "Move them to one device with to(device) or copy_", at, error_id{327});
}

void require_float32(tensor const& t, std::string_view operation, char const* name, source_location at) {
  if (t.dtype() == float32)
    return;
  throw not_supported(std::string(operation), std::string(name) + " is " + describe(t),
                      "Convert with to(weir::float32): arithmetic supports float32", at, error_id{328});
}

base::byte_range memory_of(tensor const& t) noexcept {
  if (t.numel() == 0)
    return {};
  std::int64_t last = 0;
  for (int i = 0; i < t.dim(); ++i)
    last += (t.shape()[i] - 1) * t.strides()[i];
  return {reinterpret_cast<std::uintptr_t>(t.data()), static_cast<size_t>(last + 1) * size_of(t.dtype())};
}

namespace {

// Two tensors share a byte if their first bytes' distance is a sum of terms: step * n, n in [low, high].
struct term {
  std::int64_t step, low, high;
};
class sums {
 public:
  void add(std::int64_t step, std::int64_t low, std::int64_t high) {
    for (term& t : all_)
      if (t.step == step)
        return void((t.low += low, t.high += high));
    all_.push_back({step, low, high});
  }
  void add(tensor const& t, int sign) {
    auto const size = static_cast<std::int64_t>(size_of(t.dtype()));
    for (int i = 0; i < t.dim(); ++i)
      if (std::int64_t const most = t.shape()[i] - 1; most > 0 && t.strides()[i] > 0)
        add(t.strides()[i] * size, sign < 0 ? -most : 0, sign < 0 ? 0 : most);
    add(1, sign < 0 ? 1 - size : 0, sign < 0 ? 0 : size - 1);
  }
  bool may_be(std::int64_t distance) {
    std::sort(all_.begin(), all_.end(), [](term const& a, term const& b) { return a.step > b.step; });
    return search(0, distance);
  }

 private:
  // Widest step first: the later terms then leave few candidates for it, if both tensors are views of one.
  bool search(size_t k, std::int64_t distance) {
    if (k == all_.size())
      return distance == 0;
    if (++tried_ > most_tried)
      return true;
    std::int64_t least = 0, most = 0;
    for (size_t i = k + 1; i < all_.size(); ++i)
      least += all_[i].step * all_[i].low, most += all_[i].step * all_[i].high;
    term const& t = all_[k];
    auto const below = [&](std::int64_t bytes) { return bytes / t.step - (bytes % t.step < 0); };  // rounded down
    std::int64_t const last = std::min(t.high, below(distance - least));
    for (std::int64_t n = std::max(t.low, -below(most - distance)); n <= last; ++n)
      if (search(k + 1, distance - n * t.step))
        return true;
    return false;
  }

  static constexpr int most_tried = 4096;  // beyond this, the tensors are assumed to overlap
  std::vector<term> all_;
  int tried_ = 0;
};

}  // namespace

bool may_share_elements(tensor const& a, tensor const& b) {
  auto const first = memory_of(a), second = memory_of(b);
  if (first.bytes == 0 || second.bytes == 0 || first.at + first.bytes <= second.at ||
      second.at + second.bytes <= first.at)
    return false;
  sums between;
  between.add(a, 1);
  between.add(b, -1);
  return between.may_be(static_cast<std::int64_t>(second.at - first.at));
}

void require_no_partial_overlap(tensor const& written, tensor const& read, std::string_view operation,
                                source_location at) {
  bool same = written.data() == read.data() && size_of(written.dtype()) == size_of(read.dtype());
  for (int i = 0; i < written.dim(); ++i)
    same &= written.shape()[i] == 1 || written.strides()[i] == read.strides()[i];
  if (same || !may_share_elements(written, read))
    return;
  throw invalid_use(std::string(operation),
                    written.shape().str() + " with strides " + written.strides().str() + " is written, " +
                        read.shape().str() + " with strides " + read.strides().str() +
                        " is read: they overlap and differ",
                    "Call clone() on the operand that is read", at, error_id{329});
}

strides row_major(shape const& s) noexcept {
  strides by = s;
  std::int64_t step = 1;
  for (int i = s.rank() - 1; i >= 0; --i) {
    by[i] = step;
    // Overflow means that another extent is 0.
    if (s[i] > 0 && __builtin_mul_overflow(step, s[i], &step))
      step = std::numeric_limits<std::int64_t>::max();
  }
  return by;
}

// Splits each run of gapless dimensions anew; new extents that do not fill a run forbid the view.
std::optional<strides> strides_of_view(tensor const& t, shape const& s) noexcept {
  if (t.numel() == 0 || t.is_contiguous())
    return row_major(s);
  strides by = s;
  int to = s.rank() - 1;
  std::int64_t step = t.strides()[t.dim() - 1], old_run = 1, new_run = 1;
  for (int from = t.dim() - 1; from >= 0; --from) {
    old_run *= t.shape()[from];
    bool const run_ends = from == 0 || (t.shape()[from - 1] != 1 && t.strides()[from - 1] != old_run * step);
    if (!run_ends)
      continue;
    while (to >= 0 && (new_run < old_run || s[to] == 1)) {
      by[to] = new_run * step;
      new_run *= s[to];
      --to;
    }
    if (new_run != old_run)
      return std::nullopt;
    if (from > 0) {
      step = t.strides()[from - 1];
      old_run = new_run = 1;
    }
  }
  return to < 0 ? std::optional(by) : std::nullopt;
}

shape with_inferred_extent(shape s, std::int64_t numel, std::string_view operation, source_location at) {
  shape const asked = s;
  int unknown = -1;
  std::int64_t known = 1;
  bool overflows = false;
  for (int i = 0; i < s.rank(); ++i) {
    if (s[i] == -1 && unknown < 0)
      unknown = i;
    else if (s[i] < 0)
      throw invalid_use(std::string(operation), asked.str(), "Pass extents of 0 or more; one may be -1", at,
                        error_id{330});
    else
      overflows |= __builtin_mul_overflow(known, s[i], &known);
  }
  if (unknown >= 0 && !overflows && known != 0 && numel % known == 0) {
    s[unknown] = numel / known;
    known = numel;
  }
  if (overflows || known != numel || (unknown >= 0 && s[unknown] < 0))
    throw invalid_use(std::string(operation), std::to_string(numel) + " elements as " + asked.str(),
                      "Pass extents whose product is the number of elements", at, error_id{331});
  return s;
}

int device_of(tensor const& t) noexcept {
  return t.device().is_cpu() ? -1 : t.device().index();
}

ops::place place_of(tensor const& t, source_location at) {
  int const device = device_of(t);
  if (device < 0)
    return {};
  return streams::ref_of(streams::current_clock(*tensor_access::block_of(t).owner.if_alive(), device, at));
}

ops::operand operand_of(tensor const& t) noexcept {
  return {t.data(), t.dtype(), t.shape(), t.strides()};
}

void on_host(memory_uses u, char const* operation, source_location at) noexcept {
  for (memory_use const& one : u.all())
    if (one.address)
      driver::check::host_uses(
          one.address, one.bytes,
          one.how == access_mode::read ? driver::check::host_use::reads : driver::check::host_use::writes, operation,
          at);
}

void changed(tensor const& t) noexcept {
  tensor_access::block_of(t).version.fetch_add(1, base::memory_order_relaxed);
}

}  // namespace weir::tensors

namespace weir::ops {
void on_host(memory_uses u, source_location at) noexcept {
  tensors::on_host(u, "a tensor operation", at);
}
}  // namespace weir::ops
