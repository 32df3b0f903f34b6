// What a ring refuses: bad arguments, calls at a wrong time, messages that no ring sends. The rest works on.
// Threads: one.
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <optional>

#include "peer/share/ring.h"
#include "tests/peer/ring_fixture.h"
#include "weir/sim.h"

namespace weir::ring_refusals {
namespace {

using namespace test::rings;
using peer::message_kind;
using test::sharing::small;

// Arguments -------------------------------------------------------------------------------------------------

TEST(a_ring_writer, refuses_bad_options_and_takes_no_socket) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  ring_options const good{.bytes = 100};
  auto const refused = [&](std::vector<int> sockets, ring_options with, char const* text) {
    std::string const is = said<invalid_use>([&] { ring_writer(sockets, with); });
    EXPECT_NE(is.find(text), std::string::npos) << text << ": " << is;
  };
  refused({}, good, "no socket");
  refused({a, pipes[0]}, good, "is not a Unix socket of type SOCK_SEQPACKET");
  refused({a, -1}, good, "descriptor -1 is not");
  refused({a, b, a}, good, "twice");
  refused({a}, {}, "slots of 0 B");
  refused({a}, {.bytes = 1, .slots = 0}, "0 slots");
  refused({a}, {.bytes = 1, .slots = 65}, "at most 64");
  refused({a}, {.bytes = 1, .on = cpu}, "cpu");
  refused({a}, {.bytes = 1, .on = 5}, "gpu:5");
  refused({a}, {.bytes = 1, .timeout = 0ms}, "a timeout of 0 ms");
  EXPECT_THROW(ring_writer({a}, {.bytes = 1_GiB}), out_of_memory);
  EXPECT_THROW(ring_writer({a}, {.bytes = ~std::size_t{0} - 5}), out_of_memory);
  EXPECT_TRUE(os::is_message_socket(a)) << "they are the caller's";
  ring_writer const made({a}, good);
  ring_reader const reader(b);
  ::close(pipes[0]), ::close(pipes[1]);
}

TEST(a_ring_writer, leaves_the_sockets_when_a_reader_has_ended) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  auto const [c, d] = os::make_sockets();
  ::close(d);
  EXPECT_THROW(ring_writer({a, c}, {.bytes = 100}), peer_disconnected);
  EXPECT_TRUE(os::is_message_socket(a) && os::is_message_socket(c));
  ::close(c);
  ring_reader reader(b);
  ring_writer writer({a}, {.bytes = 100});
  publish(writer, 7, 100);
  EXPECT_TRUE(holds(*reader.take(), 7, 100)) << "nothing was sent to it before";
}

// The queue of the second reader is full.
TEST(a_ring_writer, ends_the_readers_it_has_told_if_it_fails) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  auto const [c, d] = os::make_sockets();
  char const foreign[100]{};
  while (::send(c, foreign, sizeof foreign, MSG_DONTWAIT) > 0)
    continue;
  EXPECT_THROW(ring_writer({a, c}, {.bytes = 100, .timeout = 1ms}), timed_out);
  EXPECT_TRUE(os::is_message_socket(a) && os::is_message_socket(c));
  ring_reader reader(b, gpu, 200ms);
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW((void)reader.take(), peer_disconnected);
  for (int const file : {a, c, d})
    ::close(file);
}

TEST(a_ring_reader, refuses_bad_arguments_and_takes_no_socket) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  EXPECT_THROW(ring_reader(-1), invalid_use);
  EXPECT_THROW(ring_reader(b, cpu), invalid_use);
  EXPECT_THROW(ring_reader(b, gpu, 0ms), invalid_use);
  EXPECT_TRUE(os::is_message_socket(b));
  ring_reader reader(b, gpu, 1ms);
  EXPECT_THROW((void)reader.take(), timed_out) << "there is no writer";
  ring_writer writer({a}, {.bytes = 100});
  reader.set_timeout(20s);
  publish(writer, 3, 100);
  EXPECT_TRUE(holds(*reader.take(), 3, 100)) << "after a timeout it may be tried again";
}

TEST(a_ring_reader, refuses_what_describes_no_ring) {
  test::machine m(small());
  struct description {
    message_kind kind = message_kind::ring;
    std::uint64_t slots = 2, bytes = 5000;
  };
  auto const tried = [](description const& d) {
    auto const [a, b] = os::make_sockets();
    share_channel line(os::duplicate_file(a));
    exportable_buffer const memory(11'000, 0);
    line.send(memory, default_stream(0));
    peer::ring_link const raw(a);
    raw.send(d.kind, d.slots, d.bytes);
    ring_reader reader(b);
    EXPECT_THROW((void)reader.take(), invalid_use) << d.slots << " " << d.bytes;
    EXPECT_THROW((void)reader.take(), peer_disconnected) << "it is given up";
  };
  for (auto const& d :
       {description{.slots = 0}, description{.slots = 65}, description{.bytes = 0}, description{.slots = 3},
        description{.bytes = 12'000}, description{.bytes = ~std::uint64_t{0} - 100},
        description{.kind = message_kind::item}, description{.kind = message_kind::number}})
    tried(d);
}

// Between the memory and its description the writer may be stopped.
TEST(a_ring_reader, goes_on_where_a_timeout_ended_it) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  share_channel line(os::duplicate_file(a));
  exportable_buffer const memory(11'000, 0);
  line.send(memory, default_stream(0));
  peer::ring_link const raw(a);
  ring_reader reader(b, 0, 1ms);
  EXPECT_THROW((void)reader.take(), timed_out);
  raw.send(message_kind::ring, 2, 5000);
  EXPECT_THROW((void)reader.take(), timed_out);
  raw.send(message_kind::item, 0, 7);
  EXPECT_EQ(reader.take()->size(), 7u);
}

TEST(a_ring_reader, learns_that_the_writer_ended_before_that) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  share_channel line(os::duplicate_file(a));
  exportable_buffer const memory(11'000, 0);
  line.send(memory, default_stream(0));
  ::close(a);
  ring_reader reader(b);
  { share_channel const gone = std::move(line); }
  EXPECT_THROW((void)reader.take(), peer_disconnected);
  EXPECT_THROW((void)reader.take(), peer_disconnected);
}

TEST(a_ring_reader, needs_a_link_to_the_writers_device) {
  simulated apart = small();
  apart.peers = simulated::links::none;
  test::machine m(apart);
  ring_ends its(1);
  EXPECT_THROW((void)its.reader(0).take(), not_supported);
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
  EXPECT_THROW(its.writer->close(), peer_disconnected);
}

// Calls at a wrong time ---------------------------------------------------------------------------------------

TEST(a_ring, refuses_calls_at_a_wrong_time) {
  test::machine m(small());
  ring_ends its(1);
  auto const refused = [](char const* text, auto call) {
    std::string const is = said<invalid_use>(call);
    EXPECT_NE(is.find(text), std::string::npos) << text << ": " << is;
  };
  auto& writer = *its.writer;
  ring_slot slot = writer.next();
  refused("the slot of item 0 is not published", [&] { (void)writer.next(); });
  refused("the slot of item 0 is not published", [&] { writer.close(); });
  refused("5001 B, and a slot holds 5000 B", [&] { slot.publish(5001); });
  refused("reader 1 of 1", [&] { writer.drop(1); });
  refused("reader -1 of 1", [&] { writer.drop(-1); });
  refused("a timeout of -1 ms", [&] { writer.set_timeout(-1ms); });
  refused("a timeout of 0 ms", [&] { its.reader(0).set_timeout(0ms); });
  slot.publish(5000);
  refused("a slot that is published", [&] { slot.publish(1); });
  ring_item item = *its.reader(0).take();
  item.release();
  refused("an item that is released", [&] { item.release(); });
  slot = writer.next();
  ring_slot const moved = std::move(slot);
  refused("moved from", [&] { slot.publish(1); });
  ring_writer other(std::move(writer));
  refused("a ring that was moved from", [&] { (void)writer.next(); });
  refused("a ring that was moved from", [&] { writer.close(); });
  EXPECT_EQ(writer.readers(), 0);
  EXPECT_TRUE(writer.late_readers().empty());
  ring_reader const read(std::move(its.reader(0)));
  refused("a ring that was moved from", [&] { (void)its.reader(0).take(); });
}

// Its memory would be another buffer's.
TEST(a_ring, is_not_closed_while_a_slot_is_out) {
  test::machine m(small());
  ring_ends its(1);
  its.writer->set_timeout(1ms);
  {
    ring_slot const slot = its.writer->next();
    EXPECT_THROW(its.writer->close(), invalid_use);
  }
  EXPECT_THROW(its.writer->close(), timed_out);
  EXPECT_FALSE(its.reader(0).take());
  its.writer->close();
}

// A handle that CUDA ends may be another stream's when the slot or item ends.
TEST(a_ring, refuses_borrowed_streams) {
  test::machine m(small());
  ring_ends its(1);
  simulated_stream const theirs(device(0));
  stream_ref const borrowed = borrow_stream(device(0), theirs.handle());
  EXPECT_THROW((void)its.writer->next(borrowed), invalid_use);
  ring_slot slot = its.writer->next();
  EXPECT_THROW(slot.publish(1, borrowed), invalid_use);
  slot.publish(1);
  EXPECT_THROW((void)its.reader(0).take(borrowed), invalid_use);
  auto item = its.reader(0).take();
  EXPECT_THROW(item->release(borrowed), invalid_use);
}

TEST(a_ring, publishes_nothing_in_a_capture) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 2}, 20s);
  stream const s(device(0)), t(device(1));
  ring_slot slot = its.writer->next(s);
  auto const captured = [&](stream const& on, auto call) {
    int const d = on.device().index();
    auto const handle = streams::clock_of(on).handle();
    ASSERT_TRUE(m.driver().begin_capture(d, handle, driver::capture_mode::relaxed).ok());
    call();
    EXPECT_TRUE(m.driver().end_capture(d, handle).ok()) << "the capture was spoiled";
  };
  auto const is_refused = [](auto call) {
    EXPECT_NE(said<invalid_use>(call).find("not permitted during a capture"), std::string::npos);
  };
  captured(s, [&] { is_refused([&] { slot.publish(10); }); });
  slot.publish(11);
  auto item = its.reader(0).take(t);
  ASSERT_TRUE(item);
  EXPECT_EQ(item->size(), 11u);
  captured(t, [&] {
    is_refused([&] { item->release(); });
    item.reset();  // a later take() releases it
  });
  its.writer->next().publish(12);
  EXPECT_TRUE(its.reader(0).take(t));
  its.writer->next().publish(13);
}

TEST(a_child_that_was_forked, has_no_end_of_a_ring) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  std::optional<ring_item> item = its.reader(0).take();
  ring_slot slot = its.writer->next();
  pid_t const child = ::fork();
  if (child == 0) {
    int refused = 0;
    auto const count = [&](auto call) {
      try {
        call();
      } catch (error const&) {
        ++refused;
      }
    };
    count([&] { slot.publish(1); });
    count([&] { (void)its.writer->next(); });
    count([&] { its.writer->close(); });
    count([&] { its.writer->drop(0); });
    count([&] { (void)its.reader(0).take(); });
    count([&] { item->release(); });
    item.reset();
    its.readers.clear();
    its.writer.reset();
    ::_exit(refused);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 6);
  slot.publish(2);
  EXPECT_TRUE(holds(*item, 1)) << "what the child dropped was the parent's";
  item.reset();
  EXPECT_EQ(its.reader(0).take()->size(), 2u);
}

TEST(after_its_runtime, a_ring_refuses_its_calls) {
  auto m = std::make_unique<test::machine>(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  publish(*its.writer, 2);
  auto item = its.reader(0).take();
  m.reset();
  EXPECT_THROW((void)its.writer->next(), invalid_use);
  EXPECT_THROW(its.writer->close(), invalid_use);
  EXPECT_THROW((void)its.reader(0).take(), invalid_use);
  EXPECT_THROW(item->release(), invalid_use);
  item.reset();
}

// A device that is lost is not blamed on the other end.
TEST(a_lost_device, is_told_to_its_own_end) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1, .timeout = 50ms}, 50ms);
  publish(*its.writer, 1);
  its.reader(0).take().reset();
  synchronize(1);
  stream const s(device(0));
  test::held gate(m, s);
  publish(*its.writer, 2, 5000, s);
  m.control().lose_device(0);
  EXPECT_THROW((void)its.writer->next(s), device_lost);
  EXPECT_THROW(its.writer->close(), device_lost);
  its.writer.reset();
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
}

// Refusals --------------------------------------------------------------------------------------------------------

// The calls of one kind that the system refuses from now on.
std::atomic<int> refused_call{-1};
struct system_refuses {
  explicit system_refuses(os::call which) {
    refused_call = static_cast<int>(which);
    os::refuse_by([](os::call c) noexcept { return static_cast<int>(c) == refused_call; });
  }
  ~system_refuses() { os::refuse_by(nullptr); }
};

TEST(a_ring, is_not_made_without_descriptors) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  {
    system_refuses const it(os::call::duplicate_file);
    EXPECT_THROW(ring_writer({a}, {.bytes = 100}), driver_error);
    EXPECT_THROW((void)ring_reader(b), driver_error);
  }
  ring_writer writer({a}, {.bytes = 100});
  ring_reader reader(b);
  publish(writer, 1, 100);
  EXPECT_TRUE(holds(*reader.take(), 1, 100));
}

TEST(a_ring, repeats_what_the_system_has_refused_to_receive) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  (void)its.reader(0).take();
  {
    system_refuses const it(os::call::receive_message);
    EXPECT_THROW((void)its.writer->next(), driver_error);
    EXPECT_THROW((void)its.reader(0).take(), driver_error);
  }
  publish(*its.writer, 2);
  EXPECT_TRUE(holds(*its.reader(0).take(), 2));
}

// A message that is lost must not leave the other end to wait.
TEST(a_ring, ends_for_both_if_the_system_refuses_to_send) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  EXPECT_TRUE(holds(*its.reader(0).take(), 1));
  synchronize(1);
  {
    system_refuses const it(os::call::send_message);
    publish(*its.writer, 2);
    synchronize(0);
  }
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
  EXPECT_THROW((void)its.writer->next(), peer_disconnected);
}

TEST(a_ring, repeats_what_the_driver_has_refused) {
  test::machine m(small());
  ring_ends its(1);
  auto& driver = *driver::fault_injector_of(m.driver());
  ring_slot slot = its.writer->next();
  driver.refuse({.of = weir::driver::call::host_function});
  EXPECT_THROW(slot.publish(10), driver_error);
  slot.publish(11);
  auto item = its.reader(0).take();
  driver.refuse({.of = weir::driver::call::host_function});
  EXPECT_THROW(item->release(), driver_error);
  driver.refuse({.of = weir::driver::call::host_function});
  item.reset();
  its.writer->next().publish(12);
  EXPECT_EQ(its.reader(0).take()->size(), 12u) << "it has released item 0";
  its.writer->next().publish(13);
}

TEST(a_lost_device, of_a_reader_is_told_to_the_reader) {
  test::machine m(small());
  ring_ends its(1, {.bytes = 5000, .slots = 1, .timeout = 20s}, 50ms);
  publish(*its.writer, 1);
  stream const s(device(1));
  test::held gate(m, s);
  its.reader(0).take(s)->release();
  m.control().lose_device(1);
  EXPECT_THROW((void)its.reader(0).take(s), device_lost);
  its.readers.clear();
  EXPECT_THROW((void)its.writer->next(), peer_disconnected);
}

// Messages ------------------------------------------------------------------------------------------------------

// A reader end without weir behind a real writer.
TEST(a_ring_writer, gives_up_a_reader_that_sends_something_else) {
  test::machine m(small());
  struct wrong {
    message_kind kind;
    std::uint64_t number;
  };
  for (wrong const& one : {wrong{message_kind::released, 0}, wrong{message_kind::released, 5},
                           wrong{message_kind::released, ~std::uint64_t{0}}, wrong{message_kind::opened, 0},
                           wrong{message_kind::end, 0}, wrong{message_kind::item, 0}, wrong{message_kind::number, 0}}) {
    auto const [a, b] = os::make_sockets();
    auto const [c, d] = os::make_sockets();
    ring_writer writer({a, c}, {.bytes = 5000, .slots = 2});
    ring_reader reader(d);
    peer::ring_link const raw(b);
    raw.send(message_kind::opened);
    publish(writer, 1);
    if (one.number == 0)
      raw.send(message_kind::released, 0);  // so that a second one is wrong
    raw.send(one.kind, one.number);
    std::string const text = said<peer_disconnected>([&] { publish(writer, 2); });
    EXPECT_NE(text.find("reader 0 has sent"), std::string::npos) << text;
    publish(writer, 2);
    EXPECT_TRUE(holds(*reader.take(), 1));
    EXPECT_TRUE(holds(*reader.take(), 2));
  }
}

TEST(a_ring_reader, refuses_what_fits_no_slot) {
  test::machine m(small());
  struct wrong {
    message_kind kind;
    std::uint64_t number, bytes;
  };
  for (wrong const& one :
       {wrong{message_kind::item, 2, 1}, wrong{message_kind::item, 0, 5001}, wrong{message_kind::end, 3, 0},
        wrong{message_kind::released, 0, 0}, wrong{message_kind::ring, 2, 5000}, wrong{message_kind::number, 0, 0}}) {
    auto const [a, b] = os::make_sockets();
    share_channel line(os::duplicate_file(a));
    peer::ring_link const raw(a);
    exportable_buffer const memory(11'000, 0);
    line.send(memory, default_stream(0));
    raw.send(message_kind::ring, 2, 5000);
    ring_reader reader(b);
    raw.send(message_kind::item, 1, 7);
    raw.send(one.kind, one.number, one.bytes);
    EXPECT_THROW((void)reader.take(), invalid_use) << static_cast<int>(one.kind) << " " << one.number;
    EXPECT_THROW((void)reader.take(), peer_disconnected) << "it is given up";
  }
}

TEST(a_ring_reader, takes_no_item_behind_a_damaged_message) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  publish(*its.writer, 2);
  synchronize(0);
  { auto const first = its.reader(0).take(); }
  peer::ring_link const raw(os::duplicate_file(its.own[0]));
  raw.send(message_kind::number);
  EXPECT_THROW((void)its.reader(0).take(), invalid_use);
  for (int i = 0; i < 2; ++i)
    EXPECT_THROW((void)its.reader(0).take(), peer_disconnected) << "item 2 has arrived, and is filled again";
}

// Messages of an end and of items that contradict each other.
TEST(a_ring_reader, refuses_items_beyond_the_end) {
  test::machine m(small());
  struct said_of {
    message_kind kind;
    std::uint64_t number;
  };
  auto const is_refused = [](said_of first, said_of second) {
    auto const [a, b] = os::make_sockets();
    share_channel line(os::duplicate_file(a));
    peer::ring_link const raw(a);
    exportable_buffer const memory(11'000, 0);
    line.send(memory, default_stream(0));
    raw.send(message_kind::ring, 2, 5000);
    ring_reader reader(b, gpu, 200ms);
    raw.send(first.kind, first.number, 7);
    raw.send(second.kind, second.number, 7);
    EXPECT_THROW((void)reader.take(), invalid_use) << static_cast<int>(first.kind);
  };
  is_refused({message_kind::end, 1}, {message_kind::item, 1});
  is_refused({message_kind::unclosed, 0}, {message_kind::item, 0});
  is_refused({message_kind::item, 1}, {message_kind::end, 1});
  is_refused({message_kind::unclosed, 1}, {message_kind::end, 1});
}

// It ends the call, however many messages follow.
TEST(a_ring_reader, hears_nothing_behind_its_drop) {
  test::machine m(small());
  ring_ends its(1);
  publish(*its.writer, 1);
  { auto const first = its.reader(0).take(); }
  peer::ring_link const raw(os::duplicate_file(its.own[0]));
  raw.send(message_kind::dropped);
  raw.send(message_kind::number);
  EXPECT_THROW((void)its.reader(0).take(), peer_disconnected);
}

TEST(a_channel, refuses_messages_of_a_ring_and_works_on) {
  test::machine m(small());
  auto const [a, b] = os::make_sockets();
  share_channel line(b, 20s);
  peer::ring_link const raw(a);
  raw.send(message_kind::end, 3);
  share_channel(os::duplicate_file(a)).signal(4, default_stream(0));
  EXPECT_NE(said<invalid_use>([&] { (void)line.wait(); }).find("a message of a ring"), std::string::npos);
  EXPECT_EQ(line.wait(), 4u);
}

}  // namespace
}  // namespace weir::ring_refusals
