// What RMM's own tests want of a memory resource, through CCCL's references: on simulated devices with the
// legacy stream, on GPUs with every kind of stream.
// Threads: up to four at once use one resource.
#if defined(__CUDACC__)
#include <cuda_runtime_api.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "tests/interop/mr_concepts.h"
#include "tests/interop/where.h"

namespace weir {
namespace {

using test::kind;

enum class of : std::uint8_t { none, legacy, own, per_thread };  // the stream that a call names
struct place {
  kind on;
  of stream;
};
void PrintTo(place const& p, std::ostream* out) {
  *out << (p.on == kind::gpus ? "gpu_" : "simulated_")
       << std::array{"no_stream", "legacy", "own_stream", "per_thread"}[static_cast<size_t>(p.stream)];
}

class mr_behaviour : public ::testing::TestWithParam<place> {
 protected:
  void SetUp() override {
    machine_ = test::machine_of(GetParam().on, missing_);
    if (!machine_)
      GTEST_SKIP() << missing_;
    in_.emplace(*machine_);
    resource_.emplace();
    if (GetParam().stream == of::own)
      own_ = make_stream();
    if (GetParam().stream == of::per_thread) {
      own_ = cudaStreamPerThread;
      try {
        (void)detail::stream_of(device(0), own_);
      } catch (invalid_use const& refused) {
        GTEST_SKIP() << refused.what();
      }
    }
  }
  void TearDown() override {
    if (!machine_)
      return;
    if (gpu()) {
      EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    EXPECT_EQ(memory_allocated(), 0u);
    in_.reset();
    machine_.reset();  // before the streams that it knows
    for (cudaStream_t s : made_)
      EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  }
  bool gpu() const { return GetParam().on == kind::gpus; }
  cudaStream_t make_stream() {
    cudaStream_t s{};
    EXPECT_EQ(cudaStreamCreate(&s), cudaSuccess);
    made_.push_back(s);
    return s;
  }
  test::device_ref ref() { return test::device_ref(*resource_); }

  void* take(size_t bytes) { return take(bytes, own_); }
  void* take(size_t bytes, cudaStream_t s) {
    void* const p = GetParam().stream == of::none ? test::take(ref(), bytes) : test::take(ref(), bytes, s);
    EXPECT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u) << bytes;
    return p;
  }
  void give(void* p, size_t bytes) { give(p, bytes, own_); }
  void give(void* p, size_t bytes, cudaStream_t s) {
    GetParam().stream == of::none ? test::give(ref(), p, bytes) : test::give(ref(), p, bytes, s);
  }
  void expect_known_to_cuda(void const* p) {
    if (!gpu())
      return;
    cudaPointerAttributes is{};
    ASSERT_EQ(cudaPointerGetAttributes(&is, p), cudaSuccess);
    EXPECT_TRUE(is.type == cudaMemoryTypeDevice && is.devicePointer) << is.type;
  }

  void various() {
    for (size_t bytes : {size_t{0}, size_t{4}, 1_KiB, 1_MiB, 1_GiB}) {
      void* const p = take(bytes);
      if (bytes)
        expect_known_to_cuda(p);
      give(p, bytes);
    }
    EXPECT_THROW((void)take(1024 * 1024_GiB), std::bad_alloc);
  }
  void at_random() {
    std::mt19937 draw(4711);
    std::vector<std::pair<void*, size_t>> all;
    for (int i = 0; i < 100; ++i) {
      size_t const bytes = 1 + draw() % 5_MiB;
      all.emplace_back(take(bytes), bytes);
    }
    auto order = all;
    std::sort(order.begin(), order.end());
    for (size_t i = 1; i < order.size(); ++i) {
      EXPECT_LE(static_cast<char*>(order[i - 1].first) + order[i - 1].second, order[i].first) << "two blocks overlap";
    }
    for (auto [p, bytes] : all)
      give(p, bytes);
  }
  void mixed() {
    std::mt19937 draw(815);
    std::vector<std::pair<void*, size_t>> live;
    for (int taken = 0; taken < 100 || !live.empty();) {
      if (taken < 100 && (live.empty() || draw() % 100 < 53)) {
        size_t const bytes = 1 + draw() % 5_MiB;
        live.emplace_back(take(bytes), bytes);
        ++taken;
      } else {
        auto const one = live.begin() + static_cast<std::ptrdiff_t>(draw() % live.size());
        give(one->first, one->second);
        live.erase(one);
      }
    }
  }
  // Four threads, each in the machine and on the resource's device.
  template <class Do>
  void in_threads(Do what) {
    std::vector<std::thread> all;
    for (int i = 0; i < 4; ++i) {
      all.emplace_back([&] {
        runtime_guard const in(*machine_);
        set_device(0);
        what();
      });
    }
    for (auto& t : all)
      t.join();
  }

  // One thread takes blocks and writes them, another gives them back on its stream, ordered by events.
  void between_threads(cudaStream_t taker, cudaStream_t giver) {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::pair<void*, size_t>> handed;
    cudaEvent_t written{};
    if (gpu()) {
      ASSERT_EQ(cudaEventCreateWithFlags(&written, cudaEventDisableTiming), cudaSuccess);
    }
    std::thread takes([&] {
      runtime_guard const in(*machine_);
      set_device(0);
      std::mt19937 draw(42);
      for (int i = 0; i < 100; ++i) {
        size_t const bytes = 1 + draw() % 1_MiB;
        void* const p = take(bytes, taker);
        std::lock_guard const hold(lock);
        if (gpu()) {
          EXPECT_EQ(cudaMemsetAsync(p, i, bytes, taker), cudaSuccess);
          EXPECT_EQ(cudaEventRecord(written, taker), cudaSuccess);
        }
        handed.emplace_back(p, bytes);
        changed.notify_one();
      }
      if (gpu()) {
        EXPECT_EQ(cudaStreamSynchronize(taker), cudaSuccess);  // a thread's own stream ends with it
      }
    });
    std::thread gives([&] {
      runtime_guard const in(*machine_);
      set_device(0);
      for (int i = 0; i < 100; ++i) {
        std::unique_lock hold(lock);
        changed.wait(hold, [&] { return !handed.empty(); });
        auto const [p, bytes] = handed.front();
        handed.pop_front();
        if (gpu()) {
          EXPECT_EQ(cudaStreamWaitEvent(giver, written), cudaSuccess);
        }
        give(p, bytes, giver);
      }
      if (gpu()) {
        EXPECT_EQ(cudaStreamSynchronize(giver), cudaSuccess);
      }
    });
    takes.join();
    gives.join();
    if (gpu()) {
      EXPECT_EQ(cudaEventDestroy(written), cudaSuccess);
    }
  }

  std::string missing_;
  std::unique_ptr<runtime> machine_;
  std::optional<runtime_guard> in_;
  std::optional<mr::device_resource> resource_;
  cudaStream_t own_{};
  std::vector<cudaStream_t> made_;
};

TEST_P(mr_behaviour, a_reference_equals_itself) {
  EXPECT_TRUE(ref() == ref());
}

TEST_P(mr_behaviour, two_live_blocks_are_different) {
  void *const a = take(8), *const b = take(8);
  EXPECT_NE(a, b);
  give(a, 8);
  give(b, 8);
}

TEST_P(mr_behaviour, any_size_is_served_and_a_pebibyte_refused) {
  various();
}
TEST_P(mr_behaviour, random_sizes_do_not_overlap) {
  at_random();
}
TEST_P(mr_behaviour, random_blocks_are_freed_between_others) {
  mixed();
}
TEST_P(mr_behaviour, four_threads_are_served_any_size) {
  in_threads([this] { various(); });
}
TEST_P(mr_behaviour, four_threads_take_random_sizes) {
  in_threads([this] { at_random(); });
}
TEST_P(mr_behaviour, four_threads_free_between_others) {
  in_threads([this] { mixed(); });
}
TEST_P(mr_behaviour, one_thread_takes_and_another_gives_back) {
  between_threads(own_, own_);
}
TEST_P(mr_behaviour, the_giver_may_use_another_stream) {
  if (GetParam().stream != of::own)
    GTEST_SKIP() << "there is one such stream";
  between_threads(own_, make_stream());
}

// As RMM's current resource of each device: set, used by this thread and by others, replaced, set back.
TEST_P(mr_behaviour, a_reference_can_be_kept_for_each_device) {
  mr::device_resource first;
  std::vector<test::device_ref> current(static_cast<size_t>(device_count()), test::device_ref(first));
  auto const use = [&] {
    for (auto& one : current) {
      void* const p = test::take(one, 1_MiB);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
      expect_known_to_cuda(p);
      test::give(one, p, 1_MiB);
    }
  };
  use();
  std::fill(current.begin(), current.end(), ref());
  use();
  in_threads(use);
  std::fill(current.begin(), current.end(), test::device_ref(first));
  use();
}

INSTANTIATE_TEST_SUITE_P(every, mr_behaviour,
                         ::testing::Values(place{kind::simulated, of::none}, place{kind::simulated, of::legacy},
                                           place{kind::gpus, of::none}, place{kind::gpus, of::legacy},
                                           place{kind::gpus, of::own}, place{kind::gpus, of::per_thread}),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace weir
#endif
