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

struct named_call {
  char const* text;
  std::function<void()> make;
};
#define CALL(...) \
  named_call { #__VA_ARGS__, [&] { static_cast<void>(__VA_ARGS__); } }
#define MAKE(...) \
  named_call { #__VA_ARGS__, [&] { __VA_ARGS__; } }

// The calls that threw nothing, or from another line, one a line. none_too: an error may name no line.
std::string wrong_among(std::vector<named_call> const& calls, bool none_too = false) {
  std::string wrong;
  for (named_call const& one : calls) {
    try {
      one.make();
      wrong += std::string(one.text) + ": nothing was thrown\n";
    } catch (error const& e) {
      source_location const at = e.where();
      std::string_view const file = at.file_name() ? at.file_name() : "";
      if (!(file.empty() && none_too) && !file.ends_with("locations_test.cpp"))
        wrong += std::string(one.text) + ": " + std::string(file) + ":" + std::to_string(at.line()) + "\n";
    } catch (std::exception const& e) {
      wrong += std::string(one.text) + ": " + e.what() + "\n";
    }
  }
  return wrong;
}

// Calls that need the thread's runtime. Each fails if no runtime can be created, and in a forked child.
std::vector<named_call> of_the_current_runtime() {
  static unsigned char host[64];
  static std::ostringstream out;
  static tensor const table = ones({2, 2}, {.on = cpu});
  static device const both[] = {0, 1};
  return {
      CALL(device_count()), CALL(current_device()), CALL(set_device(0)), CALL(get_device_properties()),
      CALL(mem_get_info()), CALL(synchronize()),
      MAKE(device_guard const g(0)),
      CALL(allocate(1)), CALL(buffer(1)), CALL(buffer(1, {.kind = memory_kind::pinned})), CALL(pinned(1)),
      CALL(pin_memory(std::as_bytes(std::span(host)))),
      CALL(reserve_pinned_memory(1)), CALL(empty_pinned_cache()),
      MAKE(registered_host_memory const r{std::as_writable_bytes(std::span(host))}), CALL(empty_cache()),
      CALL(set_memory_limit(0)), CALL(set_per_process_memory_fraction(0.5)),
      CALL(on_out_of_memory([](memory_report const&) { return false; })),
      CALL(memory_allocated()), CALL(max_memory_allocated()), CALL(memory_reserved()), CALL(max_memory_reserved()),
      CALL(memory_stats()),
      CALL(pinned_memory_stats()), CALL(reset_peak_memory_stats()), CALL(reset_accumulated_memory_stats()),
      CALL(memory_summary()),
      CALL(memory_metrics()), CALL(memory_by_stream()), CALL(current_memory_report()), CALL(memory_snapshot()),
      CALL(dump_memory_snapshot("/dev/null")),
      CALL(dump_memory_page("/dev/null")), CALL(memory_history()), CALL(memory_by_line()),
      MAKE(memory_tracker const t(out)),
      CALL(race_reports()), CALL(require_no_races()), CALL(on_race({})),
      CALL(stream()), CALL(stream(device(0))), MAKE(external_stream const f(0, nullptr)), CALL(default_stream()),
      CALL(current_stream()), CALL(event().record()),
      CALL(copy(host, host + 32, 8)), CALL(fill(host, std::byte{0}, 1)), CALL(explain_copy(host, host + 32, 8)),
      MAKE(link_sharing_guard const l(both)),
      CALL(links()), CALL(can_access_peer(0, 1)), CALL(enable_peer_access(host, 1)),
      CALL(enable_peer_access(buffer().data<int>(), 1)), CALL(enable_peer_access(device(0), {1})),
      CALL(communicator::create_all(both)), CALL(exportable_buffer(1)), CALL(share_pool()),
      CALL(empty({1})), CALL(zeros({1})), CALL(ones({1})), CALL(full({1}, 2)), CALL(arange(1)), CALL(rand({1})),
      CALL(randn({1})), CALL(manual_seed(1)),
      CALL(tensor_of({1.f, 2.f})), CALL(tensor_of({{1.f}, {2.f}})),
      CALL(ones({1}, {.on = cpu, .kind = memory_kind::pinned})),
      CALL(rand_like(table)), CALL(randn_like(table)),
      CALL(buffer(64, {.on = cpu})), CALL(tensor::from_buffer(buffer(), {0}, float32)),
      CALL(tensor::from_blob(host, {2}, float32, gpu)), CALL(table.to(gpu)), CALL(table.gpu()),
      CALL(table.pin_memory()), CALL(table.storage().pin_memory()), CALL(timeline_summary()),
      CALL(dump_timeline("/dev/null")),
  };
}

struct locations : testing::Test {};

// Never with a line of weir's own source.
TEST_F(locations, a_wrong_environment_is_reported_at_its_first_use) {
  for (auto const& [name, value] :
       {std::pair{"WEIR_CONF", "nonsense:1"}, std::pair{"WEIR_DEVICES", "nonsense"},
        std::pair{"WEIR_CHECK_RACES", "nonsense"}, std::pair{"WEIR_SIM_GUARD", "nonsense"}}) {
    EXPECT_EXIT({
      ::setenv(name, value, 1);
      auto calls = of_the_current_runtime();
      calls.push_back(CALL(runtime::current()));
      calls.push_back(CALL(runtime()));
      if (name == std::string_view("WEIR_CONF")) calls.push_back(CALL(options::from_environment()));
      if (name == std::string_view("WEIR_CHECK_RACES")) calls.push_back(CALL(runtime(simulated{})));
      std::string const wrong = wrong_among(calls, true);
      std::fputs(wrong.c_str(), stderr);
      std::_Exit(wrong.empty() ? 0 : 1);
    }, testing::ExitedWithCode(0), "") << name;
  }
}

// A second runtime with objects, for use in the wrong place.
struct elsewhere {
  runtime rt{simulated{.devices = 2, .memory = 64_MiB}};
  std::optional<buffer> block;
  std::optional<stream> line;
  elsewhere() {
    runtime_guard const in(rt);
    block.emplace(1000);
    line.emplace();
  }
  ~elsewhere() {
    runtime_guard const in(rt);
    block.reset(), line.reset();
  }
};

struct wrong_arguments : bad_input {};

TEST_F(wrong_arguments, devices_that_are_not_there) {
  EXPECT_EQ("", wrong_among({
    CALL(device("gpu:x")), CALL(set_device(9)), CALL(get_device_properties(9)), CALL(mem_get_info(9)),
    CALL(synchronize(9)), MAKE(device_guard const g(9)),
    CALL(buffer(1, {.on = 9})), CALL(empty_cache(9)), CALL(set_memory_limit(0, 9)),
    CALL(set_per_process_memory_fraction(0.5, 9)), CALL(set_per_process_memory_fraction(2)),
    CALL(memory_allocated(9)), CALL(max_memory_allocated(9)), CALL(memory_reserved(9)), CALL(max_memory_reserved(9)),
    CALL(memory_stats(9)),
    CALL(reset_peak_memory_stats(9)), CALL(reset_accumulated_memory_stats(9)), CALL(memory_summary(9)),
    CALL(memory_by_stream(9)), CALL(current_memory_report(9)),
    CALL(memory_snapshot(9)), CALL(memory_history(9)), CALL(memory_by_line(9)),
    CALL(stream(device(9))), MAKE(external_stream const f(9, nullptr)), CALL(default_stream(9)),
    CALL(current_stream(9)),
    CALL(can_access_peer(0, 9)), CALL(enable_peer_access(this, 9)), CALL(enable_peer_access(device(9), {0})),
    CALL(enable_peer_access(default_stream(), {9})),
    CALL(communicator::create_all({})), CALL(exportable_buffer(1, 9)), CALL(share_pool({.on = 9})),
    CALL(empty({1}, {.on = 9})),
    CALL(tensor::from_blob(this, {1}, float32, 9)), CALL(ones({1}, {.on = cpu}).to(device(9))),
    CALL(ones({1}).peer_view(9)),
    CALL(runtime(simulated{.devices = 0})), CALL(runtime(simulated{}, {.epsilon = 7})),
  }));
}

TEST_F(wrong_arguments, memory_streams_and_events) {
  elsewhere other;
  unsigned char host[64];
  buffer block(1000), bytes = pinned(1000);
  stream s, gone;
  stream const taken = std::move(gone);
  event once, timed{{.timing = true}};
  once.record(s);
  copy_item const item{block.data(), host, 2000};
  auto const nothing = [](CUstream_st*) {};
  EXPECT_EQ("", wrong_among({
    CALL(allocate(SIZE_MAX)), CALL(allocate(1, 3)), CALL(allocate(s, 1, 3)), CALL(allocate(gone, 1)),
    CALL(deallocate(host)), CALL(deallocate(s, host)), CALL(record_stream(host, s)),
    CALL(buffer(1, {.alignment = 3})), CALL(block.host<int>()), CALL(bytes.set_stream(s)),
    CALL(block.set_stream(*other.line)), CALL(block.record_stream(*other.line)),
    CALL(buffer::adopt(host)), CALL(pinned(SIZE_MAX)), CALL(reserve_pinned_memory(SIZE_MAX)),
    MAKE(registered_host_memory const r{std::span<std::byte>(static_cast<std::byte*>(nullptr), 8)}),
    CALL(s.wait(*other.line)), CALL(s.wait(other.line->stamp())), CALL(s.ref().wait(*other.line)),
    CALL(s.ref().wait(other.line->stamp())),
    CALL(gone.query()), CALL(gone.synchronize()), CALL(gone.record_event()), CALL(gone.wait(s)),
    CALL(gone.wait(once)), CALL(gone.ref().is_capturing()), CALL(gone.ref().query()),
    CALL(gone.ref().synchronize()), CALL(gone.ref().record_event()),
    CALL(s.native()), CALL(s.ref().native()), MAKE(external_stream const f(0, reinterpret_cast<CUstream_st*>(64))),
    CALL(set_stream(*other.line)), MAKE(stream_guard const g(*other.line)),
    CALL(once.record(default_stream(1))), CALL(once.elapsed_time(timed)), CALL(once.native()),
    CALL(copy(block.data(), host, 2000)), CALL(copy(s, block.data(), host, 2000)),
    CALL(copy(s, std::span(&item, 1))), CALL(fill(block.data(), std::byte{1}, 2000)),
    CALL(explain_copy(block.data(), nullptr, 1)), CALL(fill(gone, host, std::byte{1}, 1)), CALL(buffer(gone, 1)),
    CALL(exportable_buffer(gone, 1)), CALL(zeros(gone, {1})), CALL(arange(gone, 1)), CALL(tensor_of(gone, {1, 2})),
    CALL(ones_like(gone, tensor())), CALL(rand(gone, {1})), CALL(zeros(s, {1}, {.on = cpu})),
    CALL(launch(s, {reads(block.data(), 2000)}, nothing, [] {})), CALL(launch(gone, {}, nothing, [] {})),
    CALL(launch_host(s, {})),
    CALL(parallel_for(s, 1, {reads(block.data(), 2000)}, [](size_t) {})), CALL(memory_readers(gone)),
    CALL(record_memory_history({.events = 0})), CALL(dump_memory_snapshot("/nowhere/x")),
    CALL(dump_memory_page("/nowhere/x")), CALL(record_timeline({.spans = 0})), CALL(dump_timeline("/nowhere/x")),
  }));
}

TEST_F(wrong_arguments, tensors) {
  tensor const t = ones({2, 3}), h = ones({2, 3}, {.on = cpu}), whole = zeros({2}, {.dtype = int64}), none;
  tensor to = ones({2, 3});
  EXPECT_EQ("", wrong_among({
    CALL(shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), CALL(shape(std::vector<std::int64_t>(9, 1))), CALL(shape{-1}.numel()),
    CALL(ones({1, 1, 1, 1, 1, 1, 1, 1, 1})), CALL(ones({-1})),
    CALL(empty({-1})), CALL(zeros({-1})), CALL(full({-1}, 1)), CALL(arange(-1)), CALL(rand({-1})), CALL(randn({-1})),
    CALL(tensor_of({{1.f}, {1.f, 2.f}})),
    CALL(empty_like(none)), CALL(zeros_like(none)), CALL(ones_like(none)), CALL(full_like(none, 1)),
    CALL(rand_like(none)), CALL(randn_like(none)),
    CALL(tensor::from_buffer(buffer(4), {2}, float32)), CALL(tensor::from_storage(t.storage(), {99}, float32)),
    CALL(tensor::from_blob(nullptr, {2}, float32, cpu)),
    CALL(t.size(9)), CALL(t.data<double>()), CALL(t.data<float16_t>()), CALL(t.host<float>()), CALL(t.view({5})),
    CALL(t.reshape({5})), CALL(t.transpose(0, 9)), CALL(ones({2}).t()), CALL(t.slice(0, 2, 1)),
    CALL(t[9]), CALL(t[0][9]), CALL(none.detach()), CALL(none.contiguous()), CALL(none.clone()), CALL(none.to(gpu)),
    CALL(none.to(float64)), CALL(h.peer_view(0)), CALL(none.gpu()), CALL(none.cpu()), CALL(t.pin_memory()),
    CALL(t.storage().pin_memory()), CALL(to.copy_(whole)),
    CALL(t.record_stream([] { stream a; stream const b = std::move(a); return a.ref(); }())), CALL(t.item<float>()),
    CALL(t.item<int>()),
    CALL(tensor().fill_(1)), CALL(tensor().zero_()), CALL(tensor().normal_()), CALL(to.add_(whole)),
    CALL(tensor().mul_(2)), CALL(to.mul_(whole)), CALL(tensor().relu_()),
    CALL(none.new_empty({1})), CALL(none.new_zeros({1})), CALL(none.new_ones({1})), CALL(none.new_full({1}, 1)),
    CALL(none.new_tensor({1.f})), CALL(none.new_tensor({{1.f}})),
    CALL(add(t, whole)), CALL(mul(t, whole)), CALL(relu(none)), CALL(sin(none)), CALL(sum(none)), CALL(mean(none)),
    CALL(matmul(t, t)), CALL(matmul_out(to, t, t)),
  }));
}

TEST_F(wrong_arguments, collectives_sharing_and_the_machine) {
  device const both[] = {0, 1};
  auto ranks = communicator::create_all(both);
  communicator& c = ranks.front();
  gradient_buckets buckets(c), two(c);
  (void)two.add("a", 1, float32);
  (void)two.add("b", 1, int32);
  two.build();
  int host = 0;
  device_span const bad{&host, 1};
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  share_channel line(ends[0], std::chrono::milliseconds(1)), other(ends[1], std::chrono::milliseconds(1)),
      moved(std::move(other));
  share_pool pool, taken(std::move(pool));
  weir::pool registered("x", {.limit = 1, .registered = true});
  simulation sim = simulation::of(*rt);
  runtime stepped(simulated{.devices = 1, .schedule = simulated::scheduling::stepped});
  EXPECT_EQ("", wrong_among({
    CALL(c.all_reduce(bad)), CALL(c.broadcast(bad, 9)), CALL(c.scatter(bad, bad, 9)), CALL(c.gather(bad, bad, 9)),
    CALL(c.all_gather(bad, bad)), CALL(c.reduce_scatter(bad, bad)), CALL(c.all_to_all(bad, bad)),
    CALL(c.send(bad, 1)), CALL(c.receive(bad, 1)), CALL(c.send_receive(bad, 1, bad, 1)),
    CALL(c.split(-7)),
    CALL(c.register_pool(weir::pool("x"))), CALL(c.barrier(std::chrono::milliseconds(1))),
    CALL(weir::pool("x", {.registered = true})), CALL(registered.set_limit(1)), CALL(registered.sleep()),
    CALL(spill({&registered})),
    CALL(buckets.add("x", -1)), CALL(buckets.build()), CALL(buckets.parameter(0)), CALL(buckets.gradient(0)),
    CALL(two.parameters()), CALL(two.gradients()), CALL(buckets.mark_ready(0, default_stream())),
    CALL(buckets.finish(default_stream())),
    CALL(exportable_buffer(0)), CALL(exportable_buffer().record_stream(default_stream())), CALL(pool.allocate(1)),
    CALL(pool.allocate(default_stream(), 1)),
    CALL(imported_buffer().release([] { stream a; stream const b = std::move(a); return a.ref(); }())),
    CALL(share_channel(-1)), CALL(line.send({}, default_stream())), CALL(line.receive()),
    CALL(line.wait()), CALL(other.signal(1, default_stream())), CALL(other.signal(1, event())), CALL(other.timeout()),
    CALL(other.set_timeout(std::chrono::milliseconds(1))),
    CALL(sim.step(default_stream())), CALL(sim.spawn("x", [] {})), CALL(sim.fail_call("x", 1)),
    CALL(sim.lose_device(9)), CALL(sim.disconnect(0, 9)), CALL(sim.corrupt(0, 9)), CALL(sim.consume_memory(9, 1)),
  }));
  for (communicator& one : ranks) one.abort();
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
    CALL(mem_get_info()), CALL(synchronize()), CALL(last.query()), CALL(last.synchronize()), CALL(s.query()),
    CALL(s.synchronize()), CALL(late.query()), CALL(late.synchronize()), CALL(s.ref().is_capturing()),
    CALL(never.record(s)), CALL(copy(block.data(), host, 1000)), CALL(fill(block.data(), std::byte{1}, 1000)),
    CALL(launch(s, {}, [](CUstream_st*) {}, [] {})), CALL(launch_host(s, [] {})),
    CALL(ones({4})), CALL(full({4}, 1)), CALL(zeros({4})), CALL(rand({4})), CALL(arange(4)), CALL(t.fill_(1)),
    CALL(t.add_(t)), CALL(add(t, t)), CALL(sum(t)), CALL(matmul(t, t)), CALL(t.clone()), CALL(t.cpu()),
    CALL(t.item<float>()), CALL(t.str()),
    CALL(h.to(gpu)), CALL(t.copy_(h)),
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
  CALL(current_stream()), CALL(stream()), CALL(set_device(0)), CALL(synchronize()), CALL(mem_get_info()),
                               CALL(set_memory_limit(1)), CALL(memory_summary()), CALL(current_memory_report()),
                               CALL(event().record()), MAKE(device_guard const g(0)), CALL(exportable_buffer(1)),
                               CALL(fill(host, std::byte{1}, 1))}));
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
      for (named_call& one : std::vector<named_call>{
               CALL(s.query()), CALL(s.synchronize()), CALL(s.wait(last)), CALL(s.wait(e)), CALL(s.wait(s)),
               CALL(s.record_event()), CALL(s.native()), CALL(s.ref().is_capturing()), CALL(last.query()),
               CALL(last.synchronize()),
               CALL(e.query()), CALL(e.synchronize()), CALL(e.record(s)), CALL(set_stream(s)),
               MAKE(stream_guard const g(s)), CALL(allocate(s, 1)), CALL(record_stream(host, s)),
               CALL(deallocate(s, nullptr), allocate(s, 1)),
               CALL(copy(s, block.data(), host, 8)), CALL(launch(s, {}, [](CUstream_st*) {}, [] {})),
               CALL(launch_host(s, [] {})), CALL(parallel_for(s, 1, {}, [](size_t) {})),
               CALL(enable_peer_access(s, {1})), CALL(memory_readers(s)),
               CALL(t.fill_(1)), CALL(t.add_(t)), CALL(t.cpu()), CALL(t.clone()),
               CALL(t.item<float>(), t[0].item<float>()), CALL(t.str()), CALL(pool.allocate(1))}) {
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
      if (child == 0) in_the_child();
      ::waitpid(child, &status, 0);
      if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM) break;
    }
    std::_Exit(WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 7 : 1);
  });
}

}  // namespace
}  // namespace weir
