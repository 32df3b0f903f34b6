// Random programs of all features, on machines that take every freedom. Bytes and kinds
// of errors are right, and the programs meet every freedom.
// Threads: one; the machine's seed chooses what its devices do.
// Seeds: see tests/support/seeds.h.
#include <gtest/gtest.h>

#include <array>
#include <iostream>
#include <optional>
#include <random>

#include "simulator/machine/freedoms.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/memory_bench.h"
#include "weir/collective.h"
#include "weir/launch.h"

namespace weir {
namespace {

constexpr int devices = 3;
using counts = std::array<std::uint64_t, driver::sim::freedom_count>;

class program {
 public:
  explicit program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 11),
        m_({.devices = devices,
            .memory = 8_MiB,
            .schedule = simulated::scheduling::seeded,
            .seed = seed,
            .peers = seed % 4 ? simulated::links::all : simulated::links::pairs,
            .nondeterminism = simulated::allowed::all}) {
    attempt([&] {
      for (int i = 0; i < 2 * devices; ++i)
        lanes_.emplace_back(device(i % devices));
      ranks_ = communicator::create_all(std::vector<device>{device(0), device(1), device(2)});
    });
  }

  ~program() {
    if (!lost_)
      attempt([&] { finish_all(); });  // copies may still write memory of this program
  }

  void run(counts& taken) {
    if (lanes_.size() == 2 * devices) {
      for (int i = 0, n = 30 + below(60); i < n && !::testing::Test::HasFailure(); ++i)
        step();
      if (!::testing::Test::HasFailure())
        look_at_all();
    }
    for (auto const& f : m_.control().findings())
      ADD_FAILURE() << f;
    for (int d = 0; d < devices && !::testing::Test::HasFailure(); ++d)
      EXPECT_EQ(m_.memory(d).validate(), std::vector<std::string>{});
    EXPECT_EQ(m_.pinned().validate(), std::vector<std::string>{});
    if (below(3) == 0)
      fault();
    auto const now = m_.control().freedoms_taken();
    for (std::size_t i = 0; i < taken.size(); ++i)
      taken[i] += now[i].times;
  }

 private:
  struct block {
    buffer memory;
    std::size_t last;  // the last lane that used it
    std::vector<float> holds;
    bool known = true;  // false: its writer was refused half way
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  int device_of(std::size_t lane) const { return static_cast<int>(lane) % devices; }
  std::size_t lane_of(int device) { return static_cast<std::size_t>(device + devices * below(2)); }
  stream_ref on(std::size_t lane) { return lanes_[lane]; }

  // Returns: whether it succeeded. The machine may refuse memory; any other refusal fails the test.
  template <class F>
  bool attempt(F act) {
    try {
      act();
      return true;
    } catch (out_of_memory const&) {
    } catch (device_lost const&) {
      EXPECT_TRUE(lost_) << "nothing was lost";
    } catch (error const& e) {
      ADD_FAILURE() << e.operation() << ": " << e.operands();
    }
    return false;
  }

  block* some_block() {
    return blocks_.empty() ? nullptr : &blocks_[static_cast<std::size_t>(below(static_cast<int>(blocks_.size())))];
  }
  block* some_block_of(int device) {
    for (auto& b : blocks_) {
      if (b.memory.info().on.index() == device && below(2))
        return &b;
    }
    return nullptr;
  }

  void follow(block& b, std::size_t lane) {  // the lane's next work uses it
    on(lane).wait(on(b.last));
    b.last = lane;
  }

  void make() {
    int const d = below(devices);
    std::size_t const lane = lane_of(d), n = 1 + static_cast<std::size_t>(below(below(4) ? 3000 : 200'000));
    std::vector<float> values(n, static_cast<float>(below(100)));
    attempt([&] {
      stream_guard const in(on(lane));
      buffer memory(4 * n, {.on = device(d)});
      blocks_.push_back({std::move(memory), lane, values});
      block& b = blocks_.back();
      b.known = false;
      if (below(2)) {
        copy(on(lane), b.memory.data(), values.data(), 4 * n);
      } else {
        launch(
            on(lane), {writes(b.memory)}, [](CUstream_st*) {},
            [to = b.memory.data<float>(), values] { std::copy(values.begin(), values.end(), to); });
      }
      b.known = true;
    });
  }

  void move(block& from, block& to) {
    std::size_t const n = std::min(from.holds.size(), to.holds.size()),
                      lane = lane_of((below(2) ? from : to).memory.info().on.index());
    follow(from, lane);
    follow(to, lane);
    std::copy_n(from.holds.begin(), n, to.holds.begin());
    to.known = from.known && attempt([&] { copy(on(lane), to.memory.data(), from.memory.data(), 4 * n); }) &&
               (to.known || n == to.holds.size());
  }

  // A kernel of one device that accesses memory of another.
  void reach_over(block& b) {
    int const reader = (b.memory.info().on.index() + 1 + below(devices - 1)) % devices;
    try {
      enable_peer_access(b.memory.data(), device(reader));
    } catch (not_supported const&) {  // no link, or one that failed its trial
      return;
    } catch (out_of_memory const&) {
      return;
    }
    std::size_t const lane = lane_of(reader);
    follow(b, lane);
    b.known &= attempt([&] {
      launch(
          on(lane), {updates(b.memory)}, [](CUstream_st*) {},
          [at = b.memory.data<float>(), n = b.holds.size()] {
            for (std::size_t i = 0; i < n; ++i)
              at[i] += 1;
          });
    });
    for (float& x : b.holds)
      x += 1;
  }

  void reduce() {
    std::array<block*, devices> parts{};
    for (int d = 0; d < devices; ++d)
      parts[static_cast<std::size_t>(d)] = some_block_of(d);
    std::int64_t n = 500;
    for (block* b : parts) {
      if (!b || !b->known)
        return;
      n = std::min<std::int64_t>(n, static_cast<std::int64_t>(b->holds.size()));
    }
    std::vector<float> sum(static_cast<std::size_t>(n));
    std::array<std::size_t, devices> lanes{};
    for (int d = 0; d < devices; ++d) {  // before the first part, because later work waits for that part
      auto const i = static_cast<std::size_t>(d);
      lanes[i] = lane_of(d);
      follow(*parts[i], lanes[i]);
      for (std::size_t k = 0; k < sum.size(); ++k)
        sum[k] += parts[i]->holds[k];
    }
    for (std::size_t i = 0; i < devices; ++i) {
      stream_guard const in(on(lanes[i]));
      EXPECT_TRUE(attempt([&] { ranks_[i].all_reduce({parts[i]->memory.data(), n, float32}); })) << "half a collective";
    }
    for (block* b : parts)
      std::copy(sum.begin(), sum.end(), b->holds.begin());
  }

  void call_host() {
    std::size_t const lane = static_cast<std::size_t>(below(2 * devices));
    attempt([&] {
      launch_host(on(lane), [this, expected = host_calls_.at(lane)++, lane] {
        EXPECT_EQ(host_seen_.at(lane)++, expected) << "host functions of one stream out of order";
      });
    });
  }

  void time() {
    std::size_t const lane = static_cast<std::size_t>(below(2 * devices));
    attempt([&] {
      event from({.timing = true}), to({.timing = true});
      from.record(on(lane));
      on(lane).wait(on(static_cast<std::size_t>(below(2 * devices))));
      to.record(on(lane));
      while (!to.query()) {}
      EXPECT_GE(from.elapsed_time(to).count(), 0);
    });
  }

  void look_at(block& b) {
    std::size_t const lane = lane_of(b.memory.info().on.index());
    follow(b, lane);
    std::vector<float> seen(b.holds.size(), -1);
    bool const arrived = attempt([&] { copy(on(lane), seen.data(), b.memory.data(), 4 * seen.size()); });
    EXPECT_TRUE(!arrived || !b.known || seen == b.holds);
  }

  void look_at_all() {
    for (auto& b : blocks_)
      look_at(b);
    finish_all();
    EXPECT_EQ(host_seen_, host_calls_);
  }

  void finish_all() {
    for (auto& s : lanes_)
      s.synchronize();
  }

  void step() {
    block *a = some_block(), *b = some_block();
    switch (below(12)) {
      case 0:
      case 1:
      case 2: return make();
      case 3:
      case 4:
        if (a && a != b)
          move(*a, *b);
        return;
      case 5:
        if (a)
          reach_over(*a);
        return;
      case 6: return reduce();
      case 7: return call_host();
      case 8: return below(3) ? call_host() : time();
      case 9:
        if (a)
          look_at(*a);
        return;
      case 10:
        if (!a)
          return;
        std::swap(*a, blocks_.back());
        blocks_.pop_back();  // freed after all its uses
        return;
      default:
        attempt([&] {
          if (below(4) == 0)
            empty_cache(device(below(devices)));
          for (auto& lane : lanes_)
            static_cast<void>(lane.query());
        });
    }
  }

  // Work that fails. weir's calls go on until one learns of the loss and reports it.
  void fault() {
    lost_ = true;
    auto& line = streams::clock_of(on(0));
    driver::touch const nowhere{64, 64, true};
    m_.driver().enqueue(0, line.handle(), {&nowhere, 1}, {});
    bool heard = false;
    for (int i = 0; i < 40 && !heard; ++i) {
      try {
        on(0).wait(on(1));
        launch_host(on(0), [] {});
        heard = i > 20 && (on(0).synchronize(), false);
      } catch (device_lost const&) {
        heard = true;
      } catch (out_of_memory const&) {}
    }
    EXPECT_TRUE(heard);
  }

  std::mt19937_64 random_;
  test::machine m_;
  std::vector<stream> lanes_;
  std::vector<communicator> ranks_;
  std::vector<block> blocks_;
  std::array<int, 2 * devices> host_calls_{}, host_seen_{};
  bool lost_ = false;
};

TEST(freedoms, programs_keep_their_bytes_and_meet_every_freedom) {
  tests::seeds const wanted("freedoms", 360, 0, 3);
  counts taken{};
  for (auto const seed : wanted) {
    if (::testing::Test::HasFailure())
      break;
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    program(seed).run(taken);
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    auto const name = driver::sim::name_of(static_cast<driver::sim::freedom>(i + 1));
    std::cout << name << ": " << taken[i] << "\n";
    EXPECT_TRUE(wanted.count() < 120 || taken[i] > 0) << name << " was never taken";
  }
}

}  // namespace
}  // namespace weir
