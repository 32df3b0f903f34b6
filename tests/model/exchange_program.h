// Random collectives with a root, sends and receives against a model: one byte array per buffer, changed in program
// order.
// Threads: one per rank; the seeded machine chooses which thread runs and what its devices do.
#pragma once

#include "tests/model/api_program.h"
#include "weir/collective.h"

namespace weir::tests {

// Every rank does its part of all steps on one stream: collectives, writes and replacements of buffers.
class exchange_program {
 public:
  explicit exchange_program(std::uint64_t seed)
      : random_(seed),
        size_(2 + static_cast<int>(random_() % 3)),
        bytes_(1 + random_() % 3000),
        m_(seeded_machine(seed, size_)) {
    std::vector<device> who;
    for (int k = 0; k < size_; ++k)
      who.emplace_back(k);
    ranks_ = communicator::create_all(who);
    for (int k = 0; k < size_; ++k) {
      lines_.emplace_back(device(k));
      device_guard const on(k);
      stream_guard const in(lines_.back());
      for (auto* all : {&parts_, &wholes_})
        all->push_back(fresh(all == &parts_ ? bytes_ : whole_bytes(), 0));
    }
  }

  verdict run() {
    for (int i = 0, n = 3 + static_cast<int>(random_() % 8); i < n; ++i) {
      steps_.push_back({static_cast<kind>(random_() % 7), static_cast<int>(random_() % static_cast<unsigned>(size_)),
                        static_cast<unsigned char>(1 + i)});
    }
    run_in_threads(m_, "rank", ranks_.size(), wrong_, [this](std::size_t k) { play(k); });
    for (step const& s : steps_)
      model(s);
    for (int k = 0; k < size_ && wrong_.ok(); ++k) {
      auto const r = static_cast<std::size_t>(k);
      lines_[r].synchronize();
      for (auto* all : {&parts_, &wholes_}) {
        auto const& one = (*all)[r];
        if (test::read_back(one.memory.data(), one.model.size(), k) != one.model)
          wrong_.note(check::bytes, std::string(all == &parts_ ? "the part" : "the whole") + " of rank " +
                                        std::to_string(k) + " holds others");
      }
    }
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  // write, replace: rank `root` changes its part to that value. send: its part to the next rank's part. pass: each
  // rank's part to the first slice of the next rank's whole
  enum class kind : std::uint8_t { broadcast, scatter, gather, write, replace, send, pass };
  struct step {
    kind what;
    int root;
    unsigned char value;
  };
  struct held {
    buffer memory;
    test::bytes_of_host model;
  };

  int next(int rank) const { return (rank + 1) % size_; }
  std::size_t whole_bytes() const { return bytes_ * static_cast<std::size_t>(size_); }
  // A buffer on the current stream.
  held fresh(std::size_t bytes, unsigned char value) {
    held one{buffer(bytes), test::bytes_of_host(bytes, std::byte{value})};
    fill(one.memory.data(), std::byte{value}, bytes);
    return one;
  }

  void play(std::size_t r) {
    int const k = static_cast<int>(r);
    device_guard const on(k);
    stream_guard const in(lines_[r]);
    auto const n = static_cast<std::int64_t>(bytes_);
    for (step const& s : steps_) {
      device_span const part{parts_[r].memory.data(), n, uint8}, whole{wholes_[r].memory.data(), n * size_, uint8};
      switch (s.what) {
        case kind::broadcast: ranks_[r].broadcast(part, s.root); break;
        case kind::scatter: ranks_[r].scatter(part, whole, s.root); break;
        case kind::gather: ranks_[r].gather(whole, part, s.root); break;
        case kind::send:
          if (k == s.root)
            ranks_[r].send(part, next(k));
          if (k == next(s.root))
            ranks_[r].receive(part, s.root);
          break;
        case kind::pass: ranks_[r].send_receive(part, next(k), {whole.data, n, uint8}, next(k + size_ - 2)); break;
        case kind::write:
          if (k == s.root)
            fill(part.data, std::byte{s.value}, bytes_);
          break;
        case kind::replace:
          if (k != s.root)
            break;
          parts_[r].memory.reset();  // while others may still read it
          parts_[r].memory = buffer(bytes_);
          fill(parts_[r].memory.data(), std::byte{s.value}, bytes_);
          break;
      }
    }
  }

  void model(step const& s) {
    auto const root = static_cast<std::size_t>(s.root);
    auto& of_root = wholes_[root].model;
    if (s.what == kind::send)
      parts_[static_cast<std::size_t>(next(s.root))].model = parts_[root].model;
    for (std::size_t k = 0; k < parts_.size(); ++k) {
      auto& part = parts_[k].model;
      auto const slice = of_root.begin() + static_cast<std::ptrdiff_t>(k * bytes_);
      if (s.what == kind::broadcast)
        part = parts_[root].model;
      if (s.what == kind::pass)
        std::copy(part.begin(), part.end(), wholes_[static_cast<std::size_t>(next(static_cast<int>(k)))].model.begin());
      if (s.what == kind::scatter)
        std::copy_n(slice, bytes_, part.begin());
      if (s.what == kind::gather)
        std::copy(part.begin(), part.end(), slice);
      if ((s.what == kind::write || s.what == kind::replace) && k == root)
        part.assign(bytes_, std::byte{s.value});
    }
  }

  std::mt19937_64 random_;
  int const size_;
  std::size_t const bytes_;
  test::machine m_;
  std::vector<communicator> ranks_;
  std::vector<stream> lines_;
  std::vector<held> parts_, wholes_;
  std::vector<step> steps_;
  verdict wrong_;
};

}  // namespace weir::tests
