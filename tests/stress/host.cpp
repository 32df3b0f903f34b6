// Pinned memory and staged copies among real threads: blocks are freed during copies, other threads query
// statistics, and each byte arrives unchanged.
// Threads: as programs.h.
#include <algorithm>
#include <memory>
#include <vector>

#include "tests/stress/programs.h"
#include "weir/copy.h"
#include "weir/memory.h"
#include "weir/observe.h"

namespace weir::tests {
namespace {

void fill(std::span<std::uint32_t> words, std::uint32_t value) {
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = value + static_cast<std::uint32_t>(i);
}
bool holds(std::span<std::uint32_t const> words, std::uint32_t value) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != value + static_cast<std::uint32_t>(i))
      return false;
  }
  return true;
}

struct filled_buffer {
  buffer bytes;
  std::uint32_t value;
};

}  // namespace

std::string pinned_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 1, .memory = 64_MiB},
              {.pinned_limit = 8_MiB, .pinned_idle = std::chrono::milliseconds(1)}};
  crowd all(seed, time);
  std::array<hand_over<filled_buffer>, 8> places;
  for (std::uint32_t k = 0; k < 3; ++k) {
    all.member(
        [&, k](crowd::random& r) {
          runtime_guard const in(own);
          std::vector<stream> streams;
          for (int i = 0; i < 2; ++i)
            streams.emplace_back(0);
          stream_guard const on(streams[0]);
          buffer const there(128_KiB);
          std::vector<std::uint32_t> back(128_KiB / 4);
          std::uint32_t next = (k + 1) << 24;
          while (all.goes_on()) {
            std::unique_ptr<filled_buffer> one;
            if (r() % 4 == 0)
              one.reset(places[r() % places.size()].take());
            if (!one) {
              std::size_t const sizes[] = {512, 4096, 100'000, 128_KiB};
              std::size_t const bytes = sizes[r() % 4];
              one = std::make_unique<filled_buffer>(filled_buffer{pinned(bytes), next += 40'000});
              fill(one->bytes.host<std::uint32_t>(), one->value);
            }
            stream const& s = streams[r() % streams.size()];
            std::size_t const bytes = one->bytes.size();
            for (int n = 1 + static_cast<int>(r() % 4); n > 0; --n)
              copy(s, there.data(), one->bytes.data(), bytes, non_blocking);
            std::uint32_t const value = one->value;
            bool const look = r() % 4 == 0;
            if (!look && r() % 3 == 0 && places[r() % places.size()].put(one.get()))
              (void)one.release();
            one.reset();  // the copies may still read it
            if (look) {
              copy(s, back.data(), there.data(), bytes);
              if (!holds(std::span(back).first(bytes / 4), value))
                all.fail("a copy brought other bytes than its pinned source had");
            }
            streams[0].wait(streams[1]), streams[1].wait(streams[0]);
            if (r() % 64 == 0)
              (void)empty_pinned_cache();
            if (r() % 64 == 0)
              (void)pinned_memory_stats();
          }
          for (stream const& s : streams)
            s.synchronize();
        },
        crowd::whole_life{});
  }
  std::string const wrong = all.run();
  runtime_guard const in(own);
  synchronize(0);
  for (auto& place : places)
    delete place.take();
  return wrong;
}

std::string staging_in_threads(std::uint64_t seed, std::chrono::nanoseconds time) {
  runtime own{simulated{.devices = 2, .memory = 64_MiB}};
  crowd all(seed, time);
  for (std::uint32_t k = 0; k < 3; ++k) {
    all.member(
        [&, k](crowd::random& r) {
          runtime_guard const in(own);
          constexpr std::size_t most = 3_MiB;
          stream const s(static_cast<int>(k % 2));
          stream_guard const on(s);
          buffer const there(most);
          std::vector<std::uint32_t> from(most / 4), back(most / 4);
          for (std::uint32_t value = (k + 1) << 28; all.goes_on(); value += 1'000'000) {
            std::size_t const sizes[] = {4096, 70'000, 1_MiB, most};
            std::size_t const bytes = sizes[r() % 4];
            auto const words = std::span(from).first(bytes / 4);
            fill(words, value);
            copy(s, there.data(), from.data(), bytes, r() % 2 ? non_blocking : blocking::yes);
            stamp const came = copy(s, back.data(), there.data(), bytes, r() % 2 ? non_blocking : blocking::yes);
            came.synchronize();
            if (!holds(std::span(back).first(bytes / 4), value))
              all.fail("a staged copy brought other bytes");
          }
        },
        crowd::whole_life{});
  }
  return all.run();
}

}  // namespace weir::tests
