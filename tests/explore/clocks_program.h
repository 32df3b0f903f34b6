// The acts of tests/model/clock_acts.h among threads.
// Threads: those of a run.
#pragma once
#include "tests/explore/explore.h"
#include "tests/model/clock_acts.h"

namespace weir::tests {

inline ledger& ledger_of(driver::driver& m) {
  for (auto* at = &m; at; at = at->behind()) {
    if (auto* const found = dynamic_cast<ledger*>(at))
      return *found;
  }
  throw std::logic_error("no ledger stands before the machine");
}

// Requires: its machines are made with a ledger in front, as in programs.h.
class clocks_among_threads : public clock_acts {
 public:
  explicit clocks_among_threads(trial& t)
      : t_(t), bench_(t.bench({.devices = 1 + static_cast<int>(t.draw(2)), .memory = 1_MiB})) {
    book_ = &ledger_of(t.machine());
    for (int i = 0, n = 2 + static_cast<int>(t.draw(3)); i < n; ++i)
      lines_.push_back({&t.stream(i % bench_.core.device_count()), {}});
    t.among_threads(2, 12, [this](int n) {
      for (int k = 0; k < n && !t_.failed(); ++k) {
        act(some_stream(), draw(kinds));
        judge_all();
      }
    });
    if (!t.failed())
      end(-1);
    judge_all();
    t.expect_none(clocks().validate());
  }

 private:
  std::uint32_t draw(std::uint32_t n) override { return t_.draw(n); }
  memory_bench& bench() override { return bench_; }
  bool right() const override { return !t_.failed(); }
  void failed(check, std::string what) override { t_.fail(std::move(what)); }
  bool traces() const override { return trial::traced(); }
  void told(std::string const& text) override { t_.say(text); }

  trial& t_;
  memory_bench& bench_;
};

}  // namespace weir::tests
