// A public call with a wrong argument names its caller's line. The lists cover include/weir/*.h.
// Threads: one.
#include <sys/socket.h>

#include <chrono>
#include <optional>

#include "tests/defects/bad_input.h"
#include "tests/defects/named_calls.h"
#include "weir/collective.h"
#include "weir/half.h"
#include "weir/launch.h"
#include "weir/optimizer.h"
#include "weir/parallel_for.h"
#include "weir/peer.h"
#include "weir/pool.h"
#include "weir/share.h"
#include "weir/tensor.h"
#include "weir/timeline.h"

namespace weir {
namespace {

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
                    CALL(device("gpu:x")),
                    CALL(set_device(9)),
                    CALL(get_device_properties(9)),
                    CALL(mem_get_info(9)),
                    CALL(synchronize(9)),
                    MAKE(device_guard const g(9)),
                    CALL(buffer(1, {.on = 9})),
                    CALL(empty_cache(9)),
                    CALL(set_memory_limit(0, 9)),
                    CALL(set_per_process_memory_fraction(0.5, 9)),
                    CALL(set_per_process_memory_fraction(2)),
                    CALL(memory_allocated(9)),
                    CALL(max_memory_allocated(9)),
                    CALL(memory_reserved(9)),
                    CALL(max_memory_reserved(9)),
                    CALL(memory_stats(9)),
                    CALL(reset_peak_memory_stats(9)),
                    CALL(reset_accumulated_memory_stats(9)),
                    CALL(memory_summary(9)),
                    CALL(memory_by_stream(9)),
                    CALL(current_memory_report(9)),
                    CALL(memory_snapshot(9)),
                    CALL(memory_history(9)),
                    CALL(memory_by_line(9)),
                    CALL(stream(device(9))),
                    MAKE(external_stream const f(9, nullptr)),
                    CALL(default_stream(9)),
                    CALL(current_stream(9)),
                    CALL(can_access_peer(0, 9)),
                    CALL(enable_peer_access(this, 9)),
                    CALL(enable_peer_access(device(9), {0})),
                    CALL(enable_peer_access(default_stream(), {9})),
                    CALL(communicator::create_all({})),
                    CALL(exportable_buffer(1, 9)),
                    CALL(share_pool({.on = 9})),
                    CALL(empty({1}, {.on = 9})),
                    CALL(tensor::from_blob(this, {1}, float32, 9)),
                    CALL(ones({1}, {.on = cpu}).to(device(9))),
                    CALL(ones({1}).peer_view(9)),
                    CALL(runtime(simulated{.devices = 0})),
                    CALL(runtime(simulated{}, {.epsilon = 7})),
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
                    CALL(allocate(SIZE_MAX)),
                    CALL(allocate(1, 3)),
                    CALL(allocate(s, 1, 3)),
                    CALL(allocate(gone, 1)),
                    CALL(deallocate(host)),
                    CALL(deallocate(s, host)),
                    CALL(record_stream(host, s)),
                    CALL(buffer(1, {.alignment = 3})),
                    CALL(block.host<int>()),
                    CALL(bytes.set_stream(s)),
                    CALL(block.set_stream(*other.line)),
                    CALL(block.record_stream(*other.line)),
                    CALL(buffer::adopt(host)),
                    CALL(pinned(SIZE_MAX)),
                    CALL(reserve_pinned_memory(SIZE_MAX)),
                    MAKE(registered_host_memory const r{std::span<std::byte>(static_cast<std::byte*>(nullptr), 8)}),
                    CALL(s.wait(*other.line)),
                    CALL(s.wait(other.line->stamp())),
                    CALL(s.ref().wait(*other.line)),
                    CALL(s.ref().wait(other.line->stamp())),
                    CALL(gone.query()),
                    CALL(gone.synchronize()),
                    CALL(gone.record_event()),
                    CALL(gone.wait(s)),
                    CALL(gone.wait(once)),
                    CALL(gone.ref().is_capturing()),
                    CALL(gone.ref().query()),
                    CALL(gone.ref().synchronize()),
                    CALL(gone.ref().record_event()),
                    CALL(s.native()),
                    CALL(s.ref().native()),
                    MAKE(external_stream const f(0, reinterpret_cast<CUstream_st*>(64))),
                    CALL(set_stream(*other.line)),
                    MAKE(stream_guard const g(*other.line)),
                    CALL(once.record(default_stream(1))),
                    CALL(once.elapsed_time(timed)),
                    CALL(once.native()),
                    CALL(copy(block.data(), host, 2000)),
                    CALL(copy(s, block.data(), host, 2000)),
                    CALL(copy(s, std::span(&item, 1))),
                    CALL(fill(block.data(), std::byte{1}, 2000)),
                    CALL(explain_copy(block.data(), nullptr, 1)),
                    CALL(fill(gone, host, std::byte{1}, 1)),
                    CALL(buffer(gone, 1)),
                    CALL(exportable_buffer(gone, 1)),
                    CALL(zeros(gone, {1})),
                    CALL(arange(gone, 1)),
                    CALL(tensor_of(gone, {1, 2})),
                    CALL(ones_like(gone, tensor())),
                    CALL(rand(gone, {1})),
                    CALL(zeros(s, {1}, {.on = cpu})),
                    CALL(launch(s, {reads(block.data(), 2000)}, nothing, [] {})),
                    CALL(launch(gone, {}, nothing, [] {})),
                    CALL(launch_host(s, {})),
                    CALL(parallel_for(s, 1, {reads(block.data(), 2000)}, [](size_t) {})),
                    CALL(memory_readers(gone)),
                    CALL(record_memory_history({.events = 0})),
                    CALL(dump_memory_snapshot("/nowhere/x")),
                    CALL(dump_memory_page("/nowhere/x")),
                    CALL(record_timeline({.spans = 0})),
                    CALL(dump_timeline("/nowhere/x")),
                }));
}

TEST_F(wrong_arguments, tensors) {
  tensor const t = ones({2, 3}), h = ones({2, 3}, {.on = cpu}), whole = zeros({2}, {.dtype = int64}), none;
  tensor to = ones({2, 3});
  EXPECT_EQ("", wrong_among({
                    CALL(shape{1, 1, 1, 1, 1, 1, 1, 1, 1}),
                    CALL(shape(std::vector<std::int64_t>(9, 1))),
                    CALL(shape{-1}.numel()),
                    CALL(ones({1, 1, 1, 1, 1, 1, 1, 1, 1})),
                    CALL(ones({-1})),
                    CALL(empty({-1})),
                    CALL(zeros({-1})),
                    CALL(full({-1}, 1)),
                    CALL(arange(-1)),
                    CALL(rand({-1})),
                    CALL(randn({-1})),
                    CALL(tensor_of({{1.f}, {1.f, 2.f}})),
                    CALL(empty_like(none)),
                    CALL(zeros_like(none)),
                    CALL(ones_like(none)),
                    CALL(full_like(none, 1)),
                    CALL(rand_like(none)),
                    CALL(randn_like(none)),
                    CALL(tensor::from_buffer(buffer(4), {2}, float32)),
                    CALL(tensor::from_storage(t.storage(), {99}, float32)),
                    CALL(tensor::from_blob(nullptr, {2}, float32, cpu)),
                    CALL(t.size(9)),
                    CALL(t.data<double>()),
                    CALL(t.data<float16_t>()),
                    CALL(t.host<float>()),
                    CALL(t.view({5})),
                    CALL(t.reshape({5})),
                    CALL(t.transpose(0, 9)),
                    CALL(ones({2}).t()),
                    CALL(t.slice(0, 2, 1)),
                    CALL(t[9]),
                    CALL(t[0][9]),
                    CALL(none.detach()),
                    CALL(none.contiguous()),
                    CALL(none.clone()),
                    CALL(none.to(gpu)),
                    CALL(none.to(float64)),
                    CALL(h.peer_view(0)),
                    CALL(none.gpu()),
                    CALL(none.cpu()),
                    CALL(t.pin_memory()),
                    CALL(t.storage().pin_memory()),
                    CALL(to.copy_(whole)),
                    CALL(t.record_stream([] {
                      stream a;
                      stream const b = std::move(a);
                      return a.ref();
                    }())),
                    CALL(t.item<float>()),
                    CALL(t.item<int>()),
                    CALL(tensor().fill_(1)),
                    CALL(tensor().zero_()),
                    CALL(tensor().normal_()),
                    CALL(to.add_(whole)),
                    CALL(tensor().mul_(2)),
                    CALL(to.mul_(whole)),
                    CALL(tensor().relu_()),
                    CALL(none.new_empty({1})),
                    CALL(none.new_zeros({1})),
                    CALL(none.new_ones({1})),
                    CALL(none.new_full({1}, 1)),
                    CALL(none.new_tensor({1.f})),
                    CALL(none.new_tensor({{1.f}})),
                    CALL(add(t, whole)),
                    CALL(mul(t, whole)),
                    CALL(relu(none)),
                    CALL(sin(none)),
                    CALL(sum(none)),
                    CALL(mean(none)),
                    CALL(matmul(t, t)),
                    CALL(matmul_out(to, t, t)),
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
  auto const gone_stream = [] {
    stream a;
    stream const b = std::move(a);
    return a.ref();
  };
  buffer const half(2), its_gradient(2);
  sgd by(std::vector<update_item>{{{half.data(), 1, float16}, {its_gradient.data(), 1, float16}}});
  loss_scale scale;
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
                    CALL(c.all_reduce(bad)),
                    CALL(c.broadcast(bad, 9)),
                    CALL(c.scatter(bad, bad, 9)),
                    CALL(c.gather(bad, bad, 9)),
                    CALL(c.all_gather(bad, bad)),
                    CALL(c.reduce_scatter(bad, bad)),
                    CALL(c.all_to_all(bad, bad)),
                    CALL(c.send(bad, 1)),
                    CALL(c.receive(bad, 1)),
                    CALL(c.send_receive(bad, 1, bad, 1)),
                    CALL(c.split(-7)),
                    CALL(c.register_pool(weir::pool("x"))),
                    CALL(c.barrier(std::chrono::milliseconds(1))),
                    CALL(weir::pool("x", {.registered = true})),
                    CALL(registered.set_limit(1)),
                    CALL(registered.sleep()),
                    CALL(spill({&registered})),
                    CALL(buckets.add("x", -1)),
                    CALL(buckets.add("x", bad, {})),
                    CALL(buckets.build()),
                    CALL(buckets.parameter(0)),
                    CALL(buckets.gradient(0)),
                    CALL(buckets.reduced(0)),
                    CALL(two.parameter_tensor(0, {2})),
                    CALL(two.gradient_tensor(0, {2})),
                    CALL(two.parameters()),
                    CALL(two.gradients()),
                    CALL(buckets.mark_ready(0, default_stream())),
                    CALL(buckets.finish(default_stream())),
                    CALL(two.clip(-1, default_stream())),
                    CALL(buckets.own(0)),
                    CALL(two.gather(default_stream())),
                    CALL(items_of(buckets)),
                    CALL(adamw(two)),
                    CALL(sgd(std::vector<update_item>{})),
                    CALL(loss_scale({.first = 0})),
                    CALL(by.set_rate(default_stream(), -1)),
                    CALL(by.set_steps(default_stream(), -1)),
                    CALL(by.step(gone_stream())),
                    CALL(by.read_parameters(gone_stream())),
                    CALL(by.steps(gone_stream())),
                    CALL(by.skipped(gone_stream())),
                    CALL(scale.read(gone_stream())),
                    CALL(exportable_buffer(0)),
                    CALL(exportable_buffer().record_stream(default_stream())),
                    CALL(pool.allocate(1)),
                    CALL(pool.allocate(default_stream(), 1)),
                    CALL(imported_buffer().release([] {
                      stream a;
                      stream const b = std::move(a);
                      return a.ref();
                    }())),
                    CALL(share_channel(-1)),
                    CALL(line.send({}, default_stream())),
                    CALL(line.receive()),
                    CALL(line.wait()),
                    CALL(other.signal(1, default_stream())),
                    CALL(other.signal(1, event())),
                    CALL(other.timeout()),
                    CALL(other.set_timeout(std::chrono::milliseconds(1))),
                    CALL(sim.step(default_stream())),
                    CALL(sim.spawn("x", [] {})),
                    CALL(sim.fail_call("x", 1)),
                    CALL(sim.lose_device(9)),
                    CALL(sim.disconnect(0, 9)),
                    CALL(sim.corrupt(0, 9)),
                    CALL(sim.consume_memory(9, 1)),
                }));
  for (communicator& one : ranks)
    one.abort();
}

}  // namespace
}  // namespace weir
