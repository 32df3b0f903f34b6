// One thread learns of a stream's completion that another one saw. It then reads that work's data, and only
// the clocks order it after the thread that queried the driver.
// Threads: as programs.h.
#include <array>
#include <bit>
#include <memory>
#include <optional>

#include "runtime/clock/stream_clock.h"
#include "tests/stress/programs.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/stream.h"

namespace weir::tests {
namespace {

// A stamp passed without order: its two numbers, and a
// checksum with the turn, because a reader may mix two turns.
class told_stamp {
 public:
  void tell(stamp s, std::uint64_t turn) noexcept {
    auto const words = std::bit_cast<std::array<std::uint64_t, 2>>(s);
    stream_.store(words[0], std::memory_order_relaxed), n_.store(words[1], std::memory_order_relaxed);
    sum_.store(sum(words, turn), std::memory_order_relaxed);
  }
  std::optional<stamp> heard(std::uint64_t turn) const noexcept {
    std::array<std::uint64_t, 2> const words{stream_.load(std::memory_order_relaxed),
                                             n_.load(std::memory_order_relaxed)};
    if (sum_.load(std::memory_order_relaxed) != sum(words, turn))
      return {};
    return std::bit_cast<stamp>(words);
  }

 private:
  // Mixes each number before the next. Else a stream and a turn that both grow by one could keep the sum.
  static std::uint64_t sum(std::array<std::uint64_t, 2> const& words, std::uint64_t turn) noexcept {
    std::uint64_t all = 0x2545f4914f6cdd1d;  // so that turn 0 of zero words has no sum 0
    for (auto const w : {turn, words[0], words[1]})
      all = (all ^ w) * 0x9e3779b97f4a7c15, all ^= all >> 29;
    return all;
  }
  std::atomic<std::uint64_t> stream_{0}, n_{0}, sum_{0};
};

}  // namespace

// Streams are new, so the directory of streams grows while other threads query them.
static std::string some_stamps(std::uint64_t seed, std::chrono::nanoseconds time) {
  std::atomic<std::uint64_t> newest{1};  // newest stream, as far as known
  runtime own{simulated{.devices = 1, .memory = 16_MiB}};
  struct turn_of {
    told_stamp told;
    std::uint64_t words[8] = {};  // written by the stream's work
    std::array<std::atomic<std::uint64_t>, 2> read{};
  };
  std::vector<turn_of> places(8);
  crowd all(seed, time);
  all.member(
      [&](crowd::random& r) {  // enqueues work on streams that come and go; sometimes queries the driver
        runtime_guard const in(own);
        std::vector<stream> streams;
        std::vector<std::uint64_t> turns(places.size(), 0);
        while (all.goes_on()) {
          if (streams.size() == 200)
            streams.clear();
          if (streams.empty() || r() % 4 == 0)
            newest.store(streams.emplace_back(0).id(), std::memory_order_relaxed);
          stream const& on = streams[r() % streams.size()];
          std::size_t const k = r() % places.size();
          turn_of& place = places[k];
          if (turns[k] && (place.read[0].load(std::memory_order_acquire) != turns[k] ||
                           place.read[1].load(std::memory_order_acquire) != turns[k])) {
            (void)on.query();
            continue;
          }
          std::uint64_t const turn = ++turns[k];
          launch_host(on, [&place, turn] {
            for (auto& w : place.words)
              w = turn;
          });
          place.told.tell(on.stamp(), turn);
          if (r() % 2)
            (void)on.query();
          if (r() % 8 == 0)
            on.wait(streams[r() % streams.size()]);
          if (r() % 32 == 0) {
            external_stream const legacy(0, nullptr);
            (void)stream_ref(legacy).query();
          }
        }
        for (stream const& s : streams)
          s.synchronize();
      },
      crowd::whole_life{});
  for (std::size_t me = 0; me < 2; ++me) {
    all.member(
        [&, me](crowd::random& r) {
          runtime_guard const in(own);
          std::vector<std::uint64_t> turns(places.size(), 1);
          while (all.goes_on()) {
            for (std::size_t k = 0; k < places.size(); ++k) {
              // numbers of future streams; no driver call in between
              (void)clock::find(newest.load(std::memory_order_relaxed) + r() % 64);
              turn_of& place = places[k];
              auto const s = place.told.heard(turns[k]);
              if (!s || !s->query())
                continue;
              for (auto const w : place.words) {
                if (w != turns[k])
                  all.fail("work is said to be complete that is not");
              }
              place.read[me].store(turns[k]++, std::memory_order_release);
            }
          }
        },
        crowd::whole_life{});
  }
  runtime other{simulated{.devices = 1, .memory = 1_MiB}};
  all.member(
      [&](crowd::random&) {  // creates streams of another machine, which shares no lock with the first
        runtime_guard const in(other);
        std::vector<stream> streams;
        while (all.goes_on() && streams.size() < 150)
          streams.emplace_back(0);
      },
      crowd::whole_life{});
  std::string wrong = all.run();
  runtime_guard const in(own);
  synchronize(0);  // some work may still run
  return wrong;
}

std::string stamps_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return in_rounds(time, [&](std::uint64_t k) {
    return some_stamps(seed + k * 100, std::min<std::chrono::nanoseconds>(time, std::chrono::milliseconds(60)));
  });
}

// Several threads record, wait for, query and synchronize one event at once.
std::string events_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 2, .memory = 16_MiB}};
  crowd all(seed, time);
  std::array<event, 4> events;  // on alternating devices
  std::vector<std::unique_ptr<stream>> streams;
  {
    runtime_guard const in(own);
    for (int i = 0; i < 4; ++i)
      streams.push_back(std::make_unique<stream>(i % 2));
  }
  for (int k = 0; k < 3; ++k) {
    all.member(
        [&, k](crowd::random& r) {
          runtime_guard const in(own);
          while (all.goes_on()) {
            std::size_t const which = r() % events.size();
            event& e = events[which];
            stream const& s = *streams[r() % streams.size()];
            switch (r() % 8) {
              case 0:
              case 1: launch_host(s, [] {}); break;
              case 2: e.record(*streams[which % 2 + 2 * (r() % 2)]); break;
              case 3: s.wait(e); break;
              case 4: (void)e.query(); break;
              case 5: s.wait(*streams[r() % streams.size()]); break;
              case 6: (void)s.query(); break;
              default:
                if (r() % 16 == 0)
                  e.synchronize();
                else if (r() % 16 == 0)
                  s.synchronize();
                else if (r() % 16 == 0)
                  synchronize(static_cast<int>(r() % 2));
                else
                  (void)s.stamp().query();
            }
          }
        },
        crowd::whole_life{});
  }
  std::string const wrong = all.run();
  runtime_guard const in(own);
  for (int d = 0; d < 2; ++d)
    synchronize(d);
  return wrong;
}

}  // namespace weir::tests
