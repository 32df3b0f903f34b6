// The rows pin_… of weir bench copy: methods of page-locking new memory, with the time of each step.
// streams/pinned/pages implements one of them. The best one depends on the machine.
// Threads: those of a method, joined before its round ends.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "bench_copy.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/base/os_numa.h"
#include "runtime/core/parts.h"
#include "streams/pinned/pages.h"
#include "streams/stream/context.h"
#include "weir/device.h"

namespace weir::tool {
namespace {

constexpr size_t whole = 0;

struct way {
  char const* name;
  char const* note;
  int touchers = 16;          // threads; at most one per processor
  bool populate = false;      // touches by madvise; false: by a write to each page
  size_t step = 2_MiB;        // bytes that a thread takes at a time
  bool near = false;          // runs the touching threads on the processors near the device
  int lockers = 1;            // threads that register
  size_t chunk = whole;       // bytes per registration
  bool follows = false;       // starts to register when a quarter is touched, so both steps overlap
  bool each_its_own = false;  // each thread registers the chunks that it touched
};

// Milliseconds per step.
struct parts {
  double map = 0, touch = 0, lock = 0, unlock = 0, unmap = 0;
};

double ms_since(std::int64_t from) {
  return seconds_since(from) * 1e3;
}

void touch(std::byte* from, size_t bytes, bool populate) {
  if (populate && os::make_present(from, bytes))
    return;
  for (size_t at = 0; at < bytes; at += os::page_size())
    *const_cast<std::byte volatile*>(from + at) = std::byte{0};
}

// Threads that take the steps of a range in turn. The calling thread takes none.
class crew {
 public:
  template <class Do>
  crew(int threads, size_t bytes, size_t step, std::vector<int> const& on, Do act) {
    for (int i = 0; i < threads; ++i) {
      all_.emplace_back([this, bytes, step, &on, act] {
        if (!on.empty())
          os::run_this_thread_on(on);
        for (size_t from; (from = next_.fetch_add(step)) < bytes;) {
          act(from, std::min(step, bytes - from));
          done_.fetch_add(step);
        }
      });
    }
  }
  ~crew() { join(); }
  crew(crew const&) = delete;
  crew& operator=(crew const&) = delete;
  void join() {
    for (auto& one : all_)
      one.join();
    all_.clear();
  }
  size_t done() const { return done_.load(); }

 private:
  base::atomic<size_t> next_{0}, done_{0};
  std::vector<base::thread> all_;
};

// Returns: MiB of this process in huge pages; -1 if unknown.
long huge_mib() {
  std::ifstream file("/proc/self/smaps_rollup");
  for (std::string word; file >> word;) {
    long kib = 0;
    if (word == "AnonHugePages:" && file >> kib)
      return kib / 1024;
  }
  return -1;
}

struct attempt {
  way how;
  size_t bytes;
  runtime::impl& owner = runtime::current().get();
  int node = -1;
  std::vector<int> near{};
  std::vector<parts> seen{};
  std::string crossing{};
  long huge = -1;  // MiB of huge pages in a round

  void must(driver::status s, char const* what) const {
    require(s, "bench", std::string(what) + " of " + std::to_string(bytes) + " B", "Ask for less",
            source_location::current());
  }
  size_t chunk() const { return how.chunk == whole ? bytes : std::min(how.chunk, bytes); }
  int usable(int threads) const { return std::min(threads, os::usable_processors()); }

  void prepare(std::byte* base) const {
    os::advise(base, bytes, os::advice::huge_pages);
    if (node >= 0 && !owner.machine().simulated())
      os::prefer_node(base, bytes, node);
  }

  void lock_all(std::byte* base) const {
    auto& machine = owner.machine();
    std::vector<int> const anywhere;
    if (how.lockers == 1) {
      for (size_t at = 0; at < bytes; at += chunk())
        must(machine.pin(base + at, std::min(chunk(), bytes - at)), "registering");
      return;
    }
    base::atomic<int> refused{0};
    crew(usable(how.lockers), bytes, chunk(), anywhere, [&](size_t at, size_t n) {
      refused.fetch_add(!machine.pin(base + at, n).ok());
    }).join();
    must(refused.load() ? driver::status{driver::code::failed, 0} : driver::status{}, "registering");
  }

  // Tries one driver copy across the border of two registrations.
  void try_crossing(rig& r, std::byte* base) {
    if (chunk() == bytes || !crossing.empty() || owner.machine().simulated())
      return;
    auto const there = r.raw.on_device(0, 2_MiB);
    r.raw.prepare(r.on);
    try {
      r.raw.copy(there->data(), base + chunk() - 1_MiB, 2_MiB);
      r.raw.synchronize();
      crossing = "a copy may cross chunks";
    } catch (driver_error const& e) {
      crossing = "a copy over two chunks is refused: " + std::to_string(e.code());
    }
  }

  double round(rig& r) {
    parts p;
    auto& machine = owner.machine();
    std::int64_t const begin = base::now_ns();
    auto* const base = static_cast<std::byte*>(os::map_memory(bytes, 2_MiB));
    if (!base)
      must({driver::code::out_of_memory, 0}, "mapping");
    prepare(base);
    p.map = ms_since(begin);
    std::int64_t from = base::now_ns();
    if (how.each_its_own) {
      base::atomic<int> refused{0};
      crew(usable(how.touchers), bytes, chunk(), near, [&](size_t at, size_t n) {
        touch(base + at, n, how.populate);
        refused.fetch_add(!machine.pin(base + at, n).ok());
      }).join();
      must(refused.load() ? driver::status{driver::code::failed, 0} : driver::status{}, "registering");
      p.touch = ms_since(from);
    } else {
      crew touching(usable(how.touchers), bytes, how.step, near,
                    [&](size_t at, size_t n) { touch(base + at, n, how.populate); });
      if (!how.follows)
        touching.join();
      while (how.follows && touching.done() < bytes / 4)
        base::sleep_ns(50'000);
      p.touch = ms_since(from);
      from = base::now_ns();
      lock_all(base);
      p.lock = ms_since(from);
    }
    double const total = ms_since(begin);
    huge = huge_mib();
    try_crossing(r, base);
    from = base::now_ns();
    for (size_t at = 0; at < bytes; at += chunk())
      must(machine.unpin(base + at), "unregistering");
    p.unlock = ms_since(from);
    from = base::now_ns();
    os::return_addresses(base, bytes);
    p.unmap = ms_since(from);
    seen.push_back(p);
    return total;
  }

  std::string said() const {
    auto const middle = [&](double parts::*which) {
      std::vector<double> all;
      for (auto const& one : seen)
        all.push_back(one.*which);
      std::sort(all.begin(), all.end());
      return all[all.size() / 2];
    };
    char text[240];
    std::snprintf(
        text, sizeof text,
        "map %.1f, touch %.1f, register %.1f, unregister %.1f, unmap %.1f ms; %ld MiB in huge pages, node %d; %s",
        middle(&parts::map), middle(&parts::touch), middle(&parts::lock), middle(&parts::unlock), middle(&parts::unmap),
        huge, node, how.note);
    return text + (crossing.empty() ? "" : "; " + crossing);
  }
};

void open_all(rig& r) {
  for (int i = 0; i < r.devices; ++i)
    runtime::current().get().open(i, "bench", source_location::current());
}

row way_row(rig& r, way how, std::string const& name) {
  auto const one = std::make_shared<attempt>(attempt{how, r.fresh});
  if (!one->owner.machine().simulated())
    one->node = one->owner.machine().info(0).value.numa_node;
  if (how.near)
    one->near = os::processors_near(std::max(one->node, 0));
  row out{name, r.fresh, measure::span};
  out.weir = [&r, one] { return one->round(r); };
  out.raw = [&r, one] {  // the method of weir's pool
    auto& machine = one->owner.machine();
    std::int64_t const from = base::now_ns();
    auto const got = streams::take_pages(machine, r.fresh, one->node);
    double const ms = ms_since(from);
    one->must(got.is, "pages");
    one->must(streams::return_pages(machine, got.value), "giving back");
    return ms;
  };
  out.said = [one] { return one->said(); };
  return out;
}

// Host memory that the driver allocates and maps, as of CUDA 12.2. Calls are looked up by name and declared
// after the driver's ABI.
struct host_handles {
  struct location {
    int type, id;
  };
  struct properties {
    int type, exportable;
    location at;
    void* security;
    unsigned char flags[8];
  };
  struct access {
    location by;
    int flags;
  };
  int (*create)(unsigned long long*, size_t, properties const*, unsigned long long) = nullptr;
  int (*reserve)(unsigned long long*, size_t, size_t, unsigned long long, unsigned long long) = nullptr;
  int (*map)(unsigned long long, size_t, size_t, unsigned long long, unsigned long long) = nullptr;
  int (*open)(unsigned long long, size_t, access const*, size_t) = nullptr;
  int (*unmap)(unsigned long long, size_t) = nullptr;
  int (*release)(unsigned long long) = nullptr;
  int (*forget)(unsigned long long, size_t) = nullptr;

  bool find() {
    void* const library = os::load_library("libcuda.so.1");
    bool all = library;
    auto const one = [&](auto& function, char const* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(library ? os::find_symbol(library, name) : nullptr);
      all &= function != nullptr;
    };
    one(create, "cuMemCreate"), one(reserve, "cuMemAddressReserve"), one(map, "cuMemMap"), one(open, "cuMemSetAccess"),
        one(unmap, "cuMemUnmap"), one(release, "cuMemRelease"), one(forget, "cuMemAddressFree");
    return all;
  }
};

struct by_handles {
  host_handles calls;
  std::vector<int> devices;
  std::string said = "";

  double round(size_t bytes, int node) {
    constexpr int of_host_node = 3, of_device = 1, pinned = 1, read_and_write = 3;
    host_handles::properties const what{pinned, 0, {of_host_node, node}, nullptr, {}};
    unsigned long long handle = 0, at = 0;
    std::int64_t const begin = base::now_ns();
    int const made = calls.create(&handle, bytes, &what, 0);
    double const create_ms = ms_since(begin);
    if (made)
      return refused("cuMemCreate", made);
    std::int64_t from = base::now_ns();
    int answer = calls.reserve(&at, bytes, 0, 0, 0);
    if (!answer)
      answer = calls.map(at, bytes, 0, handle, 0);
    double const map_ms = ms_since(from);
    from = base::now_ns();
    std::vector<host_handles::access> readers{{{of_host_node, node}, read_and_write}};
    for (int const d : devices)
      readers.push_back({{of_device, d}, read_and_write});
    if (!answer)
      answer = calls.open(at, bytes, readers.data(), readers.size());
    double const open_ms = ms_since(from), total = ms_since(begin);
    from = base::now_ns();
    // NOLINT(performance-no-int-to-ptr): it is an address
    if (!answer)
      std::memset(reinterpret_cast<void*>(at), 1, std::min(bytes, 2_MiB));
    double const write_ms = ms_since(from);
    from = base::now_ns();
    static_cast<void>(calls.unmap(at, bytes)), static_cast<void>(calls.release(handle)),
        static_cast<void>(calls.forget(at, bytes));
    if (answer)
      return refused("mapping", answer);
    char text[200];
    std::snprintf(
        text, sizeof text,
        "create %.1f, map %.1f, access for %zu %.1f, first 2 MiB written %.2f, given back %.1f ms (last round)",
        create_ms, map_ms, readers.size() - 1, open_ms, write_ms, ms_since(from));
    said = text;
    return total;
  }
  double refused(char const* what, int code) {
    said = std::string(what) + " answers " + std::to_string(code);
    return 0;
  }
};

std::optional<row> handles_row(rig& r, std::string const& name, bool all_devices) {
  auto const one = std::make_shared<by_handles>();
  auto& machine = runtime::current().get().machine();
  if (machine.simulated() || !one->calls.find())
    return {};
  for (int i = 0; i < (all_devices ? r.devices : 1); ++i)
    one->devices.push_back(i);
  row out{name, r.fresh, measure::span};
  int const node = std::max(machine.info(0).value.numa_node, 0);
  out.weir = [&r, one, node] { return one->round(r.fresh, node); };
  out.said = [one] { return "one handle of the driver's on the host; " + one->said; };
  return out;
}

std::vector<way> const& ways() {
  static std::vector<way> const all{
      {.name = "t8", .note = "8 threads touch, then one call", .touchers = 8},
      {.name = "t16", .note = "16 touch, then one call"},
      {.name = "t32", .note = "32 touch, then one call", .touchers = 32},
      {.name = "t64", .note = "64 touch, then one call", .touchers = 64},
      {.name = "near16", .note = "16 near the device touch, then one call", .near = true},
      {.name = "near32", .note = "32 near the device touch, then one call", .touchers = 32, .near = true},
      {.name = "populate16", .note = "16 ask for pages, then one call", .populate = true, .step = 16_MiB},
      {.name = "populate32",
       .note = "32 ask for pages, then one call",
       .touchers = 32,
       .populate = true,
       .step = 16_MiB},
      {.name = "follow16", .note = "16 touch, one call behind them", .follows = true},
      {.name = "follow32", .note = "32 touch, one call behind them", .touchers = 32, .follows = true},
      {.name = "chunks64", .note = "16 touch, one thread registers 64 MiB at a time", .chunk = 64_MiB},
      {.name = "lock2x256",
       .note = "32 touch, 2 register 256 MiB at a time",
       .touchers = 32,
       .lockers = 2,
       .chunk = 256_MiB},
      {.name = "lock4x256",
       .note = "32 touch, 4 register 256 MiB at a time",
       .touchers = 32,
       .lockers = 4,
       .chunk = 256_MiB},
      {.name = "lock4x64",
       .note = "32 touch, 4 register 64 MiB at a time",
       .touchers = 32,
       .lockers = 4,
       .chunk = 64_MiB},
      {.name = "own16x64",
       .note = "16 each touch and register 64 MiB",
       .touchers = 16,
       .chunk = 64_MiB,
       .each_its_own = true},
  };
  return all;
}

}  // namespace

std::vector<std::pair<std::string, maker>> pinned_rows() {
  std::vector<std::pair<std::string, maker>> rows;
  for (bool const every : {false, true}) {  // registration maps for all open devices
    std::string const before = every ? "pin_all_" : "pin_";
    auto const open = [every](rig& r) {
      if (every)
        open_all(r);
    };
    for (way const& how : ways()) {
      std::string const name = before + how.name;
      rows.emplace_back(name, [=](rig& r) -> std::optional<row> {
        if (every && r.devices < 2)
          return {};
        open(r);
        return way_row(r, how, name);
      });
    }
    std::string const name = before + "handle";
    rows.emplace_back(name, [=](rig& r) -> std::optional<row> {
      if (every && r.devices < 2)
        return {};
      open(r);
      return handles_row(r, name, every);
    });
  }
  return rows;
}

}  // namespace weir::tool
