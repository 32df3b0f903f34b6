// Checksums are those of another implementation, whatever the processor folds, and wherever a value is cut.
// Threads: one.
#include "checkpoint/checksum.h"

#include <gtest/gtest.h>

#include <boost/crc.hpp>
#include <random>
#include <vector>

namespace weir::checksum_tests {
namespace {

using checkpoints::checksum;

TEST(checksums, are_crc_32) {
  checksum s;
  s.process_bytes("123456789", 9);
  EXPECT_EQ(s.value(), 0xcbf43926u);
  EXPECT_EQ(checksum().value(), 0u);
}

TEST(checksums, are_those_of_boost_for_any_length_place_and_cut) {
  std::mt19937 random(1);
  std::vector<unsigned char> bytes(100'000);
  for (unsigned char& b : bytes)
    b = static_cast<unsigned char>(random());
  for (int i = 0; i < 3000; ++i) {
    std::size_t const begin = random() % 300, all = random() % (i % 50 ? 400 : 90'000), cut = random() % (all + 1);
    checksum folded, by_tables;
    folded.process_bytes(bytes.data() + begin, cut);
    folded.process_bytes(bytes.data() + begin + cut, all - cut);
    by_tables.process_bytes_by_tables(bytes.data() + begin, all);
    boost::crc_32_type other;
    other.process_bytes(bytes.data() + begin, all);
    ASSERT_EQ(folded.value(), other.checksum()) << all << " bytes from " << begin << ", cut at " << cut;
    ASSERT_EQ(by_tables.value(), other.checksum()) << all << " bytes from " << begin;
  }
}

}  // namespace
}  // namespace weir::checksum_tests
