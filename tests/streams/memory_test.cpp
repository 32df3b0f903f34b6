// weir/memory.h and weir/observe.h as programs use them.
// Threads: one, but where a test says so.
#include "weir/memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include "runtime/memory/device/device_memory.h"
#include "tests/streams/stepped_machine.h"
#include "weir/copy.h"
#include "weir/observe.h"

namespace weir {
namespace {

struct memory_api : stepped_machine {
  ~memory_api() override {
    auto* const m = rt.get().part_if_made<memory::device_memory>();
    for (int d = 0; d < 2; ++d) {
      if (memory::allocator* const a = m ? m->if_made(d) : nullptr) {
        EXPECT_EQ(a->validate(), std::vector<std::string>{});
      }
    }
  }
};

TEST_F(memory_api, blocks_come_from_the_current_stream_and_device) {
  stream side;
  void* p = nullptr;
  {
    stream_guard in_side{side};
    p = allocate(1000);
  }
  auto const found = find_block(static_cast<char*>(p) + 999);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, p);
  EXPECT_EQ(found->bytes, 1000u);
  EXPECT_EQ(found->on, device(0));
  EXPECT_EQ(found->home, side.ref());
  EXPECT_FALSE(find_block(static_cast<char*>(p) + 1008)) << "the next slot";
  EXPECT_FALSE(find_block(&p));
  deallocate(p);
  device_guard on{1};
  void* const q = allocate(1000);
  EXPECT_EQ(find_block(q)->on, device(1));
  deallocate(q);
  EXPECT_EQ(memory_allocated(0), 0u);
  EXPECT_EQ(memory_allocated(1), 0u);
  EXPECT_EQ(max_memory_allocated(1), 1024u - 16u) << "rounded to 16 B";
}

TEST_F(memory_api, a_buffer_belongs_to_the_stream_it_names) {
  stream const side(device(1));
  {
    buffer const b(side, 5000, 4096);
    EXPECT_EQ(b.info().home, side.ref());
    EXPECT_EQ(b.info().on, device(1));
    EXPECT_EQ(b.size(), 5000u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 4096, 0u);
    EXPECT_EQ(memory_allocated(0), 0u);
  }
  EXPECT_EQ(memory_allocated(1), 0u);
  EXPECT_THROW(buffer(side, 1, 3), invalid_use) << "no alignment";
}

TEST_F(memory_api, a_fill_runs_on_the_stream_it_names) {
  stream side;
  void* const p = allocate(side, 1000);
  stamp const done = fill(side, p, std::byte{7}, 1000);
  EXPECT_FALSE(done.query());
  EXPECT_FALSE(step(current_stream())) << "no other stream was given anything";
  drain(side);
  EXPECT_TRUE(done.query());
  stream const far(device(1));
  EXPECT_NE(refused<invalid_use>([&] { fill(far, p, std::byte{7}, 1000); }).find("on a stream of gpu:1"),
            std::string::npos);
  deallocate(p);
}

TEST_F(memory_api, a_recorded_block_waits_for_that_stream) {
  stream side;
  void* const p = allocate(1_MiB);
  record_stream(static_cast<char*>(p) + 5, side);
  work(side, 1);
  deallocate(p);
  void* const q = allocate(1_MiB);
  EXPECT_NE(q, p);
  drain(side);
  side.ref().synchronize();
  void* const r = allocate(1_MiB);
  EXPECT_EQ(r, p);
  deallocate(q);
  deallocate(r);
}

TEST_F(memory_api, a_buffer_owns_its_block_and_moves) {
  buffer a(1000);
  void* const at = a.data();
  EXPECT_EQ(a.size(), 1000u);
  buffer b(std::move(a));
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(b.data(), at);
  buffer c(500);
  c = std::move(b);
  EXPECT_EQ(memory_stats().allocation.all.current, 1) << "c's first block went back";
  EXPECT_EQ(c.info().bytes, 1000u);
  buffer d = buffer::adopt(c.release());
  EXPECT_EQ(d.data(), at);
  EXPECT_EQ(d.size(), 1000u);
  d.reset();
  EXPECT_EQ(memory_allocated(), 0u);
  static_assert(sizeof(buffer) == 24);
}

// A block has one owner. Without release() the buffer that adopted it last owns it, and the other gives
// nothing back: by then the block may be a third party's.
TEST_F(memory_api, a_buffer_whose_block_was_adopted_frees_nothing) {
  for (bool const locked : {false, true}) {
    for (bool const adopter_ends_first : {true, false}) {
      buffer_options const kind{.kind = locked ? memory_kind::pinned : memory_kind::device};
      buffer owner(5000, kind);
      void* const at = owner.data();
      buffer adopter = buffer::adopt(at);
      if (!adopter_ends_first) {
        testing::internal::CaptureStderr();
        owner.reset();
        EXPECT_NE(testing::internal::GetCapturedStderr().find("was adopted by another buffer at "), std::string::npos);
        EXPECT_TRUE(find_block(at)) << "the adopter's";
      }
      adopter.reset();
      EXPECT_FALSE(find_block(at));
      buffer const third(5000, kind);
      ASSERT_EQ(third.data(), at);
      if (adopter_ends_first) {
        buffer moved = std::move(owner);
        testing::internal::CaptureStderr();
        moved.reset();
        std::string const said = testing::internal::GetCapturedStderr();
        EXPECT_NE(said.find("was adopted by another buffer at "), std::string::npos) << said;
        EXPECT_NE(said.find("memory_test.cpp:"), std::string::npos) << said;
      }
      EXPECT_TRUE(find_block(at)) << "the third party's";
      EXPECT_EQ(third.info().bytes, 5000u);
    }
  }
}

TEST_F(memory_api, a_released_block_can_be_adopted_again) {
  buffer first = buffer::adopt(allocate(5000));
  void* const at = first.data();
  std::string const said = refused<invalid_use>([&] { (void)buffer::adopt(at); });
  EXPECT_NE(said.find("belongs to the buffer that adopted it at "), std::string::npos) << said;
  EXPECT_EQ(first.info().bytes, 5000u) << "nothing has changed";
  testing::internal::CaptureStderr();
  {
    buffer const second = buffer::adopt(first.release());
    EXPECT_EQ(second.data(), at);
  }
  EXPECT_FALSE(find_block(at));
  buffer plain(5000);
  ASSERT_EQ(plain.data(), at);
  buffer third = buffer::adopt(plain.release());
  buffer fourth = std::move(third);
  fourth.reset();
  deallocate(buffer::adopt(allocate(5000)).release());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(memory_allocated(), 0u);
}

// An owner that comes late must not give back what lies there by then.
TEST(ended_runtime, its_addresses_are_not_reused) {
  simulated const like{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1};
  buffer old;
  {
    runtime first{like};
    runtime_guard const in{first};
    old = buffer(1_MiB);
  }
  for (int attempt = 0; attempt < 10; ++attempt) {
    runtime next{like};
    runtime_guard const in{next};
    buffer const all(32_MiB), more(16_MiB);
    for (buffer const* const b : {&all, &more})
      EXPECT_GE(static_cast<std::size_t>(std::abs(b->data<char>() - old.data<char>())), 16_MiB);
    EXPECT_FALSE(find_block(old.data()));
  }
  old.reset();
}

TEST_F(memory_api, host_access_to_device_memory_is_refused) {
  buffer const on_device(64), page_locked(64, {.on = cpu, .kind = memory_kind::pinned}), plain(64, {.on = cpu});
  EXPECT_THROW((void)on_device.host<float>(), invalid_use);
  EXPECT_EQ(page_locked.host<float>().size(), 16u);
  EXPECT_EQ(page_locked.info().kind, memory_kind::pinned);
  EXPECT_EQ(plain.info().kind, memory_kind::pageable);
  plain.host<float>()[15] = 1;
  page_locked.host<float>()[15] = 1;
  std::byte const bytes[3]{std::byte{1}, std::byte{2}, std::byte{3}};
  EXPECT_EQ(pin_memory(bytes).host<std::byte>()[2], std::byte{3});
}

TEST_F(memory_api, a_transferred_buffer_belongs_to_its_new_stream) {
  stream side;
  buffer b(1_MiB);
  work(current_stream(), 1);
  stamp const used = current_stream().stamp();
  b.set_stream(side);
  EXPECT_EQ(b.info().home, side.ref());
  EXPECT_TRUE(streams::clock_of(side).covers(streams::inner_stamp(used)));
  buffer host(10, {.on = cpu});
  EXPECT_THROW(host.set_stream(side), invalid_use);
}

TEST_F(memory_api, wrong_addresses_are_refused_by_name) {
  int local = 0;
  void* const p = allocate(10'000);
  EXPECT_NE(refused<invalid_use>([&] { deallocate(&local); }).find("not a live block of weir"), std::string::npos);
  EXPECT_NE(refused<invalid_use>([&] { deallocate(static_cast<char*>(p) + 100); }).find("100 B inside"),
            std::string::npos);
  deallocate(p);
  EXPECT_NE(refused<invalid_use>([&] { deallocate(p); }), "");
  EXPECT_NE(refused<invalid_use>([&] { record_stream(p, current_stream()); }), "");
  EXPECT_NE(refused<invalid_use>([&] { (void)buffer::adopt(p); }), "");
  EXPECT_NE(refused<invalid_use>([&] { buffer b(10, {.on = device(7)}); }).find("7"), std::string::npos);
  EXPECT_NE(refused<out_of_memory>([&] { buffer b(~size_t{0}); }), "");
  EXPECT_NE(refused<out_of_memory>([&] { buffer b(~size_t{0} - 4096, {.on = cpu}); }), "");
  deallocate(nullptr);
}

TEST_F(memory_api, a_block_goes_back_to_its_own_runtime) {
  runtime other{simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::stepped, .seed = 2}};
  std::optional<buffer> b;
  {
    runtime_guard in_other{other};
    b.emplace(1000);
    EXPECT_EQ(memory_stats().allocation.all.current, 1);
  }
  EXPECT_EQ(memory_stats().allocation.all.current, 0);
  b.reset();
  runtime_guard in_other{other};
  EXPECT_EQ(memory_stats().allocation.all.current, 0);
}

TEST_F(memory_api, a_buffer_may_outlive_its_runtime) {
  ::testing::internal::CaptureStderr();
  std::optional<buffer> late, late_pinned;
  {
    runtime other{simulated{.devices = 1, .memory = 16_MiB, .schedule = simulated::scheduling::stepped, .seed = 2}};
    runtime_guard in_other{other};
    late.emplace(1000);
    late_pinned.emplace(1000, buffer_options{.on = cpu, .kind = memory_kind::pinned});
  }
  late.reset();
  late_pinned.reset();
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("not freed before the runtime ended"), std::string::npos);
}

TEST_F(memory_api, limits_and_fractions_hold_and_callbacks_make_room) {
  set_per_process_memory_fraction(0.25);
  buffer a(8_MiB);
  EXPECT_THROW(buffer(12_MiB), out_of_memory);
  EXPECT_THROW(set_per_process_memory_fraction(1.5), invalid_use);
  {
    auto const registered = on_out_of_memory([&](memory_report const& r) {
      EXPECT_EQ(r.requested, 12_MiB);
      a.reset();
      return true;
    });
    buffer b(12_MiB);
    EXPECT_EQ(b.size(), 12_MiB);
  }
  set_memory_limit(0);
  buffer c(40_MiB);
  EXPECT_LE(memory_reserved(), 64_MiB);
  c.reset();
  EXPECT_GE(empty_cache(), 40_MiB);
}

// As torch's fraction, whose users want the rest of the device for others: what is free goes at once.
TEST_F(memory_api, a_limit_below_what_is_held_returns_what_is_free) {
  buffer live(8_MiB);
  { buffer const freed(32_MiB); }
  synchronize();
  EXPECT_GE(memory_reserved(), 40_MiB);
  set_memory_limit(16_MiB);
  EXPECT_LE(memory_reserved(), 16_MiB);
  set_memory_limit(4_MiB);
  EXPECT_GE(memory_reserved(), 8_MiB) << "live blocks keep theirs";
  EXPECT_EQ(memory_allocated(), 8_MiB);
  EXPECT_THROW(buffer(1_MiB), out_of_memory);
  live.reset();
  EXPECT_NO_THROW(buffer(1_MiB)) << "in what they left";
  set_memory_limit(0);
}

TEST_F(memory_api, asking_for_statistics_uses_no_device) {
  EXPECT_EQ(memory_allocated(1), 0u);
  EXPECT_EQ(memory_stats(1).segment.all.allocated, 0);
  EXPECT_EQ(empty_cache(1), 0u);
  buffer b(10_MiB);
  EXPECT_EQ(memory_reserved(0), 10_MiB);
  EXPECT_EQ(current_memory_report().allocated, 10_MiB);
  EXPECT_NE(memory_summary().find("10,485,760"), std::string::npos) << memory_summary();
  reset_peak_memory_stats();
  b.reset();
  EXPECT_EQ(max_memory_allocated(), 10_MiB);
  reset_peak_memory_stats();
  EXPECT_EQ(max_memory_allocated(), 0u);
}

// It sets no limit.
TEST_F(memory_api, a_fraction_of_unknown_memory_is_refused) {
  buffer const a(1_MiB);
  control.fail_call("info", 1, driver::code::failed);
  EXPECT_THROW(set_per_process_memory_fraction(0.5), driver_error);
  EXPECT_EQ(buffer(8_MiB).size(), 8_MiB);
}

TEST_F(memory_api, pageable_alignment_goes_up_to_two_mebibytes) {
  for (size_t const alignment : {4_KiB, 2_MiB}) {
    buffer const b(100, {.on = cpu, .alignment = alignment});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % alignment, 0u);
  }
  EXPECT_NE(refused<invalid_use>([&] { buffer b(100, {.on = cpu, .alignment = 4_MiB}); }), "");
}

TEST_F(memory_api, a_pageable_buffer_gives_its_memory_back) {
  auto const mapped = [] { return mallinfo2().hblkhd; };  // of large blocks; always 0 under a sanitizer
  auto const before = mapped();
  buffer large(256_MiB, {.kind = memory_kind::pageable});
  large.reset();
  EXPECT_EQ(mapped(), before);
}

}  // namespace
}  // namespace weir
