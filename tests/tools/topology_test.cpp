// The topology matrix of `weir info`.
// Threads: one.
#include "tools/weir/topology.h"

#include <gtest/gtest.h>

namespace weir::tool {
namespace {

std::string const bus = "/sys/devices/pci0000:00/";

TEST(topology, one_bridge_is_pix_and_nested_switches_are_pxb) {
  std::string const port = bus + "0000:00:01.0/0000:01:00.0/";
  EXPECT_EQ(path_between(port + "0000:02:00.0/0000:03:00.0", 0, port + "0000:02:01.0/0000:04:00.0", 0), "PIX");
  EXPECT_EQ(path_between(port + "0000:02:00.0/0000:03:00.0/0000:04:00.0/0000:05:00.0", 0,
                         port + "0000:02:01.0/0000:06:00.0", 0),
            "PXB");
}

TEST(topology, beyond_a_bridge_the_meeting_place_is_the_name) {
  std::string const a = bus + "0000:00:01.0/0000:01:00.0", beside = bus + "0000:00:02.0/0000:02:00.0",
                    far = "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0";
  EXPECT_EQ(path_between(a, 0, beside, 0), "PHB");
  EXPECT_EQ(path_between(a, 0, far, 0), "NODE");
  EXPECT_EQ(path_between(a, 0, far, 1), "SYS");
  EXPECT_EQ(path_between(a, -1, far, -1), "SYS");
  EXPECT_EQ(path_between("", 0, "", 0), "NODE");
}

TEST(topology, the_matrix_has_rows_legend_and_unverified_names) {
  std::vector<device_properties> two(2);
  for (auto& p : two)
    p.simulated = true;
  using kind = peer_link::kind;
  std::vector<peer_link> links{{0, 0, kind::self, 0, true, true, true},
                               {0, 1, kind::nvlink, 18, true, true, true},
                               {1, 0, kind::direct, 0, true, true, false, true},
                               {1, 1, kind::self, 0, true, true, true}};
  std::string const text = draw(two, links);
  EXPECT_NE(text.find("gpu:0   X       NV18 "), std::string::npos) << text;
  EXPECT_NE(text.find("gpu:1   SIM!    X "), std::string::npos) << text;
  EXPECT_NE(text.find("so many NVLinks"), std::string::npos) << text;
  EXPECT_EQ(text.find("PXB"), std::string::npos) << text;
  EXPECT_NE(text.find("NOT verified, copies go through host memory: gpu:1 -> gpu:0"), std::string::npos) << text;
  links[2].wrong = false;  // not tested
  std::string const untried = draw(two, links);
  EXPECT_EQ(untried.find("SIM!"), std::string::npos) << untried;
  EXPECT_NE(untried.find("not tested, the driver copies, kernels have no access: gpu:1 -> gpu:0"), std::string::npos)
      << untried;
}

}  // namespace
}  // namespace weir::tool
