// Topic 7: the article's program whose second stream does not wait. Its result is wrong under some legal
// orders. The race checker finds the error under every order, and one more line corrects it.
#include "examples/seeds/topics.h"
#include "weir/tensor.h"

namespace seeds {
namespace {

enum class waits : bool { no, yes };

struct outcome {
  float sum;
  std::vector<weir::race_report> races;
};

// The article's program:
//   s = torch.cuda.Stream()
//   A = torch.empty((100, 100), device=cuda).normal_(0, 1)
//   with torch.cuda.stream(s): B = torch.sum(A)
// Here A is then filled with ones, so that its sum is known.
outcome program(waits w) {
  weir::stream const s;
  weir::tensor a = weir::empty({100, 100});
  a.normal_(0.0, 1.0).fill_(1);
  weir::tensor b;
  {
    if (w == waits::yes)
      s.wait(weir::current_stream());
    weir::stream_guard const in(s);
    b = weir::sum(a);
  }
  weir::stream_guard const in(s);
  return {b.item<float>(), weir::race_reports()};
}

outcome run(std::uint64_t seed, waits w) {
  weir::runtime rt{
      weir::simulated{.devices = 1, .memory = 64_MiB, .schedule = weir::simulated::scheduling::seeded, .seed = seed},
      {.check_races = true}};
  weir::runtime_guard const in{rt};
  return program(w);
}

// On the topic's own machine, real or simulated. Measures memory while A and B live.
void rows(table& t) {
  t.row("", {exactly(0), exactly(0)}, "");
  weir::stream const s;
  weir::tensor a = weir::empty({100, 100});
  a.normal_(0.0, 1.0);
  t.row("A = empty(100, 100).normal_(0, 1)", {exactly(40448), held_for(40448)},
        "a stream is given its work, which runs later");
  s.wait(weir::current_stream());
  weir::tensor b;
  {
    weir::stream_guard const in(s);
    b = weir::sum(a);
  }
  s.synchronize();
  weir::synchronize();
  t.row("on s, after s.wait: B = sum(A)", {exactly(40448 + 16), held_for(2 * 40448)},
        "without the wait it may begin before normal_ ends");
}

}  // namespace

int streams(settings const& with) {
  machine const on(with, {.devices = 1, .memory = 256_MiB}, {});
  table t(with, "7. Streams");
  rows(t);
  int wrong = 0, reported = 0, right = 0, silent = 0;
  std::string text;
  for (int seed = 1; seed <= with.seeds; ++seed) {
    outcome const without = run(static_cast<std::uint64_t>(seed), waits::no),
                  waited = run(static_cast<std::uint64_t>(seed), waits::yes);
    wrong += without.sum != 10000;
    // The report has both lines: the write of A and the read of A.
    reported += without.races.size() > 0 && without.races[0].first.line() != without.races[0].second.line() &&
                without.races[0].text.find("streams.cpp:") != std::string::npos;
    if (text.empty() && !without.races.empty())
      text = without.races[0].text;
    right += waited.sum == 10000;
    silent += waited.races.empty();
  }
  std::string const of = " of " + std::to_string(with.seeds) + " seeds";
  t.holds(wrong > 0 && wrong < with.seeds, "without s.wait(current_stream()) the sum is wrong under " +
                                               std::to_string(wrong) + of + ", and right by luck under the rest");
  t.holds(reported == with.seeds,
          "the checker reports it, with both places, under " + std::to_string(reported) + of + ":");
  t.holds(!text.empty(), text);
  t.holds(right == with.seeds && silent == with.seeds,
          "with s.wait(current_stream()) it is right, and nothing is reported, under " + std::to_string(right) + of);
  return t.failures();
}

}  // namespace seeds
