// In random programs, if weir's clocks say ordered or complete, so does the checker's own graph.
// Threads: one.
#include <gtest/gtest.h>

#include <random>

#include "simulator/checker/race_checker.h"
#include "streams/stream/context.h"
#include "tests/check/programs.h"
#include "tests/support/seeds.h"
#include "weir/sim.h"

namespace weir::check_tests {
namespace {

struct asked {
  clock::stamp stamp;
  driver::check::epoch place;
};

TEST(clocks, order_and_completion_agree_with_the_call_graph) {
  std::uint64_t ordered = 0, complete = 0, neither = 0;
  tests::seeds const wanted("clocks and graph", 60);
  for (auto const seed : wanted) {
    runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
               {.check_races = true}};
    runtime_guard const in{rt};
    auto& machine = rt.get().machine();
    auto& judge = dynamic_cast<driver::check::test_control&>(*machine.checker());
    auto& clocks = rt.get().part<clock::clocks>();
    std::mt19937_64 draw(seed);
    auto const below = [&](std::uint64_t n) { return draw() % n; };

    std::vector<stream> all;
    for (int i = 0; i < 4; ++i)
      all.emplace_back(device(i % 2));
    std::vector<event> events(3);
    std::vector<int> on(3, 0);
    for (std::size_t i = 0; i < events.size(); ++i)
      events[i].record(all[0]);
    std::vector<asked> stamps;
    std::vector<buffer> blocks;
    auto const line = [&](stream const& s) -> clock::stream_clock& { return streams::clock_of(s.ref()); };

    for (int step = 0; step < 120; ++step) {
      stream& s = all[below(4)];
      stream& t = all[below(4)];
      std::size_t const e = below(3);
      switch (below(11)) {
        case 0:
        case 1: launch(s, {}, on_gpu, [] {}); break;
        case 2:
        case 3: t.ref().wait(s); break;
        case 4:
          if (line(s).device() == line(all[static_cast<std::size_t>(on[e])]).device())
            events[e].record(s), on[e] = static_cast<int>(&s - all.data());
          break;
        case 5: t.ref().wait(events[e]); break;
        case 6: (void)events[e].query(); break;
        case 7: (void)s.ref().query(); break;
        case 8:
          if (below(3) == 0)
            s.ref().synchronize();
          break;
        case 9: {
          stream_guard const home{s.ref()};
          blocks.emplace_back(64_KiB * (1 + below(40)));
          blocks.back().record_stream(t.ref().device() == s.ref().device() ? t.ref() : s.ref());
          if (blocks.size() > 6)
            blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(below(blocks.size())));
          break;
        }
        default:
          if (!stamps.empty())
            (void)clocks.poll(stamps[below(stamps.size())].stamp);
      }
      if (below(2)) {
        auto& l = line(all[below(4)]);
        stamps.push_back({l.now(), judge.position(l.device(), l.handle())});
      }
      if (stamps.size() > 24)
        stamps.erase(stamps.begin(), stamps.begin() + 8);
      for (asked const& a : stamps) {
        if (clocks.complete(a.stamp)) {
          ++complete;
          ASSERT_TRUE(judge.complete(a.place)) << "seed " << seed << ", step " << step << ": weir takes stream "
                                               << a.place.stream << " to be complete up to " << a.place.n;
        }
        for (auto const& to : all) {
          auto& l = line(to);
          if (!l.covers(a.stamp)) {
            ++neither;
            continue;
          }
          ++ordered;
          ASSERT_TRUE(judge.ordered(a.place, l.device(), l.handle()))
              << "seed " << seed << ", step " << step << ": weir takes stream " << a.place.stream << " up to "
              << a.place.n << " to be before a stream it is not before";
        }
      }
    }
    for (auto& s : all)
      s.ref().synchronize();
    expect_none(race_reports());
  }
  if (wanted.count() < 5)
    return;
  EXPECT_GT(ordered, complete);
  EXPECT_GT(complete, 1000u);
  EXPECT_GT(neither, 1000u) << "clocks that say yes to everything prove nothing";
}

}  // namespace
}  // namespace weir::check_tests
