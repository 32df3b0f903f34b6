// Two programs that each want nearly all of a device, in turn: with options::device_idle each gives back what the
// other needs.
// Threads: one; the other process has its own.
#include "runtime/driver/driver_front.h"
#include "tests/peer/machine_fixture.h"
#include "tests/peer/other_process.h"
#include "weir/device.h"
#include "weir/observe.h"

namespace weir {
namespace {

// A machine that another runtime uses, too, and that outlives both.
class shared_machine final : public driver::driver_front<shared_machine> {
 public:
  explicit shared_machine(weir::driver::driver& m) : driver_front(std::unique_ptr<weir::driver::driver>(&m)) {}
  ~shared_machine() override { (void)inner_.release(); }
  template <class Behind>
  auto pass(weir::driver::call, weir::driver::call_subject, Behind&& behind) -> decltype(behind()) {
    return behind();
  }
};

std::size_t reserved() {
  return static_cast<std::size_t>(memory_stats(0).reserved_bytes.all.current);
}

// False: the memory stays for a long time.
bool gives_back() {
  for (int tries = 0; tries < 1000; ++tries) {
    synchronize();
    if (reserved() == 0)
      return true;
    base::sleep_ns(10'000'000);
  }
  return false;
}

TEST(turns, two_runtimes_on_one_simulated_device) {
  for (auto const idle : {std::chrono::milliseconds(5), std::chrono::milliseconds(0)}) {
    auto made = driver::sim::make(simulated{.devices = 1, .memory = 64_MiB});
    std::unique_ptr<runtime> both[2];
    for (auto& one : both)
      one = make_runtime(std::make_unique<shared_machine>(*made.machine), {.device_idle = idle}, "a shared device");
    for (int turn = 0; turn < 6; ++turn) {
      runtime_guard const in(*both[turn % 2]);
      auto const work = [] { buffer const most(58_MiB, {.on = device(0)}); };
      if (idle.count() || turn % 2 == 0) {
        EXPECT_NO_THROW(work()) << turn;
      } else {
        EXPECT_THROW(work(), out_of_memory) << "the other one keeps it";
      }
      if (idle.count()) {
        EXPECT_TRUE(gives_back()) << turn;
      }
    }
  }
}

std::unique_ptr<test::machine> gpus_that_give_back() {
  ::setenv("WEIR_DEVICES", "cuda", 1);
  std::unique_ptr<test::machine> made;
  try {
    made = std::make_unique<test::machine>(options{.device_idle = std::chrono::milliseconds(50)});
  } catch (not_supported const&) {}
  ::unsetenv("WEIR_DEVICES");
  return made;
}

// Writes both ends of a block of nine tenths of the device.
void use_nearly_all() {
  std::size_t const bytes = mem_get_info(device(0)).total / 10 * 9;
  buffer const most(bytes, {.on = device(0)});
  for (std::size_t const at : {std::size_t{0}, bytes - 4096})
    copy(default_stream(0), static_cast<std::byte*>(most.data()) + at, test::pattern(4096, 1).data(), 4096,
         blocking::yes);
}

constexpr std::uint64_t rounds = 3;

WEIR_ROLE(uses_nearly_all_in_turn) {
  auto const m = gpus_that_give_back();
  ASSERT_NE(m, nullptr);
  line.signal(1, default_stream(0));
  for (std::uint64_t i = 0; i < rounds; ++i) {
    (void)line.wait();
    use_nearly_all();
    ASSERT_TRUE(gives_back());
    line.signal(2 + i, default_stream(0));
  }
}

TEST(turns, two_processes_on_one_gpu) {
  auto const m = gpus_that_give_back();
  if (!m)
    GTEST_SKIP() << "no GPU";
  test::other_process other("uses_nearly_all_in_turn");
  ASSERT_EQ(other.line().wait(), 1u) << "its context is there";
  for (std::uint64_t i = 0; i < rounds; ++i) {
    use_nearly_all();
    ASSERT_TRUE(gives_back()) << i;
    other.line().signal(2 + i, default_stream(0));
    ASSERT_EQ(other.line().wait(), 2 + i);
  }
  EXPECT_EQ(other.end(), "exit 0");
}

}  // namespace
}  // namespace weir
