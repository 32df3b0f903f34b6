// A free that throws has changed nothing: each kind of free, with each of its host allocations refused, while no
// stream can be waited for. The free that follows does what it would have done alone.
// Threads: one.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/core/parts.h"
#include "runtime/driver/allocation_observer.h"
#include "runtime/memory/device/device_memory.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "tests/faults/heap.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/launch.h"
#include "weir/log.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir::faults {
namespace {

enum class hears { none, notices, observer };  // what is told of each block

// Counts what tools and a checker are told.
class listener final : public driver::fault_injector, public driver::allocation_observer {
 public:
  listener(std::unique_ptr<driver> inner, hears what) : fault_injector(std::move(inner)), what_(what) {}
  bool nvtx_memory() override { return true; }
  void block_taken(weir::driver::address, std::size_t) override {}
  void block_given_back(weir::driver::address) override { ++given_back; }
  weir::driver::allocation_observer* watching() noexcept override { return what_ == hears::observer ? this : nullptr; }
  void stream_made(user, source_location) override {}
  void allocated(user, weir::driver::address, std::size_t, source_location) override {}
  void marked(user, weir::driver::address) override {}
  void freed(weir::driver::address, std::size_t, std::span<user const>, source_location) override { ++told_freed; }
  void stream_handed_out(user) override {}
  void event_handed_out(weir::driver::event_handle) override {}
  void handed_over(user, weir::driver::address, std::size_t, source_location) override {}
  void wait_inserted(user, user, weir::driver::address, std::size_t) override {}
  void relied_on(user, user) override {}
  int given_back = 0, told_freed = 0;

 private:
  hears const what_;
};

// The machine uses the heap too: only weir's allocations fail.
struct machine_apart final : driver::fault_injector::watcher {
  void enters(driver::call) noexcept override { heap::pause(); }
  void leaves(driver::call) noexcept override { heap::go_on(); }
};

struct world {
  explicit world(hears what, options o) {
    auto owned = std::make_unique<listener>(
        driver::sim::make({.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1})
            .machine,
        what);
    told = owned.get();
    o.nvtx_memory = what == hears::notices;
    own = make_runtime(std::move(owned), o, "a test of frees");
    in.emplace(*own);
    told->watch(&apart);
    a.emplace();
    for (auto& one : users)
      one.emplace();
  }
  ~world() { told->watch(nullptr); }

  void work_on_users() {
    for (auto const& one : users)
      launch(
          *one, {}, [](CUstream_st*) {}, [] {});
  }
  memory::allocator& device() { return own->get().part<memory::device_memory>().on(0); }
  // What a program, a tool or a later free can see, one fact a line.
  std::string state() {
    std::ostringstream out;
    for (auto const& [name, value] : memory_stats(0).flat())
      out << name << ' ' << value << '\n';
    auto const host = own->get().part<streams::pinned_memory>().statistics();
    for (auto const& [name, value] : host.flat())
      out << "pinned " << name << ' ' << value << '\n';
    out << "given back " << told->given_back << ", told " << told->told_freed << '\n';
    for (auto const& u : device().by_stream())
      out << "stream: " << u.allocated << ' ' << u.pending << ' ' << u.cached << '\n';
    for (auto const& line : memory_by_line(0))
      out << "line " << line.blocks << ' ' << line.bytes << '\n';
    for (auto const& wrong : device().validate())
      out << wrong << '\n';
    if (borrowed) {
      auto const& home = streams::clock_of(*borrowed);
      out << "forgettable " << home.may_be_forgotten() << ", owes " << home.owes_fence() << ", fenced "
          << home.is_fenced() << '\n';
    }
    return out.str();
  }

  machine_apart apart;
  listener* told = nullptr;
  std::unique_ptr<runtime> own;
  std::optional<runtime_guard> in;
  std::optional<stream> a;
  std::optional<stream> users[6];
  std::optional<simulated_stream> handle;
  std::optional<stream_ref> borrowed;
  std::optional<pool> apart_pool;
  std::optional<graph> held;
  buffer pinned_block;
  std::vector<void*> others;
};

void mark(world& w, void const* p) {
  for (auto const& one : w.users)
    record_stream(p, *one);
}

// A kind of free. make: a block, used by work that is not complete. within: what the free itself stands in.
struct kind {
  char const* name;
  void* (*make)(world&);
  void (*within)(world&, std::function<void()> const& free_it) = nullptr;
  bool last_use = false;
  options with = {};
  friend void PrintTo(kind const& k, std::ostream* out) { *out << k.name; }
};

void* large_block(world& w) {
  void* const p = allocate(*w.a, 1_MiB);
  mark(w, p);
  return p;
}
void* small_block(world& w) {
  void* const p = allocate(*w.a, 1000);
  mark(w, p);
  return p;
}
void* block_of_a_borrowed_stream(world& w, std::size_t bytes) {
  w.handle.emplace(0);
  w.borrowed = borrow_stream(device(0), w.handle->handle());
  w.others.push_back(allocate(*w.borrowed, bytes));
  void* const p = allocate(*w.borrowed, bytes);
  mark(w, p);
  return p;
}
void* block_of_a_graph(world& w) {
  void* p = nullptr;
  w.held = graph::capture(*w.a, [&] { p = allocate(*w.a, 1_MiB); });
  mark(w, p);
  return p;
}
void* block_in_a_pool_asleep(world& w) {
  w.apart_pool.emplace("asleep");
  void* const p = w.apart_pool->allocate(*w.a, 1_MiB);
  mark(w, p);
  w.apart_pool->sleep();
  return p;
}
void* pinned_block(world& w) {
  w.pinned_block = pinned(4096);
  mark(w, w.pinned_block.data());
  return w.pinned_block.release();
}
// Many blocks of that size were freed so before: a thread gathers them.
void* one_of_many(world& w) {
  std::vector<void*> all;
  for (int i = 0; i < 40; ++i)
    all.push_back(allocate(*w.a, 512));
  void* const p = all.back();
  all.pop_back();
  for (void* one : all)
    deallocate(*w.users[0], one);
  launch(
      *w.users[0], {}, [](CUstream_st*) {}, [] {});
  return p;
}
void while_a_user_is_captured(world& w, std::function<void()> const& free_it) {
  w.held = graph::capture(*w.users[2], [&] {
    launch(
        *w.users[2], {}, [](CUstream_st*) {}, [] {});
    deallocate(allocate(*w.users[2], 1000));
    free_it();
  });
}

kind const kinds[] = {
    {"a_large_block_of_recorded_streams", large_block},
    {"a_small_block_of_recorded_streams", small_block},
    {"with_a_last_use", large_block, nullptr, true},
    {"with_a_fence_at_each_free", large_block, nullptr, true, {.fence_interval = 1}},
    {"in_one_order", large_block, nullptr, false, {.deterministic = true}},
    {"of_a_borrowed_home", [](world& w) { return block_of_a_borrowed_stream(w, 1_MiB); }},
    {"of_a_borrowed_home_and_small", [](world& w) { return block_of_a_borrowed_stream(w, 1000); }},
    {"on_a_shared_page",
     [](world& w) { return block_of_a_borrowed_stream(w, 1000); },
     nullptr,
     false,
     {.streams_with_pages = 1}},
    {"while_a_user_is_captured", large_block, while_a_user_is_captured},
    {"of_a_graph", block_of_a_graph},
    {"in_a_pool_that_sleeps", block_in_a_pool_asleep},
    {"of_pinned_memory", pinned_block},
    {"gathered_by_a_thread", one_of_many, nullptr, true},
    {"gathered_with_a_fence_each", one_of_many, nullptr, true, {.fence_interval = 1}},
};

using params = std::tuple<kind, hears>;
struct free_without_memory : ::testing::TestWithParam<params> {};

struct outcome {
  bool threw = false;
  std::uint64_t refused = 0;
  std::string before, between, after;
};

// One free whose k-th allocation is refused, then the free again.
outcome run(kind const& of, hears what, std::uint64_t k) {
  outcome out;
  world w(what, of.with);
  record_memory_history();
  void* const p = of.make(w);
  w.work_on_users();
  auto const free_it = [&] { of.last_use ? deallocate(*w.users[0], p) : deallocate(p); };
  auto const failing = [&] {
    out.before = w.state();
    for (auto const c :
         {driver::call::synchronize_device, driver::call::synchronize_stream, driver::call::synchronize_event})
      w.told->refuse({.of = c, .with = driver::code::failed, .more = driver::fault_injector::without_end});
    heap::fail(k, 0);
    try {
      free_it();
    } catch (std::bad_alloc const&) {
      out.threw = true;
    }
    out.refused = heap::stop();
    out.between = w.state();
    if (out.threw)
      free_it();
    out.after = w.state();
    w.told->forget_orders();
  };
  of.within ? of.within(w, failing) : failing();
  stop_memory_history();
  for (void* one : w.others)
    deallocate(one);
  for (auto const& one : w.users)
    one->synchronize();
  return out;
}

// Returns: the lines that differ.
std::string changes(std::string const& from, std::string const& to) {
  std::istringstream a(from), b(to);
  std::string out, was, is;
  for (;;) {
    bool const more_a = bool(std::getline(a, was)), more_b = bool(std::getline(b, is));
    if (!more_a && !more_b)
      return out;
    if (!more_a)
      was.clear();
    if (!more_b)
      is.clear();
    if (was != is)
      out += was + " -> " + is + '\n';
  }
}

// Regression: the observer, tools, the borrowed home and the history were told before the free threw, and told
// again by the next free.
TEST_P(free_without_memory, changes_nothing_if_it_throws) {
  if (std::getenv("WEIR_CHECK_RACES"))
    GTEST_SKIP() << "the checker does not go on without memory";
  auto const& [of, what] = GetParam();
  if (of.make == block_in_a_pool_asleep && what == hears::notices)
    GTEST_SKIP() << "a pool does not sleep while tools are told of its blocks";
  (void)run(of, what, 0);  // what the process and the thread keep
  outcome const alone = run(of, what, 0);
  EXPECT_NE(alone.before, alone.after);
  std::uint64_t refused = 1;
  for (std::uint64_t k = 1; refused; ++k) {
    outcome const tried = run(of, what, k);
    refused = tried.refused;
    EXPECT_EQ(changes(alone.before, tried.before), "") << "allocation " << k;
    EXPECT_EQ(changes(tried.threw ? tried.before : tried.after, tried.between), "") << "allocation " << k;
    // a free that goes through may lack a fence, which is recorded when another stream asks
    if (tried.threw) {
      EXPECT_EQ(changes(alone.after, tried.after), "") << "allocation " << k;
    }
  }
}

std::string name_of(::testing::TestParamInfo<params> const& info) {
  static char const* const told[] = {"", "_for_tools", "_for_a_checker"};
  return std::string(std::get<0>(info.param).name) + told[static_cast<int>(std::get<1>(info.param))];
}
INSTANTIATE_TEST_SUITE_P(of, free_without_memory,
                         ::testing::Combine(::testing::ValuesIn(kinds),
                                            ::testing::Values(hears::none, hears::notices, hears::observer)),
                         name_of);

// Each owner's end frees its block first in a capture, and the graph cannot keep it. Otherwise nothing says where
// the memory is, and the history counts it as freed.
TEST(refused_free, of_an_owners_end_is_told_and_undone) {
  std::vector<std::string> said;
  on_log([&](log_line const& l) {
    if (l.level == log_level::warning)
      said.push_back(l.str());
  });
  runtime own(simulated{.devices = 1, .memory = 64_MiB}, {.log = log_level::warning});
  runtime_guard const in(own);
  auto rank = communicator::create_all(std::vector{device(0)});
  struct owner {
    std::string_view name;
    std::function<std::pair<void*, std::function<void()>>(stream&)> make;  // its block, and what ends it
  };
  owner const owners[] = {
      {"buffer",
       [](stream& s) {
         auto its = std::make_shared<std::optional<buffer>>(std::in_place, s, 70'000);
         return std::pair<void*, std::function<void()>>{(*its)->data(), [its] { its->reset(); }};
       }},
      {"tensor",
       [](stream& s) {
         stream_guard const on(s);
         auto its = std::make_shared<std::optional<tensor>>(zeros({70'000}));
         return std::pair<void*, std::function<void()>>{(*its)->data(), [its] { its->reset(); }};
       }},
      {"gradient_buckets",
       [&](stream& s) {
         auto its = std::make_shared<std::optional<gradient_buckets>>(std::in_place, rank[0]);
         (*its)->add("weight", 70'000, float32);
         (*its)->build(s);
         return std::pair<void*, std::function<void()>>{(*its)->parameters().data, [its] { its->reset(); }};
       }},
  };
  for (owner const& one : owners) {
    SCOPED_TRACE(one.name);
    record_memory_history();
    stream s;
    auto const [block, end] = one.make(s);
    said.clear();
    {
      graph const left = graph::capture(s, [&, &block = block, &end = end] {
        fill(block, std::byte{7}, 1000);
        (void)simulation::of(own).fail_call("keep_with_graph", 1);
        end();
      });
    }
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("the end of its " + std::string(one.name) + " did not free the block at " +
                           base::address_text(block)),
              std::string::npos)
        << said[0];
    EXPECT_NE(said[0].find("weir::deallocate"), std::string::npos) << said[0];
    for (memory_event const& e : memory_history()) {
      EXPECT_FALSE(e.what == "free" && e.address == reinterpret_cast<std::uintptr_t>(block));
    }
    ASSERT_TRUE(find_block(block));
    deallocate(block);
    EXPECT_EQ(memory_history().back().what, "free");
  }
  stop_memory_history();
  on_log({});
}

}  // namespace
}  // namespace weir::faults
