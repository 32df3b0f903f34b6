// DLPack both ways: what is described, who waits for whom, when memory is given back, what is refused.
// Threads: one; order is proved by gates.
#include "weir/dlpack.h"

#include <cstddef>
#include <functional>
#include <vector>

#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"
#include "weir/observe.h"

namespace weir {
namespace {

using test::held;
using test::refused;

// What another library hands over. `freed` counts its deleter's calls.
struct foreign {
  std::vector<float> values = {0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> extents = {2, 3}, steps = {3, 1};
  int freed = 0;
  std::function<void()> at_end = [] {};
  DLManagedTensorVersioned managed{};

  foreign() {
    managed.version = {1, 3};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* m) {
      auto& its = *static_cast<foreign*>(m->manager_ctx);
      ++its.freed;
      its.at_end();
    };
    managed.dl_tensor = {values.data(), {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, extents.data(), steps.data(), 0};
  }
  foreign(foreign const&) = delete;
  DLTensor& is() { return managed.dl_tensor; }
  void on_device(void* data, int device) { is().data = data, is().device = {kDLExtDev, device}; }
};

struct dlpack : ::testing::Test {
  test::machine m;
  stream s{device(0)};
  foreign from;

  // Refused with these words, and still its owner's.
  template <class Error = invalid_use>
  void expect_refused(std::string_view words, std::optional<stream_ref> producer = std::nullopt) {
    try {
      (void)from_dlpack(&from.managed, producer);
      ADD_FAILURE() << "not refused: " << words;
    } catch (Error const& e) {
      EXPECT_NE(std::string_view(e.what()).find(words), std::string_view::npos) << e.what();
    }
    EXPECT_EQ(from.freed, 0);
  }
};

static_assert(offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40);
static_assert(offsetof(DLManagedTensor, manager_ctx) == 48 && offsetof(DLManagedTensor, deleter) == 56);
static_assert(offsetof(DLManagedTensorVersioned, manager_ctx) == 8);
static_assert(offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);

TEST_F(dlpack, an_export_describes_the_view) {
  tensor const all = zeros({4, 6});
  tensor const view = all.slice(0, 1, 3).t();
  auto const out = to_dlpack(view);
  EXPECT_EQ(out->version.major, 1u);
  EXPECT_EQ(out->flags, 0u);
  DLTensor const& is = out->dl_tensor;
  EXPECT_EQ(is.data, all.data<float>() + 6);
  EXPECT_EQ(is.byte_offset, 0u);
  ASSERT_EQ(is.ndim, 2);
  EXPECT_TRUE(is.shape[0] == 6 && is.shape[1] == 2);
  EXPECT_TRUE(is.strides[0] == 1 && is.strides[1] == 6);
  EXPECT_TRUE(is.device.device_type == kDLExtDev && is.device.device_id == 0);
}

TEST_F(dlpack, every_dtype_and_place_has_its_code) {
  std::vector<std::tuple<dtype, int, int>> const all = {
      {float32, kDLFloat, 32}, {float16, kDLFloat, 16}, {bfloat16, kDLBfloat, 16}, {float64, kDLFloat, 64},
      {int8, kDLInt, 8},       {uint8, kDLUInt, 8},     {int16, kDLInt, 16},       {int32, kDLInt, 32},
      {int64, kDLInt, 64},     {boolean, kDLBool, 8}};
  for (auto const& [type, code, bits] : all) {
    tensor const t = empty({2}, {.dtype = type, .on = cpu});
    auto out = to_dlpack(t);
    EXPECT_EQ(out->dl_tensor.dtype.code, code) << name_of(type);
    EXPECT_EQ(out->dl_tensor.dtype.bits, bits) << name_of(type);
    EXPECT_EQ(out->dl_tensor.dtype.lanes, 1);
    EXPECT_EQ(out->dl_tensor.device.device_type, kDLCPU);
    EXPECT_EQ(from_dlpack(std::move(out)).dtype(), type);
  }
  DLDevice const there = dlpack_device(empty({2}, {.on = 1}));
  EXPECT_TRUE(there.device_type == kDLExtDev && there.device_id == 1);
}

TEST_F(dlpack, an_export_keeps_the_memory_until_its_deleter) {
  tensor t = full({1000}, 7);
  auto out = to_dlpack(t);
  auto const* const data = t.data();
  t = {};
  ASSERT_TRUE(find_block(data));
  float last = 0;
  copy(&last, static_cast<float const*>(out->dl_tensor.data) + 999, sizeof last);
  EXPECT_EQ(last, 7);
  out.reset();
  EXPECT_FALSE(find_block(data));
  EXPECT_EQ(memory_allocated(), 0u);
}

TEST_F(dlpack, scalars_and_nothing_can_be_exported) {
  auto const one = to_dlpack(full({}, 3, {.on = cpu}));
  EXPECT_EQ(one->dl_tensor.ndim, 0);
  EXPECT_EQ(*static_cast<float*>(one->dl_tensor.data), 3);
  auto none = to_dlpack(empty({2, 0}));
  EXPECT_EQ(none->dl_tensor.data, nullptr);
  EXPECT_NE(none->dl_tensor.strides, nullptr);
  EXPECT_EQ(from_dlpack(std::move(none)).shape(), (shape{2, 0}));
}

TEST_F(dlpack, the_old_structure_is_made_and_read_too) {
  dlpack_pointer<DLManagedTensor> old = to_dlpack<DLManagedTensor>(full({2, 3}, 4));
  void* const data = old->dl_tensor.data;
  {
    tensor const back = from_dlpack(std::move(old));
    EXPECT_EQ(back.data(), data);
    EXPECT_EQ(back[1][2].item<float>(), 4);
  }
  EXPECT_FALSE(find_block(data));
}

// Nothing waits on the host.
TEST_F(dlpack, the_consumer_waits_for_the_tensors_stream) {
  tensor const t = empty({4});
  held gate(m, default_stream());
  auto const out = to_dlpack(t, s);
  EXPECT_FALSE(s.query());
  gate.open();
  s.synchronize();
}

TEST_F(dlpack, memory_given_back_waits_for_the_consumers_work) {
  tensor t = empty({1 << 20});
  auto out = to_dlpack(t, s);
  t = {};
  held gate(m, s);
  out.reset();
  EXPECT_EQ(memory_stats().pending_bytes.all.current, 4 << 20);
  gate.open();
  s.synchronize();
}

TEST_F(dlpack, an_import_shares_memory_and_layout) {
  tensor const t = from_dlpack(&from.managed);
  EXPECT_EQ(t.data(), from.values.data());
  EXPECT_EQ(t.device(), cpu);
  EXPECT_EQ(t[1][0].item<float>(), 3);
  from.values[3] = 30;
  EXPECT_EQ(t[1][0].item<float>(), 30);
}

TEST_F(dlpack, an_import_honours_strides_and_offset) {
  from.extents = {2, 2}, from.steps = {1, 2};
  from.is().byte_offset = 4;
  tensor const t = from_dlpack(&from.managed);
  EXPECT_FALSE(t.is_contiguous());
  EXPECT_EQ(t.contiguous().host<float>()[1], 3);
  EXPECT_EQ(t.contiguous().host<float>()[2], 2);
  EXPECT_EQ(t.storage().nbytes(), 16u) << "from the first to the last element";
}

TEST_F(dlpack, without_strides_rows_follow_each_other) {
  from.is().strides = nullptr;
  EXPECT_EQ(from_dlpack(&from.managed).strides(), (strides{3, 1}));
}

TEST_F(dlpack, the_deleter_is_called_once_after_the_last_view) {
  tensor t = from_dlpack(&from.managed);
  tensor view = t[1].slice(0, 1, 2);
  t = {};
  EXPECT_EQ(from.freed, 0);
  EXPECT_EQ(view.item<float>(), 4);
  view = {};
  EXPECT_EQ(from.freed, 1);
  from.managed.deleter = nullptr;  // allowed: nothing is called
  (void)from_dlpack(&from.managed);
  EXPECT_EQ(from.freed, 1);
}

TEST_F(dlpack, nothing_is_given_back_too) {
  from.extents = {0, 3};
  from.is().data = nullptr;
  EXPECT_EQ(from_dlpack(&from.managed).numel(), 0);
  EXPECT_EQ(from.freed, 1);
}

// The producer's stream is ready first, and waits for every recorded stream before the deleter's call.
TEST_F(dlpack, an_import_is_ordered_at_both_ends) {
  buffer const memory(s, 24);
  from.on_device(memory.data(), 0);
  stream reader{device(0)};
  held before(m, s);
  tensor t = from_dlpack(&from.managed, s);
  EXPECT_FALSE(default_stream().query()) << "the current stream waits for the producer's";
  before.open();
  default_stream().synchronize();
  held after(m, reader);
  t.record_stream(reader);
  t.record_stream(reader);
  bool idle = true;
  from.at_end = [&] { idle = s.query(); };
  t = {};
  EXPECT_EQ(from.freed, 1);
  EXPECT_FALSE(idle) << "the producer's stream waits for the reader";
  after.open();
  s.synchronize();
}

TEST_F(dlpack, the_importing_stream_counts_as_a_user) {
  buffer const memory(s, 24);
  from.on_device(memory.data(), 0);
  tensor t = from_dlpack(&from.managed, s);
  held gate(m, default_stream());
  t = {};
  EXPECT_FALSE(s.query());
  gate.open();
  s.synchronize();
}

// Its stream can no longer be told to wait: the host waits instead.
TEST_F(dlpack, an_ended_producer_is_waited_for_by_the_host) {
  buffer const memory(24);
  from.on_device(memory.data(), 0);
  std::optional<stream> producer(std::in_place, device(0));
  tensor t = from_dlpack(&from.managed, *producer);
  producer.reset();
  held gate(m, default_stream());
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    gate.open();
  });
  bool done = false;
  from.at_end = [&] { done = default_stream().query(); };
  t = {};
  EXPECT_TRUE(done);
  opener.join();
}

TEST_F(dlpack, a_round_trip_leaves_nothing_behind) {
  {
    tensor const t = full({3, 4}, 2, {.on = 1});
    stream there{device(1)};
    tensor const back = from_dlpack(to_dlpack(t.t(), there), there);
    EXPECT_EQ(back.data(), t.data());
    EXPECT_EQ(back.shape(), (shape{4, 3}));
    EXPECT_EQ(back.device(), device(1));
    EXPECT_EQ(sum(back.contiguous()).item<float>(), 24);
  }
  EXPECT_EQ(memory_allocated(1), 0u);
}

TEST_F(dlpack, an_array_is_exported_with_its_stream) {
  std::vector<float> const host{1, 2, 3};
  array<float> a(s, host);
  float* const there = a.data();
  held gate(m, s);
  stream consumer{device(0)};
  auto const out = to_dlpack(std::move(a), consumer);
  EXPECT_FALSE(consumer.query());
  EXPECT_EQ(out->dl_tensor.data, there);
  EXPECT_EQ(out->dl_tensor.shape[0], 3);
  EXPECT_TRUE(a.empty());
  gate.open();
  consumer.synchronize();
}

TEST_F(dlpack, bad_exports_are_refused) {
  EXPECT_NE(refused([] { (void)to_dlpack(tensor()); }).find("undefined"), std::string::npos);
  refused([] { (void)dlpack_device(tensor()); });
  tensor const t = empty({2});
  EXPECT_NE(refused([&] { (void)to_dlpack(t, default_stream(1)); }).find("gpu:1"), std::string::npos);
  EXPECT_NE(refused([&] { (void)to_dlpack(t.peer_view(1)); }).find("peer_view"), std::string::npos);
}

TEST_F(dlpack, other_versions_and_read_only_memory_are_refused) {
  EXPECT_NE(refused([] { (void)from_dlpack(static_cast<DLManagedTensor*>(nullptr)); }).find("null"), std::string::npos);
  from.managed.version = {2, 0};
  expect_refused<not_supported>("DLPack 2.0");
  from.managed.version = {1, 9};
  from.managed.flags = DLPACK_FLAG_BITMASK_READ_ONLY;
  expect_refused("read-only");
  EXPECT_EQ(from_dlpack(&from.managed, std::nullopt, dlpack_read_only::accept).data(), from.values.data());
  EXPECT_EQ(from.freed, 1);
}

TEST_F(dlpack, element_types_that_weir_lacks_are_refused) {
  for (DLDataType const type : {DLDataType{kDLFloat, 8, 1}, DLDataType{kDLFloat, 32, 4}, DLDataType{kDLComplex, 64, 1},
                                DLDataType{kDLUInt, 32, 1}, DLDataType{99, 32, 1}}) {
    from.is().dtype = type;
    expect_refused<not_supported>("type code " + std::to_string(type.code));
  }
}

TEST_F(dlpack, impossible_shapes_are_refused) {
  from.is().ndim = -1;
  expect_refused("-1 dimensions");
  from.is().ndim = 9;
  expect_refused("9 dimensions");
  from.is().ndim = 2;
  from.extents = {2, -3};
  expect_refused("negative extent");
  from.extents = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  expect_refused("more than 2^63 elements");
  from.extents = {2, 3};
  from.steps = {-3, 1};
  expect_refused("none negative");
  from.steps = {std::int64_t{1} << 62, 1};
  expect_refused("overflowed");
  from.is().ndim = 4;  // their sum is 2^64
  from.extents.assign(4, 2), from.steps.assign(4, std::int64_t{1} << 62);
  from.is().shape = from.extents.data(), from.is().strides = from.steps.data();
  expect_refused("overflowed");
  from.is().shape = nullptr;
  expect_refused("no shape");
}

TEST_F(dlpack, memory_elsewhere_than_said_is_refused) {
  buffer const memory(24, {.on = 1});
  buffer const pinned(24, {.on = cpu, .kind = memory_kind::pinned});
  from.is().device = {kDLExtDev, 0};
  expect_refused("as memory of gpu:0 is on the cpu");
  from.on_device(memory.data(), 0);
  expect_refused("as memory of gpu:0 is on gpu:1");
  from.on_device(pinned.data(), 0);
  expect_refused("is on cpu");
  from.on_device(memory.data(), 7);
  expect_refused("device 7 of 2");
  from.on_device(memory.data(), -1);
  expect_refused("device -1 of 2");
  from.is().device = {kDLCPU, 0};
  expect_refused("as memory of the cpu");
  from.is().device = {kDLCUDA, 1};
  expect_refused<not_supported>("simulated");
  from.is().device = {kDLCUDAManaged, 0};
  expect_refused<not_supported>("device type 13");
  from.on_device(memory.data(), 1);
  expect_refused("with a stream of gpu:0", s);
  from.is().data = nullptr;
  expect_refused("no data");
  from.is().data = static_cast<std::byte*>(memory.data()) + 2;
  expect_refused("multiple of its size");
}

TEST_F(dlpack, errors_name_the_line_of_the_call) {
  from.steps = {-3, 1};
  try {
    (void)from_dlpack(&from.managed);
    FAIL();
  } catch (invalid_use const& e) {
    EXPECT_NE(std::string(e.where().file_name()).find("dlpack_test"), std::string::npos);
  }
}

}  // namespace
}  // namespace weir
