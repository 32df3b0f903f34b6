// A stand-in for <rmm/error.hpp>: the names that weir/cuda_mr.h uses, with RMM's bases, constructors and texts.
// Threads: values.
#pragma once
#include <new>
#include <string>

namespace rmm {

class bad_alloc : public std::bad_alloc {
 public:
  bad_alloc(std::string const& message) : message_(std::string(std::bad_alloc::what()) + ": " + message) {}
  char const* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

class out_of_memory : public bad_alloc {
 public:
  out_of_memory(std::string const& message) : bad_alloc("out_of_memory: " + message) {}
};

}  // namespace rmm
