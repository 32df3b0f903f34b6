// Random programs whose streams come by handle through every door, end with work and memory left, and whose
// handles are given to later streams. The checker is in front of a machine that reports calls about ended streams.
// Threads: one; the machine's seed chooses when work completes.
#pragma once
#include <random>

#include "runtime/clock/stream_clock.h"
#include "streams/stream/borrowed.h"
#include "tests/interop/handle_watch.h"
#include "tests/model/verdict.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/sim.h"
#include "weir/stream_of.h"

namespace weir::tests {

class doors_program {
 public:
  explicit doors_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 29),
        owned_({.devices = 2, .memory = room, .schedule = simulated::scheduling::seeded, .seed = seed + 1},
               {.check_races = true}),
        in_(*owned_.rt) {}

  verdict run() {
    try {
      stream const mine{device(0)};
      if (below(16) == 0)
        crowd(mine);
      for (int step = 0; step < 120 && wrong_.ok(); ++step)
        one_step(mine);
      while (!blocks_.empty())
        give(blocks_.size() - 1);
      lives_.clear();
      deallocate(allocate(mine, room * 3 / 4));  // nothing that ended keeps memory
    } catch (std::exception const& e) {
      wrong_.note(check::answers, e.what());
    }
    for (auto const& f : owned_.rt->get().machine().checker()->findings())
      wrong_.note(check_of(f.what), f.text);
    for (auto const& asked : owned_.watch->asked_of_the_dead())
      wrong_.note(check::answers, "an ended stream was asked: " + asked);
    return wrong_;
  }
  std::uint64_t ended = 0, orphans = 0, handed_on = 0;  // streams; blocks freed after theirs; handles that came back

 private:
  static constexpr std::size_t room = 32_MiB, small = 512, large = 300_KiB;
  enum class door : std::uint8_t { borrow, memory_resource, caching_allocator };
  struct life {
    std::unique_ptr<simulated_stream> stream;
    int device;
    std::uint64_t number;  // no other stream has it, unlike a handle
  };
  struct block {
    void* at;
    std::size_t bytes;
    door by;
    CUstream_st* last_use;  // its stream may have ended
    std::uint64_t number;   // of that stream
    int device;
    bool told = true;  // weir knows all streams that use it
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  static bool has_handle_of(life const& l, block const& b) { return l.stream->handle() == b.last_use; }
  bool exists(block const& b) const {
    return std::ranges::any_of(lives_, [&](life const& l) { return l.number == b.number; });
  }
  static void work(stream_ref s, void* p, std::size_t bytes) {
    launch(
        s, {writes(p, bytes)}, [](CUstream_st*) {}, [] {});
  }

  void one_step(stream const& mine) {
    if (lives_.empty() || below(8) == 0)
      begin();
    life& one = lives_[below(lives_.size())];
    switch (below(8)) {
      case 0:
      case 1:
      case 2: take(one); break;
      case 3:
      case 4:
        if (!blocks_.empty())
          give(below(blocks_.size()));
        break;
      case 5: {
        auto const s = below(2) ? mine.ref() : detail::stream_of(handle_of(mine));
        buffer const b(s, large);
        work(s, b.data(), large);
        break;
      }
      case 6:
        if (below(2))
          end(static_cast<std::size_t>(&one - lives_.data()));
        break;
      case 7: pass_on(one); break;
    }
  }

  // So many streams mark a block that weir gives up those that were named longest ago: what they left does not grow,
  // and what they do later is no error.
  void crowd(stream const& mine) {
    void* const p = allocate(mine, large);
    synchronize(0);
    auto const& clocks = owned_.rt->get().part<clock::clocks>();
    std::size_t const before = clocks.size();
    std::vector<std::unique_ptr<simulated_stream>> others;  // at once, so that each has another handle
    for (std::size_t n = 0; n < 4 * streams::borrowed_streams::most_marked; ++n) {
      others.push_back(std::make_unique<simulated_stream>(0));
      record_stream(p, borrow_stream(0, others.back()->handle()));
    }
    if (clocks.size() - before > 3 * streams::borrowed_streams::most_marked)
      wrong_.note(check::invariants,
                  "streams that marked a block stay known: " + std::to_string(clocks.size() - before));
    use_untold({p, large, door::borrow, nullptr, 0, 0}, others[below(others.size())]->handle());
    deallocate(p);
  }

  void begin() {
    int const d = below(4) == 0;
    lives_.push_back({std::make_unique<simulated_stream>(d), d, ++begun_});
    handed_on += std::ranges::any_of(blocks_, [&](block const& b) { return has_handle_of(lives_.back(), b); });
    // A free by this handle would name the new stream. A use that weir was not told of would not be waited for.
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      if (has_handle_of(lives_.back(), blocks_[i]) && !blocks_[i].told) {
        synchronize(0), synchronize(1);
        blocks_[i].told = true;
      }
    }
  }
  void end(std::size_t i) {
    lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(i));
    ++ended;
  }

  void take(life& one) {
    auto* const s = one.stream->handle();
    block b{nullptr, below(2) ? small : large, static_cast<door>(below(3)), s, one.number, one.device};
    switch (b.by) {
      case door::borrow: b.at = allocate(borrow_stream(one.device, s), b.bytes); break;
      case door::memory_resource: b.at = allocate(detail::stream_of(s), b.bytes); break;
      case door::caching_allocator: b.at = allocate(detail::stream_of(one.device, s), b.bytes); break;
    }
    work(detail::stream_of(s), b.at, b.bytes);
    blocks_.push_back(b);
  }

  // Another stream of the device uses a block and will be named by its free. weir is not told before.
  void pass_on(life& to) {
    if (blocks_.empty())
      return;
    block& b = blocks_[below(blocks_.size())];
    if (b.device != to.device || b.by != door::memory_resource || !b.told || !exists(b))
      return;
    auto* const s = to.stream->handle();
    detail::stream_of(s).wait(detail::stream_of(b.last_use));
    use_untold(b, s);
    b.last_use = s, b.number = to.number, b.told = false;
  }
  void use_untold(block const& b, CUstream_st* s) {
    driver::touch const all{reinterpret_cast<driver::address>(b.at), b.bytes, true};
    (void)owned_.rt->get().machine().enqueue(b.device,
                                             static_cast<driver::stream_handle>(reinterpret_cast<std::uintptr_t>(s)),
                                             {&all, 1}, {[](void*) {}, nullptr, nullptr});
  }

  void give(std::size_t i) {
    block const b = blocks_[i];
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
    bool const there = exists(b);
    orphans += !there;
    if (there && below(2) && b.told)
      work(detail::stream_of(b.last_use), b.at, b.bytes);
    switch (b.by) {
      case door::borrow:
        if (there && below(4))
          deallocate(detail::stream_of(b.last_use), b.at);
        else
          deallocate(b.at);
        break;
      case door::memory_resource: detail::deallocate_on(below(2) ? gpu : device(b.device), b.last_use, b.at); break;
      case door::caching_allocator: detail::deallocate_at_home(b.at); break;
    }
  }

  static CUstream_st* handle_of(stream_ref s) {
    return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(clock::find(s.id())->handle()));
  }

  std::mt19937_64 random_;
  verdict wrong_;
  watched_runtime owned_;
  runtime_guard in_;
  std::uint64_t begun_ = 0;
  std::vector<life> lives_;
  std::vector<block> blocks_;
};

}  // namespace weir::tests
