// Registrations of the program's streams end, and the streams with them, while other threads ask about their work.
// Threads: those of a run; the first registers streams.
//
// Invariant: no driver call names a stream that was destroyed. CUDA's answer to one is undefined.
#pragma once
#include "tests/explore/explore.h"
#include "tests/interop/handle_watch.h"

namespace weir::tests {

class registrations_end_among_threads {
 public:
  explicit registrations_end_among_threads(trial& t) : t_(t), bench_(t.bench({.devices = 1, .memory = 2_MiB})) {
    bench_.core.open(0, "test", source_location::current());
    t.among_threads(2, 6, [this](int steps) { started_.fetch_add(1) ? ask(steps) : come_and_go(steps); });
  }

  static void judge(trial& t) {
    driver::driver* one = &t.machine();
    while (one && !dynamic_cast<driver::handle_watch*>(one))
      one = one->behind();
    for (std::string const& call : dynamic_cast<driver::handle_watch&>(*one).asked_of_the_dead())
      t.fail("stray: " + call + ", which was destroyed");
  }

 private:
  static source_location here() { return source_location::current(); }
  void use(clock::stream_clock& s) {
    void* const p = bench_.on(0).allocate(s, std::size_t{200} << (10 * t_.draw(2)), 0, here());
    bench_.on(0).deallocate(p, nullptr, here());
  }

  void come_and_go(int steps) {
    for (int i = 0; i < steps && !t_.failed(); ++i) {
      auto const h = t_.machine().create_stream(0, driver::stream_kind::independent, 0).value;
      clock::stream_clock& s = bench_.clocks().enrol(0, h);
      use(s);
      *last_.lock() = s.now();
      t_.say("registration ", i, " ends");
      (void)bench_.clocks().leave(s);
      (void)t_.machine().destroy_stream(0, h);
    }
  }

  void ask(int steps) {
    clock::stream_clock& mine = t_.stream(0);
    for (int i = 0; i < steps && !t_.failed(); ++i) {
      clock::stamp const its = *last_.lock();
      switch (t_.draw(4)) {
        case 0: (void)bench_.clocks().poll(its); break;
        case 1: (void)bench_.clocks().synchronize(its); break;
        case 2: (void)bench_.clocks().synchronize_device(0); break;
        default: use(mine);
      }
    }
  }

  trial& t_;
  memory_bench& bench_;
  base::atomic<int> started_{0};
  base::guarded<clock::stamp> last_;
};

}  // namespace weir::tests
