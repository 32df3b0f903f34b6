// A host far ahead of its device: small blocks are written on one stream, read on another, and freed. Before
// memory grows, weir waits on the device for pending slots, but never behind a stream that carries
// collectives, because their other part may come last.
// Threads: one.
#pragma once
#include <memory>

#include "runtime/memory/heap/fast_path.h"
#include "tests/explore/filled.h"

namespace weir::tests {

class far_ahead {
 public:
  explicit far_ahead(trial& t)
      : t_(t),
        bytes_(1000 + 3000 * t.draw(4)),
        batches_(300 + t.draw(300)),
        fence_(std::size_t{16 << 10} << t.draw(3)),
        carries_(t.draw(4) == 3),
        marks_(t.coin()),
        asks_(t.coin(30)) {
    weir::options o;
    o.device_waits = options::wait_policy::before_growth;
    o.fence_interval = fence_;
    simulated like{.devices = 1, .memory = 8_MiB};
    if (carries_)
      like.connections = 1 << 20;  // parts on one connection may block each other: the program's fault
    bench_ = &t.bench(like, o);
    home_ = &t.stream(0), user_ = &t.stream(0);
    user_->set_carries_collectives(carries_);
  }

  void run() {
    if (carries_)
      give_part([](void* p) { return **static_cast<arrived*>(p); }, [](void*) {});
    for (std::uint32_t i = 0; i < batches_ && !t_.failed(); ++i)
      batch(static_cast<unsigned char>(1 + i % 250));
    look_at_memory();
    if (carries_)
      give_part(nullptr, [](void* p) { **static_cast<arrived*>(p) = true; });
    for (auto* line : {home_, user_}) {
      if (!bench_->clocks().synchronize(line->now()).ok())
        t_.fail("stuck: one part of a collective stands behind the other");
    }
    *other_part_ = true;
    t_.expect_none(bench_->on(0).validate());
  }

 private:
  using arrived = std::shared_ptr<bool>;
  static constexpr std::size_t page = 64 << 10;

  // A part of a collective. On the carrying stream it waits for the other part, on the home stream.
  void give_part(bool (*ready)(void*), void (*run)(void*)) {
    clock::stream_clock& on = ready ? *user_ : *home_;
    driver::work w{run, [](void* p) { delete static_cast<arrived*>(p); }, new arrived(other_part_)};
    w.ready = ready;
    t_.must(bench_->machine().enqueue(0, on.handle(), {}, w), "enqueue");
  }

  void batch(unsigned char value) {
    auto& device = bench_->on(0);
    void* p = memory::fast_allocate(home_, bytes_, 0);
    if (!p)
      p = device.allocate(*home_, bytes_, 0, source_location::current());
    give_filled(t_, *home_, filled::now, p, bytes_, value);
    t_.must(user_->wait(home_->now()), "wait");
    if (marks_)
      device.record_use(p, *user_, source_location::current());
    give_filled(t_, *user_, filled::still, p, bytes_, value, "a block that another stream still read was overwritten");
    if (asks_ && t_.draw(40) == 39)
      t_.must(bench_->clocks().poll(user_->now()).is, "poll");
    bool const gone = marks_ ? memory::fast_deallocate(p) : memory::fast_deallocate_used(user_, p);
    if (!gone)
      device.deallocate(p, marks_ ? nullptr : user_, source_location::current());
  }

  // Beyond two fences' worth, at most so many blocks are reserved, wherever the device is: deferred frees,
  // and the rest of a slab's run, in whole pages. A thread that gathers 64 frees before a flush needs more.
  void look_at_memory() {
    auto const most = static_cast<std::size_t>(bench_->on(0).statistics().reserved_bytes.all.peak),
               beyond = bytes_ * (marks_ ? 96 : 224) + 4 * page;
    if (carries_ || most <= 2 * fence_ + beyond)
      return;
    t_.fail(std::to_string(most) + " B were reserved for blocks of " + std::to_string(bytes_) +
            " B with a fence each " + std::to_string(fence_) + " B");
  }

  trial& t_;
  std::size_t const bytes_;  // of each block
  std::uint32_t const batches_;
  std::size_t const fence_;  // bytes
  bool const carries_, marks_, asks_;
  arrived other_part_ = std::make_shared<bool>(false);
  memory_bench* bench_ = nullptr;
  clock::stream_clock *home_ = nullptr, *user_ = nullptr;
};

}  // namespace weir::tests
