// The bound on reserved memory while several threads allocate at once, under every order of threads that a
// tape can choose. Seeds and tapes as tests/explore/explore.h says.
// Threads: those of each run.
//
// Bound: reserved <= max((1 + epsilon) x most in use + a page for each stream, most covered). In use is live,
// pending, and requested by threads at work. Covered includes what fell idle (reserved, and covered no
// longer) while any thread was at work. A thread that found no free handle makes one; another thread's memory
// may become free before the new handle is charged.
// it made the third, the other thread had given that block back and heard that its stream was done.
#include <gtest/gtest.h>

#include <array>
#include <iostream>

#include "runtime/memory/device/device_allocator.h"
#include "simulator/faults/fault_injector.h"
#include "tests/explore/explore.h"
#include "tests/memory/names.h"
#include "tests/support/sanitized.h"

namespace weir {
namespace {

using memory::round_up;

// Calls `looks` before each new handle.
class onlooker final : public driver::fault_injector {
 public:
  using fault_injector::fault_injector;
  std::function<void()> looks;
  weir::driver::result<weir::driver::memory_handle> create(int device, std::size_t bytes) override {
    if (looks)
      looks();
    return fault_injector::create(device, bytes);
  }
};

struct told {
  // looks: past the first term, near it, with other threads at work, with something fallen idle meanwhile
  std::uint64_t past = 0, near = 0, at_once = 0, fell_idle = 0;
};

class bound_among_threads {
 public:
  bound_among_threads(tests::trial& t, onlooker*& machine, told& n)
      : t_(t),
        told_(n),
        epsilon_(std::array{0.0, 0.01, 0.027, 0.25}[t.draw(4)]),
        bench_(t.bench({.devices = 1, .memory = 32 << 20}, options{.epsilon = epsilon_, .widest_epsilon = 0})) {
    for (std::uint32_t i = 0, lines = 1 + t.draw(3); i < lines; ++i)
      lines_.push_back(&t.stream(0));
    largest_ = std::size_t{128 << 10} << t.draw(4);
    machine->looks = [this] { note(); };
    if (t.coin(75))
      begin();
    t.among_threads(4, 10, [this](int steps) {
      std::size_t const me = threads_.lock()->fetch();
      for (int k = 0; k < steps && !t_.failed(); ++k)
        step(me);
    });
    machine->looks = nullptr;
    if (!t.failed())
      end();
  }

 private:
  struct block {
    void* at;
    std::size_t bytes;
  };
  struct levels {
    std::array<std::size_t, 3> asked{};   // by thread: bytes
    std::size_t in_use = 0, covered = 0;  // maxima; covered includes what fell idle
    std::size_t idle = 0, fell_idle = 0;  // now; since no thread was at work
    std::size_t threads = 0;
    std::size_t fetch() { return threads++; }
    std::size_t all() const { return asked[0] + asked[1] + asked[2]; }
  };

  memory::device_allocator& device() { return static_cast<memory::device_allocator&>(bench_.on(0)); }
  clock::stream_clock& any_line() { return *lines_[t_.draw(static_cast<std::uint32_t>(lines_.size()))]; }

  // Raises the maxima by what is in use and covered now.
  void note() {
    std::size_t const covered = device().unreclaimable();
    memory_statistics const n = device().statistics();
    auto const in_use = static_cast<std::size_t>(n.allocated_bytes.all.current + n.pending_bytes.all.current);
    std::size_t const reserved = device().reserved();
    auto const l = threads_.lock();
    l->in_use = std::max(l->in_use, in_use + l->all());
    std::size_t const idle = reserved > covered ? reserved - covered : 0;
    if (l->all() == 0)
      l->fell_idle = 0;
    else if (idle > l->idle)
      l->fell_idle += idle - l->idle;
    l->idle = idle;
    l->covered = std::max(l->covered, covered + l->fell_idle);
    told_.fell_idle += l->fell_idle > 0;
  }
  void look(std::size_t me) {
    std::size_t const reserved = device().reserved();
    note();
    auto const l = threads_.lock();
    std::size_t const others = l->all() - l->asked[me];
    std::size_t const first =
        l->in_use + static_cast<std::size_t>(static_cast<double>(l->in_use) * epsilon_) + page * lines_.size();
    told_.past += reserved > first, told_.near += reserved > first - first / 8, told_.at_once += others > 0;
    if (reserved > std::max(first, l->covered)) {
      t_.fail("reserved " + std::to_string(reserved) + " > max(" + std::to_string(first) + ", covered " +
              std::to_string(l->covered) + "), epsilon " + std::to_string(epsilon_));
    }
  }
  void ask(std::size_t me, std::size_t bytes) { threads_.lock()->asked[me] = bytes; }

  void take(std::size_t me) {
    clock::stream_clock& s = any_line();
    std::size_t const bytes =
        (32 << 10) + 1 + (t_.coin() ? t_.draw(static_cast<std::uint32_t>(largest_)) : (1 + t_.draw(4)) * largest_ / 4);
    ask(me, round_up(bytes, 512));
    look(me);
    try {
      void* const p = device().allocate(s, bytes, 0, source_location::current());
      t_.say("took ", bytes, " bytes");
      blocks_.lock()->push_back({p, bytes});
    } catch (out_of_memory const&) {}
    ask(me, 0);
    look(me);
  }
  void give(std::size_t every) {  // all but one in `every`, so that survivors lie apart; 1: all
    std::vector<block> going;
    {
      auto all = blocks_.lock();
      for (std::size_t i = all->size(); i-- > 0;) {
        if (every > 1 && i % every == 0)
          continue;
        going.push_back((*all)[i]);
        all->erase(all->begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    for (block const& b : going)
      device().deallocate(b.at, nullptr, source_location::current());
  }
  void use() {
    block b{};
    {
      auto all = blocks_.lock();
      if (all->empty())
        return;
      std::swap((*all)[t_.draw(static_cast<std::uint32_t>(all->size()))], all->back());
      b = all->back();
      all->pop_back();
    }
    clock::stream_clock& user = any_line();
    device().record_use(b.at, user, source_location::current());
    (void)bench_.machine().enqueue(0, user.handle(), {}, {[](void*) {}, nullptr, nullptr});
    device().deallocate(b.at, nullptr, source_location::current());
  }
  void step(std::size_t me) {
    switch (t_.draw(10)) {
      case 0: complete(); break;
      case 1: (void)any_line().wait(any_line().now()); break;
      case 2: look(me), give(2 + t_.draw(3)); break;
      case 3: look(me), give(2 + t_.draw(3)), complete(); break;
      case 4: look(me), use(); break;
      default: take(me);
    }
    look(me);
  }
  void complete() {
    for (auto* l : lines_)
      (void)bench_.clocks().synchronize(l->now());
  }
  void begin() {  // a peak, of which little stays, at scattered places
    for (std::uint32_t i = 0, n = 8 + t_.draw(16); i < n; ++i)
      take(0);
    give(3 + t_.draw(4));
    complete();
  }
  void end() {
    for (auto const& w : device().validate())
      t_.fail(w);
    give(1);
    complete();
    device().empty_cache();
    if (auto const left = device().statistics().reserved_bytes.all.current)
      t_.fail(std::to_string(left) + " B stay reserved when all was given back");
  }

  tests::trial& t_;
  told& told_;
  double const epsilon_;
  tests::memory_bench& bench_;
  std::size_t largest_ = 0;  // bytes of a block
  std::vector<clock::stream_clock*> lines_;
  base::guarded<levels> threads_;
  base::guarded<std::vector<block>> blocks_;
};

TEST(bound, holds_at_every_step_while_threads_allocate_at_once) {
  onlooker* machine = nullptr;
  told n;
  tests::explore_options o;
  o.name = "bound_among_threads";
  o.runs = tests::sanitized ? 100 : tests::points_at_atomics ? 200 : 600;
  o.around = [&](std::unique_ptr<driver::driver> inner) {
    auto made = std::make_unique<onlooker>(std::move(inner));
    machine = made.get();
    return made;
  };
  auto const runs = tests::explore(o, [&](tests::trial& t) { bound_among_threads run(t, machine, n); });
  std::cout << runs << " runs; with others at work in " << n.at_once << " looks, near the first term in " << n.near
            << ", past it in " << n.past << ", something fell idle in " << n.fell_idle << "\n";
}

}  // namespace
}  // namespace weir
