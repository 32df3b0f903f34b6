// Launches, copies and fills that name no stream, by weir's interface: their order and what the checker says.
// Threads: one.
#include <optional>

#include "runtime/driver/driver_front.h"
#include "tests/check/bench.h"
#include "tests/check/programs.h"

namespace weir::check_tests {
namespace {

struct values {
  int x = 0, y = 0, z = 0;
};

// y = x + 1 names no stream, between the writer of x and the reader of y, which do.
values one_launch_without_a_stream(stream_ref s, int first_line = 0) {
  auto const at = [&](int n) { return source_location{"program.cpp", "", static_cast<unsigned>(first_line + n)}; };
  stream_ref const legacy = borrow_stream(s.device(), nullptr);
  buffer const all(s, 3 * 4096);
  int *const x = all.data<int>(), *const y = x + 1024, *const z = y + 1024;
  fill(s, x, std::byte{0}, all.size());
  s.synchronize();
  launch(
      s, {writes(x, 4)}, on_gpu, [x] { *x = 7; }, at(1));
  launch(
      legacy, {reads(x, 4), writes(y, 4)}, on_gpu, [x, y] { *y = *x + 1; }, at(2));
  launch(
      s, {reads(y, 4), writes(z, 4)}, on_gpu, [y, z] { *z = *y * 10; }, at(3));
  synchronize(s.device());
  values v;
  copy(s, &v.x, x, 4);
  copy(s, &v.y, y, 4);
  copy(s, &v.z, z, 4);
  return v;
}

bool is_right(values const& v) {
  return v.x == 7 && v.y == 8 && v.z == 80;
}

int right_of_50(stream_flags flags) {
  int right = 0;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    runtime rt{simulated{.devices = 1, .schedule = simulated::scheduling::seeded, .seed = seed}};
    runtime_guard const in{rt};
    stream const s{flags};
    right += is_right(one_launch_without_a_stream(s));
    (void)race_reports();  // expected where the whole test runs under the checker
  }
  return right;
}

// A program of cudaStreamCreate relies on this order.
TEST(legacy_launch, on_a_blocking_stream_is_right_and_no_race) {
  EXPECT_EQ(right_of_50(stream_flags::blocking), 50);
  expect_none(found([] { (void)one_launch_without_a_stream(stream(stream_flags::blocking)); }));
  expect_none(found([] { (void)one_launch_without_a_stream(default_stream()); }));
}

// The machine shows the wrong result under some seeds, the checker both races under each.
TEST(legacy_launch, on_a_non_blocking_stream_races_by_name) {
  EXPECT_LT(right_of_50(stream_flags::non_blocking), 50);
  auto const all = found([] { (void)one_launch_without_a_stream(stream(), 10); });
  ASSERT_EQ(all.size(), 2u) << texts(all);
  EXPECT_EQ(std::pair(all[0].first.line(), all[0].second.line()), std::pair(11u, 12u)) << texts(all);
  EXPECT_EQ(std::pair(all[1].first.line(), all[1].second.line()), std::pair(12u, 13u)) << texts(all);
}

// cudaMemset and cudaMemcpy are on the legacy stream, too.
TEST(legacy_launch, copies_and_fills_are_judged_alike) {
  for (auto const flags : {stream_flags::blocking, stream_flags::non_blocking}) {
    std::size_t const wanted = flags == stream_flags::blocking ? 0 : 1;
    EXPECT_EQ(found([&] {
                stream const s{flags};
                buffer const x(s, 4096);
                write(s, x.data(), 4096);
                fill(borrow_stream(0, nullptr), x.data(), std::byte{1}, 4096);
                synchronize();
              }).size(),
              wanted);
    EXPECT_EQ(found([&] {
                stream const s{flags};
                buffer const x(s, 4096), to = pinned(4096);
                write(s, x.data(), 4096);
                copy(borrow_stream(0, nullptr), to.data(), x.data(), 4096);
                synchronize();
              }).size(),
              wanted);
  }
}

// A stream that the program made keeps its own flags, whichever door it comes by.
TEST(legacy_launch, a_program_stream_is_ordered_by_its_flags) {
  for (auto const flags : {stream_flags::blocking, stream_flags::non_blocking}) {
    std::size_t const wanted = flags == stream_flags::blocking ? 0 : 2;
    EXPECT_EQ(found([&] {
                simulated_stream const theirs(0, flags);
                external_stream const known(0, theirs.handle());
                EXPECT_EQ(stream_ref(known).flags(), flags);
                (void)one_launch_without_a_stream(known);
              }).size(),
              wanted);
    EXPECT_EQ(found([&] {
                simulated_stream const theirs(0, flags);
                auto const borrowed = borrow_stream(0, theirs.handle());
                EXPECT_EQ(borrowed.flags(), flags);
                (void)one_launch_without_a_stream(borrowed);
              }).size(),
              wanted);
  }
}

// On a simulated machine nothing goes past weir.
TEST(legacy_launch, a_simulated_machine_leaves_nothing_unjudged) {
  (void)found([] {
    (void)one_launch_without_a_stream(default_stream());
    EXPECT_EQ(races_not_judged(), "");
  });
}

}  // namespace
}  // namespace weir::check_tests

namespace weir::driver::check {
namespace {

// Streams and events that the checker did not see made, as those that a program makes by CUDA.
struct program_streams : bench {
  stream_handle theirs(stream_kind k) { return machine->behind()->create_stream(0, k, 0).value; }
  stream_handle adopt(stream_handle s) {
    auto const r = machine->adopt(0, reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(s)));
    EXPECT_TRUE(r.ok());
    return r.value;
  }
  // Whether a write there and then one on the legacy stream are reported.
  bool races_with_legacy(stream_handle s) {
    address const x = memory();
    auto const before = judge->findings().size();
    write(s, x);
    write(stream_handle::legacy, x);
    return judge->findings().size() > before;
  }
};

TEST_F(program_streams, are_ordered_with_legacy_by_their_kind) {
  EXPECT_FALSE(races_with_legacy(adopt(theirs(stream_kind::blocking))));
  EXPECT_TRUE(races_with_legacy(adopt(theirs(stream_kind::independent))));
}

// A captured stream cannot be asked, and its work outside the capture comes later.
TEST_F(program_streams, a_captured_one_is_asked_at_its_next_work) {
  auto const s = theirs(stream_kind::blocking);
  ASSERT_TRUE(machine->behind()->begin_capture(0, s, capture_mode::relaxed).ok());
  (void)adopt(s);
  auto const g = machine->behind()->end_capture(0, s);
  ASSERT_TRUE(g.ok());
  EXPECT_TRUE(machine->behind()->destroy_graph(g.value).ok());
  EXPECT_FALSE(races_with_legacy(s));
}

// A machine of GPUs: it is not simulated, and it has handles for CUDA.
class like_gpus final : public driver_front<like_gpus> {
 public:
  using driver_front::driver_front;
  bool simulated() const noexcept override { return false; }
  result<stream_kind> kind_of(int device, stream_handle s) override {
    return says ? result<stream_kind>{{}, *says} : driver_front::kind_of(device, s);
  }
  std::optional<stream_kind> says;
  template <class Behind>
  auto pass(call, call_subject, Behind&& behind) {
    return behind();
  }
};

// The driver gives the handle of a stream that has ended to one of the other kind.
TEST(program_stream, is_asked_again_when_its_handle_comes_back) {
  auto inner = sim::make({.devices = 1, .memory = 16_MiB, .schedule = scheduling::stepped, .seed = 1});
  auto gpus = std::make_unique<like_gpus>(std::move(inner.machine));
  like_gpus& front = *gpus;
  auto const w = wrap(std::move(gpus));
  ASSERT_TRUE(w.machine->open(0).ok());
  auto const theirs = front.create_stream(0, stream_kind::blocking, 0).value;
  for (auto const kind : {stream_kind::blocking, stream_kind::independent, stream_kind::blocking}) {
    front.says = kind;
    ASSERT_TRUE(w.machine->adopt(0, reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(theirs))).ok());
    ASSERT_TRUE(w.machine->enqueue(0, theirs, {}, {}).ok());
    epoch const its = w.control->position(0, theirs);
    EXPECT_EQ(w.control->ordered(its, 0, stream_handle::legacy), kind == stream_kind::blocking);
  }
}

// A reader must not take "no error" for a statement about work that only CUDA knows.
TEST(unjudged_work, is_named_with_the_number_of_its_streams) {
  auto inner = sim::make({.devices = 1, .memory = 16_MiB, .schedule = scheduling::stepped, .seed = 1});
  driver& below = *inner.machine;
  auto const w = wrap(std::make_unique<like_gpus>(std::move(inner.machine)));
  ASSERT_TRUE(w.machine->open(0).ok());
  EXPECT_EQ(w.control->unseen().text(), "Not judged: work given to CUDA itself (without a stream)");
  auto const s = w.machine->create_stream(0, stream_kind::blocking, 0).value;
  auto const e = w.machine->create_event(0, event_kind::order_only).value;
  auto const theirs = below.create_stream(0, stream_kind::independent, 0).value;
  for (int i = 0; i < 2; ++i) {  // each counts once
    w.machine->watching()->stream_handed_out({0, s});
    w.machine->watching()->event_handed_out(e);
    ASSERT_TRUE(w.machine->adopt(0, reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(theirs))).ok());
    ASSERT_TRUE(w.machine->adopt(0, nullptr).ok());
  }
  EXPECT_EQ(w.control->unseen().text(),
            "Not judged: work given to CUDA itself (on 1 stream handed out by native(), with 1 event handed out by "
            "native(), on 1 stream of the program, or without a stream)");
  unjudged two = w.control->unseen();
  two.host_pointers = true;
  two += w.control->unseen();
  EXPECT_EQ(two.text(),
            "Not judged: work given to CUDA itself (on 2 streams handed out by native(), with 2 events handed out by "
            "native(), on 2 streams of the program, or without a stream); accesses of the host through a pointer");
  (void)w.control->findings();
}

// Without page protection a host pointer is not seen.
TEST(unjudged_work, says_that_unguarded_pinned_memory_was_used) {
  auto inner = sim::make({.devices = 1, .memory = 16_MiB, .schedule = scheduling::stepped, .seed = 1});
  auto const w = wrap(std::make_unique<like_gpus>(std::move(inner.machine)));
  ASSERT_TRUE(w.machine->open(0).ok());
  alignas(4096) static char host[4096];
  ASSERT_TRUE(w.machine->pin(host, sizeof host).ok());
  auto const s = w.machine->create_stream(0, stream_kind::independent, 0).value;
  EXPECT_FALSE(w.control->unseen().host_pointers);
  EXPECT_TRUE(w.machine->fill(0, s, host, 1, 1, sizeof host).ok());
  EXPECT_TRUE(w.control->unseen().host_pointers);
  EXPECT_TRUE(w.machine->synchronize_stream(0, s).ok());
  EXPECT_TRUE(w.machine->unpin(host).ok());
  (void)w.control->findings();
}

}  // namespace
}  // namespace weir::driver::check
