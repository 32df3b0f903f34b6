// What a person reads of a call that is wrong.
// Threads: any.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "weir/error.h"

namespace weir::test {

// The words of the invalid_use that this throws; nothing, and a failure, where it throws none.
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
