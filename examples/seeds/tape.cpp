// Nodes, the backward pass, and the values that each operation's gradient needs.
#include "examples/seeds/tape.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

namespace seeds {
namespace {
thread_local bool tracks = true;
thread_local std::int64_t products = 0;
using gradients = std::function<std::vector<weir::tensor>(weir::tensor const&)>;
constexpr double quarter_turn = 1.5707963267948966;
}  // namespace

weir::tensor const& saved::value() const {
  std::uint64_t const is = t_.storage().version();
  if (is == version_)
    return t_;
  throw weir::invalid_use("backward",
                          "a saved tensor " + t_.shape().str() + ": its storage is at version " + std::to_string(is) +
                              ", it was saved at " + std::to_string(version_),
                          "Change it in place after its last use, or save a clone()", weir::source_location::current());
}

struct node {
  std::vector<std::shared_ptr<node>> from;  // null: a constant
  gradients back;                           // holds the saved values; empty for a parameter and after release
  char const* name = "parameter";
  bool is_parameter = false;
  weir::tensor gradient;

  // Topological order: a node follows all of its inputs.
  static void sort(std::shared_ptr<node> const& n, std::set<node*>& seen, std::vector<std::shared_ptr<node>>& order) {
    if (!n || !seen.insert(n.get()).second)
      return;
    for (auto const& f : n->from)
      sort(f, seen, order);
    order.push_back(n);
  }
};

var var::parameter(weir::tensor t) {
  var v(std::move(t));
  v.node_ = std::make_shared<node>();
  v.node_->is_parameter = true;
  return v;
}
weir::tensor var::gradient() const {
  return node_ ? node_->gradient : weir::tensor();
}
void var::clear_gradient() {
  if (node_)
    node_->gradient = {};
}

var made(weir::tensor value, std::vector<var> const& of, gradients back, char const* name) {
  var v(std::move(value));
  if (!tracks || std::none_of(of.begin(), of.end(), [](var const& f) { return f.is_tracked(); }))
    return v;
  v.node_ = std::make_shared<node>();
  for (var const& f : of)
    v.node_->from.push_back(f.node_);
  v.node_->back = std::move(back);
  v.node_->name = name;
  return v;
}

void backward_from(var const& last, weir::tensor gradient, bool retained) {
  if (!last.node_)
    throw weir::invalid_use("backward", "a value that no parameter leads to",
                            "Compute it from parameters, outside no_grad", weir::source_location::current());
  no_grad const off;
  std::vector<std::shared_ptr<node>> order;
  std::set<node*> seen;
  node::sort(last.node_, seen, order);
  std::map<node*, weir::tensor> of;
  of[last.node_.get()] = std::move(gradient);
  for (; !order.empty(); order.pop_back()) {
    node& n = *order.back();
    auto const mine = of.extract(&n);
    if (mine.empty())
      continue;
    if (n.is_parameter) {
      if (n.gradient.defined())
        n.gradient.add_(mine.mapped());
      else
        n.gradient = mine.mapped();
      continue;
    }
    if (!n.back)
      throw weir::invalid_use("backward", std::string("the graph behind ") + n.name + " has been released",
                              "Say graph::retained in the pass before", weir::source_location::current());
    std::vector<weir::tensor> const to = n.back(mine.mapped());
    if (!retained)
      n.back = {};
    for (std::size_t i = 0; i < to.size(); ++i) {
      if (!n.from[i])
        continue;
      weir::tensor& sum = of[n.from[i].get()];
      sum = sum.defined() ? weir::add(sum, to[i]) : to[i];
    }
  }
}

void backward(var const& loss, graph g) {
  backward_from(loss, weir::ones_like(loss.value()), g == graph::retained);
}

var mul(var const& a, var const& b, weir::source_location at) {
  return made(
      weir::mul(a.value(), b.value(), at), {a, b},
      [x = saved(a.value()), y = saved(b.value())](weir::tensor const& g) {
        return std::vector{weir::mul(g, y.value()), weir::mul(g, x.value())};
      },
      "mul");
}

var matmul(var const& a, var const& b, weir::source_location at) {
  ++products;
  return made(
      weir::matmul(a.value(), b.value(), weir::transposed::none, at), {a, b},
      [x = saved(a.value()), y = saved(b.value())](weir::tensor const& g) {
        return std::vector{weir::matmul(g, y.value(), weir::transposed::right),
                           weir::matmul(x.value(), g, weir::transposed::left)};
      },
      "matmul");
}

var sin(var const& a, weir::source_location at) {
  return made(
      weir::sin(a.value(), at), {a},
      [x = saved(a.value())](weir::tensor const& g) {
        weir::tensor turned = weir::full_like(x.value(), quarter_turn);
        return std::vector{weir::mul(g, weir::sin(turned.add_(x.value())))};
      },
      "sin");
}

var mean(var const& a, weir::source_location at) {
  return made(
      weir::mean(a.value(), at), {a},
      [s = a.value().shape(), on = a.value().device()](weir::tensor const& g) {
        return std::vector{weir::full(s, g.item<double>() / static_cast<double>(s.numel()), {.on = on})};
      },
      "mean");
}

var checkpoint(std::function<var(var const&)> segment, var const& in) {
  if (!tracks)
    return segment(in);
  weir::tensor value;
  {
    no_grad const off;
    value = segment(in).value();
  }
  // The segment may use parameters that are not visible here, so a constant `in` needs a node too.
  var const reached = in.is_tracked() ? in : var::parameter(in.value());
  return made(
      std::move(value), {reached},
      [segment = std::move(segment), x = saved(in.value())](weir::tensor const& g) {
        no_grad const on(true);
        var const again = var::parameter(x.value());
        backward_from(segment(again), g, false);
        return std::vector{again.gradient()};
      },
      "checkpoint");
}

no_grad::no_grad(bool tracking) : found_(std::exchange(tracks, tracking)) {}
no_grad::~no_grad() {
  tracks = found_;
}
std::int64_t products_made() {
  return products;
}

}  // namespace seeds
