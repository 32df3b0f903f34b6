// Guards out of order, owners past their runtime, mixed runtimes, ended or shared streams, odd environments.
// Threads: one, but where a test says so.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/defects/bad_input.h"
#include "weir/launch.h"
#include "weir/peer.h"
#include "weir/tensor.h"

namespace weir {
namespace {

using bad_moment = bad_input;

TEST_F(bad_moment, guards_out_of_order_and_on_another_thread) {
  stream s1{1};
  auto a = std::make_unique<device_guard>(1);
  auto b = std::make_unique<stream_guard>(s1);
  auto c = std::make_unique<device_guard>(2);
  a.reset();
  EXPECT_EQ(current_device(), device(2));
  std::thread([&] { c.reset(); }).join();
  b.reset();
  EXPECT_EQ(current_device(), device(0));
  EXPECT_EQ(current_stream(1), default_stream(1));
  std::unique_ptr<device_guard> orphan;
  std::thread([&] {
    runtime_guard g{*rt};
    orphan = std::make_unique<device_guard>(2);
  }).join();
  orphan.reset();
  EXPECT_EQ(current_device(), device(0));
  auto early = std::make_unique<stream_guard>(s1);
  { stream gone = std::move(s1); }  // destroys the guarded stream first
  early.reset();
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(bad_moment, guards_out_of_order_end_at_no_dead_runtime) {
  auto one = std::make_unique<runtime>(simulated{.devices = 1, .memory = 64_MiB});
  auto two = std::make_unique<runtime>(simulated{.devices = 2, .memory = 64_MiB});
  auto in_one = std::make_unique<runtime_guard>(*one);
  auto in_two = std::make_unique<runtime_guard>(*two);
  EXPECT_EQ(device_count(), 2);
  in_two.reset();
  in_one.reset();
  EXPECT_EQ(device_count(), 3);
}

TEST_F(bad_moment, owners_may_outlive_their_runtime) {
  buffer a(1000), b = pinned(1000), c(1000, {.on = cpu});
  tensor t = ones({10}), v = t.slice(0, 2, 5), p = zeros({3}, {.on = cpu, .kind = memory_kind::pinned});
  stream s;
  event e = s.ref().record_event();
  stamp const done = s.ref().stamp();
  void* const raw = allocate(10);
  auto const registration =
      std::make_unique<callback_registration>(on_out_of_memory([](memory_report const&) { return false; }));
  in.reset();
  rt.reset();
  runtime next(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard inside(next);
  EXPECT_TRUE(e.query());
  e.synchronize();
  EXPECT_TRUE(done.query());
  done.synchronize();
  EXPECT_FALSE(find_block(a.data()));
  refused<invalid_use>([&] { deallocate(raw); }, {"deallocate", text(raw)});
  refused<invalid_use>([&] { record_stream(raw, default_stream()); }, {"record_stream", text(raw)});
  default_stream().wait(e);
  default_stream().wait(done);
  e.record(default_stream(1));
  e.synchronize();
  a.reset();
  works_on();
}

TEST_F(bad_moment, two_runtimes_do_not_mix) {
  runtime other(simulated{.devices = 3, .memory = 64_MiB});
  std::optional<stream> theirs;
  buffer b, page;
  {
    runtime_guard inside{other};
    theirs.emplace(device(0));
    b = buffer(1000);
    page = pinned(1000);
    fill(b.data(), std::byte{5}, 1000);
    theirs->ref().synchronize();
  }
  stream mine;
  buffer a(1000);
  buffer my_page = pinned(1000);
  refused<invalid_use>([&] { set_stream(*theirs); }, {"set_stream", "runtime"});
  refused<invalid_use>([&] { stream_guard g{*theirs}; }, {"stream_guard", "runtime"});
  refused<invalid_use>([&] { mine.ref().wait(*theirs); }, {"wait", "runtime"});
  refused<invalid_use>(
      [&] {
        event e = theirs->ref().record_event();
        e.record(mine);
      },
      {"record"});
  launch_host(*theirs, [] {});
  refused<invalid_use>([&] { copy(a.data(), b.data(), 1000); }, {"copy", text(b.data())});
  refused<invalid_use>([&] { copy(b.data(), a.data(), 1000); }, {"copy", text(b.data())});
  refused<invalid_use>([&] { copy(*theirs, a.data(), b.data(), 1000); }, {"copy", text(a.data())});
  refused<invalid_use>([&] { fill(b.data(), std::byte{1}, 10); }, {"fill", text(b.data())});
  refused<invalid_use>(
      [&] {
        launch(
            mine, {writes(b)}, [](CUstream_st*) {}, [] {});
      },
      {"launch", text(b.data()), "device memory of another runtime"});
  refused<invalid_use>(
      [&] {
        launch(
            mine, {writes(page)}, [](CUstream_st*) {}, [] {});
      },
      {"launch", text(page.data()), "a block of another runtime"});
  refused<invalid_use>([&] { record_stream(b.data(), mine); }, {"record_stream", "runtime"});
  refused<invalid_use>([&] { record_stream(page.data(), mine); }, {"record_stream", "runtime"});
  refused<invalid_use>([&] { record_stream(a.data(), *theirs); }, {"record_stream", "runtime"});
  refused<invalid_use>([&] { record_stream(my_page.data(), *theirs); }, {"record_stream", "runtime"});
  refused<invalid_use>([&] { a.set_stream(*theirs); }, {"set_stream", "runtime"});
  refused<invalid_use>([&] { enable_peer_access(b.data(), 1); }, {text(b.data())});
  void* const p = a.release();
  refused<invalid_use>([&] { deallocate(*theirs, p); }, {"deallocate", "runtime"});
  void* const q = my_page.release();
  refused<invalid_use>([&] { deallocate(*theirs, q); }, {"deallocate", "runtime"});
  deallocate(p);
  deallocate(q);
  b.reset();  // finds its own runtime
  page.reset();
  runtime_guard inside{other};
  EXPECT_EQ(memory_allocated(), 0u);
  EXPECT_EQ(pinned_memory_stats().allocation.all.current, 0);
  EXPECT_EQ(simulation::of(other).findings(), std::vector<std::string>{});
}

TEST_F(bad_moment, a_stream_destroyed_with_work_finishes_it) {
  std::atomic<int> ran{0};
  stamp last;
  buffer a(1000);
  {
    stream s;
    for (int i = 0; i < 50; ++i)
      launch(
          s, {updates(a)}, [](CUstream_st*) {}, [&] { ++ran; });
    last = s.ref().stamp();
  }
  a.reset();
  last.synchronize();
  EXPECT_EQ(ran, 50);
}

TEST_F(bad_moment, one_stream_used_by_many_threads) {
  stream s;
  buffer total = pinned(sizeof(int));
  *total.data<int>() = 0;
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t) {
    all.emplace_back([&] {
      runtime_guard g{*rt};
      for (int i = 0; i < 50; ++i) {
        buffer mine(64);
        launch(
            s, {writes(mine), updates(total)}, [](CUstream_st*) {}, [p = total.data<int>()] { ++*p; });
        event const e = s.ref().record_event();
        if (i % 10 == 0)
          e.synchronize();
        mine.record_stream(s);
      }
    });
  }
  for (auto& t : all)
    t.join();
  s.ref().synchronize();
  EXPECT_EQ(*total.data<int>(), 8 * 50);
}

TEST_F(bad_moment, a_stream_that_was_moved_from) {
  stream s;
  stream t(std::move(s));
  stream_ref const none = s.ref();  // NOLINT
  buffer a(64), b(64), page = pinned(64);
  char host[64] = {};
  copy_item const item{a.data(), b.data(), 64};
  tensor x = zeros({4});
  refused<invalid_use>([&] { none.synchronize(); }, {"synchronize", "moved from"});
  refused<invalid_use>([&] { (void)none.query(); }, {"query", "moved from"});
  refused<invalid_use>([&] { none.wait(t); }, {"wait", "moved from"});
  refused<invalid_use>([&] { t.ref().wait(none); }, {"wait", "moved from"});
  refused<invalid_use>([&] { (void)none.record_event(); }, {"record", "moved from"});
  refused<invalid_use>([&] { (void)none.is_capturing(); }, {"moved from"});
  refused<invalid_use>([&] { (void)none.native(); }, {"moved from"});
  refused<invalid_use>([&] { set_stream(none); }, {"set_stream", "moved from"});
  refused<invalid_use>([&] { stream_guard g{none}; }, {"stream_guard", "moved from"});
  refused<invalid_use>([&] { (void)allocate(none, 64); }, {"allocate", "moved from"});
  refused<invalid_use>([&] { deallocate(none, a.data()); }, {"deallocate", "moved from"});
  refused<invalid_use>([&] { record_stream(a.data(), none); }, {"record_stream", "moved from"});
  refused<invalid_use>([&] { page.record_stream(none); }, {"record_stream", "moved from"});
  refused<invalid_use>([&] { a.set_stream(none); }, {"set_stream", "moved from"});
  refused<invalid_use>([&] { x.record_stream(none); }, {"record_stream", "moved from"});
  refused<invalid_use>([&] { copy(none, a.data(), host, 64); }, {"copy", "moved from"});
  refused<invalid_use>([&] { copy(none, std::span(&item, 1)); }, {"copy", "moved from"});
  refused<invalid_use>(
      [&] {
        launch(
            none, {reads(a)}, [](CUstream_st*) {}, [] {});
      },
      {"launch", "moved from"});
  refused<invalid_use>([&] { launch_host(none, [] {}); }, {"launch_host", "moved from"});
  refused<invalid_use>([&] { launch_host(t, {}); }, {"launch_host", "empty"});
}

TEST_F(bad_moment, a_call_inside_a_host_function_says_where_it_is) {
  stream s;
  buffer block(64);
  char host[64] = {};
  event e;
  e.record(s);
  std::vector<std::string> said;
  launch_host(s, [&] {
    runtime_guard const inside{*rt};
    for (std::function<void()> const& call : std::initializer_list<std::function<void()>>{
             [&] { synchronize(); }, [&] { s.synchronize(); }, [&] { copy(block.data(), host, 64); },
             [&] { copy(s, host, block.data(), 64); }, [&] { fill(block.data(), std::byte{1}, 64); },
             [&] {
               launch(
                   s, {writes(block)}, [](CUstream_st*) {}, [] {});
             },
             [&] { launch_host(s, [] {}); }, [&] { e.record(s); }}) {
      try {
        call();
        said.emplace_back("nothing was thrown");
      } catch (invalid_use const& refused) {
        said.emplace_back(refused.what());
      }
    }
  });
  s.synchronize();
  ASSERT_EQ(said.size(), 8u);
  for (std::string const& one : said) {
    EXPECT_NE(one.find("called from a host function of a stream, where CUDA allows no driver call. Return from the "
                       "function first"),
              one.npos)
        << one;
    EXPECT_EQ(one.find("capture"), one.npos) << one;
  }
}

TEST_F(bad_moment, an_event_never_recorded_or_moved_from) {
  event e;
  event f(std::move(e));
  for (event* one : {&e, &f}) {
    EXPECT_TRUE(one->query());
    one->synchronize();
    default_stream().wait(*one);
    EXPECT_EQ(one->native(), nullptr);
  }
  refused<invalid_use>([&] { (void)e.elapsed_time(f); }, {"elapsed_time"});
  refused<invalid_use>([&] { (void)f.elapsed_time(e); }, {"elapsed_time"});
  e.record();
  e.synchronize();
}

TEST_F(bad_moment, unknown_environment_values_name_the_nearest_one) {
  in.reset();
  auto const with = [](char const* name, char const* value, auto f) {
    char const* const was = std::getenv(name);
    std::string const kept = was ? was : "";
    ::setenv(name, value, 1);
    std::string said;
    try {
      f();
      ADD_FAILURE() << "nothing was thrown for " << name << "=" << value;
    } catch (invalid_use const& e) {
      said = std::string(e.operation()) + " | " + std::string(e.operands()) + " | " + std::string(e.remedy());
    }
    if (was)
      ::setenv(name, kept.c_str(), 1);
    else
      ::unsetenv(name);
    return said;
  };
  auto const has = [](std::string const& all, char const* part) {
    return all.find(part) != all.npos ? testing::AssertionSuccess()
                                      : testing::AssertionFailure() << part << " in " << all;
  };
  auto const open = [] { runtime r; };
  EXPECT_TRUE(has(with("WEIR_DEVICES", "smi:2", open), "sim"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "CUDA", open), "CUDA"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "sim:-1", open), "-1"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "sim:99999999999999999999", open), "99999999999999999999"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "sim:", open), "sim:"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "sim:2:", open), "sim:2:"));
  EXPECT_TRUE(has(with("WEIR_DEVICES", "sim:2:4:8", open), "4:8"));
  EXPECT_TRUE(has(with("WEIR_CONF", "pined_limit:1GiB", open), "Did you mean pinned_limit?"));
  EXPECT_TRUE(has(with("WEIR_CONF", "launch_blockin:1", open), "Did you mean launch_blocking?"));
  EXPECT_TRUE(has(with("WEIR_CONF", "device_limit:-1", open), "-1"));
  EXPECT_TRUE(has(with("WEIR_CONF", "device_limit:1GB", open), "1GB"));
  EXPECT_TRUE(has(with("WEIR_CONF", "device_limit:", open), "device_limit"));
  in.emplace(*rt);
  refused<invalid_use>([] { runtime r(simulated{.devices = 0}); }, {"devices = 0"});
  refused<invalid_use>([] { runtime r(simulated{.devices = 65}); }, {"devices = 65"});
  refused<invalid_use>([] { runtime r(simulated{.devices = -1}); }, {"devices = -1"});
}

TEST_F(bad_moment, the_simulated_machine_refuses_unknown_names) {
  simulation sim = simulation::of(*rt);
  refused<invalid_use>([&] { sim.fail_call("mpa", 1); }, {"mpa"});
  refused<invalid_use>([&] { sim.fail_call("map", 0); }, {"map"});
  refused<invalid_use>([&] { sim.lose_device(9); }, {"gpu:9"});
  refused<invalid_use>([&] { sim.lose_device(cpu); }, {"cpu"});
  refused<invalid_use>([&] { sim.disconnect(0, 9); }, {"gpu:9"});
  refused<invalid_use>([&] { sim.consume_memory(9, 1); }, {"gpu:9"});
}

TEST_F(bad_moment, a_lost_device_refuses_by_name_and_the_others_work) {
  buffer a(1000, {.on = 2}), b(1000, {.on = 0});
  stream s{2};
  simulation::of(*rt).lose_device(2);
  char host[1000] = {};
  refused<device_lost>([&] { copy(a.data(), host, 1000); }, {"copy", "gpu:2"});
  refused<device_lost>([&] { copy(b.data(), a.data(), 1000); }, {"copy"});
  refused<device_lost>([&] { buffer c(1000, {.on = 2}); }, {"allocate", "gpu:2"});
  refused<device_lost>([&] { s.ref().synchronize(); }, {"synchronize", "gpu:2"});
  refused<device_lost>([&] { synchronize(2); }, {"synchronize", "gpu:2"});
  refused<device_lost>(
      [&] {
        launch(
            s, {}, [](CUstream_st*) {}, [] {});
      },
      {"launch", "gpu:2"});
  refused<device_lost>([&] { (void)zeros({4}, {.on = 2}); }, {"gpu:2"});
}

}  // namespace
}  // namespace weir
