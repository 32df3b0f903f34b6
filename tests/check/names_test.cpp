// Every report calls a stream by the same name, with the number that stream::id() counts.
// Threads: one.
#include "runtime/core/parts.h"
#include "tests/check/programs.h"
#include "weir/collective.h"

namespace weir::check_tests {
namespace {

// `before` is 0 for the first runtime of a process.
std::string named(stream const& s, std::uint64_t before) {
  return "stream " + std::to_string(s.id() - before) + " of gpu:" + std::to_string(s.ref().device().index());
}

TEST(names, a_race_and_a_cycle_name_a_stream_by_its_id) {
  for (auto const how : {simulated::scheduling::seeded, simulated::scheduling::stepped}) {
    runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = how, .seed = 1}, {.check_races = true}};
    runtime_guard const in{rt};
    stream const first;
    std::uint64_t const before = first.id() - 1;
    auto& machine = rt.get().machine();
    // a stream that the library would keep to itself
    auto const unknown_stream = machine.create_stream(0, driver::stream_kind::independent, 0).value;
    auto ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
    stream const s{device(0)}, t{device(1)}, other{device(0)};
    buffer const x(64, {.on = device(0)}), y(64, {.on = device(1)});
    for (auto const* one : {&s, &t, &other})
      one->wait(current_stream(device(0)));
    write(s, x.data(), 64);
    write(other, x.data(), 64);
    auto const reduce = [&](std::size_t rank, stream const& on, buffer const& b) {
      stream_guard const home(on);
      ranks[rank].all_reduce({b.data(), 4, float32}, reduce_op::sum);
    };
    reduce(0, s, x);
    t.wait(s);
    reduce(1, t, y);
    EXPECT_THROW(s.synchronize(), driver_error);
    std::string race, circle;
    for (auto const& r : race_reports())
      (r.kind == "stuck" ? circle : race) += r.text;
    for (auto const* one : {&s, &other})
      EXPECT_NE(race.find(named(*one, before)), std::string::npos) << named(*one, before) << "\n" << race;
    for (auto const* one : {&s, &t})
      EXPECT_NE(circle.find(named(*one, before)), std::string::npos) << named(*one, before) << "\n" << circle;
    EXPECT_EQ(circle.find(" of device "), std::string::npos) << circle;
    ranks[0].abort();
    EXPECT_TRUE(machine.destroy_stream(0, unknown_stream).ok());
  }
}

}  // namespace
}  // namespace weir::check_tests
