// The error text of an invalid call.
// Threads: any.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "weir/error.h"

namespace weir::test {

// Returns: the text of the invalid_use that `call` throws; if it throws none, fails and returns "".
template <class Call>
std::string refused(Call call) {
  try {
    call();
  } catch (invalid_use const& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace weir::test
