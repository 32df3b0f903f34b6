// Tests of the explorer: it finds a planted failure, reports and shrinks it, and replays it to the same hash.
// Threads: those of each run.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tests/explore/explore.h"

namespace weir {
namespace {

using driver::sim::tape;
using tests::trial;

TEST(tape, gives_the_simplest_choices_after_the_last_one_given) {
  tape t(1, {3, 1, 7});
  t.write_down();
  EXPECT_EQ(t.draw(5), 3u);
  EXPECT_TRUE(t.coin(1));
  EXPECT_EQ(t.rarely(4, 1), 3u) << "too large a number is taken as far as it goes";
  EXPECT_EQ(t.draw(1), 0u);
  EXPECT_EQ(t.weighted({1, 2, 3}), 0u);
  EXPECT_FALSE(t.coin(99));
  EXPECT_EQ(t.written(), (std::vector<tape::choice>{{3, 5}, {1, 2}, {3, 4}, {0, 3}, {0, 2}}))
      << "one out of one is no choice";
}

TEST(tape, of_a_seed_keeps_its_weights_and_replays) {
  int coins = 0, rare = 0, other[4] = {}, second = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    tape t(seed);
    t.write_down();
    coins += t.coin(30);
    std::uint32_t const k = t.rarely(4, 20);
    ++other[k];
    rare += k != 0;
    second += t.weighted({10, 80, 10}) == 1;
    tape::numbers given;
    for (auto const& c : t.written())
      given.push_back(c.taken);
    tape again(seed, given);
    again.coin(30), again.rarely(4, 20), again.weighted({10, 80, 10});
    ASSERT_EQ(again.hash(), t.hash());
  }
  EXPECT_NEAR(coins, 300, 60);
  EXPECT_NEAR(rare, 200, 60);
  EXPECT_NEAR(other[2], 67, 40);
  EXPECT_NEAR(second, 800, 60);
}

TEST(tape, a_file_is_read_back_and_errors_are_named) {
  tests::tape_file const f{"some_program", 17, 0x123456789abcdef0, true, tape::numbers(100, 5)};
  auto const back = tests::tape_file::parse(f.text());
  EXPECT_EQ(back.text(), f.text());
  EXPECT_EQ(back.draws, f.draws);
  auto const why = [](std::string const& text) -> std::string {
    try {
      tests::tape_file::parse(text);
    } catch (std::runtime_error const& e) {
      return e.what();
    }
    return "nothing";
  };
  EXPECT_EQ(why(""), "no tape: the first line is not \"weir tape 1\"");
  EXPECT_EQ(why("weir tape 1\nprogram p\ncolour red\n"), "no tape: a line begins with \"colour\"");
  EXPECT_EQ(why("weir tape 1\nprogram p\ndraws 3\n1 2\n"), "no tape: 3 draws are announced, 2 are there");
  EXPECT_EQ(why("weir tape 1\nprogram p\npoints everywhere\n"),
            "no tape: points at \"everywhere\", neither locks nor atomics");
  EXPECT_EQ(why("weir tape 1\nseed 3\n"), "no tape: no program is named");
}

TEST(shrink, leaves_only_what_the_failure_needs) {
  tape::numbers first(200, 0);
  for (std::size_t i = 0; i < first.size(); ++i)
    first[i] = static_cast<std::uint32_t>(i * 7 % 50);
  auto const fails = [](tape::numbers& n) {  // a 40 and, anywhere after it, a number above 12
    auto const at = std::find(n.begin(), n.end(), 40u);
    return at != n.end() && std::any_of(at + 1, n.end(), [](auto v) { return v > 12; });
  };
  EXPECT_EQ(tests::shrink(first, 10'000, fails), (tape::numbers{40, 13}));
  auto few = tests::shrink(first, 20, fails);
  EXPECT_TRUE(fails(few)) << "also when it was stopped early";
}

// Two threads increment a number, with a switch point between read and write.
void lost_update(trial& t) {
  for (std::uint32_t n = t.draw(8); n > 0; --n)
    t.draw(100);  // irrelevant draws
  static base::mutex between;
  int number = 0;
  t.bench();
  for (char const* name : {"a", "b"}) {
    t.spawn(name, [&] {
      for (int i = 0; i < 3; ++i) {
        int const seen = number;
        { base::lock_guard here_others_may_go_on(between); }
        number = seen + 1;
      }
    });
  }
  t.join();
  if (number != 6)
    t.fail("an update was lost");
}

TEST(explore, a_shrunk_tape_fails_again_with_the_same_hash) {
  tests::explore_options const o{.name = "lost_update", .runs = 100};
  auto const f = tests::search(o, lost_update);
  ASSERT_GT(f.at, 0u);
  EXPECT_LE(f.at, 20u);
  EXPECT_EQ(f.at, f.runs);
  EXPECT_EQ(f.shrunk_what, "an update was lost");
  EXPECT_LE(f.shrunk.size(), 24u);  // 17 at most, over 400 first seeds
  tape t(f.seed, f.shrunk);
  trial one(o, t);
  lost_update(one);
  EXPECT_EQ(one.finish(), "an update was lost");
  EXPECT_EQ(t.hash(), f.shrunk_hash);
}

class with_tape {
 public:
  explicit with_tape(tests::tape_file const& f) {
    f.write(path_);
    ::setenv("WEIR_TEST_TAPE", path_.c_str(), 1);
  }
  ~with_tape() {
    ::unsetenv("WEIR_TEST_TAPE");
    std::filesystem::remove(path_);
  }

 private:
  std::string path_ =
      (std::filesystem::temp_directory_path() / ("weir-harness-" + std::to_string(::getpid()) + ".tape")).string();
};

TEST(explore, a_tape_that_takes_another_course_is_a_failure) {
  auto const body = [](trial& t) { t.machine().open(static_cast<int>(t.draw(1))), t.draw(9); };
  tests::explore_options const o{.name = "harmless"};
  tape t(3, {4});
  {
    trial one(o, t);
    body(one);
    ASSERT_EQ(one.finish(), "");
  }
  {
    with_tape const same({"harmless", 3, t.hash(), tests::points_at_atomics, {4}});
    EXPECT_EQ(tests::explore(o, body), 0u) << "that tape alone";
  }
  with_tape const other({"harmless", 3, t.hash(), tests::points_at_atomics, {5}});
  EXPECT_NONFATAL_FAILURE(
      tests::explore({.name = "harmless"}, [](trial& r) { r.machine().open(static_cast<int>(r.draw(1))), r.draw(9); }),
      "took another course");
}

TEST(explore, all_is_every_tape_once) {
  std::set<std::vector<std::uint32_t>> seen;
  auto const runs = tests::explore_all({.name = "all", .runs = 100}, [&](trial& t) {
    std::vector<std::uint32_t> v{t.draw(3)};
    if (v[0] == 1)
      v.push_back(t.draw(4));
    v.push_back(t.coin());
    seen.insert(v);
  });
  EXPECT_EQ(runs, 2u + 8u + 2u);
  EXPECT_EQ(seen.size(), 12u);
}

TEST(explore, all_orders_of_two_threads_are_among_all_tapes) {
  std::set<std::string> orders;
  tests::explore_all({.name = "orders", .runs = 5000}, [&](trial& t) {
    static base::mutex m;
    std::string order;
    t.bench();
    for (char c : {'a', 'b'}) {
      t.spawn(std::string(1, c), [&, c] {
        for (int i = 0; i < 2; ++i) {
          base::lock_guard hold(m);
          order += c;
        }
      });
    }
    t.join();
    orders.insert(order);
  });
  EXPECT_EQ(orders, (std::set<std::string>{"aabb", "abab", "abba", "baab", "baba", "bbaa"}));
}

TEST(explore, a_leak_and_a_stuck_thread_fail_their_run) {
  auto const kept = tests::search({.name = "kept", .runs = 1}, [](trial& t) {
    t.machine().open(0);
    (void)t.machine().create_event(0, driver::event_kind::order_only);
  });
  EXPECT_EQ(kept.what, "the machine ends with event 1 of device 0");
  auto const stuck = tests::search({.name = "stuck", .runs = 1}, [](trial& t) {
    static base::mutex m;
    t.bench();
    base::lock_guard hold(m);
    t.spawn("a", [] { base::lock_guard wanted(m); });
    t.join();
  });
  EXPECT_EQ(stuck.what,
            "stuck: thread 0 (main) waits for the end of thread 1 (a); thread 1 (a) waits for lock 1, which thread 0 "
            "(main) holds");
}

}  // namespace
}  // namespace weir
