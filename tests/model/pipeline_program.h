// Random loops through slots: a loader whose consumer holds, drops and mixes streams, or run_pipeline; with ends,
// failures and early exits. Every byte is compared.
// Threads: the consumer's and those of the loop; the seeded machine chooses which runs and what its device does.
#pragma once
#include <cstring>
#include <deque>

#include "tests/model/api_program.h"
#include "weir/launch.h"
#include "weir/pipeline.h"

namespace weir::tests {

class pipeline_program {
 public:
  explicit pipeline_program(std::uint64_t seed)
      : random_(seed),
        m_(seeded_machine(seed, 1)),
        batches_(below(12)),
        batch_bytes_(1 + below(3000)),
        result_bytes_(below(2) ? 1 + below(3000) : 0),
        slots_(1 + static_cast<int>(below(4))),
        threads_(1 + static_cast<int>(below(3))),
        salt_(random_()) {
    for (auto& s : lines_)
      s.emplace();
    if (below(4) == 0)
      fails_ = stage(below(3)), fails_at_ = below(12);
  }

  verdict run() {
    bool const is_loader = below(2) == 0;
    run_in_threads(m_, "consumer", 1, wrong_, [&](std::size_t) { is_loader ? load() : through(); });
    judge(m_, wrong_);
    return wrong_;
  }

 private:
  enum class stage : std::uint8_t { fill, compute, write, none };
  struct planned_failure : std::runtime_error {
    planned_failure() : runtime_error("planned") {}
  };

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::size_t size_of(std::uint64_t batch) const { return 1 + (batch * 2654435761u + salt_) % batch_bytes_; }
  std::size_t result_size_of(std::uint64_t batch) const {
    return result_bytes_ ? 1 + (batch * 40503u + salt_) % result_bytes_ : size_of(batch);
  }
  std::byte byte_of(std::uint64_t batch, std::size_t i) const {
    return std::byte(static_cast<unsigned char>(salt_ + batch * 37 + i * 7));
  }
  void fail_here(stage what, std::uint64_t batch) const {
    if (what == fails_ && batch == fails_at_)
      throw planned_failure();
  }
  // The first batch that must not come, and whether a failure is the reason.
  std::uint64_t end() const { return fails() ? fails_at_ : batches_; }
  bool fails() const { return fails_ != stage::none && fails_at_ < batches_; }

  std::size_t fill(std::uint64_t batch, std::span<std::byte> to) {
    if (batch == batches_)
      return 0;
    fail_here(stage::fill, batch);  // a failure behind the end may stay unseen
    if (batch > batches_)
      return 0;
    for (std::size_t i = 0; i < size_of(batch); ++i)
      to[i] = byte_of(batch, i);
    return size_of(batch);
  }

  // The work reads the batch and writes `to`: each byte's complement, over and over if `to` is longer.
  static void enqueue(batch const& b, std::byte* to, std::size_t bytes) {
    auto const* const from = b.data<std::byte>();
    std::size_t const n = b.size();
    launch(
        b.stream(), {updates(b), writes(to)}, [](CUstream_st*) {},
        [=] {
          if (to == from) {
            for (std::size_t i = 0; i < n; ++i)
              to[i] = ~to[i];
            return;
          }
          for (std::size_t i = 0; i < bytes; ++i)
            to[i] = ~from[i % n];
        });
  }
  void compare(std::uint64_t batch, std::byte const* got, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (got[i] == ~byte_of(batch, i % size_of(batch)))
        continue;
      return wrong_.note(check::bytes, "byte " + std::to_string(i) + " of batch " + std::to_string(batch));
    }
  }
  void expect(bool right, char const* what) {
    if (!right)
      wrong_.note(check::answers, what);
  }

  // Takes one batch, or nullopt at the end or the planned failure.
  std::optional<batch> take(loader& from, std::uint64_t number, bool all_held) {
    try {
      auto b = from.next(*lines_[below(2)]);
      expect(!all_held || number >= end(), "a batch came although all slots were held");
      expect(b || (number == batches_ && number <= end()), "an end too early");
      expect(!b || b->number() == number, "a batch out of order");
      return b;
    } catch (batch_failed const& e) {
      expect(fails() && fails_ == stage::fill && number == fails_at_ && e.number() == number, e.what());
    } catch (invalid_use const& e) {
      expect(all_held, e.what());
    }
    return std::nullopt;
  }

  void load() {
    if (fails_ != stage::fill)
      fails_ = stage::none;
    std::uint64_t const stop = below(4) ? no_stop : below(12);
    std::vector<buffer> kept;
    std::uint64_t number = 0;
    {
      loader from({.batch_bytes = batch_bytes_, .slots = slots_, .threads = threads_},
                  [this](std::uint64_t n, std::span<std::byte> to) { return fill(n, to); });
      std::deque<batch> held;
      while (number < stop) {
        auto b = take(from, number, held.size() == static_cast<std::size_t>(slots_));
        if (!b && held.size() == static_cast<std::size_t>(slots_) && number < end()) {
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(below(held.size())));
          continue;
        }
        if (!b)
          break;
        kept.push_back(pinned(size_of(number)));
        enqueue(*b, kept.back().data<std::byte>(), size_of(number));
        ++number;
        if (below(3) == 0)
          held.push_back(std::move(*b));
        if (!held.empty() && below(3) == 0)
          held.erase(held.begin() + static_cast<std::ptrdiff_t>(below(held.size())));
      }
    }
    for (auto const& s : lines_)
      s->synchronize();
    for (std::uint64_t n = 0; n < number; ++n)
      compare(n, kept[n].host<std::byte>().data(), size_of(n));
  }

  void through() {
    std::uint64_t written = 0;
    stream_guard const on(*lines_[0]);
    auto const compute = [&](batch const& b) {
      fail_here(stage::compute, b.number());
      if (result_bytes_)
        b.set_result_size(result_size_of(b.number()));
      enqueue(b, b.result<std::byte>(), result_size_of(b.number()));
    };
    auto const write = [&](std::uint64_t n, std::span<std::byte const> from) {
      fail_here(stage::write, n);
      expect(n == written++, "a write out of order");
      expect(from.size() == result_size_of(n), "a write of another size");
      compare(n, from.data(), from.size());
    };
    pipeline_options const o{
        .batch_bytes = batch_bytes_, .result_bytes = result_bytes_, .slots = slots_, .threads = threads_};
    try {
      std::uint64_t const n = run_pipeline(
          o, [this](std::uint64_t i, std::span<std::byte> to) { return fill(i, to); }, compute, write);
      expect(!fails() && n == batches_, "an end without the planned failure");
    } catch (batch_failed const& e) {
      expect(fails() && fails_ != stage::compute && e.number() == fails_at_, e.what());
    } catch (planned_failure const&) {
      expect(fails() && fails_ == stage::compute, "an unplanned failure");
    }
    expect(written == end(), "not all batches before the end were written");
  }

  static constexpr std::uint64_t no_stop = ~std::uint64_t{0};
  std::mt19937_64 random_;
  test::machine m_;
  std::uint64_t const batches_;
  std::size_t const batch_bytes_, result_bytes_;
  int const slots_, threads_;
  std::uint64_t const salt_;
  stage fails_ = stage::none;
  std::uint64_t fails_at_ = 0;
  std::array<std::optional<stream>, 2> lines_;
  verdict wrong_;
};

}  // namespace weir::tests
