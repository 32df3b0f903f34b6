// Rules M9 to M14 and M16 of docs/reference/simulated-machine.md, on
// every machine: places, pages, bytes, refusals, peers.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

class memory : public conformance {};
WEIR_CONFORMANCE(memory);

TEST_P(memory, m9_copies_know_device_and_pinned_memory_only) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const h = pinned(8192);
  std::vector<std::uint32_t> pageable(4096, 5);
  for (void* to : {static_cast<void*>(b.words()), static_cast<void*>(h)}) {
    EXPECT_OK(machine().copy(0, s, to, b.words() + 512, 64));
    EXPECT_OK(machine().copy(0, s, to, h + 512, 64));
    EXPECT_SAYS(code::invalid, machine().copy(0, s, to, pageable.data(), 64));
    EXPECT_SAYS(code::invalid, machine().copy(0, s, pageable.data(), to, 64));
  }
  EXPECT_SAYS(code::invalid, machine().copy(0, s, pageable.data(), pageable.data() + 64, 64));
  finish(0, s);
  EXPECT_EQ(pageable, std::vector<std::uint32_t>(4096, 5));
}

// CUDA has two buffers of 1 MiB a device for large uploads, and 4 MiB a stream for small ones. A further call waits.
TEST_P(memory, m9_uploads_within_their_room_wait_for_no_work) {
  auto const room = machine().room_for_uploads();
  ASSERT_GE(room.bytes, 2 * room.most_of_a_small_one);
  std::size_t const bytes_of_pages = (room.bytes + page() - 1) / page() * page();
  auto const s = stream(0), t = stream(0);
  auto const b = conformance::memory(0, bytes_of_pages), c = conformance::memory(0, bytes_of_pages);
  std::vector<std::uint32_t> source(room.bytes / 4, 7);
  auto const small = room.most_of_a_small_one;
  for (auto const& [bytes, times] :
       {std::pair{room.bytes, 1}, {room.bytes / 2, 2}, {small + 4, 2}, {small, int(room.bytes / small)}}) {
    SCOPED_TRACE(bytes);
    auto &one = hold(0, s), &other = hold(0, t);
    for (int k = 0; k < times; ++k) {
      std::fill(source.begin(), source.end(), 7 + k);
      EXPECT_OK(machine().upload(0, k % 2 ? t : s, k % 2 ? c.words() : b.words(), source.data(), bytes));
    }
    std::fill(source.begin(), source.end(), 1);
    EXPECT_SAYS(code::not_ready, machine().query_stream(0, s));
    one.open(), other.open();
    finish(0, s), finish(0, t);
    EXPECT_EQ(read(times > 1 ? c : b), static_cast<std::uint32_t>(7 + times - 1));
    if (times > 1) {
      EXPECT_EQ(read(b), static_cast<std::uint32_t>(7 + times - 2));
    }
  }
  EXPECT_OK(machine().upload(0, s, b.words(), source.data(), 0));
}

TEST_P(memory, m9_an_upload_may_end_in_pinned_memory) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const pages = static_cast<std::uint32_t*>(
      ::mmap(nullptr, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_OK(machine().pin(pages + 1024, 4096));
  std::fill(pages, pages + 2048, 7);
  auto& g = hold(0, s);
  EXPECT_OK(machine().upload(0, s, b.words(), pages, 2 * 4096));
  std::fill(pages, pages + 2048, 9);
  g.open();
  finish(0, s);
  for (std::size_t k = 0; k < 2048; k += 511)
    EXPECT_EQ(read(b, k), 7u) << k;
  EXPECT_OK(machine().unpin(pages + 1024));
  ::munmap(pages, 2 * 4096);
}

TEST_P(memory, m9_an_upload_to_what_is_no_device_memory_is_refused) {
  auto const s = stream(0);
  std::vector<std::uint32_t> source(16, 7), target(16, 5);
  EXPECT_SAYS(code::invalid, machine().upload(0, s, target.data(), source.data(), 64));
  EXPECT_SAYS(code::invalid, machine().upload(9, s, target.data(), source.data(), 64));
  finish(0, s);
  EXPECT_EQ(target, std::vector<std::uint32_t>(16, 5));
}

TEST_P(memory, m9_one_pageable_byte_is_enough_to_refuse_a_copy) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const pages =
      static_cast<char*>(::mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_OK(machine().pin(pages + 4096, 4096));
  EXPECT_OK(machine().copy(0, s, b.words(), pages + 4096, 4096));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, b.words(), pages + 4096, 4097));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, b.words(), pages + 4095, 2));
  finish(0, s);
  EXPECT_OK(machine().unpin(pages + 4096));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, b.words(), pages + 4096, 4096));
  ::munmap(pages, 3 * 4096);
}

TEST_P(memory, m9_a_copy_of_unmapped_addresses_is_refused) {
  auto const s = stream(0);
  auto* const h = pinned(4096);
  std::size_t const p = page();
  auto const at = machine().reserve(4 * p, 0);
  ASSERT_OK(at.is);
  auto* const base = reinterpret_cast<char*>(at.value);
  std::vector<memory_handle> handles;
  for (std::size_t k = 0; k < 2; ++k) {
    handles.push_back(machine().create(0, p).value);
    EXPECT_OK(machine().map(at.value + k * p, p, handles.back()));
  }
  EXPECT_OK(machine().grant(at.value, 2 * p, 0));
  EXPECT_OK(machine().copy(0, s, base + p - 64, h, 128)) << "over two mappings side by side";
  EXPECT_SAYS(code::invalid, machine().copy(0, s, base + 2 * p, h, 64));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, h, base + 3 * p, 64));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, base + 2 * p - 64, h, 128));
  EXPECT_SAYS(code::invalid, machine().fill(0, s, base + 2 * p, 0, 4, 4));
  EXPECT_OK(machine().fill(0, s, base + p - 64, 0, 4, 32));
  finish(0, s);
  EXPECT_OK(machine().unmap(at.value, p));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, base + p - 64, h, 128));
  EXPECT_OK(machine().copy(0, s, base + p, h, 128));
  finish(0, s);
  EXPECT_OK(machine().unmap(at.value + p, p));
  for (memory_handle const handle : handles)
    EXPECT_OK(machine().release(handle));
  EXPECT_OK(machine().unreserve(at.value, 4 * p));
}

// Another pin begins there.
TEST_P(memory, m9_a_copy_ends_where_its_pin_ends) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const pages =
      static_cast<char*>(::mmap(nullptr, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_OK(machine().pin(pages, 4096));
  ASSERT_OK(machine().pin(pages + 4096, 4096));
  EXPECT_SAYS(code::invalid, machine().copy(0, s, b.words(), pages + 4032, 128));
  EXPECT_OK(machine().copy(0, s, b.words(), pages + 4032, 64));
  EXPECT_OK(machine().fill(0, s, pages + 4096, 7, 4, 2));
  finish(0, s);
  EXPECT_EQ(pages[4096], 7);
  EXPECT_OK(machine().unpin(pages));
  EXPECT_OK(machine().unpin(pages + 4096));
  ::munmap(pages, 2 * 4096);
}

TEST_P(memory, m9_addresses_are_found_where_they_are) {
  auto const b = conformance::memory(0);
  auto* const h = pinned(4096);
  int on_stack = 0;
  auto const device = machine().find(b.words() + 3), host = machine().find(h + 3), neither = machine().find(&on_stack);
  EXPECT_OK(device.is);
  EXPECT_EQ(device.value.in, driver::where::device);
  EXPECT_EQ(device.value.device, 0);
  EXPECT_EQ(host.value.in, driver::where::pinned);
  EXPECT_EQ(neither.value.in, driver::where::pageable);
}

TEST_P(memory, m10_a_pinned_source_is_read_until_completion) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const h = pinned(4096);
  *h = 1;
  auto& g = hold(0, s);
  EXPECT_OK(machine().copy(0, s, b.words(), h, 4));
  *h = 2;
  g.open();
  finish(0, s);
  EXPECT_EQ(read(b), 2u);
}

TEST_P(memory, m10_a_pinned_target_is_written_until_completion) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const h = pinned(4096);
  write(b, 2);
  auto& g = hold(0, s);
  EXPECT_OK(machine().copy(0, s, h, b.words(), 4));
  *h = 5;
  g.open();
  finish(0, s);
  EXPECT_EQ(*h, 2u) << "it was written before its turn";
}

TEST_P(memory, m11_map_and_unmap_take_whole_handles) {
  std::size_t const p = page();
  auto const at = machine().reserve(8 * p, 0);
  auto const two = machine().create(0, 2 * p), one = machine().create(0, p);
  ASSERT_OK(at.is);
  ASSERT_OK(two.is);
  ASSERT_OK(one.is);
  address const a = at.value;
  EXPECT_SAYS(code::invalid, machine().map(a, p, two.value));
  EXPECT_SAYS(code::invalid, machine().map(a + p / 2, 2 * p, two.value));
  EXPECT_SAYS(code::invalid, machine().map(a + 7 * p, 2 * p, two.value));
  EXPECT_SAYS(code::invalid, machine().map(a + 64 * p, 2 * p, two.value));
  EXPECT_OK(machine().map(a, 2 * p, two.value));
  EXPECT_SAYS(code::invalid, machine().map(a + p, p, one.value));
  EXPECT_SAYS(code::invalid, machine().grant(a, p, 0));
  EXPECT_SAYS(code::invalid, machine().grant(a, 3 * p, 0));
  EXPECT_OK(machine().map(a + 2 * p, p, one.value));
  EXPECT_OK(machine().grant(a, 3 * p, 0));
  EXPECT_SAYS(code::invalid, machine().unmap(a, p));
  EXPECT_SAYS(code::invalid, machine().unmap(a + p, p));
  EXPECT_SAYS(code::invalid, machine().unmap(a, 3 * p));
  EXPECT_SAYS(code::invalid, machine().unmap(a + 4 * p, p));
  EXPECT_SAYS(code::invalid, machine().unreserve(a, 8 * p));
  EXPECT_OK(machine().unmap(a, 2 * p));
  EXPECT_SAYS(code::invalid, machine().unmap(a, 2 * p));
  EXPECT_SAYS(code::invalid, machine().unreserve(a, p));
  EXPECT_SAYS(code::invalid, machine().unreserve(a + p, 7 * p));
  EXPECT_OK(machine().unmap(a + 2 * p, p));
  EXPECT_OK(machine().release(two.value));
  EXPECT_SAYS(code::invalid, machine().map(a, 2 * p, two.value));
  EXPECT_SAYS(code::invalid, machine().release(two.value));
  EXPECT_OK(machine().release(one.value));
  EXPECT_OK(machine().unreserve(a, 8 * p));
  EXPECT_SAYS(code::invalid, machine().unreserve(a, 8 * p));
  EXPECT_SAYS(code::invalid, machine().reserve(p / 2, 0).is);
  EXPECT_SAYS(code::invalid, machine().reserve(0, 0).is);
  EXPECT_SAYS(code::invalid, machine().create(0, p + 1).is);
  EXPECT_SAYS(code::invalid, machine().create(0, 0).is);
}

TEST_P(memory, m11_a_reservation_is_aligned_as_asked) {
  for (std::size_t const times : {1, 2, 16}) {
    auto const at = machine().reserve(page(), times * page());
    ASSERT_OK(at.is);
    EXPECT_EQ(at.value % (times * page()), 0u);
    EXPECT_OK(machine().unreserve(at.value, page()));
  }
  EXPECT_SAYS(code::invalid, machine().reserve(page(), 3 * page()).is);
}

// Or the unmap waits for the work.
TEST_P(memory, m11_work_before_a_remap_hits_the_new_page) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto const fresh = machine().create(0, page());
  ASSERT_OK(fresh.is);
  write(b, 1);
  auto const held = machine().hold(0, s);
  ASSERT_OK(held.is);
  store(0, s, b.words(), 2);
  std::atomic<bool> remapped{false};
  auto const remap = [&] {
    EXPECT_OK(machine().unmap(b.at, page()));
    EXPECT_OK(machine().map(b.at, page(), fresh.value));
    EXPECT_OK(machine().grant(b.at, page(), 0));
    remapped = true;
  };
  std::thread other;
  if (seeded()) {
    remap();  // does not wait for a closed gate
  } else {
    other = std::thread(remap);
    for (int i = 0; i < 50 && !remapped; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  bool const waited = !remapped;
  EXPECT_OK(machine().open_gate(held.value));
  if (other.joinable())
    other.join();
  finish(0, s);
  RecordProperty("unmap", waited ? "waited" : "did not wait");
  if (!waited) {
    EXPECT_EQ(read(b), 2u) << "the store should have hit the page that is there when it runs";
  }
  auto const elsewhere = machine().reserve(page(), 0);
  ASSERT_OK(elsewhere.is);
  EXPECT_OK(machine().map(elsewhere.value, page(), b.handle));
  EXPECT_OK(machine().grant(elsewhere.value, page(), 0));
  EXPECT_EQ(read(block{.device = 0, .at = elsewhere.value, .bytes = page(), .handle = b.handle}), waited ? 2u : 1u);
  EXPECT_OK(machine().unmap(elsewhere.value, page()));
  EXPECT_OK(machine().unreserve(elsewhere.value, page()));
  EXPECT_OK(machine().unmap(b.at, page()));
  EXPECT_OK(machine().release(fresh.value));
}

TEST_P(memory, unpin_and_release_segment_wait_for_earlier_work) {
  if (seeded())
    GTEST_SKIP() << "a seeded machine has one thread here: it would wait for ever";
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto* const pages = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_OK(machine().pin(pages, 4096));
  auto const segment = machine().create_segment(0, page());
  ASSERT_OK(segment.is);
  for (bool const pin : {true, false}) {
    SCOPED_TRACE(pin ? "unpin" : "release_segment");
    auto const held = machine().hold(0, s);
    ASSERT_OK(held.is);
    store(0, s, b.words(), 2);
    std::atomic<bool> over{false};
    std::thread gives_up([&] {
      EXPECT_OK(pin ? machine().unpin(pages) : machine().release_segment(0, segment.value));
      over = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_FALSE(over);
    EXPECT_OK(machine().open_gate(held.value));
    gives_up.join();
    EXPECT_OK(machine().query_stream(0, s));
  }
  ::munmap(pages, 4096);
}

TEST_P(memory, m12_two_mappings_of_one_handle_share_bytes) {
  auto const s = stream(0);
  auto const b = conformance::memory(0);
  auto const second = machine().reserve(page(), 0);
  ASSERT_OK(second.is);
  EXPECT_OK(machine().map(second.value, page(), b.handle));
  EXPECT_OK(machine().grant(second.value, page(), 0));
  auto* const alias = reinterpret_cast<std::uint32_t*>(second.value);
  store(0, s, b.words(), 11);
  copy_word(0, s, alias + 1, alias);
  copy_word(0, s, b.words() + 2, b.words() + 1);
  finish(0, s);
  EXPECT_EQ(read(b, 2), 11u);
  EXPECT_OK(machine().unmap(second.value, page()));
  EXPECT_EQ(read(b, 1), 11u);
  EXPECT_OK(machine().unreserve(second.value, page()));
}

TEST_P(memory, m13_bytes_belong_to_the_handle) {
  auto const b = conformance::memory(0);
  write(b, 77, 100);
  auto const other = machine().reserve(2 * page(), 0);
  ASSERT_OK(other.is);
  EXPECT_OK(machine().unmap(b.at, page()));
  EXPECT_OK(machine().map(other.value + page(), page(), b.handle));
  EXPECT_OK(machine().grant(other.value + page(), page(), 0));
  EXPECT_EQ(read(block{.device = 0, .at = other.value + page(), .bytes = page(), .handle = b.handle}, 100), 77u);
  EXPECT_OK(machine().unmap(other.value + page(), page()));
  EXPECT_OK(machine().unreserve(other.value, 2 * page()));
}

TEST_P(memory, m13_a_released_handle_lives_until_its_last_unmap) {
  auto const s = stream(0);
  auto const at = machine().reserve(2 * page(), 0);
  auto const handle = machine().create(0, page());
  ASSERT_OK(at.is);
  ASSERT_OK(handle.is);
  block const first{.device = 0, .at = at.value, .bytes = page()},
      second{.device = 0, .at = at.value + page(), .bytes = page()};
  for (block const& b : {first, second}) {
    EXPECT_OK(machine().map(b.at, page(), handle.value));
    EXPECT_OK(machine().grant(b.at, page(), 0));
  }
  EXPECT_OK(machine().release(handle.value));
  store(0, s, first.words(), 5);
  finish(0, s);
  EXPECT_OK(machine().unmap(first.at, page()));
  EXPECT_EQ(read(second), 5u);
  EXPECT_OK(machine().unmap(second.at, page()));
  EXPECT_OK(machine().unreserve(at.value, 2 * page()));
}

// Creates more than fits, freed each time: the release comes before, between or after two unmaps.
TEST_P(memory, m13_bytes_die_with_the_last_mapping_after_the_release) {
  // fewer fresh bytes, because the machine takes time to make them up
  if (control())
    control()->consume_memory(0, machine().memory(0).value.free - 32 * page());
  auto const room = machine().memory(0);
  ASSERT_OK(room.is);
  std::size_t const bytes = room.value.free / 4 / page() * page();
  auto const at = machine().reserve(2 * bytes, 0);
  ASSERT_OK(at.is);
  for (int round = 0; round < 9; ++round) {
    SCOPED_TRACE(round);
    auto const handle = machine().create(0, bytes);
    ASSERT_OK(handle.is);
    EXPECT_OK(machine().map(at.value, bytes, handle.value));
    EXPECT_OK(machine().map(at.value + bytes, bytes, handle.value));
    for (int step = 0; step < 3; ++step) {
      if (step == round % 3) {
        EXPECT_OK(machine().release(handle.value));
      }
      if (step < 2) {
        EXPECT_OK(machine().unmap(at.value + static_cast<std::size_t>(step) * bytes, bytes));
      }
    }
  }
  EXPECT_OK(machine().unreserve(at.value, 2 * bytes));
}

TEST_P(memory, m14_a_refused_call_changes_nothing) {
  auto const s = stream(0);
  auto const e = event(0);
  auto const b = conformance::memory(0);
  auto* const h = pinned(4096);
  write(b, 3);
  std::vector<char> pageable(4096);
  int const absent = machine().device_count();
  std::vector<std::function<status()>> const refused{
      [&] { return machine().map(b.at, page(), b.handle); },
      [&] { return machine().unmap(b.at + page(), page()); },
      [&] { return machine().unreserve(b.at, page()); },
      [&] { return machine().copy(0, s, b.words(), pageable.data(), 16); },
      [&] { return machine().fill(0, s, b.words(), 9, 5, 1); },
      [&] { return machine().pin(h, 4096); },
      [&] { return machine().pin(pageable.data() + 1, 4096); },
      [&] { return machine().unpin(pageable.data()); },
      [&] { return machine().create(absent, page()).is; },
      [&] { return machine().open(absent); },
      [&] { return machine().create_stream(-1, stream_kind::independent, 0).is; },
      [&] { return machine().release_segment(0, b.at); },
      [&] { return machine().open_gate(static_cast<gate_handle>(999'999)); },
      [&] { return machine().release(static_cast<memory_handle>(0xffffff)); },
      [&] { return machine().grant(b.at, page() / 2, 0); },
  };
  auto const room = [&] { return machine().memory(0).value.free; };
  auto const census = [&] { return control() ? control()->census() : std::vector<std::string>{}; };
  auto const free_before = room();
  auto const alive_before = census();
  for (std::size_t i = 0; i < refused.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_SAYS(code::invalid, refused[i]());
    EXPECT_EQ(census(), alive_before);
    if (!on_cuda()) {  // on CUDA other processes may take memory meanwhile
      EXPECT_EQ(room(), free_before);
    }
    EXPECT_OK(machine().query_stream(0, s));
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().copy(0, s, h, b.words(), 4));
    finish(0, s);
    EXPECT_EQ(*h, 3u);
  }
}

TEST_P(memory, m14_missing_memory_is_refused_and_all_works_after) {
  auto const room = machine().memory(0);
  ASSERT_OK(room.is);
  std::size_t const too_much = room.value.total / page() * page() + page();
  EXPECT_SAYS(code::out_of_memory, machine().create(0, too_much).is);
  auto const b = conformance::memory(0);
  write(b, 8);
  EXPECT_EQ(read(b), 8u);
}

TEST_P(memory, segments_serve_where_pages_are_not_wanted) {
  auto const s = stream(0);
  auto const made = machine().create_segment(0, 1 << 20);
  ASSERT_OK(made.is);
  block const b{.device = 0, .at = made.value, .bytes = 1 << 20};
  store(0, s, b.words() + 10, 6);
  finish(0, s);
  EXPECT_EQ(read(b, 10), 6u);
  EXPECT_SAYS(code::invalid, machine().release_segment(0, made.value + 512));
  EXPECT_OK(machine().release_segment(0, made.value));
  EXPECT_SAYS(code::invalid, machine().release_segment(0, made.value));
}

}  // namespace
}  // namespace weir::conformance
