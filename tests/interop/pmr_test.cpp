// Containers of the standard library in pinned and pageable memory.
// Threads: one.
#include "weir/pmr.h"

#include <map>
#include <string>
#include <vector>

#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"
#include "weir/observe.h"

namespace weir {
namespace {

struct host_resource : ::testing::Test {
  test::machine m;
};

TEST_F(host_resource, a_vector_lies_in_pinned_memory) {
  {
    std::pmr::vector<float> v(pmr::pinned_memory());
    for (int i = 0; i < 1000; ++i)
      v.push_back(static_cast<float>(i));
    ASSERT_TRUE(find_block(v.data()));
    EXPECT_EQ(find_block(v.data())->kind, memory_kind::pinned);
    buffer const there(v.size() * sizeof(float));
    EXPECT_EQ(explain_copy(there.data(), v.data(), there.size()).by, copy_route::engine);
    copy(there.data(), v.data(), there.size());
    std::vector<float> back(v.size());
    copy(back.data(), there.data(), there.size());
    EXPECT_TRUE(std::equal(v.begin(), v.end(), back.begin()));
  }
  EXPECT_EQ(pinned_memory_stats().allocated_bytes.all.current, 0);
}

// The vector may end while a copy still reads it.
TEST_F(host_resource, a_copy_under_way_keeps_freed_memory) {
  stream s{device(0)};
  buffer const there(s, 2_MiB);
  test::held gate(m, s);
  {
    std::pmr::vector<std::byte> const v(2_MiB, std::byte{5}, pmr::pinned_memory());
    copy(s, there.data(), v.data(), v.size(), non_blocking);
  }
  EXPECT_EQ(pinned_memory_stats().pending_bytes.all.current, std::int64_t(2_MiB));
  gate.open();
  s.synchronize();
}

TEST_F(host_resource, nodes_and_strings_are_served_too) {
  for (std::pmr::memory_resource* r : {static_cast<std::pmr::memory_resource*>(pmr::pinned_memory()),
                                       static_cast<std::pmr::memory_resource*>(pmr::pageable_memory())}) {
    std::pmr::map<int, std::pmr::string> names(r);
    for (int i = 0; i < 100; ++i)
      names[i].assign(200, 'a');
    names.erase(50);
    EXPECT_EQ(names.size(), 99u);
    EXPECT_EQ(names[7].get_allocator().resource(), r);
  }
}

TEST_F(host_resource, alignment_is_as_asked) {
  for (size_t alignment : {size_t{1}, size_t{64}, size_t{4096}, size_t{65536}}) {
    void* const a = pmr::pinned_memory()->allocate(100, alignment);
    void* const b = pmr::pageable_memory()->allocate(100, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a) % alignment, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b) % alignment, 0u);
    pmr::pinned_memory()->deallocate(a, 100, alignment);
    pmr::pageable_memory()->deallocate(b, 100, alignment);
  }
}

TEST_F(host_resource, resources_of_one_kind_are_equal) {
  pmr::pinned_resource const other;
  pmr::pageable_resource const paged;
  EXPECT_TRUE(*pmr::pinned_memory() == other);
  EXPECT_TRUE(*pmr::pageable_memory() == paged);
  EXPECT_FALSE(other == paged);
  EXPECT_FALSE(paged == *std::pmr::new_delete_resource());
}

TEST(host_resource_limits, out_of_memory_is_a_bad_alloc) {
  test::machine const m({.devices = 1}, {.pinned_limit = 4_MiB});
  EXPECT_THROW(std::pmr::vector<std::byte>(8_MiB, pmr::pinned_memory()), std::bad_alloc);
  EXPECT_THROW((void)pmr::pageable_memory()->allocate(size_t{1} << 60), std::bad_alloc);
}

TEST_F(host_resource, wrong_alignments_and_pointers_are_refused) {
  test::refused([] { (void)pmr::pageable_memory()->allocate(100, 48); });
  int mine = 0;
  EXPECT_NE(test::refused([&] { pmr::pinned_memory()->deallocate(&mine, 4); }).find("not a live block"),
            std::string::npos);
  void* const p = pmr::pinned_memory()->allocate(100);
  pmr::pinned_memory()->deallocate(p, 100);
  test::refused([&] { pmr::pinned_memory()->deallocate(p, 100); });
}

}  // namespace
}  // namespace weir
