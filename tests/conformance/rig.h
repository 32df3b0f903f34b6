// The fixture of conformance tests: one machine, simulated or of GPUs, with gates and logs that prove order.
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
using driver::event_kind;
using driver::executable_handle;
using driver::gate_handle;
using driver::graph_handle;
using driver::memory_handle;
using driver::status;
using driver::stream_handle;
using driver::stream_kind;

struct choice {  // a machine to test
  enum class of : std::uint8_t { threads, seeded, cuda } kind = of::threads;
  std::uint64_t seed = 0;
};
std::string name_of(choice const&);
inline void PrintTo(choice const& c, std::ostream* out) {
  *out << name_of(c);
}
std::vector<choice> every_machine();  // seeds: WEIR_TEST_SEED only, or a few

// Holds a stream. Its destructor opens it; a watchdog opens it after 2 s and fails the test.
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

// Device memory: pages mapped at their own addresses, accessible to their device.
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
  // Opens n devices. Returns: false if the machine has fewer. To skip then, use NEED_DEVICES.
  bool have_devices(int n);
  std::size_t page() const noexcept { return page_; }

  // The fixture destroys these at the end of the test.
  stream_handle stream(int device, stream_kind = stream_kind::independent);
  event_handle event(int device, event_kind = event_kind::order_only);
  block memory(int device);
  block memory(int device, std::size_t bytes);
  std::uint32_t* pinned(std::size_t bytes);  // page-locked and zeroed
  gate& hold(int device, stream_handle);
  // the captured work of `what`, ready to launch
  executable_handle captured(int device, stream_handle, std::function<void()> const& what);

  // One operation each, enqueued on the stream.
  void log(int device, stream_handle, std::uint32_t x);
  std::vector<std::uint32_t> logged();
  void store(int device, stream_handle, std::uint32_t* to, std::uint32_t value);
  void copy_word(int device, stream_handle, std::uint32_t* to, std::uint32_t const* from);
  void crash(int device, stream_handle);  // once it has run, the device is lost
  bool lives(int device, stream_handle);  // whether the device is not lost
  void a_device_will_be_lost() noexcept { crashed_ = true; }

  void elsewhere(std::function<void()> const& body);  // runs on another thread; waits for its end
  // A call past the driver interface that captures forbid. Returns: false if it was refused.
  bool unsafe_call(event_handle);

  void finish(int device, stream_handle);                    // waits for all work enqueued so far
  bool becomes(code, std::function<status()> const& ask);    // within 2 s
  std::uint32_t read(block const& b, std::size_t word = 0);  // reads on its own stream the bytes that ordered work left
  void write(block const& b, std::uint32_t value, std::size_t word = 0);

  // A lost device stays lost until the process ends. On GPUs the test therefore runs again in its own
  // process. Returns: false in the process that must not run it.
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

#define NEED_DEVICES(n)                                                                      \
  do {                                                                                       \
    if (!have_devices(n))                                                                    \
      GTEST_SKIP() << "needs " << (n) << " devices; there are " << machine().device_count(); \
  } while (false)

#define EXPECT_OK(call) EXPECT_PRED_FORMAT1(::weir::conformance::is_ok, (call))
#define ASSERT_OK(call) ASSERT_PRED_FORMAT1(::weir::conformance::is_ok, (call))
#define EXPECT_SAYS(expected, call) EXPECT_PRED_FORMAT2(::weir::conformance::says, expected, (call))
#define ASSERT_SAYS(expected, call) ASSERT_PRED_FORMAT2(::weir::conformance::says, expected, (call))
testing::AssertionResult is_ok(char const* text, status);
testing::AssertionResult says(char const* expected_text, char const* text, code expected, status);

#define WEIR_CONFORMANCE(suite)                                                \
  INSTANTIATE_TEST_SUITE_P(machine, suite, testing::ValuesIn(every_machine()), \
                           [](auto const& of) { return name_of(of.param); })

}  // namespace weir::conformance
