// Topic 3: tensors are views of a storage: which operations share it, which copy, which change it in place.
#include <string>

#include "examples/seeds/tape.h"
#include "examples/seeds/topics.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

std::string refusal(auto call) {
  try {
    call();
    return "";
  } catch (std::exception const& e) {
    return e.what();
  }
}

void sharing(table& t) {
  weir::tensor x = weir::randn({2, 3});
  t.row("x = randn(2, 3)", {exactly(32), held_for(32)}, "");
  weir::tensor y = x[0];
  t.row("y = x[0]", {exactly(32), held_for(32)}, "the same storage");
  y.fill_(1);
  t.holds(x.storage() == y.storage() && weir::sum(x[0]).item<float>() == 3,
          "y.fill_(1) changes x, for they share their storage:");
  t.holds(x[0].cpu().str() == "tensor([1., 1., 1.])", "x[0] is " + x[0].cpu().str());
  weir::tensor const a = weir::arange(6).reshape({2, 3}), b = a.t();
  t.holds(a.is_contiguous() && a.strides() == weir::strides{3, 1},
          "a = arange(6).reshape(2, 3) is contiguous, strides " + a.strides().str());
  t.holds(!b.is_contiguous() && b.strides() == weir::strides{1, 3} && b.storage() == a.storage(),
          "b = a.t() is not, strides " + b.strides().str() + ", and shares a's storage");
  std::string const why = refusal([&] { (void)b.view({-1}); });
  t.holds(why.find("reshape") != std::string::npos, "b.view(-1) is refused: " + why);
  t.row("a and b live", {exactly(64), held_for(64)}, "");
  weir::tensor const c = b.contiguous();
  t.row("c = b.contiguous()", {exactly(96), held_for(96)}, "a new storage");
  t.holds(!(c.storage() == b.storage()) && c.strides() == weir::strides{2, 1},
          "c has its own, strides " + c.strides().str());
  t.holds(c.cpu().str() == "tensor([[0., 3.],\n        [1., 4.],\n        [2., 5.]])" && b.cpu().str() == c.cpu().str(),
          "b and c print the same");
}

void sizes(table& t, std::int64_t n) {
  for (weir::dtype const type : {weir::float32, weir::float16, weir::int64}) {
    weir::tensor const x = weir::empty({n}, {.dtype = type});
    std::int64_t const bytes = n * static_cast<std::int64_t>(weir::size_of(type));
    t.row("n elements of " + std::string(weir::name_of(type)), {exactly(bytes), range{}},
          std::to_string(weir::size_of(type)) + " B each");
  }
}

void in_place(table& t, std::int64_t n) {
  std::int64_t const one = n * 4;
  weir::tensor x = weir::ones({n / 1024, 1024}), y = weir::ones({n / 1024, 1024});
  t.row("x, y of n float32", {exactly(2 * one), range{}}, "");
  {
    weir::tensor const z = weir::add(x, y);
    t.row("z = x + y", {exactly(3 * one), range{}}, "memory for the result");
  }
  weir::reset_peak_memory_stats();
  x.add_(y);
  t.row("z dropped, x.add_(y)", {exactly(2 * one), range{}}, "none");
  t.holds(weir::max_memory_allocated() < static_cast<std::size_t>(2 * one + one / 4),
          "and at no moment is there room for a third");
  saved const kept(x);
  (void)kept.value();
  x.relu_();
  std::string const why = refusal([&] { (void)kept.value(); });
  t.holds(why.find("version") != std::string::npos, "x.relu_() after x was saved for a backward pass is told: " + why);
}

}  // namespace

int views(settings const& with) {
  machine const on(with, {.devices = 1, .memory = 1_GiB}, {});
  table t(with, "3. Views and storages");
  t.row("", {exactly(0), exactly(0)}, "");
  sharing(t);
  std::int64_t const n = (4 << 20) / static_cast<std::int64_t>(with.part);
  sizes(t, n);
  in_place(t, n);
  return t.failures();
}

}  // namespace seeds
