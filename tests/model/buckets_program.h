// Random steps of gradient_buckets, enqueued or captured and launched, against sums computed here.
// Threads: one per rank; the seeded machine chooses which thread runs and what its devices do.
#pragma once
#include <algorithm>
#include <numeric>
#include <random>

#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"
#include "weir/collective.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir::tests {

// A step copies the parameters to the gradients, reduces them and copies the sums to `result`. The parameters change
// before each step, so each launch of a graph has sums of its own.
class buckets_program {
 public:
  explicit buckets_program(std::uint64_t seed)
      : random_(seed),
        size_(2 + static_cast<int>(random_() % 2)),
        m_({.devices = size_, .memory = 32_MiB, .schedule = simulated::scheduling::seeded, .seed = seed},
           {.check_races = seed % 2 == 0}) {
    std::vector<device> who;
    for (int k = 0; k < size_; ++k)
      who.emplace_back(k);
    all_ = communicator::create_all(who);
    std::vector<std::int64_t> counts(1 + random_() % 5);
    for (auto& n : counts)
      n = static_cast<std::int64_t>(random_() % 1500);
    std::size_t const bucket = 1 + random_() % 2000;
    for (int i = 0, n = 2 + static_cast<int>(random_() % 5); i < n; ++i)
      steps_.push_back({static_cast<kind>(random_() % 3), random_() % 8});
    ranks_.reserve(all_.size());
    for (communicator& c : all_) {
      rank& r = ranks_.emplace_back(c, bucket, random_());
      device_guard const on(c.device());
      stream_guard const in(r.lines[0]);
      for (std::int64_t const n : counts)
        r.buckets.add("", n, uint8);
      r.buckets.build();
      r.bytes = static_cast<std::size_t>(r.buckets.gradients().count);
      r.result = buffer(std::max(r.bytes, std::size_t{1}));
      r.results = buffer(std::max(r.bytes * steps_.size(), std::size_t{1}));
    }
  }

  verdict run() {
    auto machine = simulation::of(m_.own);
    for (std::size_t k = 0; k < ranks_.size(); ++k)
      machine.spawn("rank " + std::to_string(k), [this, k] {
        try {
          play(k);
        } catch (std::exception const& e) {
          wrong_.note(check::answers, e.what());
          all_[k].abort();
        }
      });
    try {
      machine.join();
    } catch (invalid_use const& e) {
      wrong_.note(check::stuck, e.what());
    }
    for (std::size_t k = 0; k < ranks_.size() && wrong_.ok(); ++k)
      compare(k);
    for (auto const& r : race_reports())
      wrong_.note(r.kind == "race" ? check::race : r.kind == "stuck" ? check::stuck : check::lifetime, r.text);
    for (auto const& found : m_.control().findings())
      wrong_.note(check_of(found), found);
    return wrong_;
  }

 private:
  enum class kind : std::uint8_t { enqueue, capture_and_launch, launch };  // launch: of an earlier graph, if any
  struct step {
    kind what;
    std::uint64_t which;
  };
  struct rank {
    rank(communicator& c, std::size_t bucket, std::uint64_t seed)
        : lines{stream(c.device()), stream(c.device())},
          buckets(c, {.bucket_bytes = bucket, .average = false}),
          random(seed) {}
    std::array<stream, 2> lines;
    gradient_buckets buckets;
    std::mt19937_64 random;  // orders and streams differ from rank to rank
    std::size_t bytes = 0;
    buffer result{}, results{};
    std::vector<graph> graphs{};
  };

  static unsigned char value(std::size_t k, std::size_t step, int gradient) {
    return static_cast<unsigned char>(1 + k * 50 + step * 7 + static_cast<std::size_t>(gradient));
  }

  void enqueue(rank& r) {
    stream const &home = r.lines[0], &other = r.lines[1];
    other.wait(home);
    std::vector<int> order(static_cast<std::size_t>(r.buckets.size()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, r.random);
    for (int const i : order) {
      device_span const to = r.buckets.gradient(i);
      stream const& writer = r.random() % 2 ? other : home;
      copy(writer, to.data, r.buckets.parameter(i).data, static_cast<std::size_t>(to.count), non_blocking);
      r.buckets.mark_ready(i, writer);
    }
    stream const& reader = r.random() % 2 ? other : home;
    r.buckets.finish(reader);
    copy(reader, r.result.data(), r.buckets.gradients().data, r.bytes, non_blocking);
    home.wait(other);
  }

  void play(std::size_t k) {
    rank& r = ranks_[k];
    stream const& home = r.lines[0];
    device_guard const on(all_[k].device());
    stream_guard const in(home);
    r.result.record_stream(r.lines[1]);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (int g = 0; g < r.buckets.size(); ++g) {
        device_span const p = r.buckets.parameter(g);
        fill(home, p.data, std::byte{value(k, i, g)}, static_cast<std::size_t>(p.count));
      }
      step const& s = steps_[i];
      if (s.what == kind::capture_and_launch)
        r.graphs.push_back(graph::capture(home, [&] { enqueue(r); }));
      if (s.what == kind::enqueue || r.graphs.empty())
        enqueue(r);
      else
        r.graphs[s.what == kind::launch ? s.which % r.graphs.size() : r.graphs.size() - 1].launch(home);
      copy(home, r.results.data<std::byte>() + i * r.bytes, r.result.data(), r.bytes, non_blocking);
    }
    home.synchronize();
  }

  void compare(std::size_t k) {
    rank const& r = ranks_[k];
    auto const got = test::read_back(r.results.data(), r.bytes * steps_.size(), static_cast<int>(k));
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (int g = 0; g < r.buckets.size(); ++g) {
        unsigned char sum = 0;
        for (std::size_t other = 0; other < ranks_.size(); ++other)
          sum = static_cast<unsigned char>(sum + value(other, i, g));
        device_span const of = r.buckets.gradient(g);
        auto const from = got.begin() +
                          (static_cast<std::byte*>(of.data) - static_cast<std::byte*>(r.buckets.gradients().data)) +
                          static_cast<std::ptrdiff_t>(i * r.bytes);
        if (std::any_of(from, from + of.count, [&](std::byte b) { return b != std::byte{sum}; }))
          wrong_.note(check::bytes, "gradient " + std::to_string(g) + " of rank " + std::to_string(k) + ", step " +
                                        std::to_string(i) + ", is not the sum");
      }
    }
  }

  std::mt19937_64 random_;
  int const size_;
  test::machine m_;
  std::vector<communicator> all_;
  std::vector<rank> ranks_;
  std::vector<step> steps_;
  verdict wrong_;
};

}  // namespace weir::tests
