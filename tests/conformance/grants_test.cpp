// Rule M16 of docs/reference/simulated-machine.md, on every machine: which device a grant lets access memory.
#include <algorithm>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class grants : public conformance {};
WEIR_CONFORMANCE(grants);

TEST_P(grants, m16_a_grant_is_for_kernels_not_for_peer_copies) {
  NEED_DEVICES(2);
  int const n = std::min(machine().device_count(), 4);
  NEED_DEVICES(n);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i == j)
        continue;
      SCOPED_TRACE(std::to_string(i) + " -> " + std::to_string(j));
      auto const a = conformance::memory(i), b = conformance::memory(j);
      auto const s = stream(i);
      auto const mark = static_cast<std::uint32_t>(100 * i + j);
      write(a, mark);
      EXPECT_OK(machine().copy_peer(i, s, b.words(), j, a.words(), i, 4));
      finish(i, s);
      EXPECT_EQ(read(b), mark);
      auto const said = machine().peer(i, j);
      ASSERT_OK(said.is);
      if (!said.value.access)
        continue;
      EXPECT_SAYS(code::invalid, machine().copy(i, s, b.words(), a.words(), 4));
      EXPECT_OK(machine().grant(b.at, b.bytes, i));
      EXPECT_OK(machine().copy(i, s, b.words(), a.words(), 4));
      EXPECT_SAYS(code::invalid, machine().copy(j, stream(j), b.words(), a.words(), 4)) << "the grant has a direction";
      store(i, s, b.words() + 1, mark + 1);
      copy_word(i, s, a.words() + 1, b.words() + 1);
      finish(i, s);
      EXPECT_EQ(read(b, 1), mark + 1);
      EXPECT_EQ(read(a, 1), mark + 1);
    }
  }
}

TEST_P(grants, m16_one_call_grants_to_several_devices_or_to_none) {
  int const n = std::clamp(machine().device_count(), 2, 4);
  NEED_DEVICES(n);
  std::uint64_t readers = 1;
  for (int d = 1; d < n; ++d) {
    if (auto const said = machine().peer(d, 0); said.ok() && said.value.access)
      readers |= std::uint64_t{1} << d;
  }
  if (readers == 1)
    GTEST_SKIP() << "no device reaches device 0";
  auto const b = conformance::memory(0);
  write(b, 3);
  EXPECT_OK(machine().unmap(b.at, b.bytes));
  EXPECT_OK(machine().map(b.at, b.bytes, b.handle));
  EXPECT_SAYS(code::invalid, machine().grant_all(b.at, b.bytes, 0));
  EXPECT_SAYS(code::invalid, machine().grant_all(b.at, b.bytes / 2, readers));
  EXPECT_SAYS(code::invalid,
              machine().grant_all(b.at, b.bytes, readers | std::uint64_t{1} << machine().device_count()));
  for (int d = 1; d < n; ++d)
    EXPECT_SAYS(code::invalid, machine().copy(d, stream(d), conformance::memory(d).words(), b.words(), 4));
  EXPECT_OK(machine().grant_all(b.at, b.bytes, readers));
  EXPECT_EQ(read(b), 3u);
  for (int d = 1; d < n; ++d) {
    if (!(readers >> d & 1))
      continue;
    auto const mine = conformance::memory(d);
    auto const s = stream(d);
    EXPECT_OK(machine().copy(d, s, mine.words(), b.words(), 4));
    finish(d, s);
    EXPECT_EQ(read(mine), 3u) << "device " << d;
  }
}

// Memory of device 0 that begins with a 3, and some of device 1, which may be let in.
class granted_memory : public grants {
 protected:
  void SetUp() override {
    grants::SetUp();
    if (IsSkipped())
      return;
    NEED_DEVICES(2);
    if (auto const said = machine().peer(1, 0); !said.ok() || !said.value.access)
      GTEST_SKIP() << "device 1 does not reach device 0";
    s = stream(1);
    b = conformance::memory(0), mine = conformance::memory(1);
    write(b, 3);
  }
  stream_handle s{};
  block b, mine;
};
WEIR_CONFORMANCE(granted_memory);

TEST_P(granted_memory, m16_a_grant_is_of_one_mapping) {
  auto const second = machine().reserve(page(), 0);
  ASSERT_OK(second.is);
  EXPECT_OK(machine().map(second.value, page(), b.handle));
  EXPECT_OK(machine().grant(second.value, page(), 0));
  auto* const alias = reinterpret_cast<std::uint32_t*>(second.value);
  EXPECT_OK(machine().grant(b.at, b.bytes, 1));
  EXPECT_SAYS(code::invalid, machine().copy(1, s, mine.words(), alias, 4));
  EXPECT_OK(machine().copy(1, s, mine.words(), b.words(), 4));
  EXPECT_OK(machine().grant(second.value, page(), 1));
  EXPECT_OK(machine().copy(1, s, mine.words() + 1, alias, 4));
  finish(1, s);
  EXPECT_EQ(read(mine), 3u);
  EXPECT_EQ(read(mine, 1), 3u);
  EXPECT_OK(machine().unmap(second.value, page()));
  EXPECT_OK(machine().unreserve(second.value, page()));
}

TEST_P(granted_memory, m16_a_grant_ends_with_its_mapping) {
  EXPECT_OK(machine().grant(b.at, b.bytes, 1));
  copy_word(1, s, mine.words(), b.words());
  finish(1, s);
  EXPECT_EQ(read(mine), 3u);
  EXPECT_OK(machine().unmap(b.at, b.bytes));
  EXPECT_OK(machine().map(b.at, b.bytes, b.handle));
  EXPECT_OK(machine().grant(b.at, b.bytes, 0));
  EXPECT_SAYS(code::invalid, machine().copy(1, s, mine.words() + 1, b.words(), 4));
  EXPECT_OK(machine().copy_peer(1, s, mine.words() + 1, 1, b.words(), 0, 4));
  finish(1, s);
  EXPECT_EQ(read(mine, 1), 3u);
}

}  // namespace
}  // namespace weir::conformance
