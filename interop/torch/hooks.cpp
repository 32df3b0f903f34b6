// The functions that torch.cuda.memory.CUDAPluggableAllocator calls.
// Threads: any. None but alloc, begin_pool and init throws: PyTorch calls the others from destructors.
#include <pthread.h>

#include <cstdio>
#include <stdexcept>
#include <utility>

#include "interop/torch/door.h"
#include "interop/torch/torch_errors.h"
#include "weir/observe.h"

namespace weir::interop {
namespace {

using observer = void (*)(int device, std::size_t requested, std::size_t allocated, std::size_t free);
constinit std::atomic<observer> on_out_of_memory{nullptr};
constexpr source_location of_torch;  // a line of Python, which errors do not know

std::string of_bytes(std::size_t n) {
  char text[64];
  double const mib = static_cast<double>(n) / (1 << 20);
  std::snprintf(text, sizeof text, mib >= 1024 ? "%.2f GiB" : "%.2f MiB", mib >= 1024 ? mib / 1024 : mib);
  return text;
}

[[noreturn]] void throw_for_torch(int device, std::size_t bytes) {
  std::string text;
  try {
    throw;
  } catch (out_of_memory const& e) {
    memory_report const& r = e.report();
    std::size_t const taken = r.reserved + r.other_processes, free = taken < r.capacity ? r.capacity - taken : 0;
    text = "CUDA out of memory. Tried to allocate " + of_bytes(bytes) + ". GPU " + std::to_string(device) +
           " has a total capacity of " + of_bytes(r.capacity) + " of which " + of_bytes(free) +
           " is free. weir's report:\n" + r.text();
    if (observer const tell = on_out_of_memory.load())
      tell(device, bytes, r.allocated, free);
  } catch (...) {
    throw std::runtime_error(text_of(std::current_exception()));
  }
  throw_out_of_memory(std::move(text));
}

[[gnu::noinline]] void* allocate_or_throw(std::size_t bytes, int device, CUstream_st* handle) try {
  require_no_fork();
  return allocate_rounded(bytes, device, handle, streams().of(device, handle));
} catch (...) {
  throw_for_torch(device, bytes);
}

void complain(char const* what) noexcept {
  std::fprintf(stderr, "weir: %s: %s\n", what, text_of(std::current_exception()).c_str());
}

[[gnu::noinline]] void free_or_complain(void* p) noexcept try {
  bool const has_line = at_hand.recording.load(std::memory_order_relaxed);
  weir::detail::deallocate_slowly(p, has_line ? line_without_waiting() : of_torch);
} catch (...) {
  complain("a block of PyTorch is not freed");
}

}  // namespace

constinit state_at_hand at_hand;

// Never destroyed: PyTorch frees blocks after the destructors of statics.
retained_streams& streams() noexcept {
  static retained_streams& all = []() -> retained_streams& {
    ::pthread_atfork(nullptr, nullptr, [] { at_hand.forked.store(true, std::memory_order_relaxed); });
    auto* const made = new retained_streams;
    at_hand.streams.store(made, std::memory_order_release);
    return *made;
  }();
  return all;
}
pools_of_torch& pools() noexcept {
  static pools_of_torch& all = *new pools_of_torch(at_hand.open_pools);
  return all;
}

void require_no_fork() {
  if (is_forked()) {
    throw std::runtime_error(
        "weir-115: this process is a fork of one that used a device, and cannot use one itself. Start it with "
        "the method spawn (torch.multiprocessing.set_start_method('spawn'))");
  }
}

std::string text_of(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (std::exception const& e) {
    return e.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace weir::interop

using namespace weir::interop;

WEIR_HOOK void* weir_torch_alloc(std::size_t bytes, int device, CUstream_st* stream) {
  void* const p = allocate_quickly(bytes, device, stream);
  return p ? p : allocate_or_throw(bytes, device, stream);
}

// The stream may have ended, so the free does not name it.
WEIR_HOOK void weir_torch_free(void* p, std::size_t, int, CUstream_st*) noexcept {
  if (!is_forked() && !weir::detail::deallocate_quickly(p))
    free_or_complain(p);
}

// Memory of others (from_blob, DLPack) is none of weir's, and its owner keeps it.
WEIR_HOOK void weir_torch_record_stream(void* p, CUstream_st* stream) noexcept {
  if (!p || is_forked())
    return;
  try {
    int guess = streams().only_device();
    if (guess < 0) {
      auto const block = weir::find_block(p);
      if (!block || block->on.is_cpu())
        return;
      guess = block->on.index();
    }
    weir::record_stream(p, streams().of_any_device(guess, stream), of_torch);
  } catch (...) {
    if (weir::find_block(p))
      complain("record_stream");
  }
}

// empty_cache()
WEIR_HOOK void weir_torch_reset() noexcept {
  if (is_forked())
    return;
  try {
    for (int d = 0; d < weir::device_count(of_torch); ++d) {
      if (weir::memory_reserved(d, of_torch))
        weir::empty_cache(d, of_torch);
    }
  } catch (...) {
    complain("empty_cache");
  }
}

WEIR_HOOK void* weir_torch_base_alloc(void* p, std::size_t* bytes) noexcept {
  auto const block = weir::find_block(p);
  if (bytes)
    *bytes = block ? block->bytes : 0;
  return block ? block->base : p;
}

// PyTorch is about to use CUDA for the first time.
WEIR_HOOK void weir_torch_init(int devices) {
  try {
    weir::runtime& mine = weir::runtime::current(of_torch);
    if (devices > 0 && mine.is_simulated()) {
      throw std::runtime_error("weir-116: PyTorch has GPUs and weir has " + mine.description() +
                               ". Unset WEIR_DEVICES, or set it to cuda to learn why weir finds no GPU");
    }
    if (int const here = weir::device_count(of_torch); here != devices) {
      throw std::runtime_error("weir-117: PyTorch has " + std::to_string(devices) + " devices and weir has " +
                               std::to_string(here) +
                               ": set CUDA_VISIBLE_DEVICES before the program's first use of CUDA");
    }
  } catch (...) {
    throw std::runtime_error(text_of(std::current_exception()));
  }
}

// One function is told of each allocation of PyTorch that fails, before the error is thrown.
WEIR_HOOK void weir_torch_on_out_of_memory(observer tell) noexcept {
  on_out_of_memory.store(tell);
}

// By value, as PyTorch calls it.
WEIR_HOOK void weir_torch_begin_pool(int device, pools_of_torch::id id, pools_of_torch::filter accepts) {  // NOLINT
  try {
    pools().begin(device, id, std::move(accepts));
  } catch (...) {
    throw std::runtime_error(text_of(std::current_exception()));
  }
}
WEIR_HOOK void weir_torch_end_pool(int device, pools_of_torch::id id) noexcept {
  if (!is_forked())
    pools().end(device, id);
}
WEIR_HOOK void weir_torch_release_pool(int device, pools_of_torch::id id) noexcept {
  if (!is_forked())
    pools().release(device, id);
}
// Of weir's torch.cuda.MemPool: one release more is needed.
WEIR_HOOK void weir_torch_hold_pool(int device, unsigned long long first, unsigned long long second) {
  pools().hold(device, {first, second});
}
// What the pool holds sleeps, and keeps its addresses. keeps: 0 drops the bytes. Blocks: until its work is complete
WEIR_HOOK int weir_torch_sleep_pool(int device, unsigned long long first, unsigned long long second,
                                    int keeps) noexcept {
  return done([&] {
    require_no_fork();
    pools().sleep(device, {first, second}, keeps ? weir::sleep_to::host : weir::sleep_to::nowhere);
  });
}
WEIR_HOOK int weir_torch_wake_pool(int device, unsigned long long first, unsigned long long second) noexcept {
  return done([&] {
    require_no_fork();
    pools().wake(device, {first, second});
  });
}
