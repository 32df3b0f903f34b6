// Pickle: the bytes of each opcode, and memo references to earlier values.
// Threads: one.
#include "runtime/report/pickle.h"

#include <gtest/gtest.h>

namespace weir::report {
namespace {

using namespace std::string_literals;

std::string of(auto write) {
  pickle p;
  write(p);
  return std::move(p).finish();
}

TEST(pickle, numbers_take_the_shortest_known_opcode) {
  EXPECT_EQ(of([](pickle& p) { p.number(7); }), "\x80\x02K\x07."s);
  EXPECT_EQ(of([](pickle& p) { p.number(0x1234); }), "\x80\x02M\x34\x12."s);
  EXPECT_EQ(of([](pickle& p) { p.number(-1); }), "\x80\x02J\xff\xff\xff\xff."s);
  EXPECT_EQ(of([](pickle& p) { p.number(std::int64_t{1} << 40); }), "\x80\x02\x8a\x08\0\0\0\0\0\x01\0\0."s);
  EXPECT_EQ(of([](pickle& p) { p.truth(true); }), "\x80\x02\x88."s);
  EXPECT_EQ(of([](pickle& p) { p.pair(1, 2); }), "\x80\x02K\x01K\x02\x86."s);
}

TEST(pickle, a_text_is_written_once) {
  EXPECT_EQ(of([](pickle& p) { p.open_list().text("ab").text("ab").close_list(); }),
            "\x80\x02](X\x02\0\0\0abq\0h\0e."s);
}

TEST(pickle, the_257th_name_is_a_long_one) {
  std::string const all = of([](pickle& p) {
    p.open_list();
    for (int i = 0; i < 257; ++i)
      p.text(std::to_string(i));
    p.text("256").close_list();
  });
  EXPECT_TRUE(all.ends_with("r\0\x01\0\0j\0\x01\0\0e."s));
}

TEST(pickle, dicts_hold_pairs) {
  EXPECT_EQ(of([](pickle& p) { p.open_dict().key("a").number(1).close_dict(); }), "\x80\x02}(X\x01\0\0\0aq\0K\x01u."s);
}

}  // namespace
}  // namespace weir::report
