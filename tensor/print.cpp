// Tensors as text, by torch's rules: one width and format for all elements, from those shown.
// Threads: as weir/tensor.h.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <vector>

#include "tensor/number.h"
#include "tensor/state.h"

namespace weir {
namespace {

// More elements than all_shown are summarized: `edge` at each end of each dimension.
constexpr std::int64_t all_shown = 1000, edge = 3;
constexpr size_t line_width = 80;

std::string printed(char const* format, int precision, double value) {
  if (std::isnan(value))
    return "nan";
  char text[400];
  std::snprintf(text, sizeof text, format, precision, value);
  return text;
}

// The shown elements, on the host: a dimension longer than two edges keeps only its edges.
tensor shown(tensor const& t, bool summarised, source_location at) {
  shape s = t.shape();
  if (summarised) {
    for (int d = 0; d < s.rank(); ++d)
      s[d] = std::min(s[d], 2 * edge);
  }
  if (s == t.shape())
    return t.to(cpu, blocking::yes, at).contiguous(at);
  tensor const there = empty(s, {.dtype = t.dtype(), .on = cpu}, at);
  for (unsigned corner = 0; corner < 1u << t.dim(); ++corner) {  // bit d: the far end of dimension d
    tensor from = t, to = there;
    bool is_one = true;
    for (int d = 0; d < t.dim(); ++d) {
      bool const cut = s[d] != t.shape()[d], far = corner >> d & 1u;
      is_one &= cut || !far;
      if (!cut)
        continue;
      from = far ? from.slice(d, t.shape()[d] - edge, t.shape()[d], at) : from.slice(d, 0, edge, at);
      to = far ? to.slice(d, edge, 2 * edge, at) : to.slice(d, 0, edge, at);
    }
    if (is_one)
      to.copy_(from, blocking::yes, at);
  }
  return there;
}

class writing {  // the format of all elements
 public:
  explicit writing(tensor const& t) : type_(t.dtype()), at_(t.data()) {
    std::int64_t const n = t.numel();
    if (ops::is_integer(type_)) {
      for (std::int64_t i = 0; i < n; ++i)
        width_ = std::max(width_, bare(i).size());
      return;
    }
    double least = INFINITY, most = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      double const v = ops::load(type_, at_, i);
      if (!std::isfinite(v) || v == 0)
        continue;
      least = std::min(least, std::fabs(v));
      most = std::max(most, std::fabs(v));
      whole_ &= v == std::ceil(v);
    }
    if (most == 0)
      return;  // all elements are 0 or not finite
    scientific_ = most / least > 1000 || most > 1e8 || (!whole_ && least < 1e-4);
    for (std::int64_t i = 0; i < n; ++i) {
      double const v = ops::load(type_, at_, i);
      if (std::isfinite(v) && v != 0)
        width_ = std::max(width_, bare(i).size());
    }
  }
  size_t width() const noexcept { return width_; }
  std::string element(std::int64_t i) const {
    std::string const text = bare(i);
    return std::string(width_ > text.size() ? width_ - text.size() : 0, ' ') + text;
  }

 private:
  std::string bare(std::int64_t i) const {
    if (type_ == boolean)
      return ops::load_integer(type_, at_, i) ? "True" : "False";
    if (ops::is_integer(type_))
      return std::to_string(ops::load_integer(type_, at_, i));
    double const v = ops::load(type_, at_, i);
    if (scientific_)
      return printed("%.*e", 4, v);
    if (whole_)
      return printed("%.*f", 0, v) + (std::isfinite(v) ? "." : "");
    return printed("%.*f", 4, v);
  }
  dtype type_;
  void const* at_;
  bool whole_ = true, scientific_ = false;
  size_t width_ = 1;
};

class page {
 public:
  page(tensor const& whole, tensor const& shown) : whole_(whole.shape()), shown_(shown.shape()), as_(shown) {}
  std::string text() const { return part(0, 0, sizeof "tensor(" - 1); }

 private:
  // Text of dimension d, from element `first` on.
  std::string part(int d, std::int64_t first, size_t indent) const {
    if (d == shown_.rank())
      return as_.element(first);
    std::vector<std::string> all;
    std::int64_t step = 1;
    for (int i = d + 1; i < shown_.rank(); ++i)
      step *= shown_[i];
    bool const row = d + 1 == shown_.rank();
    for (std::int64_t i = 0; i < shown_[d]; ++i) {
      if (i == edge && shown_[d] != whole_[d])
        all.push_back(row ? " ..." : "...");
      all.push_back(part(d + 1, first + i * step, indent + 1));
    }
    size_t const a_line =
        row ? std::max<size_t>(1, (line_width - std::min(line_width, indent)) / (as_.width() + 2)) : 1;
    std::string const end =
        "," + std::string(row ? 1 : static_cast<size_t>(shown_.rank() - d - 1), '\n') + std::string(indent + 1, ' ');
    std::string text = "[";
    for (size_t i = 0; i < all.size(); ++i)
      text += (i == 0 ? "" : i % a_line ? ", " : end) + all[i];
    return text + "]";
  }
  shape const whole_, shown_;
  writing const as_;
};

std::string in_parentheses(shape const& s) {  // as Python writes a tuple
  std::string text = "(";
  for (int i = 0; i < s.rank(); ++i)
    text += (i ? ", " : "") + std::to_string(s[i]);
  return text + (s.rank() == 1 ? ",)" : ")");
}

}  // namespace

std::string tensor::str(source_location at) const {
  if (!defined())
    return "tensor(undefined)";
  bool const is_empty = numel() == 0;
  if (device().is_cpu())
    tensors::on_host({reads(*this)}, "tensor::str", at);
  std::string text = "tensor(" + (is_empty ? "[]" : page(*this, shown(*this, numel() > all_shown, at)).text());
  std::vector<std::string> notes;
  if (device().is_gpu())
    notes.push_back("device='" + device().str() + "'");
  if (is_empty && dim() != 1)
    notes.push_back("size=" + in_parentheses(shape()));
  bool const told = is_empty ? dtype() != float32 : dtype() != float32 && dtype() != int64 && dtype() != boolean;
  if (told)
    notes.push_back("dtype=" + std::string(name_of(dtype())));
  size_t const last = text.rfind('\n');
  size_t column = last == std::string::npos ? text.size() + 2 : text.size() - last + 1;  // as torch counts
  for (std::string const& note : notes) {
    bool const breaks = column + note.size() + 2 > line_width;
    text += (breaks ? ",\n" + std::string(sizeof "tensor(" - 1, ' ') : ", ") + note;
    column = breaks ? sizeof "tensor(" - 1 + note.size() : column + note.size() + 2;
  }
  return text + ")";
}

// There is no caller's line.
std::ostream& operator<<(std::ostream& out, tensor const& t) {
  return out << t.str({nullptr, nullptr, 0});
}

}  // namespace weir
