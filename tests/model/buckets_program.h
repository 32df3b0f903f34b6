// Random steps of gradient_buckets, enqueued or captured and launched, against computed sums. Some gradients lie in
// the program's memory, a function may add 1 to them before their reduction, and float32 may be reduced as a half type.
// Sharded ranks have sums of their own parts.
// Threads: one per rank; the seeded machine chooses which thread runs and what its devices do.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include "tests/model/api_program.h"
#include "weir/collective.h"
#include "weir/graph.h"
#include "weir/half.h"
#include "weir/launch.h"

namespace weir::tests {

// A step copies the parameters to the gradients, reduces them and copies the sums to `result`. The parameters change
// before each step, so each launch of a graph has sums of its own.
class buckets_program {
 public:
  explicit buckets_program(std::uint64_t seed)
      : random_(seed),
        size_(2 + static_cast<int>(random_() % 2)),
        m_(seeded_machine(seed, size_)),
        sharded_(seed % 5 == 0) {
    std::vector<device> who;
    for (int k = 0; k < size_; ++k)
      who.emplace_back(k);
    all_ = communicator::create_all(who);
    items_.resize(1 + random_() % 5);
    for (item& i : items_) {
      i.count = static_cast<std::int64_t>(random_() % 1500);
      i.type = random_() % 2 ? uint8 : float32;
      i.block = static_cast<int>(random_() % 3) - 1;
      if (sharded_)
        i.block = -1;
      i.result_at = bytes_;
      bytes_ += static_cast<std::size_t>(i.count) * 4;
    }
    bucket_options o{.bucket_bytes = 1 + random_() % 2000, .average = false, .sharded = sharded_};
    if (adds_)
      o.before_reduction = [](device_span range, stream_ref s) { add_one(s, range); };
    if (auto const wire = random_() % 3)
      o.reduce_as = wire == 1 ? bfloat16 : float16;
    lay_out_blocks();
    for (int i = 0, n = 2 + static_cast<int>(random_() % 5); i < n; ++i)
      steps_.push_back({static_cast<kind>(random_() % 3), random_() % 8});
    ranks_.reserve(all_.size());
    for (communicator& c : all_) {
      rank& r = ranks_.emplace_back(c, o, random_());
      device_guard const on(c.device());
      stream_guard const in(r.lines[0]);
      for (std::size_t j = 0; j < 2; ++j) {
        std::size_t const k = c.rank() % 2 ? 1 - j : j;  // the addresses' order differs from rank to rank
        r.gradients[k] = buffer(std::max(block_bytes_[k], std::size_t{1}));
        r.parameters[k] = buffer(std::max(block_bytes_[k], std::size_t{1}));
      }
      for (item const& i : items_) {
        if (i.block < 0)
          r.buckets.add("", i.count, i.type);
        else
          r.buckets.add("", i.in(r.parameters), i.in(r.gradients));
      }
      r.buckets.build();
      r.result = buffer(std::max(bytes_, std::size_t{1}));
      r.results = buffer(std::max(bytes_ * steps_.size(), std::size_t{1}));
    }
  }

  verdict run() {
    run_in_threads(m_, "rank", ranks_.size(), wrong_, [this](std::size_t k) {
      try {
        play(k);
      } catch (std::exception const& e) {
        wrong_.note(check::answers, e.what());
        all_[k].abort();
      }
    });
    for (std::size_t k = 0; k < ranks_.size() && wrong_.ok(); ++k)
      compare(k);
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  enum class kind : std::uint8_t { enqueue, capture_and_launch, launch };  // launch: of an earlier graph, if any
  struct step {
    kind what;
    std::uint64_t which;
  };
  struct item {
    std::int64_t count;
    dtype type;
    int block;                          // of the program; -1: none
    std::size_t at = 0, result_at = 0;  // bytes
    device_span in(std::array<buffer, 2> const& blocks) const {
      return {blocks[static_cast<std::size_t>(block)].data<std::byte>() + at, count, type};
    }
  };
  struct rank {
    rank(communicator& c, bucket_options const& o, std::uint64_t seed)
        : lines{stream(c.device()), stream(c.device())}, buckets(c, o), random(seed) {}
    std::array<stream, 2> lines;
    std::array<buffer, 2> parameters{}, gradients{};
    gradient_buckets buckets;
    std::mt19937_64 random;  // orders and streams differ from rank to rank
    buffer result{}, results{};
    std::vector<graph> graphs{};
  };

  // In an order of their own, some with a gap in front of them.
  void lay_out_blocks() {
    std::vector<std::size_t> order(items_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random_);
    for (std::size_t const k : order) {
      item& i = items_[k];
      if (i.block < 0)
        continue;
      std::size_t& end = block_bytes_[static_cast<std::size_t>(i.block)];
      if (i.type == float32)
        end = (end + 3) / 4 * 4;
      i.at = end + (random_() % 4 == 0 ? 64 : 0);
      end = i.at + static_cast<std::size_t>(i.count) * size_of(i.type);
    }
  }

  static void never(CUstream_st*) {}
  static void put(stream_ref s, device_span to, int v) {
    launch(s, {writes(to)}, never, [to, v] {
      if (to.dtype == uint8)
        std::fill_n(static_cast<std::uint8_t*>(to.data), to.count, static_cast<std::uint8_t>(v));
      else
        std::fill_n(static_cast<float*>(to.data), to.count, static_cast<float>(v));
    });
  }
  static void add_one(stream_ref s, device_span what) {
    launch(s, {updates(what)}, never, [what] {
      if (what.dtype == uint8)
        for (auto& v : std::span(static_cast<std::uint8_t*>(what.data), static_cast<std::size_t>(what.count)))
          ++v;
      else
        for (auto& v : std::span(static_cast<float*>(what.data), static_cast<std::size_t>(what.count)))
          ++v;
    });
  }
  static int number_at(dtype type, std::byte const* at) {
    auto const as = [&]<class T>(T v) {
      std::memcpy(&v, at, sizeof v);
      return static_cast<int>(static_cast<float>(v));
    };
    return type == uint8     ? as(std::uint8_t())
           : type == float32 ? as(float())
           : type == float16 ? as(float16_t())
                             : as(bfloat16_t());
  }

  // The sum over three ranks is exact in bfloat16.
  static int value(std::size_t k, std::size_t step, std::size_t gradient) {
    return static_cast<int>(1 + k * 30 + step * 4 + gradient);
  }
  int sum_of(std::size_t step, std::size_t gradient) const {
    int sum = 0;
    for (std::size_t k = 0; k < ranks_.size(); ++k)
      sum += value(k, step, gradient) + (adds_ ? 1 : 0);
    return items_[gradient].type == uint8 ? sum % 256 : sum;
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
      copy(writer, to.data, r.buckets.parameter(i).data, static_cast<std::size_t>(to.count) * size_of(to.dtype),
           non_blocking);
      r.buckets.mark_ready(i, writer);
    }
    stream const& reader = r.random() % 2 ? other : home;
    r.buckets.finish(reader);
    for (std::size_t i = 0; i < items_.size(); ++i) {
      device_span const sums = r.buckets.reduced(static_cast<int>(i));
      copy(reader, r.result.data<std::byte>() + items_[i].result_at, sums.data,
           static_cast<std::size_t>(sums.count) * size_of(sums.dtype), non_blocking);
    }
    if (sharded_)
      r.buckets.gather(reader);
    home.wait(other);
  }

  void play(std::size_t k) {
    rank& r = ranks_[k];
    stream const& home = r.lines[0];
    device_guard const on(all_[k].device());
    stream_guard const in(home);
    r.result.record_stream(r.lines[1]);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (int g = 0; g < r.buckets.size(); ++g)
        put(home, r.buckets.parameter(g), value(k, i, static_cast<std::size_t>(g)));
      step const& s = steps_[i];
      if (s.what == kind::capture_and_launch)
        r.graphs.push_back(graph::capture(home, [&] { enqueue(r); }));
      if (s.what == kind::enqueue || r.graphs.empty())
        enqueue(r);
      else
        r.graphs[s.what == kind::launch ? s.which % r.graphs.size() : r.graphs.size() - 1].launch(home);
      copy(home, r.results.data<std::byte>() + i * bytes_, r.result.data(), bytes_, non_blocking);
    }
    home.synchronize();
  }

  void compare(std::size_t k) {
    rank const& r = ranks_[k];
    auto const got = test::read_back(r.results.data(), bytes_ * steps_.size(), static_cast<int>(k));
    for (std::size_t i = 0; i < steps_.size(); ++i)
      for (std::size_t g = 0; g < items_.size(); ++g) {
        device_span const sums = r.buckets.reduced(static_cast<int>(g));
        std::byte const* const from = got.data() + i * bytes_ + items_[g].result_at;
        gradient_buckets::part const own = r.buckets.own(static_cast<int>(g));
        for (std::int64_t at = own.first; at < own.first + own.count; ++at) {
          int const is = number_at(sums.dtype, from + static_cast<std::size_t>(at) * size_of(sums.dtype));
          if (is == sum_of(i, g))
            continue;
          wrong_.note(check::bytes, "element " + std::to_string(at) + " of gradient " + std::to_string(g) +
                                        " of rank " + std::to_string(k) + ", step " + std::to_string(i) + ", is " +
                                        std::to_string(is) + ", not " + std::to_string(sum_of(i, g)));
          break;
        }
      }
  }

  std::mt19937_64 random_;
  int const size_;
  test::machine m_;
  std::vector<communicator> all_;
  std::vector<rank> ranks_;
  std::vector<step> steps_;
  std::vector<item> items_;
  std::array<std::size_t, 2> block_bytes_{};
  std::size_t bytes_ = 0;  // of a step's results
  bool const adds_ = random_() % 2 == 0;
  bool const sharded_;
  verdict wrong_;
};

}  // namespace weir::tests
