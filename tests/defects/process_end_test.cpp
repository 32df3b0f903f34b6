// Process ends and forks with everything in use: no hang, no crash, typed
// errors. WEIR_DEVICES chooses the machine; default: simulated.
// Threads: as each test says. Each end is a process of its own; one that hangs is killed by its alarm.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "runtime/base/process.h"
#include "runtime/base/process_end.h"
#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "tests/defects/belongings.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/sim.h"
#include "weir/tensor.h"

namespace weir {
namespace {

constexpr char const* ends_by_return = "WEIR_TEST_END_BY_RETURN";

struct at_the_end {  // a destructor that still uses weir
  void (*run)();
  ~at_the_end() { run(); }
};

// At process end any call may fail; none may crash or hang.
void use_everything() {
  auto const tried = [](auto f) {
    try {
      f();
    } catch (error const&) {}
  };
  tried([] { buffer b(1000); });
  tried([] { buffer b = pinned(1000); });
  tried([] {
    stream s;
    s.ref().synchronize();
  });
  tried([] { (void)zeros({3}).cpu(); });
  tried([] {
    event e;
    e.record();
    e.synchronize();
  });
  tried([] { device_guard g{1}; });
  tried([] { (void)memory_summary(); });
  tried([] { synchronize(); });
  tried([] { (void)empty_cache(); });
  tried([] { of_program.t.fill_(2); });
  tried([] { of_program.drop(); });
}

struct process_end : own_process {};

TEST_F(process_end, by_exit_with_everything_held_by_statics) {
  EXPECT_CLEAN_END({
    of_program.fill();
    static belongings later;
    later.fill();
    keep_busy(*later.s, 20);
    std::exit(7);
  });
}

TEST_F(process_end, by_return_from_main_with_live_statics) {
  EXPECT_CLEAN_END({
    ::setenv(ends_by_return, "1", 1);
    ::execl("/proc/self/exe", "process_end", static_cast<char*>(nullptr));
    std::_Exit(1);
  });
}

// The library that multiplies gives its memory back at the end, while workers are inside of it.
TEST_F(process_end, while_simulated_products_run) {
  for (int round = 0; round < 15; ++round) {
    EXPECT_CLEAN_END({
      ::setenv("WEIR_DEVICES", "sim:4:1", 0);
      std::vector<tensor> results;
      for (int d = 0; d < device_count(); ++d) {
        device_guard const on{d};
        tensor const a = ones({256, 256});
        results.push_back(empty({256, 256}));
        for (int i = 0; i < 100; ++i)
          matmul_out(results.back(), a, a);
      }
      std::exit(7);
    });
  }
}

// Exit handlers run in the reverse order: what a library registered when it was loaded would come first.
TEST_F(process_end, runs_a_function_before_earlier_handlers) {
  EXPECT_CLEAN_END({
    static int handlers = 0;
    (void)device_count();
    std::atexit([] { ++handlers; });
    run_at_process_end([] {
      if (handlers != 0 || !process_is_ending())
        std::_Exit(1);
      ++handlers;
    });
    std::atexit([] {
      if (handlers != 0 || process_is_ending())
        std::_Exit(2);
    });
    std::exit(7);
  });
}

// A kernel that never ends keeps no process on a GPU either; its end takes the time that running work is given.
TEST_F(process_end, by_exit_while_work_hangs) {
  EXPECT_CLEAN_END({
    launch(
        default_stream(), {}, [](CUstream_st*) {},
        [] {
          for (;;)
            sleep_ms(100);
        });
    sleep_ms(20);
    std::exit(7);
  });
}

TEST_F(process_end, by_exit_inside_a_hosts_function) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 3);
    launch_host(*of_program.s, [] { std::exit(7); });
    keep_busy(*of_program.s, 3);
    for (;;)
      sleep_ms(100);
  });
}

TEST_F(process_end, by_quick_exit_inside_a_hosts_function) {
  EXPECT_CLEAN_END({
    of_program.fill();
    launch_host(*of_program.s, [] { std::quick_exit(7); });
    of_program.s->ref().synchronize();
    for (;;)
      sleep_ms(100);
  });
}

TEST_F(process_end, by_abort_with_work_in_flight) {
  EXPECT_EXIT(
      {
        begin();
        of_program.fill();
        keep_busy(*of_program.s, 20);
        std::abort();
      },
      testing::KilledBySignal(SIGABRT), "");
}

// The driver is torn down before weir's statics: from some moment on every call answers `unloading`.
TEST_F(process_end, an_early_end_of_the_driver_is_harmless) {
  EXPECT_CLEAN_END({
    auto owned = std::make_unique<driver::fault_injector>(driver::sim::make({.devices = 2, .memory = 64_MiB}).machine);
    auto* const machine = owned.get();
    auto mine = make_runtime(std::move(owned), {}, "one that goes");
    std::optional<runtime_guard> in(*mine);
    belongings held;
    held.fill();
    keep_busy(*held.s, 5);
    machine->refuse(
        {.with = driver::code::unloading, .more = driver::fault_injector::without_end, .by_contract = false});
    use_everything();
    try {
      (void)held.t.cpu();
      std::_Exit(1);
    } catch (driver_error const& e) {
      if (e.operands().find("ending") == std::string_view::npos)
        std::_Exit(2);
    }
    held.drop();
    in.reset();
    mine.reset();
    std::exit(7);
  });
}

// Another library may reset a device under live owners: then every device of the process is lost.
void lose_all_devices() {
  if (runtime::current().is_simulated()) {
    for (int d = 0; d < device_count(); ++d)
      simulation::of(runtime::current()).lose_device(d);
    return;
  }
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  using reset = int (*)(int);
  auto const reset_device = reinterpret_cast<reset>(::dlsym(library, "cuDevicePrimaryCtxReset_v2"));
  for (int d = 0; d < device_count(); ++d) {
    if (reset_device(d) != 0)
      std::_Exit(9);
  }
}

// In CUDA a launch on a stream from before the reset is undefined, and crashes: there only owners and frees follow.
TEST_F(process_end, by_exit_after_the_devices_were_lost) {
  EXPECT_CLEAN_END({
    of_program.fill();
    static belongings later;
    later.fill();
    static thread_local belongings of_thread;
    of_thread.fill();
    belongings here;
    here.fill();
    synchronize();
    bool const simulated = runtime::current().is_simulated();
    lose_all_devices();
    if (simulated)
      use_everything();
    else
      of_program.drop();
    here.drop();
    std::exit(7);
  });
}

[[noreturn]] void free_after_a_loss_and_exit() {
  begin();
  {
    runtime own(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const in(own);
    stream s;
    buffer large(s, 5_MiB);
    buffer const small(s, 400);
    simulation::of(own).lose_device(0);
    try {
      fill(s, large.data(), std::byte{1}, 10);
      s.synchronize();
    } catch (device_lost const&) {}
  }
  std::fputs("|end|", stderr);
  std::exit(7);
}

// Nothing that was freed is reported. A checker tells what it saw.
TEST_F(process_end, after_a_loss_reports_only_what_lives) {
  EXPECT_EXIT(free_after_a_loss_and_exit(), testing::ExitedWithCode(7), "^\\|end\\|(weir-434: [^\n]*\n)?$");
}

#if defined(WEIR_PLUGIN)
// gcc's unique symbols (hidden by plugin.map) and destructors of living threads' values also keep a library
// loaded. Here neither exists: only weir keeps the library loaded.
TEST_F(process_end, a_library_with_weir_unloads_only_when_unused) {
  if (::access(WEIR_PLUGIN, R_OK) != 0)
    GTEST_SKIP() << "no " << WEIR_PLUGIN << " here";
  EXPECT_CLEAN_END({
    auto const loaded = [] { return ::dlopen(WEIR_PLUGIN, RTLD_NOW | RTLD_NOLOAD) != nullptr; };
    void* const unused = ::dlopen(WEIR_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    if (!unused || ::dlclose(unused) != 0)
      std::_Exit(1);
    if (loaded())
      std::_Exit(2);  // else the test could not fail
    void* const library = ::dlopen(WEIR_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    auto const touch = reinterpret_cast<int (*)()>(::dlsym(library, "touch_weir"));
    int answer = -1;
    std::thread([&] { answer = touch(); }).join();
    if (answer != 0)
      std::_Exit(3);
    if (::dlclose(library) != 0)
      std::_Exit(4);
    if (!loaded())
      std::_Exit(5);
    std::exit(7);
  });
}

TEST_F(process_end, a_library_that_holds_weir_may_be_closed) {
  if (::access(WEIR_PLUGIN, R_OK) != 0)
    GTEST_SKIP() << "no " << WEIR_PLUGIN << " here";
  EXPECT_CLEAN_END({
    for (int i = 0; i < 3; ++i) {
      void* const library = ::dlopen(WEIR_PLUGIN, RTLD_NOW | RTLD_LOCAL);
      if (!library)
        std::_Exit(1);
      auto const use = reinterpret_cast<int (*)()>(::dlsym(library, "use_weir"));
      if (!use || use() != 0)
        std::_Exit(2);
      if (::dlclose(library) != 0)
        std::_Exit(3);
      sleep_ms(20);  // threads and queued work of the library go on
    }
    std::exit(7);
  });
}
#endif

TEST_F(process_end, by_quick_exit_with_work_in_flight) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 20);
    std::quick_exit(7);
  });
}

TEST_F(process_end, by_exit_of_another_thread_while_the_first_waits) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 100);
    std::thread([] {
      sleep_ms(20);
      std::exit(7);
    }).detach();
    of_program.s->ref().synchronize();
    for (;;)
      sleep_ms(100);
  });
}

TEST_F(process_end, by_exit_while_other_threads_use_everything) {
  EXPECT_CLEAN_END({
    for (int i = 0; i < 4; ++i) {
      std::thread([] {
        for (;;) {
          try {
            buffer b(5000);
            stream s;
            s.wait(current_stream());
            launch(
                s, {writes(b)}, [](CUstream_st*) {}, [] {});
            current_stream().wait(s);
            buffer page = pinned(100);
            copy(b.data(), page.data(), 100);
          } catch (error const&) {
            sleep_ms(1);
          }
        }
      }).detach();
    }
    sleep_ms(100);
    std::exit(7);
  });
}

TEST_F(process_end, static_destructors_may_use_the_default_runtime) {
  EXPECT_CLEAN_END({
    static at_the_end before{use_everything};  // destroyed after weir has seen the process end
    of_program.fill();
    static at_the_end after{use_everything};
    std::exit(7);
  });
}

TEST_F(process_end, the_first_use_may_be_in_a_static_destructor) {
  EXPECT_CLEAN_END({
    static at_the_end first{use_everything};
    std::exit(7);
  });
}

TEST_F(process_end, static_runtimes_end_around_their_objects) {
  EXPECT_CLEAN_END({
    static belongings before;
    static runtime mine(simulated{.devices = 2, .memory = 64_MiB});
    static belongings after;
    static runtime_guard in(mine);
    before.fill();
    after.fill();
    keep_busy(*after.s, 5);
    std::exit(7);
  });
}

TEST_F(process_end, threads_that_end_late_take_their_own_along) {
  EXPECT_CLEAN_END({
    std::thread([] {
      thread_local belongings mine;
      thread_local std::optional<device_guard> on;
      mine.fill();
      on.emplace(device_count() - 1);
    }).join();
    static thread_local belongings of_main;
    of_main.fill();
    std::exit(7);
  });
}

TEST_F(process_end, an_exception_of_a_host_function_ends_the_process) {
  for (auto const how :
       {simulated::scheduling::threads, simulated::scheduling::stepped, simulated::scheduling::seeded}) {
    EXPECT_EXIT(
        {
          ::alarm(20);
          runtime r(simulated{.devices = 1, .memory = 64_MiB, .schedule = how, .seed = 1});
          runtime_guard in(r);
          try {
            launch(
                default_stream(), {}, [](CUstream_st*) {}, [] { throw std::runtime_error("mine"); });
            default_stream().synchronize();
          } catch (...) {
            std::_Exit(3);
          }
          std::_Exit(4);
        },
        testing::KilledBySignal(SIGABRT), "");
  }
}

}  // namespace

int main_of_an_end() {
  begin();
  of_program.fill();
  static belongings later;
  later.fill();
  keep_busy(*later.s, 20);
  return 7;
}
bool is_an_end() {
  return std::getenv(ends_by_return) != nullptr;
}
}  // namespace weir

int main(int argc, char** argv) {
  if (weir::is_an_end())
    return weir::main_of_an_end();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
