// A snapshot survives writing and reading. A truncated or modified file is read, or rejected at a byte offset.
// Seeds as in tests/support/seeds.h. Threads: one.
#include "tools/weir/unpickle.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace weir::report {
namespace {

std::vector<device_snapshot> two_devices(std::mt19937_64& random, std::size_t entries, int blocks = 40) {
  std::vector<device_snapshot> all{{0, {}, {}}, {1, {}, {}}};
  for (device_snapshot& d : all) {
    std::uintptr_t next = 0x7f12'3456'0000;
    for (int s = 0; s < 3; ++s) {
      memory_segment g{next, 0, random() % 100, s == 0, {}};
      for (int b = 0; b < blocks; ++b) {
        auto const is = static_cast<block_state>(random() % 3);
        std::size_t const bytes = 512 * (1 + random() % 100'000);
        g.blocks.push_back({next, bytes, is == block_state::active_allocated ? bytes - random() % 512 : 0, is,
                            is == block_state::active_allocated ? source_location{"a file.cpp", "f", 7}
                                                                : source_location{nullptr, nullptr, 0}});
        next += bytes, g.bytes += bytes;
      }
      next += 1 << 21;
      d.segments.push_back(std::move(g));
    }
    constexpr std::string_view actions[] = {"alloc", "free_requested", "free_completed",
                                            "oom",   "segment_map",    "segment_unmap"};
    for (std::size_t i = 0; i < entries; ++i) {
      std::string_view const action = actions[random() % 6];
      std::uint32_t const stack = random() % 3 == 0 ? 5 : 0;
      d.trace.push_back({action,
                         random() >> 16,
                         random() >> 30,
                         random() % 70'000,
                         static_cast<std::int64_t>(1'700'000'000'000'000 + i),
                         {"x.cpp", "g", 1 + static_cast<unsigned>(random() % 3)},
                         stack,
                         action == "free_requested" ? random() % 2 : 0});
    }
  }
  return all;
}
std::vector<stack_of> const stacks{{5, {{"outer", "", 0}, {"outermost", "m.cpp", 3}}}};

void expect_alike(source_location const& a, source_location const& b) {
  ASSERT_EQ(a.file_name() != nullptr, b.file_name() != nullptr);
  if (!a.file_name())
    return;
  EXPECT_STREQ(a.file_name(), b.file_name());
  EXPECT_STREQ(a.function_name(), b.function_name());
  EXPECT_EQ(a.line(), b.line());
}

TEST(unpickle, reads_back_the_written_values) {
  for (std::uint64_t const seed : tests::seeds("unpickle", 100, 0, 33)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto const written = two_devices(random, 2500);
    auto const read = read_snapshot(snapshot(written, stacks, "settings"), "a.pickle");
    ASSERT_EQ(read.devices.size(), 2u);
    for (std::size_t d = 0; d < 2; ++d) {
      auto const &a = written[d], &b = read.devices[d];
      EXPECT_EQ(b.device, a.device);
      ASSERT_EQ(b.segments.size(), a.segments.size());
      for (std::size_t s = 0; s < a.segments.size(); ++s) {
        auto const &x = a.segments[s], &y = b.segments[s];
        EXPECT_TRUE(x.address == y.address && x.bytes == y.bytes && x.stream == y.stream && x.small == y.small);
        ASSERT_EQ(x.blocks.size(), y.blocks.size());
        for (std::size_t k = 0; k < x.blocks.size(); ++k) {
          EXPECT_TRUE(x.blocks[k].address == y.blocks[k].address && x.blocks[k].bytes == y.blocks[k].bytes &&
                      x.blocks[k].requested == y.blocks[k].requested && x.blocks[k].state == y.blocks[k].state);
          expect_alike(x.blocks[k].where, y.blocks[k].where);
        }
      }
      ASSERT_EQ(b.trace.size(), a.trace.size());
      for (std::size_t i = 0; i < a.trace.size(); ++i) {
        auto const &x = a.trace[i], &y = b.trace[i];
        ASSERT_TRUE(x.action == y.action && x.at == y.at && x.bytes == y.bytes && x.stream == y.stream &&
                    x.us == y.us && x.user == y.user)
            << i;
        expect_alike(x.where, y.where);
        ASSERT_EQ(y.stack != 0, x.stack != 0);
      }
      auto const with_stack = std::find_if(b.trace.begin(), b.trace.end(), [](auto const& e) { return e.stack != 0; });
      auto const its = std::find_if(read.stacks.begin(), read.stacks.end(),
                                    [&](auto const& s) { return s.number == with_stack->stack; });
      ASSERT_NE(its, read.stacks.end());
      ASSERT_EQ(its->frames.size(), 3u) << "the program's line, and the frames outside it";
      EXPECT_EQ(its->frames[2].name + its->frames[2].file, "outermostm.cpp");
    }
  }
}

std::string refusal(std::string const& bytes) {
  try {
    (void)read_snapshot(bytes, "a.pickle");
    return "";
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.what()).find("a.pickle, byte "), std::string::npos) << e.what();
    return e.what();
  }
}

TEST(unpickle, a_file_cut_anywhere_is_refused) {
  std::mt19937_64 random(1);
  std::string const whole = snapshot(two_devices(random, 20, 3), stacks, "settings");
  ASSERT_EQ(refusal(whole), "");
  for (std::size_t n = 0; n < whole.size(); n += tests::sanitized ? 1 + random() % 16 : 1)
    ASSERT_NE(refusal(whole.substr(0, n)), "") << n;
}

TEST(unpickle, a_file_with_changed_bytes_is_read_or_refused) {
  int refused = 0;
  for (std::uint64_t const seed : tests::seeds("changed pickle", 300)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::string bytes = snapshot(two_devices(random, 10), stacks, "settings");
    for (std::uint64_t k = 1 + random() % 3; k-- > 0;)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    refused += !refusal(bytes).empty();
  }
  EXPECT_TRUE(refused > 0 || std::getenv("WEIR_TEST_SEED"));
}

TEST(unpickle, refuses_other_files_by_name) {
  EXPECT_NE(refusal("{\"segments\": []}").find("byte 0: this is not a pickle"), std::string::npos);
  EXPECT_NE(refusal("\x80\x02"
                    "cos\nsystem\n(S'ls'\ntR.")
                .find("byte 2: opcode 99"),
            std::string::npos)
      << refusal(
             "\x80\x02"
             "cos\nsystem\n(S'ls'\ntR.");
  EXPECT_NE(refusal("\x80\x02]q\x05.").find("byte 5: number 5 is stored out of order"), std::string::npos);
  EXPECT_NE(refusal("\x80\x02}.").find("'segments' is missing"), std::string::npos);
  EXPECT_NE(refusal(std::string("\x80\x02}(X\x08\0\0\0segmentsK\x01u.", 21)).find("'segments' has another type"),
            std::string::npos);
}

// More values than a snapshot of that length can have are rejected before they use memory.
TEST(unpickle, more_values_than_fit_its_length_are_refused) {
  for (std::string const code : {"]", "}", ")", "N", "\x88", "(", "K\x01"}) {
    std::string bytes = "\x80\x02";
    while (bytes.size() < 1'000'000)
      bytes += code;
    std::string const said = refusal(bytes);
    EXPECT_NE(said.find("more values than a snapshot of its length"), std::string::npos) << code << said;
    EXPECT_LT(std::stoul(said.substr(said.find("byte ") + 5)), 100'000u) << said;
  }
  std::string bytes = "\x80\x04]";
  bytes.append(1'000'000, '\x94');
  EXPECT_NE(refusal(bytes).find("more values"), std::string::npos) << "what is remembered";
  bytes = "\x80\x04";
  for (int i = 0; i < 100'000; ++i)
    bytes += "\x8c\x03", bytes += static_cast<char>('a' + i % 26), bytes += static_cast<char>('a' + i / 26 % 26),
        bytes += static_cast<char>('!' + i / 676);
  EXPECT_NE(refusal(bytes).find("more values"), std::string::npos) << "texts";
}

TEST(unpickle, words_of_a_file_are_printed_without_controls) {
  std::string const said = refusal(
      "\x80\x04}(\x8c\x06"
      "action\x8c\x08"
      "\x1b[31mred\x8c\x04"
      "addrK\x01"
      "u.");
  EXPECT_NE(said.find("the action '?[31mred' is unknown"), std::string::npos) << said;
}

// Python 3.11's pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "addr": 4096, "size":
// 10, "stream": 0, "frames": [{"name": "f", "filename": "a.py", "line": 3}]}]]}, protocol=4).
TEST(unpickle, reads_pythons_pickles) {
  using namespace std::string_literals;
  std::string const bytes =
      "\x80\x04\x95\x91\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x08segments\x94]\x94\x8c\x0d"
      "device_traces\x94]\x94]\x94}\x94(\x8c\x06"
      "action\x94\x8c\x05"
      "a"
      "lloc\x94\x8c\x04"
      "addr\x94M\x00\x10\x8c\x04size\x94K\x0a\x8c\x06stream\x94K\x00\x8c\x06"
      "frames\x94]\x94}\x94(\x8c\x04name\x94\x8c\x01"
      "f\x94\x8c\x08"
      "filename\x94\x8c\x04"
      "a.py\x94\x8c\x04line\x94K\x03uauaau."s;
  auto const read = read_snapshot(bytes, "a.pickle");
  ASSERT_EQ(read.devices.size(), 1u);
  ASSERT_EQ(read.devices[0].trace.size(), 1u);
  auto const& e = read.devices[0].trace[0];
  EXPECT_TRUE(e.action == "alloc" && e.at == 4096 && e.bytes == 10 && e.where.line() == 3);
  EXPECT_STREQ(e.where.file_name(), "a.py");
}

// PyTorch writes a list of frames for each event, and the same again for the next event of that line.
std::string of_a_program_with_deep_stacks(std::size_t events, std::size_t lines) {
  std::vector<stack_of> deep;
  device_snapshot d{0, {}, {}};
  for (std::size_t i = 0; i < events; ++i) {
    stack_of& s = deep.emplace_back(stack_of{static_cast<std::uint32_t>(i + 1), {}});
    s.frames.push_back({"torch::unwind::unwind()", "??", 0});
    for (std::uint32_t f = 0; f < 40; ++f)
      s.frames.push_back({"at::_ops::call_" + std::to_string(f), "??", 0});
    s.frames.push_back({"forward", "/p/site-packages/torch/nn/modules/module.py", 1097});
    s.frames.push_back({"train", "/home/me/train.py", static_cast<std::uint32_t>(1 + i % lines)});
    d.trace.push_back({"alloc", 0x1000 * (i + 1), 512, 0, static_cast<std::int64_t>(i), {}, s.number});
  }
  return snapshot({&d, 1}, deep, "");
}

TEST(unpickle, stacks_are_compared_by_their_frames) {
  auto const read = read_snapshot(of_a_program_with_deep_stacks(60, 3), "a.pickle");
  EXPECT_EQ(read.stacks.size(), 3u);
  auto const& t = read.devices[0].trace;
  ASSERT_EQ(t.size(), 60u);
  for (std::size_t i = 3; i < t.size(); ++i) {
    EXPECT_EQ(t[i].stack, t[i - 3].stack);
    EXPECT_NE(t[i].stack, t[i - 1].stack);
  }
}

TEST(unpickle, an_event_has_the_line_of_the_program) {
  auto const read = read_snapshot(of_a_program_with_deep_stacks(2, 2), "a.pickle");
  trace_entry const& e = read.devices[0].trace[1];
  EXPECT_STREQ(e.where.file_name(), "/home/me/train.py");
  EXPECT_EQ(e.where.line(), 2u);
  EXPECT_EQ(read.stacks[e.stack - 1].frames.size(), 43u) << "all frames, in their order";
}

// 100,000 events take at most 5 MB beside the page's own text, so 2,000 take at most 50 KB.
TEST(unpickle, a_page_has_each_frame_once) {
  auto const read = read_snapshot(of_a_program_with_deep_stacks(2'000, 50), "a.pickle");
  std::string const text = page(read.devices, read.stacks, "a program");
  EXPECT_LT(text.size() - page({}, {}, "a program").size(), 50'000u);
  std::size_t times = 0;
  for (std::size_t at = 0; (at = text.find("call_17", at)) != text.npos; ++at)
    ++times;
  EXPECT_EQ(times, 1u);
}

}  // namespace
}  // namespace weir::report
