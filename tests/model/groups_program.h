// Random groups of collectives, enqueued or captured and launched, against values computed here. Exceptions unwind
// groups: of all ranks alike, which changes nothing, or of one rank for good, which ends the others.
// Threads: one per rank; the seeded machine chooses which thread runs and what its devices do.
#pragma once
#include <algorithm>

#include "tests/model/api_program.h"
#include "weir/collective.h"
#include "weir/graph.h"

namespace weir::tests {

// A step fills a buffer for each member, puts the members into a group, ends it on either stream and frees the
// buffers at once. What each member brings lies in `results`.
class groups_program {
 public:
  explicit groups_program(std::uint64_t seed)
      : random_(seed), size_(2 + static_cast<int>(random_() % 3)), m_(seeded_machine(seed, size_)) {
    std::vector<device> who;
    for (int k = 0; k < size_; ++k)
      who.emplace_back(k);
    all_ = communicator::create_all(who);
    for (int i = 0, n = 2 + static_cast<int>(random_() % 4); i < n; ++i) {
      step& s = steps_.emplace_back();
      s.captured = random_() % 4 == 0;
      for (int j = 0, of = 1 + static_cast<int>(random_() % 6); j < of; ++j) {
        s.members.push_back({static_cast<kind>(random_() % 4), static_cast<std::int64_t>(1 + random_() % 700), bytes_});
        bytes_ += brought(s.members.back());
      }
    }
    std::mt19937_64 of_exceptions(seed);
    for (step& s : steps_)
      s.unwinds = of_exceptions() % 4 == 0;
    if (of_exceptions() % 4 == 0) {
      thrower_ = static_cast<int>(of_exceptions() % static_cast<std::uint64_t>(size_));
      throws_at_ = of_exceptions() % steps_.size();
    }
    for (step& s : steps_)
      s.launches = 1 + static_cast<int>(of_exceptions() % 3);
    throws_between_ = of_exceptions() % 2 == 0;
    for (communicator& c : all_) {
      rank& r = ranks_.emplace_back(c, random_());
      device_guard const on(c.device());
      stream_guard const in(r.lines[0]);
      r.results = buffer(bytes_);
    }
  }

  verdict run() {
    run_in_threads(m_, "rank", ranks_.size(), wrong_, [this](std::size_t k) {
      try {
        play(k);
      } catch (bug const&) {
      } catch (std::exception const& e) {
        if (thrower_ >= 0 && all_[k].failure().find("an exception ended its collective_group") != std::string::npos)
          return;
        wrong_.note(check::answers, e.what());
        all_[k].abort();
      }
    });
    for (std::size_t k = 0; k < ranks_.size() && wrong_.ok() && thrower_ < 0; ++k)
      compare(k);
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  enum class kind : std::uint8_t { all_reduce, all_gather, reduce_scatter, ring };
  struct member {
    kind what;
    std::int64_t count;  // of a part
    std::size_t at;      // in `results`
  };
  struct step {
    bool captured = false;  // and launched
    bool unwinds = false;   // an exception before it and each later launch, on all ranks
    int launches = 1;
    std::vector<member> members{};
  };
  struct bug {};
  struct rank {
    rank(communicator& c, std::uint64_t seed) : lines{stream(c.device()), stream(c.device())}, random(seed) {}
    std::array<stream, 2> lines;
    std::mt19937_64 random;  // streams and refused groups differ from rank to rank
    buffer results{};
    std::vector<graph> graphs{};
  };

  std::size_t brought(member const& m) const {
    return static_cast<std::size_t>(m.count * (m.what == kind::all_gather ? size_ : 1));
  }
  static unsigned char value(int k, std::size_t at) { return static_cast<unsigned char>(1 + k * 50 + at % 50); }

  void put(collective_group& to, member const& m, buffer const& from, rank const& r, int k) const {
    device_span const in{from.data(), static_cast<std::int64_t>(from.size()), uint8};
    device_span const out{r.results.data<std::byte>() + m.at, static_cast<std::int64_t>(brought(m)), uint8};
    switch (m.what) {
      case kind::all_reduce: return to.all_reduce(out);
      case kind::all_gather: return to.all_gather(out, in);
      case kind::reduce_scatter: return to.reduce_scatter(out, in);
      case kind::ring: to.send(in, (k + 1) % size_), to.receive(out, (k + size_ - 1) % size_);
    }
  }

  void enqueue(rank& r, step const& s, int k) {
    stream const &home = r.lines[0], &other = r.lines[1];
    std::vector<buffer> from;
    for (member const& m : s.members) {
      from.emplace_back(static_cast<std::size_t>(m.count * (m.what == kind::reduce_scatter ? size_ : 1)));
      fill(home, from.back().data(), std::byte{value(k, m.at)}, from.back().size());
      if (m.what == kind::all_reduce)
        fill(home, r.results.data<std::byte>() + m.at, std::byte{value(k, m.at)}, brought(m));
    }
    stream const& by = r.random() % 2 ? other : home;
    by.wait(home);
    {
      stream_guard const in(by);
      collective_group group(all_[static_cast<std::size_t>(k)]);
      if (r.random() % 4 == 0)
        refuse(r, s, from, k);
      for (std::size_t i = 0; i < s.members.size(); ++i)
        put(group, s.members[i], from[i], r, k);
      group.end();
    }
    std::vector<std::size_t> sizes;
    for (buffer const& b : from)
      sizes.push_back(b.size());
    from.clear();
    // the blocks' next owners write at once
    for (std::size_t const n : sizes)
      fill(home, from.emplace_back(n).data(), std::byte{0xee}, n);
    home.wait(by);
  }

  // A whole group whose last member is refused has no effect.
  void refuse(rank const& r, step const& s, std::vector<buffer> const& from, int k) {
    std::byte elsewhere{};
    collective_group bad(all_[static_cast<std::size_t>(k)]);
    for (std::size_t i = 0; i < s.members.size(); ++i)
      put(bad, s.members[i], from[i], r, k);
    bad.all_reduce({&elsewhere, 1, uint8});
    try {
      bad.end();
      wrong_.note(check::answers, "a group with memory of the host was enqueued");
    } catch (weir::error const&) {}
  }

  // How full the group is differs from rank to rank.
  void unwind(rank& r, std::size_t k) {
    collective_group group(all_[k]);
    for (auto n = r.random() % 3; n > 0; --n)
      group.all_reduce({r.results.data(), 1, uint8});
    throw bug();
  }

  void play(std::size_t k) {
    rank& r = ranks_[k];
    stream const& home = r.lines[0];
    device_guard const on(all_[k].device());
    stream_guard const in(home);
    r.results.record_stream(r.lines[1]);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      step const& s = steps_[i];
      bool const throws_here = thrower_ == static_cast<int>(k) && throws_at_ == i;
      bool const is_launched_again = s.captured && s.launches > 1;
      unwind_where_all_do(r, s, k);
      if (throws_here && !(throws_between_ && is_launched_again))
        unwind(r, k);
      if (!s.captured) {
        enqueue(r, s, static_cast<int>(k));
        continue;
      }
      r.graphs.push_back(graph::capture(home, [&] { enqueue(r, s, static_cast<int>(k)); }));
      r.graphs.back().launch(home);
      for (int again = 1; again < s.launches; ++again) {
        unwind_where_all_do(r, s, k);
        if (throws_here)
          unwind(r, k);
        r.graphs.back().launch(home);
      }
    }
    home.synchronize();
  }

  void unwind_where_all_do(rank& r, step const& s, std::size_t k) {
    if (!s.unwinds)
      return;
    try {
      unwind(r, k);
    } catch (bug const&) {}
  }

  unsigned char expected(member const& m, int k, std::size_t i) const {
    if (m.what == kind::all_gather)
      return value(static_cast<int>(i / static_cast<std::size_t>(m.count)), m.at);
    if (m.what == kind::ring)
      return value((k + size_ - 1) % size_, m.at);
    unsigned char sum = 0;
    for (int other = 0; other < size_; ++other)
      sum = static_cast<unsigned char>(sum + value(other, m.at));
    return sum;
  }

  void compare(std::size_t k) {
    auto const got = test::read_back(ranks_[k].results.data(), bytes_, static_cast<int>(k));
    for (step const& s : steps_)
      for (member const& m : s.members)
        for (std::size_t i = 0; i < brought(m); ++i) {
          if (got[m.at + i] == std::byte{expected(m, static_cast<int>(k), i)})
            continue;
          wrong_.note(check::bytes, "rank " + std::to_string(k) + ": byte " + std::to_string(m.at + i) +
                                        " is not what its member brings");
          return;
        }
  }

  std::mt19937_64 random_;
  int const size_;
  std::size_t bytes_ = 0;
  int thrower_ = -1;  // the rank that throws for good; -1: none
  std::size_t throws_at_ = 0;
  bool throws_between_ = false;  // launches of that step, if it has several
  test::machine m_;
  std::vector<communicator> all_;
  std::vector<rank> ranks_;
  std::vector<step> steps_;
  verdict wrong_;
};

}  // namespace weir::tests
