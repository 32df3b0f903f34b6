// The calls that weir makes of NCCL, by a libnccl.so.2 of the test: which of them wait, and what an abort frees.
// Threads: one for each rank, and one that aborts.
#include <dlfcn.h>

#include <functional>
#include <thread>

#include "peer/collective/group.h"
#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "runtime/driver/driver_front.h"
#include "simulator/machine/machine.h"
#include "streams/stream/context.h"
#include "tests/peer/ranks.h"
#include "weir/stream.h"

namespace weir {
namespace {

using namespace std::chrono_literals;

// A simulated machine that names its streams to NCCL.
class named_streams final : public driver::driver_front<named_streams> {
 public:
  explicit named_streams(std::unique_ptr<weir::driver::driver> m) : driver_front(std::move(m)) {}
  template <class Behind>
  auto pass(weir::driver::call, weir::driver::call_subject, Behind&& behind) -> decltype(behind()) {
    return behind();
  }
  weir::driver::driver* behind() noexcept override { return inner_.get(); }
  weir::driver::result<CUstream_st*> native(int, weir::driver::stream_handle) override {
    return {{}, reinterpret_cast<CUstream_st*>(this)};
  }
};

struct report {
  std::string wrong;
  int live = 0, connects = 0;
};

class nccl_calls : public testing::Test {
 protected:
  void SetUp() override {
    void* const so = ::dlopen(WEIR_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);  // weir then finds it by its name
    ASSERT_TRUE(so) << ::dlerror();
    ask_ = reinterpret_cast<decltype(ask_)>(::dlsym(so, "fake_nccl_report"));
    try {
      (void)peer::nccl_id(source_location::current());
    } catch (not_supported const& e) {
      GTEST_SKIP() << e.what();  // built without NCCL's header
    }
  }
  report now() const {
    report r;
    ask_(&r.wrong, &r.live, &r.connects);
    return r;
  }
  static std::unique_ptr<runtime> machine_of(int devices) {
    return make_runtime(
        std::make_unique<named_streams>(driver::sim::make(simulated{.devices = devices, .memory = 64_MiB}).machine), {},
        "simulated streams with names");
  }

  struct one {
    std::unique_ptr<runtime> machine;
    std::unique_ptr<peer::collective_backend> backend;
    clock::stream_clock* on = nullptr;
    buffer memory;
    void issue(int rank, peer::collective what, std::int64_t count, int with = 0) {
      backend->issue(rank, *on,
                     std::vector{peer::collective_request{what, float32, reduce_op::sum, with, count, memory.data(),
                                                          memory.data()}},
                     source_location::current());
    }
  };
  // Each rank with a runtime of its own, connected.
  static std::vector<one> processes(int size) {
    std::string const id = peer::nccl_id(source_location::current());
    std::vector<one> all(static_cast<std::size_t>(size));
    base::atomic<int> ready{0};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        one& mine = all[static_cast<std::size_t>(rank)];
        mine.machine = machine_of(1);
        runtime_guard const in(*mine.machine);
        mine.memory = buffer(1_MiB);
        mine.on = &streams::current_clock(mine.machine->get(), 0, source_location::current());
        std::vector<int> devices(static_cast<std::size_t>(size), -1);
        devices[static_cast<std::size_t>(rank)] = 0;
        mine.backend = peer::carried_by_nccl(
            mine.machine->get(), devices, rank, id, [] { return std::string(); }, source_location::current());
        mine.backend->connect(
            [&] {
              ready.fetch_add(1);
              while (ready.load() < size)
                std::this_thread::yield();
            },
            source_location::current());
      });
    for (auto& t : threads)
      t.join();
    return all;
  }
  static constexpr peer::collective kinds[] = {peer::collective::all_reduce, peer::collective::broadcast,
                                               peer::collective::all_gather, peer::collective::reduce_scatter};

 private:
  void (*ask_)(std::string*, int*, int*) = nullptr;
};

// One rank alone calls each: nothing waits for another.
TEST_F(nccl_calls, of_first_collectives_wait_for_no_rank) {
  for (int const size : {1, 2, 3}) {
    auto all = processes(size);
    int const connects = now().connects;
    for (auto const what : kinds)
      for (std::int64_t const count : {1, 1 << 16})
        all[0].issue(0, what, count);
    EXPECT_EQ(now().connects, connects) << size;
    for (int rank = 0; rank < size; ++rank)
      all[static_cast<std::size_t>(rank)].backend->leave(rank);
    EXPECT_EQ(now().live, 0);
  }
  auto const machine = machine_of(2);
  {
    runtime_guard const in(*machine);
    auto const both = peer::carried_by_nccl(machine->get(), {0, 1}, source_location::current());
    int const connects = now().connects;
    EXPECT_GT(connects, 0);
    buffer const memory(1_MiB);
    auto& on = streams::current_clock(machine->get(), 0, source_location::current());
    for (auto const what : kinds)
      for (std::int64_t const count : {1, 1 << 16})
        both->issue(0, on,
                    std::vector{peer::collective_request{what, float32, reduce_op::sum, 0, count, memory.data(),
                                                         memory.data()}},
                    source_location::current());
    EXPECT_EQ(now().connects, connects);
  }
  auto const end = now();
  EXPECT_EQ(end.wrong, "");
  EXPECT_EQ(end.live, 0);
}

// A thread that connects leaves NCCL at once, and before its communicator is freed.
TEST_F(nccl_calls, are_over_before_an_abort_frees) {
  for (int round = 0; round < 5; ++round) {
    auto all = processes(2);
    std::thread sends([&] {
      runtime_guard const in(*all[0].machine);
      EXPECT_THROW(all[0].issue(0, peer::collective::send, 4, 1), driver_error);
    });
    std::this_thread::sleep_for(20ms);
    auto const begin = std::chrono::steady_clock::now();
    all[0].backend->abort();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 1s);
    sends.join();
    EXPECT_NE(all[0].backend->broken(0), "");
    for (int rank = 0; rank < 2; ++rank)
      all[static_cast<std::size_t>(rank)].backend->leave(rank);
  }
  auto const end = now();
  EXPECT_EQ(end.wrong, "");
  EXPECT_EQ(end.live, 0);
}

// The other rank never comes; or it comes, and never splits.
TEST_F(nccl_calls, of_a_creation_that_gives_up_leave_nothing) {
  for (bool const comes : {false, true}) {
    std::string const id = peer::nccl_id(source_location::current());
    auto const create = [&](int rank, std::function<std::string()> gives_up) {
      auto const machine = machine_of(1);
      runtime_guard const in(*machine);
      current_stream().synchronize();
      std::vector<int> devices{-1, -1};
      devices[static_cast<std::size_t>(rank)] = 0;
      try {
        (void)peer::carried_by_nccl(machine->get(), devices, rank, id, std::move(gives_up), source_location::current());
        ADD_FAILURE() << "rank " << rank << " was connected";
      } catch (driver_error const& e) {
        EXPECT_NE(std::string(e.operands()).find("enough"), std::string::npos) << e.what();
      }
    };
    if (comes)  // gives up, but NCCL knows it by then
      create(1, [] { return std::string("enough"); });
    create(0, [n = 0]() mutable { return ++n < 20 ? std::string() : std::string("enough"); });
    auto const end = now();
    EXPECT_EQ(end.wrong, "") << comes;
    EXPECT_EQ(end.live, 0) << comes;
  }
}

}  // namespace
}  // namespace weir
