// The watch over other ranks: what it says of a rank that ends, freezes, is late, gives up or sends nonsense.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h.
// Threads: a watch has its own.
#include "peer/ranks/watch.h"

#include <algorithm>
#include <random>

#include "tests/ranks/raw_tcp.h"
#include "tests/support/seeds.h"

namespace weir::peer {
namespace {

using namespace test;
using namespace std::chrono_literals;

std::string message(std::uint32_t kind, std::int32_t about, std::string const& bytes, std::uint32_t round = 0) {
  return raw(static_cast<std::uint32_t>(bytes.size())) + raw(kind) + raw(about) + raw(round) + bytes;
}
std::string beat(std::uint64_t count, std::uint64_t trace = 0) {
  return message(1, 0, raw(count) + raw(trace) + raw(std::uint64_t{0}));
}
// Of a rank that called them in one step.
std::string gone(int rank, std::uint64_t count, std::string const& transfers = {}) {
  return message(7, rank, raw(count) + raw(std::uint64_t{0}) + raw(std::uint64_t{1}) + transfers);
}

struct watched : ::testing::Test {
  std::vector<std::atomic<int>> changes = std::vector<std::atomic<int>>(8);  // outlives the watches
  std::vector<std::unique_ptr<rank_watch>> all;

  std::unique_ptr<rank_watch> make(int rank, int size, std::vector<os::owned_file> lines, rank_watch::limits l) {
    auto made = std::make_unique<rank_watch>(rank, size, std::move(lines), l,
                                             [this, rank] { ++changes[static_cast<std::size_t>(rank)]; });
    made->start(source_location());
    return made;
  }
  void make_all(int size, rank_watch::limits l = {20s, 20s}) {
    std::vector<os::owned_file> to_hub, at_hub(static_cast<std::size_t>(size));
    for (int r = 1; r < size; ++r) {
      auto [a, b] = connected();
      to_hub.push_back(std::move(a));
      at_hub[static_cast<std::size_t>(r)] = std::move(b);
    }
    all.push_back(make(0, size, std::move(at_hub), l));
    for (int r = 1; r < size; ++r) {
      std::vector<os::owned_file> one;
      one.push_back(std::move(to_hub[static_cast<std::size_t>(r - 1)]));
      all.push_back(make(r, size, std::move(one), l));
    }
  }
  // Rank `rank` of two; the other end is raw.
  raw_tcp make_against_raw(int rank, rank_watch::limits l = {20s, 20s}) {
    auto [a, b] = connected();
    std::vector<os::owned_file> lines(rank == 0 ? 2 : 1);
    lines[rank == 0 ? 1 : 0] = std::move(a);
    all.push_back(make(rank, 2, std::move(lines), l));
    return raw_tcp(std::move(b));
  }
  static bool has_left(rank_watch const& w, int rank) { return std::ranges::count(w.left_in_order(), rank) != 0; }
  static std::string failure_of(rank_watch const& w, std::chrono::milliseconds limit = 20s) {
    auto const end = std::chrono::steady_clock::now() + limit;
    while (!w.failed() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    return w.failure();
  }
};

#define EXPECT_SAYS(text, words) EXPECT_NE((text).find(words), std::string::npos) << (text)

TEST_F(watched, ranks_that_beat_are_left_alone) {
  make_all(4, {200ms, 200ms});
  std::this_thread::sleep_for(600ms);
  for (auto const& w : all)
    EXPECT_EQ(w->failure(), "");
}

TEST_F(watched, a_rank_that_accuses_is_heard_by_all) {
  for (std::size_t const who : {0u, 2u}) {
    all.clear();
    make_all(4);
    all[who]->accuse(1, "rank 1 did it");
    for (auto const& w : all)
      EXPECT_EQ(failure_of(*w), "rank 1 did it");
    all[3]->accuse(2, "too late");
    EXPECT_EQ(all[3]->failure(), "rank 1 did it") << "the first verdict counts";
  }
}

TEST_F(watched, a_rank_that_ends_without_a_word_is_named_by_all) {
  make_all(2);
  auto raw_end = connected();
  std::vector<os::owned_file> lines(2);
  lines[1] = std::move(raw_end.first);
  auto const hub = make(0, 2, std::move(lines), {20s, 20s});
  raw_tcp other(std::move(raw_end.second));
  other.say(beat(41) + beat(42));
  other.hang_up();
  EXPECT_SAYS(failure_of(*hub), "rank 1 has ended, or its connection is broken, after its collective 42");
}

TEST_F(watched, rank_0_that_ends_is_named) {
  raw_tcp hub = make_against_raw(1);
  hub.say(beat(7));
  hub.hang_up();
  EXPECT_SAYS(failure_of(*all[0]), "rank 0 has ended, or its connection is broken, after its collective 7");
  EXPECT_EQ(changes[1], 1);
}

TEST_F(watched, a_silent_rank_is_named_after_the_limit) {
  for (int const rank : {0, 1}) {
    all.clear();
    raw_tcp other = make_against_raw(rank, {120ms, 20s});
    other.say(beat(3));
    auto const began = std::chrono::steady_clock::now();
    EXPECT_SAYS(failure_of(*all[0]), "rank " + std::to_string(1 - rank) + " has sent nothing for ");
    EXPECT_GE(std::chrono::steady_clock::now() - began, 100ms);
    EXPECT_SAYS(all[0]->failure(), "after its collective 3: its process or machine is frozen");
  }
}

// A beat is heard at once. If it were answered, two ranks would answer each other without an end.
TEST_F(watched, a_beat_is_sent_at_its_time_and_not_for_a_beat) {
  for (int const rank : {0, 1}) {
    all.clear();
    raw_tcp other = make_against_raw(rank, {60s, 60s});  // a beat a second
    for (int i = 0; i < 30; ++i) {
      ASSERT_TRUE(other.say(beat(0)));
      std::this_thread::sleep_for(2ms);
    }
    all[0]->accuse(1 - rank, "the last word");
    std::string const one_beat = beat(0);
    std::string heard;
    while (heard.find("the last word") == std::string::npos) {
      std::string const more = other.hear(1);
      ASSERT_NE(more, "");
      heard += more;
    }
    EXPECT_LT(heard.size(), 10 * one_beat.size()) << "rank " << rank;
  }
}

// Its connections would be open, and the others would wait for its silence.
TEST_F(watched, a_rank_without_host_memory_to_watch_hangs_up) {
  for (int const rank : {0, 1}) {
    auto [a, b] = connected();
    std::vector<os::owned_file> lines(rank == 0 ? 2 : 1);
    lines[rank == 0 ? 1 : 0] = std::move(a);
    rank_watch fails(rank, 2, std::move(lines), {60s, 60s}, [] {});
    fails.turn_away_by([] { throw std::bad_alloc(); });  // by the thread that watches
    fails.start(source_location());
    std::vector<os::owned_file> others(rank == 0 ? 1 : 2);
    others[rank == 0 ? 0 : 1] = std::move(b);
    auto const other = make(1 - rank, 2, std::move(others), {60s, 60s});
    EXPECT_SAYS(failure_of(*other), "rank " + std::to_string(rank) + " has ended, or its connection is broken");
    EXPECT_SAYS(failure_of(fails), "no host memory to watch the others");
  }
}

// Others wait for it, and its beats do not help it.
TEST_F(watched, a_rank_that_calls_no_collective_is_named) {
  make_all(3, {20s, 150ms});
  for (auto const& w : all)
    w->counts(5);
  std::this_thread::sleep_for(300ms);
  for (auto const& w : all)
    ASSERT_EQ(w->failure(), "");
  for (std::size_t const late : {0u, 2u}) {
    all.clear();
    make_all(3, {400ms, 150ms});
    for (std::size_t r = 0; r < 3; ++r)
      all[r]->counts(r == late ? 5 : 6);
    for (auto const& w : all)
      EXPECT_SAYS(failure_of(*w), "rank " + std::to_string(late) + " has called no collective for ");
    EXPECT_SAYS(all[0]->failure(), "after its collective 5, while others wait in collective 6");
  }
}

// Their calls are equal: a captured step calls nothing more.
TEST_F(watched, a_rank_that_launches_nothing_is_named) {
  make_all(3, {400ms, 150ms});
  for (std::size_t r = 0; r < 3; ++r) {
    all[r]->counts(5);
    all[r]->launches(r == 2 ? 0 : 5, 0);
  }
  for (auto const& w : all)
    EXPECT_SAYS(failure_of(*w), "rank 2 has called no collective for ");
  EXPECT_SAYS(all[0]->failure(), "after its collective 5, while others wait in collective 10");
}

TEST_F(watched, a_rank_that_left_before_a_launch_is_named) {
  make_all(2);
  for (auto const& w : all)
    w->launches(4, 0);
  all[1]->end();
  auto const until = std::chrono::steady_clock::now() + 20s;
  while (!has_left(*all[0], 1) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(all[0]->left_before_launch(), -1);
  all[0]->launches(1, 0);
  EXPECT_EQ(all[0]->left_before_launch(), 1);
  all[0]->launch_refused(1);
  EXPECT_EQ(all[0]->left_before_launch(), -1);
}

// A rank is judged by the exceptions before the first step that the silent one lacks, not by those before a later one.
TEST_F(watched, a_launch_waits_for_a_rank_that_an_exception_silenced) {
  make_all(2);
  rank_watch::transfers const none[2] = {};
  auto const hears = [&](bool of_one) {
    auto const until = std::chrono::steady_clock::now() + 20s;
    while (all[0]->any_unwound() != of_one && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    EXPECT_EQ(all[0]->any_unwound(), of_one);
  };
  for (auto const& w : all)
    w->counts(4), w->launches(4, 0);
  all[1]->unwound(1, 0, none);
  hears(true);
  EXPECT_EQ(all[0]->unwound_before(0, none, 0), -1);
  all[0]->launches(4, 1), all[0]->launches(4, 0), all[0]->counts(5, 0);
  EXPECT_EQ(all[0]->unwound_before(0, none, 0), -1) << "as many exceptions were before its launch";
  all[0]->counts(4), all[0]->launch_refused(4);
  all[0]->launch_refused(4), all[0]->launches(4, 0);
  EXPECT_EQ(all[0]->unwound_before(0, none, 0), 1);
  all[1]->launches(4, 1), all[1]->unwound(0, 0, none);
  hears(false);
  EXPECT_EQ(all[0]->unwound_before(0, none, 0), -1);
}

TEST_F(watched, a_rank_that_leaves_is_told_to_all_and_is_no_failure) {
  make_all(3);
  all[1]->counts(9);
  rank_watch::transfers const called[] = {{2, 3}, {}, {0, 7}};  // with each rank
  all[1]->end(called);
  for (std::size_t const r : {0u, 2u}) {
    auto const until = std::chrono::steady_clock::now() + 20s;
    while (!has_left(*all[r], 1) && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    EXPECT_FALSE(has_left(*all[r], r ? 0 : 2));
    EXPECT_FALSE(all[r]->left_with_less(1, {called[r].received, called[r].sent}));
    EXPECT_TRUE(all[r]->left_with_less(1, {called[r].received + 1, 0}));
    EXPECT_TRUE(all[r]->left_with_less(1, {0, called[r].sent + 1}));
    EXPECT_FALSE(all[r]->left_with_less(r ? 0 : 2, {9, 9})) << "it has not left";
    EXPECT_EQ(all[r]->left_before(9), -1);
    EXPECT_EQ(all[r]->left_before(10), 1);
    EXPECT_EQ(all[r]->failure(), "");
    EXPECT_EQ(all[r]->meet(rank_watch::round::barrier, 10s).is, rank_watch::at_barrier::end::over);
  }
}

// Those that hear of the first leave, too.
TEST_F(watched, the_first_rank_that_left_is_named) {
  auto [a, b] = connected();
  std::vector<os::owned_file> lines(1);
  lines[0] = std::move(a);
  all.push_back(make(1, 3, std::move(lines), {20s, 20s}));
  raw_tcp hub(std::move(b));
  hub.say(gone(2, 9) + gone(0, 9));
  auto const until = std::chrono::steady_clock::now() + 20s;
  while (!has_left(*all[0], 0) && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(all[0]->left_in_order(), (std::vector{2, 0}));
  EXPECT_EQ(all[0]->left_before(10), 2);
}

TEST_F(watched, what_a_rank_of_thousands_had_called_is_told) {
  constexpr int size = 3000;
  auto [a, b] = connected();
  std::vector<os::owned_file> lines(size);
  lines[1] = std::move(a);
  all.push_back(make(0, size, std::move(lines), {20s, 20s}));
  raw_tcp other(std::move(b));
  std::string with = raw(std::uint64_t{5}) + raw(std::uint64_t{6});
  with.resize(size * 16, '\0');
  other.say(gone(1, 9, with));
  auto const until = std::chrono::steady_clock::now() + 20s;
  while (!has_left(*all[0], 1) && !all[0]->failed() && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(all[0]->failure(), "");
  EXPECT_FALSE(all[0]->left_with_less(1, {6, 5}));
  EXPECT_TRUE(all[0]->left_with_less(1, {7, 5}));
}

TEST_F(watched, a_rank_of_thousands_tells_what_it_had_called) {
  constexpr std::uint32_t size = 3000;
  auto [a, b] = connected();
  std::vector<os::owned_file> lines(1);
  lines[0] = std::move(a);
  all.push_back(make(1, size, std::move(lines), {20s, 20s}));
  raw_tcp hub(std::move(b));
  std::vector<rank_watch::transfers> called(size);
  std::string with;
  for (std::uint64_t r = 0; r < size; ++r) {
    called[r] = {3 * r, 5 * r};
    with += raw(3 * r) + raw(5 * r);
  }
  all[0]->counts(9);
  std::thread ends([&] { all[0]->end(called); });
  std::string const told = gone(1, 9, with);
  std::string head = hub.hear(16);
  while (head.substr(4, 4) == raw(std::uint32_t{1})) {  // beats
    (void)hub.hear(24);
    head = hub.hear(16);
  }
  EXPECT_EQ(head, told.substr(0, 16));
  EXPECT_TRUE(head != told.substr(0, 16) || hub.hear(told.size() - 16) == told.substr(16));
  hub.hang_up();
  ends.join();
}

// Their bytes are alike: what they come for tells them apart. Ranks that come for one thing and bring nothing are told
// nothing.
TEST_F(watched, ranks_that_meet_for_other_things_learn_it) {
  using enum rank_watch::round;
  make_all(3);
  for (std::string const bytes : {"", "12345678"}) {
    for (auto const odd : {barrier, split, register_pool}) {
      std::vector<std::thread> threads;
      for (std::size_t r = 0; r < 3; ++r)
        threads.emplace_back([&, r] {
          auto const met = all[r]->meet(r == 1 ? odd : barrier, 20s, bytes);
          ASSERT_EQ(met.is, rank_watch::at_barrier::end::all_came);
          for (std::size_t k = 0; k < 3; ++k) {
            EXPECT_EQ(met.brought[k].bytes, bytes);
            EXPECT_EQ(met.brought[k].is.value_or(barrier), k == 1 ? odd : barrier);
            EXPECT_EQ(met.brought[k].is.has_value(), !bytes.empty() || odd != barrier || r == 0);
          }
        });
      for (auto& t : threads)
        t.join();
    }
  }
}

// As NCCL would not: it waits for ever, or mixes the bytes of two collectives.
TEST_F(watched, a_rank_that_calls_something_else_is_named) {
  for (bool const late : {false, true}) {
    all.clear();
    raw_tcp other = make_against_raw(0, {800ms, 20s, true});
    for (std::uint64_t k = 1; k <= 3000; ++k)
      all[0]->counts(k, 7 * k);
    other.say(beat(1, 7777) + beat(2999, 7 * 2999));  // the first is too old to be known
    std::this_thread::sleep_for(300ms);
    EXPECT_EQ(all[0]->failure(), "");
    other.say(late ? beat(3001, 5) : beat(2998, 5));
    if (late) {  // rank 0 has not called it yet
      std::this_thread::sleep_for(150ms);
      EXPECT_EQ(all[0]->failure(), "");
      all[0]->counts(3001, 6);
    }
    EXPECT_SAYS(failure_of(*all[0]),
                late ? "rank 1 has called other collectives than rank 0, or in another order, among "
                       "its first 3001"
                     : "among its first 2998");
  }
}

TEST_F(watched, nonsense_on_the_line_is_refused_by_name) {
  std::string const standing = message(4, 0, raw(std::uint64_t{1}));
  constexpr auto no_round = static_cast<std::uint32_t>(rank_watch::round::connect) + 1;
  std::string const bad[] = {message(0, 0, raw(std::uint64_t{1})),
                             message(8, 0, raw(std::uint64_t{1})),
                             message(1, 0, "short"),
                             message(1, 5, std::string(24, '\1')),
                             message(1, 1, raw(std::uint64_t{1}) + raw(std::uint64_t{1})),
                             message(5, -1, "who?"),
                             message(5, 0, ""),
                             standing,
                             raw(~std::uint32_t{0}) + raw(std::uint32_t{1}) + raw(std::uint64_t{0}),
                             message(6, 1, "only rank 0 judges"),
                             message(2, 1, raw(std::uint64_t{0}), no_round),
                             message(2, 1, raw(std::uint64_t{0}), ~std::uint32_t{0}),
                             "GET / HTTP/1.1\r\n\r\n"};
  for (std::string const& bytes : bad) {
    all.clear();
    raw_tcp other = make_against_raw(0);
    other.say(beat(1) + bytes);
    EXPECT_SAYS(failure_of(*all[0]), "rank 1 sends what is none of weir's messages, after its collective 1");
  }
  for (std::string const& bytes : {message(2, 0, raw(std::uint64_t{0})), message(5, 1, "ranks do not accuse"),
                                   message(4, 0, raw(std::uint64_t{1}) + "12345"), message(8, 1, "", no_round),
                                   message(8, 1, "", ~std::uint32_t{0})}) {
    all.clear();
    raw_tcp hub = make_against_raw(1);
    hub.say(bytes);
    EXPECT_SAYS(failure_of(*all[0]), "rank 0 sends what is none");
  }
}

// Whatever comes, in any pieces: the watch goes on, or names the rank.
TEST_F(watched, random_bytes_end_in_a_verdict_or_nothing) {
  for (std::uint64_t const seed : tests::seeds("hostile beats", 80)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    std::mt19937_64 random(seed);
    all.clear();
    int const rank = static_cast<int>(random() % 2);
    raw_tcp other = make_against_raw(rank);
    std::string bytes;
    for (std::uint64_t k = 0, n = random() % 8; k < n; ++k) {
      std::string body(random() % 3 ? 8 : random() % 40, '\0');
      for (char& c : body)
        c = static_cast<char>(random() % 3 ? 0 : random());
      std::string one = message(static_cast<std::uint32_t>(random() % 9), static_cast<std::int32_t>(random() % 3), body,
                                static_cast<std::uint32_t>(random() % 4));
      if (random() % 6 == 0)
        one[random() % one.size()] = static_cast<char>(random());
      bytes += one;
    }
    for (std::size_t at = 0; at < bytes.size();) {
      std::size_t const n = std::min<std::size_t>(1 + random() % 50, bytes.size() - at);
      if (!other.say(bytes.substr(at, n)))
        break;
      at += n;
    }
    other.hang_up();
    auto const until = std::chrono::steady_clock::now() + 20s;
    auto const ended = [&] { return all[0]->failed() || has_left(*all[0], 0) || has_left(*all[0], 1); };
    while (!ended() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(ended());
  }
}

}  // namespace
}  // namespace weir::peer
