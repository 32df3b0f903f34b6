// Several devices among real threads: copies while peer access is enabled, ranks that reduce until one is
// aborted, and buffers sent over several channels at once.
// Threads: as programs.h.
#include <array>
#include <memory>
#include <vector>

#include "runtime/base/os_socket.h"
#include "tests/stress/programs.h"
#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/share.h"

namespace weir::tests {

// A new machine each round, so that its links are tested, routes chosen and memory opened during copies.
std::string peers_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  return in_rounds(time, [&](std::uint64_t round) -> std::string {
    runtime own{simulated{.devices = 3, .memory = 64_MiB}, {.peer_access = round % 2 == 1}};
    crowd all(seed + round * 100, time / 4);
    for (int k = 0; k < 3; ++k) {
      all.member(
          [&, k](crowd::random& r) {
            runtime_guard const in(own);
            std::vector<std::uint32_t> from(20'000), back(20'000);
            std::uint32_t value = static_cast<std::uint32_t>(k + 1) << 24;
            while (all.goes_on()) {
              int const d = static_cast<int>(r() % 3), e = static_cast<int>(r() % 3);
              std::size_t const bytes = 4 * (1 + r() % from.size());
              stream const s(d);
              stream_guard const on(s);
              buffer const near(bytes), far(bytes, {.on = e});
              for (auto& w : from)
                w = value;
              copy(s, near.data(), from.data(), bytes);
              if (d != e)
                copy(s, far.data(), near.data(), bytes);
              else
                copy(s, far.data(), near.data(), bytes, non_blocking);
              copy(s, near.data(), far.data(), bytes);
              copy(s, back.data(), near.data(), bytes);
              for (std::size_t i = 0; i < bytes / 4; ++i) {
                if (back[i] != value)
                  all.fail("a copy between devices brought other bytes");
              }
              ++value;
              if (r() % 8 == 0 && d != e && can_access_peer(e, d))
                enable_peer_access(near.data(), e);
              if (r() % 16 == 0)
                enable_peer_access(device(d), {device((d + 1) % 3)});
              if (r() % 16 == 0)
                (void)memory_readers(s);
              if (r() % 16 == 0)
                (void)links();
              if (r() % 32 == 0)
                empty_cache(e);
              if (r() % 16 == 0)
                (void)explain_copy(far.data(), near.data(), bytes);
            }
          },
          crowd::whole_life{});
    }
    if (std::string const wrong = all.run(); !wrong.empty())
      return wrong;
    runtime_guard const in(own);
    for (int d = 0; d < 3; ++d)
      synchronize(d);
    return {};
  });
}

// Two ranks reduce, each on its own thread, and a third thread aborts one of them.
std::string ranks_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 2, .memory = 16_MiB}};
  return in_rounds(time, [&](std::uint64_t round) -> std::string {
    runtime_guard const in(own);
    std::array<device, 2> const on{device(0), device(1)};
    auto ranks = communicator::create_all(on);
    crowd all(seed + round * 100, time / 8);
    std::atomic<bool> aborted{false};
    for (int k = 0; k < 2; ++k) {
      all.member(
          [&, k](crowd::random&) {
            runtime_guard const here_too(own);
            stream const s(k);
            stream_guard const there(s);
            communicator& mine = ranks[static_cast<std::size_t>(k)];
            buffer const b(4000);
            try {
              for (;;) {  // until it is aborted
                fill(b.data(), std::byte{1}, b.size());
                mine.all_reduce({b.data(), 1000, int32});
                mine.barrier();
              }
            } catch (error const& e) {
              if (!aborted.load(std::memory_order_relaxed))
                throw;
            }
            s.synchronize();
          },
          crowd::whole_life{});
    }
    all.member(
        [&](crowd::random& r) {
          runtime_guard const here_too(own);
          pause(std::chrono::microseconds(1 << r() % 12));
          aborted.store(true, std::memory_order_relaxed);
          ranks[r() % 2].abort();
        },
        crowd::whole_life{});
    std::string const wrong = all.run();
    for (int d = 0; d < 2; ++d)
      synchronize(d);
    return wrong;
  });
}

// All members open one sent buffer, then send their own over their own channels. Buffers of the pool share
// handles. Each receiver reads and releases them.
std::string sharing_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 2, .memory = 128_MiB}, {.widest_epsilon = 0.5}};
  runtime_guard const in(own);
  constexpr std::size_t bytes = 20'000;
  share_pool pool({.on = 0, .handle_bytes = 2_MiB});
  return in_rounds(time, [&](std::uint64_t round) -> std::string {
    crowd all(seed + round * 100, time / 8);
    exportable_buffer const one = round % 2 ? exportable_buffer(bytes, 0) : pool.allocate(bytes);
    fill(one.data(), std::byte{7}, bytes);
    std::vector<std::pair<share_channel, share_channel>> lines;
    for (int k = 0; k < 3; ++k) {
      auto const [a, b] = os::make_sockets();
      lines.emplace_back(share_channel(a, std::chrono::seconds(60)), share_channel(b, std::chrono::seconds(60)));
      lines.back().first.send(one, current_stream(0));
      all.member(
          [&, k](crowd::random& r) {
            runtime_guard const here_too(own);
            auto& [to, from] = lines[static_cast<std::size_t>(k)];
            stream const s(0);
            stream_guard const on(s);
            std::vector<std::byte> seen(bytes);
            auto const open = [&](std::byte value) {
              imported_buffer came = from.receive(device(0));
              copy(s, seen.data(), came.data(), bytes);
              for (std::byte const x : seen) {
                if (x != value)
                  all.fail("a shared buffer has other bytes than were written");
              }
              if (r() % 2)
                came.release(s);
            };
            open(std::byte{7});
            while (all.goes_on()) {
              bool const pooled = r() % 2;
              exportable_buffer mine = pooled ? pool.allocate(bytes) : exportable_buffer(bytes, 0);
              auto const value = static_cast<std::byte>(k + 10);
              fill(mine.data(), value, bytes);
              to.send(mine, s);
              // in transit; without a pool, another member's trim() would free it
              if (pooled && r() % 2)
                mine.reset();
              open(value);
              if (r() % 8 == 0)
                (void)pool.trim();
              if (r() % 8 == 0)
                (void)pool.statistics();
              if (r() % 16 == 0)
                enable_peer_access(device(0), {device(1)});
            }
          },
          crowd::whole_life{});
    }
    if (std::string const wrong = all.run(); !wrong.empty())
      return wrong;
    return one.importers() == 0 ? "" : "a buffer that all have released still has importers";
  });
}

}  // namespace weir::tests
