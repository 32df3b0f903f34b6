// Memory of two processes: what is counted, how long a call waits, and what a fork or the end of a runtime leaves.
// Threads: one, and in one case a second that waits; the other process has its own.
#include <optional>

#include "tests/peer/other_process.h"
#include "tests/peer/share_fixture.h"
#include "weir/observe.h"

namespace weir {
namespace {

using namespace test::sharing;

// Statistics ------------------------------------------------------------------------------------------------

TEST(shared_memory, is_counted_by_whole_pages_apart) {
  test::machine m(small());
  auto [here, there] = lines();
  auto& exports = m.get().part<peer::exports>();
  auto const figures = [] {
    auto const n = memory_stats(0);
    return std::array{n.exported_bytes.current, n.exported_bytes.peak, n.imported_bytes.current,
                      n.reserved_bytes.all.current};
  };
  std::int64_t const page = std::int64_t{2} << 20;
  auto b = std::make_optional<exportable_buffer>(some_bytes, 0);
  EXPECT_EQ(figures(), (std::array<std::int64_t, 4>{page, page, 0, 0}));
  here.send(*b, default_stream(0));
  auto o = there.receive();
  EXPECT_EQ(figures(), (std::array<std::int64_t, 4>{page, page, page, 0}));
  EXPECT_NE(memory_summary(0).find("2 MiB of other processes are mapped in this process"), std::string::npos)
      << memory_summary(0);
  EXPECT_NE(memory_metrics().find("weir_shared_bytes{device=\"gpu:0\",state=\"exported\"} 2097152"), std::string::npos);
  EXPECT_EQ(memory_stats(1).exported_bytes.current, 0);
  o.release(default_stream(0));
  b.reset();
  EXPECT_EQ(figures()[0], page) << "kept for the next";
  EXPECT_EQ(exports.forget_idle(), std::size_t(page));
  EXPECT_EQ(figures(), (std::array<std::int64_t, 4>{0, page, page, 0}))
      << "the importer hears of it at its next receive";
  reset_peak_memory_stats(0);
  reset_accumulated_memory_stats(0);
  auto const n = memory_stats(0);
  EXPECT_EQ(n.exported_bytes.peak, 0);
  EXPECT_EQ(n.exported_bytes.freed, 0);
  EXPECT_EQ(n.imported_bytes.peak, page);
}

TEST(shared_memory, is_a_segment_of_its_own_in_a_snapshot) {
  test::machine m(small());
  auto [here, there] = lines();
  buffer const plain(some_bytes, {.on = 0});
  exportable_buffer b(some_bytes, 0);
  std::uint32_t const line = __LINE__ - 1;
  here.send(b, default_stream(0));
  auto const o = there.receive();
  auto const with = [](memory_sharing kind) {
    std::vector<memory_segment> out;
    for (auto& s : memory_snapshot(0))
      if (s.shared == kind)
        out.push_back(s);
    return out;
  };
  for (auto const& [kind, at] :
       {std::pair{memory_sharing::exported, b.data()}, std::pair{memory_sharing::imported, o.data()}}) {
    auto const found = with(kind);
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].address, reinterpret_cast<std::uintptr_t>(at));
    ASSERT_EQ(found[0].blocks.size(), 1u);
    EXPECT_EQ(found[0].blocks[0].state, block_state::active_allocated);
    EXPECT_EQ(found[0].blocks[0].bytes, found[0].bytes);
    EXPECT_EQ(found[0].blocks[0].requested, some_bytes);
  }
  EXPECT_EQ(with(memory_sharing::exported)[0].blocks[0].where.line(), line);
  EXPECT_EQ(with(memory_sharing::none).size(), 1u);
  b.reset();
  auto const kept = with(memory_sharing::exported);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].blocks[0].state, block_state::inactive);
  dump_memory_snapshot(testing::TempDir() + "share_test.pickle");
}

// Timeouts --------------------------------------------------------------------------------------------------

WEIR_ROLE(stops_itself) {
  ::raise(SIGSTOP);
  std::uint64_t n = 0;
  while (line.wait() == n)
    ++n;
  test::machine m(small());
  line.signal(n, default_stream(0));
}

TEST(a_stopped_process, delays_no_other_longer_than_the_lease) {
  test::machine m(small());
  test::other_process other("stops_itself", {}, 20ms);
  other.await_stop();
  EXPECT_THROW((void)other.line().wait(), timed_out);
  std::uint64_t sent = 0;
  EXPECT_THROW(
      while (sent < 1'000'000) {
        other.line().signal(sent, default_stream(0));
        ++sent;
      },
      timed_out);
  other.tell(SIGCONT);
  other.line().set_timeout(20s);
  other.line().signal(~std::uint64_t{0}, default_stream(0));
  EXPECT_EQ(other.line().wait(), sent) << "what was refused was not heard, all else was, in order";
  EXPECT_EQ(other.end(), "exit 0");
}

TEST(a_device_that_maps_no_memory, says_that_it_cannot) {
  simulated like = small();
  like.virtual_memory = false;
  test::machine m(like);
  EXPECT_THROW(exportable_buffer{some_bytes}, not_supported);
}

TEST(a_pool, and_its_buffers_are_of_the_device_that_was_named) {
  test::machine m(small());
  share_pool pool({.on = 1});
  exportable_buffer const b = pool.allocate(4000);
  EXPECT_EQ(b.device(), device(1));
  EXPECT_EQ(pool.allocate(default_stream(1), 4000).device(), device(1));
  EXPECT_EQ(memory_stats(1).exported_bytes.current, std::int64_t(pool.statistics().reserved));
}

// Regression: the system reports first that this end's own message was not read.
TEST(the_other_end, is_heard_to_its_end_though_it_heard_nothing) {
  test::machine m(small());
  auto ends = lines();
  {
    share_channel goes = std::move(ends.first);
    ends.second.signal(1, default_stream(0));
    goes.signal(2, default_stream(0));
  }
  EXPECT_EQ(ends.second.wait(), 2u);
  EXPECT_THROW((void)ends.second.wait(), peer_disconnected);
}

TEST(a_child_that_was_forked, has_neither_line_nor_buffers) {
  test::machine m(small());
  auto [here, there] = lines();
  exportable_buffer b(some_bytes);
  here.send(b, default_stream(0));
  auto o = there.receive();
  pid_t const child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      here.send(b, default_stream(0));
    } catch (error const&) {
      refused = b.importers() == 0;
    }
    o.reset();
    b.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(b.importers(), 1) << "what the child dropped was the parent's";
}

TEST(after_its_runtime, nothing_is_left) {
  auto m = std::make_unique<test::machine>(small());
  auto [here, there] = lines();
  exportable_buffer b(some_bytes);
  here.send(b, default_stream(0));
  auto o = there.receive();
  m.reset();
  EXPECT_EQ(b.data(), nullptr);
  EXPECT_EQ(o.data(), nullptr);
  EXPECT_EQ(b.importers(), 0);
}

// Work of a lost device has ended. Of one that gives no answer it may still run.
TEST(after_its_runtime, pages_that_work_may_use_stay_mapped) {
  struct counts final : driver::fault_injector::watcher {
    int unmaps = 0;
    void enters(driver::call c) noexcept override { unmaps += c == driver::call::unmap; }
  };
  enum class device_is { well, lost, silent };
  auto const unmapped = [](device_is how) {
    counts seen;
    auto m = std::make_unique<test::machine>(small());
    auto [here, there] = lines();
    exportable_buffer const b(some_bytes);
    here.send(b, default_stream(0));
    auto const o = there.receive();
    auto& calls = *driver::fault_injector_of(m->driver());
    if (how == device_is::lost)
      m->control().lose_device(0);
    if (how == device_is::silent)
      calls.refuse({.of = driver::call::synchronize_device, .more = driver::fault_injector::without_end});
    calls.watch(&seen);
    m.reset();
    return seen.unmaps;
  };
  int const all = unmapped(device_is::well);
  EXPECT_GE(all, 2) << "where it is exported, and where it is imported";
  EXPECT_EQ(unmapped(device_is::lost), all);
  EXPECT_EQ(unmapped(device_is::silent), 0);
}

}  // namespace
}  // namespace weir
