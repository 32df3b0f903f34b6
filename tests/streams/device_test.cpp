// weir/device.h on a simulated machine.
// Threads: one.
#include "tests/streams/stepped_machine.h"

namespace weir {
namespace {

using devices = stepped_machine;

TEST_F(devices, the_machine_lists_its_devices) {
  EXPECT_TRUE(is_available());
  EXPECT_EQ(device_count(), 2);
  auto const p = get_device_properties(1);
  EXPECT_TRUE(p.simulated);
  EXPECT_EQ(p.total_memory, 64_MiB);
  EXPECT_FALSE(p.name.empty());
  auto const m = mem_get_info(1);
  EXPECT_EQ(m.total, 64_MiB);
  EXPECT_LE(m.free, m.total);
}

TEST_F(devices, no_such_device_is_refused_by_name_and_number) {
  for (auto f : std::vector<std::function<void()>>{[] { set_device(2); }, [] { synchronize(2); },
                                                   [] { mem_get_info(2); }, [] { get_device_properties(2); },
                                                   [] { (void)current_stream(2); }, [] { stream s{2}; }}) {
    std::string const said = refused<invalid_use>(f);
    EXPECT_NE(said.find("gpu:2 of 2"), std::string::npos) << said;
  }
  EXPECT_EQ(refused<invalid_use>([] { synchronize(cpu); }), "cpu");
  set_device(cpu);
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(devices, synchronize_completes_its_own_stamps_only) {
  stream a{0}, b{0}, c{1};
  work(a, 1);
  work(b, 2);
  work(c, 3);
  stamp const sa = a.ref().stamp(), sb = b.ref().stamp(), sc = c.ref().stamp();
  synchronize(0);
  auto& clocks = rt.get().part<clock::clocks>();
  EXPECT_TRUE(clocks.complete(streams::inner_stamp(sa)));
  EXPECT_TRUE(clocks.complete(streams::inner_stamp(sb)));
  EXPECT_FALSE(clocks.complete(streams::inner_stamp(sc)));
  work(a, 4);
  EXPECT_FALSE(clocks.complete(streams::inner_stamp(a.ref().stamp())));
}

}  // namespace
}  // namespace weir
