// Automatic differentiation with a tape: operations are recorded, and a backward pass computes gradients. It
// implements the subset that PyTorch's memory rules need.
// Threads: each thread has its own no_grad; one graph belongs to one thread at a time.
//
// A var is a value and, if a gradient is needed, the node that made it. A node saves exactly the values that
// its gradient needs. A value is freed when no var and no node refers to it. The backward pass releases saved
// values as it proceeds.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "weir/tensor.h"

namespace seeds {

// A saved value and its storage's version. Throws: invalid_use if the value was changed since
class saved {
 public:
  explicit saved(weir::tensor const& t) : t_(t), version_(t.storage().version()) {}
  weir::tensor const& value() const;

 private:
  weir::tensor t_;
  std::uint64_t version_;
};

struct node;
class var {
 public:
  explicit var(weir::tensor constant) : value_(std::move(constant)) {}
  static var parameter(weir::tensor);  // requires_grad
  weir::tensor const& value() const noexcept { return value_; }
  weir::tensor gradient() const;  // of a parameter; undefined before the first backward pass
  void clear_gradient();
  var detach() const { return var(value_); }
  bool is_tracked() const noexcept { return node_ != nullptr; }

 private:
  friend struct node;
  friend var made(weir::tensor, std::vector<var> const&, std::function<std::vector<weir::tensor>(weir::tensor const&)>,
                  char const*);
  friend void backward_from(var const&, weir::tensor, bool);
  weir::tensor value_;
  std::shared_ptr<node> node_;
};

// `source_location`: the line that the allocation is attributed to.
var mul(var const&, var const&, weir::source_location = weir::source_location::current());
var matmul(var const&, var const&, weir::source_location = weir::source_location::current());
var sin(var const&, weir::source_location = weir::source_location::current());
var mean(var const&, weir::source_location = weir::source_location::current());

enum class graph : bool { released, retained };
// Adds to the parameters' gradients. Throws: invalid_use (no gradient is tracked; the graph was released; a
// saved value was changed)
void backward(var const& loss, graph = graph::released);
// Does not keep the segment's intermediate values: the backward pass recomputes them. The segment may use
// only `in` and parameters.
var checkpoint(std::function<var(var const&)> segment, var const& in);

class [[nodiscard]] no_grad {  // disables recording on this thread
 public:
  explicit no_grad(bool tracking = false);
  ~no_grad();
  no_grad(no_grad const&) = delete;

 private:
  bool found_;
};
std::int64_t products_made();  // matrix products of this thread's forward passes, to measure recomputation

}  // namespace seeds
