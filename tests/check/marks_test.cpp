// Streams that a block was marked for: the checker knows each, also those that weir has forgotten by the free.
// Threads: one, but where a test makes more.
#include <thread>

#include "runtime/core/parts.h"
#include "streams/stream/borrowed.h"
#include "tests/check/programs.h"
#include "weir/memory.h"
#include "weir/share.h"
#include "weir/stream.h"
#include "weir/stream_of.h"

namespace weir::check_tests {
namespace {

// The program's own work on its own stream, of which weir is told nothing.
void use(CUstream_st* s, void const* p, size_t bytes) {
  driver::touch const all{reinterpret_cast<driver::address>(p), bytes, false};
  auto const handle = static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(s));
  auto& machine = runtime::current().get().machine();
  EXPECT_TRUE(machine.enqueue(0, handle, {&all, 1}, {[](void*) {}, nullptr, nullptr}).ok());
}

std::vector<race_report> found_here(program const& run) {
  using how = simulated::scheduling;
  auto const once = found_in({.devices = 1, .memory = 64_MiB, .schedule = how::stepped, .seed = 1}, run);
  EXPECT_EQ(texts(found_in({.devices = 1, .memory = 64_MiB, .schedule = how::seeded, .seed = 2}, run)), texts(once));
  return once;
}

// A block of each kind, how it is marked, and how it is freed.
struct owned {
  char const* name;
  size_t bytes;
  std::function<void*()> make;
  std::function<void(stream_ref)> mark;
  std::function<void()> end;
};
std::vector<owned> blocks_of_each_kind() {
  auto const block = std::make_shared<void*>();
  auto const pinned_one = std::make_shared<buffer>();
  auto const shared = std::make_shared<exportable_buffer>();
  auto const of_device = [&](char const* name, size_t bytes) {
    return owned{name, bytes, [=] { return *block = allocate(bytes); }, [=](stream_ref s) { record_stream(*block, s); },
                 [=] { deallocate(*block); }};
  };
  return {of_device("small", 512), of_device("large", 3_MiB),
          owned{"pinned", 4096, [=] { return (*pinned_one = pinned(4096)).data(); },
                [=](stream_ref s) { pinned_one->record_stream(s); }, [=] { pinned_one->reset(); }},
          owned{"exportable", 4096,
                [=] {
                  *shared = exportable_buffer(4096);
                  return shared->data();
                },
                [=](stream_ref s) { shared->record_stream(s); }, [=] { *shared = {}; }}};
}

// Many mark the block, so that weir keeps one mark for the oldest. They go on working.
TEST(marks, of_streams_that_were_given_up_are_known) {
  for (owned const& one : blocks_of_each_kind()) {
    for (bool const tells_all : {true, false}) {
      auto const all = found_here([&] {
        void* const p = one.make();
        synchronize();
        std::vector<std::unique_ptr<simulated_stream>> others;
        for (size_t i = 0; i < 3 * streams::borrowed_streams::most_marked; ++i) {
          others.push_back(std::make_unique<simulated_stream>(0));
          stream_ref const s = borrow_stream(0, others.back()->handle());
          if (tells_all || i != 1)
            one.mark(s);
        }
        for (size_t const i : {size_t{0}, size_t{1}, others.size() - 1})
          use(others[i]->handle(), p, one.bytes);
        one.end();
        deallocate(allocate(one.bytes));
        synchronize();
      });
      SCOPED_TRACE(one.name);
      tells_all ? expect_none(all) : expect_one(all, "freed in use", {"enqueue reads it"});
    }
  }
}

// weir learns that its work is complete from an allocation, of which the program may conclude nothing.
TEST(marks, of_a_stream_whose_work_is_over_are_known) {
  expect_none(found_here([] {
    void* const p = allocate(2_MiB);
    void* const beside = allocate(2_MiB);
    synchronize();
    simulated_stream first(0), second(0), third(0), fourth(0);
    {
      external_stream const s(0, first.handle());
      record_stream(p, s), record_stream(beside, s);
      use(first.handle(), p, 2_MiB), use(first.handle(), beside, 2_MiB);
    }
    simulation::of(runtime::current()).run();
    deallocate(beside);
    std::vector<buffer> needs_it;
    for (int i = 0; i < 30; ++i)
      needs_it.emplace_back(2_MiB);
    external_stream const b(0, second.handle()), c(0, third.handle()), d(0, fourth.handle());
    record_stream(p, b), record_stream(p, c), record_stream(p, d);
    deallocate(p);
  }));
}

TEST(marks, of_another_threads_own_stream_are_known) {
  auto* const per_thread = reinterpret_cast<CUstream_st*>(2);
  expect_none(found_here([&] {
    buffer p(4096);
    synchronize();
    runtime& here = runtime::current();
    std::thread([&] {
      runtime_guard const in(here);
      p.record_stream(borrow_stream(0, per_thread));
      use(per_thread, p.data(), p.size());
    }).join();
    p.reset();
    synchronize();
  }));
}

}  // namespace
}  // namespace weir::check_tests
