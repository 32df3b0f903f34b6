// What a thread remembers of pinned blocks that it copies again and again: it is never believed for longer
// than it holds, and every use is noted as if nothing were remembered.
// Threads: order is proved by gates, never by time.
#include <thread>

#include "streams/pinned/use_cache.h"
#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

using test::held;
using test::pattern;

source_location const line_ = source_location::current();
constexpr std::size_t all = 2_MiB;  // a whole segment, so that another block needs another

struct remembered : ::testing::Test {
  test::machine m;
  streams::pinned_memory& pool = m.pinned();
  stream s{device(0)}, t{device(0)};
  buffer gpu{all, {.on = device(0)}};
  void* block = pool.allocate(all, 0, line_);

  void fence(stream_ref on) { ASSERT_TRUE(streams::clock_of(on).fence().ok()); }  // stamps from now on are later ones
  bool waits() {  // is it kept for work that has not come to its end?
    auto const pending = [&] { return pool.statistics().pending_bytes.all.current != 0; };
    if (!pending())
      return false;
    pool.trim();  // asks
    return pending();
  }
  ~remembered() override { EXPECT_EQ(pool.validate(), std::vector<std::string>{}); }
};

// Also when the block is known.
TEST_F(remembered, each_copy_is_noted_between_fences) {
  for (int i = 0; i < 3; ++i) {
    copy(s, gpu.data(), block, all, non_blocking);
    fence(s);
  }
  s.synchronize();
  held gate(m, s);
  copy(s, gpu.data(), block, all, non_blocking);
  pool.deallocate(block, line_);
  EXPECT_TRUE(waits()) << "the last copy still reads it";
  gate.open();
  s.synchronize();
  EXPECT_FALSE(waits());
}

TEST_F(remembered, each_streams_use_is_noted_for_itself) {
  buffer theirs(all, {.on = device(0)});
  auto const read = [&](stream& on) { copy(on, &on == &s ? gpu.data() : theirs.data(), block, all, non_blocking); };
  for (auto* on : {&s, &t, &s, &t})
    read(*on);
  s.synchronize();
  t.synchronize();
  for (stream* last : {&s, &t}) {
    fence(s), fence(t);
    held gate(m, *last);
    copy(*last, block, last == &s ? gpu.data() : theirs.data(), all, non_blocking);
    pool.deallocate(block, line_);
    (last == &s ? t : s).synchronize();
    for (int i = 0; i < 3; ++i)
      EXPECT_TRUE(waits());  // however often the other one is asked
    gate.open();
    last->synchronize();
    EXPECT_FALSE(waits());
    block = pool.allocate(all, 0, line_);
    read(s), read(t);
    s.synchronize();
    t.synchronize();
  }
  pool.deallocate(block, line_);
}

// The list of a block's users is looked over at 4, 8, 16...: only ended streams may leave it.
TEST_F(remembered, many_streams_uses_are_all_noted) {
  std::vector<stream> users;
  for (int i = 0; i < 9; ++i)
    users.emplace_back(device(0));
  auto const read = [&](std::size_t i) { copy(users[i], gpu.data<std::byte>() + i * 4096, block, 4096, non_blocking); };
  held gate(m, users[0]);
  for (std::size_t i = 0; i < users.size(); ++i)
    read(i);
  for (std::size_t i = 1; i < users.size(); ++i)
    users[i].synchronize();
  pool.deallocate(block, line_);
  EXPECT_TRUE(waits()) << "the first one still reads it";
  gate.open();
  users[0].synchronize();
  EXPECT_FALSE(waits());
}

TEST_F(remembered, a_freed_block_is_refused_and_its_place_known_anew) {
  copy(s, gpu.data(), block, all);
  copy(s, gpu.data(), block, all);
  pool.deallocate(block, line_);
  EXPECT_THROW(copy(s, gpu.data(), block, all), invalid_use);
  EXPECT_THROW(copy(s, gpu.data(), block, 16), invalid_use);
  void* const smaller = pool.allocate(all / 2, 0, line_);
  ASSERT_EQ(smaller, block);
  copy(s, gpu.data(), block, all / 2);
  EXPECT_THROW(copy(s, gpu.data(), block, all), invalid_use) << "half of it is not allocated";
  EXPECT_THROW(weir::copy(s, static_cast<std::byte*>(block) + all / 2 - 8, gpu.data<std::byte>(), 9), invalid_use);
  pool.deallocate(block, line_);
}

TEST_F(remembered, more_blocks_than_a_thread_remembers_are_all_noted) {
  std::vector<void*> many;
  for (int i = 0; i < 20; ++i)
    many.push_back(pool.allocate(4096, 0, line_));
  held gate(m, s);
  for (int round = 0; round < 2; ++round) {
    for (void* const one : many)
      copy(s, gpu.data(), one, 4096, non_blocking);
  }
  for (void* const one : many)
    pool.deallocate(one, line_);
  EXPECT_EQ(pool.statistics().pending_bytes.all.current, 20 * 4096);
  pool.deallocate(block, line_);
}

// A program that copies a block while another of its threads frees it is wrong: all that must not happen is
// that some later block waits for a stamp that never comes.
TEST_F(remembered, a_late_use_keeps_no_later_block_away) {
  streams::pinned_uses mine;
  auto const* const stale = pool.look(block, all, streams::clock_of(s).id(), mine);
  ASSERT_TRUE(stale);
  pool.deallocate(block, line_);
  ASSERT_EQ(pool.allocate(all, 0, line_), block);
  copy(t, gpu.data(), block, all, non_blocking);
  streams::pinned_memory::record_use(*stale, {stale->stream, std::uint64_t{1} << 40});
  pool.deallocate(block, line_);
  t.synchronize();
  EXPECT_FALSE(waits());
}

TEST_F(remembered, many_in_one_call_are_noted_in_every_block) {
  constexpr std::size_t n = 4096;
  auto* const host = static_cast<std::byte*>(block);
  buffer other = pinned(8 * n), back = pinned(8 * n);
  auto const source = pattern(8 * n, 3);
  std::memcpy(host, source.data(), source.size());
  std::vector<copy_item> items;
  for (std::size_t i = 0; i < 8; ++i)
    items.push_back({gpu.data<std::byte>() + i * n, host + i * n, n});  // up
  // within
  for (std::size_t i = 0; i < 8; ++i)
    items.push_back({gpu.data<std::byte>() + (i + 8) * n, gpu.data<std::byte>() + i * n, n});
  items.push_back({nullptr, nullptr, 0});
  // down, two blocks in turn
  for (std::size_t i = 0; i < 8; ++i)
    items.push_back({(i % 2 ? other : back).data<std::byte>() + i * n, gpu.data<std::byte>() + (i + 8) * n, n});
  {
    held gate(m, s);
    copy(s, items, non_blocking);
    pool.deallocate(block, line_);
    EXPECT_EQ(pool.statistics().pending_bytes.all.current, std::int64_t(all));
  }
  s.synchronize();
  for (std::size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(std::memcmp((i % 2 ? other : back).data<std::byte>() + i * n, source.data() + i * n, n), 0) << i;
  }
  items[3].bytes = all;  // past the end of both
  EXPECT_THROW(copy(s, items), invalid_use);
}

TEST_F(remembered, threads_on_one_stream_note_the_newest_use) {
  std::vector<std::thread> workers;
  for (int i = 0; i < 4; ++i) {
    workers.emplace_back([&, i] {
      runtime_guard const in(m.own);
      for (int k = 0; k < 50; ++k) {
        copy(s, gpu.data(), block, 4096, non_blocking);
        if (k % 8 == i)
          fence(s);
      }
    });
  }
  for (auto& one : workers)
    one.join();
  s.synchronize();
  fence(s);
  held gate(m, s);
  copy(s, gpu.data(), block, 4096, non_blocking);
  pool.deallocate(block, line_);
  EXPECT_TRUE(waits());
}

}  // namespace
}  // namespace weir
