// libweir_torch.so, called as PyTorch calls it, on simulated devices: they have CUDA's legacy stream alone.
// Threads: as each test says.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "interop/torch/python/weir/torch/native/door.h"

namespace {

constexpr std::size_t limit = std::size_t{256} << 20;  // bytes of each device

struct library {
  void* handle;
  library() {
    ::setenv("WEIR_DEVICES", "sim:2:1", 1);
    ::setenv("WEIR_CONF", "device_limit:256MiB", 1);
    handle = ::dlopen(WEIR_TORCH_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!handle)
      throw std::runtime_error(::dlerror());
  }
  template <class F>
  F* find(char const* name) const {
    return reinterpret_cast<F*>(::dlsym(handle, name));
  }
};
library const& lib() {
  static library const loaded;
  return loaded;
}

using pool_id = std::pair<unsigned long long, unsigned long long>;
void* take(std::size_t bytes, int device = 0) {
  return lib().find<void*(std::size_t, int, CUstream_st*)>("weir_torch_alloc")(bytes, device, nullptr);
}
void give(void* p, std::size_t bytes = 0, int device = 0) {
  lib().find<void(void*, std::size_t, int, CUstream_st*)>("weir_torch_free")(p, bytes, device, nullptr);
}
std::int64_t figure(std::string const& key, int device = 0) {
  std::string const all = lib().find<char const*(int)>("weir_torch_stats")(device);
  auto const at = ("\n" + all).find("\n" + key + "\t");
  return at == std::string::npos ? -1 : std::stoll(all.substr(at + key.size() + 1));
}
template <class Do>
std::string refusal(Do act) {
  try {
    act();
  } catch (std::runtime_error const& e) {
    return e.what();
  }
  return "nothing was thrown";
}

TEST(torch_hooks, zero_bytes_have_an_address_of_their_own) {
  std::set<void*> all;
  for (int i = 0; i < 100; ++i)
    all.insert(take(0));
  EXPECT_EQ(all.size(), 100u);
  EXPECT_FALSE(all.contains(nullptr));
  for (void* const p : all)
    give(p);
}

// PyTorch's kernels choose their paths by alignment.
TEST(torch_hooks, blocks_are_aligned_and_apart) {
  std::vector<std::pair<char*, std::size_t>> all;
  for (std::size_t const n : {1u, 4u, 511u, 512u, 513u, 3000u, 33000u, 2000000u}) {
    auto* const p = static_cast<char*>(take(n));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 512, 0u) << n;
    std::memset(p, static_cast<int>(n % 251), n);
    all.emplace_back(p, n);
  }
  for (auto const& [p, n] : all) {
    EXPECT_EQ(p[0], static_cast<char>(n % 251));
    EXPECT_EQ(p[n - 1], static_cast<char>(n % 251));
    give(p, n);
  }
}

TEST(torch_hooks, figures_follow_allocations) {
  auto const before = figure("allocated_bytes.all.current");
  void* const p = take(1 << 20);
  EXPECT_EQ(figure("allocated_bytes.all.current"), before + (1 << 20));
  give(p);
  EXPECT_EQ(figure("allocated_bytes.all.current"), before);
  EXPECT_GE(figure("allocated_bytes.all.peak"), before + (1 << 20));
}

TEST(torch_hooks, out_of_memory_says_pytorchs_words_and_weirs) {
  std::string const said = refusal([] { take(limit + 1); });
  EXPECT_EQ(said.rfind("CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 1.00 GiB", 0),
            0u)
      << said;
  EXPECT_NE(said.find("limit"), std::string::npos) << said;
  give(take(1000));  // works on
}

std::size_t told = 0;
TEST(torch_hooks, observer_hears_of_an_allocation_that_fails) {
  auto* const set =
      lib().find<void(void (*)(int, std::size_t, std::size_t, std::size_t))>("weir_torch_on_out_of_memory");
  set([](int, std::size_t asked, std::size_t, std::size_t) { told = asked; });
  (void)refusal([] { take(limit + 2); });
  EXPECT_EQ(told, limit + 2);
  set(nullptr);
}

// With PyTorch's libraries in the process its own exception is thrown: torch.OutOfMemoryError in Python.
TEST(torch_hooks, out_of_memory_is_pytorchs_class_if_it_is_loaded) {
  void* const fake = ::dlopen(WEIR_FAKE_C10, RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(fake) << ::dlerror();
  auto* const catch_as_torch = reinterpret_cast<int (*)(void (*)(), char*, unsigned)>(::dlsym(fake, "catch_as_torch"));
  char text[4096];
  EXPECT_EQ(catch_as_torch([] { take(limit + 1); }, text, sizeof text), 2);
  EXPECT_EQ(std::string(text).rfind("CUDA out of memory. Tried", 0), 0u) << text;
  EXPECT_EQ(catch_as_torch([] { give(take(100)); }, text, sizeof text), 0);
  ::dlclose(fake);
}

// What the allocator that is compiled against PyTorch's headers asks.
TEST(torch_door, an_allocation_that_fails_says_why_in_numbers) {
  weir_torch_failure const* why = nullptr;
  auto* const try_alloc = lib().find<decltype(weir_torch_try_alloc)>("weir_torch_try_alloc");
  EXPECT_EQ(try_alloc(limit + 1, 0, nullptr, &why), nullptr);
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->out_of_memory, 1);
  EXPECT_EQ(why->capacity, std::size_t{1} << 30);
  EXPECT_LE(why->free, why->capacity);
  EXPECT_EQ(static_cast<std::int64_t>(why->allocated), figure("allocated_bytes.all.current"));
  EXPECT_NE(std::string(why->text).find("limit"), std::string::npos) << why->text;
  EXPECT_EQ(try_alloc(1000, 9, nullptr, &why), nullptr);
  EXPECT_EQ(why->out_of_memory, 0);
  EXPECT_NE(std::string(why->text).find("gpu:9"), std::string::npos) << why->text;
  void* const p = try_alloc(1000, 0, nullptr, &why);
  EXPECT_NE(p, nullptr);
  give(p);
}

TEST(torch_door, a_block_is_found_by_its_start_and_inside) {
  auto* const find = lib().find<decltype(weir_torch_find)>("weir_torch_find");
  auto* const p = static_cast<char*>(take(100000, 1));
  weir_torch_block block{};
  EXPECT_EQ(find(p + 99999, &block), 1);
  EXPECT_EQ(block.base, p);
  EXPECT_EQ(block.bytes, 100000u);
  EXPECT_EQ(block.device, 1);
  give(p, 100000, 1);
  EXPECT_EQ(find(p, &block), 0);
  int mine = 0;
  EXPECT_EQ(find(&mine, &block), 0);
}

TEST(torch_door, segments_add_up_to_the_statistics) {
  void* const kept = take(3 << 20);
  void* const small = take(700);
  weir_torch_statistics n{};
  ASSERT_EQ(lib().find<decltype(weir_torch_statistics_of)>("weir_torch_statistics_of")(0, &n), 0);
  struct sums {
    std::size_t bytes = 0, pieces = 0, live = 0, blocks = 0;
  } seen;
  auto const add = [](void* to, weir_torch_segment const* s) {
    auto& all = *static_cast<sums*>(to);
    all.bytes += s->bytes;
    EXPECT_EQ(s->stream, nullptr);
    EXPECT_EQ(s->pool[0] + s->pool[1], 0u);
    for (std::size_t i = 0; i < s->pieces; ++i) {
      all.pieces += s->piece[i].bytes;
      all.live += s->piece[i].is_allocated ? s->piece[i].bytes : 0;
      all.blocks += s->piece[i].is_allocated ? 1 : 0;
    }
  };
  ASSERT_EQ(lib().find<decltype(weir_torch_segments)>("weir_torch_segments")(0, add, &seen), 0);
  EXPECT_EQ(seen.bytes, seen.pieces);
  EXPECT_EQ(static_cast<std::int64_t>(seen.bytes), n.reserved_bytes[weir_torch_all].current);
  EXPECT_EQ(static_cast<std::int64_t>(seen.live), n.allocated_bytes[weir_torch_all].current);
  EXPECT_EQ(static_cast<std::int64_t>(seen.blocks), n.allocation[weir_torch_all].current);
  EXPECT_EQ(n.allocated_bytes[weir_torch_all].current,
            n.allocated_bytes[weir_torch_small].current + n.allocated_bytes[weir_torch_large].current);
  EXPECT_NE(lib().find<decltype(weir_torch_statistics_of)>("weir_torch_statistics_of")(7, &n), 0);
  EXPECT_NE(std::string(lib().find<char const*()>("weir_torch_error")()), "");
  give(kept), give(small);
}

TEST(torch_door, a_pool_in_force_owns_its_segments) {
  pool_id const id{0, 7070};
  auto* const holds = lib().find<decltype(weir_torch_holds_of_pool)>("weir_torch_holds_of_pool");
  auto* const in_force = lib().find<decltype(weir_torch_pool_in_force)>("weir_torch_pool_in_force");
  unsigned long long found[2] = {};
  EXPECT_EQ(in_force(0, nullptr, found), 0);
  lib().find<void(int, pool_id, std::function<bool(CUstream_st*)>)>("weir_torch_begin_pool")(
      0, id, [](CUstream_st*) { return true; });
  EXPECT_EQ(in_force(0, nullptr, found), 1);
  EXPECT_EQ(pool_id(found[0], found[1]), id);
  EXPECT_EQ(in_force(1, nullptr, found), 0) << "of another device";
  void* const p = take(1 << 20);
  lib().find<void(int, pool_id)>("weir_torch_end_pool")(0, id);
  EXPECT_EQ(in_force(0, nullptr, found), 0);
  EXPECT_EQ(holds(0, id.first, id.second), 1);
  std::size_t live = 0;
  auto const add = [](void* to, weir_torch_segment const* s) {
    for (std::size_t i = 0; i < s->pieces && s->pool[1] == 7070; ++i)
      *static_cast<std::size_t*>(to) += s->piece[i].is_allocated ? s->piece[i].bytes : 0;
  };
  ASSERT_EQ(lib().find<decltype(weir_torch_segments)>("weir_torch_segments")(0, add, &live), 0);
  EXPECT_EQ(live, std::size_t{1} << 20);
  give(p);
  lib().find<void(int, pool_id)>("weir_torch_release_pool")(0, id);
  EXPECT_EQ(holds(0, id.first, id.second), 0);
}

TEST(torch_door, a_pool_sleeps_and_wakes_at_its_addresses) {
  pool_id const id{0, 7171};
  auto* const sleep = lib().find<int(int, unsigned long long, unsigned long long, int)>("weir_torch_sleep_pool");
  auto* const wake = lib().find<int(int, unsigned long long, unsigned long long)>("weir_torch_wake_pool");
  lib().find<void(int, pool_id, std::function<bool(CUstream_st*)>)>("weir_torch_begin_pool")(
      0, id, [](CUstream_st*) { return true; });
  EXPECT_EQ(sleep(0, id.first, id.second, 1), 0) << "nothing is allocated yet";
  EXPECT_EQ(wake(0, id.first, id.second), 0);
  std::size_t const bytes = 8 << 20;
  auto* const p = static_cast<char*>(take(bytes));
  std::memset(p, 42, bytes);
  auto const reserved = figure("reserved_bytes.all.current");
  EXPECT_EQ(sleep(0, id.first, id.second, 1), 0);
  EXPECT_LE(figure("reserved_bytes.all.current"), reserved - static_cast<std::int64_t>(bytes));
  EXPECT_THROW(take(bytes), std::runtime_error) << "the pool sleeps";
  EXPECT_EQ(wake(0, id.first, id.second), 0);
  EXPECT_EQ(std::count(p, p + bytes, 42), static_cast<std::ptrdiff_t>(bytes));
  EXPECT_EQ(sleep(0, id.first, id.second, 0), 0) << "drops the bytes";
  EXPECT_EQ(wake(0, id.first, id.second), 0);
  p[bytes - 1] = 7;
  lib().find<void(int, pool_id)>("weir_torch_end_pool")(0, id);
  give(p);
  lib().find<void(int, pool_id)>("weir_torch_release_pool")(0, id);
}

// One pool entered by two threads: the end on one leaves the other inside.
TEST(torch_door, a_thread_ends_its_own_entry_into_a_pool) {
  pool_id const id{0, 7272};
  auto* const enter = lib().find<void(int, pool_id, std::function<bool(CUstream_st*)>)>("weir_torch_begin_pool");
  auto* const leave = lib().find<void(int, pool_id)>("weir_torch_end_pool");
  auto* const in_force = lib().find<decltype(weir_torch_pool_in_force)>("weir_torch_pool_in_force");
  auto const enter_here = [&] {
    enter(0, id, [me = std::this_thread::get_id()](CUstream_st*) { return std::this_thread::get_id() == me; });
  };
  unsigned long long found[2] = {};
  enter_here();
  std::thread([&] {
    enter_here();
    unsigned long long there[2] = {};
    EXPECT_EQ(in_force(0, nullptr, there), 1);
    EXPECT_EQ(lib().find<decltype(weir_torch_begun_of_pool)>("weir_torch_begun_of_pool")(0, id.first, id.second), 2);
    leave(0, id);
    EXPECT_EQ(in_force(0, nullptr, there), 0);
  }).join();
  EXPECT_EQ(in_force(0, nullptr, found), 1);
  leave(0, id);
  EXPECT_EQ(in_force(0, nullptr, found), 0);
  for (int i = 0; i < 2; ++i)
    lib().find<void(int, pool_id)>("weir_torch_release_pool")(0, id);
}

TEST(torch_door, the_largest_block_is_what_can_be_had) {
  std::size_t const largest = lib().find<decltype(weir_torch_largest)>("weir_torch_largest")(0);
  EXPECT_GT(largest, limit / 2);
  give(take(largest));
  EXPECT_EQ(lib().find<decltype(weir_torch_devices)>("weir_torch_devices")(), 2);
}

TEST(torch_hooks, foreign_pointers_are_left_alone) {
  int mine = 0;
  ::testing::internal::CaptureStderr();
  lib().find<void(void*, CUstream_st*)>("weir_torch_record_stream")(&mine, nullptr);
  lib().find<void(void*, CUstream_st*)>("weir_torch_record_stream")(nullptr, nullptr);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  give(&mine);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("is not a live block of weir"), std::string::npos);
}

TEST(torch_hooks, recorded_blocks_are_reused_on_their_stream) {
  void* const p = take(1 << 20);
  lib().find<void(void*, CUstream_st*)>("weir_torch_record_stream")(p, nullptr);
  give(p);
  void* const q = take(1 << 20);
  EXPECT_EQ(p, q);
  give(q);
}

TEST(torch_hooks, base_and_size_of_an_interior_address) {
  auto* const p = static_cast<char*>(take(100000));
  std::size_t bytes = 0;
  EXPECT_EQ(lib().find<void*(void*, std::size_t*)>("weir_torch_base_alloc")(p + 5000, &bytes), p);
  EXPECT_EQ(bytes, 100000u);
  give(p);
}

TEST(torch_hooks, empty_cache_gives_back) {
  give(take(100 << 20));
  auto const before = figure("reserved_bytes.all.current");
  lib().find<void()>("weir_torch_reset")();
  EXPECT_LT(figure("reserved_bytes.all.current"), before);
}

TEST(torch_hooks, memory_fraction_is_a_limit) {
  auto* const set = lib().find<void(double, int)>("weir_torch_set_fraction");
  auto* const get = lib().find<double(int)>("weir_torch_get_fraction");
  EXPECT_EQ(get(0), 1);
  set(0.125, 0);  // of 1 GiB
  EXPECT_EQ(get(0), 0.125);
  EXPECT_EQ(refusal([] { take(129 << 20); }).rfind("CUDA out of memory.", 0), 0u);
  set(0, 0);  // PyTorch allows it
  set(0.25, 0);
  give(take(129 << 20));
}

// A stream that is not captured allocates from a pool of its own, as torch.cuda.use_mem_pool asks.
TEST(torch_hooks, a_pool_serves_what_its_filter_accepts) {
  auto* const begin = lib().find<void(int, pool_id, std::function<bool(CUstream_st*)>)>("weir_torch_begin_pool");
  auto* const end = lib().find<void(int, pool_id)>("weir_torch_end_pool");
  auto* const release = lib().find<void(int, pool_id)>("weir_torch_release_pool");
  auto* const hold = lib().find<void(int, unsigned long long, unsigned long long)>("weir_torch_hold_pool");
  void* const before = take(100'000);
  give(before);
  int asked = 0;
  bool accepts = false;
  hold(0, 7, 0);
  begin(0, {7, 0}, [&](CUstream_st*) { return ++asked, accepts; });
  void* const ordinary = take(100'000);
  EXPECT_EQ(ordinary, before);
  EXPECT_EQ(asked, 1);
  accepts = true;
  void* const inside = take(100'000);
  EXPECT_EQ(asked, 2);
  auto const page_of = [](void* p) { return reinterpret_cast<std::uintptr_t>(p) >> 21; };
  EXPECT_NE(page_of(inside), page_of(before)) << "a pool has pages to itself";
  end(0, {7, 0});
  void* const outside = take(100'000);
  EXPECT_EQ(asked, 2) << "the filter may be gone after the end";
  EXPECT_EQ(page_of(outside), page_of(before));
  give(outside), give(ordinary);
  release(0, {7, 0});
  give(inside);
  release(0, {7, 0});
  release(0, {7, 0});  // once too often: PyTorch resets a graph twice
  give(take(1 << 20));
}

// PyTorch's kernels would run on host memory.
TEST(torch_hooks, gpus_of_pytorch_on_simulated_memory_are_refused) {
  std::string const said = refusal([] { lib().find<void(int)>("weir_torch_init")(2); });
  EXPECT_NE(said.find("Unset WEIR_DEVICES"), std::string::npos) << said;
}

TEST(torch_hooks, memory_opens_when_a_second_device_is_used) {
  void* const p = take(50 << 20, 0);
  EXPECT_EQ(figure("peer_access_bytes", 0), 0);
  void* const q = take(50 << 20, 1);
  EXPECT_GE(figure("peer_access_bytes", 0), 50 << 20);
  EXPECT_GE(figure("peer_access_bytes", 1), 50 << 20);
  void* const later = take(60 << 20, 0);
  EXPECT_GE(figure("peer_access_bytes", 0), 110 << 20);
  for (void* const one : {p, later})
    give(one);
  give(q, 0, 1);
}

TEST(torch_hooks, stream_of_another_device_is_refused) {
  EXPECT_NE(refusal([] { take(100, 7); }), "nothing was thrown");
}

// Threads: eight.
TEST(torch_hooks, threads_share_the_streams) {
  std::vector<std::thread> all;
  for (int t = 0; t < 8; ++t) {
    all.emplace_back([t] {
      for (int i = 0; i < 2000; ++i) {
        auto* const p = static_cast<int*>(take(600));
        *p = t * 10000 + i;
        std::this_thread::yield();
        if (*p != t * 10000 + i)
          std::abort();
        give(p);
      }
    });
  }
  for (auto& one : all)
    one.join();
}

// A loader's worker ends with copies of its parent's tensors.
TEST(torch_hooks, forked_child_frees_nothing_and_is_refused_memory) {
  void* const p = take(1 << 20);
  auto const before = figure("allocated_bytes.all.current");
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(10);
    give(p);
    lib().find<void(void*, CUstream_st*)>("weir_torch_record_stream")(p, nullptr);
    lib().find<void()>("weir_torch_reset")();
    std::_Exit(refusal([] { take(100); }).find("spawn") == std::string::npos);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(figure("allocated_bytes.all.current"), before);
  give(p);
}

struct frees_late {
  void* p = nullptr;
  ~frees_late() {
    give(p);
    lib().find<void()>("weir_torch_reset")();
    std::_Exit(7);
  }
};
// Python's and PyTorch's statics end after weir's handler of exits.
TEST(torch_hooks_end, frees_after_the_end_of_the_process_are_quiet) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        static frees_late last;
        (void)lib();
        last.p = take(1 << 20);
        std::exit(0);
      },
      ::testing::ExitedWithCode(7), "^$");
}

}  // namespace
