// The line that names a stack, on stacks of the forms that PyTorch 2.11 records.
// Threads: one.
#include "tools/weir/own_line.h"

#include <gtest/gtest.h>

#include <vector>

namespace weir::report {
namespace {

using stack = std::vector<frame>;

std::string chosen(stack const& s) {
  std::size_t const i = own_line(s);
  return i == s.size() ? "none" : s[i].file + ":" + std::to_string(s[i].line);
}

frame const recorder{"torch::unwind::unwind()", "??", 0}, gather{"torch::CapturedTraceback::gather(bool)", "??", 0},
    malloc{"c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)",
           "CUDACachingAllocator.cpp", 0},
    interpreter{"_PyEval_EvalFrameDefault", "??", 0};

// Frames of C++ and of packages lie inside the program's.
TEST(own_line, is_the_innermost_in_no_installed_package) {
  for (char const* const library :
       {"/opt/.venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "/usr/lib/python3/dist-packages/a/b.py",
        "/usr/lib/python3.11/contextlib.py", "<frozen runpy>", "<eval_with_key>.5",
        "/src/pytorch/torch/nn/functional.py", "C:\\py\\Lib\\site-packages\\torch\\optim\\adam.py",
        "/pytorch/aten/src/ATen/native/Resize.cpp", "/usr/include/c++/12/functional"}) {
    EXPECT_EQ(chosen({recorder,
                      gather,
                      malloc,
                      {"f", library, 1790},
                      interpreter,
                      {"train", "/home/me/train.py", 33},
                      {"<module>", "/home/me/train.py", 49}}),
              "/home/me/train.py:33")
        << library;
  }
}

TEST(own_line, may_lie_in_a_notebook_or_a_folder_called_torch) {
  EXPECT_EQ(chosen({recorder, {"f", "/tmp/ipykernel_7/1.py", 3}}), "/tmp/ipykernel_7/1.py:3");
  EXPECT_EQ(chosen({recorder, {"<module>", "<stdin>", 2}}), "<stdin>:2");
  EXPECT_EQ(chosen({{"step", "/home/me/torch/train.py", 5}, {"main", "/home/me/main.py", 9}}),
            "/home/me/torch/train.py:5");
}

// A debug build of PyTorch and Python has lines in C++, too.
TEST(own_line, is_no_line_of_a_function_of_pytorch_or_python) {
  EXPECT_EQ(chosen({{"at::native::empty_cuda(long)", "/build/Factory.cpp", 12},
                    {"_PyEval_Vector", "/build/ceval.c", 7},
                    {"my::layer::forward()", "/home/me/layer.cpp", 40}}),
            "/home/me/layer.cpp:40");
}

// A program may be a package itself: it is run by its name.
TEST(own_line, without_one_it_is_that_of_a_package) {
  EXPECT_EQ(chosen({recorder,
                    {"f", "/p/site-packages/torch/nn/modules/module.py", 1790},
                    {"forward", "/p/site-packages/transformers/models/bert.py", 61}}),
            "/p/site-packages/transformers/models/bert.py:61");
  EXPECT_EQ(chosen({recorder, {"pin", "/p/site-packages/torch/utils/data/pin_memory.py", 63}}),
            "/p/site-packages/torch/utils/data/pin_memory.py:63");
}

// PyTorch's backward thread runs no Python.
TEST(own_line, without_any_the_stack_has_the_name_of_its_work) {
  stack const backward{
      recorder,
      gather,
      malloc,
      {"at::_ops::empty_like::call(at::Tensor const&)", "??", 0},
      {"at::_ops::mm::call(at::Tensor const&)", "??", 0},
      {"torch::autograd::generated::AddmmBackward0_apply_functional(std::vector<at::Tensor>&&)", "??", 0},
      {"torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0},
      {"torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "", 0}};
  EXPECT_EQ(chosen(backward), "none");
  EXPECT_EQ(own_call(backward), "AddmmBackward0");
  EXPECT_EQ(own_call(stack(backward.begin(), backward.begin() + 5)), "operator mm");
  EXPECT_EQ(own_call(stack{recorder, gather, malloc, {"my_kernel()", "", 0}, {"main", "", 0}}), "my_kernel()");
  EXPECT_EQ(own_call(stack{}), "");
  EXPECT_EQ(own_call(stack{{"", "(no Python frame: autograd, or a library)", 0}}),
            "(no Python frame: autograd, or a library)");
}

}  // namespace
}  // namespace weir::report
