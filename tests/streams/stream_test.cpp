// Streams through the public surface, on machines whose streams the test moves.
#include "weir/stream.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/sim.h"

#include <mutex>
#include <thread>

#include "streams/stream/stream_pool.h"
#include "tests/streams/stepped_machine.h"
#include "tests/support/memory_bench.h"

namespace weir {
namespace {

using stepped_streams = stepped_machine;

TEST_F(stepped_streams, a_waiting_stream_runs_after_the_other) {
  stream a, b;
  work(a, 1);
  b.ref().wait(a);
  work(b, 2);
  drain(b);
  EXPECT_TRUE(log.empty());
  drain(a);
  drain(b);
  EXPECT_EQ(log, (std::vector{1, 2}));
}

TEST_F(stepped_streams, a_stamp_is_complete_with_its_work) {
  stream a;
  EXPECT_TRUE(stamp{}.query());
  work(a, 1);
  stamp const s = a.ref().stamp();
  work(a, 2);
  EXPECT_FALSE(s.query());
  EXPECT_FALSE(a.ref().query());
  step(a);
  EXPECT_FALSE(s.query());  // the fence that answers was recorded after 2
  drain(a);
  EXPECT_TRUE(s.query());
  EXPECT_TRUE(a.ref().query());
}

TEST_F(stepped_streams, synchronize_of_a_stamp_completes_its_work) {
  stream a;
  work(a, 1);
  stamp const s = a.ref().stamp();
  s.synchronize();
  EXPECT_EQ(log, std::vector{1});
  work(a, 2);
  a.ref().synchronize();
  EXPECT_EQ(log, (std::vector{1, 2}));
  work(a, 3);
  synchronize();
  EXPECT_EQ(log, (std::vector{1, 2, 3}));
  EXPECT_TRUE(s.query());
}

TEST_F(stepped_streams, live_streams_differ_and_leases_go_back) {
  std::vector<stream> many;
  std::set<std::uint64_t> ids;
  for (int i = 0; i < 40; ++i) {
    many.emplace_back();
    ids.insert(many.back().ref().id());
  }
  EXPECT_EQ(ids.size(), 40u);
  many.clear();
  stream again;
  EXPECT_TRUE(ids.count(again.ref().id()));
  stream other{priority::high};
  EXPECT_FALSE(ids.count(other.ref().id()));
  stream elsewhere{1};
  EXPECT_FALSE(ids.count(elsewhere.ref().id()));
  EXPECT_EQ(elsewhere.ref().device(), device(1));
}

TEST_F(stepped_streams, the_longest_idle_lease_is_given_first) {
  auto a = std::make_unique<stream>();
  auto b = std::make_unique<stream>();
  auto const first = a->ref().id(), second = b->ref().id();
  b.reset();
  a.reset();
  stream x, y;
  EXPECT_EQ(x.ref().id(), second);
  EXPECT_EQ(y.ref().id(), first);
}

// What it was moved from is refused.
TEST_F(stepped_streams, a_stream_says_its_flags) {
  EXPECT_EQ(stream().flags(), stream_flags::non_blocking);
  EXPECT_EQ(stream(priority::high).flags(), stream_flags::non_blocking);
  EXPECT_EQ(stream(stream_flags::blocking).flags(), stream_flags::blocking);
  stream const elsewhere(1, stream_flags::blocking, priority::highest);
  EXPECT_EQ(elsewhere.ref().flags(), stream_flags::blocking);
  EXPECT_EQ(elsewhere.device(), device(1));
  EXPECT_EQ(default_stream().flags(), stream_flags::blocking);
  EXPECT_EQ(borrow_stream(0, nullptr).flags(), stream_flags::blocking);
  EXPECT_EQ(borrow_stream(0, reinterpret_cast<CUstream_st*>(2)).flags(), stream_flags::blocking);
  for (auto const f : {stream_flags::blocking, stream_flags::non_blocking}) {
    simulated_stream theirs(0, f);
    external_stream const known(0, theirs.handle());
    EXPECT_EQ(stream_ref(known).flags(), f);
    theirs.begin_capture();
    EXPECT_NE(refused<invalid_use>([&] { (void)stream_ref(known).flags(); }).find("captured"), std::string::npos);
    theirs.end_capture();
    EXPECT_EQ(stream_ref(known).flags(), f) << "the question has not spoiled the capture";
  }
}

// One of the other kind would be ordered with the legacy stream, or lack an order that the program relies on.
TEST_F(stepped_streams, a_lease_is_never_of_the_other_flags) {
  std::uint64_t blocking = 0, apart = 0;
  for (int turn = 0; turn < 3; ++turn) {
    for (auto const f : {stream_flags::blocking, stream_flags::non_blocking}) {
      stream const s{f};  // the one of the other kind is idle
      auto const kind = machine.kind_of(0, streams::clock_of(s).handle());
      ASSERT_TRUE(kind.ok());
      EXPECT_EQ(kind.value == driver::stream_kind::blocking, f == stream_flags::blocking);
      EXPECT_EQ(s.flags(), f);
      std::uint64_t& known = f == stream_flags::blocking ? blocking : apart;
      if (turn) {
        EXPECT_EQ(s.id(), known) << "leases go back";
      }
      known = s.id();
    }
  }
  EXPECT_NE(blocking, apart);
}

TEST_F(stepped_streams, a_moved_stream_keeps_its_lease) {
  stream a;
  auto const id = a.ref().id();
  stream b = std::move(a);
  EXPECT_EQ(b.ref().id(), id);
  stream c;
  EXPECT_NE(c.ref().id(), id);
  EXPECT_NE(refused<invalid_use>([&] { a.ref().wait(b); }), "");
}

TEST_F(stepped_streams, a_stream_may_outlive_its_runtime) {
  std::optional<stream> s;
  stamp last;
  {
    runtime other{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
    runtime_guard inside{other};
    s.emplace();
    last = s->ref().stamp();
  }
  EXPECT_TRUE(last.query());
  s.reset();
}

// A reference to a stream that is gone: the next owner of that stream must not find foreign work on it.
TEST_F(stepped_streams, a_reference_to_an_ended_stream_is_refused) {
  stream other;
  auto leased = std::make_unique<stream>();
  stream_ref const old = *leased;
  buffer b(1000), host = pinned(1000);
  old.wait(other);
  leased.reset();
  auto const refuses_all = [&](char const* state) {
    auto const says = [&](auto call) {
      EXPECT_NE(
          refused<invalid_use>(call).find("stream " + std::to_string(old.id()) + " of gpu:0, which was destroyed"),
          std::string::npos)
          << state;
    };
    says([&] {
      launch(
          old, {writes(b)}, [](CUstream_st*) {}, [] {});
    });
    says([&] { launch_host(old, [] {}); });
    says([&] { (void)weir::copy(old, b.data(), host.data(), 1000); });
    says([&] { old.wait(other); });
    says([&] { other.wait(old); });
    says([&] { old.wait(other.stamp()); });
    says([&] { (void)old.record_event(); });
    says([&] { old.synchronize(); });
    says([&] { (void)old.query(); });
    says([&] { (void)old.is_capturing(); });
    says([&] { (void)allocate(old, 1_MiB); });
    says([&] { set_stream(old); });
    says([&] { stream_guard const in{old}; });
    says([&] { b.set_stream(old); });
    says([&] { record_stream(b.data(), old); });
  };
  refuses_all("idle");
  stream const next;
  ASSERT_EQ(next.id(), old.id()) << "the same stream of the driver";
  EXPECT_FALSE(next.ref() == old);
  refuses_all("leased again");
  EXPECT_EQ(old.device(), device(0));
  EXPECT_NO_THROW(next.wait(other));
  EXPECT_TRUE(log.empty());
}

TEST_F(stepped_streams, an_ended_stream_is_current_no_more) {
  auto leased = std::make_unique<stream>();
  set_stream(*leased);
  leased.reset();
  stream const next;
  EXPECT_EQ(current_stream(), default_stream());
  {
    stream_guard const in{next};
    auto inner = std::make_unique<stream>();
    {
      stream_guard const deeper{*inner};
      EXPECT_EQ(current_stream(), inner->ref());
      inner.reset();
      stream const again;
      EXPECT_EQ(current_stream(), default_stream());
    }
    EXPECT_EQ(current_stream(), next.ref());
  }
  EXPECT_EQ(current_stream(), default_stream());
}

TEST_F(stepped_streams, an_ended_registration_is_refused) {
  auto registered = std::make_unique<external_stream>(gpu, nullptr);
  stream_ref const old = *registered;
  set_stream(old);
  registered.reset();
  EXPECT_NE(refused<invalid_use>([&] { old.synchronize(); }).find("whose registration has ended"), std::string::npos);
  EXPECT_NE(refused<invalid_use>([&] { launch_host(old, [] {}); }).find("whose registration has ended"),
            std::string::npos);
  EXPECT_EQ(current_stream(), default_stream());
}

TEST_F(stepped_streams, references_past_a_runtime_are_refused) {
  std::optional<stream> s;
  std::optional<buffer> b;
  buffer mine(1000), locked = pinned(1000);
  {
    runtime other{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
    runtime_guard inside{other};
    s.emplace(device(1));
    b.emplace(1000, buffer_options{.on = device(1)});
  }
  stream_ref const old = *s;
  auto const says = [&](auto call) {
    EXPECT_NE(refused<invalid_use>(call).find("of gpu:1, whose runtime has ended"), std::string::npos);
  };
  says([&] { old.synchronize(); });
  says([&] { s->synchronize(); });
  says([&] { (void)old.query(); });
  says([&] { old.wait(current_stream()); });
  says([&] { current_stream().wait(old); });
  says([&] { (void)old.record_event(); });
  says([&] { (void)weir::copy(old, mine.data(), locked.data(), 1000); });
  says([&] { launch_host(old, [] {}); });
  says([&] { (void)allocate(old, 1000); });
  says([&] { mine.record_stream(old); });
  EXPECT_EQ(old.device(), device(1));
  EXPECT_EQ(old.id(), s->id());
  EXPECT_EQ(old.stamp(), stamp{});
  auto const gone = [&](auto call) {
    EXPECT_NE(refused<invalid_use>(call).find("device memory of another runtime or library"), std::string::npos);
  };
  gone([&] { weir::copy(mine.data(), b->data(), 1000); });
  gone([&] { weir::copy(b->data(), locked.data(), 1000); });
  gone([&] { weir::fill(b->data(), std::byte{1}, 1000); });
  gone([&] {
    launch(
        current_stream(), {reads(b->data(), 1000)}, [](CUstream_st*) {}, [] {});
  });
  EXPECT_NE(refused<invalid_use>([&] { (void)b->set_stream(current_stream()); }), "");
  b.reset();
  s.reset();
}

TEST_F(stepped_streams, streams_of_two_runtimes_are_not_ordered) {
  runtime other{simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
  stream a;
  runtime_guard inside{other};
  stream b;
  std::string const said = refused<invalid_use>([&] { b.ref().wait(a); });
  EXPECT_NE(said.find(std::to_string(a.ref().id())), std::string::npos);
  EXPECT_NE(said.find(std::to_string(b.ref().id())), std::string::npos);
  EXPECT_NE(refused<invalid_use>([&] { set_stream(a); }), "");
  work(a, 1);
  std::string const at_a_stamp = refused<invalid_use>([&] { b.ref().wait(a.ref().stamp()); });
  EXPECT_NE(at_a_stamp.find("of runtime " + std::to_string(rt.get().id())), std::string::npos) << at_a_stamp;
}

TEST_F(stepped_streams, a_simulated_stream_has_no_native_handle) {
  stream a;
  refused<not_supported>([&] { a.ref().native(); });
  refused<invalid_use>([&] { external_stream f(gpu, reinterpret_cast<CUstream_st*>(64)); });
  EXPECT_NE(refused<invalid_use>([&] {
              external_stream f(gpu, reinterpret_cast<CUstream_st*>(2));
            }).find("per-thread default stream"),
            std::string::npos);
}

// It joins the default stream.
TEST_F(stepped_streams, the_legacy_stream_can_be_registered) {
  external_stream const legacy(gpu, nullptr), same(gpu, reinterpret_cast<CUstream_st*>(1));
  stream a;
  work(default_stream(), 1);
  work(legacy, 2);
  work(default_stream(), 3);
  work(same, 4);
  work(a, 5);
  EXPECT_FALSE(step(legacy)) << "it waits for the default stream";
  EXPECT_TRUE(step(a));
  default_stream().synchronize();
  EXPECT_EQ(log, (std::vector{5, 1, 2, 3}));
  stamp const s = stream_ref(same).stamp();
  a.wait(s);  // what weir records there covers the default stream's work too
  work(a, 6);
  a.synchronize();
  EXPECT_EQ(log, (std::vector{5, 1, 2, 3, 4, 6}));
}

TEST_F(stepped_streams, a_wait_that_the_driver_refused_is_an_error) {
  stream a, b;
  work(a, 1);
  control.fail_call("wait", 1, driver::code::failed);
  refused<driver_error>([&] { b.ref().wait(a); });
  b.ref().wait(a);
  b.ref().synchronize();
  EXPECT_EQ(log, std::vector{1});
}

TEST_F(stepped_streams, waits_on_a_lost_device_fail_and_others_go_on) {
  stream a{0}, b{1}, c{1};
  work(a, 1);
  stamp const s = a.ref().stamp();
  a.ref().wait(b);
  control.lose_device(0);
  refused<device_lost>([&] { b.ref().wait(s); });
  refused<device_lost>([&] { s.synchronize(); });
  refused<device_lost>([&] { (void)s.query(); });
  work(b, 2);
  c.ref().wait(b);
  c.ref().synchronize();
  EXPECT_EQ(log, std::vector{2});
}

TEST(streams, a_stream_has_its_references_members) {
  runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::stepped, .seed = 1}};
  runtime_guard in{rt};
  stream const a{1}, b{1};
  EXPECT_EQ(a.device(), device(1));
  EXPECT_EQ(a.id(), a.ref().id());
  EXPECT_EQ(a.stamp(), a.ref().stamp());
  std::vector<int> log;
  launch_host(a, [&] { log.push_back(1); });
  EXPECT_FALSE(a.query());
  event const e = a.record_event();
  b.wait(a);
  b.wait(e);
  b.wait(a.stamp());
  launch_host(b, [&] { log.push_back(2); });
  b.synchronize();
  EXPECT_EQ(log, (std::vector{1, 2}));
  EXPECT_TRUE(a.query());
  EXPECT_THROW(a.native(), not_supported);
}

// A stream there can neither be fenced nor waited for.
TEST(stream_pool, its_end_waits_for_a_device_without_fences) {
  struct : driver::fault_injector::watcher {
    bool done = false, done_before_the_end = false;
    void comes(driver::call c) noexcept override {
      if (c == driver::call::destroy_stream)
        done_before_the_end = done;
    }
  } seen;
  {
    tests::memory_bench bench({.devices = 1, .schedule = simulated::scheduling::stepped, .seed = 1});
    auto& line = bench.core.part<streams::stream_pool>().lease(0, driver::stream_kind::independent, priority::normal,
                                                               source_location::current());
    driver::work const sets_done{[](void* done) { *static_cast<bool*>(done) = true; }, nullptr, &seen.done};
    ASSERT_TRUE(bench.machine().enqueue(0, line.handle(), {}, sets_done).ok());
    auto& refusing = bench.control->refusing();
    refusing.watch(&seen);
    refusing.refuse({.of = driver::call::record});
    refusing.refuse({.of = driver::call::synchronize_stream});
  }
  EXPECT_TRUE(seen.done_before_the_end);
}

TEST(stream_threads, leases_are_exclusive_and_an_event_is_shared) {
  runtime rt{simulated{.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::threads, .seed = 1}};
  std::mutex lock;
  std::set<std::uint64_t> out;
  event shared[2];
  std::vector<std::thread> threads;
  for (int me = 0; me < 4; ++me) {
    threads.emplace_back([&, me] {
      runtime_guard in{rt};
      device_guard on{me % 2};
      event& e = shared[me % 2];
      for (int i = 0; i < 200; ++i) {
        stream s{i % 3 ? priority::normal : priority::high};
        {
          std::lock_guard const hold(lock);
          EXPECT_TRUE(out.insert(s.ref().id()).second) << "two leases of one stream";
        }
        stream_guard inside{s};
        e.record();
        current_stream().wait(shared[(me + 1) % 2]);
        (void)e.query();
        if (i % 16 == 0)
          e.synchronize();
        if (i % 64 == 0)
          synchronize();
        std::lock_guard const hold(lock);
        out.erase(s.ref().id());
      }
    });
  }
  for (auto& t : threads)
    t.join();
  EXPECT_EQ(rt.get().part<clock::clocks>().validate(), std::vector<std::string>{});
}

}  // namespace
}  // namespace weir
