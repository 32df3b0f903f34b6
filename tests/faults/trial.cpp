// Creates a machine, lets one call fail, and checks what is left.
// Threads: as trial.h.
#include "tests/faults/trial.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>

#include "runtime/core/parts.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_memory.h"
#include "simulator/machine/machine.h"
#include "streams/pinned/pinned_memory.h"
#include "tests/faults/heap.h"
#include "tests/support/memory_bench.h"
#include "weir/copy.h"
#include "weir/memory.h"

namespace weir::faults {
namespace {

constexpr source_location at{"a trial", "a trial", 1};

std::size_t entries(char const* folder) {
  std::size_t n = 0;
  for (auto const& one : std::filesystem::directory_iterator(folder))
    (void)one, ++n;
  return n;
}

struct left_behind {  // the process, when no runtime is live
  std::size_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  std::int64_t blocks = heap::live();
};

class looking_on final : public driver::fault_injector::watcher {
 public:
  looking_on(pair_counts* counts, std::vector<call>* calls) : counts_(counts), calls_(calls) {}
  void comes(call c) noexcept override {
    heap::paused const quiet;
    if (!calls_)
      return;
    std::lock_guard const hold(noting_);  // scenarios have threads
    calls_->push_back(c);
  }
  void refused(call c, code with) noexcept override {
    if (counts_)
      ++(*counts_)[static_cast<std::size_t>(c)][static_cast<std::size_t>(with)];
  }
  // The machine uses the heap too: only weir's allocations fail.
  void enters(call) noexcept override { heap::pause(); }
  void leaves(call c) noexcept override {
    constexpr std::array may_lose{call::synchronize_device, call::synchronize_stream, call::synchronize_event,
                                  call::query_stream,       call::query_event,        call::elapsed_ms};
    bool const asked = std::find(may_lose.begin(), may_lose.end(), c) != may_lose.end();
    if (driver::driver* const machine = asked ? ending_.load() : nullptr)
      look_at(*machine);
    heap::go_on();
  }
  // The runtime ends. A wait or query then loses its device if it
  // waits for a lost one in vain; later no query is possible.
  void ends(driver::driver& machine) noexcept { ending_.store(&machine); }
  std::vector<int> lost_at_the_end() const {
    std::vector<int> found;
    for (std::size_t d = 0; d < lost_.size(); ++d) {
      if (lost_[d].load())
        found.push_back(static_cast<int>(d));
    }
    return found;
  }

 private:
  void look_at(driver::driver& machine) noexcept {
    for (int d = 0; d < machine.device_count(); ++d) {
      if (machine.memory(d).is.what == code::lost)
        lost_[static_cast<std::size_t>(d)].store(true);
    }
  }
  pair_counts* counts_;
  std::vector<call>* calls_;
  std::mutex noting_;
  base::atomic<driver::driver*> ending_{nullptr};
  std::array<base::atomic<bool>, 8> lost_{};
};

// Made first, so destroyed last before the machine, whose own allocations must not fail.
struct heap_until_here {
  explicit heap_until_here(runtime::impl&) {}
  ~heap_until_here() { heap::stop(); }
};

// A runtime in use, and the findings of its machine at the end.
class life {
 public:
  life(scenario const& s, std::uint64_t seed, looking_on& eyes)
      : eyes_(eyes),
        devices_(s.machine.devices),
        left_(std::make_shared<std::vector<std::string>>()),
        reports_(std::make_shared<std::vector<driver::check::finding>>()) {
    simulated like = s.machine;
    like.seed = seed;
    own_ = std::make_unique<runtime>(like, s.with);
    in_.emplace(*own_);
    (void)parts().part<heap_until_here>();
    machine().watch(&eyes);
    if (auto* const checker = parts().machine().checker()) {
      (void)checker->findings();  // takes the findings, so that weir prints none
      checker->on_finding([reports = reports_](driver::check::finding const& f) { reports->push_back(f); });
    }
    control().at_end([left = left_](std::vector<std::string> const& census) { *left = census; });
  }
  ~life() { end(); }

  driver::fault_injector& machine() { return *driver::fault_injector_of(own_->get().machine()); }
  driver::sim::controls& control() { return *driver::sim::controls_of(machine()); }
  runtime::impl& parts() { return own_->get(); }
  int devices() const { return devices_; }
  bool used(int d) {
    auto* const memory = parts().part_if_made<memory::device_memory>();
    return memory && memory->if_made(d);
  }
  bool lost(int d) {
    heap::paused const quiet;  // the machine's first call on a thread allocates
    return machine().inner().memory(d).is.what == code::lost;
  }
  std::vector<int> all_lost() {
    std::vector<int> found;
    for (int d = 0; d < devices_; ++d) {
      if (lost(d))
        found.push_back(d);
    }
    return found;
  }
  std::vector<driver::check::finding> const& reports() const { return *reports_; }  // of a checker, if present
  // Returns: the machine's census.
  std::vector<std::string> end() {
    if (own_)
      eyes_.ends(machine().inner());
    in_.reset();
    own_.reset();
    return *left_;
  }

 private:
  looking_on& eyes_;
  int devices_;
  std::shared_ptr<std::vector<std::string>> left_;
  std::shared_ptr<std::vector<driver::check::finding>> reports_;
  std::unique_ptr<runtime> own_;
  std::optional<runtime_guard> in_;
};

struct ending {  // of a run
  enum class kind : std::uint8_t { done, refused, lost, wrong } is = kind::done;
  std::string text;  // the bytes, or the exception's text
};

ending run(scenario const& s, bool heap_fails) {
  using kind = ending::kind;
  auto const told = [](char const* what, error const& e) {
    heap::paused const quiet;
    return std::string(what) + ": " + std::string(e.operation()) + ": " + std::string(e.operands());
  };
  try {
    return {kind::done, s.run()};
  } catch (device_lost const& e) {
    return {kind::lost, told("device_lost", e)};
  } catch (error const& e) {
    return {kind::refused, told("error", e)};
  } catch (std::bad_alloc const&) {
    return {heap_fails ? kind::refused : kind::wrong, "bad_alloc"};
  } catch (std::exception const& e) {
    heap::paused const quiet;
    return {kind::wrong, std::string("an exception that is not weir's: ") + e.what()};
  }
}

std::size_t count_pages(life& l, int device) {
  empty_cache(device);  // a block handed over whole may exceed a page
  std::size_t const page = l.machine().inner().info(device).value.granularity;
  std::vector<void*> all;
  try {
    for (;;)
      all.push_back(allocate(default_stream(device), page, page));
  } catch (out_of_memory const&) {}
  for (void* p : all)
    deallocate(p);
  return all.size();
}

class judge {
 public:
  judge() { wrong_.reserve(1 << 16); }  // before heap blocks are counted
  void hold(bool holds, std::string const& words) {
    if (!holds)
      wrong_ += words + "\n";
  }
  void all_of(std::vector<std::string> const& lines, std::string const& when) {
    for (auto const& line : lines)
      wrong_ += when + ": " + line + "\n";
  }
  std::string const& wrong() const { return wrong_; }

 private:
  std::string wrong_;
};

void expect_sound(judge& j, life& l, std::string const& when) {
  auto& r = l.parts();
  if (auto* clocks = r.part_if_made<clock::clocks>())
    j.all_of(clocks->validate(), when);
  if (auto* pinned = r.part_if_made<streams::pinned_memory>()) {
    j.all_of(pinned->validate(), when);
    j.hold(pinned->statistics().allocated_bytes.all.current == 0, when + ": pinned memory is still held");
  }
  for (int d = 0; d < l.devices(); ++d) {
    if (!l.used(d))
      continue;
    auto& memory = *r.part<memory::device_memory>().if_made(d);
    j.all_of(memory.validate(), when);
    j.hold(memory.statistics().allocated_bytes.all.current == 0,
           when + ": memory of device " + std::to_string(d) + " is still held");
  }
}

void expect_working(judge& j, life& l, scenario const& s, expectation const& e) {
  auto const lost = l.all_lost();
  auto const again = run(s, false);
  if (again.is == ending::kind::done) {
    j.hold(again.text == e.bytes, "again: other bytes");
  } else {
    j.hold(again.is == ending::kind::lost && !lost.empty(), "again: " + again.text);
  }
  expect_sound(j, l, "again");
  for (int d = 0; d < l.devices(); ++d) {
    if (e.pages[static_cast<std::size_t>(d)] == 0)
      continue;
    if (l.lost(d)) {
      try {
        fill(buffer(64, {.on = device(d)}).data(), std::byte{1}, 64);
        j.hold(false, "a lost device works");
      } catch (device_lost const&) {
      } catch (error const& other) {
        j.hold(false, "a lost device answers: " + std::string(other.operands()));
      }
      continue;
    }
    try {
      synchronize(d);
      std::size_t const pages = count_pages(l, d);
      // Memory used by streams of a lost device is never free.
      j.hold(lost.empty() ? pages == e.pages[static_cast<std::size_t>(d)] : pages > 0,
             "device " + std::to_string(d) + " gives " + std::to_string(pages) + " pages of " +
                 std::to_string(e.pages[static_cast<std::size_t>(d)]));
    } catch (error const& other) {
      // A stream that waits for the lost device never moves again, and its calls say so.
      j.hold(!lost.empty(), "device " + std::to_string(d) + " does not work on: " + std::string(other.operation()) +
                                ": " + std::string(other.operands()));
    }
  }
  expect_sound(j, l, "after all pages were taken");
  for (auto const& finding : l.control().findings()) {
    j.hold(finding.rfind("stuck", 0) == 0 && !lost.empty(), "the machine found: " + finding);
  }
}

// May be left: everything of a lost device, since its work may still use it; memory used by work behind a
// wait for a lost device; handles that the driver refused to release.
void expect_nothing_left(judge& j, std::vector<std::string> const& census, std::vector<int> const& lost,
                         std::uint64_t refused_to_take_back) {
  bool const stuck = !lost.empty() && std::any_of(census.begin(), census.end(), [](auto const& line) {
    return line.find("that did not run") != std::string::npos;
  });
  std::vector<std::string> left;
  for (auto const& line : census) {
    bool of_lost = !lost.empty() && (line.rfind("reservation", 0) == 0 || line.rfind("pin", 0) == 0);
    of_lost |= stuck;
    for (int d : lost)
      of_lost |= line.find("of device " + std::to_string(d)) != std::string::npos;
    if (!of_lost)
      left.push_back(line);
  }
  if (refused_to_take_back == 0)
    j.all_of(left, "left at the end");
}

// A scenario orders its work whatever fails. A wait for a
// lost device never ends, and the checker reports that.
void expect_no_reports(judge& j, life const& l, std::vector<int> const& lost) {
  for (auto const& f : l.reports()) {
    j.hold(f.what == driver::check::finding::kind::stuck && !lost.empty(), "the checker found: " + f.text);
  }
}

bool takes_back(call c) {
  switch (c) {
    case call::unreserve:
    case call::release:
    case call::unmap:
    case call::release_segment:
    case call::unpin:
    case call::destroy_stream:
    case call::destroy_graph:
    case call::destroy_executable:
    case call::destroy_event:
    case call::synchronize_device:
    case call::synchronize_stream:
    case call::synchronize_event: return true;
    default: return false;
  }
}

std::uint64_t takings_back(pair_counts const& counts) {
  std::uint64_t n = 0;
  for (std::size_t c = 0; c < counts.size(); ++c) {
    if (!takes_back(static_cast<call>(c)))
      continue;
    for (auto const times : counts[c])
      n += times;
  }
  return n;
}

}  // namespace

std::string failure::text() const {
  std::string out = "machine " + std::to_string(seed);
  auto const and_more = [](std::uint64_t more) {
    return more == 0                   ? std::string()
           : more == heap::without_end ? std::string(" and all after it")
                                       : " and " + std::to_string(more) + " after it";
  };
  if (call.k)
    out += ", call " + std::to_string(call.k) + and_more(call.more) + ": " + std::string(driver::name_of(call.with));
  if (system_call)
    out += ", call " + std::to_string(system_call) + and_more(more_system_calls) + " of the system";
  if (allocation)
    out += ", allocation " + std::to_string(allocation) + and_more(more_allocations) + " of the heap";
  return out;
}

expectation undisturbed(scenario const& s, std::uint64_t seed) {
  expectation e;
  looking_on eyes(nullptr, &e.calls);
  {
    life l(s, seed, eyes);
    std::uint64_t const before = heap::asked();
    system::fail(0, 0);
    e.bytes = s.run();
    if (s.to_the_end)
      l.end();
    e.system = system::stop();
    e.allocations = heap::asked() - before;
  }
  if (s.afterwards)
    (void)s.afterwards();
  looking_on none(nullptr, nullptr);
  {
    life used(s, seed, none);
    s.run();
    for (int d = 0; d < used.devices(); ++d) {
      e.pages.push_back(used.used(d) ? count_pages(used, d) : 0);
    }
  }
  if (s.afterwards)
    (void)s.afterwards();
  return e;
}

expectation undisturbed_once_warm(scenario const& s, std::uint64_t seed) {
  // a thread keeps what it knows of its last 32 choices of pools
  int const runs = std::string_view(s.name) == "registered_pools" ? 16 : 2;
  for (int i = 0; i < runs; ++i)
    (void)undisturbed(s, seed);
  return undisturbed(s, seed);
}

std::string try_again(scenario const& s, failure const& f, expectation const& e, pair_counts& counts) {
  std::string wrong;
  for (int i = 0; i < 3; ++i) {
    wrong = try_out(s, f, e, counts);
    if (wrong.empty())
      break;
  }
  return wrong;
}

namespace {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t dearer = 6;  // a trial takes six times as long
#else
constexpr std::uint64_t dearer = 1;
#endif
}  // namespace

drawn_failures::drawn_failures(std::uint64_t all, std::uint64_t otherwise, std::uint64_t fewer) : all_(all) {
  std::uint64_t const only = tests::number_from_environment("WEIR_TEST_SEED", 0);
  otherwise /= dearer * fewer;
  std::uint64_t count = tests::number_from_environment("WEIR_TEST_SEEDS", otherwise);
  // each trial takes as long as eight ordinary test programs
  if (std::getenv("WEIR_TEST_SEEDS"))
    count /= 8 * fewer;
  if (undisturbed_only() && !only)
    count = 0;
  seed_ = only ? only - 1 : tests::number_from_environment("WEIR_TEST_BASE_SEED", 0);
  last_ = seed_ + (only ? 1 : std::min(count, all));
  stride_ = std::max<std::uint64_t>(1, all * 5 / 8);
  while (std::gcd(stride_, all) != 1)
    ++stride_;
}

bool drawn_failures::next() {
  if (seed_ == last_)
    return false;
  ++seed_;
  index_ = seed_ % all_ * stride_ % all_;
  return true;
}

std::string try_out(scenario const& s, failure const& f, expectation const& e, pair_counts& all) {
  judge j;
  pair_counts mine{};
  left_behind const before;
  {
    looking_on eyes(&mine, nullptr);
    life l(s, f.seed, eyes);
    if (f.call.k)
      l.machine().refuse(f.call);
    if (f.system_call)
      system::fail(f.system_call, f.more_system_calls);
    heap::fail(f.allocation, f.more_allocations);
    ending const first = run(s, f.allocation != 0);
    std::vector<int> lost;
    if (!s.to_the_end) {
      heap::stop();
      (void)system::stop();
      l.machine().forget_orders();
      lost = l.all_lost();
      if (first.is == ending::kind::done)
        j.hold(first.text == e.bytes, "other bytes");
      j.hold(first.is != ending::kind::wrong, first.text);
      j.hold(first.is != ending::kind::lost || !lost.empty(), "no device is lost: " + first.text);
      expect_sound(j, l, "after the failure");
      expect_working(j, l, s, e);
      lost = l.all_lost();
      auto const left = l.end();
      for (int const d : eyes.lost_at_the_end())
        lost.push_back(d);
      expect_nothing_left(j, left, lost, 0);
      expect_no_reports(j, l, lost);
    } else {
      lost = l.all_lost();
      auto const left = l.end();
      heap::stop();
      (void)system::stop();
      if (first.is == ending::kind::done)
        j.hold(first.text == e.bytes, "other bytes");
      j.hold(first.is != ending::kind::wrong, first.text);
      // the device was lost during the runtime's end: which ones can no longer be queried
      if ((lost.empty() || f.call.more) && f.call.k && f.call.with == code::lost) {
        for (int d = 0; d < l.devices(); ++d)
          lost.push_back(d);
      }
      for (int const d : eyes.lost_at_the_end())
        lost.push_back(d);
      expect_nothing_left(j, left, lost, takings_back(mine));
      expect_no_reports(j, l, lost);
    }
  }
  if (s.afterwards) {
    std::string const late = s.afterwards();
    j.hold(late.empty(), late);
  }
  for (std::size_t c = 0; c < all.size(); ++c) {
    for (std::size_t k = 0; k < all[c].size(); ++k)
      all[c][k] += mine[c][k];
  }
  left_behind const after;
  j.hold(after.files <= before.files, "files stay open");
  j.hold(after.threads <= before.threads, "threads go on");
  j.hold(after.blocks <= before.blocks, std::to_string(after.blocks - before.blocks) + " blocks of the heap are left");
  return j.wrong();
}

}  // namespace weir::faults
