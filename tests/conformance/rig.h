// What a conformance test stands on: one machine, simulated or of GPUs,
// with gates and logs to prove order by.
// Threads: a test and its gates' watchdogs; nothing here is shared between tests but the GPUs.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/driver/driver.h"
#include "simulator/machine/machine.h"

namespace weir::conformance {

using driver::address;
using driver::capture_mode;
using driver::code;
using driver::event_handle;
using driver::executable_handle;
using driver::graph_handle;
using driver::event_kind;
using driver::gate_handle;
using driver::memory_handle;
using driver::status;
using driver::stream_handle;
using driver::stream_kind;

struct choice {  // of a machine to test
  enum class of : std::uint8_t { threads, seeded, cuda } kind = of::threads;
  std::uint64_t seed = 0;
};
std::string name_of(choice const&);
inline void PrintTo(choice const& c, std::ostream* out) { *out << name_of(c); }
std::vector<choice> every_machine();  // seeds: WEIR_TEST_SEED alone, or a few

// A stream held closed. Opens at the latest when it is destroyed, or after 2 s by a watchdog:
// that fails the test.
class gate {
 public:
  gate(driver::driver&, gate_handle, bool watched);
  ~gate();
  gate(gate const&) = delete;
  gate& operator=(gate const&) = delete;
  void open();

 private:
  void open_once();

  driver::driver& machine_;
  gate_handle handle_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool opened_ = false, late_ = false;
  std::thread watchdog_;
};

// Device memory: pages mapped at addresses of their own, granted to their device.
struct block {
  int device = -1;
  address at = 0;
  std::size_t bytes = 0;
  memory_handle handle = memory_handle::none;
  std::uint32_t* words() const noexcept { return reinterpret_cast<std::uint32_t*>(at); }
};

class conformance : public testing::TestWithParam<choice> {
 protected:
  void SetUp() override;
  void TearDown() override;

  driver::driver& machine() noexcept { return *machine_; }
  bool on_cuda() const noexcept { return GetParam().kind == choice::of::cuda; }
  bool seeded() const noexcept { return GetParam().kind == choice::of::seeded; }
  // How many devices the test can have, opened. Skip when it is too few: use NEED_DEVICES.
  bool have_devices(int n);
  std::size_t page() const noexcept { return page_; }

  // What is made by these is taken back at the end of the test.
  stream_handle stream(int device, stream_kind = stream_kind::independent);
  event_handle event(int device, event_kind = event_kind::order_only);
  block memory(int device);
  block memory(int device, std::size_t bytes);
  std::uint32_t* pinned(std::size_t bytes);  // host memory, page-locked, zero
  gate& hold(int device, stream_handle);
  // what `what` gives streams, ready to be launched there
  executable_handle captured(int device, stream_handle, std::function<void()> const& what);

  // Work of one step, given to the stream.
  void log(int device, stream_handle, std::uint32_t x);
  std::vector<std::uint32_t> logged();
  void store(int device, stream_handle, std::uint32_t* to, std::uint32_t value);
  void thread_scheduler(int device, stream_handle, std::uint32_t* to, std::uint32_t const* from);
  void crash(int device, stream_handle);  // the device is lost when this has run
  bool lives(int device, stream_handle);        // whether the device is not lost
  void a_device_will_be_lost() noexcept { crashed_ = true; }

  void elsewhere(std::function<void()> const& body);  // on another thread, to its end
  // A call past the seam that is unsafe while streams are captured: false when it was refused.
  bool unsafe_call(event_handle);

  void finish(int device, stream_handle);  // waits for all work given so far
  bool becomes(code, std::function<status()> const& ask);  // within 2 s
  std::uint32_t read(block const& b, std::size_t word = 0);  // on a stream of its own: what ordered work left there
  void write(block const& b, std::uint32_t value, std::size_t word = 0);

  // A lost device stays lost for the life of the process. On GPUs the test runs again in a process of its
  // own, and this answers false in the process that shall not do it.
  bool alone();

  driver::sim::controls* control() noexcept { return control_; }

 private:
  status run(int device, stream_handle, std::vector<driver::touch>, std::function<void()> simulated,
             std::function<int(CUstream_st*)> on_gpu);

  std::unique_ptr<driver::driver> own_;
  driver::driver* machine_ = nullptr;
  driver::sim::controls* control_ = nullptr;
  std::size_t page_ = 0;
  int opened_ = 0;
  std::vector<std::pair<int, stream_handle>> streams_;
  std::vector<std::pair<int, event_handle>> events_;
  std::vector<block> blocks_;
  std::vector<std::pair<void*, std::size_t>> pins_;
  std::list<gate> gates_;
  std::vector<executable_handle> executables_;
  std::mutex log_mutex_;
  std::vector<std::uint32_t> log_;  // simulated
  struct device_log* device_log_ = nullptr;
  bool crashed_ = false;
};

#define NEED_DEVICES(n)                                                                                        \
  do {                                                                                                         \
    if (!have_devices(n)) GTEST_SKIP() << "needs " << (n) << " devices; there are " << machine().device_count(); \
  } while (false)

#define EXPECT_OK(call) EXPECT_PRED_FORMAT1(::weir::conformance::is_ok, (call))
#define ASSERT_OK(call) ASSERT_PRED_FORMAT1(::weir::conformance::is_ok, (call))
#define EXPECT_SAYS(expected, call) EXPECT_PRED_FORMAT2(::weir::conformance::says, expected, (call))
#define ASSERT_SAYS(expected, call) ASSERT_PRED_FORMAT2(::weir::conformance::says, expected, (call))
testing::AssertionResult is_ok(char const* text, status);
testing::AssertionResult says(char const* expected_text, char const* text, code expected, status);

#define WEIR_CONFORMANCE(suite)                                              \
  INSTANTIATE_TEST_SUITE_P(machine, suite, testing::ValuesIn(every_machine()), \
                           [](auto const& of) { return name_of(of.param); })

}  // namespace weir::conformance
