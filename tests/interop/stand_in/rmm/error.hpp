// A stand-in for <rmm/error.hpp>: the names that weir/cuda_mr.h uses, with RMM's bases and constructors.
// Threads: values.
#pragma once
#include <new>
#include <string>

namespace rmm {

class bad_alloc : public std::bad_alloc {
 public:
  bad_alloc(std::string const& message) : message_(message) {}
  char const* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

class out_of_memory : public bad_alloc {
 public:
  using bad_alloc::bad_alloc;
};

}  // namespace rmm
