// A ring's items: in order, in place, behind the work that was named, and at most as many as there are slots.
// Threads: one.
#include <atomic>
#include <optional>

#include "tests/peer/ring_fixture.h"

namespace weir::slots_of_rings {
namespace {

using namespace test::rings;
using test::sharing::small;

// Order -----------------------------------------------------------------------------------------------------

TEST(a_ring, gives_each_reader_all_items_in_place) {
  test::machine m(small());
  ring_ends its(3);
  for (unsigned n = 0; n < 9; ++n) {
    std::size_t const bytes = n % 3 == 0 ? 5000 : n * 7;
    publish(*its.writer, n, bytes);
    for (auto& reader : its.readers) {
      auto const item = reader->take();
      ASSERT_TRUE(item);
      EXPECT_EQ(item->number(), n);
      EXPECT_TRUE(holds(*item, n, bytes)) << n;
    }
  }
}

// An address of the reader's own, so that kernels reach the writer's memory over the link.
TEST(a_ring, is_read_by_another_device_over_its_link) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 7);
  auto const item = its.reader(0).take();
  ASSERT_TRUE(item);
  std::vector<std::byte> seen(item->size());
  launch(
      current_stream(device(1)), {reads(*item)}, [](auto) {},
      [from = item->data(), to = seen.data(), n = item->size()] { std::memcpy(to, from, n); });
  synchronize(1);
  EXPECT_EQ(seen, std::vector<std::byte>(5000, std::byte{7}));
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

TEST(a_ring, tells_of_an_item_behind_its_streams_work) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 2}, 30ms);
  stream const s(device(0));
  test::held gate(m, s);
  publish(*its.writer, 1, 5000, s);  // returns at once
  EXPECT_THROW((void)its.reader(0).take(), timed_out);
  gate.open();
  its.reader(0).set_timeout(20s);
  auto const item = its.reader(0).take();
  ASSERT_TRUE(item);
  EXPECT_TRUE(holds(*item, 1));
}

TEST(a_ring, tells_of_an_item_behind_another_stream_if_named) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 2}, 30ms);
  stream const s(device(0));
  test::held gate(m, s);
  its.writer->next().publish(10, s);
  EXPECT_THROW((void)its.reader(0).take(), timed_out);
  gate.open();
  its.reader(0).set_timeout(20s);
  EXPECT_TRUE(its.reader(0).take());
}

TEST(a_ring, gives_items_of_two_streams_in_order) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 3}, 30ms);
  stream const s(device(0));
  test::held gate(m, s);
  publish(*its.writer, 1, 5000, s);
  publish(*its.writer, 2);
  default_stream(0).synchronize();
  EXPECT_THROW((void)its.reader(0).take(), timed_out) << "item 1 has come, and is the second";
  gate.open();
  its.reader(0).set_timeout(20s);
  for (unsigned n : {1u, 2u}) {
    auto const item = its.reader(0).take();
    ASSERT_TRUE(item);
    EXPECT_TRUE(holds(*item, n));
  }
}

TEST(a_ring, fills_a_slot_again_behind_its_readers_work) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 1, .timeout = 30ms});
  publish(*its.writer, 1);
  stream const s(device(0));
  test::held gate(m, s);
  (void)its.reader(0).take();
  its.reader(1).take(s)->release();  // returns at once
  EXPECT_NE(said<timed_out>([&] { (void)its.writer->next(); }).find("reader 1 has released nothing for 30 ms"),
            std::string::npos);
  EXPECT_EQ(its.writer->late_readers(), std::vector<int>{1});
  gate.open();
  its.writer->set_timeout(20s);
  publish(*its.writer, 2);
  for (auto& reader : its.readers)
    EXPECT_TRUE(holds(*reader->take(), 2));
}

TEST(a_ring, releases_an_item_behind_another_stream_if_named) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1, .timeout = 30ms});
  publish(*its.writer, 1);
  stream const s(device(0));
  test::held gate(m, s);
  its.reader(0).take()->release(s);
  EXPECT_THROW((void)its.writer->next(), timed_out);
  gate.open();
  its.writer->set_timeout(20s);
  (void)its.writer->next();
}

TEST(a_late_reader, is_named_without_those_that_released) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 1, .timeout = 200ms});
  publish(*its.writer, 1);
  auto const late = its.reader(0).take();
  auto item = its.reader(1).take();
  std::thread releases([&] {
    runtime_guard const in(m.own);
    std::this_thread::sleep_for(20ms);
    item->release();
  });
  EXPECT_THROW((void)its.writer->next(), timed_out);
  releases.join();
  EXPECT_EQ(its.writer->late_readers(), std::vector<int>{0});
}

// The writer's own work is not the reader's fault, whatever the timeout.
TEST(a_ring, blames_no_reader_for_the_writers_own_work) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1, .timeout = 1ms});
  stream const s(device(0));
  std::optional<test::held> gate(std::in_place, m, s);
  publish(*its.writer, 1, 5000, s);
  std::atomic<bool> is_open{false};
  std::thread opens([&] {
    std::this_thread::sleep_for(30ms);
    is_open = true;
    gate->open();
  });
  EXPECT_THROW((void)its.writer->next(), timed_out);
  EXPECT_TRUE(is_open) << "it waited until the item was told of";
  opens.join();
}

TEST(a_ring, waits_for_no_reader_before_all_slots_are_in_use) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 64, .timeout = 1ms});
  stream const s(device(0));
  test::held gate(m, s);
  for (unsigned n = 0; n < 64; ++n)
    publish(*its.writer, n, n, s);
  gate.open();
  EXPECT_THROW((void)its.writer->next(s), timed_out);
  for (unsigned n = 0; n < 64; ++n)
    EXPECT_TRUE(holds(*its.reader(0).take(), n, n)) << n;
}

TEST(a_slot, that_was_not_published_comes_again) {
  test::machine m(small());
  ring_ends its(1);
  stream const s(device(0));
  test::held gate(m, s);
  void const* at = nullptr;
  {
    ring_slot const slot = its.writer->next(s);
    at = slot.data();
    launch_host(s, [] {});
  }
  ring_slot again = its.writer->next();
  EXPECT_EQ(again.number(), 0u);
  EXPECT_EQ(again.data(), at);
  EXPECT_FALSE(default_stream(0).query()) << "behind the work on it so far";
  gate.open();
  again.publish(3);
  EXPECT_EQ(its.reader(0).take()->size(), 3u);
}

TEST(items, may_be_held_and_released_in_any_order) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 3, .timeout = 20s});
  for (unsigned n : {0u, 1u, 2u})
    publish(*its.writer, n);
  std::vector<std::optional<ring_item>> held(3);
  for (auto& item : held)
    item = its.reader(0).take();
  held[2].reset();
  EXPECT_NE(said<invalid_use>([&] { (void)its.reader(0).take(); }).find("item 0 is not released"), std::string::npos);
  held[0]->release();
  publish(*its.writer, 3);
  EXPECT_TRUE(holds(*its.reader(0).take(), 3));
  EXPECT_TRUE(holds(*held[1], 1));
}

// Threads of one process, as processes would: the writer is slow at times, and so is each reader.
TEST(a_ring, joins_threads_of_one_process) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 3, .timeout = 20s});
  constexpr unsigned items = 100;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      runtime_guard const in(m.own);
      stream const s(device(static_cast<int>(i + 1) % 2));
      for (unsigned n = 0; auto const item = its.reader(i).take(s); ++n) {
        std::vector<std::byte> seen(item->size());
        launch(
            s, {reads(*item)}, [](auto) {},
            [from = item->begin(), to = seen.data(), bytes = item->size()] { std::copy_n(from, bytes, to); });
        s.synchronize();
        EXPECT_EQ(seen, std::vector<std::byte>(n * 50, static_cast<std::byte>(n)));
        if (n % 17 == i)
          std::this_thread::sleep_for(1ms);
      }
    });
  }
  stream const s(device(0));
  for (unsigned n = 0; n < items; ++n) {
    publish(*its.writer, n, n * 50, s);
    if (n % 23 == 0)
      std::this_thread::sleep_for(1ms);
  }
  its.writer->close();
  for (auto& t : threads)
    t.join();
}

TEST(a_ring, keeps_its_memory_while_its_streams_use_it) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 512, .slots = 1});
  stream const s(device(0));
  test::held gate(m, s);
  ring_slot slot = its.writer->next(s);
  void const* const at = slot.data();
  slot.publish(1, s);
  its.readers.clear();
  its.writer.reset();
  EXPECT_NE(exportable_buffer(512, 0).data(), at);
  gate.open();
  s.synchronize();
  EXPECT_EQ(exportable_buffer(512, 0).data(), at);
}

// The end -----------------------------------------------------------------------------------------------------

TEST(a_closed_ring, ends_its_readers_behind_the_last_item) {
  test::machine m(small());
  ring_ends its(2);
  publish(*its.writer, 1);
  its.writer->set_timeout(1ms);
  EXPECT_THROW(its.writer->close(), timed_out) << "the readers have not released it";
  EXPECT_EQ(its.writer->late_readers(), (std::vector<int>{0, 1}));
  for (auto& reader : its.readers) {
    EXPECT_TRUE(holds(*reader->take(), 1));
    EXPECT_FALSE(reader->take());
    EXPECT_FALSE(reader->take());
  }
  its.writer->set_timeout(20s);
  its.writer->close();
  its.writer->close();
  EXPECT_EQ(said<invalid_use>([&] { (void)its.writer->next(); }).find("a ring that is closed") == std::string::npos,
            false);
}

TEST(a_closed_ring, ends_a_reader_that_holds_all_slots) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1, .timeout = 1ms});
  publish(*its.writer, 1);
  auto const item = its.reader(0).take();
  EXPECT_THROW(its.writer->close(), timed_out);
  EXPECT_FALSE(its.reader(0).take());
  its.writer->drop(0);
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
}

TEST(a_closed_ring, may_have_had_no_item) {
  test::machine m(small());
  ring_ends its(1);
  its.writer->set_timeout(1ms);
  EXPECT_THROW(its.writer->close(), timed_out) << "the reader has not opened it";
  EXPECT_FALSE(its.reader(0).take());
  its.writer->close();
}

TEST(a_closed_ring, has_waited_until_its_readers_have_opened_it) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  ring_writer writer({a}, {.bytes = 5000, .timeout = 1ms});
  EXPECT_NE(said<timed_out>([&] { writer.close(); }).find("reader 0 has not opened the ring"), std::string::npos);
  ring_reader reader(b);
  EXPECT_FALSE(reader.take());
  writer.close();
}

// A writer that fails must not look like one that is done.
TEST(a_writer, that_ends_unclosed_ends_its_readers_by_an_error) {
  test::machine m(small());
  ring_ends its(1);
  stream const s(device(0));
  {
    test::held gate(m, s);
    publish(*its.writer, 1, 5000, s);
    publish(*its.writer, 2, 5000, s);
    its.writer.reset();
  }
  EXPECT_TRUE(holds(*its.reader(0).take(), 1));
  EXPECT_TRUE(holds(*its.reader(0).take(), 2));
  EXPECT_NE(said<peer_disconnected>([&] { (void)its.reader(0).take(); }).find("before item 2"), std::string::npos);
}

// No message says whether an item's slot is filled again.
TEST(a_writer, that_vanishes_leaves_only_the_items_held) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  publish(*its.writer, 2);
  synchronize(0);
  auto const held = its.reader(0).take();
  its.break_link(0);
  for (int i = 0; i < 2; ++i)
    EXPECT_NE(said<peer_disconnected>([&] { (void)its.reader(0).take(); }).find("has ended before item 1"),
              std::string::npos);
  EXPECT_TRUE(holds(*held, 1));
}

TEST(a_writer, that_ends_before_the_first_take_is_named_again) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  its.writer.reset();
  synchronize(0);
  (void)share_pool().trim();
  for (int i = 0; i < 3; ++i)
    EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
}

// Regression: the system reports unread messages of the reader first, and only then gives those of the writer.
TEST(a_writer, that_has_not_heard_its_readers_is_heard_to_its_end) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 4});
  publish(*its.writer, 0);
  ring_slot slot = its.writer->next();
  its.reader(0).take()->release();
  synchronize(1);  // `released` is sent, and never read
  fill(slot.data(), std::byte{1}, 5000);
  slot.publish(5000);
  synchronize(0);
  its.writer.reset();
  EXPECT_TRUE(holds(*its.reader(0).take(), 1));
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
}

// Readers that leave --------------------------------------------------------------------------------------------

TEST(a_reader, that_has_ended_is_named_once) {
  test::machine m(small());
  ring_ends its(3, {.bytes = 5000, .slots = 1});
  publish(*its.writer, 1);
  its.readers[1].reset();
  its.readers[2].reset();
  EXPECT_TRUE(holds(*its.reader(0).take(), 1));
  std::string const text = said<peer_disconnected>([&] { (void)its.writer->next(); });
  EXPECT_NE(text.find("reader 1 has ended or closed its end. Repeat the call"), std::string::npos) << text;
  EXPECT_NE(said<peer_disconnected>([&] { (void)its.writer->next(); }).find("reader 2"), std::string::npos);
  EXPECT_EQ(its.writer->readers(), 1);
  publish(*its.writer, 2);
  EXPECT_TRUE(holds(*its.reader(0).take(), 2));
  its.readers[0].reset();
  EXPECT_NE(said<peer_disconnected>([&] { (void)its.writer->next(); }).find("no reader is left"), std::string::npos);
  EXPECT_NE(said<peer_disconnected>([&] { (void)its.writer->next(); }).find("none of 3 readers"), std::string::npos);
  EXPECT_THROW(its.writer->close(), peer_disconnected);
}

TEST(a_late_reader, may_be_dropped_and_learns_of_it) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 2, .timeout = 1ms});
  for (unsigned n : {0u, 1u}) {
    publish(*its.writer, n);
    EXPECT_TRUE(holds(*its.reader(0).take(), n));
  }
  auto kept = its.reader(1).take();
  its.writer->set_timeout(1ms);
  EXPECT_THROW((void)its.writer->next(), timed_out);
  synchronize(1);  // reader 0's releases
  EXPECT_THROW((void)its.writer->next(), timed_out) << "as often as it is called";
  EXPECT_EQ(its.writer->late_readers(), std::vector<int>{1});
  its.writer->drop(1);
  its.writer->drop(1);
  EXPECT_EQ(its.writer->readers(), 1);
  publish(*its.writer, 2);
  EXPECT_TRUE(holds(*its.reader(0).take(), 2));
  kept.reset();
  EXPECT_NE(said<peer_disconnected>([&] { (void)its.reader(1).take(); }).find("has dropped this reader"),
            std::string::npos)
      << "item 1 was told of, and is no longer there";
}

// `dropped` itself may not reach a reader. The items that wait there are filled again.
TEST(a_lost_reader, gets_no_item_that_has_arrived) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 1, .timeout = 20s});
  publish(*its.writer, 1);
  EXPECT_TRUE(holds(*its.reader(0).take(), 1));
  its.break_link(1);
  EXPECT_THROW((void)its.writer->next(), peer_disconnected);
  publish(*its.writer, 2);
  EXPECT_TRUE(holds(*its.reader(0).take(), 2));
  EXPECT_THROW((void)its.reader(1).take(), peer_disconnected);
}

TEST(a_dropped_reader, learns_of_it_before_its_own_work_is_done) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1});
  publish(*its.writer, 1);
  stream const s(device(1));
  test::held gate(m, s);
  its.reader(0).take(s)->release();
  its.writer->drop(0);
  std::atomic<bool> is_open{false};
  std::thread opens([&] {
    std::this_thread::sleep_for(100ms);
    is_open = true;
    gate.open();
  });
  EXPECT_THROW((void)its.reader(0).take(s), peer_disconnected);
  EXPECT_FALSE(is_open) << "it has waited for that work";
  opens.join();
}

TEST(readers, are_dropped_by_the_ring_if_it_may) {
  test::machine m(small());
  ring_ends its(3, {.bytes = 5000, .slots = 1, .timeout = 20ms, .drop_readers = true});
  publish(*its.writer, 1);
  its.readers[0].reset();  // has ended; reader 1 is late
  EXPECT_TRUE(holds(*its.reader(2).take(), 1));
  synchronize(1);
  publish(*its.writer, 2);
  EXPECT_EQ(its.writer->readers(), 1);
  EXPECT_TRUE(holds(*its.reader(2).take(), 2));
  synchronize(1);
  its.writer->close();
  EXPECT_FALSE(its.reader(2).take());
  EXPECT_THROW((void)its.reader(1).take(), peer_disconnected);
}

TEST(an_item, that_outlives_its_stream_is_released_later) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 2, .timeout = 1ms});
  publish(*its.writer, 0);
  publish(*its.writer, 1);
  std::optional<stream> s(std::in_place, device(1));
  {
    auto const item = its.reader(0).take(*s);
    s.reset();
  }
  EXPECT_THROW((void)its.writer->next(), timed_out);
  s.emplace(device(1));
  auto last = its.reader(0).take(*s);
  its.writer->set_timeout(20s);
  publish(*its.writer, 2);
  s.reset();
  last.reset();
  its.readers.clear();  // the reader's end releases what is left
  EXPECT_EQ(said<peer_disconnected>([&] { its.writer->close(); }).find("reader 0 has ended") == std::string::npos,
            false)
      << "it has not taken item 2";
}

TEST(an_item, that_outlives_its_stream_is_kept_for_its_work) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 0);
  publish(*its.writer, 1);
  std::optional<stream> s(std::in_place, device(1));
  test::held gate(m, *s);
  auto item = its.reader(0).take(*s);
  s.reset();
  item.reset();
  std::atomic<bool> is_open{false};
  std::thread opens([&] {
    std::this_thread::sleep_for(30ms);
    is_open = true;
    gate.open();
  });
  EXPECT_TRUE(its.reader(0).take());
  EXPECT_TRUE(is_open) << "its slot was released under the work";
  opens.join();
}

// A device cannot be waited for beside a capture.
TEST(a_reader, that_ends_in_a_capture_keeps_its_slot) {
  test::machine m(small());
  ring_ends its(2, {.bytes = 5000, .slots = 1, .timeout = 20ms});
  publish(*its.writer, 1);
  { auto const other = its.reader(1).take(); }
  synchronize(0);
  std::optional<stream> s(std::in_place, device(1));
  stream const captured(device(1));
  test::held gate(m, *s);
  auto item = its.reader(0).take(*s);
  s.reset();
  item.reset();
  auto const handle = streams::clock_of(captured).handle();
  ASSERT_TRUE(m.driver().begin_capture(1, handle, driver::capture_mode::relaxed).ok());
  its.readers[0].reset();
  EXPECT_THROW((void)its.writer->next(), timed_out) << "its slot came under the work";
  EXPECT_TRUE(m.driver().end_capture(1, handle).ok());
  gate.open();
  its.readers[1].reset();  // a later wait for the devices
  its.writer->set_timeout(20s);
  EXPECT_THROW((void)its.writer->next(), peer_disconnected);
}

TEST(the_last_item, is_released_by_its_readers_end_at_last) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 0);
  std::optional<stream> s(std::in_place, device(1));
  auto item = its.reader(0).take(*s);
  s.reset();
  item.reset();
  its.readers.clear();
  its.writer->close();
}

}  // namespace
}  // namespace weir::slots_of_rings
