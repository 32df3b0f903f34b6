// A copy of several calls, one of which is refused: the error says "Nothing was enqueued" exactly if that is so.
// Threads: one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "weir/copy.h"
#include "weir/peer.h"
#include "weir/sim.h"

namespace weir {
namespace {

struct copies_made final : driver::fault_injector::watcher {
  void enters(driver::call c) noexcept override {
    n += c == driver::call::copy || c == driver::call::copy_peer || c == driver::call::upload;
  }
  int n = 0;
};

constexpr size_t bytes = 18_MiB;  // more than one slot on every route

struct ends {
  stream s{device(0)};
  std::vector<char> pageable = std::vector<char>(bytes);
  buffer here{bytes, {.on = device(0)}}, there{bytes, {.on = device(1)}}, page = pinned(bytes);
};

struct kind {
  char const* name;
  void (*copy_it)(ends&);
  friend void PrintTo(kind const& k, std::ostream* out) { *out << k.name; }
};
kind const kinds[] = {
    {"from_pageable", [](ends& e) { copy(e.s, e.here.data(), e.pageable.data(), bytes, non_blocking); }},
    {"to_pageable", [](ends& e) { copy(e.s, e.pageable.data(), e.here.data(), bytes, non_blocking); }},
    {"to_pageable_blocking", [](ends& e) { copy(e.s, e.pageable.data(), e.here.data(), bytes); }},
    {"between_devices", [](ends& e) { copy(e.s, e.there.data(), e.here.data(), bytes, non_blocking); }},
    {"one_pinned", [](ends& e) { copy(e.s, e.here.data(), e.page.data(), bytes, non_blocking); }},
    {"many_pinned",
     [](ends& e) {
       std::vector<copy_item> all;
       for (size_t i = 0; i < 4; ++i)
         all.push_back({e.here.data<char>() + i * 1000, e.page.data<char>() + i * 1000, 500});
       copy(e.s, all, non_blocking);
     }},
    {"many_of_several_kinds",
     [](ends& e) {
       std::vector<copy_item> const all{{e.here.data<char>() + 510'000, e.pageable.data(), 4096},
                                        {e.here.data(), e.pageable.data(), 500'000},
                                        {e.here.data<char>() + 600'000, e.page.data(), 500},
                                        {e.there.data(), e.here.data(), 500'000}};
       copy(e.s, all, non_blocking);
     }},
};

struct copy_in_parts : ::testing::TestWithParam<kind> {};

// Regression: a part's refusal said so of the whole call.
TEST_P(copy_in_parts, says_what_was_enqueued_before_a_refusal) {
  int refused = 0, after_a_part = 0;
  for (std::uint64_t k = 1;; ++k) {
    runtime own(simulated{.devices = 2,
                          .memory = 64_MiB,
                          .schedule = simulated::scheduling::seeded,
                          .seed = k,
                          .peers = simulated::links::none});
    runtime_guard const in(own);
    ends e;
    synchronize();
    auto& machine = *driver::fault_injector_of(own.get().machine());
    copies_made made;
    machine.watch(&made);
    auto const id = simulation::of(own).fail_call("copy", k);
    std::string what;
    try {
      GetParam().copy_it(e);
    } catch (driver_error const& error) {
      what = error.what();
    }
    machine.watch(nullptr);
    simulation::of(own).cancel_failure(id);
    synchronize();
    if (what.empty())
      break;
    ++refused, after_a_part += made.n > 0;
    bool const says_nothing = what.find("Nothing was enqueued") != what.npos;
    EXPECT_EQ(says_nothing, made.n == 0) << "call " << k << ", after " << made.n << ": " << what;
    EXPECT_NE(what.find("epeat the"), what.npos) << what;
  }
  EXPECT_GT(refused, 0);
  if (std::string_view(GetParam().name) != "one_pinned") {
    EXPECT_GT(after_a_part, 0) << "it has parts";
  }
}
INSTANTIATE_TEST_SUITE_P(of, copy_in_parts, ::testing::ValuesIn(kinds),
                         [](auto const& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace weir
