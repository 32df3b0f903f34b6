// Creation and destruction of machines, streams, memory, gates and logs for the conformance suite.
// Threads: as rig.h says.
#include "tests/conformance/rig.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "tests/conformance/kernels.h"
#include "tests/support/child.h"

namespace weir::conformance {
namespace {

constexpr auto patience = std::chrono::seconds(2);
constexpr char const* child_variable = "WEIR_CONFORMANCE_CHILD";

struct gpus {
  driver::opened found = driver::open_cuda();
};
gpus& the_gpus() {
  static auto* const once = new gpus;  // one a process, because contexts are slow to create
  return *once;
}

driver::work work_of(std::function<void()> f) {
  driver::work w;
  w.run = [](void* s) { (*static_cast<std::function<void()>*>(s))(); };
  w.drop = [](void* s) { delete static_cast<std::function<void()>*>(s); };
  w.state = new std::function<void()>(std::move(f));
  return w;
}

}  // namespace

std::string name_of(choice const& c) {
  switch (c.kind) {
    case choice::of::threads: return "threads";
    case choice::of::seeded: return "seed_" + std::to_string(c.seed);
    case choice::of::cuda: return "cuda";
  }
  return {};
}

std::vector<choice> every_machine() {
  std::vector<choice> all{{choice::of::threads, 1}};
  if (char const* const seed = std::getenv("WEIR_TEST_SEED")) {
    all.push_back({choice::of::seeded, std::strtoull(seed, nullptr, 0)});
  } else {
    for (std::uint64_t seed = 1; seed <= 5; ++seed)
      all.push_back({choice::of::seeded, seed});
  }
  all.push_back({choice::of::cuda, 0});
  return all;
}

testing::AssertionResult is_ok(char const* text, status s) {
  return says("ok", text, code::ok, s);
}

testing::AssertionResult says(char const*, char const* text, code expected, status s) {
  if (s.what == expected)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << text << "\n  answers " << driver::name_of(s.what) << " (" << s.native
                                     << "), expected " << driver::name_of(expected);
}

gate::gate(driver::driver& machine, gate_handle handle, bool watched) : machine_(machine), handle_(handle) {
  if (!watched)
    return;
  watchdog_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, patience, [this] { return opened_; }))
      return;
    late_ = true;
    open_once();
  });
}

gate::~gate() {
  open();
  if (watchdog_.joinable())
    watchdog_.join();
}

void gate::open() {
  std::unique_lock const lock(mutex_);
  if (late_) {
    ADD_FAILURE() << "a held stream was opened by the watchdog after 2 s: some call waited for it";
    late_ = false;
  }
  open_once();
}

void gate::open_once() {
  if (opened_)
    return;
  opened_ = true;
  EXPECT_OK(machine_.open_gate(handle_));
  changed_.notify_all();
}

void conformance::SetUp() {
  if (on_cuda()) {
    auto& found = the_gpus().found;
    if (!found.machine)
      GTEST_SKIP() << found.why;
    machine_ = found.machine.get();
  } else {
    simulated how;
    how.devices = 4;
    how.memory = 1_GiB;
    how.schedule = seeded() ? simulated::scheduling::seeded : simulated::scheduling::threads;
    how.seed = GetParam().seed;
    auto made = driver::sim::make(how);
    own_ = std::move(made.machine);
    machine_ = own_.get();
    control_ = made.control;
  }
  auto const about = machine_->info(0);
  ASSERT_OK(about.is);
  page_ = about.value.granularity;
  ASSERT_TRUE(have_devices(1));
}

bool conformance::have_devices(int n) {
  if (n > machine_->device_count())
    return false;
  for (; opened_ < n; ++opened_) {
    if (status const s = machine_->open(opened_); !s.ok()) {
      ADD_FAILURE() << "open(" << opened_ << ") answers " << driver::name_of(s.what) << " (" << s.native << ")";
      return false;
    }
    if (!on_cuda())
      continue;
    EXPECT_OK(machine_->make_current(opened_));
    EXPECT_EQ(load_kernels(), 0);
  }
  return true;
}

void conformance::TearDown() {
  if (!machine_)
    return;
  gates_.clear();
  for (int d = 0; d < opened_; ++d) {
    status const s = machine_->synchronize_device(d);
    if (!crashed_) {
      EXPECT_OK(s);
    }
  }
  for (auto const e : executables_)
    machine_->destroy_executable(e);
  for (auto const& [device, s] : streams_)
    machine_->destroy_stream(device, s);
  for (auto const& [device, e] : events_)
    machine_->destroy_event(device, e);
  for (block const& b : blocks_) {
    machine_->unmap(b.at, b.bytes);
    machine_->unreserve(b.at, b.bytes);
    machine_->release(b.handle);
  }
  for (auto const& [at, bytes] : pins_) {
    machine_->unpin(at);
    if (!crashed_)
      ::munmap(at, bytes);
  }
}

stream_handle conformance::stream(int device, stream_kind kind) {
  auto const made = machine_->create_stream(device, kind, 0);
  EXPECT_OK(made.is);
  streams_.emplace_back(device, made.value);
  return made.value;
}

event_handle conformance::event(int device, event_kind kind) {
  auto const made = machine_->create_event(device, kind);
  EXPECT_OK(made.is);
  events_.emplace_back(device, made.value);
  return made.value;
}

block conformance::memory(int device) {
  return memory(device, page_);
}

block conformance::memory(int device, std::size_t bytes) {
  block b{.device = device, .bytes = bytes};
  auto const at = machine_->reserve(bytes, 0);
  auto const handle = machine_->create(device, bytes);
  EXPECT_OK(at.is);
  EXPECT_OK(handle.is);
  b.at = at.value;
  b.handle = handle.value;
  EXPECT_OK(machine_->map(b.at, bytes, b.handle));
  EXPECT_OK(machine_->grant(b.at, bytes, device));
  blocks_.push_back(b);
  return b;
}

std::uint32_t* conformance::pinned(std::size_t bytes) {
  std::size_t const whole = (bytes + 4095) / 4096 * 4096;
  void* const at = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::memset(at, 0, whole);
  EXPECT_OK(machine_->pin(at, whole));
  pins_.emplace_back(at, whole);
  return static_cast<std::uint32_t*>(at);
}

gate& conformance::hold(int device, stream_handle s) {
  auto const made = machine_->hold(device, s);
  EXPECT_OK(made.is);
  // A seeded machine needs no watchdog: it sees a wait for a closed gate itself.
  return gates_.emplace_back(*machine_, made.value, !seeded());
}

executable_handle conformance::captured(int device, stream_handle s, std::function<void()> const& what) {
  EXPECT_OK(machine_->begin_capture(device, s, capture_mode::global));
  what();
  auto const kept = machine_->end_capture(device, s);
  EXPECT_OK(kept.is);
  auto const made = machine_->instantiate(device, kept.value);
  EXPECT_OK(made.is);
  EXPECT_OK(machine_->destroy_graph(kept.value));
  executables_.push_back(made.value);
  return made.value;
}

void conformance::elsewhere(std::function<void()> const& body) {
  std::thread(body).join();
}

bool conformance::unsafe_call(event_handle e) {
  if (!on_cuda())
    return control_->unsafe_call();
  auto const native = machine_->native_event(e);
  EXPECT_OK(native.is);
  return query_event(native.value) == 0;
}

status conformance::run(int device, stream_handle s, std::vector<driver::touch> touches,
                        std::function<void()> simulated, std::function<int(CUstream_st*)> on_gpu) {
  if (!on_cuda())
    return machine_->enqueue(device, s, touches, work_of(std::move(simulated)));
  auto const native = machine_->native(device, s);
  if (!native.ok())
    return native.is;
  if (status const said = machine_->make_current(device); !said.ok())
    return said;
  int const error = on_gpu(native.value);
  return {error == 0 ? code::ok : code::failed, error};
}

void conformance::log(int device, stream_handle s, std::uint32_t x) {
  if (on_cuda() && !device_log_)
    device_log_ = reinterpret_cast<device_log*>(pinned(sizeof(device_log)));
  EXPECT_OK(run(
      device, s, {},
      [this, x] {
        std::lock_guard const lock(log_mutex_);
        log_.push_back(x);
      },
      [&](CUstream_st* native) { return launch_append(native, device_log_, x); }));
}

std::vector<std::uint32_t> conformance::logged() {
  if (!on_cuda()) {
    std::lock_guard const lock(log_mutex_);
    return log_;
  }
  if (!device_log_)
    return {};
  auto const* const seen = static_cast<device_log const volatile*>(device_log_);
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < seen->count && i < device_log::capacity; ++i)
    all.push_back(static_cast<std::uint32_t>(seen->at[i]));
  return all;
}

void conformance::store(int device, stream_handle s, std::uint32_t* to, std::uint32_t value) {
  EXPECT_OK(run(
      device, s, {{.at = reinterpret_cast<address>(to), .bytes = 4, .writes = true}}, [to, value] { *to = value; },
      [&](CUstream_st* native) { return launch_store(native, to, value); }));
}

void conformance::copy_word(int device, stream_handle s, std::uint32_t* to, std::uint32_t const* from) {
  EXPECT_OK(run(
      device, s,
      {{.at = reinterpret_cast<address>(from), .bytes = 4, .writes = false},
       {.at = reinterpret_cast<address>(to), .bytes = 4, .writes = true}},
      [to, from] { *to = *from; }, [&](CUstream_st* native) { return launch_copy_word(native, to, from); }));
}

void conformance::crash(int device, stream_handle s) {
  crashed_ = true;
  if (on_cuda()) {
    if (lives(device, s)) {  // else another device's fault has lost it
      EXPECT_OK(run(
          device, s, {}, [] {}, [](CUstream_st* native) { return launch_crash(native); }));
    }
    EXPECT_SAYS(code::lost, machine_->synchronize_stream(device, s));
  } else {
    control_->lose_device(device);
  }
}

bool conformance::lives(int device, stream_handle s) {
  return machine_->query_stream(device, s).what != code::lost;
}

void conformance::finish(int device, stream_handle s) {
  EXPECT_OK(machine_->synchronize_stream(device, s));
}

bool conformance::becomes(code expected, std::function<status()> const& ask) {
  auto const end = std::chrono::steady_clock::now() + patience;
  for (status s = ask();; s = ask()) {
    if (s.what == expected)
      return true;
    if (s.what != code::not_ready || std::chrono::steady_clock::now() > end) {
      ADD_FAILURE() << "answers " << driver::name_of(s.what) << " (" << s.native << "), expected "
                    << driver::name_of(expected);
      return false;
    }
    if (!seeded())
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

std::uint32_t conformance::read(block const& b, std::size_t word) {
  stream_handle const s = stream(b.device);
  std::uint32_t* const out = pinned(4);
  EXPECT_OK(machine_->copy(b.device, s, out, b.words() + word, 4));
  finish(b.device, s);
  return *out;
}

void conformance::write(block const& b, std::uint32_t value, std::size_t word) {
  stream_handle const s = stream(b.device);
  EXPECT_OK(machine_->fill(b.device, s, b.words() + word, value, 4, 1));
  finish(b.device, s);
}

bool conformance::alone() {
  if (!on_cuda() || std::getenv(child_variable))
    return true;
  auto const* const test = testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = "--gtest_filter=";
  filter += std::string(test->test_suite_name()) + '.' + test->name();
  std::string variable = child_variable;
  variable += "=1";
  std::vector<std::string> words = tests::environment_of_a_child();
  std::vector<char*> environment;
  for (auto& w : words)
    environment.push_back(w.data());
  environment.push_back(variable.data());
  environment.push_back(nullptr);
  std::string self = "/proc/self/exe";
  char* const arguments[] = {self.data(), filter.data(), nullptr};
  std::cout.flush();
  pid_t child = 0;
  if (int const e = ::posix_spawn(&child, self.c_str(), nullptr, nullptr, arguments, environment.data())) {
    ADD_FAILURE() << "spawn: " << std::strerror(e);
    return false;
  }
  int exit_status = 0;
  auto const end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (::waitpid(child, &exit_status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &exit_status, 0);
      ADD_FAILURE() << "the child process did not end within 60 s";
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(WIFEXITED(exit_status) && WEXITSTATUS(exit_status) == 0)
      << "the child process failed, see its output above";
  return false;
}

}  // namespace weir::conformance
