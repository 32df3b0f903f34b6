// Every public call that can throw names its caller's line. The lists cover include/weir/*.h, except
// operator<< of a tensor and pinned_allocator in a container, which the standard library calls.
// Threads: one.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <sstream>

#include "tests/defects/bad_input.h"
#include "tests/defects/belongings.h"
#include "tests/defects/named_calls.h"
#include "tests/support/sanitized.h"
#include "weir/collective.h"
#include "weir/half.h"
#include "weir/launch.h"
#include "weir/parallel_for.h"
#include "weir/peer.h"
#include "weir/pool.h"
#include "weir/share.h"
#include "weir/tensor.h"
#include "weir/timeline.h"

namespace weir {
namespace {

// Calls that need the thread's runtime. Each fails if no runtime can be created, and in a forked child.
std::vector<named_call> of_the_current_runtime() {
  static unsigned char host[64];
  static std::ostringstream out;
  static tensor const table = ones({2, 2}, {.on = cpu});
  static device const both[] = {0, 1};
  return {
      CALL(device_count()),
      CALL(current_device()),
      CALL(set_device(0)),
      CALL(get_device_properties()),
      CALL(mem_get_info()),
      CALL(synchronize()),
      MAKE(device_guard const g(0)),
      CALL(allocate(1)),
      CALL(buffer(1)),
      CALL(buffer(1, {.kind = memory_kind::pinned})),
      CALL(pinned(1)),
      CALL(pin_memory(std::as_bytes(std::span(host)))),
      CALL(reserve_pinned_memory(1)),
      CALL(empty_pinned_cache()),
      MAKE(registered_host_memory const r{std::as_writable_bytes(std::span(host))}),
      CALL(empty_cache()),
      CALL(set_memory_limit(0)),
      CALL(set_per_process_memory_fraction(0.5)),
      CALL(on_out_of_memory([](memory_report const&) { return false; })),
      CALL(memory_allocated()),
      CALL(max_memory_allocated()),
      CALL(memory_reserved()),
      CALL(max_memory_reserved()),
      CALL(memory_stats()),
      CALL(pinned_memory_stats()),
      CALL(reset_peak_memory_stats()),
      CALL(reset_accumulated_memory_stats()),
      CALL(memory_summary()),
      CALL(memory_metrics()),
      CALL(memory_by_stream()),
      CALL(current_memory_report()),
      CALL(memory_snapshot()),
      CALL(dump_memory_snapshot("/dev/null")),
      CALL(dump_memory_page("/dev/null")),
      CALL(memory_history()),
      CALL(memory_by_line()),
      MAKE(memory_tracker const t(out)),
      CALL(race_reports()),
      CALL(require_no_races()),
      CALL(on_race({})),
      CALL(stream()),
      CALL(stream(device(0))),
      MAKE(external_stream const f(0, nullptr)),
      CALL(default_stream()),
      CALL(current_stream()),
      CALL(event().record()),
      CALL(copy(host, host + 32, 8)),
      CALL(fill(host, std::byte{0}, 1)),
      CALL(explain_copy(host, host + 32, 8)),
      MAKE(link_sharing_guard const l(both)),
      CALL(links()),
      CALL(can_access_peer(0, 1)),
      CALL(enable_peer_access(host, 1)),
      CALL(enable_peer_access(buffer().data<int>(), 1)),
      CALL(enable_peer_access(device(0), {1})),
      CALL(communicator::create_all(both)),
      CALL(exportable_buffer(1)),
      CALL(share_pool()),
      CALL(empty({1})),
      CALL(zeros({1})),
      CALL(ones({1})),
      CALL(full({1}, 2)),
      CALL(arange(1)),
      CALL(rand({1})),
      CALL(randn({1})),
      CALL(manual_seed(1)),
      CALL(tensor_of({1.f, 2.f})),
      CALL(tensor_of({{1.f}, {2.f}})),
      CALL(ones({1}, {.on = cpu, .kind = memory_kind::pinned})),
      CALL(rand_like(table)),
      CALL(randn_like(table)),
      CALL(buffer(64, {.on = cpu})),
      CALL(tensor::from_buffer(buffer(), {0}, float32)),
      CALL(tensor::from_blob(host, {2}, float32, gpu)),
      CALL(table.to(gpu)),
      CALL(table.gpu()),
      CALL(table.pin_memory()),
      CALL(table.storage().pin_memory()),
      CALL(timeline_summary()),
      CALL(dump_timeline("/dev/null")),
  };
}

struct locations : testing::Test {};

// Never with a line of weir's own source.
TEST_F(locations, a_wrong_environment_is_reported_at_its_first_use) {
  for (auto const& [name, value] :
       {std::pair{"WEIR_CONF", "nonsense:1"}, std::pair{"WEIR_DEVICES", "nonsense"},
        std::pair{"WEIR_CHECK_RACES", "nonsense"}, std::pair{"WEIR_SIM_GUARD", "nonsense"}}) {
    EXPECT_EXIT(
        {
          ::setenv(name, value, 1);
          auto calls = of_the_current_runtime();
          calls.push_back(CALL(runtime::current()));
          calls.push_back(CALL(runtime()));
          if (name == std::string_view("WEIR_CONF"))
            calls.push_back(CALL(options::from_environment()));
          if (name == std::string_view("WEIR_CHECK_RACES"))
            calls.push_back(CALL(runtime(simulated{})));
          std::string const wrong = wrong_among(calls, true);
          std::fputs(wrong.c_str(), stderr);
          std::_Exit(wrong.empty() ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << name;
  }
}

TEST(lost_device, a_refusal_has_the_callers_line) {
  runtime rt(simulated{.devices = 2, .memory = 64_MiB});
  runtime_guard const in(rt);
  stream s;
  event e, never;
  e.record(s);
  buffer block(1000);
  tensor t = ones({2, 2}), h = ones({2, 2}, {.on = cpu});
  launch_host(s, [] {});
  stamp const last = s.stamp();
  event const late = s.record_event();
  unsigned char host[1000];
  simulation::of(rt).lose_device(0);
  EXPECT_EQ("", wrong_among({
                    CALL(mem_get_info()),
                    CALL(synchronize()),
                    CALL(last.query()),
                    CALL(last.synchronize()),
                    CALL(s.query()),
                    CALL(s.synchronize()),
                    CALL(late.query()),
                    CALL(late.synchronize()),
                    CALL(s.ref().is_capturing()),
                    CALL(never.record(s)),
                    CALL(copy(block.data(), host, 1000)),
                    CALL(fill(block.data(), std::byte{1}, 1000)),
                    CALL(launch(
                        s, {}, [](CUstream_st*) {}, [] {})),
                    CALL(launch_host(s, [] {})),
                    CALL(ones({4})),
                    CALL(full({4}, 1)),
                    CALL(zeros({4})),
                    CALL(rand({4})),
                    CALL(arange(4)),
                    CALL(t.fill_(1)),
                    CALL(t.add_(t)),
                    CALL(add(t, t)),
                    CALL(sum(t)),
                    CALL(matmul(t, t)),
                    CALL(t.clone()),
                    CALL(t.cpu()),
                    CALL(t.item<float>()),
                    CALL(t.str()),
                    CALL(h.to(gpu)),
                    CALL(t.copy_(h)),
                }));
}

TEST(lost_device, the_first_use_of_one_has_the_callers_line) {
  auto const refused_first = [](std::vector<named_call> const& calls) {
    std::string wrong;
    for (named_call const& one : calls) {
      runtime rt(simulated{.devices = 2, .memory = 64_MiB});
      runtime_guard const in(rt);
      simulation::of(rt).lose_device(0);
      wrong += wrong_among({one});
    }
    return wrong;
  };
  unsigned char host[8];
  EXPECT_EQ("", refused_first({CALL(ones({4})), CALL(allocate(1)), CALL(buffer(1)), CALL(default_stream()),
                               CALL(current_stream()), CALL(stream()), CALL(set_device(0)), CALL(synchronize()),
                               CALL(mem_get_info()), CALL(set_memory_limit(1)), CALL(memory_summary()),
                               CALL(current_memory_report()), CALL(event().record()), MAKE(device_guard const g(0)),
                               CALL(exportable_buffer(1)), CALL(fill(host, std::byte{1}, 1))}));
}

struct forked_process : own_process {};

TEST_F(forked_process, a_childs_errors_have_the_childs_lines) {
  EXPECT_CLEAN_END({
    of_program.fill();
    stream& s = *of_program.s;
    event& e = *of_program.e;
    stamp const last = s.stamp();
    buffer& block = *of_program.block;
    tensor& t = of_program.t;
    share_pool pool;
    unsigned char host[8];
    auto const in_the_child = [&] {
      ::alarm(tests::sanitized ? 4 : 20);
      auto calls = of_the_current_runtime();
      for (named_call& one : std::vector<named_call>{CALL(s.query()),
                                                     CALL(s.synchronize()),
                                                     CALL(s.wait(last)),
                                                     CALL(s.wait(e)),
                                                     CALL(s.wait(s)),
                                                     CALL(s.record_event()),
                                                     CALL(s.native()),
                                                     CALL(s.ref().is_capturing()),
                                                     CALL(last.query()),
                                                     CALL(last.synchronize()),
                                                     CALL(e.query()),
                                                     CALL(e.synchronize()),
                                                     CALL(e.record(s)),
                                                     CALL(set_stream(s)),
                                                     MAKE(stream_guard const g(s)),
                                                     CALL(allocate(s, 1)),
                                                     CALL(record_stream(host, s)),
                                                     CALL(deallocate(s, nullptr), allocate(s, 1)),
                                                     CALL(copy(s, block.data(), host, 8)),
                                                     CALL(launch(
                                                         s, {}, [](CUstream_st*) {}, [] {})),
                                                     CALL(launch_host(s, [] {})),
                                                     CALL(parallel_for(s, 1, {}, [](size_t) {})),
                                                     CALL(enable_peer_access(s, {1})),
                                                     CALL(memory_readers(s)),
                                                     CALL(t.fill_(1)),
                                                     CALL(t.add_(t)),
                                                     CALL(t.cpu()),
                                                     CALL(t.clone()),
                                                     CALL(t.item<float>(), t[0].item<float>()),
                                                     CALL(t.str()),
                                                     CALL(pool.allocate(1))}) {
        calls.push_back(one);
      }
      std::string const wrong = wrong_among(calls);
      std::fputs(wrong.c_str(), stderr);
      std::_Exit(wrong.empty() ? 0 : 1);
    };
    int status = -1;
    // AddressSanitizer takes no lock of its allocator around a fork. The child never gets one that a thread of
    // the machine held, so a child that its alarm ends is forked again.
    for (int tries = tests::sanitized ? 8 : 1; tries > 0; --tries) {
      pid_t const child = ::fork();
      if (child == 0)
        in_the_child();
      ::waitpid(child, &status, 0);
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM)
        break;
    }
    std::_Exit(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 7 : 1);
  });
}

}  // namespace
}  // namespace weir
