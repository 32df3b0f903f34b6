// weir bench alloc: cost of an allocation and its free, beside malloc and, on a GPU, cudaMallocAsync.
// Threads: one; some patterns start more.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "command_line.h"
#include "commands.h"
#include "patterns.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/base/os_numa.h"
#include "runtime/base/text.h"
#include "runtime/core/parts.h"
#include "runtime/options/options.h"
#include "weir/device.h"
#include "weir/graph.h"
#include "weir/memory.h"
#include "weir/observe.h"
#include "weir/pool.h"
#include "weir/stream.h"

namespace weir::tool {
namespace {

using patterns::measured;

struct of_weir {
  stream_ref on, other, third;
  size_t alignment = default_alignment;
  void* take(size_t bytes) const { return allocate(on, bytes, alignment); }
  void record_use(void* p, int by) const { record_stream(p, by ? third : other); }
  void give(void* p) const { deallocate(p); }
  void give_after_use(void* p) const { deallocate(on, p); }
};

// A stream that weir was not told of.
struct foreign_stream {
  driver::driver& machine = runtime::current().get().machine();
  driver::stream_handle const made = machine.create_stream(0, driver::stream_kind::independent, 0).value;
  CUstream_st* handle() const {
    return reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(made));  // NOLINT(performance-no-int-to-ptr)
  }
  foreign_stream() = default;
  foreign_stream(foreign_stream const&) = delete;
  ~foreign_stream() { (void)machine.destroy_stream(0, made); }
};
struct of_registered {
  bool announced = false;
  std::shared_ptr<foreign_stream> theirs = std::make_shared<foreign_stream>();
  std::shared_ptr<external_stream> on =
      std::make_shared<external_stream>(0, theirs->handle(), external_stream_options{.announces_captures = announced});
  void* take(size_t bytes) const { return allocate(*on, bytes); }
  void give(void* p) const { deallocate(p); }
};
// By its handle at each call.
struct of_borrowed {
  std::shared_ptr<foreign_stream> on = std::make_shared<foreign_stream>();
  void* take(size_t bytes) const { return allocate(borrow_stream(0, on->handle()), bytes); }
  void give(void* p) const { deallocate(borrow_stream(0, on->handle()), p); }
};

// In a pool, with one guard for all blocks or one for each.
struct of_pool {
  of_weir from;
  std::shared_ptr<pool const> in;
  void* take(size_t bytes) const {
    pool_guard const here(*in);
    return from.take(bytes);
  }
  void give(void* p) const { from.give(p); }
};
struct within_guard {
  of_weir from;
  std::shared_ptr<pool const> in;
  std::shared_ptr<pool_guard const> here = std::make_shared<pool_guard const>(*in);
  void* take(size_t bytes) const { return from.take(bytes); }
  void give(void* p) const { from.give(p); }
};

struct of_malloc {
  void* take(size_t bytes) const {
    void* p = std::malloc(bytes);
    asm volatile("" : "+r"(p) : : "memory");  // keeps the compiler from removing the unused block
    return p;
  }
  void record_use(void*, int) const {}
  void give(void* p) const { std::free(p); }
  void give_after_use(void* p) const { std::free(p); }
};

static_assert(
    requires(of_weir w, of_malloc m, void* p) { w.record_use(p, 0), m.record_use(p, 0); }, "pattern marked");

// The driver's stream-ordered allocator. Symbols are looked up at run time, so the build needs no CUDA header
// or library.
struct of_driver {
  using take_call = int (*)(unsigned long long*, size_t, CUstream_st*);
  using give_call = int (*)(unsigned long long, CUstream_st*);
  take_call taking;
  give_call giving;
  CUstream_st* on;
  void* take(size_t bytes) const {
    unsigned long long p = 0;
    if (taking(&p, bytes, on) != 0)
      throw std::bad_alloc();
    return reinterpret_cast<void*>(p);  // NOLINT(performance-no-int-to-ptr): it is an address
  }
  void give(void* p) const { giving(reinterpret_cast<unsigned long long>(p), on); }
  void give_after_use(void* p) const { give(p); }
};

// Returns free heap memory to the system first. Otherwise new blocks would reuse
// resident pages and count as 0.
size_t resident_bytes() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
  std::ifstream statm("/proc/self/statm");
  size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * os::page_size();
}

double median_of(std::vector<double> some) {
  auto const middle = some.begin() + static_cast<std::ptrdiff_t>(some.size() / 2);
  std::nth_element(some.begin(), middle, some.end());
  return *middle;
}

struct figures {
  std::vector<double> ns;
  std::optional<double> host_bytes_per_block, reserved_over_requested;
  std::vector<std::vector<double>> by_thread;
  std::vector<double> of_turns;
  double median() const { return median_of(ns); }
  std::string of_threads() const {  // JSON members, or empty
    std::string list;
    for (auto const& rounds : by_thread)
      list += (list.empty() ? "" : ", ") + base::json_number(median_of(rounds), 2);
    return list.empty() ? ""
                        : ", \"threads_ns\": [" + list + "]" +
                              (of_turns.empty() ? "" : ", \"of_turns\": " + base::json_number(median_of(of_turns), 3));
  }
};

struct pattern {
  std::string name;
  int threads = 1;  // threads that are measured at once
  int crew = 1;     // threads in total
  patterns::threads_work how = patterns::threads_work::together;
};

struct contender {
  std::string name;
  std::function<std::unique_ptr<measured>(pattern const&, figures&)> enter;  // may return null: pattern skipped
};

constexpr int most_threads = 16;

std::vector<pattern> all_patterns() {
  std::vector<pattern> all{{"pair512"}, {"pair64K"}, {"pair8M"}, {"churn16-4K"}, {"churn512-1M"}, {"churn64K-64M"}};
  for (int t = 1; t <= most_threads; t *= 2)
    all.push_back({"threads" + std::to_string(t), t, t});
  all.push_back({"handoff"});
  all.push_back({"live516"});
  return all;
}

// Patterns that run only by name: `marked` uses a block on another stream, `marked2` on two. `pool512` and
// `guard512` are `pair512` under a pool's guard, and with a guard for each allocation. `registered*`, `announced*`
// and `borrowed*` are pairs on a stream that other code made (`announced*`: it announces captures), `capture*` pairs
// under capture. The others split up the time of `threadsN`.
std::vector<pattern> more_patterns() {
  std::vector<pattern> all{{"marked"},       {"marked2"},      {"pool512"},     {"guard512"},    {"registered64K"},
                           {"registered8M"}, {"announced64K"}, {"announced8M"}, {"borrowed64K"}, {"borrowed8M"},
                           {"capture512"},   {"capture64K"},   {"capture8M"}};
  for (int t = 2; t <= most_threads; t *= 2) {
    all.push_back({"beside" + std::to_string(t), 1, t, patterns::threads_work::beside_arithmetic});
    all.push_back({"turns" + std::to_string(t), 1, t, patterns::threads_work::in_turn});
  }
  return all;
}

template <class Make>
std::unique_ptr<measured> enter_threads(pattern const& p, Make make) {
  return std::make_unique<patterns::threads<Make>>(make, os::processors_of_cores(), p.crew, p.how);
}

// Of a pattern that allocates and frees one block, whatever its stream; 0: another pattern
size_t bytes_of_pair(std::string const& name) {
  if (name.ends_with("512"))
    return 512;
  if (name.ends_with("64K"))
    return size_t{64} << 10;
  return name.ends_with("8M") ? size_t{8} << 20 : 0;
}

// make(t): the allocator for thread t. reserved(): bytes of device memory reserved; empty if not available.
template <class Make>
std::unique_ptr<measured> enter(pattern const& p, figures& out, Make make, std::function<size_t()> reserved,
                                int live_alignment) {
  using allocator = decltype(make(0));
  auto const one = make(0);
  if (size_t const bytes = bytes_of_pair(p.name))
    return std::make_unique<patterns::pairs<allocator>>(one, bytes);
  if (p.name == "churn16-4K")
    return std::make_unique<patterns::churn<allocator>>(one, 1000, 16, size_t{4} << 10);
  if (p.name == "churn512-1M")
    return std::make_unique<patterns::churn<allocator>>(one, 1000, 512, size_t{1} << 20);
  if (p.name == "churn64K-64M")
    return std::make_unique<patterns::churn<allocator>>(one, 200, size_t{64} << 10, size_t{64} << 20);
  if (p.name == "marked" || p.name == "marked2") {
    if constexpr (requires { one.record_use(nullptr, 0); })
      return std::make_unique<patterns::marked<allocator>>(one, p.name == "marked" ? 1 : 2);
    return nullptr;  // no marks
  }
  if (p.name == "handoff")
    return std::make_unique<patterns::handoff<Make>>(make);
  if (p.name == "live516") {
    auto look = [&out, reserved, before = size_t{0}](bool taken) mutable {
      using crowd = patterns::crowd<allocator, std::function<void(bool)>>;
      if (out.host_bytes_per_block)
        return;  // later rounds would reuse the pages of the first
      if (!taken) {
        before = resident_bytes();
        return;
      }
      out.host_bytes_per_block =
          (static_cast<double>(resident_bytes()) - static_cast<double>(before)) / static_cast<double>(crowd::blocks);
      if (reserved)
        out.reserved_over_requested =
            static_cast<double>(reserved()) / static_cast<double>(crowd::blocks * crowd::bytes);
    };
    allocator a = one;
    if constexpr (requires { a.alignment; })
      a.alignment = static_cast<size_t>(live_alignment);
    return std::make_unique<patterns::crowd<allocator, std::function<void(bool)>>>(a, look);
  }
  return enter_threads(p, make);
}

// Patterns that weir alone has. Null: another one
std::unique_ptr<measured> enter_of_weir(std::string const& name, of_weir const& from) {
  auto const is = [&](char const* kind) { return name.starts_with(kind); };
  size_t const bytes = bytes_of_pair(name);
  if (is("guard"))
    return std::make_unique<patterns::pairs<of_pool>>(of_pool{from, std::make_shared<pool const>("bench")}, bytes);
  if (is("pool"))
    return std::make_unique<patterns::pairs<within_guard>>(within_guard{from, std::make_shared<pool const>("bench")},
                                                           bytes);
  if (is("registered"))
    return std::make_unique<patterns::pairs<of_registered>>(of_registered{}, bytes);
  if (is("announced"))
    return std::make_unique<patterns::pairs<of_registered>>(of_registered{.announced = true}, bytes);
  if (is("borrowed"))
    return std::make_unique<patterns::pairs<of_borrowed>>(of_borrowed{}, bytes);
  if (!is("capture"))
    return nullptr;
  auto const capture = [on = from.on](std::function<void()> const& work) { (void)graph::capture(on, work); };
  return std::make_unique<patterns::captured<of_weir, decltype(capture)>>(from, bytes, capture);
}

std::vector<contender> contenders(std::vector<stream> const& streams) {
  std::vector<contender> all;
  auto const ours = [&streams](int t) {
    return of_weir{streams[static_cast<size_t>(t)].ref(), streams.back().ref(), streams[streams.size() - 2].ref()};
  };
  auto const held = [] { return static_cast<size_t>(memory_stats(0).reserved_bytes.all.current); };
  all.push_back({"weir", [=](pattern const& p, figures& f) -> std::unique_ptr<measured> {
                   empty_cache();
                   if (auto own = enter_of_weir(p.name, ours(0)))
                     return own;
                   return enter(p, f, ours, held, 16);
                 }});
  all.push_back({"malloc", [](pattern const& p, figures& f) {
                   return enter(
                       p, f, [](int) { return of_malloc{}; }, {}, 16);
                 }});
  all.push_back({"arithmetic", [](pattern const& p, figures&) -> std::unique_ptr<measured> {
                   bool const of_threads = p.crew > 1 || p.name == "threads1";
                   return of_threads ? enter_threads(p, [](int) { return patterns::arithmetic{}; }) : nullptr;
                 }});
  if (get_device_properties(0).simulated)
    return all;
  void* const library = os::load_library("libcuda.so.1");
  auto const taking =
      library ? reinterpret_cast<of_driver::take_call>(os::find_symbol(library, "cuMemAllocAsync")) : nullptr;
  auto const giving =
      library ? reinterpret_cast<of_driver::give_call>(os::find_symbol(library, "cuMemFreeAsync")) : nullptr;
  if (!taking || !giving)
    return all;
  all.push_back({"cudaMallocAsync", [=, &streams](pattern const& p, figures& f) -> std::unique_ptr<measured> {
                   if (p.name == "live516")
                     return nullptr;  // takes minutes
                   return enter(
                       p, f,
                       [=, &streams](int t) {
                         return of_driver{taking, giving, streams[static_cast<size_t>(t)].native()};
                       },
                       {}, 16);
                 }});
  return all;
}

std::string number_or(std::optional<double> const& value, int digits, char const* otherwise) {
  return value ? base::json_number(*value, digits) : otherwise;
}

void print(pattern const& p, std::string const& allocator, figures const& f, double malloc_ns, bool json) {
  double const ns = f.median();
  double const pairs = p.threads * 1e3 / ns;
  if (json) {
    std::printf(
        "{\"pattern\": \"%s\", \"allocator\": \"%s\", \"ns\": %s, \"mpairs_per_s\": %s, \"host_bytes_per_block\": %s, "
        "\"reserved_over_requested\": %s%s}\n",
        p.name.c_str(), allocator.c_str(), base::json_number(ns, 2).c_str(), base::json_number(pairs, 4).c_str(),
        number_or(f.host_bytes_per_block, 2, "null").c_str(), number_or(f.reserved_over_requested, 4, "null").c_str(),
        f.of_threads().c_str());
  } else {
    std::printf("%-13s %-16s %10.1f %12.3f %9.2f %12s %12s\n", p.name.c_str(), allocator.c_str(), ns, pairs,
                ns / malloc_ns, number_or(f.host_bytes_per_block, 2, "").c_str(),
                number_or(f.reserved_over_requested, 4, "").c_str());
  }
  std::fflush(stdout);
}

// Rounds of all contenders alternate, so that disturbances of the machine affect all equally.
void measure(pattern const& p, std::vector<contender> const& all, int rounds, bool json) {
  struct entry {
    contender const* by;
    std::unique_ptr<figures> got;
    std::unique_ptr<measured> run;
  };
  show_progress(p.name);
  std::vector<entry> entries;
  bool const at_once = p.name != "live516";  // a pattern that fills the memory runs alone
  for (contender const& c : all) {
    auto got = std::make_unique<figures>();
    auto run = c.enter(p, *got);
    if (!run)
      continue;
    if (!at_once) {
      for (int i = 0; i < std::min(rounds, 3); ++i)
        got->ns.push_back(run->round());
      run.reset();
    }
    entries.push_back({&c, std::move(got), std::move(run)});
  }
  for (int i = 0; at_once && i < rounds; ++i) {
    for (entry& e : entries)
      e.got->ns.push_back(e.run->round());
  }
  show_progress({});
  double malloc_ns = 1;
  for (entry const& e : entries) {
    if (e.by->name == "malloc")
      malloc_ns = e.got->median();
  }
  for (entry& e : entries) {
    if (e.run)
      e.got->by_thread = std::move(e.run->by_thread), e.got->of_turns = std::move(e.run->of_turns);
  }
  for (entry const& e : entries)
    print(p, e.by->name, *e.got, malloc_ns, json);
}

std::vector<pattern> chosen(std::vector<std::string> const& names) {
  auto all = all_patterns();
  if (names.empty())
    return all;
  std::ranges::copy(more_patterns(), std::back_inserter(all));
  std::vector<pattern> some;
  for (std::string const& name : names) {
    auto const found = std::find_if(all.begin(), all.end(), [&](pattern const& p) { return p.name == name; });
    if (found == all.end()) {
      std::string known;
      for (pattern const& p : all)
        known += (known.empty() ? "" : ", ") + p.name;
      throw invalid_use("bench alloc", "no pattern \"" + name + "\"", "Choose among " + known,
                        source_location::current());
    }
    some.push_back(*found);
  }
  return some;
}

}  // namespace

int bench_alloc(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices;
  std::vector<std::string> names;
  int rounds = 7;
  bool json = false, history = false;
  po::options_description all(
      "weir bench alloc [PATTERN…]: nanoseconds of an allocation and its free (medians), million pairs a second of all "
      "threads, beside malloc and, on a GPU, cudaMallocAsync");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "rounds", po::value(&rounds)->default_value(rounds), "rounds of about 20 ms, the allocators in turn")(
      "json", po::bool_switch(&json), "print a line of JSON for each pattern and allocator")(
      "history", po::bool_switch(&history), "with weir's history on")("pattern", po::value(&names), "only these");
  if (!understood(arguments, all, "pattern", -1))
    return 0;
  if (rounds < 1)
    throw invalid_use("bench alloc", "--rounds " + std::to_string(rounds), "Use at least one",
                      source_location::current());
  auto const todo = chosen(names);
  use_devices(devices);
  if (history)
    record_memory_history();
  device_guard const on(0);
  std::vector<stream> streams(most_threads);
  auto const by = contenders(streams);
  if (!json) {
    // Who asks for the driver's figures sees why they are missing.
    bool const has_driver = by.back().name == "cudaMallocAsync";
    std::string const beside = has_driver ? "" : "; beside malloc, for cudaMallocAsync needs a GPU";
    std::printf("%s, %d processors%s\n%-13s %-16s %10s %12s %9s %12s %12s\n", runtime::current().description().c_str(),
                os::usable_processors(), beside.c_str(), "pattern", "allocator", "ns a pair", "Mpairs/s", "/ malloc",
                "host B/block", "reserved/req");
  }
  for (pattern const& p : todo)
    measure(p, by, rounds, json);
  return 0;
}

}  // namespace weir::tool
