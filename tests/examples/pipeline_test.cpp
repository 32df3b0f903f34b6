// The pipeline of files: every byte, and its errors when a file ends early or takes no more. Threads: one.
#include "examples/pipeline/pipeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <random>
#include <stdexcept>

#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/runtime.h"

namespace pipeline {
namespace {

struct files : testing::Test {
  std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("weir-pipeline-test-" + std::to_string(::getpid()));
  files() { std::filesystem::create_directories(folder); }
  ~files() override { std::filesystem::remove_all(folder); }

  weir::runtime machine{weir::simulated{.devices = 1, .memory = std::size_t{64} << 20}};
  weir::runtime_guard in{machine};

  std::filesystem::path make(std::size_t bytes) {
    auto const path = folder / "in";
    std::ofstream file(path, std::ios::binary);
    std::mt19937 random(static_cast<unsigned>(bytes) + 1);
    for (std::size_t i = 0; i < bytes; ++i)
      file.put(static_cast<char>(random()));
    return path;
  }
  static std::string all_of(std::filesystem::path const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string refusal(settings const& s) {
    try {
      run(s);
    } catch (std::runtime_error const& e) {
      return e.what();
    }
    return "not refused";
  }
};

TEST_F(files, every_byte_arrives_and_two_passes_give_the_file) {
  for (std::size_t const bytes : {0, 1, 7, 8, 4096, 4097, 100'003}) {
    settings s{.input = make(bytes), .output = folder / "out", .batch = 4096, .depth = 3};
    auto const o = run(s);
    EXPECT_EQ(o.bytes, bytes);
    EXPECT_EQ(std::filesystem::file_size(s.output), bytes);
    EXPECT_EQ(checksum_of_restored(s.output), o.checksum) << bytes << " bytes";
    settings const back{.input = s.output, .output = folder / "back", .batch = 8192, .depth = 1};
    run(back);
    EXPECT_EQ(all_of(back.output), all_of(s.input)) << bytes << " bytes";
    if (bytes > 8) {
      EXPECT_NE(all_of(s.output), all_of(s.input));
    }
  }
}

TEST_F(files, a_byte_that_changed_on_disk_is_seen_by_the_checksum) {
  settings const s{.input = make(20'000), .output = folder / "out", .batch = 4096};
  auto const o = run(s);
  std::fstream file(s.output, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(12'345);
  char const was = static_cast<char>(file.get());
  file.seekp(12'345);
  file.put(static_cast<char>(was ^ 1));
  file.close();
  EXPECT_NE(checksum_of_restored(s.output), o.checksum);
}

TEST_F(files, a_file_that_shrinks_is_named_with_the_byte) {
  settings s{.input = make(100'000), .output = folder / "out", .batch = 4096, .depth = 2};
  s.progress = [&](std::size_t, std::size_t) { std::filesystem::resize_file(s.input, 50'000); };
  auto const said = refusal(s);
  EXPECT_NE(said.find("in ended at byte 50000, it had 100000"), std::string::npos) << said;
  EXPECT_EQ(weir::pinned_memory_stats().allocated_bytes.all.current, 0);
  EXPECT_EQ(weir::memory_allocated(), 0u);
}

TEST_F(files, a_full_disk_is_named) {
  if (::access("/dev/full", W_OK) != 0)
    GTEST_SKIP() << "no /dev/full";
  auto const said = refusal({.input = make(100'000), .output = "/dev/full", .batch = 4096});
  EXPECT_NE(said.find("/dev/full takes no more at byte 0"), std::string::npos) << said;
  EXPECT_EQ(weir::memory_allocated(), 0u);
}

TEST_F(files, an_unopenable_file_is_named) {
  EXPECT_NE(refusal({.input = folder / "none", .output = folder / "out"}).find("none cannot be read"),
            std::string::npos);
  EXPECT_NE(refusal({.input = make(8), .output = folder / "no" / "out"}).find("out cannot be written"),
            std::string::npos);
  EXPECT_NE(refusal({.input = make(8), .output = folder / "out", .batch = 12}).find("multiple of 8"),
            std::string::npos);
}

// An alias by any name is refused, and the input stays unchanged.
TEST_F(files, an_output_that_is_the_input_is_refused) {
  auto const input = make(10'000);
  auto const was = all_of(input);
  std::filesystem::create_hard_link(input, folder / "hard");
  std::filesystem::create_symlink(input, folder / "symbolic");
  for (auto const& output : {input, folder / "." / "in", folder / "hard", folder / "symbolic"}) {
    auto const said = refusal({.input = input, .output = output, .batch = 4096});
    EXPECT_NE(said.find("itself: name another output"), std::string::npos) << said;
    EXPECT_EQ(all_of(input), was);
  }
}

TEST_F(files, a_file_without_end_or_size_is_refused) {
  EXPECT_NE(refusal({.input = folder, .output = folder / "out"}).find("is a directory"), std::string::npos);
  EXPECT_NE(refusal({.input = "/dev/zero", .output = folder / "out"}).find("/dev/zero is no file with an end"),
            std::string::npos);
  if (std::filesystem::exists("/proc/self/status")) {
    EXPECT_NE(refusal({.input = "/proc/self/status", .output = folder / "out"}).find("does not say its size"),
              std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST_F(files, a_full_disk_is_refused_before_a_byte_is_written) {
  std::string said;
  try {
    require_room(folder / "out", std::size_t{1} << 60);
  } catch (std::runtime_error const& e) {
    said = e.what();
  }
  EXPECT_NE(said.find("out would have 1152921504606846976 bytes, and its disk has room for "), std::string::npos)
      << said;
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
  require_room(folder / "out", 1);
  require_room("/dev/null", std::size_t{1} << 60);
}

TEST_F(files, a_short_file_takes_no_more_memory_than_its_batches) {
  run({.input = make(10'000), .output = folder / "out", .batch = 4096, .depth = std::numeric_limits<int>::max()});
  EXPECT_LE(weir::pinned_memory_stats().allocated_bytes.all.peak, 6 * 4096);
}

TEST_F(files, each_batch_is_in_the_picture_once_a_stage) {
  auto const o = run({.input = make(40'000), .output = folder / "out", .batch = 4096});
  EXPECT_EQ(o.spans.size(), 5u * 10u);
  std::vector<span> three;
  for (int batch = 0; batch < 3; ++batch) {
    for (int row = 0; row < 5; ++row)
      three.push_back({static_cast<stage>(row), batch, (batch + row) * 10.0, (batch + row) * 10.0 + 9.9});
  }
  EXPECT_EQ(picture(three, 7),
            "read     012....\n"
            "copy in  .012...\n"
            "work     ..012..\n"
            "copy out ...012.\n"
            "write    ....012\n"
            "         0.0 to 69.9 ms, batches 0 to 2 by their last digit\n");
}

}  // namespace
}  // namespace pipeline
