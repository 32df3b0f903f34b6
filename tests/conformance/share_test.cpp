// Rule M19 of docs/reference/simulated-machine.md, on every machine: memory that other processes may map.
#include <fcntl.h>
#include <unistd.h>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class share : public conformance {
 protected:
  // Maps the handle at its own address, accessible to the device. The fixture unmaps it.
  block mapped(int device, memory_handle h, std::size_t bytes) {
    auto const at = machine().reserve(bytes, page());
    EXPECT_OK(at.is);
    EXPECT_OK(machine().map(at.value, bytes, h));
    EXPECT_OK(machine().grant(at.value, bytes, device));
    made_.push_back({device, at.value, bytes, h});
    return made_.back();
  }
  void unmap(block const& b) {
    EXPECT_OK(machine().unmap(b.at, b.bytes));
    EXPECT_OK(machine().unreserve(b.at, b.bytes));
    std::erase_if(made_, [&](block const& one) { return one.at == b.at; });
  }
  void TearDown() override {
    for (auto const b : std::vector(made_))
      unmap(b);
    conformance::TearDown();
  }

 private:
  std::vector<block> made_;
};
WEIR_CONFORMANCE(share);

TEST_P(share, m19_an_import_shows_the_same_bytes_and_keeps_them) {
  NEED_DEVICES(1);
  auto const h = machine().create_shared(0, page());
  ASSERT_OK(h.is);
  auto const file = machine().export_handle(h.value);
  ASSERT_OK(file.is);
  auto const again = machine().import_handle(0, page(), file.value);
  ASSERT_OK(again.is);
  EXPECT_EQ(::close(file.value), 0) << "the file stays the caller's";
  auto const mine = mapped(0, h.value, page()), theirs = mapped(0, again.value, page());
  write(mine, 71);
  EXPECT_EQ(read(theirs), 71u);
  write(theirs, 72, 5);
  EXPECT_EQ(read(mine, 5), 72u);
  // The memory outlives its exporter's handle.
  unmap(mine);
  EXPECT_OK(machine().release(h.value));
  EXPECT_EQ(read(theirs), 71u);
  EXPECT_EQ(read(theirs, 5), 72u);
  unmap(theirs);
  EXPECT_OK(machine().release(again.value));
}

TEST_P(share, m19_a_handle_of_the_best_size_is_mapped_as_any) {
  NEED_DEVICES(1);
  auto const about = machine().info(0);
  ASSERT_OK(about.is);
  std::size_t const unit = about.value.shared_granularity;
  EXPECT_GE(unit, about.value.granularity);
  EXPECT_EQ(unit % about.value.granularity, 0u);
  auto const h = machine().create_shared(0, 3 * unit);
  ASSERT_OK(h.is);
  auto const all = mapped(0, h.value, 3 * unit);
  std::size_t const last_word = 3 * unit / 4 - 1;
  write(all, 71, last_word);
  EXPECT_EQ(read(all, last_word), 71u);
  unmap(all);
  EXPECT_OK(machine().release(h.value));
}

TEST_P(share, m19_only_memory_that_was_made_for_it_is_exported) {
  NEED_DEVICES(1);
  auto const plain = machine().create(0, page());
  ASSERT_OK(plain.is);
  EXPECT_SAYS(code::invalid, machine().export_handle(plain.value).is);
  EXPECT_OK(machine().release(plain.value));
  EXPECT_SAYS(code::invalid, machine().export_handle(plain.value).is);
}

TEST_P(share, m19_other_files_are_refused) {
  NEED_DEVICES(1);
  int const file = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  EXPECT_SAYS(code::invalid, machine().import_handle(0, page(), file).is);
  EXPECT_EQ(::close(file), 0);
  EXPECT_SAYS(code::invalid, machine().import_handle(0, page(), file).is) << "closed";
  EXPECT_SAYS(code::invalid, machine().import_handle(0, page(), -1).is);
}

// The machine refuses it at the latest when it is mapped.
TEST_P(share, m19_an_import_of_another_size_is_refused) {
  NEED_DEVICES(1);
  auto const h = machine().create_shared(0, page());
  ASSERT_OK(h.is);
  auto const file = machine().export_handle(h.value);
  ASSERT_OK(file.is);
  auto const larger = machine().import_handle(0, 2 * page(), file.value);
  if (larger.ok()) {
    auto const at = machine().reserve(2 * page(), page());
    ASSERT_OK(at.is);
    auto const is = machine().map(at.value, 2 * page(), larger.value);
    EXPECT_TRUE(is.what == code::invalid || is.what == code::not_supported)
        << "CUDA 13 says the latter; " << name_of(is.what);
    EXPECT_OK(machine().unreserve(at.value, 2 * page()));
    EXPECT_OK(machine().release(larger.value));
  } else {
    EXPECT_SAYS(code::invalid, larger.is);
  }
  EXPECT_EQ(::close(file.value), 0);
  EXPECT_OK(machine().release(h.value));
}

TEST_P(share, m19_another_device_reads_granted_memory) {
  NEED_DEVICES(2);
  auto const peer = machine().peer(1, 0);
  if (!peer.value.access)
    GTEST_SKIP() << "these devices do not reach each other";
  auto const h = machine().create_shared(0, page());
  ASSERT_OK(h.is);
  auto const file = machine().export_handle(h.value);
  ASSERT_OK(file.is);
  auto const again = machine().import_handle(0, page(), file.value);
  ASSERT_OK(again.is);
  EXPECT_EQ(::close(file.value), 0);
  auto const mine = mapped(0, h.value, page()), theirs = mapped(0, again.value, page());
  EXPECT_OK(machine().grant(theirs.at, page(), 1));
  write(mine, 81);
  auto const to = memory(1);
  auto const s = stream(1);
  EXPECT_OK(machine().copy(1, s, to.words(), theirs.words(), 64));
  finish(1, s);
  EXPECT_EQ(read(to), 81u);
  unmap(mine);
  unmap(theirs);
  EXPECT_OK(machine().release(h.value));
  EXPECT_OK(machine().release(again.value));
}

}  // namespace
}  // namespace weir::conformance
