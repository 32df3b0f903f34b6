// The random programs of the prover, each judged by all its checks.
// Threads: each program's own.
#pragma once
#include <cstdint>
#include <span>

#include "tests/model/verdict.h"

namespace weir::tests {

struct kind_of_program {
  char const* name;
  verdict (*run)(std::uint64_t seed);
};
std::span<kind_of_program const> programs();
std::span<kind_of_program const> programs_by_name();  // for --of alone

}  // namespace weir::tests
