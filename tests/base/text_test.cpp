// Text for a person, for a terminal and for JSON.
// Threads: one.
#include "runtime/base/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weir::base {
namespace {

constexpr std::string_view options[] = {"device_limit", "pinned_limit", "address_space", "epsilon", "log"};

TEST(text, the_nearest_word_is_one_that_is_near) {
  EXPECT_EQ(near("device_limt", options), "device_limit");
  EXPECT_EQ(near("pinned-limits", options), "pinned_limit");
  EXPECT_EQ(near("epsilno", options), "epsilon");
  EXPECT_EQ(near("address", options), "address_space");
  for (char const* far : {"max_split_size_mb", "garbage_collection_threshold", "x", "", "on"}) {
    EXPECT_EQ(near(far, options), std::nullopt) << far;
  }
  EXPECT_EQ(near(std::string(1 << 20, 'x'), options), std::nullopt);
  EXPECT_EQ(did_you_mean("lgo", options, "WEIR_CONF="), "Did you mean WEIR_CONF=log? ");
  EXPECT_EQ(did_you_mean("backend", options), "");
}

TEST(text, control_characters_are_question_marks) {
  EXPECT_EQ(visible("plain.cpp:7"), "plain.cpp:7");
  EXPECT_EQ(visible("größe-大-🙂.cpp"), "größe-大-🙂.cpp");
  EXPECT_EQ(visible(std::string_view("\x1b]0;title\x07 a\nb\tc\x7f\0d", 19)), "?]0;title? a?b?c??d");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "??31m")
      << "CSI as one character";
  EXPECT_EQ(visible("\x9b"
                    "31m \xff\xc3"),
            "?31m ??")
      << "no UTF-8";
  EXPECT_EQ(visible("\xe0\x82\x9b \xf0\x80\x82\x9b"), "??? ????") << "CSI in more bytes than it needs";
  EXPECT_EQ(visible("\xed\xa0\x80 \xf4\x90\x80\x80"), "??? ????") << "half a pair; past the last character";
  EXPECT_EQ(visible("\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"),
            "\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf")
      << "the nearest characters";
}

TEST(text, json_has_no_number_that_is_infinite_or_none) {
  EXPECT_EQ(json_number(1.0 / 3, 2), "0.33");
  EXPECT_EQ(json_number(1e300, 0).size(), 301u);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (double const bad : {std::nan(""), infinity, -infinity})
    EXPECT_EQ(json_number(bad, 2), "null");
  EXPECT_EQ(json_text("a\"b\\c\n</script>"), "\"a\\u0022b\\u005cc\\u000a\\u003c/script\\u003e\"");
}

}  // namespace
}  // namespace weir::base
