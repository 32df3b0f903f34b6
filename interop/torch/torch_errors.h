// PyTorch's own exception for "out of memory", thrown without its headers.
// Threads: any.
#pragma once
#include <string>

namespace weir::interop {

// Throws c10::OutOfMemoryError, torch.OutOfMemoryError in Python. If libc10 is not loaded or lacks a symbol:
// std::runtime_error with the same text, a RuntimeError in Python.
[[noreturn]] void throw_out_of_memory(std::string text);
bool knows_torch_errors();

}  // namespace weir::interop
