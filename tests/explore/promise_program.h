// A stream is registered with the promise that its captures are announced. Threads allocate on it and capture it,
// until one registers it again without the promise. From then on no capture is announced.
// Threads: those of a run; while one captures the stream, no other allocates there.
//
// Invariant: memory that is allocated inside a capture is of its graph, other memory is of none.
#pragma once
#include "runtime/memory/heap/fast_path.h"
#include "runtime/memory/space/memory_pool.h"
#include "tests/explore/explore.h"

namespace weir::tests {

class promises_among_threads {
 public:
  explicit promises_among_threads(trial& t) : t_(t), bench_(t.bench({.devices = 1, .memory = 4_MiB})) {
    bench_.core.open(0, "test", source_location::current());
    handle_ = t.machine().create_stream(0, driver::stream_kind::independent, 0).value;
    line_ = &bench_.clocks().enrol(0, handle_, true);
    t.among_threads(3, 8, [this](int steps) {
      for (int i = 0; i < steps && !t_.failed(); ++i)
        step();
    });
    if (bench_.clocks().synchronize(line_->now()).ok())
      bench_.on(0).empty_cache();
    t_.expect_none(bench_.on(0).validate());
    for (; registrations_ > 0; --registrations_)
      (void)bench_.clocks().leave(*line_);
    (void)t.machine().destroy_stream(0, handle_);
  }

 private:
  static source_location here() { return source_location::current(); }

  void step() {
    switch (t_.draw(6)) {
      case 0: return withdraw();
      case 1:
      case 2: return capture();
      default: return outside();
    }
  }

  // As the library does.
  void pairs(bool captured) {
    for (std::uint32_t n = 1 + t_.draw(6); n > 0 && !t_.failed(); --n) {
      std::size_t const bytes = t_.draw(3) ? 64 : 100'000;
      void* p = memory::fast_allocate(line_, bytes, 0);
      if (!p)
        p = bench_.on(0).allocate(*line_, bytes, 0, here());
      if ((bench_.on(0).find(p)->pool->is == memory::memory_pool::kind::graph) != captured)
        t_.fail(captured ? "memory on a captured stream was not of its graph"
                         : "memory is of a graph, on what is no captured stream");
      bench_.on(0).deallocate(p, nullptr, here());
    }
  }

  void outside() {
    if (captured_)
      return;
    ++users_;
    pairs(false);
    --users_;
  }

  void capture() {
    if (captured_ || users_)
      return;
    captured_ = true;
    t_.must(t_.machine().begin_capture(0, handle_, driver::capture_mode::relaxed), "begin_capture");
    t_.say("captures ", promised_ ? "and announces it" : "without a word");
    if (promised_)
      t_.must(line_->captured().is, "captured");
    pairs(true);
    auto const graph = t_.machine().end_capture(0, handle_);
    t_.must(graph.is, "end_capture");
    if (graph.ok())
      t_.must(t_.machine().destroy_graph(graph.value), "destroy_graph");
    captured_ = false;
  }

  void withdraw() {
    if (!promised_)
      return;
    (void)bench_.clocks().enrol(0, handle_, false);
    ++registrations_;
    promised_ = false;
    t_.say("registers it without the promise");
  }

  trial& t_;
  memory_bench& bench_;
  driver::stream_handle handle_{};
  clock::stream_clock* line_ = nullptr;
  bool captured_ = false, promised_ = true;
  int users_ = 0, registrations_ = 1;
};

}  // namespace weir::tests
