// Forks of a process that uses weir. The child gets typed errors, may free its owners, and ends; the parent's
// memory stays as it is. WEIR_DEVICES chooses the machine; default: simulated.
// Threads: as each test says. One that hangs is killed by its alarm.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/core/parts.h"
#include "runtime/options/options.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "tests/defects/belongings.h"
#include "weir/copy.h"
#include "weir/graph.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/share.h"

namespace weir {
namespace {

struct forks : own_process {};

// Exit status of a child; 100 + signal if a signal ended it.
int ended(pid_t child) {
  int status = -1;
  if (::waitpid(child, &status, 0) != child)
    return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

int forked_child_uses_everything() {
  int untyped = 0;
  auto const refused = [&](auto f) {
    try {
      f();
      ++untyped;
    } catch (error const& e) {
      if (e.operation().empty() || e.remedy().empty())
        ++untyped;
    }
  };
  refused([] { buffer b(1000); });
  refused([] { buffer b = pinned(1000); });
  refused([] { (void)zeros({3}); });
  refused([] { of_program.t.fill_(1); });
  refused([] { (void)of_program.t.cpu(); });
  refused([] { of_program.s->ref().synchronize(); });
  refused([] { synchronize(); });
  refused([] {
    char c = 0;
    copy(of_program.block->data(), &c, 1);
  });
  refused([] {
    launch(
        *of_program.s, {}, [](CUstream_st*) {}, [] {});
  });
  refused([] { launch_host(*of_program.s, [] {}); });
  refused([] {
    event e;
    e.record(*of_program.s);
  });
  refused([] { stream a, b, c, d; });
  try {
    device_guard g{0};
    (void)memory_allocated();
    of_program.block.reset();
    of_program.drop();
  } catch (error const&) {}
  return untyped;
}

TEST_F(forks, after_use_refuses_the_child_everything) {
  EXPECT_CLEAN_END({
    of_program.fill();
    keep_busy(*of_program.s, 10);
    pid_t const child = ::fork();
    if (child == 0) {
      ::alarm(10);
      std::exit(forked_child_uses_everything() == 0 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    if (!WIFEXITED(status))
      std::_Exit(1);
    if (WEXITSTATUS(status) != 0)
      std::_Exit(2);
    of_program.s->ref().synchronize();  // the parent still works
    buffer b(1000);
    if (of_program.t.cpu().data<float>()[0] != 1)
      std::_Exit(3);
    std::exit(7);
  });
}

TEST_F(forks, during_calls_of_other_threads_does_not_hang) {
  EXPECT_CLEAN_END({
    of_program.fill();
    for (int i = 0; i < 3; ++i) {
      std::thread([] {
        for (;;) {
          buffer b(5000);
          buffer page = pinned(100);
          copy(b.data(), page.data(), 100);
          of_program.t.record_stream(*of_program.s);
          (void)memory_stats();
        }
      }).detach();
    }
    for (int i = 0; i < 40; ++i) {
      sleep_ms(3);
      pid_t const child = ::fork();
      if (child == 0) {
        ::alarm(4);
        std::exit(forked_child_uses_everything() == 0 ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      if (WIFSIGNALED(status))
        std::_Exit(WTERMSIG(status) == SIGALRM ? 1 : 2);
      if (WEXITSTATUS(status) != 0)
        std::_Exit(3);
    }
    std::_Exit(7);
  });
}

int uses_weir(float value) {
  buffer block(1000);
  fill(block.data(), std::byte{7}, block.size());
  std::vector<std::byte> out(1000);
  copy(out.data(), block.data(), out.size());
  tensor const t = full({10}, value);
  bool const right = out[999] == std::byte{7} && t.cpu().data<float>()[9] == value;
  return right ? 7 : 1;
}

TEST_F(forks, before_the_first_use_both_are_whole) {
  EXPECT_CLEAN_END({
    pid_t const child = ::fork();
    if (child == 0)
      std::exit(uses_weir(3));
    int const of_parent = uses_weir(5);
    if (ended(child) != 7)
      std::_Exit(2);
    std::exit(of_parent);
  });
}

TEST_F(forks, the_childs_error_says_so) {
  EXPECT_CLEAN_END({
    of_program.fill();
    pid_t const child = ::fork();
    if (child == 0) {
      try {
        buffer b(1000);
      } catch (not_supported const& e) {
        std::exit(e.operands().find("forked") != std::string_view::npos &&
                          e.remedy().find("Fork before the first use") != std::string_view::npos
                      ? 0
                      : 2);
      }
      std::exit(1);
    }
    std::exit(ended(child) == 0 ? 7 : 1);
  });
}

// Returns: how many calls of a child did not name themselves and the fork.
int calls_without_the_fork() {
  of_program.fill();
  stream_ref const s = *of_program.s;
  pool rows("rows", {.on = s.device()});
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0)
    return 100;
  share_channel line(ends[0]);
  buffer const block(1000, {.on = s.device()});
  graph step = graph::capture(s, [&] { fill(s, block.data(), std::byte{1}, 10); });
  stamp const now = s.stamp();
  event& e = *of_program.e;
  event begin({.timing = true}), end({.timing = true});
  begin.record(s), end.record(s);
  synchronize();
  now.synchronize(), e.synchronize();  // complete, so that no call needs the driver
  pid_t const child = ::fork();
  if (child != 0)
    return ended(child);
  ::alarm(10);
  int wrong = 0;
  auto const refused = [&](std::string_view operation, auto f) {
    try {
      f();
      ++wrong;
    } catch (not_supported const& is) {
      wrong += is.operation() != operation || is.operands().find("forked") == std::string_view::npos;
    }
  };
  refused("stamp::query", [&] { (void)now.query(); });
  refused("stamp::synchronize", [&] { now.synchronize(); });
  refused("event::query", [&] { (void)e.query(); });
  refused("event::synchronize", [&] { e.synchronize(); });
  refused("event::elapsed_time", [&] { (void)begin.elapsed_time(end); });
  refused("event::native", [&] { (void)e.native(); });
  refused("graph::launch", [&] { step.launch(s); });
  refused("pool::allocate", [&] { (void)rows.allocate(10); });
  refused("pool::set_limit", [&] { rows.set_limit(1_MiB); });
  refused("share_channel::set_timeout", [&] { line.set_timeout(std::chrono::seconds(1)); });
  refused("share_channel::wait", [&] { (void)line.wait(); });
  ::_exit(wrong);
}

TEST_F(forks, each_call_of_the_child_names_the_fork) {
  EXPECT_CLEAN_END(std::exit(calls_without_the_fork() == 0 ? 7 : 1););
}

struct patterns {  // bytes of the parent that a child must not change
  buffer block{100'000}, page = pinned(50'000);
  patterns() {
    fill(block.data(), std::byte{0x5a}, block.size());
    std::memset(page.data(), 0x3c, page.size());
  }
  bool as_they_were() const {
    std::vector<std::byte> now(block.size());
    copy(now.data(), block.data(), now.size());
    for (std::byte const b : now) {
      if (b != std::byte{0x5a})
        return false;
    }
    for (std::byte const b : page.host<std::byte>()) {
      if (b != std::byte{0x3c})
        return false;
    }
    return true;
  }
};

TEST_F(forks, leaves_the_parents_bytes_alone) {
  EXPECT_CLEAN_END({
    of_program.fill();
    patterns p;
    for (int i = 0; i < 3; ++i) {
      pid_t const child = ::fork();
      if (child == 0) {
        ::alarm(10);
        p.block.reset();
        p.page.reset();
        of_program.drop();
        std::exit(forked_child_uses_everything());
      }
      if (ended(child) != 0)
        std::_Exit(1);
      if (!p.as_they_were())
        std::_Exit(2);
      buffer next(100'000);  // a free in the child must not free the block here
      if (next.data() == p.block.data())
        std::_Exit(3);
    }
    std::exit(7);
  });
}

using bytes_in_pages = std::vector<char, pinned_allocator<char>>;

// A writer of checkpoints forks, and reads what the parent's heap and pinned memory hold. It makes no call of weir.
TEST_F(forks, the_child_reads_host_memory_of_the_parent) {
  EXPECT_CLEAN_END({
    of_program.fill();
    buffer const page = pinned(3 << 20);
    std::memset(page.data(), 9, page.size());
    bytes_in_pages const list(1000, 4);
    std::vector<std::byte> heap(100'000, std::byte{3});
    registered_host_memory const locked(heap);
    auto const beside = std::make_unique<int>(5);  // often on the last page of the heap's block
    std::byte of_stack[5000] = {};
    registered_host_memory const locked_too(of_stack);
    pid_t const child = ::fork();
    if (child == 0) {
      ::alarm(10);
      bool const all = std::all_of(page.data<char>(), page.data<char>() + page.size(), [](char c) { return c == 9; }) &&
                       std::all_of(list.begin(), list.end(), [](char c) { return c == 4; }) &&
                       std::all_of(heap.begin(), heap.end(), [](std::byte b) { return b == std::byte{3}; }) &&
                       *beside == 5 && of_stack[2500] == std::byte{0};
      bool const by_system = ::write(::open("/dev/null", O_WRONLY), page.data(), page.size()) == 3 << 20;
      ::_exit(all && by_system ? 7 : 1);
    }
    std::exit(ended(child));
  });
}

// Engines of the parent read these pages at any time.
TEST_F(forks, what_the_child_writes_to_host_memory_is_its_own) {
  EXPECT_CLEAN_END({
    buffer const page = pinned(1000);
    page.data<char>()[0] = 5;
    std::vector<std::byte> heap(1000);
    registered_host_memory const locked(heap);
    pid_t const child = ::fork();
    if (child == 0) {
      page.data<char>()[0] = 6;
      heap[0] = std::byte{6};
      ::_exit(7);
    }
    int const of_child = ended(child);
    std::exit(of_child != 7 ? 1 : page.data<char>()[0] != 5 ? 2 : heap[0] != std::byte{0} ? 3 : 7);
  });
}

// At a write after a fork the system would copy a private page, and the engine would read the old one.
TEST_F(forks, keeps_pinned_writes_of_the_parent_visible) {
  EXPECT_CLEAN_END({
    buffer page = pinned(50'000);
    buffer block(50'000);
    std::memset(page.data(), 1, page.size());
    copy(block.data(), page.data(), page.size());
    int hold[2];
    if (::pipe(hold) != 0)
      std::_Exit(1);
    pid_t const child = ::fork();
    if (child == 0) {
      char c = 0;
      ::close(hold[1]);
      std::_Exit(::read(hold[0], &c, 1) == 0 ? 0 : 1);  // stays alive until the parent has looked
    }
    std::memset(page.data(), 2, page.size());
    copy(block.data(), page.data(), page.size());
    std::vector<std::byte> now(block.size());
    copy(now.data(), block.data(), now.size());
    ::close(hold[1]);
    if (ended(child) != 0)
      std::_Exit(2);
    for (std::byte const b : now) {
      if (b != std::byte{2})
        std::_Exit(3);
    }
    std::exit(7);
  });
}

// Stops one thread inside a call, while its callers hold their locks.
class standing : public driver::fault_injector {
 public:
  using fault_injector::fault_injector;
  void stop_at(std::string_view call) {
    std::lock_guard const hold(lock_);
    at_ = call, inside_ = false;
  }
  bool wait_until_inside() {
    std::unique_lock hold(lock_);
    return changed_.wait_for(hold, std::chrono::seconds(5), [this] { return inside_; });
  }
  void go_on() {
    std::lock_guard const hold(lock_);
    at_ = {};
    changed_.notify_all();
  }

  weir::driver::result<weir::driver::device_info> info(int d) override {
    return stand("info"), fault_injector::info(d);
  }
  weir::driver::status open(int d) override { return stand("open"), fault_injector::open(d); }
  weir::driver::result<weir::driver::address> reserve(std::size_t n, std::size_t a) override {
    return stand("reserve"), fault_injector::reserve(n, a);
  }
  weir::driver::result<weir::driver::memory_handle> create(int d, std::size_t n) override {
    return stand("create"), fault_injector::create(d, n);
  }
  weir::driver::status map(weir::driver::address at, std::size_t n, weir::driver::memory_handle h) override {
    return stand("map"), fault_injector::map(at, n, h);
  }
  weir::driver::status grant(weir::driver::address at, std::size_t n, int d) override {
    return stand("grant"), fault_injector::grant(at, n, d);
  }
  weir::driver::status pin(void* p, std::size_t n) override { return stand("pin"), fault_injector::pin(p, n); }
  weir::driver::result<weir::driver::stream_handle> create_stream(int d, weir::driver::stream_kind k, int p) override {
    return stand("create_stream"), fault_injector::create_stream(d, k, p);
  }
  weir::driver::result<weir::driver::event_handle> create_event(int d, weir::driver::event_kind k) override {
    return stand("create_event"), fault_injector::create_event(d, k);
  }
  weir::driver::status record(int d, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    return stand("record"), fault_injector::record(d, s, e);
  }

 private:
  void stand(std::string_view call) {
    std::unique_lock hold(lock_);
    if (at_ != call)
      return;
    inside_ = true;
    changed_.notify_all();
    changed_.wait(hold, [&] { return at_ != call; });
  }
  std::mutex lock_;
  std::condition_variable changed_;
  std::string_view at_;
  bool inside_ = false;
};

std::unique_ptr<driver::driver> some_machine() {
  auto const choice = devices_from_environment();
  if (choice.which == machine_choice::kind::cuda)
    return driver::open_cuda().machine;
  return driver::sim::make({.devices = 2, .memory = 256_MiB}).machine;
}

// The process forks while another thread's first use of every feature is inside `call`.
int forks_while_another_thread_is_inside(std::string_view call) {
  auto owned = std::make_unique<standing>(some_machine());
  auto* const machine = owned.get();
  auto const mine = make_runtime(std::move(owned), {}, "one that stands still").release();
  machine->stop_at(call);
  std::thread user([mine] {
    runtime_guard const in(*mine);
    stream s;
    buffer large(40'000'000);
    buffer page = pinned(5'000'000);
    event e;
    e.record(s);
    (void)memory_stats();
  });
  if (!machine->wait_until_inside())
    return 1;
  auto const child_ends = [mine] {
    pid_t const child = ::fork();
    if (child == 0) {
      ::alarm(10);
      runtime_guard const in(*mine);
      std::exit(forked_child_uses_everything());
    }
    return ended(child);
  };
  int of_child = child_ends();
#ifdef __SANITIZE_ADDRESS__
  // At the fork a starting thread may hold AddressSanitizer's lock, and the child hangs in `new`. A second
  // fork succeeds. The stopped thread still stands, so weir's own locks are unchanged.
  if (of_child == 100 + SIGALRM)
    of_child = child_ends();
#endif
  machine->go_on();
  user.join();
  {
    runtime_guard const in(*mine);
    patterns const p;
    if (!p.as_they_were())
      return 2;
  }
  delete mine;
  return of_child == 0 ? 0 : 3;
}

TEST_F(forks, during_a_driver_call_with_locks_does_not_hang) {
  for (std::string const call :
       {"info", "open", "reserve", "create", "map", "grant", "pin", "create_stream", "create_event", "record"}) {
    EXPECT_EXIT(
        {
          begin();
          of_program.fill();
          patterns const p;
          int const wrong = forks_while_another_thread_is_inside(call);
          std::exit(wrong ? wrong : p.as_they_were() ? 7 : 4);
        },
        testing::ExitedWithCode(7), "")
        << call;
  }
}

}  // namespace
}  // namespace weir
