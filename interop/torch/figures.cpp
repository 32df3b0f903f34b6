// What Python asks of weir: figures, snapshots, limits, and blocks for libraries that have no hooks (CuPy).
// Threads: any. Nothing throws: a call that fails returns null or -1, and weir_torch_error() has its text.
// A text is valid until the thread's next call here.
#include <algorithm>
#include <array>
#include <cstdio>

#include "interop/torch/door.h"
#include "interop/torch/torch_errors.h"
#include "weir/observe.h"

namespace weir::interop {
namespace {

constexpr source_location of_python;  // its line is not known here
thread_local std::string answer_text;

template <class Text>
char const* answered(Text make) noexcept {
  return guarded(
      [&] {
        answer_text = make();
        return answer_text.c_str();
      },
      static_cast<char const*>(nullptr));
}
constinit std::atomic<bool> lines_are_named{false};  // for good
std::array<std::atomic<double>, 64> fractions{};     // by device; 0: none was set
std::array<std::atomic<std::int64_t>, 64> held{};    // bytes of libraries without hooks, by device
void count(int device, std::size_t bytes, int sign) noexcept {
  if (device >= 0 && device < 64)
    held[static_cast<std::size_t>(device)] += sign * static_cast<std::int64_t>(bytes);
}

}  // namespace

std::string& error_of_this_thread() noexcept {
  thread_local std::string text;
  return text;
}

}  // namespace weir::interop

using namespace weir::interop;

WEIR_HOOK char const* weir_torch_version() noexcept {
  return WEIR_VERSION;
}
WEIR_HOOK char const* weir_torch_error() noexcept {
  return error_of_this_thread().c_str();
}
// 1: out of memory arrives as torch.OutOfMemoryError; 0: as RuntimeError
WEIR_HOOK int weir_torch_has_own_error() noexcept {
  return knows_torch_errors();
}

// A line "key value" for each of torch's keys and weir's own.
WEIR_HOOK char const* weir_torch_stats(int device) noexcept {
  return answered([&] {
    std::string all;
    for (auto const& [key, value] : weir::memory_stats(device, of_python).flat())
      all.append(key).append(1, '\t').append(std::to_string(value)).append(1, '\n');
    return all;
  });
}
WEIR_HOOK char const* weir_torch_summary(int device) noexcept {
  return answered([&] { return weir::memory_summary(device, of_python); });
}
WEIR_HOOK char const* weir_torch_report(int device) noexcept {
  return answered([&] { return weir::current_memory_report(device, of_python).text(); });
}
WEIR_HOOK int weir_torch_reset_peak(int device) noexcept {
  return done([&] { weir::reset_peak_memory_stats(device, of_python); });
}
WEIR_HOOK int weir_torch_reset_accumulated(int device) noexcept {
  return done([&] { weir::reset_accumulated_memory_stats(device, of_python); });
}
// PyTorch's hook, too. It allows 0; weir's smallest limit is what 0 then means.
WEIR_HOOK void weir_torch_set_fraction(double fraction, int device) {
  weir::set_per_process_memory_fraction(std::clamp(fraction, 1e-12, 1.0), device, of_python);
  if (device >= 0 && device < 64)
    fractions[static_cast<std::size_t>(device)] = fraction;
}
WEIR_HOOK double weir_torch_get_fraction(int device) noexcept {
  double const set = device >= 0 && device < 64 ? fractions[static_cast<std::size_t>(device)].load() : 0;
  return set > 0 ? set : 1;
}

WEIR_HOOK int weir_torch_snapshot(char const* path) noexcept {
  return done([&] { weir::dump_memory_snapshot(path, of_python); });
}
WEIR_HOOK int weir_torch_page(char const* path) noexcept {
  return done([&] { weir::dump_memory_page(path, "PyTorch on weir", of_python); });
}
// Blocks get the line of the Python program, without frames of files below `library` (PyTorch's own folder).
// Null: no line.
WEIR_HOOK int weir_torch_record(std::size_t events, int stacks, char const* library) noexcept {
  return done([&] {
    name_library(library ? library : "");
    weir::record_memory_history({.events = events, .stacks = stacks != 0}, of_python);
    at_hand.recording = library != nullptr || lines_are_named;
  });
}
// Blocks and reports of races get the line of the Python program, as those of weir_torch_record, from now on.
WEIR_HOOK int weir_torch_name_lines(char const* library) noexcept {
  return done([&] {
    name_library(library);
    lines_are_named = at_hand.recording = true;
    weir::name_race_places(last_line_of_program);
  });
}
WEIR_HOOK int weir_torch_stop_recording() noexcept {
  return done([] {
    at_hand.recording = lines_are_named.load();
    weir::stop_memory_history();
  });
}

// A stream that may end before the process: only allocations and record_stream name it.
WEIR_HOOK int weir_torch_lend(CUstream_st* stream) noexcept {
  return done([&] { streams().lend(stream); });
}

// For libraries without hooks: the block is of the stream that is named here, which may end before it.
WEIR_HOOK void* weir_torch_allocate(std::size_t bytes, int device, CUstream_st* stream) noexcept {
  return guarded(
      [&] {
        void* const p = allocate_rounded(bytes, device, stream, streams().borrow(device, stream));
        count(device, rounded(bytes), 1);
        return p;
      },
      static_cast<void*>(nullptr));
}
WEIR_HOOK int weir_torch_deallocate(void* p) noexcept {
  if (is_forked())
    return 0;
  return done([&] {
    auto const block = weir::find_block(p);
    weir::deallocate(p, of_python);
    if (block && block->base == p)
      count(block->on.index(), block->bytes, -1);
  });
}
WEIR_HOOK std::int64_t weir_torch_held(int device) noexcept {
  return device >= 0 && device < 64 ? held[static_cast<std::size_t>(device)].load() : 0;
}
WEIR_HOOK int weir_torch_simulated() noexcept {
  return guarded([] { return weir::runtime::current(of_python).is_simulated() ? 1 : 0; }, -1);
}
