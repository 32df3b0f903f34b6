// A hostile peer: whatever it sends, the receiver goes on, gets only memory of descriptors that came on the
// channel, and keeps no descriptor. First each attack alone, then hostile_peer.h, which mixes them.
// WEIR_TEST_SEEDS=10000 is a million messages; seeds as tests/support/seeds.h says.
// Threads: one.
#include <optional>

#include "tests/peer/hostile_peer.h"
#include "tests/peer/raw_end.h"
#include "tests/peer/share_fixture.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using namespace test::sharing;
using test::lent_memory;
using test::owned_file;

// An honest owner with a channel of its own, and a second channel whose other end is raw.
struct hostile_peer : ::testing::Test {
  hostile_peer() : from_raw(new_line()) { write(b.data(), test::pattern(some_bytes, 1)); }
  share_channel new_line() {
    auto const [a, theirs] = os::make_sockets();
    raw.emplace(theirs);
    return share_channel(a, 200ms);
  }
  // The receiver's answer to the last message: "taken", or the text of its error.
  std::string answer() {
    try {
      taken = from_raw.receive();
      return "taken";
    } catch (invalid_use const& e) {
      return std::string(e.operands());
    } catch (error const& e) {
      return "no invalid_use: " + std::string(e.operation()) + ": " + std::string(e.operands());
    }
  }
  std::string answer_to(lent_memory const& m) {
    auto const files = m.files();
    raw->send(m.what, files);
    return answer();
  }
  void expect_the_line_works() {
    peer::message number{.number = 7};
    number.checksum = peer::checksum_of(number);
    ASSERT_TRUE(raw->send(number));
    EXPECT_EQ(from_raw.wait(), 7u);
  }
  imported_buffer honest() {
    ends.first.send(b, default_stream(0));
    return ends.second.receive();
  }
  void expect_says(std::string const& said, char const* words) {
    EXPECT_NE(said.find(words), std::string::npos) << said;
  }

  test::machine m{small()};
  std::pair<share_channel, share_channel> ends = lines();
  exportable_buffer b{some_bytes};
  std::optional<test::raw_end> raw;
  share_channel from_raw;
  imported_buffer taken;
};

owned_file filled(std::size_t bytes, char value) {
  auto file = test::memory_file(bytes);
  std::vector<char> const text(bytes, value);
  EXPECT_EQ(::pwrite(file.get(), text.data(), bytes, 0), static_cast<ssize_t>(bytes));
  return file;
}

// Names -----------------------------------------------------------------------------------------------------

TEST_F(hostile_peer, that_names_anothers_memory_is_not_given_it) {
  auto const open = honest();
  auto const names = test::caught(b).what;
  EXPECT_NE(answer_to(test::lent_under_names_of(names, owned_file(::open("/dev/null", O_RDWR)))), "taken");
  EXPECT_EQ(answer_to(test::lent_under_names_of(names, filled(names.handle_bytes, 9))), "taken") << "memory of its own";
  ASSERT_NE(taken.data(), nullptr);
  EXPECT_NE(taken.data(), open.data());
  EXPECT_EQ(read(taken.data()), test::bytes_of_host(some_bytes, std::byte{9}));
  EXPECT_EQ(read(open.data()), test::pattern(some_bytes, 1));
}

TEST_F(hostile_peer, does_not_take_the_place_of_anothers_memory) {
  auto const names = test::caught(b).what;
  EXPECT_EQ(answer_to(test::lent_under_names_of(names, filled(names.handle_bytes, 9))), "taken");
  EXPECT_EQ(read(honest().data()), test::pattern(some_bytes, 1));
  EXPECT_EQ(read(taken.data()), test::bytes_of_host(some_bytes, std::byte{9}));
}

TEST_F(hostile_peer, does_not_make_anothers_messages_stale) {
  auto its = test::caught(b);
  EXPECT_EQ(answer_to(test::lent_under_names_of(its.what, std::move(its.memory))), "taken");
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(read(honest().data()), test::pattern(some_bytes, 1));
}

TEST_F(hostile_peer, does_not_make_anothers_buffers_smaller) {
  auto const open = honest();
  auto its = test::caught(b);
  its = test::lent_under_names_of(its.what, std::move(its.memory));
  its.what.offset = 512, its.what.bytes = 1;
  its.sealed();
  EXPECT_EQ(answer_to(its), "taken");
  EXPECT_EQ(taken.data(), open.data<std::byte>() + 512);
  auto const found = find_block(open.data<std::byte>() + 1000);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->base, open.data());
  EXPECT_EQ(found->bytes, some_bytes);
}

// // Silence and the end
// ---------------------------------------------------------------------------------------

TEST_F(hostile_peer, that_is_silent_is_not_taken_for_gone) {
  EXPECT_TRUE(raw->send(std::span<std::byte const>{}));
  expect_says(answer(), "0 B");
  expect_the_line_works();
  EXPECT_TRUE(raw->send(std::span<std::byte const>{}));
  peer::message number{.number = 8};
  number.checksum = peer::checksum_of(number);
  EXPECT_TRUE(raw->send(number));
  raw->close();
  expect_says(answer(), "0 B");
  EXPECT_EQ(from_raw.wait(), 8u) << "what was said before the end is heard";
  EXPECT_THROW((void)from_raw.wait(), peer_disconnected);
}

TEST_F(hostile_peer, that_is_silent_on_a_loan_is_still_an_importer) {
  auto const its = test::caught(b);
  EXPECT_EQ(::send(its.life.get(), "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(b.importers(), 1);
}

// // Importers
// -------------------------------------------------------------------------------------------------

TEST_F(hostile_peer, with_a_loan_that_is_no_socket_is_refused) {
  int both[2];
  for (bool const pipe : {true, false}) {
    if (pipe)
      ASSERT_EQ(::pipe2(both, O_CLOEXEC), 0);
    else
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both), 0);
    owned_file const other(both[0]);
    auto its = test::lent_under_names_of(test::caught(b).what, test::memory_file(2_MiB));
    its.life = owned_file(both[1]);
    expect_says(answer_to(its), "not a SOCK_SEQPACKET socket");
    expect_the_line_works();
  }
}

TEST_F(hostile_peer, with_a_loan_that_takes_no_word_is_refused) {
  auto const its = test::lent_under_names_of(test::caught(b).what, test::memory_file(2_MiB));
  while (::send(its.life.get(), "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) {}
  expect_says(answer_to(its), "does not read");
  expect_the_line_works();
}

// A peer that sends something each time the owner reads.
int always_talks = -1, times_heard = 0;

TEST_F(hostile_peer, that_floods_a_loan_delays_no_owner) {
  auto const its = test::caught(b);
  always_talks = its.life.get(), times_heard = 0;
  os::refuse_by([](os::call c) noexcept {
    if (c == os::call::receive_message && ++times_heard < 10'000)
      (void)::send(always_talks, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    return false;
  });
  EXPECT_EQ(b.importers(), 1);
  os::refuse_by(nullptr);
  EXPECT_LE(times_heard, 8);
}

TEST_F(hostile_peer, that_floods_a_loan_leaves_no_descriptor) {
  auto const its = test::caught(b);
  auto const open = honest();
  auto const before = test::open_files();
  std::array<int, 3> const files{0, 1, 2};
  test::raw_end const importer(::dup(its.life.get()));
  while (importer.send(std::as_bytes(std::span("xyz", 3)), files)) {}
  EXPECT_EQ(b.importers(), 2);
  auto const mine = test::lent_under_names_of(its.what, test::memory_file(2_MiB));
  EXPECT_EQ(answer_to(mine), "taken");
  taken.reset();
  test::raw_end const owner(::dup(mine.owners_end.get()));
  while (owner.send(std::as_bytes(std::span("l", 1)), files)) {}
  for (int i = 0; i < 3; ++i)
    (void)honest();  // each call looks at importers that are done
  EXPECT_EQ(b.importers(), 2);
  EXPECT_EQ(test::open_files() - before, 11)
      << "two raw ends; its memory and loan, at both ends and in the machine; one for each honest sending";
}

// // Ancillary data
// --------------------------------------------------------------------------------------------

TEST_F(hostile_peer, may_send_more_than_descriptors) {
  auto const [mine, other] = os::make_sockets();
  for (int const option : {SO_PASSCRED, SO_PASSSEC, SO_TIMESTAMP}) {
    int const yes = 1;
    for (int const end : {mine, other})
      EXPECT_EQ(::setsockopt(end, SOL_SOCKET, option, &yes, sizeof yes), 0);
  }
  constexpr int with_pidfd = 76;  // SO_PASSPIDFD, since Linux 6.5: each message brings a descriptor of the sender
  int const yes = 1;
  (void)::setsockopt(other, SOL_SOCKET, with_pidfd, &yes, sizeof yes);
  share_channel here(mine, 200ms), there(other, 200ms);
  auto const before = test::open_files();
  here.signal(3, default_stream(0));
  EXPECT_EQ(there.wait(), 3u);
  EXPECT_EQ(test::open_files(), before);
  here.send(b, default_stream(0));
  EXPECT_EQ(read(there.receive().data()), test::pattern(some_bytes, 1));
}

TEST_F(hostile_peer, that_sends_many_descriptors_leaves_none) {
  auto const before = test::open_files();
  peer::message number{.number = 1};
  number.checksum = peer::checksum_of(number);
  for (std::size_t const n : {1u, 3u, 5u, 60u, 253u}) {
    EXPECT_TRUE(raw->send(number, std::vector<int>(n, 1)));
    expect_says(answer(), n < 60 ? (" " + std::to_string(n) + " descriptors").c_str() : "descriptors");
  }
  EXPECT_EQ(test::open_files(), before);
  expect_the_line_works();
}

TEST_F(hostile_peer, is_known_by_its_line_without_kcmp) {
  os::refuse_by([](os::call c) noexcept { return c == os::call::compare_files; });
  auto const first = honest(), second = honest();
  EXPECT_EQ(first.data(), second.data()) << "of one line";
  EXPECT_EQ(answer_to(test::caught(b)), "taken");
  EXPECT_NE(taken.data(), first.data()) << "of another one: mapped again";
  EXPECT_EQ(read(taken.data()), test::pattern(some_bytes, 1));
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 2u);
  os::refuse_by(nullptr);
}

TEST_F(hostile_peer, takes_at_most_the_descriptors_of_256_handles) {
  std::vector<lent_memory> all;
  auto const names = test::caught(b).what;
  for (int i = 0; i < 300; ++i) {
    all.push_back(test::lent_under_names_of(names, test::memory_file(names.handle_bytes)));
    ASSERT_EQ(answer_to(all.back()), "taken");
    taken.release(default_stream(0));
  }
  EXPECT_LE(m.get().part<peer::imports>().mapped(), 257u);
}

// Files -----------------------------------------------------------------------------------------------------

TEST_F(hostile_peer, cannot_cut_the_memory_that_it_was_sent) {
  auto const its = test::caught(b);
  EXPECT_NE(::ftruncate(its.memory.get(), 0), 0) << "the owner's next access would end it";
  EXPECT_EQ(read(b.data()), test::pattern(some_bytes, 1));
}

TEST_F(hostile_peer, with_truncatable_or_read_only_memory_is_told) {
  auto const names = test::caught(b).what;
  auto const of = [&](owned_file memory) { return answer_to(test::lent_under_names_of(names, std::move(memory))); };
  std::size_t const whole = names.handle_bytes;
  expect_says(of(test::memory_file(whole, 0)), "without the seals");
  for (int const one : {F_SEAL_SHRINK, F_SEAL_SEAL})
    expect_says(of(test::memory_file(whole, one)), "without the seals");
  expect_says(of(test::memory_file(whole, test::all_seals | F_SEAL_WRITE)), "that is not writable");
  expect_says(of(test::memory_file(whole - 4096)), "another size");
  auto const memory = test::memory_file(whole);
  expect_says(of(owned_file(::open(("/proc/self/fd/" + std::to_string(memory.get())).c_str(), O_RDONLY))),
              "that is not writable");
  expect_says(of(owned_file(::open("/proc/self/exe", O_RDONLY))), "no shared memory");
  EXPECT_EQ(m.get().part<peer::imports>().mapped(), 0u);
  expect_the_line_works();
}

TEST_F(hostile_peer, without_memory_hears_that_nothing_was_kept) {
  auto const its = test::lent_under_names_of(test::caught(b).what, owned_file(::open("/dev/null", O_RDWR)));
  EXPECT_NE(answer_to(its), "taken");
  std::vector<peer::importer_signal> heard;
  for (char one = 0; ::recv(its.owners_end.get(), &one, 1, MSG_DONTWAIT) == 1;)
    heard.push_back(static_cast<peer::importer_signal>(one));
  EXPECT_EQ(heard, (std::vector{peer::importer_signal::opened, peer::importer_signal::released}));
}

TEST_F(hostile_peer, with_more_memory_than_its_device_is_refused) {
  auto its = test::lent_under_names_of(test::caught(b).what, test::memory_file(1024_MiB));
  its.what.handle_bytes = 1024_MiB;
  its.sealed();
  expect_says(answer_to(its), "that device has");
  expect_the_line_works();
}

TEST_F(hostile_peer, with_a_wrong_buffer_offset_is_refused) {
  auto its = test::lent_under_names_of(test::caught(b).what, test::memory_file(2_MiB));
  its.what.offset = 3;
  its.sealed();
  expect_says(answer_to(its), "impossible sizes");
  its.what.offset = 0;
  its.what.device = {"GPU-\033[2J"};
  its.sealed();
  auto const said = answer_to(its);
  EXPECT_EQ(said.find('\033'), std::string::npos) << "an escape sequence for the reader's terminal";
}

// // Random attacks
// --------------------------------------------------------------------------------------------

TEST(random_peers, that_lie_get_nothing_and_break_nothing) {
  EXPECT_TRUE(tests::hostile_peer(1).run().ok()) << "what a first run opens stays open: files of simulated machines";
  auto const before = test::open_files();
  std::uint64_t messages = 0, taken = 0;
  for (auto const seed : tests::seeds("hostile peers", tests::sanitized ? 50 : 250)) {
    auto peer = std::make_optional<tests::hostile_peer>(seed);
    auto const wrong = peer->run();
    messages += peer->sent(), taken += peer->taken();
    peer.reset();
    ASSERT_TRUE(wrong.ok()) << wrong << "; WEIR_TEST_SEED=" << seed;
    ASSERT_EQ(test::open_files(), before) << "descriptors are left, or closed twice; WEIR_TEST_SEED=" << seed;
  }
  std::printf("%llu messages of hostile peers, %llu lent memory\n", static_cast<unsigned long long>(messages),
              static_cast<unsigned long long>(taken));
}

}  // namespace
}  // namespace weir
