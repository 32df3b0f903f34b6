// A tape: what was done to tensors is kept so that gradients can be found going backwards. As small as
// torch's rules about memory allow.
// Threads: each thread has its own no_grad; one graph belongs to one thread at a time.
//
// A var is a value and, unless nothing asks for gradients, the node that made it. Nodes keep the values that
// their gradient needs, and no others: a value goes when neither a var nor a node has it. The backward pass
// lets go of them as it comes by.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "weir/tensor.h"

namespace seeds {

// A value kept for later, and the version its storage had. Throws: invalid_use, when it was changed since
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
  weir::tensor gradient() const;  // of a parameter; undefined: none yet
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

// Memory is counted to the caller's line.
var mul(var const&, var const&, weir::source_location = weir::source_location::current());
var matmul(var const&, var const&, weir::source_location = weir::source_location::current());
var sin(var const&, weir::source_location = weir::source_location::current());
var mean(var const&, weir::source_location = weir::source_location::current());

enum class graph : bool { released, retained };
// Adds to the parameters' gradients. Throws:
// invalid_use (nothing tracked; released before; a saved value was changed)
void backward(var const& loss, graph = graph::released);
// The segment's inner values are not kept but made again by the backward pass.
// Whatever it uses beside `in` is parameters.
var checkpoint(std::function<var(var const&)> segment, var const& in);

class [[nodiscard]] no_grad {  // nothing is kept while one lives on this thread
 public:
  explicit no_grad(bool tracking = false);
  ~no_grad();
  no_grad(no_grad const&) = delete;

 private:
  bool found_;
};
std::int64_t products_made();  // by forward passes of this thread: what recomputing costs

}  // namespace seeds
