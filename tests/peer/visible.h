// What the tests of open memory share: three devices, reads in place, and the words of a refusal.
// Threads: one.
#pragma once
#include <string>
#include <vector>

#include "tests/peer/share_fixture.h"
#include "weir/launch.h"

namespace weir::test::visible {

inline simulated three(std::uint64_t seed = 1) {
  return {.devices = 3, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed};
}

// A kernel of device `reader` reads the memory in place. The machine reports a forbidden access as a finding.
inline void read_in_place(void const* at, size_t bytes, int reader) {
  launch(
      current_stream(device(reader)), {reads(at, bytes)}, [](auto) {}, [] {});
}

inline void expect_open(machine& m, void const* at, size_t bytes, std::vector<int> const& readers) {
  int const home = m.get().part<memory::device_memory>().owner(at)->device();
  for (int const r : readers) {
    EXPECT_TRUE(m.memory(home).granted(at, r)) << "for gpu:" << r;
    current_stream(device(r)).wait(current_stream(device(home)));
    read_in_place(at, bytes, r);
    current_stream(device(home)).wait(current_stream(device(r)));
  }
}

inline void expect_whole(machine& m) {
  for (int d = 0; d < device_count(); ++d)
    synchronize(device(d));
  for (int d = 0; d < device_count(); ++d)
    EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

std::string what_is_refused(auto act) {
  try {
    act();
  } catch (not_supported const& e) {
    return "not_supported: " + std::string(e.operands());
  } catch (invalid_use const& e) {
    return "invalid_use: " + std::string(e.operands());
  } catch (device_lost const& e) {
    return "device_lost: " + std::string(e.operands());
  }
  return "";
}

}  // namespace weir::test::visible
