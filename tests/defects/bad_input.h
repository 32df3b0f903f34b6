// Bad input to a simulated machine: checks the exception, leaks, and that a good program still works.
// Threads: one.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir {

struct bad_input : testing::Test {
  using said_parts = std::initializer_list<std::string_view>;

  std::optional<runtime> rt{std::in_place, simulated{.devices = 3, .memory = 64_MiB}, options{.pinned_limit = 16_MiB}};
  std::optional<runtime_guard> in{std::in_place, *rt};

  // Bytes in use, on every device and of pinned memory.
  static std::vector<std::int64_t> held() {
    std::vector<std::int64_t> all;
    auto const add = [&](memory_statistics const& s) {
      for (statistic_by_size const* one :
           {&s.allocation, &s.active, &s.allocated_bytes, &s.requested_bytes, &s.active_bytes, &s.pending_bytes}) {
        for (statistic const* part : {&one->all, &one->small, &one->large}) {
          all.push_back(part->current);
        }
      }
    };
    for (int d = 0; d < device_count(); ++d)
      add(memory_stats(d));
    add(pinned_memory_stats());
    return all;
  }

  // A fixed good program: copies bytes there and back through the default streams of two devices.
  static void works_on() {
    for (int d = 0; d < 2; ++d) {
      std::vector<unsigned char> out(100'000), back(out.size());
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<unsigned char>(i * 7 + static_cast<size_t>(d));
      buffer a(out.size(), {.on = d});
      buffer page = pinned(out.size());
      copy(a.data(), out.data(), out.size());
      copy(page.data(), a.data(), out.size());
      copy(back.data(), page.data(), out.size());
      EXPECT_EQ(out, back);
      synchronize(d);
    }
  }

  // f throws an Error with operation, remedy and each of the parts. Memory in use stays the same.
  template <class Error>
  static void refused(std::function<void()> const& f, said_parts parts, unsigned line = __builtin_LINE()) {
    judge(
        [&] {
          try {
            f();
            ADD_FAILURE() << "nothing was thrown";
          } catch (Error const& e) {
            check(e, e.what(), parts);
          }
        },
        line);
  }

 private:
  static void judge(std::function<void()> const& tried, unsigned line) {
    testing::ScopedTrace const from("called", static_cast<int>(line), "called here");
    auto const before = held();
    try {
      tried();
    } catch (std::exception const& e) {
      ADD_FAILURE() << "another error: " << e.what();
    }
    EXPECT_EQ(before, held()) << "memory was lost or made";
  }
  static void check(error const& e, char const* what, said_parts parts) {
    EXPECT_FALSE(e.operation().empty());
    EXPECT_FALSE(e.remedy().empty()) << what;
    std::string const said = std::string(e.operation()) + " | " + std::string(e.operands());
    for (std::string_view const part : parts)
      EXPECT_NE(said.find(part), said.npos) << part << " in: " << what;
  }

  void TearDown() override {
    if (!rt || !in)
      return;
    works_on();
    EXPECT_EQ(simulation::of(*rt).findings(), std::vector<std::string>{});
  }
};

inline std::string text(void const* p) {
  char out[24];
  std::snprintf(out, sizeof out, "%p", p);
  return out;
}

}  // namespace weir
