// A host with several nodes: pinned memory and the threads that fill it are near the device that copies it,
// or where the system likes when it refuses.
// Threads: those of staging and of its copy workers.
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "runtime/base/os_numa.h"
#include "streams/copy/copy_workers.h"
#include "streams/pinned/near_nodes.h"
#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

source_location const taken_here = source_location::current();

std::vector<int> from_to(int first, int last) {
  std::vector<int> out(static_cast<std::size_t>(last - first + 1));
  std::iota(out.begin(), out.end(), first);
  return out;
}

// Two nodes of 32 processors, of which this process may run on some.
class two_nodes final : public os::nodes {
 public:
  struct asked {
    std::byte* at;
    std::size_t bytes;
    int node;
  };
  two_nodes() { os::nodes_by(this); }
  ~two_nodes() override { os::nodes_by(nullptr); }

  bool prefer(void* at, std::size_t bytes, int node) noexcept override {
    log_.lock()->preferred.push_back({static_cast<std::byte*>(at), bytes, node});
    return !refuses;
  }
  std::vector<int> near(int node) override {
    if (throws)
      throw std::bad_alloc();
    if (refuses)
      return {};
    return from_to(32 * node, 32 * node + 31);
  }
  std::vector<int> allowed() override { return may; }
  bool keep_on(std::vector<int> const& processors) noexcept override {
    auto log = log_.lock();
    log->kept[base::this_thread_id()].push_back(processors);
    return !refuses;
  }

  std::vector<asked> preferred() const { return log_.lock()->preferred; }
  std::vector<std::vector<int>> kept() const {  // of every thread, what it was told last
    std::vector<std::vector<int>> out;
    auto log = log_.lock();
    for (auto const& [thread, all] : log->kept)
      out.push_back(all.back());
    return out;
  }
  int node_of(void const* p) const {
    auto log = log_.lock();
    for (auto one = log->preferred.rbegin(); one != log->preferred.rend(); ++one) {
      if (p >= one->at && p < one->at + one->bytes)
        return one->node;
    }
    return -1;
  }

  bool refuses = false, throws = false;
  std::vector<int> may = from_to(0, 63);

 private:
  struct log {
    std::vector<asked> preferred;
    std::map<std::uint64_t, std::vector<std::vector<int>>> kept;
  };
  base::guarded<log> log_;
};

struct machine_on_nodes : test::machine {
  machine_on_nodes() : test::machine({.devices = 2, .memory = 128_MiB, .peers = simulated::links::none}) {
    for (int d : {0, 1})
      pinned().lies_near(d, d);
  }
};

TEST(nodes, pinned_pages_come_from_the_current_devices_node) {
  two_nodes host;
  machine_on_nodes m;
  void* block[2];
  for (int d : {1, 0}) {
    device_guard const on(d);
    block[d] = m.pinned().allocate(3_MiB, 0, taken_here);
    EXPECT_EQ(host.node_of(block[d]), d);
    EXPECT_EQ(host.node_of(static_cast<std::byte*>(block[d]) + 3_MiB - 1), d) << "to its end";
  }
  for (void* const one : block)
    m.pinned().deallocate(one, taken_here);
}

TEST(nodes, slots_are_near_the_device_that_copies) {
  two_nodes host;
  machine_on_nodes m;
  std::size_t const n = 5_MiB;
  auto const source = test::pattern(n, 1);
  for (int d : {1, 0}) {
    buffer const a(n, {.on = device(d)});
    stream s{device(d)};
    device_guard const elsewhere(1 - d);
    std::size_t const before = host.preferred().size();
    test::bytes_of_host waits(n), comes(n);
    copy(s, a.data(), source.data(), n);
    copy(s, waits.data(), a.data(), n);
    copy(s, comes.data(), a.data(), n, non_blocking).synchronize();
    EXPECT_EQ(waits, source);
    EXPECT_EQ(comes, source);
    auto const all = host.preferred();
    EXPECT_GT(all.size(), before);
    for (std::size_t i = before; i < all.size(); ++i)
      EXPECT_EQ(all[i].node, d);
    m.pinned().trim();
  }
}

TEST(nodes, slots_between_devices_are_near_the_one_they_come_from) {
  two_nodes host;
  machine_on_nodes m;
  std::size_t const n = 3_MiB;
  auto const source = test::pattern(n, 2);
  buffer const a(n, {.on = device(1)}), b(n, {.on = device(0)});
  copy(a.data(), source.data(), n);
  m.pinned().trim();
  std::size_t const before = host.preferred().size();
  copy(b.data(), a.data(), n);
  auto const all = host.preferred();
  ASSERT_GT(all.size(), before);
  for (std::size_t i = before; i < all.size(); ++i)
    EXPECT_EQ(all[i].node, 1);
  EXPECT_EQ(test::read_back(b.data(), n, 0), source);
}

// Those that the process may use.
TEST(nodes, a_crew_stays_on_processors_near_its_device) {
  two_nodes host;
  host.may = from_to(8, 63);
  streams::node_workers workers_by_node(3);
  auto const near = workers_by_node.of(0), far = workers_by_node.of(1);
  EXPECT_NE(near, far);
  EXPECT_EQ(workers_by_node.of(1), far) << "one for each node";
  EXPECT_EQ(near->threads(), 3);
  for (auto const& [workers, processors] : {std::pair{near, from_to(8, 31)}, std::pair{far, from_to(32, 63)}}) {
    std::size_t const before = host.kept().size();
    int const from = 7;
    int to = 0;
    streams::copy_workers::task one{&to, &from, sizeof to};
    workers->submit(one);
    workers->finish(one);
    workers->stop();
    EXPECT_EQ(to, 7);
    auto const kept = host.kept();
    ASSERT_EQ(kept.size(), before + 3) << "each of its threads";
    EXPECT_EQ(std::count(kept.begin(), kept.end(), processors), 3);
  }
  workers_by_node.stop();
}

TEST(nodes, a_copy_is_done_by_the_crew_near_its_device) {
  two_nodes host;
  int threads = 0;
  {
    machine_on_nodes m;
    threads = m.get().part<streams::staging>().threads();
    std::size_t const n = 5_MiB;
    auto const source = test::pattern(n, 3);
    buffer const a(n, {.on = device(1)});
    copy(a.data(), source.data(), n);
    EXPECT_EQ(test::read_back(a.data(), n, 1), source);
  }
  auto const kept = host.kept();  // its threads have ended
  EXPECT_EQ(static_cast<int>(kept.size()), threads) << "0 where there is one processor";
  for (auto const& one : kept)
    EXPECT_EQ(one, from_to(32, 63));
}

// The node is unknown, the only one, or has too few processors.
TEST(nodes, the_common_crew_copies_without_a_usable_node) {
  two_nodes host;
  streams::node_workers workers_by_node(4);
  auto const common = workers_by_node.of(-1);
  host.may = from_to(32, 63);
  EXPECT_EQ(workers_by_node.of(1), common) << "all that the process may use is near";
  streams::node_workers few(4);
  host.may = from_to(29, 63);
  EXPECT_EQ(few.of(0), few.of(-1)) << "three processors for four threads";
  EXPECT_NE(few.of(1), few.of(-1));
  host.refuses = true;
  streams::node_workers unknown(4);
  EXPECT_EQ(unknown.of(0), unknown.of(-1)) << "the system does not know them";
  few.stop();
  EXPECT_EQ(few.of(1), few.of(-1)) << "none is made after the end";
}

// Regression: an empty entry stayed, and what follows called through it.
TEST(nodes, a_node_that_is_not_known_for_memory_is_asked_again) {
  two_nodes host;
  host.throws = true;
  streams::node_workers workers_by_node(3);
  EXPECT_EQ(workers_by_node.of(0), workers_by_node.of(-1));
  workers_by_node.work_by({.threads = 2});
  host.throws = false;
  EXPECT_NE(workers_by_node.of(0), workers_by_node.of(-1));
  workers_by_node.stop();
}

TEST(nodes, a_system_that_refuses_costs_no_byte_and_no_page) {
  two_nodes host;
  machine_on_nodes m;
  host.refuses = true;
  std::size_t const n = 5_MiB;
  auto const source = test::pattern(n, 4);
  for (int d : {0, 1}) {
    buffer const a(n, {.on = device(d)});
    copy(a.data(), source.data(), n);
    EXPECT_EQ(test::read_back(a.data(), n, d), source);
  }
  EXPECT_FALSE(host.preferred().empty());
  EXPECT_EQ(m.pinned().validate(), std::vector<std::string>{});
  m.pinned().trim();
  EXPECT_EQ(m.pinned().statistics().reserved_bytes.all.current, 0);
}

TEST(nodes, a_thread_without_affinity_copies_all_the_same) {
  two_nodes host;
  streams::copy_workers workers(2, from_to(0, 31));
  host.refuses = true;
  int const from = 7;
  int to = 0;
  streams::copy_workers::task one{&to, &from, sizeof to};
  workers.submit(one);
  workers.finish(one);
  workers.stop();
  EXPECT_EQ(to, 7);
  EXPECT_EQ(host.kept().size(), 2u);
}

// A machine that is taken for one with GPUs, and says where they are.
class says_nodes final : public driver::fault_injector {
 public:
  explicit says_nodes(std::unique_ptr<weir::driver::driver> inner) : fault_injector(std::move(inner)) {}
  bool simulated() const noexcept override { return false; }
  weir::driver::result<weir::driver::device_info> info(int device) override {
    ++asked;
    if (refuses)
      return {{weir::driver::code::failed, 0}, {}};
    auto about = fault_injector::info(device);
    about.value.numa_node = 3 - device;
    return about;
  }
  int asked = 0;
  bool refuses = false;
};

// A refusal is no node.
TEST(nodes, the_driver_is_asked_once_for_a_devices_node) {
  says_nodes machine(driver::sim::make({.devices = 4, .memory = 16_MiB}).machine);
  streams::near_nodes nodes;
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(nodes.of(machine, 0), 3);
    EXPECT_EQ(nodes.of(machine, 1), 2);
  }
  EXPECT_EQ(machine.asked, 2);
  machine.refuses = true;
  EXPECT_EQ(nodes.of(machine, 2), -1);
  EXPECT_EQ(nodes.of(machine, 1000), -1) << "more devices than are remembered";
}

TEST(nodes, this_system_honours_thread_affinity) {
  int told = -1, is = -1;
  base::thread([&] {
    cpu_set_t may;
    CPU_ZERO(&may);
    ASSERT_EQ(sched_getaffinity(0, sizeof may, &may), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &may))
        told = cpu;
    }
    EXPECT_FALSE(os::keep_this_thread_on({})) << "nowhere";
    ASSERT_TRUE(os::keep_this_thread_on({told}));
    is = sched_getcpu();
  }).join();
  EXPECT_EQ(is, told);
  EXPECT_TRUE(os::usable_processors_near(-1).empty());
  EXPECT_FALSE(os::prefer_node(nullptr, 4096, -1));
  EXPECT_FALSE(os::prefer_node(nullptr, 4096, 64)) << "no such node";
}

}  // namespace
}  // namespace weir
