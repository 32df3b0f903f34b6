// Files of checkpoint tests: a folder of each test, and what lies in it.
// Threads: one.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "weir/checkpoint.h"

namespace weir::test {

inline std::string bytes_of_file(std::filesystem::path const& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(std::filesystem::path const& file, std::string const& bytes) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
}

// A safetensors file, by hand.
inline std::string safetensors(std::string const& header, std::string const& data) {
  std::string file;
  for (std::uint64_t n = header.size(), i = 0; i < 8; ++i, n >>= 8)
    file += static_cast<char>(n & 0xff);
  return file + header + data;
}

class in_a_folder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file() const { return folder_ / "model.safetensors"; }
  std::filesystem::path part() const { return folder_ / "model.safetensors.part"; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::filesystem::path const folder_ =
      std::filesystem::temp_directory_path() / ("weir_checkpoint_" + std::to_string(::getpid()) + "_" +
                                                ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

// Returns: the text of the checkpoint_error that `call` throws; if it throws none, fails and returns "".
template <class Call>
std::string unreadable(Call call) {
  try {
    call();
  } catch (checkpoint_error const& e) {
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

}  // namespace weir::test
