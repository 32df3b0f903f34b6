// Streams by handle on whatever machine WEIR_DEVICES names: the handles are those of streams that weir does
// not know.
// Threads: one, but for the per-thread streams.
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "runtime/core/parts.h"
#include "weir/c.h"
#include "weir/copy.h"
#include "weir/observe.h"

namespace weir {
namespace {

// A driver's stream past weir's own streams, as a program makes one by cudaStreamCreateWithFlags.
class program_stream {
 public:
  program_stream() {
    auto& r = runtime::current().get();
    r.open(0, "test", source_location::current());
    auto const made = r.machine().create_stream(0, driver::stream_kind::independent, 0);
    if (made.ok())
      is_ = made.value;
  }
  ~program_stream() { (void)machine().destroy_stream(0, is_); }
  program_stream(program_stream const&) = delete;
  static driver::driver& machine() { return runtime::current().get().machine(); }
  driver::stream_handle number() const { return is_; }
  CUstream_st* handle() const { return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(is_)); }

 private:
  driver::stream_handle is_ = driver::stream_handle::none;
};

std::vector<unsigned char> pattern(size_t n, unsigned salt) {
  std::vector<unsigned char> v(n);
  for (size_t i = 0; i < n; ++i)
    v[i] = static_cast<unsigned char>(i * 31 + salt);
  return v;
}

void there_and_back(CUstream_st* s, size_t bytes, unsigned salt) {
  auto const out = pattern(bytes, salt);
  std::vector<unsigned char> back(bytes);
  void* p = nullptr;
  ASSERT_EQ(weir_allocate(&p, bytes, WEIR_DEFAULT_ALIGNMENT, 0, s), WEIR_OK) << weir_last_error();
  ASSERT_EQ(weir_copy(p, out.data(), bytes, 0, s), WEIR_OK) << weir_last_error();
  ASSERT_EQ(weir_copy(back.data(), p, bytes, 0, s), WEIR_OK) << weir_last_error();
  ASSERT_EQ(weir_free_on_stream(p, 0, s), WEIR_OK) << weir_last_error();
  EXPECT_EQ(out, back);
}

TEST(machine_handles, every_kind_of_handle_carries_bytes) {
  program_stream registered, borrowed;
  ASSERT_EQ(weir_register_stream(0, registered.handle()), WEIR_OK) << weir_last_error();
  for (size_t const bytes : {512u, 100'000u, 3'000'000u}) {
    there_and_back(registered.handle(), bytes, 1);
    there_and_back(borrowed.handle(), bytes, 2);
    there_and_back(nullptr, bytes, 3);
    there_and_back(reinterpret_cast<CUstream_st*>(2), bytes, 4);  // cudaStreamPerThread
  }
  EXPECT_EQ(weir_unregister_stream(0, registered.handle()), WEIR_OK);
}

TEST(machine_handles, streams_come_and_go) {
  std::uint64_t last = 0;
  auto const held = memory_allocated(0);
  for (unsigned i = 0; i < 300; ++i) {
    program_stream theirs;
    stream_ref const s = borrow_stream(0, theirs.handle());
    ASSERT_NE(s.id(), last);
    last = s.id();
    there_and_back(theirs.handle(), 40'000, i);
  }
  EXPECT_EQ(memory_allocated(0), held);
}

TEST(machine_handles, a_capture_survives_being_named) {
  for (auto const mode : {driver::capture_mode::global, driver::capture_mode::this_thread}) {
    program_stream theirs, other;
    void* p = nullptr;
    ASSERT_TRUE(theirs.machine().begin_capture(0, theirs.number(), mode).ok());
    EXPECT_TRUE(borrow_stream(0, theirs.handle()).is_capturing());
    EXPECT_EQ(weir_allocate(&p, 512, 0, 0, theirs.handle()), WEIR_OK);
    (void)borrow_stream(0, other.handle());
    auto const graph = theirs.machine().end_capture(0, theirs.number());
    EXPECT_TRUE(graph.ok());
    (void)theirs.machine().destroy_graph(graph.value);
    EXPECT_EQ(weir_free(p), WEIR_OK);
    there_and_back(theirs.handle(), 512, 5);
  }
}

// A stream of weir's own has joined the capture without work. It tells that the capture is over.
TEST(machine_handles, a_capture_is_over_without_its_stream) {
  synchronize(0);
  for (auto const mode : {driver::capture_mode::global, driver::capture_mode::this_thread}) {
    for (int times = 0; times < 2; ++times) {
      std::optional<program_stream> theirs(std::in_place);
      ASSERT_TRUE(theirs->machine().begin_capture(0, theirs->number(), mode).ok());
      EXPECT_EQ(weir_free_on_stream(allocate(borrow_stream(0, theirs->handle()), 512), 0, theirs->handle()), WEIR_OK);
      EXPECT_THROW(synchronize(0), invalid_use);
      auto const graph = theirs->machine().end_capture(0, theirs->number());
      ASSERT_TRUE(graph.ok());
      theirs.reset();
      EXPECT_NO_THROW(synchronize(0));
      (void)theirs->machine().destroy_graph(graph.value);
    }
  }
}

TEST(machine_handles, each_thread_has_its_per_thread_stream) {
  auto* const per_thread = reinterpret_cast<CUstream_st*>(2);
  auto const mine = borrow_stream(0, per_thread).id();
  std::thread([&] {
    EXPECT_NE(borrow_stream(0, per_thread).id(), mine);
    there_and_back(per_thread, 5000, 6);
  }).join();
  EXPECT_EQ(borrow_stream(0, per_thread).id(), mine);
}

TEST(machine_handles, another_devices_stream_is_refused) {
  if (device_count() < 2)
    GTEST_SKIP() << "needs two devices";
  program_stream theirs;
  void* p = nullptr;
  EXPECT_EQ(weir_allocate(&p, 512, 0, 1, theirs.handle()), WEIR_INVALID_USE);
  EXPECT_EQ(weir_register_stream(1, theirs.handle()), WEIR_INVALID_USE);
  there_and_back(theirs.handle(), 512, 7);
}

}  // namespace
}  // namespace weir
