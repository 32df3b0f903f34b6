// The names of functions that a program does not export.
#include "runtime/base/os_symbols.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace weir::os {
namespace {

[[gnu::noinline]] int a_function_of_this_file(int x) {
  return x * 3 + 1;
}

TEST(symbols, a_function_that_is_not_exported_has_its_name) {
  auto const code = reinterpret_cast<char const*>(&a_function_of_this_file);
  code_place const at = place_of_code(code + 1);
  EXPECT_NE(at.file.find("test"), std::string::npos) << at.file;
  EXPECT_NE(at.function.find("a_function_of_this_file"), std::string::npos) << at.function;
  EXPECT_EQ(at.offset, 1u);
  EXPECT_EQ(a_function_of_this_file(1), 4);
}

TEST(symbols, a_function_of_a_library_has_its_exported_name) {
  code_place const at = place_of_code(reinterpret_cast<void const*>(&std::qsort));
  EXPECT_NE(at.file.find("/lib"), std::string::npos) << at.file;
  // A sanitizer's library has one of its own.
  EXPECT_NE(at.function.find("qsort"), std::string::npos) << at.function;
}

TEST(symbols, an_address_without_code_has_no_file) {
  int value = 0;
  EXPECT_EQ(place_of_code(&value).file, "");
  EXPECT_EQ(place_of_code(nullptr).file, "");
}

}  // namespace
}  // namespace weir::os
