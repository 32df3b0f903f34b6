// Each program contains a common mistake or pattern, and the one or two calls that explain its memory use.
// The documentation quotes these lines.
#include "questions.h"

#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "weir/copy.h"
#include "weir/device.h"
#include "weir/launch.h"
#include "weir/log.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/stream.h"
#include "weir/timeline.h"

namespace questions {
namespace {

using namespace weir::literals;

// Reserved and allocated memory: the activations of a training step come and go.
void reserved(std::ostream& out) {
  weir::runtime machine(weir::simulated{.devices = 1, .memory = 16_GiB});
  weir::runtime_guard const in(machine);
  weir::stream compute, loading;
  std::vector<void*> weights, activations;
  for (int layer = 0; layer < 12; ++layer)
    weights.push_back(weir::allocate(compute, 100_MiB));
  for (int layer = 0; layer < 12; ++layer)
    activations.push_back(weir::allocate(compute, 150_MiB));
  void* const batch = weir::allocate(loading, 512_MiB);
  for (void* const p : activations)
    weir::deallocate(p);
  weir::deallocate(batch);
  out << weir::memory_summary();
  for (void* const p : weights)
    weir::deallocate(p);
}

std::vector<weir::buffer> load_weights() {
  std::vector<weir::buffer> all;
  for (int layer = 0; layer < 24; ++layer)
    all.push_back(weir::buffer(96_MiB));
  return all;
}
weir::buffer make_cache() {
  return weir::buffer(700_MiB);
}
void step() {
  weir::buffer const scratch(300_MiB);
}

// Live memory by source line, now and at the peak.
void holds(std::ostream& out) {
  weir::runtime machine(weir::simulated{.devices = 1, .memory = 16_GiB});
  weir::runtime_guard const in(machine);
  weir::record_memory_history();
  auto const weights = load_weights();
  auto const cache = make_cache();
  for (int i = 0; i < 10; ++i)
    step();
  out << format(weir::memory_by_line());
  weir::stop_memory_history();
}

// Out of memory although 8 GiB are free: each page holds a small live block.
void oom(std::ostream& out) {
  weir::runtime machine(weir::simulated{.devices = 1, .memory = 16_GiB});
  weir::runtime_guard const in(machine);
  weir::stream s;
  std::vector<void*> blocks;
  for (size_t used = 0; used < 15_GiB; used += 1_MiB)
    blocks.push_back(weir::allocate(s, 1_MiB));
  for (size_t i = 0; i < blocks.size(); i += 2)
    weir::deallocate(blocks[i]);  // every second block stays live
  try {
    weir::deallocate(weir::allocate(s, 3_GiB));
  } catch (weir::out_of_memory const& e) {
    out << e.report().text();
  }
  for (size_t i = 1; i < blocks.size(); i += 2)
    weir::deallocate(blocks[i]);
}

// A leak by source line: allocations that are never freed.
void line(std::ostream& out) {
  weir::runtime machine(weir::simulated{.devices = 1, .memory = 16_GiB});
  weir::runtime_guard const in(machine);
  std::vector<weir::buffer> losses, kept;
  weir::memory_tracker tracker(out);
  for (int i = 0; i < 2; ++i) {
    step();
    losses.push_back(weir::buffer(4));     // a scalar for the log
    kept.push_back(weir::buffer(20_MiB));  // and, by mistake, the tensor that it was computed from
    tracker.track();
  }
  weir::stop_memory_history();
}

// Freed memory that cannot be reused yet: which stream still uses it?
void pending(std::ostream& out) {
  weir::runtime machine(
      weir::simulated{.devices = 1, .memory = 16_GiB, .schedule = weir::simulated::scheduling::stepped});
  weir::runtime_guard const in(machine);
  weir::stream compute, copies;
  weir::buffer const host(2_GiB, {.kind = weir::memory_kind::pinned});
  void* const result = weir::allocate(compute, 2_GiB);
  weir::copy(copies, host.data(), result, 2_GiB, weir::non_blocking);
  weir::deallocate(result);
  std::string const summary = weir::memory_summary();
  out << summary.substr(summary.find("out of memory"));
  for (weir::stream_memory_use const& u : weir::memory_by_stream()) {
    for (auto const& w : u.waits_for)
      out << "stream " << u.stream << ": " << (w.bytes >> 20) << " MiB wait for stream " << w.stream << "\n";
  }
  copies.synchronize();
}

// A kernel that runs until the host tells it to finish.
struct kernel {
  std::shared_ptr<std::atomic<int>> state = std::make_shared<std::atomic<int>>(0);
  void on(weir::stream_ref s, weir::buffer const& b) {
    weir::launch(
        s, {weir::updates(b)}, [](CUstream_st*) {},
        [state = state] {
          *state = 1;
          while (*state < 2)
            std::this_thread::yield();
        });
    while (*state == 0)
      std::this_thread::yield();
  }
  void finish() { *state = 2; }
};

struct own_folder {  // a temporary directory of this process
  std::filesystem::path path;
  own_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "weir-questions-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      throw std::runtime_error(name + ": no folder can be made there; TMPDIR names another place");
    path = name;
  }
  ~own_folder() {
    std::error_code none;
    std::filesystem::remove_all(path, none);
  }
  own_folder(own_folder const&) = delete;
};

// Overlap of copies and kernels: one copy that overlaps and one that does not.
void overlap(std::ostream& out) {
  weir::runtime machine(weir::simulated{.devices = 1, .memory = 16_GiB});
  weir::runtime_guard const in(machine);
  weir::stream compute, copies;
  weir::buffer const host(64_MiB, {.kind = weir::memory_kind::pinned}), batch(64_MiB), next(64_MiB);
  weir::copy(copies, next.data(), host.data(), 64_MiB);  // the first touch of host memory is slow
  weir::record_timeline();
  {
    weir::profile_range const r("side by side");
    kernel runs;
    runs.on(compute, batch);
    weir::copy(copies, next.data(), host.data(), 64_MiB, weir::non_blocking);
    copies.synchronize();
    runs.finish();
  }
  {
    weir::profile_range const r("one after the other");
    kernel runs;
    runs.on(compute, batch);
    runs.finish();
    weir::copy(compute, next.data(), host.data(), 64_MiB, weir::non_blocking);
    weir::synchronize();
  }
  {
    own_folder const folder;
    std::string const file = folder.path / "timeline.json";
    weir::dump_timeline(file);  // ui.perfetto.dev opens it
  }
  out << "A simulated device: what overlaps is right, how long it takes is not.\n";
  out << weir::timeline_summary();
  weir::stop_timeline();
  weir::stop_memory_history();
}

// What weir logs about its own decisions.
void told(std::ostream& out) {
  weir::on_log([&out](weir::log_line const& l) { out << l.str().substr(21) << "\n"; });  // less the time of day
  {
    weir::runtime machine(weir::simulated{.devices = 1, .memory = 64_MiB}, {.log = weir::log_level::debug});
    weir::runtime_guard const in(machine);
    weir::stream one, other;
    weir::deallocate(weir::allocate(one, 40_MiB));
    weir::deallocate(weir::allocate(other, 60_MiB));
  }
  weir::on_log({});
}

constexpr question list[] = {{"reserved", "Why is reserved larger than allocated?", reserved},
                             {"holds", "Who holds the 3 GiB?", holds},
                             {"oom", "Why did this run out of memory with 7 GiB free?", oom},
                             {"line", "Which line leaks?", line},
                             {"pending", "I gave it back. Who still holds it?", pending},
                             {"overlap", "Is my copy overlapped?", overlap},
                             {"told", "What is weir doing?", told}};

}  // namespace

std::span<question const> all() {
  return list;
}

}  // namespace questions
