// Bad arguments: devices, addresses, sizes, streams of other devices, block ends, no memory.
// Threads: one.
#include "tests/defects/bad_input.h"

#include <cstdlib>
#include <functional>
#include <limits>

#include "weir/collective.h"
#include "weir/launch.h"
#include "weir/peer.h"
#include "weir/tensor.h"

namespace weir {
namespace {

constexpr size_t huge = SIZE_MAX;

TEST_F(bad_input, no_such_device) {
  for (int d : {3, 7, 1'000'000}) {
    std::string const name = "gpu:" + std::to_string(d);
    refused<invalid_use>([&] { set_device(d); }, {"set_device", name, "3 devices"});
    refused<invalid_use>([&] { device_guard g{d}; }, {name, "3 devices"});
    refused<invalid_use>([&] { stream s{device(d)}; }, {"stream", name, "3 devices"});
    refused<invalid_use>([&] { (void)default_stream(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)current_stream(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { synchronize(d); }, {"synchronize", name, "3 devices"});
    refused<invalid_use>([&] { buffer b(16, {.on = d}); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)zeros({2}, {.on = d}); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)mem_get_info(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)get_device_properties(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)memory_allocated(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)memory_summary(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)empty_cache(d); }, {name, "3 devices"});
    refused<invalid_use>([&] { set_memory_limit(1_MiB, d); }, {name, "3 devices"});
    refused<invalid_use>([&] { (void)can_access_peer(0, d); }, {name, "3 devices"});
    refused<invalid_use>([&] { simulation::of(*rt).lose_device(d); }, {"simulation::lose_device", name, "3 devices"});
    refused<invalid_use>([&] { simulation::of(*rt).disconnect(0, d); }, {"simulation::disconnect", name, "3 devices"});
    refused<invalid_use>([&] { simulation::of(*rt).corrupt(d, 0); }, {"simulation::corrupt", name, "3 devices"});
    refused<invalid_use>([&] { simulation::of(*rt).consume_memory(d, 1); },
                         {"simulation::consume_memory", name, "3 devices"});
    refused<invalid_use>([&] { (void)communicator::create_all(std::vector<device>{0, d}); }, {name});
  }
  refused<invalid_use>([] { (void)communicator::create_all(std::vector<device>{0, 0}); }, {"gpu:0"});
  refused<invalid_use>([] { (void)communicator::create_all(std::vector<device>{}); }, {"communicator"});
  refused<invalid_use>([] { (void)communicator::create_all(std::vector<device>{0, cpu}); }, {"cpu"});
  refused<invalid_use>([] { set_device(device(-7)); }, {"set_device", "-7"});
  refused<invalid_use>([] { stream s{cpu}; }, {"cpu"});
  refused<invalid_use>([] { (void)device("gpu:x"); }, {"gpu:x"});
  refused<invalid_use>([] { (void)device("gpu:99999999999"); }, {"gpu:99999999999"});
  refused<invalid_use>([] { (void)device(""); }, {"\"\""});
  EXPECT_EQ(current_device(), device(0));
}

TEST_F(bad_input, a_callback_that_is_empty) {
  refused<invalid_use>([] { (void)on_out_of_memory({}); }, {"on_out_of_memory", "empty function"});
  refused<invalid_use>([] { launch_host(current_stream(), {}); }, {"launch_host", "empty function"});
}

TEST_F(bad_input, a_huge_history_and_an_empty_thread_are_refused) {
  refused<invalid_use>([] { record_memory_history({.events = SIZE_MAX}); },
                       {"record_memory_history", "18446744073709551615 events"});
  refused<invalid_use>([] { record_memory_history({.events = 0}); }, {"record_memory_history", "0 events"});
  for (size_t const memory : {~size_t{0}, (size_t{1} << 46) + 1}) {
    refused<invalid_use>([&] { runtime(simulated{.devices = 1, .memory = memory}); },
                         {"runtime", "simulated{.memory = " + std::to_string(memory) + "}"});
  }
  runtime seeded(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  refused<invalid_use>([&] { simulation::of(seeded).spawn("idle", {}); },
                       {"simulation::spawn", "\"idle\"", "empty function"});
  simulation::of(seeded).join();
}

TEST_F(bad_input, freeing_an_address_of_no_live_block) {
  deallocate(nullptr);
  deallocate(default_stream(), nullptr);
  int on_stack = 0;
  refused<invalid_use>([&] { deallocate(&on_stack); }, {"deallocate", text(&on_stack)});
  refused<invalid_use>([] { deallocate(reinterpret_cast<void*>(std::uintptr_t{8})); }, {"0x8"});
  refused<invalid_use>([] { deallocate(reinterpret_cast<void*>(~std::uintptr_t{0})); }, {"0xffffffffffffffff"});
  refused<invalid_use>([&] { record_stream(&on_stack, default_stream()); }, {"record_stream", text(&on_stack)});
  refused<invalid_use>([&] { (void)buffer::adopt(&on_stack); }, {"adopt", text(&on_stack)});
  for (size_t bytes : {size_t{100}, size_t{3} << 20}) {
    auto* const p = static_cast<char*>(allocate(bytes));
    for (size_t off : {size_t{1}, bytes / 2, bytes - 1}) {
      refused<invalid_use>([&] { deallocate(p + off); },
                           {"deallocate", text(p + off), std::to_string(off) + " B inside", text(p)});
      refused<invalid_use>([&] { deallocate(default_stream(), p + off); }, {"deallocate", text(p + off)});
    }
    refused<invalid_use>([&] { (void)buffer::adopt(p + 1); }, {"adopt", text(p + 1)});
    deallocate(p);
    refused<invalid_use>([&] { deallocate(p); }, {"deallocate", text(p)});
    refused<invalid_use>([&] { deallocate(p + 1); }, {"deallocate", text(p + 1)});
    refused<invalid_use>([&] { record_stream(p, default_stream()); }, {"record_stream", text(p)});
  }
}

TEST_F(bad_input, freeing_an_address_of_no_live_pinned_block) {
  for (size_t bytes : {size_t{100}, size_t{3} << 20}) {
    buffer b = pinned(bytes);
    auto* const p = b.data<char>();
    for (size_t off : {size_t{1}, bytes / 2, bytes - 1}) {
      refused<invalid_use>([&] { deallocate(p + off); }, {"deallocate", text(p + off), text(p)});
      refused<invalid_use>([&] { deallocate(default_stream(), p + off); }, {"deallocate", text(p + off)});
    }
    (void)b.release();
    deallocate(p);
    refused<invalid_use>([&] { deallocate(p); }, {"deallocate", text(p)});
    refused<invalid_use>([&] { record_stream(p, default_stream()); }, {"record_stream", text(p)});
  }
}

TEST_F(bad_input, a_block_freed_behind_its_owner_is_freed_once) {
  for (bool const host : {false, true}) {
    buffer b = host ? pinned(1000) : buffer(1000);
    deallocate(b.data());
    auto const before = held();
    refused<invalid_use>([&] { b.record_stream(default_stream()); }, {"record_stream", text(b.data())});
    b.reset();
    EXPECT_EQ(before, held());
  }
}

TEST_F(bad_input, sizes_that_overflow) {
  for (size_t const bytes : {huge, huge - 15, huge - 511, huge - (size_t{2} << 20) + 1, size_t{1} << 63}) {
    refused<out_of_memory>([&] { (void)allocate(bytes); }, {"allocate"});
    refused<out_of_memory>([&] { (void)allocate(default_stream(1), bytes, 64); }, {"allocate"});
    refused<out_of_memory>([&] { buffer b(bytes, {.on = cpu}); }, {});
    refused<out_of_memory>([&] { (void)pinned(bytes); }, {});
    refused<invalid_use>(
        [&] {
          pinned_allocator<double> a;
          (void)a.allocate(bytes);
        },
        {"pinned_allocator", std::to_string(bytes)});
    char here_ = 0;
    buffer b(64);
    refused<invalid_use>([&] { copy(b.data(), &here_, bytes); }, {"copy", std::to_string(bytes)});
    refused<invalid_use>([&] { copy(&here_, b.data(), bytes); }, {"copy", std::to_string(bytes)});
    refused<invalid_use>([&] { copy(&here_, &here_ + 1, bytes); }, {"copy", std::to_string(bytes)});
    refused<invalid_use>([&] { fill(b.data(), std::byte{1}, bytes); }, {"fill", std::to_string(bytes)});
    refused<invalid_use>(
        [&] {
          launch(
              default_stream(), {writes(b.data(), bytes)}, [](CUstream_st*) {}, [] {});
        },
        {"launch", std::to_string(bytes)});
    refused<invalid_use>(
        [&] {
          launch(
              default_stream(), {writes(b.data<char>() + 60, bytes)}, [](CUstream_st*) {}, [] {});
        },
        {"launch", std::to_string(bytes)});
  }
  refused<out_of_memory>([] { (void)allocate(size_t{1} << 62); }, {"allocate"});
  refused<out_of_memory>([] { (void)pinned(size_t{1} << 40); }, {});
  for (size_t const alignment : {size_t{3}, size_t{1} << 40, size_t{1} << 63, huge}) {
    refused<invalid_use>([&] { (void)allocate(64, alignment); }, {"alignment", std::to_string(alignment)});
  }
  refused<invalid_use>([] { buffer b(64, {.kind = memory_kind::pinned, .alignment = 3}); }, {"aligned to 3"});
  refused<invalid_use>([] { buffer b(64, {.on = cpu, .alignment = 3}); }, {"alignment of 3"});
  refused<invalid_use>([] { buffer b(64, {.on = cpu, .alignment = size_t{1} << 63}); },
                       {"alignment", std::to_string(size_t{1} << 63)});

  std::int64_t const big = std::int64_t{1} << 32;
  refused<invalid_use>([&] { (void)zeros({big, big}); }, {"4294967296"});
  refused<invalid_use>([&] { (void)zeros({big, big / 2}); }, {"2147483648"});
  refused<invalid_use>([&] { (void)empty({INT64_MAX}); }, {"9223372036854775807"});
  refused<invalid_use>([&] { (void)empty({INT64_MAX, 2}, {.on = cpu}); }, {"9223372036854775807"});
  refused<invalid_use>([&] { (void)empty({INT64_MAX / 2}, {.dtype = float64, .on = cpu}); }, {});
  refused<invalid_use>([&] { (void)empty({-1}); }, {"-1"});
  refused<invalid_use>([&] { (void)empty({INT64_MIN}); }, {std::to_string(INT64_MIN)});
  refused<invalid_use>([&] { (void)empty({0, -1}); }, {"-1"});
  refused<invalid_use>([&] { (void)arange(-1); }, {"-1"});
  refused<invalid_use>([&] { shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; }, {"9"});
  tensor const t = zeros({4, 4});
  refused<invalid_use>([&] { (void)t.view({big, big}); }, {"4294967296"});
  refused<invalid_use>([&] { (void)t.view({-1, -1}); }, {"-1"});
  refused<invalid_use>([&] { (void)t.view({3, -1}); }, {"16 elements", "[3, -1]"});
  refused<invalid_use>([&] { (void)t.view({0, -1}); }, {});
  refused<invalid_use>([&] { (void)t.slice(0, 3, 2); }, {});
  refused<invalid_use>([&] { (void)t.slice(0, 0, 5); }, {"5"});
  refused<invalid_use>([&] { (void)t.slice(2, 0, 1); }, {"2"});
  refused<invalid_use>([&] { (void)t.slice(0, INT64_MIN, 1); }, {});
  refused<invalid_use>([&] { (void)t[4]; }, {"4"});
  refused<invalid_use>([&] { (void)t[INT64_MIN]; }, {});
  refused<invalid_use>([&] { (void)t.transpose(0, 2); }, {"2"});
  refused<invalid_use>([&] { (void)t.size(-3); }, {"-3"});
  refused<invalid_use>([&] { (void)tensor::from_buffer(buffer(16), {big, big}, float32); }, {"4294967296"});
  refused<invalid_use>([&] { (void)tensor::from_buffer(buffer(16), {5}, float32); }, {"16"});
  refused<invalid_use>([&] { (void)t.item<float>(); }, {"[4, 4]"});
  refused<invalid_use>([&] { (void)t.data<double>(); }, {"float32"});
  refused<invalid_use>([&] { (void)t.host<float>(); }, {});
  refused<invalid_use>([&] { (void)tensor().add_(t); }, {});
  refused<invalid_use>([&] { (void)add(t, zeros({4})); }, {"[4, 4]", "[4]"});
  refused<invalid_use>([&] { (void)add(t, tensor()); }, {});
  refused<invalid_use>([&] { (void)matmul(t, zeros({3, 4})); }, {"[4, 4]", "[3, 4]"});
  refused<invalid_use>([&] { (void)add(t, zeros({4, 4}, {.on = 1})); }, {"gpu:0", "gpu:1"});
}

TEST_F(bad_input, zero_bytes_are_valid_and_freeable) {
  auto const before = held();
  void* const p = allocate(0);
  void* const q = allocate(default_stream(1), 0);
  EXPECT_EQ(find_block(p)->bytes, 0u);
  record_stream(p, default_stream(1));
  copy(p, q, 0);
  copy(nullptr, nullptr, 0);
  copy(default_stream(), nullptr, p, 0);
  copy(default_stream(), std::span<copy_item const>{});
  fill(p, std::byte{1}, 0);
  fill(nullptr, std::byte{1}, 0);
  launch(
      default_stream(), {writes(p), reads(nullptr)}, [](CUstream_st*) {}, [] {});
  char one = 0;
  refused<invalid_use>([&] { copy(p, &one, 1); }, {"copy", "holds 0 B", "asked 1 B"});
  refused<invalid_use>(
      [&] {
        launch(
            default_stream(), {writes(p, 1)}, [](CUstream_st*) {}, [] {});
      },
      {"launch", "1 B", "0 B"});
  deallocate(p);
  deallocate(q);
  refused<invalid_use>([&] { deallocate(p); }, {text(p)});
  {
    buffer a(0), b = pinned(0), c(0, {.on = cpu});
    buffer const d = pin_memory({});
    EXPECT_TRUE(a.data() && b.data());
    EXPECT_TRUE(c.host<int>().empty());
    tensor t = zeros({0, 3}), u = t.to(cpu);
    t.copy_(u);
    EXPECT_EQ(add(t, t).numel(), 0);
    EXPECT_EQ(sum(t).item<float>(), 0);
    pinned_allocator<int> al;
    al.deallocate(al.allocate(0), 0);
  }
  auto after = held();
  EXPECT_EQ(before.size(), after.size());
  for (int d = 0; d < 3; ++d) {
    EXPECT_EQ(memory_allocated(d), 0u);
    EXPECT_EQ(memory_stats(d).allocation.all.current, 0);
  }
}

TEST_F(bad_input, another_devices_stream) {
  stream s0{0}, s1{1}, s2{2};
  {
    device_guard on{1};
    void* const p = allocate(s0, 1000);  // the device is the stream's
    EXPECT_EQ(find_block(p)->on, device(0));
    EXPECT_EQ(current_device(), device(1));
    record_stream(p, s1);
    deallocate(s2, p);
  }
  buffer a(4096, {.on = 0}), b(4096, {.on = 1});
  refused<invalid_use>([&] { a.set_stream(s1); }, {"set_stream", "gpu:1", "gpu:0"});
  refused<invalid_use>([&] { copy(s2, b.data(), a.data(), 4096); }, {"copy", "gpu:0", "gpu:1", "gpu:2"});
  refused<invalid_use>(
      [&] {
        copy_item const item{b.data(), a.data(), 4096};
        copy(s2, std::span(&item, 1));
      },
      {"copy", "gpu:2"});
  refused<invalid_use>(
      [&] {
        launch(
            s2, {reads(a)}, [](CUstream_st*) {}, [] {});
      },
      {"launch", "gpu:0", "gpu:2"});
  event e, timed{{.timing = true}}, timed1{{.timing = true}};
  e.record(s0);
  refused<invalid_use>([&] { e.record(s1); }, {"event::record", "gpu:0", "gpu:1"});
  e.record(s0);
  timed.record(s0);
  timed1.record(s1);
  timed.synchronize();
  timed1.synchronize();
  refused<invalid_use>([&] { (void)timed.elapsed_time(timed1); }, {"elapsed_time", "gpu:0", "gpu:1"});
  refused<invalid_use>([&] { (void)e.elapsed_time(timed); }, {"elapsed_time", "start"});
  refused<invalid_use>([&] { (void)timed.elapsed_time(event{{.timing = true}}); }, {"elapsed_time", "never recorded"});
  s1.ref().wait(e);  // waits across devices are valid
  refused<invalid_use>([&] { external_stream f(0, reinterpret_cast<CUstream_st*>(64)); }, {"external_stream", "gpu:0"});
  refused<not_supported>([&] { (void)s0.ref().native(); }, {"native"});
  refused<not_supported>([&] { (void)e.native(); }, {"native"});
}

TEST_F(bad_input, copies_past_the_end_of_a_known_block) {
  std::vector<char> host(8192);
  for (size_t const holds : {size_t{100}, size_t{4096}, size_t{3} << 20}) {
    host.resize(holds + 64);
    buffer on(holds), page = pinned(holds), other(holds + 1, {.on = 1});
    for (buffer const* b : {&on, &page}) {
      auto* const p = b->data<char>();
      refused<invalid_use>([&] { copy(p, host.data(), holds + 1); },
                           {"copy", "dst", text(p), "holds " + std::to_string(holds) + " B",
                            "asked " + std::to_string(holds + 1) + " B"});
      refused<invalid_use>([&] { copy(host.data(), p, holds + 1); },
                           {"copy", "src", "holds " + std::to_string(holds) + " B"});
      refused<invalid_use>([&] { copy(p + holds - 1, host.data(), 2); },
                           {"holds 1 B to the end of its block of " + std::to_string(holds) + " B", "asked 2 B"});
      refused<invalid_use>([&] { copy(p, other.data(), holds + 1); }, {"copy", "dst"});
      refused<invalid_use>([&] { copy(other.data(), p, holds + 1); }, {"copy", "src"});
      refused<invalid_use>([&] { fill(p, std::byte{1}, holds + 1); },
                           {"fill", "holds " + std::to_string(holds) + " B"});
      refused<invalid_use>(
          [&] {
            launch(
                default_stream(), {reads(p, holds + 1)}, [](CUstream_st*) {}, [] {});
          },
          {"launch", std::to_string(holds + 1) + " B"});
      copy(p, host.data(), holds);
    }
    refused<invalid_use>([&] { copy(on.data<char>() + 1, on.data(), holds / 2); }, {"overlap"});
    refused<invalid_use>([&] { copy(on.data(), nullptr, 1); }, {"src", "null"});
    refused<invalid_use>([&] { copy(nullptr, on.data(), 1); }, {"dst", "null"});
    refused<invalid_use>([&] { fill(nullptr, std::byte{1}, 1); }, {"fill", "null"});
    void *gone = on.data(), *gone_page = page.data();
    on.reset();
    page.reset();
    refused<invalid_use>([&] { copy(gone, host.data(), 1); }, {"copy", text(gone), "not allocated"});
    refused<invalid_use>(
        [&] {
          launch(
              default_stream(), {writes(gone)}, [](CUstream_st*) {}, [] {});
        },
        {"launch", text(gone)});
    refused<invalid_use>([&] { enable_peer_access(gone, 1); }, {text(gone)});
    refused<invalid_use>([&] { copy(gone_page, host.data(), 1); }, {"copy", text(gone_page)});
  }
}

TEST_F(bad_input, device_and_host_out_of_memory) {
  buffer keep(1_MiB);
  auto const says = [](std::function<void()> const& f, said_parts parts) {
    refused<out_of_memory>(f, parts);
    try {
      f();
    } catch (out_of_memory const& e) {
      EXPECT_FALSE(e.report().text().empty());
      EXPECT_GT(e.report().capacity, 0u);
      EXPECT_NE(e.remedy().find(' '), std::string_view::npos) << "no sentence: " << e.remedy();
      EXPECT_NE(std::string(e.what()).find("bad_input_test.cpp"), std::string::npos) << e.what();
    }
  };
  says([] { buffer b(100_MiB); }, {"buffer", "gpu:0", "104857600 B"});
  says([] { (void)zeros({100, 1024, 1024}); }, {"gpu:0"});
  set_memory_limit(4_MiB);
  says([] { buffer b(8_MiB); }, {"gpu:0", "8388608 B"});
  set_memory_limit(0);
  { buffer fine(8_MiB); }
  buffer page = pinned(1_MiB);
  says([] { buffer b = pinned(32_MiB); }, {"cpu", "33554432 B"});
  buffer again = pinned(8_MiB);
  refused<invalid_use>([] { set_per_process_memory_fraction(1.5); }, {"1.5"});
  refused<invalid_use>([] { set_per_process_memory_fraction(0); }, {"0"});
  refused<invalid_use>([] { set_per_process_memory_fraction(std::numeric_limits<double>::quiet_NaN()); }, {"nan"});
  refused<invalid_use>([] { set_per_process_memory_fraction(-1); }, {"-1"});
  refused<out_of_memory>([] { buffer b(size_t{1} << 60, {.on = cpu}); }, {});
}

TEST_F(bad_input, an_exception_of_a_callback_comes_through) {
  auto const ours = on_out_of_memory([](memory_report const&) -> bool { throw std::runtime_error("mine"); });
  auto const before = held();
  EXPECT_THROW(buffer b(100_MiB), std::exception);
  EXPECT_EQ(before, held());
}

}  // namespace
}  // namespace weir
