// Sharing on GPUs if there are any, else on simulated devices. The importer reads on the same device and on
// another.
// Threads: one; the other process has its own.
#include <algorithm>
#include <memory>
#include <optional>

#include "peer/share/exports.h"
#include "tests/peer/machine_fixture.h"
#include "tests/peer/other_process.h"
#include "weir/ring.h"

namespace weir::sharing_on_gpus {
namespace {

constexpr std::size_t bytes = 5'000'000;

std::unique_ptr<test::machine> machine_here() {
  if (auto gpus = test::machine::of_gpus())
    return gpus;
  return std::make_unique<test::machine>(simulated{.devices = 2, .memory = 256_MiB});
}
void write(void* to, std::uint64_t salt) {
  copy(default_stream(0), to, test::pattern(bytes, salt).data(), bytes, blocking::yes);
}
test::bytes_of_host read(void const* from) {
  return test::read_back(from, bytes, 0);
}
bool reaches(int from, int to) {
  return from == to || can_access_peer(from, to);
}

WEIR_ROLE(reads_on_every_device) {
  auto const m = machine_here();
  ASSERT_EQ(line.wait(), 1u);
  imported_buffer const b = line.receive(0);
  ASSERT_EQ(read(b.data()), test::pattern(bytes, 1));
  for (int d = 1; d < std::min(2, device_count()); ++d) {
    if (!reaches(d, 0))
      continue;
    line.signal(static_cast<std::uint64_t>(d), default_stream(0));  // asks for memory of this device
    imported_buffer const again = line.receive(d);
    ASSERT_EQ(again.data(), b.data()) << "mapped once";
    buffer const mine(bytes, {.on = d});
    copy(default_stream(d), mine.data(), again.data(), bytes);
    ASSERT_EQ(test::read_back(mine.data(), bytes, d), test::pattern(bytes, 1));
  }
  write(b.data(), 2);
  line.signal(100, default_stream(0));
  ASSERT_EQ(line.wait(), 101u);
}

TEST(this_machine, another_process_reads_all_and_writes_back) {
  auto const m = machine_here();
  test::other_process other("reads_on_every_device");
  exportable_buffer const b(bytes, 0);
  write(b.data(), 1);
  other.line().signal(1, default_stream(0));
  other.line().send(b, default_stream(0));
  for (std::uint64_t asked = other.line().wait(); asked != 100; asked = other.line().wait())
    other.line().send(b, default_stream(0));
  EXPECT_EQ(read(b.data()), test::pattern(bytes, 2));
  other.line().signal(101, default_stream(0));
  EXPECT_EQ(other.end(), "exit 0");
}

constexpr int of_a_pool = 20;
std::size_t size_of(int i) {
  return std::size_t(i) * 40'000 + 8;
}

WEIR_ROLE(reads_a_pool) {
  auto const m = machine_here();
  std::vector<imported_buffer> all;
  for (int i = 0; i < of_a_pool; ++i)
    all.push_back(line.receive(0));
  ASSERT_EQ(m->get().part<peer::imports>().mapped(), 1u);
  for (int i = 0; i < of_a_pool; ++i) {
    auto const& b = all[std::size_t(i)];
    ASSERT_EQ(test::read_back(b.data(), b.size(), 0), test::pattern(size_of(i), std::uint64_t(i) + 20)) << i;
    copy(default_stream(0), b.data(), test::pattern(size_of(i), std::uint64_t(i) + 50).data(), b.size(), blocking::yes);
  }
  for (int i = 0; i < of_a_pool; i += 2)
    all[std::size_t(i)].release(default_stream(0));
  line.signal(1, default_stream(0));
  (void)line.wait();
  ::kill(::getpid(), SIGKILL);
}

// A killed process costs only what it had open.
TEST(this_machine, pool_buffers_are_shared_with_another_process) {
  auto const m = machine_here();
  share_pool pool({.on = 0, .handle_bytes = 16_MiB});
  std::vector<exportable_buffer> all;
  test::other_process other("reads_a_pool");
  for (int i = 0; i < of_a_pool; ++i) {
    all.push_back(pool.allocate(size_of(i)));
    copy(default_stream(0), all.back().data(), test::pattern(size_of(i), std::uint64_t(i) + 20).data(), size_of(i),
         blocking::yes);
    other.line().send(all.back(), default_stream(0));
  }
  EXPECT_EQ(other.line().wait(), 1u);
  for (int i = 0; i < of_a_pool; ++i)
    EXPECT_EQ(test::read_back(all[std::size_t(i)].data(), size_of(i), 0),
              test::pattern(size_of(i), std::uint64_t(i) + 50))
        << i;
  other.line().signal(2, default_stream(0));
  EXPECT_EQ(other.end(), "signal 9");
  exportable_buffer const stays = pool.allocate(100);
  all.clear();
  auto const n = pool.statistics();
  EXPECT_EQ(n.reserved, n.allocated + n.held + n.cached + n.lost);
  EXPECT_EQ(n.held, 0u);
  EXPECT_GT(n.lost, 0u);
  copy(default_stream(0), stays.data(), test::pattern(100, 7).data(), 100, blocking::yes);
  EXPECT_EQ(test::read_back(stays.data(), 100, 0), test::pattern(100, 7));
}

constexpr unsigned of_a_ring = 12;
std::size_t item_size(unsigned n) {
  return bytes - n * 300'001;
}

// Copies each item to another device if there is one, and releases it behind the copy.
WEIR_ROLE(reads_a_ring_here) {
  auto const m = machine_here();
  int const on = device_count() > 1 && reaches(1, 0) ? 1 : 0;
  ring_reader ring(test::its_ring_socket, on, std::chrono::seconds(20));
  std::vector<buffer> seen;
  while (auto const item = ring.take(default_stream(on))) {
    seen.emplace_back(item->size(), buffer_options{.on = on});
    copy(default_stream(on), seen.back().data(), item->data(), item->size(), non_blocking);
  }
  ASSERT_EQ(seen.size(), of_a_ring);
  for (unsigned n = 0; n < of_a_ring; ++n)
    ASSERT_EQ(test::read_back(seen[n].data(), seen[n].size(), on), test::pattern(item_size(n), n)) << n;
}

TEST(this_machine, another_process_reads_a_ring_in_order) {
  auto const m = machine_here();
  test::other_process other("reads_a_ring_here", {}, std::chrono::seconds(20), true);
  ring_writer ring({other.ring()}, {.bytes = bytes, .slots = 3, .on = 0, .timeout = std::chrono::seconds(20)});
  for (unsigned n = 0; n < of_a_ring; ++n) {
    ring_slot slot = ring.next(default_stream(0));
    buffer const from(item_size(n), {.on = 0});
    copy(default_stream(0), from.data(), test::pattern(item_size(n), n).data(), item_size(n), blocking::yes);
    copy(default_stream(0), slot.data(), from.data(), item_size(n), non_blocking);
    slot.publish(item_size(n));
  }
  ring.close();
  EXPECT_EQ(other.end(), "exit 0");
}

WEIR_ROLE(lends_and_is_killed) {
  auto const m = machine_here();
  exportable_buffer const b(bytes, 0);
  write(b.data(), 3);
  line.send(b, default_stream(0));
  (void)line.wait();
  ::kill(::getpid(), SIGKILL);
}

TEST(this_machine, the_bytes_stay_when_their_owner_is_killed) {
  auto const m = machine_here();
  test::other_process other("lends_and_is_killed");
  imported_buffer const b = other.line().receive(0);
  other.line().signal(1, default_stream(0));
  EXPECT_EQ(other.end(), "signal 9");
  EXPECT_EQ(read(b.data()), test::pattern(bytes, 3));
  write(b.data(), 4);
  EXPECT_EQ(read(b.data()), test::pattern(bytes, 4));
}

WEIR_ROLE(opens_and_is_killed) {
  auto const m = machine_here();
  imported_buffer const b = line.receive(0);
  ASSERT_EQ(read(b.data()), test::pattern(bytes, 5));
  line.signal(1, default_stream(0));
  (void)line.wait();
  ::kill(::getpid(), SIGKILL);
}

TEST(this_machine, a_killed_importers_memory_is_had_again) {
  auto const m = machine_here();
  test::other_process other("opens_and_is_killed");
  auto b = std::make_optional<exportable_buffer>(bytes, 0);
  write(b->data(), 5);
  other.line().send(*b, default_stream(0));
  EXPECT_EQ(other.line().wait(), 1u);
  EXPECT_EQ(b->importers(), 1);
  other.line().signal(2, default_stream(0));
  EXPECT_EQ(other.end(), "signal 9");
  EXPECT_EQ(b->importers(), 0);
  EXPECT_EQ(read(b->data()), test::pattern(bytes, 5));
  b.reset();
  exportable_buffer const next(bytes, 0);
  write(next.data(), 6);
  EXPECT_EQ(read(next.data()), test::pattern(bytes, 6));
  EXPECT_EQ(m->get().part<peer::exports>().forget_idle(), 0u) << "what the killed one had is the driver's";
}

}  // namespace
}  // namespace weir::sharing_on_gpus
