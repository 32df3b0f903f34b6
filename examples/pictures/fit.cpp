// Programs that need more than the device has in one piece, or at all.
#include <cstdint>
#include <list>
#include <memory>
#include <ostream>
#include <random>
#include <vector>

#include "scenes.h"
#include "weir/launch.h"
#include "weir/pool.h"
#include "weir/stream.h"

namespace pictures {

using namespace weir::literals;

// Half of a full device is free, in pieces of 8 MiB. A request of 24 MiB is served.
void moves(std::ostream& out) {
  weir::runtime machine(still_device(64_MiB));
  weir::runtime_guard const in(machine);
  weir::stream const s;
  film shots(out, "moves");

  std::vector<void*> blocks;
  for (int i = 0; i < 8; ++i) {
    blocks.push_back(weir::allocate(s, 8_MiB));
    shots.name(blocks.back(), std::to_string(i + 1));
  }
  shots.shoot("8 blocks of 8 MiB fill the device", "nothing is free");
  for (std::size_t i = 1; i < blocks.size(); i += 2)
    weir::deallocate(blocks[i]);
  shots.shoot("every second one is freed", "32 MiB are free, in pieces of 8 MiB");
  void* const large = weir::allocate(s, 24_MiB);
  shots.shoot_new(large, "24 MiB", "24 MiB are asked for", "pages of three free pieces move to one place");
  expect(weir::memory_stats().num_ooms == 0 && weir::memory_reserved() == 64_MiB, "moved memory serves the request");
  weir::deallocate(large);
  void* const back = weir::allocate(s, 8_MiB);
  shots.shoot_new(back, "8 MiB", "they are freed, and 8 MiB are asked for", "the lowest free piece: no page moves");
  weir::deallocate(back);
  for (std::size_t i = 0; i < blocks.size(); i += 2)
    weir::deallocate(blocks[i]);
}

// Blocks of 1 to 6 MiB come and go, 300 requests with a moving target; then the same where no memory may move.
void bound(std::ostream& out) {
  for (bool const may_move : {true, false}) {
    weir::runtime machine(still_device(512_MiB), {.widest_epsilon = 0, .deterministic = !may_move});
    weir::runtime_guard const in(machine);
    weir::stream const s;
    std::mt19937 draw(7);
    std::list<std::pair<void*, std::size_t>> live;
    std::size_t held = 0;
    for (int request = 1; request <= 300; ++request) {
      std::size_t const target = (request / 50 % 2 ? 40_MiB : 80_MiB) + static_cast<std::size_t>(request) * 256_KiB;
      std::size_t const bytes = 1_MiB + draw() % (5 * 1024) * 1_KiB;
      while (held + bytes > target) {
        auto const victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(draw() % live.size()));
        weir::deallocate(victim->first);
        held -= victim->second;
        live.erase(victim);
      }
      live.emplace_back(weir::allocate(s, bytes), bytes);
      held += bytes;
      out << R"({"scene":"bound","moves":)" << (may_move ? "true" : "false") << R"(,"request":)" << request
          << R"(,"live":)" << held << R"(,"reserved":)" << weir::memory_reserved() << "}\n";
    }
    for (auto const& [p, size] : live)
      weir::deallocate(p);
  }
}

// Eight layers of 8 MiB take turns on a device that may hold 28 MiB; each has a pool that can sleep.
void asleep(std::ostream& out) {
  weir::runtime machine(still_device(64_MiB));
  weir::runtime_guard const in(machine);
  weir::set_memory_limit(28_MiB);
  weir::stream const s;
  constexpr int layers = 8, steps = 2;
  std::vector<std::unique_ptr<weir::pool>> pools;
  std::vector<void*> weights;
  std::vector<std::unique_ptr<weir::spill>> spills;
  int moment = 0;
  auto tell = [&](char const* act, int layer) {
    out << R"({"scene":"asleep","moment":)" << moment++ << R"(,"act":")" << act << R"(","layer":)" << layer
        << R"(,"reserved":)" << weir::memory_reserved() << R"(,"awake":[)";
    for (std::size_t i = 0; i < pools.size(); ++i)
      out << (i ? "," : "") << (pools[i]->is_asleep() ? 0 : 1);
    out << "]}\n";
  };
  for (int i = 0; i < layers; ++i) {
    pools.push_back(std::make_unique<weir::pool>("layer " + std::to_string(i + 1)));
    spills.push_back(std::make_unique<weir::spill>(std::vector{pools.back().get()}));
    weights.push_back(pools.back()->allocate(s, 8_MiB));
    tell("made", i + 1);
  }
  auto use = [&](char const* act, int layer) {
    weir::launch(
        s, {weir::updates(weights[static_cast<std::size_t>(layer)])}, [](CUstream_st*) {}, [] {});
    tell(act, layer + 1);
    expect(weir::memory_reserved() <= 28_MiB, "a limit holds");
  };
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < layers; ++i)
      use("forward", i);
    for (int i = layers; i-- > 0;)
      use("backward", i);
  }
  s.synchronize();
  for (void* const p : weights)
    weir::deallocate(p);
}

}  // namespace pictures
