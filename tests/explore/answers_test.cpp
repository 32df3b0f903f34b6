// Small programs on two streams under every answer of a machine: all programs of four calls, and longer ones
// by seed. An answer says only whether the host asked too early. Streams move no earlier than they must.
// Threads: one. See explore.h for the environment.
#include <gtest/gtest.h>

#include <deque>

#include "tests/explore/filled.h"

namespace weir {
namespace {

using tests::trial;

constexpr std::size_t block_bytes = 40'000;  // a page holds one block

class program {
 public:
  // The device has three pages. Requires: the calls are drawn before the first call of the machine.
  program(trial& t, std::vector<std::uint32_t> calls) : t_(t), bench_(t.bench({.devices = 1, .memory = 3 * 65'536})) {
    for (auto*& l : lines_)
      l = &t.stream(0);
    for (std::uint32_t c : calls) {
      if (!t.failed())
        call(c);
    }
    if (!t.failed())
      end();
  }
  static constexpr std::uint32_t kinds = 10;

 private:
  struct block {
    unsigned char* at;
    unsigned char value;
    std::size_t home;
    std::vector<std::size_t> readers{};
  };

  void call(std::uint32_t c) {
    std::size_t const s = c % 2;
    switch (c / 2) {
      case 0: return take(s);
      case 1: return use(s);
      case 2: return order(1 - s, s);
      case 3: return t_.must(bench_.clocks().poll(lines_[s]->now()).is, "poll");
      default: return s == 0 ? give_back() : void(bench_.on(0).empty_cache());
    }
  }
  void order(std::size_t before, std::size_t after) {
    t_.say(after, " waits for ", before);
    t_.must(lines_[after]->wait(lines_[before]->now()), "wait");
  }

  void take(std::size_t s) {
    try {
      block const b{
          static_cast<unsigned char*>(bench_.on(0).allocate(*lines_[s], block_bytes, 0, source_location::current())),
          ++last_, s};
      t_.say("takes block ", static_cast<int>(b.value), " on ", s);
      t_.must(bench_.machine().fill(0, lines_[s]->handle(), b.at, b.value, 1, block_bytes), "fill");
      blocks_.push_back(b);
    } catch (out_of_memory const&) {
      if (blocks_.size() < 3)
        t_.fail("out of memory with " + std::to_string(blocks_.size()) + " of three pages in use");
    }
  }
  void read(block const& b, std::size_t s) {
    give_filled(t_, *lines_[s], tests::filled::still, b.at, block_bytes, b.value,
                "block " + std::to_string(b.value) + " was overwritten");
  }
  void use(std::size_t s) {
    if (blocks_.empty())
      return;
    block& b = blocks_.front();
    t_.say("uses block ", static_cast<int>(b.value), " of ", b.home, " on ", s);
    bench_.on(0).record_use(b.at, *lines_[s], source_location::current());
    if (b.home != s)
      order(b.home, s);
    read(b, s);
  }
  void give_back() {
    if (blocks_.empty())
      return;
    t_.say("frees block ", static_cast<int>(blocks_.front().value));
    read(blocks_.front(), blocks_.front().home);
    bench_.on(0).deallocate(blocks_.front().at, nullptr, source_location::current());
    blocks_.pop_front();
  }

  void end() {
    for (auto const& b : blocks_)
      read(b, b.home);
    for (auto* l : lines_)
      t_.must(bench_.clocks().synchronize(l->now()), "synchronize");
    for (auto const& b : blocks_)
      bench_.on(0).deallocate(b.at, nullptr, source_location::current());
    bench_.on(0).empty_cache();
    if (auto const left = bench_.on(0).statistics().reserved_bytes.all.current)
      t_.fail(std::to_string(left) + " B stay reserved");
    t_.expect_none(bench_.on(0).validate());
    t_.expect_none(bench_.clocks().validate());
  }

  trial& t_;
  tests::memory_bench& bench_;
  clock::stream_clock* lines_[2]{};
  std::deque<block> blocks_;
  unsigned char last_ = 0;
};

TEST(explore_answers, all_programs_of_four_calls_keep_their_bytes) {
  // Three calls under sanitizers, where few seeds are requested.
  std::size_t const calls_each = tests::number_from_environment("WEIR_TEST_SEEDS", 1000) < 1000 ? 3 : 4;
  auto const runs = tests::explore_all({.name = "short_programs", .runs = 1'000'000}, [&](trial& t) {
    // the first call is on the first stream, by symmetry
    std::vector<std::uint32_t> calls{2 * t.draw(program::kinds / 2)};
    while (calls.size() < calls_each)
      calls.push_back(t.draw(program::kinds));
    program p(t, calls);
  });
  EXPECT_TRUE(runs == 0 || runs >= (calls_each == 4 ? 5000 : 500)) << runs;
}

TEST(explore_answers, longer_programs_keep_their_bytes) {
  tests::explore_answers({.name = "forty_calls", .runs = 300}, 16, [](trial& t) {
    std::vector<std::uint32_t> calls;
    for (std::uint32_t n = 5 + t.draw(36); n > 0; --n)
      calls.push_back(t.draw(program::kinds));
    t.program_ends();
    program p(t, calls);
  });
}

}  // namespace
}  // namespace weir
