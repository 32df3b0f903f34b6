// Random pipelines that free memory right behind their copies: whatever serves next, no byte may change.
// Threads: one; the seeded machine chooses what its devices do, and when.
// Seeds as tests/support/seeds.h says.
#include <deque>
#include <random>

#include "tests/peer/machine_fixture.h"

namespace weir {
namespace {

using test::bytes_of_host;

class pipelines {
 public:
  pipelines(std::uint64_t seed, std::size_t pinned_limit)
      : random_(seed),
        m_({.devices = 2,
            .memory = 32_MiB,
            .schedule = simulated::scheduling::seeded,
            .seed = seed,
            .peers = seed % 3 ? simulated::links::all : simulated::links::none},
           {.pinned_limit = pinned_limit}) {
    for (int i = 0; i < 4; ++i)
      lanes_.emplace_back(device(i % 2));
  }

  ~pipelines() {  // after a failure copies may still be on their way to pageable memory
    for (auto& one : lanes_)
      one.ref().synchronize();
  }

  void run() {
    int const steps = 20 + int(random_() % 40);
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      switch (random_() % 6) {
        case 0: upload_from_pinned(); break;
        case 1: upload_from_pageable(); break;
        case 2:
          if (!on_gpu_.empty())
            move();
          break;
        case 3:
          if (!on_gpu_.empty())
            download(true);
          break;
        case 4:
          if (!on_gpu_.empty())
            download(false);
          break;
        case 5:
          if (!arriving_.empty())
            look(random_() % arriving_.size());
          break;
      }
    }
    while (!on_gpu_.empty() && !::testing::Test::HasFatalFailure())
      download(random_() % 2);
    while (!arriving_.empty() && !::testing::Test::HasFatalFailure())
      look(0);
    if (::testing::Test::HasFatalFailure())
      return;
    ASSERT_EQ(m_.control().findings(), std::vector<std::string>{});
    ASSERT_EQ(m_.pinned().validate(), std::vector<std::string>{});
    for (int d = 0; d < 2; ++d)
      ASSERT_EQ(m_.memory(d).validate(), std::vector<std::string>{});
  }

 private:
  struct on_gpu {
    buffer at;
    std::size_t lane;  // whose stream made the bytes
    bytes_of_host expected;
  };
  struct arriving {
    buffer pinned;
    std::unique_ptr<bytes_of_host> pageable;
    stamp done;
    bytes_of_host expected;
    std::byte const* bytes() const { return pageable ? pageable->data() : pinned.data<std::byte>(); }
  };

  stream_ref lane(std::size_t i) { return lanes_[i]; }
  std::size_t any_lane() { return random_() % lanes_.size(); }
  bytes_of_host fresh() { return test::pattern(1 + random_() % 5000, ++made_); }

  // Memory whose home is any stream of the lane's device:
  // the lane is ordered after what the home has been given.
  buffer room_for(std::size_t bytes, std::size_t of) {
    std::size_t const home = random_() % 2 ? of : (of + 2) % lanes_.size();
    stream_guard in(lane(home));
    buffer out(bytes, {.on = lane(home).device()});
    lane(of).wait(lane(home));
    return out;
  }

  void upload_from_pinned() {
    auto const bytes = fresh();
    std::size_t const l = any_lane();
    buffer from = pinned(bytes.size());
    std::memcpy(from.data(), bytes.data(), bytes.size());
    buffer to = room_for(bytes.size(), l);
    copy(lane(l), to.data(), from.data(), bytes.size(), non_blocking);
    on_gpu_.push_back({std::move(to), l, bytes});
  }  // `from` is free now, and may serve the next upload, whose bytes are others

  void upload_from_pageable() {
    auto const bytes = fresh();
    std::size_t const l = any_lane();
    auto from = bytes;
    buffer to = room_for(bytes.size(), l);
    copy(lane(l), to.data(), from.data(), bytes.size(), non_blocking);
    std::fill(from.begin(), from.end(), std::byte{0xee});
    on_gpu_.push_back({std::move(to), l, bytes});
  }

  on_gpu take() {
    std::size_t const i = random_() % on_gpu_.size();
    on_gpu out = std::move(on_gpu_[i]);
    on_gpu_.erase(on_gpu_.begin() + std::ptrdiff_t(i));
    return out;
  }

  void move() {  // within a device or between two; the place it came from is freed behind the copy
    on_gpu from = take();
    std::size_t const l = any_lane();
    lane(l).wait(lane(from.lane));
    buffer to = room_for(from.expected.size(), l);
    copy(lane(l), to.data(), from.at.data(), from.expected.size(), non_blocking);
    on_gpu_.push_back({std::move(to), l, std::move(from.expected)});
  }

  void download(bool to_pinned) {
    on_gpu from = take();
    int const device = from.at.info().on.index();
    std::size_t const l = std::size_t(device) + 2 * (random_() % 2);
    lane(l).wait(lane(from.lane));
    arriving to{buffer(), nullptr, {}, std::move(from.expected)};
    if (to_pinned) {
      to.pinned = pinned(to.expected.size());
    } else {
      to.pageable = std::make_unique<bytes_of_host>(to.expected.size());
    }
    to.done = copy(lane(l), const_cast<std::byte*>(to.bytes()), from.at.data(), to.expected.size(), non_blocking);
    if (to_pinned && random_() % 8 == 0)
      return;  // unused: freed while it arrives
    arriving_.push_back(std::move(to));
  }

  void look(std::size_t i) {
    arriving_[i].done.synchronize();
    ASSERT_EQ(std::memcmp(arriving_[i].bytes(), arriving_[i].expected.data(), arriving_[i].expected.size()), 0);
    arriving_.erase(arriving_.begin() + std::ptrdiff_t(i));
  }

  std::mt19937_64 random_;
  test::machine m_;
  std::vector<stream> lanes_;
  std::deque<on_gpu> on_gpu_;
  std::deque<arriving> arriving_;
  std::uint64_t made_ = 0;
};

TEST(copy_reuse, memory_freed_behind_copies_waits_for_them) {
  for (auto const seed : tests::seeds("copy_reuse", 1500)) {
    if (::testing::Test::HasFatalFailure())
      break;
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    pipelines(seed, seed % 4 == 0 ? 256_KiB : 0).run();
  }
}

}  // namespace
}  // namespace weir
