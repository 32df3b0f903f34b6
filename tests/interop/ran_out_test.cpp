// Every call that can run out of memory, whatever ran out: it names itself once, the cause, and that cause's remedy,
// and asks on_out_of_memory first. If the callback makes room, the call is served.
// Threads: one.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <functional>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/os_memory.h"
#include "tests/support/sanitized.h"
#include "weir/array.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pmr.h"
#include "weir/pool.h"
#include "weir/share.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir {
namespace {

constexpr size_t device_bytes = 64_MiB, pinned_bytes = 16_MiB;

std::optional<os::host_memory> host_has;

// What a case fills before its call, and empties or raises in the callback.
struct scene {
  options with{.pinned_limit = pinned_bytes};
  std::optional<runtime> machine;
  std::optional<runtime_guard> in;
  std::optional<stream> on;
  std::optional<stream_guard> current;
  std::vector<buffer> held;
  std::vector<exportable_buffer> lent;
  std::optional<pool> aside;
  buffer of_aside;
  std::optional<share_pool> shared;
  std::vector<std::byte> pageable;

  explicit scene(options const& o) : with(o) {
    machine.emplace(simulated{.devices = 2, .memory = device_bytes}, with);
    in.emplace(*machine);
    on.emplace();
    current.emplace(*on);
  }
  ~scene() {
    os::memory_told_by(nullptr);
    os::refuse_by(nullptr);
    os_limit(0);
    held.clear(), lent.clear(), of_aside.reset();
    aside.reset(), shared.reset();
    on->synchronize();
    current.reset(), on.reset(), in.reset();
  }
  void fill_device(size_t bytes) { held.emplace_back(*on, bytes); }
  void fill_pinned(size_t bytes) { held.push_back(pinned(bytes)); }
  void empty() {
    held.clear(), lent.clear();
    on->synchronize();
  }
  static void os_limit(size_t more) {  // bytes that the process may map from now on; 0: any
    static rlim_t const before = [] {
      rlimit is{};
      ::getrlimit(RLIMIT_AS, &is);
      return is.rlim_cur;
    }();
    rlimit is{};
    ::getrlimit(RLIMIT_AS, &is);
    size_t pages = 0;
    if (FILE* const f = more ? std::fopen("/proc/self/statm", "r") : nullptr) {
      if (std::fscanf(f, "%zu", &pages) != 1)
        pages = 0;
      std::fclose(f);
    }
    is.rlim_cur = more ? pages * os::page_size() + more : before;
    ::setrlimit(RLIMIT_AS, &is);
  }
};

struct door {
  char const* name;
  std::function<void(scene&)> before, call, make_room;  // make_room: null: nothing helps
  char const* operation;
  memory_cause cause;
  char const* remedy;
  options with{.pinned_limit = pinned_bytes};
  bool of_host = false;
  bool under_sanitizers = true;
};

void nothing(scene&) {}
void empties(scene& s) {
  s.empty();
}
void fills(scene& s) {
  s.fill_device(60_MiB);
}
void pins(scene& s) {
  s.fill_pinned(12_MiB);
}
constexpr char const* of_live = "Free tensors and buffers earlier";
constexpr char const* of_limit = "The memory limit is reached";
constexpr char const* of_pinned = "free pinned buffers";

std::vector<door> doors() {
  using enum memory_cause;
  std::vector<door> all;
  auto const add = [&](door d) { all.push_back(std::move(d)); };
  auto const on_device = [&](char const* operation, std::function<void(scene&)> call) {
    add({operation, fills, std::move(call), empties, operation, in_use, of_live});
  };
  on_device("allocate", [](scene& s) { deallocate(allocate(*s.on, 8_MiB)); });
  on_device("buffer", [](scene& s) { buffer(*s.on, 8_MiB); });
  on_device("pool", [](scene&) { pool("registered", {.limit = 8_MiB, .registered = true}); });
  on_device("pool::allocate", [](scene&) {
    pool p("p");
    deallocate(p.allocate(8_MiB));
  });
  on_device("exportable_buffer", [](scene& s) { exportable_buffer(*s.on, 8_MiB); });
  on_device("share_pool::allocate", [](scene& s) {
    share_pool p;
    (void)p.allocate(*s.on, 8_MiB);
  });
  on_device("empty", [](scene&) { (void)empty({8 << 20}, {.dtype = uint8}); });
  on_device("zeros", [](scene&) { (void)zeros({2 << 20}); });
  on_device("randn", [](scene&) { (void)randn({2 << 20}); });
  on_device("full", [](scene&) { (void)full({2 << 20}, 1); });
  auto const of_tensor = [&](char const* operation, std::function<tensor(tensor const&)> act) {
    add({operation, [](scene& s) { s.fill_device(48_MiB); },
         [act](scene&) {
           tensor const t = zeros({2 << 20});
           (void)act(t);
         },
         empties, operation, in_use, of_live});
  };
  of_tensor("tensor::clone", [](tensor const& t) { return t.clone(), t.clone(); });
  add({"enable_peer_access", [](scene& s) { s.held.emplace_back(64_MiB, buffer_options{.on = 1}); },
       [](scene&) { enable_peer_access(device(1), {device(0)}); }, empties, "enable_peer_access", in_use, of_live});

  // limits
  add({"allocate under the limit",
       [](scene& s) {
         set_memory_limit(32_MiB);
         s.fill_device(30_MiB);
       },
       [](scene& s) { deallocate(allocate(*s.on, 8_MiB)); }, [](scene&) { set_memory_limit(0); }, "allocate", limit,
       of_limit});
  add({"allocate above the limit", [](scene&) { set_memory_limit(4_MiB); },
       [](scene& s) { deallocate(allocate(*s.on, 8_MiB)); }, [](scene&) { set_memory_limit(0); }, "allocate", limit,
       "larger than the memory limit"});
  add({"pool at its limit",
       [](scene& s) {
         s.aside.emplace("p", pool_options{.limit = 10_MiB});
         pool_guard const inside(*s.aside);
         s.fill_device(6_MiB);
       },
       [](scene& s) { deallocate(s.aside->allocate(6_MiB)); }, [](scene& s) { s.aside->set_limit(0); },
       "pool::allocate", pool_limit, "limit of the pool is reached"});
  add({"pool above its limit", [](scene& s) { s.aside.emplace("p", pool_options{.limit = 4_MiB}); },
       [](scene& s) { deallocate(s.aside->allocate(6_MiB)); }, [](scene& s) { s.aside->set_limit(0); },
       "pool::allocate", pool_limit, "larger than the limit of its pool"});
  add({"share_pool at its limit",
       [](scene& s) {
         s.shared.emplace(share_pool_options{.handle_bytes = 2_MiB, .limit = 10_MiB});
         s.lent.push_back(s.shared->allocate(6_MiB));
       },
       [](scene& s) { (void)s.shared->allocate(6_MiB); }, empties, "share_pool::allocate", share_limit,
       "limit of the share_pool is reached"});
  add({"share_pool above its limit", [](scene& s) { s.shared.emplace(share_pool_options{.limit = 4_MiB}); },
       [](scene& s) { (void)s.shared->allocate(6_MiB); }, nullptr, "share_pool::allocate", share_limit,
       "share_pool_options::limit"});
  add({"larger than the device", nothing, [](scene& s) { deallocate(allocate(*s.on, 100_MiB)); }, nullptr, "allocate",
       too_large, "larger than the device"});
  add({"exportable larger than the device", nothing, [](scene&) { exportable_buffer(100_MiB); }, nullptr,
       "exportable_buffer", too_large, "larger than the device"});
  add({"shared memory fills the device", [](scene& s) { s.lent.emplace_back(*s.on, 60_MiB); },
       [](scene& s) { exportable_buffer(*s.on, 8_MiB); }, empties, "exportable_buffer", shared,
       "memory to share with other processes"});
  add({"others hold the device", [](scene& s) { simulation::of(*s.machine).consume_memory(0, 60_MiB); },
       [](scene& s) { exportable_buffer(*s.on, 8_MiB); }, nullptr, "exportable_buffer", outside,
       "Other processes or libraries hold"});
  add({"the driver refuses",
       [](scene& s) {
         for (std::uint64_t k = 1; k < 10; ++k)
           simulation::of(*s.machine).fail_call("create_shared", k);
       },
       [](scene& s) { exportable_buffer(*s.on, 8_MiB); }, [](scene& s) { simulation::of(*s.machine).clear_failures(); },
       "exportable_buffer", driver, "nvidia-smi"});
  add({"addresses",
       [](scene& s) { s.fill_device(6_MiB); },
       [](scene& s) { deallocate(allocate(*s.on, 30_MiB)); },
       nullptr,
       "allocate",
       addresses,
       "address_space",
       {.address_space = 16_MiB}});

  // page-locked memory
  auto const on_pinned = [&](char const* operation, std::function<void(scene&)> call) {
    add({operation, pins, std::move(call), empties, operation, limit, of_pinned, {.pinned_limit = pinned_bytes}, true});
  };
  on_pinned("pinned", [](scene&) { (void)pinned(8_MiB); });
  on_pinned("buffer", [](scene&) { buffer(8_MiB, {.on = cpu, .kind = memory_kind::pinned}); });
  on_pinned("pin_memory", [](scene& s) {
    s.pageable.resize(8_MiB);
    (void)pin_memory(s.pageable);
  });
  on_pinned("reserve_pinned_memory", [](scene&) { reserve_pinned_memory(8_MiB); });
  on_pinned("pinned_allocator::allocate", [](scene&) { std::vector<char, pinned_allocator<char>> v(8_MiB); });
  on_pinned("empty", [](scene&) { (void)empty({8 << 20}, {.dtype = uint8, .on = cpu, .kind = memory_kind::pinned}); });
  on_pinned("tensor::pin_memory", [](scene&) { (void)zeros({8 << 20}, {.dtype = uint8, .on = cpu}).pin_memory(); });
  on_pinned("tensor::to", [](scene& s) {
    tensor const t = zeros({8 << 20}, {.dtype = uint8});
    (void)t.to(cpu, blocking::no);
    s.on->synchronize();
  });
  on_pinned("pool::sleep", [](scene& s) {
    if (!s.aside) {
      s.aside.emplace("p");
      s.of_aside = buffer::adopt(s.aside->allocate(8_MiB));
    }
    s.aside->sleep();
  });
  on_pinned("copy", [](scene& s) {
    if (s.held.size() == 1)
      s.fill_pinned(4_MiB);
    buffer const to(*s.on, 8_MiB);
    s.pageable.resize(8_MiB);
    copy(*s.on, to.data(), s.pageable.data(), 8_MiB);
  });
  add({"pinned above its limit",
       nothing,
       [](scene&) { (void)pinned(20_MiB); },
       nullptr,
       "pinned",
       limit,
       "larger than the limit of pinned memory",
       {.pinned_limit = pinned_bytes},
       true});
  add({"pinned larger than the host",
       nothing,
       [](scene&) { (void)pinned(size_t{1} << 50); },
       nullptr,
       "pinned",
       too_large,
       "larger than the host",
       {.pinned_limit = pinned_bytes},
       true});
  add({"the host is short",
       [](scene&) {
         host_has = os::host_memory{.total = 800_MiB, .available = 104_MiB};
         os::memory_told_by([]() noexcept { return host_has; });
       },
       [](scene&) { (void)pinned(8_MiB); },
       [](scene&) { host_has->available = 700_MiB; },
       "pinned",
       host,
       "The host has",
       {},
       true});
  add({"the system locks no more",
       [](scene& s) {
         for (std::uint64_t k = 1; k < 10; ++k)
           simulation::of(*s.machine).fail_call("pin", k);
       },
       [](scene&) { (void)pinned(8_MiB); },
       [](scene& s) { simulation::of(*s.machine).clear_failures(); },
       "pinned",
       driver,
       "ulimit -l",
       {.pinned_limit = pinned_bytes},
       true});
  add({"the process may map no more",
       [](scene&) { os::refuse_by([](os::call c) noexcept { return c == os::call::map_memory; }); },
       [](scene&) { (void)pinned(8_MiB); },
       [](scene&) { os::refuse_by(nullptr); },
       "pinned",
       addresses,
       "ulimit -v",
       {.pinned_limit = pinned_bytes},
       true});

  // pageable memory
  auto const on_host = [&](char const* operation, std::function<void(scene&)> call) {
    add({operation,
         [](scene& s) { s.os_limit(256_MiB); },
         std::move(call),
         [](scene& s) { s.os_limit(0); },
         operation,
         host,
         "ulimit -v",
         {},
         true,
         false});
  };
  on_host("buffer", [](scene&) { buffer(512_MiB, {.on = cpu}); });
  on_host("empty", [](scene&) { (void)empty({512 << 20}, {.dtype = uint8, .on = cpu}); });
  return all;
}

size_t count(std::string_view text, std::string_view of) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(of, at)) != text.npos; at += of.size())
    ++n;
  return n;
}

void says_what_it_is(door const& d, out_of_memory const& e) {
  std::string const said = e.what();
  EXPECT_EQ(e.operation(), d.operation);
  EXPECT_TRUE(said.starts_with(std::string("weir-101: ") + d.operation + ": out of memory. ")) << said;
  EXPECT_EQ(count(said, "out of memory."), 1u) << said;
  EXPECT_EQ(name(e.report().cause), name(d.cause)) << said;
  EXPECT_NE(e.report().text().find(d.remedy), std::string::npos) << said;
  EXPECT_EQ(e.report().on.is_cpu(), d.of_host);
  EXPECT_GE(e.report().reserved, e.report().allocated + e.report().pending) << said;
}

TEST(ran_out, every_call_says_what_ran_out_and_what_helps) {
  for (door const& d : doors()) {
    if (tests::sanitized && !d.under_sanitizers)
      continue;
    SCOPED_TRACE(std::string(d.name) + ", cause " + std::string(name(d.cause)));
    scene s(d.with);
    d.before(s);
    try {
      d.call(s);
      ADD_FAILURE() << "there was room";
    } catch (out_of_memory const& e) {
      says_what_it_is(d, e);
    }
  }
}

// Also where nothing helps: such a program may want to know.
TEST(ran_out, every_call_asks_the_program_once_before) {
  for (door const& d : doors()) {
    if (tests::sanitized && !d.under_sanitizers)
      continue;
    SCOPED_TRACE(std::string(d.name) + ", cause " + std::string(name(d.cause)));
    scene s(d.with);
    int asked = 0;
    auto const counts = on_out_of_memory([&](memory_report const& why) {
      ++asked;
      EXPECT_EQ(name(why.cause), name(d.cause)) << why.text();
      EXPECT_EQ(why.on.is_cpu(), d.of_host);
      return false;
    });
    d.before(s);
    EXPECT_THROW(d.call(s), out_of_memory);
    EXPECT_EQ(asked, 1);
  }
}

TEST(ran_out, every_call_is_served_if_the_program_makes_room) {
  for (door const& d : doors()) {
    if (!d.make_room || (tests::sanitized && !d.under_sanitizers))
      continue;
    SCOPED_TRACE(std::string(d.name) + ", cause " + std::string(name(d.cause)));
    scene s(d.with);
    int asked = 0;
    auto const makes_room = on_out_of_memory([&](memory_report const&) {
      ++asked;
      d.make_room(s);
      return true;
    });
    d.before(s);
    EXPECT_NO_THROW(d.call(s));
    EXPECT_EQ(asked, 1);
  }
}

// The callback is the caller's own code: what it allocates may run out, and that calls no callback again.
TEST(ran_out, a_call_inside_the_callback_asks_nobody) {
  scene s({.pinned_limit = pinned_bytes});
  s.fill_device(60_MiB), s.fill_pinned(12_MiB);
  int asked = 0;
  auto const again = on_out_of_memory([&](memory_report const&) {
    ++asked;
    EXPECT_THROW((void)pinned(8_MiB), out_of_memory);
    EXPECT_THROW(buffer(*s.on, 8_MiB), out_of_memory);
    EXPECT_THROW(exportable_buffer(*s.on, 8_MiB), out_of_memory);
    return true;
  });
  EXPECT_THROW((void)pinned(8_MiB), out_of_memory);
  EXPECT_EQ(asked, 1);
  EXPECT_THROW(exportable_buffer(*s.on, 8_MiB), out_of_memory);
  EXPECT_EQ(asked, 2);
}

TEST(ran_out, the_statistics_count_each_error_once) {
  scene s({.pinned_limit = pinned_bytes});
  s.fill_device(60_MiB), s.fill_pinned(16_MiB);
  EXPECT_THROW(buffer(*s.on, 8_MiB), out_of_memory);
  EXPECT_THROW(exportable_buffer(*s.on, 8_MiB), out_of_memory);
  EXPECT_EQ(memory_stats().num_ooms, 2u);
  EXPECT_THROW((void)pinned(8_MiB), out_of_memory);
  buffer const to(*s.on, 1_MiB);
  s.pageable.resize(1_MiB);
  EXPECT_THROW(copy(*s.on, to.data(), s.pageable.data(), 1_MiB), out_of_memory) << "its slots shrink first";
  EXPECT_EQ(pinned_memory_stats().num_ooms, 2u);
}

}  // namespace
}  // namespace weir
