// Rule M20 of docs/reference/simulated-machine.md, on every machine: streams that come by CUDA's handle.
// Threads: one, but for the per-thread streams.
#include <set>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class external_handles : public conformance {
 protected:
  static CUstream_st* native(stream_handle s) {  // on both machines a handle is the stream's address, or number
    return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(s));
  }
  driver::identity identify(CUstream_st* s, int device = 0) {
    auto const is = machine().identify(device, s);
    EXPECT_OK(is.is);
    return is.value;
  }
};
WEIR_CONFORMANCE(external_handles);

TEST_P(external_handles, m20_a_stream_has_one_id_and_no_two_share_it) {
  auto const a = stream(0), b = stream(0);
  auto const first = identify(native(a)), other = identify(native(b));
  EXPECT_EQ(first.handle, a);
  EXPECT_FALSE(first.captured);
  EXPECT_NE(first.id, other.id);
  EXPECT_EQ(identify(native(a)).id, first.id);
  elsewhere([&] { EXPECT_EQ(identify(native(a)).id, first.id); });
}

// A handle comes back, an id does not.
TEST_P(external_handles, m20_an_id_is_never_given_again) {
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 1000; ++i) {
    auto const made = machine().create_stream(0, stream_kind::independent, 0);
    ASSERT_OK(made.is);
    EXPECT_TRUE(ids.insert(identify(native(made.value)).id).second) << "after " << i;
    ASSERT_OK(machine().destroy_stream(0, made.value));
  }
}

TEST_P(external_handles, m20_a_captured_stream_is_known_not_asked) {
  auto const s = stream(0);
  auto const before = identify(native(s)).id;
  for (auto const mode : {capture_mode::global, capture_mode::this_thread, capture_mode::relaxed}) {
    ASSERT_OK(machine().begin_capture(0, s, mode));
    auto const inside = identify(native(s));
    EXPECT_TRUE(inside.captured);
    EXPECT_EQ(inside.handle, s);
    auto const adopted = machine().adopt(0, native(s));
    EXPECT_OK(adopted.is);
    EXPECT_EQ(adopted.value, s);
    auto const kept = machine().end_capture(0, s);
    EXPECT_OK(kept.is);  // it was not spoiled
    if (kept.ok()) {
      EXPECT_OK(machine().destroy_graph(kept.value));
    }
    EXPECT_EQ(identify(native(s)).id, before);
  }
}

// Others are asked during a capture, too.
TEST_P(external_handles, m20_asking_another_stream_spoils_no_capture) {
  auto const s = stream(0), other = stream(0);
  for (auto const mode : {capture_mode::global, capture_mode::this_thread, capture_mode::relaxed}) {
    ASSERT_OK(machine().begin_capture(0, s, mode));
    EXPECT_FALSE(identify(native(other)).captured);
    EXPECT_OK(machine().adopt(0, native(other)).is);
    EXPECT_OK(machine().adopt(0, nullptr).is);
    auto const kept = machine().end_capture(0, s);
    EXPECT_OK(kept.is);
    if (kept.ok()) {
      EXPECT_OK(machine().destroy_graph(kept.value));
    }
  }
}

TEST_P(external_handles, m20_a_per_thread_stream_is_each_threads_own) {
  auto const mine = identify(native(stream_handle::per_thread));
  EXPECT_EQ(mine.handle, stream_handle::per_thread);
  EXPECT_EQ(identify(native(stream_handle::per_thread)).id, mine.id);
  elsewhere([&] { EXPECT_NE(identify(native(stream_handle::per_thread)).id, mine.id); });
}

TEST_P(external_handles, m20_another_devices_stream_is_not_adopted) {
  NEED_DEVICES(2);
  auto const s = stream(1);
  EXPECT_SAYS(code::invalid, machine().adopt(0, native(s)).is);
  EXPECT_OK(machine().adopt(1, native(s)).is);
  EXPECT_EQ(machine().adopt(1, nullptr).value, stream_handle::legacy);
}

// A handle that comes without a device: any device can be asked.
TEST_P(external_handles, m20_a_streams_device_is_found) {
  NEED_DEVICES(2);
  auto const here = stream(0), there = stream(1);
  for (int const asked : {0, 1}) {
    EXPECT_EQ(machine().stream_device(asked, native(here)).value, 0);
    EXPECT_EQ(machine().stream_device(asked, native(there)).value, 1);
    EXPECT_EQ(identify(native(there), asked).id, identify(native(there), 1).id);
    EXPECT_EQ(machine().stream_device(asked, nullptr).value, asked) << "each device has a legacy stream";
  }
  ASSERT_OK(machine().begin_capture(1, there, capture_mode::global));
  EXPECT_SAYS(code::not_permitted, machine().stream_device(0, native(there)).is);
  auto const kept = machine().end_capture(1, there);
  EXPECT_OK(kept.is);  // it was not spoiled
  if (kept.ok()) {
    EXPECT_OK(machine().destroy_graph(kept.value));
  }
}

}  // namespace
}  // namespace weir::conformance
