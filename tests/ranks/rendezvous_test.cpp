// The rendezvous of ranks: foreign connections, wrong ranks and stale addresses do not prevent it.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h.
// Threads: one for each rank.
#include "peer/ranks/rendezvous.h"

#include <atomic>
#include <random>
#include <thread>

#include "runtime/base/os.h"
#include "tests/ranks/raw_tcp.h"
#include "tests/support/seeds.h"
#include "weir/error.h"

namespace weir::peer {
namespace {

using namespace test;
using namespace std::chrono_literals;
constexpr source_location nowhere{};

struct rendezvous : ::testing::Test {
  os::tcp_socket listener = os::listen_tcp(0);
  rendezvous_id id{"127.0.0.1", listener.port, 12345};
  std::string hub_said;
  met at_hub;
  std::thread hub(int size, base::time_limit limit = long_enough, bool simulated = true) {
    return std::thread([this, size, limit, simulated] {
      try {
        at_hub = meet_others(std::move(listener), id, {0, size, simulated}, "the greeting", limit, nowhere);
      } catch (std::exception const& e) {
        hub_said = e.what();
      }
    });
  }
  std::string come(int rank, int size, bool simulated = true, base::time_limit limit = long_enough) {
    try {
      met const m = meet_rank_0(id, {}, {rank, size, simulated}, limit, nowhere);
      EXPECT_EQ(m.with.watch.size(), 1u);
      return m.greeting;
    } catch (std::exception const& e) {
      return e.what();
    }
  }
};

std::string hello(std::uint64_t nonce, std::int32_t rank, std::int32_t size, std::uint8_t use = 0,
                  std::uint8_t simulated = 1, std::string const& word = "wirrank3") {
  return word + raw(nonce) + raw(rank) + raw(size) + raw(use) + raw(simulated) + std::string(6, '\0');
}

TEST_F(rendezvous, all_ranks_get_rank_0s_greeting) {
  std::thread zero = hub(4);
  std::vector<std::thread> others;
  for (int r : {3, 1, 2})
    others.emplace_back([this, r] { EXPECT_EQ(come(r, 4), "the greeting"); });
  for (auto& t : others)
    t.join();
  zero.join();
  EXPECT_EQ(hub_said, "");
  for (std::size_t r : {1u, 2u, 3u}) {
    EXPECT_TRUE(at_hub.with.watch[r].is_open());
    EXPECT_TRUE(at_hub.with.data[r].is_open());
  }
}

TEST_F(rendezvous, an_id_reads_back_and_others_are_none) {
  for (rendezvous_id const& one : {id, rendezvous_id{"fe80::1", 1, ~std::uint64_t{0}}, rendezvous_id{"a.b", 65535, 0}})
    EXPECT_EQ(rendezvous_id_of(text_of(one)), one) << text_of(one);
  for (char const* text : {"", "weir:", "weir:1", "weir:1:2", "weir:1:2:", "weir:1:0:a", "weir:1:65536:a", "weir:g:2:a",
                           "weir:1:-2:a", "wier:1:2:a", "weir:1:2:a b", "weir::2:a", "weir:11111111111111111:2:a"})
    EXPECT_EQ(rendezvous_id_of(text), std::nullopt) << text;
  EXPECT_EQ(rendezvous_id_of("weir:1:2:" + std::string(256, 'a')), std::nullopt);
}

TEST_F(rendezvous, strangers_do_not_keep_ranks_from_meeting) {
  std::thread zero = hub(2);
  std::uint16_t const port = id.port;
  raw_tcp silent(port), web(port), half(port), gone(port);
  web.say("GET / HTTP/1.1\r\nHost: somebody's machine\r\n\r\n");
  half.say("wirrank3");
  gone.hang_up();
  raw_tcp other_nonce(port);
  other_nonce.say(hello(999, 1, 2));
  EXPECT_EQ(other_nonce.hear(4), raw(std::uint32_t{4}));
  EXPECT_EQ(web.hear(1), "") << "answered a stranger";
  raw_tcp older(port);
  older.say(hello(id.nonce, 1, 2, 0, 1, "wirrank1"));
  EXPECT_EQ(older.hear(1), "") << "answered a rank of an older version";
  EXPECT_EQ(come(1, 2), "the greeting");
  zero.join();
  EXPECT_EQ(hub_said, "");
}

TEST_F(rendezvous, wrong_ranks_are_told_what_is_wrong) {
  std::thread zero = hub(3);
  raw_tcp first(id.port);
  first.say(hello(id.nonce, 2, 3));
  EXPECT_NE(come(1, 4).find("rank 1 was started as one of 4 ranks, rank 0 as one of 3"), std::string::npos);
  EXPECT_NE(come(1, 3, false).find("rank 1 has GPUs, rank 0 has simulated devices"), std::string::npos);
  EXPECT_NE(come(3, 3).find("no place for rank 3"), std::string::npos);
  EXPECT_NE(come(0, 3).find("no place for rank 0"), std::string::npos);
  EXPECT_NE(come(2, 3).find("a second rank 2 came"), std::string::npos);
  first.hang_up();  // a rank that was started again takes its place
  std::thread two([this] { EXPECT_EQ(come(2, 3), "the greeting"); });
  EXPECT_EQ(come(1, 3), "the greeting");
  two.join();
  zero.join();
  EXPECT_EQ(hub_said, "");
}

// It would wait in vain, for as long as its ranks may take to come.
TEST_F(rendezvous, a_rank_that_comes_after_all_have_met_is_refused) {
  std::thread zero = hub(2);
  EXPECT_EQ(come(1, 2), "the greeting");
  zero.join();
  ASSERT_TRUE(at_hub.turn_away);
  std::atomic<bool> over{false};
  std::thread answers([&] {
    while (!over.load())
      at_hub.turn_away(), std::this_thread::sleep_for(1ms);
  });
  EXPECT_NE(come(1, 2).find("a second rank 1 came, after all had met"), std::string::npos);
  over.store(true);
  answers.join();
  EXPECT_TRUE(at_hub.with.watch[1].is_open());
}

TEST_F(rendezvous, all_are_told_who_did_not_come) {
  std::thread zero = hub(4, 300ms);
  std::string const text = come(2, 4);
  zero.join();
  for (std::string const& said : {text, hub_said})
    EXPECT_NE(said.find("rank 1, rank 3 of 4 did not come within 300 ms"), std::string::npos) << said;
}

// What a launcher keeps from earlier processes: a port without a listener, or one where others meet.
TEST_F(rendezvous, an_old_address_is_asked_for_again) {
  os::tcp_socket other = os::listen_tcp(0);
  std::uint16_t const others_port = other.port;
  std::thread others([&] {
    try {
      (void)meet_others(std::move(other), {"127.0.0.1", others_port, 1}, {0, 2, true}, "", 2s, nowhere);
    } catch (timed_out const&) {}
  });
  std::thread zero = hub(2);
  rendezvous_id const old[] = {{"127.0.0.1", os::listen_tcp(0).port, 7}, {"127.0.0.1", others_port, 7}, id};
  std::size_t asked = 0;
  met const m = meet_rank_0(
      old[0], [&] { return old[std::min<std::size_t>(++asked, 2)]; }, {1, 2, true}, long_enough, nowhere);
  EXPECT_EQ(m.greeting, "the greeting");
  EXPECT_GE(asked, 2u);
  zero.join();
  others.join();
}

TEST_F(rendezvous, a_rank_0_that_is_another_program_is_told) {
  std::thread other([this] {
    for (int i = 0; i < 4; ++i) {
      raw_tcp c = accepted(listener);
      c.say(i % 2 ? std::string(64, 'x') : raw(std::uint32_t{1}) + raw(std::uint32_t{0xffffffff}));
      c.hear(32);
    }
    listener.file.close();
  });
  std::string const text = come(1, 2, true, 1s);
  other.join();
  EXPECT_NE(text.find("rank 1 of 2: rank 0 at 127.0.0.1 port "), std::string::npos) << text;
}

// Rank 0 outlives any bytes, and the ranks meet.
TEST_F(rendezvous, random_bytes_keep_no_rank_away) {
  for (std::uint64_t const seed : tests::seeds("hostile hellos", 60)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    listener = os::listen_tcp(0);
    id.port = listener.port;
    std::thread zero = hub(2);
    std::vector<raw_tcp> strangers;
    for (std::uint64_t k = 0, n = random() % 12; k < n; ++k) {
      auto const rank = static_cast<std::int32_t>(random() % 5) - 1;  // with the nonce, none that would be let in
      std::string bytes = hello(rank != 1 && random() % 2 ? id.nonce : random() << 20, rank,
                                static_cast<std::int32_t>(random() % 4), static_cast<std::uint8_t>(random() % 4));
      if (random() % 3 == 0)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      bytes.resize(random() % 60, 'x');
      strangers.emplace_back(id.port);
      strangers.back().say(bytes);
      if (random() % 2)
        strangers.back().hang_up();
    }
    EXPECT_EQ(come(1, 2), "the greeting");
    zero.join();
    ASSERT_EQ(hub_said, "");
  }
}

}  // namespace
}  // namespace weir::peer
