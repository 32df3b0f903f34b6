// Other streams that reuse memory of small blocks wait for the work that the home stream had when those
// blocks came free, and for nothing later.
// Threads: one.
#include <gtest/gtest.h>

#include "runtime/memory/device/device_allocator.h"
#include "runtime/memory/heap/fast_path.h"
#include "tests/memory/names.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

enum class freed_by : std::uint8_t { thread, full_size, lock, users, deferred_frees, cells };
constexpr freed_by all_ways_back[] = {freed_by::thread, freed_by::full_size,      freed_by::lock,
                                      freed_by::users,  freed_by::deferred_frees, freed_by::cells};
std::string name_of(freed_by w) {
  static constexpr char const* names[] = {"kept by their thread", "sent home by a size that was full",
                                          "with the lock",        "when two other streams were done",
                                          "in an outbox",         "in cells of runs that stay"};
  return names[static_cast<std::size_t>(w)];
}

// A stream runs only when a test steps it or the host waits for it.
struct drained {
  explicit drained(freed_by w) : way(w), home(w == freed_by::lock ? without_caches() : bench.stream(0)) {}
  clock::stream_clock& without_caches() {
    bench.core.open(0, "test", source_location::current());
    return bench.clocks().make(0, bench.machine().create_stream(0, driver::stream_kind::independent, 0).value,
                               clock::life::borrowed);
  }
  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench.on(0)); }
  void busy(clock::stream_clock& s) {
    ASSERT_TRUE(bench.machine().enqueue(0, s.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  }
  void finish(clock::stream_clock& s) { ASSERT_TRUE(bench.clocks().synchronize(s.now()).ok()); }
  void* take(clock::stream_clock& s, std::size_t bytes) {
    void* const p = memory::fast_allocate(&s, bytes, 0);
    return p ? p : device().allocate(s, bytes, 0, at);
  }
  bool give(void* p, clock::stream_clock* last = nullptr) {  // true: without the lock
    bool const quick = last ? memory::fast_deallocate_used(last, p) : memory::fast_deallocate(p);
    if (!quick)
      device().deallocate(p, last, at);
    return quick;
  }

  std::size_t bytes() const { return way == freed_by::full_size ? 32 << 10 : 4 << 10; }
  std::size_t count() const {
    return way == freed_by::full_size ? 128 : way == freed_by::cells ? 1024 : way == freed_by::thread ? 48 : 256;
  }
  void fill() {
    // A size gets all the room in a thread's cache that it can have.
    for (int i = 0; i < 20 && way != freed_by::lock; ++i) {
      std::vector<void*> some;
      for (int k = 0; k < 60; ++k)
        some.push_back(take(home, bytes()));
      for (void* p : some)
        give(p);
    }
    finish(home);
    device().empty_cache();
    for (std::size_t i = 0; i < count(); ++i)
      all.push_back(take(home, bytes()));
  }
  bool stays(std::size_t i) const {
    return way == freed_by::cells ? i % 32 == 0 : way == freed_by::deferred_frees && i < 16;
  }
  void give_all() {
    if (way == freed_by::users || way == freed_by::deferred_frees)
      busy(user), busy(third);
    std::size_t quick = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (way == freed_by::users)
        device().record_use(all[i], user, at), device().record_use(all[i], third, at);
      if (!stays(i))
        quick += give(all[i], way == freed_by::deferred_frees ? &user : nullptr);
    }
    std::size_t const least = way == freed_by::thread                                         ? all.size()
                              : way == freed_by::full_size || way == freed_by::deferred_frees ? all.size() / 2
                                                                                              : 0;
    EXPECT_GE(quick, least) << name_of(way) << ": without the lock";
    if (way == freed_by::lock || way == freed_by::users) {
      EXPECT_EQ(quick, 0u) << name_of(way);
    }
    for (clock::stream_clock* s : {&user, &third}) {  // their part is complete; their home's may not be
      ASSERT_TRUE(s->fence().ok());
      while (bench.control->step(0, s->handle())) {}
    }
  }
  std::size_t page() { return device().addresses().page_bytes(); }
  std::size_t unused() { return whole - static_cast<std::size_t>(device().statistics().reserved_bytes.all.current); }
  void sound() {
    EXPECT_EQ(device().validate(), std::vector<std::string>{}) << name_of(way);
    EXPECT_EQ(bench.control->findings(), std::vector<std::string>{}) << name_of(way);
  }

  static constexpr std::size_t whole = 8 << 20;
  freed_by const way;
  tests::memory_bench bench{{.devices = 1, .memory = whole, .schedule = simulated::scheduling::stepped, .seed = 1}};
  clock::stream_clock& home;
  clock::stream_clock &user = bench.stream(0), &third = bench.stream(0), &other = bench.stream(0);
  std::vector<void*> all;
};

bool keeps_blocks(drained& d) {
  return base::has_process_wide_fence() && !d.bench.core.observer();
}

// The home stream has later work.
TEST(drained_slots, serve_another_stream_while_theirs_goes_on) {
  for (freed_by const way : all_ways_back) {
    drained d(way);
    if (!keeps_blocks(d))
      GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is kept";
    d.fill();
    d.give_all();
    d.finish(d.home);
    d.busy(d.home);
    clock::stamp const later = d.home.now();
    std::size_t stay = 0;
    for (std::size_t i = 0; i < d.all.size(); ++i)
      stay += d.stays(i) ? d.page() : 0;
    ASSERT_NE(d.take(d.other, d.whole - (way == freed_by::deferred_frees ? d.page() : stay)), nullptr) << name_of(way);
    EXPECT_FALSE(d.other.covers(later)) << name_of(way) << ": it waited";
    d.sound();
  }
}

TEST(drained_slots, wait_for_the_work_given_before_they_came_free) {
  for (freed_by const way : all_ways_back) {
    drained d(way);
    if (!keeps_blocks(d))
      GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is kept";
    d.fill();
    d.finish(d.home);
    d.busy(d.home);
    clock::stamp const given = d.home.now();
    d.give_all();
    ASSERT_NE(d.take(d.other, d.unused() + 2 * d.page()), nullptr) << name_of(way);
    EXPECT_TRUE(d.other.covers(given)) << name_of(way) << ": their stream may still use them";
    d.sound();
  }
}

// Before a stream carries work that waits for other ranks, one fence covers all that came free on it, if
// another stream could use that memory.
TEST(drained_slots, are_fenced_once_before_lengthy_work) {
  drained d(freed_by::thread);
  if (!keeps_blocks(d))
    GTEST_SKIP() << "no thread can be fenced here, or each call is told to a checker: nothing is kept";
  auto const fences = [&] { return d.device().statistics().fences; };
  auto const fenced = [&] {
    std::uint64_t const before = fences();
    d.device().fence_what_came_free(d.home);
    return fences() - before;
  };
  EXPECT_EQ(fenced(), 0u) << "it has no memory";
  d.fill();
  void* const large = d.take(d.home, 64 << 10);
  d.give(d.take(d.home, 64 << 10));
  EXPECT_EQ(fenced(), 0u) << "no other stream has memory";
  (void)d.take(d.other, 4096);
  (void)fenced();
  EXPECT_EQ(fenced(), 0u) << "nothing came free since";
  d.give(large);
  EXPECT_EQ(fenced(), 1u) << "a large block";
  EXPECT_EQ(fenced(), 0u);
  ASSERT_TRUE(d.give(d.all[0])) << "without the lock";
  EXPECT_EQ(fenced(), 1u) << "kept by its thread";
  EXPECT_EQ(fenced(), 0u);
  d.device().record_use(d.all[1], d.user, at), d.device().record_use(d.all[1], d.third, at);
  d.give(d.all[1]);
  d.finish(d.user), d.finish(d.third), (void)d.device().statistics();
  EXPECT_EQ(fenced(), 1u) << "in a slab, when others were done with it";
  d.busy(d.home);
  EXPECT_EQ(fenced(), 0u) << "work alone frees nothing";
  d.sound();
}

// The numbers of an ended stream are far above those of the stream that inherits its heap, and mean nothing
// there.
TEST(drained_slots, of_a_taken_over_memory_have_no_old_number) {
  drained d(freed_by::thread);
  clock::stream_clock& old = d.bench.stream(0);
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(old.fence().ok());
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i)
    all.push_back(d.take(old, 4096));
  for (int i = 1; i < 40; ++i)
    d.give(all[static_cast<std::size_t>(i)]);
  d.bench.clocks().retire(old);
  ASSERT_TRUE(d.bench.control->run());
  clock::stream_clock& heir = d.bench.stream(0);
  (void)d.take(heir, 4096);
  ASSERT_EQ(d.device().find(all[0]).value().home, &heir) << "taken over";
  d.sound();
  d.device().empty_cache();
  d.sound();
}

// A block that waits for another stream also waits for its home. If no call names the home at the free, its
// last number must not count as complete when it ends.
TEST(borrowed_home, a_pending_block_counts_as_its_free) {
  tests::memory_bench bench({.devices = 1, .memory = std::size_t{8} << 20, .schedule = simulated::scheduling::stepped});
  clock::stream_clock& user = bench.stream(0);
  clock::stream_clock& home = bench.clocks().make(
      0, bench.machine().create_stream(0, driver::stream_kind::independent, 0).value, clock::life::borrowed);
  auto& memory = bench.on(0);
  void* const p = memory.allocate(home, std::size_t{2} << 20, 0, source_location::current());
  ASSERT_TRUE(bench.machine().enqueue(0, user.handle(), {}, {[](void*) {}, nullptr, nullptr}).ok());
  memory.record_use(p, user, source_location::current());
  memory.deallocate(p, nullptr, source_location::current());
  EXPECT_FALSE(bench.clocks().retire(home)) << "no fence covers the free";
  bench.control->run();
}

}  // namespace
}  // namespace weir
