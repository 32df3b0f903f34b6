// Files that others wrote, and files that are damaged or hostile: the reader refuses them, and names what and
// why.
// WEIR_TEST_SEEDS=n damages n files at random (500 by default); WEIR_TEST_SEED=k that one.
// Threads: one.
#include <sys/stat.h>

#include <cstring>
#include <random>

#include "runtime/base/os_file.h"
#include "tests/checkpoint/files.h"
#include "tests/support/refused.h"
#include "tests/support/seeds.h"

namespace weir {
namespace {

using namespace weir::test;

struct checkpoint_reader_of : in_a_folder {
  runtime machine{simulated{.devices = 1, .memory = 64_MiB}};
  runtime_guard const in{machine};

  std::string refused_text(std::string const& bytes) const {
    write_file(file(), bytes);
    return unreadable([&] { checkpoint_reader const r(file()); });
  }
};

constexpr char const* two_items =
    R"({"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})";

TEST_F(checkpoint_reader_of, a_file_of_another_program_reads_it) {
  write_file(file(), safetensors(two_items, std::string("\1\2\3\4\5\0\0\0\6\0\0\0", 12)));
  checkpoint_reader const r(file());
  EXPECT_FALSE(r.has_checksums());
  ASSERT_EQ(r.entries().size(), 2u);
  EXPECT_EQ(r.entries()[0].name, "a");
  EXPECT_EQ(r.find("b")->extents, shape({2}));
  EXPECT_EQ(r.find("c"), nullptr);
  tensor const a = r.read("a", cpu), b = r.read("b").cpu();
  EXPECT_EQ(a.host<std::uint8_t>()[3], 4);
  EXPECT_EQ(b.host<std::int32_t>()[1], 6);
  r.check();
}

// A scalar, an item without elements, an empty file of items, and spaces behind the header are all right.
TEST_F(checkpoint_reader_of, odd_shapes_reads_them) {
  write_file(file(),
             safetensors(R"({"none":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]},)"
                         R"("one":{"dtype":"I16","shape":[],"data_offsets":[0,2]},"__metadata__":{"é":"\"✓"}}   )",
                         std::string("\7\0", 2)));
  checkpoint_reader const r(file());
  EXPECT_EQ(r.read("one", cpu).item<std::int16_t>(), 7);
  EXPECT_EQ(r.read("none", cpu).numel(), 0);
  EXPECT_EQ(r.metadata().at("é"), "\"✓");
  write_file(file(), safetensors("{}", ""));
  EXPECT_TRUE(checkpoint_reader(file()).entries().empty());
}

TEST_F(checkpoint_reader_of, hostile_headers_names_what_is_wrong) {
  auto const item = [](std::string const& fields) { return safetensors("{\"x\":{" + fields + "}}", "1234"); };
  std::string const head(100, '[');
  std::pair<std::string, char const*> const all[] = {
      {"", "it has 0 B"},
      {"1234567", "it has 7 B"},
      {std::string(7, '\0') + "\x10", "a header of 1152921504606846976 B in a file of 8 B"},
      {std::string(8, '\xff') + "{}", "a header of 18446744073709551615 B"},
      {safetensors("{}", "").replace(0, 1, "\3"), "a header of 3 B in a file of 10 B"},
      {safetensors("", ""), "does not begin with {"},
      {safetensors("[]", ""), "does not begin with {"},
      {safetensors("{\"x\"", ""), "no JSON, or not UTF-8"},
      {safetensors("{} {}", ""), "no JSON, or not UTF-8"},
      {safetensors("{\"\xff\":{}}", ""), "no JSON, or not UTF-8"},
      {safetensors("{\"x\":" + head, ""), "a list where none belongs"},
      {safetensors(R"({"x":5})", ""), "a number where none belongs"},
      {safetensors(R"({"x":"y"})", ""), "a text where none belongs"},
      {safetensors(R"({"x":null})", ""), "null"},
      {safetensors(R"({"__metadata__":{"a":1}})", ""), "a number where none belongs"},
      {safetensors(R"({"__metadata__":{"a":{}}})", ""), "an object within an item"},
      {safetensors(R"({"__metadata__":{"a":"1","a":"2"}})", ""), "a text twice"},
      {safetensors(R"({"__metadata__":{},"__metadata__":{"a":"1"}})", ""), "\"__metadata__\" has a second object"},
      {item(R"("dtype":"U8","shape":[4])"), "no dtype, no shape or no data_offsets"},
      {item(R"("dtype":"U8","shape":[4],"data_offsets":[0])"), "data_offsets that are not two"},
      {item(R"("dtype":"U8","shape":[4],"shape":[4],"data_offsets":[0,4])"), "a field twice"},
      {item(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), "a list where none belongs"},
      {item(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"), "a negative number"},
      {item(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "a number that is not whole"},
      {item(R"("dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,4])"), "a number that is not whole"},
      {item(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4])"), "a shape that no file can hold"},
      {item(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), "a shape that no file can hold"},
      {item(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,4])"), "more than 8 extents"},
      {item(R"("dtype":"F99","shape":[4],"data_offsets":[0,4])"), "the dtype \"F99\""},
      {item(R"("dtype":"F64","shape":[4],"data_offsets":[0,4])"), "its shape and dtype need 32 B"},
      {item(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])"), "offsets 4 to 0"},
      {item(R"("dtype":"U8","shape":[8],"data_offsets":[0,8])"), "\"x\" ends at 8, and the file has 4 B"},
      {item(R"("dtype":"U8","shape":[4],"data_offsets":[18446744073709551612,18446744073709551615])"), "need 4 B"},
      {item(R"("dtype":"U8","shape":[4],"data_offsets":[1,5])"), "\"x\" begins at 1, and the item before it ends at 0"},
      {item(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), "its items have 2 B, and the file has 4 B"},
      {safetensors(
           R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
           "123"),
       "\"y\" begins at 1"},
      {safetensors(
           R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"x":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
           "1234"),
       "\"x\" is there twice"},
      {safetensors(R"({"__metadata__":{"weir.crc32":"0"}})", ""), "the checksums in its metadata"},
      {safetensors(R"({"__metadata__":{"weir.crc32":""}})", ""), "the checksums in its metadata"},
      {safetensors(R"({"__metadata__":{"weir.crc32":"00000001"}})", ""), "the checksums in its metadata"},
      {safetensors(R"({"__metadata__":{"weir.crc32":"ffffffff 00000000"}})", ""), "the checksums in its metadata"},
      {safetensors(R"({"__metadata__":{"weir.crc32":"00000001 00000000"}})", ""), "the checksum of its metadata"},
  };
  for (auto const& [bytes, why] : all) {
    std::string const text = refused_text(bytes);
    EXPECT_NE(text.find(why), std::string::npos) << why << ": " << text;
    EXPECT_NE(text.find(file().string()), std::string::npos) << text;
  }
  std::string const text = refused_text(item(R"("dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4])"));
  EXPECT_NE(text.find("let another program write this one in types that weir has"), std::string::npos) << text;
}

TEST_F(checkpoint_reader_of, what_is_no_file_names_it) {
  auto const says = [](std::filesystem::path const& p) { return unreadable([&] { checkpoint_reader const r(p); }); };
  EXPECT_NE(says(file()).find("No such file"), std::string::npos);
  EXPECT_NE(says(folder_).find("is no regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_NE(says(file()).find("is no regular file"), std::string::npos);
}

// A file whose length is a lie of the file system's own kind: it shrinks after it was opened.
TEST_F(checkpoint_reader_of, a_file_that_shrinks_says_so) {
  write_file(file(), safetensors(two_items, std::string(12, 'x')));
  checkpoint_reader const r(file());
  std::filesystem::resize_file(file(), std::filesystem::file_size(file()) - 1);
  EXPECT_NE(unreadable([&] { (void)r.read("b"); }).find("has become shorter"), std::string::npos);
}

TEST_F(checkpoint_reader_of, wrong_memory_refuses_it) {
  write_file(file(), safetensors(two_items, std::string(12, 'x')));
  checkpoint_reader const r(file());
  std::int32_t two[2] = {};
  EXPECT_NE(unreadable([&] { r.read("c", {two, 2, int32}); }).find("has no item \"c\""), std::string::npos);
  EXPECT_NE(refused([&] { r.read("b", {two, 2, float32}); }).find("of int32, for float32"), std::string::npos);
  EXPECT_NE(refused([&] { r.read("b", {two, 1, int32}); }).find("for 1 elements"), std::string::npos);
  for (auto const& [count, first] : {std::pair{2, 1}, {-1, 0}, {1, -1}, {1, 2}})
    EXPECT_NE(refused([&] { r.read("b", {two, count, int32}, first); }).find("of 2 elements"), std::string::npos);
  r.read("b", {two, 0, int32}, 2);
  r.read("b", {two, 1, int32}, 1);
  EXPECT_EQ(two[0], 0x78787878);
  EXPECT_EQ(two[1], 0);
}

// Another program orders the items by its own rule, and adds a text. What weir wrote is still checked.
TEST_F(checkpoint_reader_of, a_file_saved_anew_by_others_checks_it) {
  std::uint8_t values[] = {1, 2, 3, 4, 5, 6};
  {
    checkpoint_writer w(file());
    w.save({{"a", {values, 4, uint8}, {4}}, {"b", {values + 4, 2, uint8}, {2}}}, {{"step", "3"}});
    w.finish();
  }
  std::string sums = bytes_of_file(file());
  sums.erase(0, sums.find("weir.crc32"));
  sums.erase(sums.find("\"}"));
  auto const anew = [&](std::string const& step, std::string const& items, std::string const& data) {
    write_file(
        file(),
        safetensors(R"({"__metadata__":{"format":"pt","step":")" + step + "\",\"" + sums + "\"}," + items, data));
  };
  std::string const b = R"("b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})",
                    a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]})";
  anew("3", b + "," + a + "}", "\5\6\1\2\3\4");
  checkpoint_reader const r(file());
  EXPECT_TRUE(r.has_checksums());
  EXPECT_EQ(r.metadata(), (checkpoint_metadata{{"format", "pt"}, {"step", "3"}}));
  r.check();
  EXPECT_EQ(r.read("a", cpu).host<std::uint8_t>()[3], 4);
  anew("3", b + "," + a + "}", "\5\6\1\2\3\5");
  EXPECT_NE(unreadable([&] { checkpoint_reader(file()).check(); }).find("of item \"a\""), std::string::npos);
  anew("4", b + "," + a + "}", "\5\6\1\2\3\4");
  EXPECT_NE(unreadable([&] { checkpoint_reader const other(file()); }).find("of its metadata"), std::string::npos);
  anew("3", b + "}", "\5\6");
  checkpoint_reader const less(file());
  EXPECT_FALSE(less.has_checksums());
  EXPECT_EQ(less.read("b", cpu).host<std::uint8_t>()[1], 6);
}

// Flips, cuts and lengthens a valid file at random. What is not refused has the values of the whole file.
TEST_F(checkpoint_reader_of, damaged_files_gives_no_wrong_value) {
  std::vector<float> values(300);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i);
  {
    checkpoint_writer w(file());
    w.save({{"weights", {values.data(), 300, float32}, {3, 100}}, {"bytes", {values.data(), 40, uint8}, {40}}},
           {{"step", "17"}, {"name", "a"}});
    w.finish();
  }
  std::string const whole = bytes_of_file(file());
  int refusals = 0, others = 0;
  for (auto const seed : tests::seeds("damaged_checkpoints", 500)) {
    std::mt19937_64 random(seed);
    std::string bytes = whole;
    for (std::uint64_t i = 0, n = 1 + random() % 3; i < n; ++i)
      bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
    if (random() % 8 == 0)
      bytes.resize(random() % (bytes.size() + 16));
    write_file(file(), bytes);
    try {
      checkpoint_reader const r(file());
      r.check();
      // A flip that turns off the checksums is seen as such.
      if (!r.has_checksums()) {
        ++others;
        continue;
      }
      tensor const t = r.read("weights", cpu);
      ASSERT_EQ(std::memcmp(t.data(), values.data(), t.nbytes()), 0) << "replay with WEIR_TEST_SEED=" << seed;
      ASSERT_EQ(r.metadata().at("step"), "17") << "replay with WEIR_TEST_SEED=" << seed;
    } catch (checkpoint_error const& e) {
      ++refusals;
      ASSERT_NE(std::string(e.what()).find(file().string()), std::string::npos) << e.what();
    }
  }
  if (refusals + others >= 500) {
    EXPECT_GT(refusals, 9 * others);
  }
}

}  // namespace
}  // namespace weir
