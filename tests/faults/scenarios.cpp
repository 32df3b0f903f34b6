// The scenarios, small enough that every call of each can fail in turn.
// Threads: one.
#include "tests/faults/scenario.h"

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <optional>
#include <thread>
#include <vector>

#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/sim.h"
#include "weir/stream_of.h"

namespace weir::faults {
namespace {

using scheduling = simulated::scheduling;

std::string bytes_of(void const* p, std::size_t n) {
  return std::string(static_cast<char const*>(p), n);
}

void add_one(stream_ref s, buffer const& b) {
  auto* const at = b.data<unsigned char>();
  std::size_t const n = b.size();
  launch(
      s, {updates(b)}, [](CUstream_st*) {},
      [=] {
        for (std::size_t i = 0; i < n; ++i)
          ++at[i];
      });
}

std::string start_and_stop() {
  std::string seen;
  for (int d = 0; d < 2; ++d) {
    device_guard const on(d);
    buffer const block(1000), host = pinned(1000);
    fill(block.data(), std::byte(7 + d), block.size());
    copy(host.data(), block.data(), block.size());
    seen += bytes_of(host.data(), 1000);
    stream const other;
    event e;
    e.record(other);
    current_stream().wait(e);
  }
  return seen;
}

std::string three_streams() {
  stream a, b, c(priority::high);
  buffer const out = pinned(3 * 4096);
  event_options const timed{.timing = true};
  event first(timed), last(timed);
  first.record(a);
  {
    stream_guard const on(a);
    buffer x(4096), y(40'000), z(4096);
    fill(x.data(), std::byte{1}, x.size());
    fill(y.data(), std::byte{2}, y.size());
    b.wait(a);
    y.record_stream(b);
    add_one(b, y);
    z.set_stream(c);
    fill(z.data(), std::byte{9}, z.size());  // on stream a
    c.wait(a.record_event());
    add_one(c, z);
    copy(b, out.data(), y.data(), 4096, non_blocking);
    copy(c, out.data<char>() + 4096, z.data(), 4096, non_blocking);
    add_one(a, x);
    copy(a, out.data<char>() + 8192, x.data(), 4096, non_blocking);
    launch_host(a, [] {});
  }  // freed while b and c may still use them
  last.record(a);
  buffer const again(40'000), more(100'000);
  (void)b.query();
  last.synchronize();
  (void)first.query();
  (void)first.elapsed_time(last);
  a.wait(b);
  a.wait(c);
  (void)a.stamp().query();
  a.synchronize();
  (void)a.ref().is_capturing();
  synchronize();
  return bytes_of(out.data(), out.size());
}

// Allocates small and large blocks until memory is full, then frees some, then allocates again.
std::string grow() {
  std::string seen;
  stream const other;
  for (int round = 0; round < 2; ++round) {
    std::vector<buffer> small, large;
    for (std::size_t bytes : {24, 200, 3000, 9000, 30'000})
      small.emplace_back(bytes);
    for (std::size_t bytes : {100'000, 300'000, 70'000})
      large.emplace_back(bytes);
    fill(small[2].data(), std::byte{5}, 3000);
    fill(large[1].data(), std::byte{6}, 300'000);
    large.erase(large.begin());
    {
      stream_guard const on(other);
      large.emplace_back(90'000);
      large.back().record_stream(default_stream());
    }
    char host[8];
    copy(host, small[2].data(), 4);
    copy(host + 4, large[0].data(), 4);
    seen += bytes_of(host, 8);
    bool full = false;
    try {
      while (large.size() < 100)
        large.emplace_back(200'000);
    } catch (out_of_memory const&) {
      full = true;
    }
    seen += full ? "full" : "not full";
    large.clear();
    if (round == 0)
      small.clear();
    empty_cache();
    (void)mem_get_info();
  }
  return seen;
}

std::string pinned_blocks() {
  std::string seen;
  stream const a, b;
  buffer const device(200'000);
  {
    std::vector<buffer> blocks;
    for (std::size_t bytes : {100, 5000, 200'000})
      blocks.push_back(pinned(bytes));
    blocks.push_back(pinned(1'500'000));
    for (auto const& host : blocks) {
      std::size_t const n = std::min<std::size_t>(host.size(), 200'000);
      std::memset(host.data(), 17, n);
      copy(a, device.data(), host.data(), n, non_blocking);
      copy(a, host.data(), device.data(), n, non_blocking);
      host.record_stream(b);
    }
    a.synchronize();
    for (auto const& host : blocks)
      seen += bytes_of(host.data(), 100);
  }
  std::vector<int, pinned_allocator<int>> numbers(700'000, 3);  // another shape, so weir frees idle pages first
  copy(a, device.data(), numbers.data(), 4000, non_blocking);
  b.wait(a);
  buffer const out = pinned(4000);
  copy(b, out.data(), device.data(), 4000);
  return seen + bytes_of(out.data(), 4000);
}

std::string staged_both_ways() {
  std::size_t const n = 1'300'000;
  // if no wait is possible, bytes may arrive until the runtime has ended
  static std::vector<unsigned char> later(n);
  std::vector<unsigned char> from(n), to(n);
  for (std::size_t i = 0; i < n; ++i)
    from[i] = static_cast<unsigned char>(i * 7 + i / 251);
  buffer const there(n);
  copy(there.data(), from.data(), n);
  add_one(current_stream(), there);
  copy(to.data(), there.data(), n);
  copy(later.data(), there.data(), n, non_blocking);
  synchronize();
  return bytes_of(to.data(), n) + bytes_of(later.data(), n);
}

// Devices 0 and 1 are linked; neither is linked to 2.
std::string peers() {
  std::string seen;
  simulation::of(runtime::current()).disconnect(device(1), device(0));
  std::vector<buffer> on;
  for (int d = 0; d < 3; ++d) {
    on.emplace_back(300'000, buffer_options{.on = device(d)});
    device_guard const here(d);
    fill(on.back().data(), std::byte(d + 1), 300'000);
  }
  (void)links();
  (void)can_access_peer(0, 1);
  auto const add_to_0 = [&](buffer const& b) {
    auto const* const from = b.data<unsigned char>();
    auto* const into = on[0].data<unsigned char>();
    launch(
        current_stream(device(0)), {reads(b), updates(on[0])}, [](CUstream_st*) {},
        [=] { into[0] = static_cast<unsigned char>(into[0] + from[0]); });
  };
  bool granted = false;
  try {
    enable_peer_access(on[1].data(), device(0));
    granted = true;
  } catch (not_supported const&) {}
  if (granted) {
    current_stream(device(0)).wait(current_stream(device(1)));
    add_to_0(on[1]);
    current_stream(device(1)).wait(current_stream(device(0)));
  } else {
    buffer const here(100, {.on = device(0)});
    copy(here.data(), on[1].data(), 100);
    add_to_0(here);
  }
  copy(on[0].data<char>() + 1, on[1].data<char>() + 1, 200'000);  // over the link
  copy(on[2].data(), on[0].data(), 200'000);                      // through pinned memory
  copy(on[1].data<char>() + 100'000, on[2].data(), 200'000);
  for (int i = 0; i < 30; ++i)
    copy(on[1].data(), on[0].data(), 300'000, non_blocking);  // enough to earn a grant
  try {
    enable_peer_access(device(1), {device(0)});
  } catch (not_supported const&) {}
  on.emplace_back(400'000, buffer_options{.on = device(1)});  // in its own handles
  copy(on[3].data(), on[0].data(), 300'000);
  unsigned char host[8];
  for (int d = 0; d < 4; ++d) {
    copy(host, on[static_cast<std::size_t>(d)].data<char>(), 4);
    copy(host + 4, on[static_cast<std::size_t>(d)].data<char>() + 299'000, 4);
    seen += bytes_of(host, 8);
  }
  return seen;
}

// Small blocks in thread caches: freed by any thread, left by an ended one, drained when memory is short.
std::string small_blocks_of_threads() {
  std::string seen;
  stream const a, b;
  std::vector<buffer> handed_over;
  auto const some = [&](stream_ref on, std::size_t n) {
    stream_guard const in(on);
    std::vector<buffer> all;
    for (std::size_t i = 0; i < n; ++i) {
      all.emplace_back(i % 3 ? 500 : 3000);
      fill(all.back().data(), std::byte(i), all.back().size());
    }
    return all;
  };
  for (auto const& on : {a.ref(), b.ref()}) {
    for (int round = 0; round < 2; ++round)
      some(on, 12);
  }
  std::exception_ptr thrown;
  std::thread([&, &in = runtime::current()] {
    try {
      runtime_guard const here_too(in);
      some(a, 6);
      handed_over = some(b, 9);
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown)
    std::rethrow_exception(thrown);
  unsigned char host[500];
  for (buffer const& x : handed_over) {
    copy(b, host, x.data(), 500);
    b.synchronize();
    seen += bytes_of(host, 4);
  }
  handed_over.clear();
  buffer const large(900'000);  // thread caches hold memory that it needs
  some(a, 6);
  auto const n = memory_stats();
  return seen + std::to_string(n.allocation.all.current) + " " + std::to_string(n.requested_bytes.all.current);
}

// Calls that a simulated machine does not support, and queries of addresses outside weir.
std::string handles_and_places() {
  std::string seen;
  auto const unsupported = [&](auto ask) {
    try {
      ask();
      seen += "answered";
    } catch (not_supported const&) {
      seen += "not supported";
    }
  };
  auto const p = get_device_properties();
  seen += p.name + std::to_string(p.total_memory);
  unsupported([] { (void)current_stream().native(); });
  event e;
  e.record();
  unsupported([&] { (void)e.native(); });
  std::vector<char> const host(100, 'x');
  buffer const there(100);
  seen += explain_copy(there.data(), host.data(), 100).reason;
  copy(there.data(), host.data(), 100);
  synchronize();
  return seen;
}

// Streams of the program's own: one registered, one borrowed, and one that is captured when it is first
// named.
std::string streams_by_handle() {
  std::string seen;
  simulated_stream registered, borrowed, captured;
  {
    external_stream const known(gpu, registered.handle());
    seen += stream_ref(known).flags() == stream_flags::blocking ? "blocking" : "non-blocking";
    buffer const b(known, 1000);
    b.record_stream(borrow_stream(gpu, borrowed.handle()));
  }
  buffer of_borrowed(borrow_stream(gpu, borrowed.handle()), 1000);
  stream_ref const last_use = borrow_stream(gpu, borrowed.handle());
  deallocate(last_use, of_borrowed.release());
  {
    simulated_stream without_device;  // as a memory resource gets it
    void* const p = allocate(detail::stream_of(without_device.handle()), 1000);
    try {
      detail::deallocate_on(gpu, without_device.handle(), p);
    } catch (...) {  // a refused free leaves the block
      deallocate(p);
      throw;
    }
  }
  captured.begin_capture();
  try {
    seen += borrow_stream(gpu, captured.handle()).device().str();
  } catch (...) {
    captured.end_capture();
    throw;
  }
  captured.end_capture();
  borrow_stream(gpu, captured.handle()).wait(borrow_stream(gpu, borrowed.handle()));
  borrow_stream(gpu, captured.handle()).synchronize();
  return seen;
}

constexpr std::array table{
    scenario{
        "start_and_stop", {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, start_and_stop, true},
    scenario{
        "streams_by_handle", {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, streams_by_handle},
    scenario{"three_streams", {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, three_streams},
    scenario{"guarded",
             {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded, .protect_memory = true},
             {},
             three_streams},
    scenario{"growth", {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded}, {}, grow},
    scenario{"growth_by_segments",
             {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded, .virtual_memory = false},
             {},
             grow},
    scenario{"small_blocks_of_threads",
             {.devices = 1, .memory = 1_MiB, .schedule = scheduling::seeded},
             {},
             small_blocks_of_threads},
    scenario{"pinned",
             {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded},
             {.pinned_limit = 5_MiB},
             pinned_blocks},
    scenario{"staging", {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, staged_both_ways},
    scenario{"peers",
             {.devices = 3, .memory = 4_MiB, .schedule = scheduling::seeded, .peers = simulated::links::pairs},
             {},
             peers},
    scenario{
        "handles_and_places", {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded}, {}, handles_and_places},
    scenario{
        "two_training_steps", {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, two_training_steps},
    scenario{"gradients_of_the_program",
             {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded},
             {},
             two_steps_in_memory_of_the_program},
    scenario{"sharded_steps", {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, two_sharded_steps},
    scenario{"registered_pools",
             {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded},
             {},
             two_steps_in_registered_pools},
    scenario{"frees_in_captures",
             {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded},
             {},
             freed_first_in_a_capture},
    scenario{
        "captures", {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, captured_and_launched_twice},
    scenario{
        "shared_captures", {.devices = 1, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, graphs_of_one_memory},
    scenario{"captures_again",
             {.devices = 1, .memory = 2_MiB, .schedule = scheduling::seeded},
             {},
             captures_that_come_again},
    scenario{"sleep", {.devices = 2, .memory = 4_MiB, .schedule = scheduling::seeded}, {}, asleep_and_awake},
    scenario{"spill",
             {.devices = 2, .memory = 1_MiB, .schedule = scheduling::seeded, .peers = simulated::links::pairs},
             {},
             pools_that_take_turns},
    scenario{"collectives", {.devices = 4, .memory = 2_MiB, .schedule = scheduling::seeded}, {}, all_collectives},
    scenario{"groups", {.devices = 3, .memory = 2_MiB, .schedule = scheduling::seeded}, {}, collectives_in_a_group},
    scenario{"sharing", {.devices = 2, .memory = 2_MiB, .schedule = scheduling::seeded}, {}, shared_with_oneself, true},
    scenario{"pinned_idle",
             {.devices = 2, .memory = 2_MiB, .schedule = scheduling::seeded},
             {.pinned_idle = std::chrono::milliseconds(1)},
             pinned_pages_go_back,
             false,
             nullptr,
             true},
    scenario{"outliving",
             {.devices = 2, .memory = 2_MiB, .schedule = scheduling::seeded},
             {},
             communicator_outlives_its_runtime,
             true,
             outlived_by_a_communicator},
};

}  // namespace

std::span<scenario const> scenarios() {
  return table;
}

}  // namespace weir::faults
