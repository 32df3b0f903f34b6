// What a launcher's variables say, and the refusals of those that say nonsense.
// Threads: one.
#include <cstdlib>
#include <map>
#include <string>

#include "runtime/base/os_tcp.h"
#include "tests/peer/ranks.h"

namespace {

using namespace weir;
using weir::test::refusal;

struct launched : ::testing::Test {
  static constexpr char const* names[] = {"RANK",
                                          "WORLD_SIZE",
                                          "LOCAL_RANK",
                                          "MASTER_ADDR",
                                          "MASTER_PORT",
                                          "TORCHELASTIC_USE_AGENT_STORE",
                                          "OMPI_COMM_WORLD_RANK",
                                          "OMPI_COMM_WORLD_SIZE",
                                          "OMPI_COMM_WORLD_LOCAL_RANK"};
  launched() { clear(); }
  ~launched() override { clear(); }
  static void clear() {
    for (char const* name : names)
      ::unsetenv(name);
  }
  static void set(std::map<std::string, std::string> const& all) {
    clear();
    for (auto const& [name, value] : all)
      ::setenv(name.c_str(), value.c_str(), 1);
  }
  static void expect_refused(char const* words) {
    std::string const text = refusal<invalid_use>([] { (void)this_launch(); });
    EXPECT_NE(text.find(words), std::string::npos) << text;
  }
};

TEST_F(launched, by_nobody_is_one_process) {
  launch_info const l = this_launch();
  EXPECT_EQ(l.how, launch_info::by::itself);
  EXPECT_EQ(l.size, 1);
  EXPECT_NE(refusal<invalid_use>([] { (void)communicator::from_environment(); }).find("no launcher"),
            std::string::npos);
}

TEST_F(launched, by_torchrun_or_mpirun_says_its_place) {
  set({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}});
  launch_info l = this_launch();
  EXPECT_EQ(l.how, launch_info::by::torchrun);
  EXPECT_EQ(l.rank, 5);
  EXPECT_EQ(l.size, 8);
  EXPECT_EQ(l.local_rank, 1);
  set({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "3"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  l = this_launch();
  EXPECT_EQ(l.how, launch_info::by::mpirun);
  EXPECT_EQ(l.rank, 2);
  EXPECT_EQ(l.size, 3);
  EXPECT_EQ(l.local_rank, 0);
}

TEST_F(launched, with_half_of_the_variables_is_refused) {
  set({{"WORLD_SIZE", "2"}});
  expect_refused("RANK is not set, although other variables of torchrun are");
  set({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  expect_refused("LOCAL_RANK is not set");
  set({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}});
  expect_refused("OMPI_COMM_WORLD_LOCAL_RANK is not set");
  set({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}});
  EXPECT_NE(refusal<invalid_use>([] { (void)communicator::from_environment(); }).find("MASTER_ADDR"),
            std::string::npos);
}

TEST_F(launched, with_nonsense_in_variables_is_refused) {
  for (char const* bad : {"", "x", "1x", " 1", "-1", "99999999999", "1.5"}) {
    set({{"RANK", "0"}, {"WORLD_SIZE", bad}, {"LOCAL_RANK", "0"}});
    expect_refused("WORLD_SIZE=");
  }
  set({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}});
  expect_refused("there is no such rank");
  set({{"RANK", "0"}, {"WORLD_SIZE", "0"}, {"LOCAL_RANK", "0"}});
  expect_refused("there is no such rank");
  set({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}});
  expect_refused("there is no such rank");
  for (char const* bad : {"", "0", "65536", "http", "29500 "}) {
    set({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", bad}});
    std::string const text = refusal<invalid_use>([] { (void)communicator::from_environment(); });
    EXPECT_NE(text.find("MASTER_PORT="), std::string::npos) << text;
  }
}

TEST_F(launched, one_rank_meets_itself) {
  set({{"RANK", "0"},
       {"WORLD_SIZE", "1"},
       {"LOCAL_RANK", "0"},
       {"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(os::listen_tcp(0).port)}});
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto c = communicator::from_environment();
  EXPECT_EQ(c.rank(), 0);
  EXPECT_EQ(c.size(), 1);
  c.barrier();
}

}  // namespace
