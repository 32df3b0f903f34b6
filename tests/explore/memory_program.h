// The acts of tests/model/memory_acts.h among threads.
// Threads: those of a run.
#pragma once
#include "tests/explore/explore.h"
#include "tests/explore/policies.h"
#include "tests/model/memory_acts.h"

namespace weir::tests {

class memory_among_threads : public memory_acts {
 public:
  explicit memory_among_threads(trial& t) : t_(t) {
    kept_ = true;
    capacity_ = std::size_t{4} << (16 + t.draw(3));  // four pages or more
    devices_ = 1 + static_cast<int>(t.draw(2));
    bench_ = &t.bench({.devices = devices_, .memory = capacity_}, drawn_policies(t));
    for (int i = 0, n = 2 + static_cast<int>(t.draw(3)); i < n; ++i)
      lines_.push_back(&t.stream(i % devices_));
    t.among_threads(3, 10, [this](int n) {
      for (int k = 0; k < n && !t_.failed(); ++k)
        act(below(kinds));
    });
    if (!t.failed())
      end();
  }

 private:
  std::uint32_t number(std::uint32_t n) override { return t_.draw(n); }
  std::uint32_t some_pattern() override { return 1 + t_.draw(200); }
  void fail(check, std::string what) override { t_.fail(std::move(what)); }
  bool traces() const override { return trial::traced(); }
  void told(std::string const& text) override { t_.say(text); }

  trial& t_;
};

}  // namespace weir::tests
