// weir bench copy: throughput and host cost of weir::copy for every pair of memory kinds, beside the driver's
// own calls.
// Threads: one.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "bench_copy.h"
#include "command_line.h"
#include "commands.h"
#include "runtime/base/os.h"
#include "runtime/base/text.h"
#include "runtime/options/options.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::tool {

row pageable_row(rig& r, std::string const& name, bool to_device, blocking waits, size_t bytes) {
  if (bytes == 0)
    bytes = r.bytes;
  struct both {
    std::vector<std::byte> host;
    buffer gpu;
  };
  auto const ends =
      std::make_shared<both>(both{std::vector<std::byte>(bytes, std::byte{1}), buffer(bytes, {.on = device(0)})});
  row out{name, bytes, measure::rate};
  out.note = to_device                ? ""
             : waits == blocking::yes ? "into touched memory, the caller waits"
                                      : "into touched memory, non_blocking";
  out.weir = [&r, bytes, ends, to_device, waits] {
    return rate(bytes, [&] {
      void* const host = ends->host.data();
      for (int i = 0; i < large_copies; ++i)
        to_device ? copy(r.on, ends->gpu.data(), host, bytes, waits) : copy(r.on, host, ends->gpu.data(), bytes, waits);
      r.on.synchronize();
    });
  };
  if (!r.raw.takes_pageable())
    return out;
  out.raw = [&r, bytes, ends, to_device] {
    r.raw.prepare(r.on);
    return rate(bytes, [&] {
      for (int i = 0; i < large_copies; ++i)
        r.raw.copy_pageable(to_device ? ends->gpu.data() : ends->host.data(),
                            to_device ? ends->host.data() : ends->gpu.data(), bytes, to_device);
      r.raw.synchronize();
    });
  };
  return out;
}

namespace {

constexpr size_t small_bytes = 16_KiB;
constexpr int small_copies = 200;  // per synchronization; the driver's queue never fills
char const* unit_of(measure m) {
  return m == measure::rate ? "GB/s" : m == measure::call ? "us" : "ms";
}

// Small copies. Returns: µs of host time to enqueue one.
template <class One, class Wait>
double cost(One one, Wait wait) {
  std::int64_t const from = base::now_ns();
  for (int i = 0; i < small_copies; ++i)
    one();
  double const us = seconds_since(from) / small_copies * 1e6;
  wait();
  return us;
}

struct place {  // one end of a copy, allocated by weir and by the driver
  buffer ours;
  std::unique_ptr<raw_calls::memory> theirs;
};
place on_device(rig& r, int ordinal, size_t bytes) {
  return {buffer(bytes, {.on = device(ordinal)}), r.raw.on_device(ordinal, bytes)};
}
place in_pinned(rig& r, size_t bytes) {
  place p{pinned(bytes), r.raw.pinned(bytes)};
  std::memset(p.ours.data(), 1, bytes);
  std::memset(p.theirs->data(), 1, bytes);
  return p;
}

struct two_ends {
  place dst, src;
};

row large_row(rig& r, char const* name, size_t bytes, std::shared_ptr<two_ends> ends, double times = 1,
              char const* note = "") {
  row out{name, bytes, measure::rate};
  out.note = note;
  out.weir = [&r, bytes, ends, times] {
    return rate(
        bytes,
        [&] {
          for (int i = 0; i < large_copies; ++i)
            copy(r.on, ends->dst.ours.data(), ends->src.ours.data(), bytes, non_blocking);
          r.on.synchronize();
        },
        times);
  };
  out.raw = [&r, bytes, ends, times] {
    r.raw.prepare(r.on);
    return rate(
        bytes,
        [&] {
          for (int i = 0; i < large_copies; ++i)
            r.raw.copy(ends->dst.theirs->data(), ends->src.theirs->data(), bytes);
          r.raw.synchronize();
        },
        times);
  };
  return out;
}

row small_row(rig& r, char const* name, std::shared_ptr<two_ends> ends) {
  row out{name, small_bytes, measure::call};
  out.weir = [&r, ends] {
    return cost([&] { copy(r.on, ends->dst.ours.data(), ends->src.ours.data(), small_bytes, non_blocking); },
                [&] { r.on.synchronize(); });
  };
  out.raw = [&r, ends] {
    r.raw.prepare(r.on);
    return cost([&] { r.raw.copy(ends->dst.theirs->data(), ends->src.theirs->data(), small_bytes); },
                [&] { r.raw.synchronize(); });
  };
  return out;
}

// Breaks down the time of a small copy. raw: the driver's call on the same memory. weir: weir::copy, or with
// `seam_alone` the driver interface alone, which checks the memory and makes the context current.
row same_memory_row(rig& r, char const* name, std::shared_ptr<two_ends> ends, bool seam_alone) {
  row out = small_row(r, name, ends);
  out.note = seam_alone ? "the driver seam's copy alone; raw: on the same memory" : "raw: on the same memory";
  void *const to = ends->dst.ours.data(), *const from = ends->src.ours.data();
  if (seam_alone) {
    out.weir = [&r, to, from, ends] {
      auto const& line = streams::clock_of(r.on);
      auto& machine = line.owner().machine();
      return cost([&] { static_cast<void>(machine.copy(line.device(), line.handle(), to, from, small_bytes)); },
                  [&] { r.on.synchronize(); });
    };
  }
  out.raw = [&r, to, from, ends] {
    r.raw.prepare(r.on);
    return cost([&] { r.raw.copy(to, from, small_bytes); }, [&] { r.raw.synchronize(); });
  };
  return out;
}

// Many copies in one call; raw: one call per copy.
row many_row(rig& r) {
  struct both {
    two_ends ends;
    std::vector<copy_item> items;
  };
  auto const all = std::make_shared<both>(
      both{{on_device(r, 0, small_copies * small_bytes), in_pinned(r, small_copies * small_bytes)}, {}});
  for (size_t i = 0; i < small_copies; ++i)
    all->items.push_back({all->ends.dst.ours.data<std::byte>() + i * small_bytes,
                          all->ends.src.ours.data<std::byte>() + i * small_bytes, small_bytes});
  row out{"small_many", small_bytes, measure::call};
  out.note = "each of 200 in one call; raw: a call each";
  out.weir = [&r, all] {
    std::int64_t const from = base::now_ns();
    copy(r.on, all->items, non_blocking);
    double const us = seconds_since(from) / small_copies * 1e6;
    r.on.synchronize();
    return us;
  };
  out.raw = [&r, all] {
    r.raw.prepare(r.on);
    size_t i = 0;
    return cost(
        [&] {
          size_t const offset = i++ * small_bytes;
          r.raw.copy(static_cast<std::byte*>(all->ends.dst.theirs->data()) + offset,
                     static_cast<std::byte*>(all->ends.src.theirs->data()) + offset, small_bytes);
        },
        [&] { r.raw.synchronize(); });
  };
  return out;
}

std::optional<row> peer_row(rig& r) {
  if (r.devices < 2)
    return {};
  size_t const bytes = r.broadcast;
  auto const ends = std::make_shared<two_ends>(two_ends{on_device(r, 1, bytes), on_device(r, 0, bytes)});
  // Repeats the copy until weir grants the peer access.
  for (int i = 0; i < 10; ++i)
    copy(r.on, ends->dst.ours.data(), ends->src.ours.data(), bytes, non_blocking);
  r.on.synchronize();
  r.raw.open_peer(0, 1);
  row out = large_row(r, "peer", bytes, ends, 1, "gpu:0 to gpu:1, nothing enabled by hand; raw: access enabled");
  out.raw = [&r, ends, bytes] {
    r.raw.prepare(r.on);
    return rate(bytes, [&] {
      for (int i = 0; i < large_copies; ++i)
        r.raw.copy_peer(ends->dst.theirs->data(), 1, ends->src.theirs->data(), 0, bytes);
      r.raw.synchronize();
    });
  };
  return out;
}

// The system reuses the most recently returned memory first. Memory that no process has touched before is
// slower to touch, most of all in a virtual machine. `touched_before`: allocates and frees once before the
// measurement.
std::optional<row> new_pinned_row(rig& r, char const* name, bool touched_before) {
  row out{name, r.fresh, measure::span};
  out.note = touched_before ? "memory that the pool does not have yet, and the host had in use before"
                            : "memory that the pool does not have yet";
  auto& pool = runtime::current().get().part<streams::pinned_memory>();
  pool.trim();
  auto const once = [&r, &pool] {
    std::int64_t const from = base::now_ns();
    buffer fresh = pinned(r.fresh);
    double const ms = seconds_since(from) * 1e3;
    fresh.reset();
    pool.trim();
    return ms;
  };
  out.weir = [once, touched_before] {
    if (touched_before)
      once();
    return once();
  };
  out.raw = [&r] {
    std::int64_t const from = base::now_ns();
    auto const fresh = r.raw.pinned(r.fresh);
    return seconds_since(from) * 1e3;
  };
  return out;
}

// The hand-written loop: one link per device, two slots per lane, chunks of 8 MiB.
struct raw_lanes {
  struct lane {
    int device;
    stream near, far;
    std::vector<std::unique_ptr<raw_calls::memory>> slots;
  };
  static constexpr size_t chunk = 8_MiB;
  std::vector<lane> all;

  void carry(rig& r, bool up, std::byte* dst, std::byte const* src) {
    for (lane& l : all)
      r.raw.wait(l.near, r.on), r.raw.wait(l.far, r.on);
    size_t const shares = all.size() + 1;
    for (size_t i = 0, offset = 0; offset < r.bytes; ++i, offset += chunk) {
      size_t const n = std::min(chunk, r.bytes - offset), whose = i % shares;
      if (whose == 0) {
        r.raw.prepare(r.on);
        r.raw.copy(dst + offset, src + offset, n);
        continue;
      }
      lane& l = all[whose - 1];
      void* const slot = l.slots[i / shares % l.slots.size()]->data();
      stream_ref const first = up ? l.near : l.far, second = up ? l.far : l.near;
      if (i / shares >= l.slots.size())
        r.raw.wait(first, second);
      r.raw.prepare(first);
      up ? r.raw.copy(slot, src + offset, n) : r.raw.copy_peer(slot, l.device, src + offset, 0, n);
      r.raw.wait(second, first);
      r.raw.prepare(second);
      up ? r.raw.copy_peer(dst + offset, 0, slot, l.device, n) : r.raw.copy(dst + offset, slot, n);
    }
    for (lane& l : all)
      r.raw.wait(r.on, up ? l.far : l.near);
  }
};

std::optional<row> striped_row(rig& r, char const* name, bool up) {
  if (r.devices < 2)
    return {};
  auto gpu = on_device(r, 0, r.bytes), host = in_pinned(r, r.bytes);
  auto const ends = std::make_shared<two_ends>(up ? two_ends{std::move(gpu), std::move(host)}
                                                  : two_ends{std::move(host), std::move(gpu)});
  auto const lanes = std::make_shared<raw_lanes>();
  std::vector<device> lent;
  for (int i = 1; i < r.devices; ++i) {
    lent.emplace_back(i);
    r.raw.open_peer(0, i);
    raw_lanes::lane l{i, stream(device(i)), stream(device(0)), {}};
    for (int k = 0; k < 2; ++k)
      l.slots.push_back(r.raw.on_device(i, raw_lanes::chunk));
    lanes->all.push_back(std::move(l));
  }
  row out = large_row(r, name, r.bytes, ends, 1, "one device, over the links of all; raw: the same loop by hand");
  out.weir = [straight = out.weir, lent] {
    link_sharing_guard const all(lent);
    return straight();
  };
  out.raw = [&r, ends, lanes, up] {
    return rate(r.bytes, [&] {
      for (int i = 0; i < large_copies; ++i)
        lanes->carry(r, up, static_cast<std::byte*>(ends->dst.theirs->data()),
                     static_cast<std::byte const*>(ends->src.theirs->data()));
      r.raw.prepare(r.on);
      r.raw.synchronize();
    });
  };
  return out;
}

std::vector<std::pair<std::string, maker>> all_rows() {
  auto const ends = [](rig& r, bool up, size_t bytes) {
    auto gpu = on_device(r, 0, bytes), host = in_pinned(r, bytes);
    return std::make_shared<two_ends>(up ? two_ends{std::move(gpu), std::move(host)}
                                         : two_ends{std::move(host), std::move(gpu)});
  };
  std::vector<std::pair<std::string, maker>> rows{
      {"pinned_h2d", [=](rig& r) { return large_row(r, "pinned_h2d", r.bytes, ends(r, true, r.bytes)); }},
      {"pinned_d2h", [=](rig& r) { return large_row(r, "pinned_d2h", r.bytes, ends(r, false, r.bytes)); }},
      {"small_h2d", [=](rig& r) { return small_row(r, "small_h2d", ends(r, true, small_bytes)); }},
      {"small_d2h", [=](rig& r) { return small_row(r, "small_d2h", ends(r, false, small_bytes)); }},
      {"small_same", [=](rig& r) { return same_memory_row(r, "small_same", ends(r, true, small_bytes), false); }},
      {"small_seam", [=](rig& r) { return same_memory_row(r, "small_seam", ends(r, true, small_bytes), true); }},
      {"small_many", many_row},
      {"pageable_h2d", [](rig& r) { return pageable_row(r, "pageable_h2d", true); }},
      {"pageable_d2h", [](rig& r) { return pageable_row(r, "pageable_d2h", false, blocking::yes); }},
      {"pageable_d2h_async", [](rig& r) { return pageable_row(r, "pageable_d2h_async", false); }},
      {"d2d",
       [](rig& r) {
         auto both = std::make_shared<two_ends>(two_ends{on_device(r, 0, r.bytes), on_device(r, 0, r.bytes)});
         return large_row(r, "d2d", r.bytes, both, 2, "bytes read and written");
       }},
      {"peer", peer_row},
      {"striped_h2d", [](rig& r) { return striped_row(r, "striped_h2d", true); }},
      {"striped_d2h", [](rig& r) { return striped_row(r, "striped_d2h", false); }},
      {"new_pinned", [](rig& r) { return new_pinned_row(r, "new_pinned", true); }},
      {"new_pinned_first", [](rig& r) { return new_pinned_row(r, "new_pinned_first", false); }},
  };
  for (auto& one : ring_rows())
    rows.push_back(std::move(one));
  for (size_t bytes = 64_KiB; bytes <= 1_GiB; bytes *= 2) {
    for (auto const& [way, up, waits] :
         {std::tuple{"h2d", true, non_blocking}, {"d2h", false, blocking::yes}, {"d2h_async", false, non_blocking}}) {
      std::string name = "sized_" + std::string(way) + "_" + bytes_text(bytes);
      std::erase(name, ' ');
      rows.emplace_back(name, [=, up = up, waits = waits](rig& r) { return pageable_row(r, name, up, waits, bytes); });
    }
  }
  for (auto& one : pinned_rows())
    rows.push_back(std::move(one));
  for (auto& one : staged_rows())
    rows.push_back(std::move(one));
  return rows;
}

double median(std::vector<double> of) {
  std::sort(of.begin(), of.end());
  return of.empty() ? 0 : of.size() % 2 ? of[of.size() / 2] : (of[of.size() / 2 - 1] + of[of.size() / 2]) / 2;
}

std::string number_or(bool there, double value, char const* otherwise) {
  if (!there)
    return otherwise;
  return base::json_number(value, value < 10 ? 3 : value < 100 ? 2 : 1);
}

bool is_a_way(std::string const& row) {
  return row.starts_with("pin_") || row.starts_with("stage_") || row.starts_with("sized_");
}

// "pin_*" selects all rows with that prefix. Without names, all rows but pin_…, sized_… and stage_….
bool is_wanted(std::string const& row, std::vector<std::string> const& names) {
  if (names.empty())
    return !is_a_way(row);
  return std::any_of(names.begin(), names.end(), [&](std::string const& n) {
    return n.ends_with('*') ? row.starts_with(n.substr(0, n.size() - 1)) : row == n;
  });
}

void print(row const& r, double ours, double raw, bool json) {
  std::string const w = number_or(bool(r.weir), ours, json ? "null" : "-"),
                    d = number_or(bool(r.raw), raw, json ? "null" : "-");
  std::string const ratio = number_or(r.weir && r.raw, ours / raw, json ? "null" : "-");
  if (json) {
    std::printf("{\"row\": \"%s\", \"bytes\": %zu, \"unit\": \"%s\", \"weir\": %s, \"raw\": %s, \"ratio\": %s%s}\n",
                r.name.c_str(), r.bytes, unit_of(r.in), w.c_str(), d.c_str(), ratio.c_str(),
                r.said ? (", \"said\": " + base::json_text(r.said())).c_str() : "");
  } else {
    std::printf("%-18s %10s %5s %10s %10s %7s  %s\n", r.name.c_str(), bytes_text(r.bytes).c_str(), unit_of(r.in),
                w.c_str(), d.c_str(), ratio.c_str(), (r.said ? r.said() : r.note).c_str());
  }
  std::fflush(stdout);
}

// Rounds of weir and of the driver alternate, so that disturbances affect both. The first round warms up.
void run(row const& r, int rounds, bool json) {
  std::vector<double> ours, raw;
  for (int i = 0; i <= rounds; ++i) {
    double const a = r.weir ? r.weir() : 0, b = r.raw ? r.raw() : 0;
    if (i)
      ours.push_back(a), raw.push_back(b);
  }
  show_progress({});
  print(r, median(ours), median(raw), json);
}

}  // namespace

int bench_copy(std::vector<std::string> const& arguments) {
  namespace po = boost::program_options;
  std::string devices, bytes, fresh, broadcast;
  std::vector<std::string> names;
  int rounds = 7;
  bool json = false;
  po::options_description all("weir bench copy [ROW…]: copies through weir and by the driver's own call, medians");
  all.add_options()("help,h", "this text")("devices", po::value(&devices),
                                           "auto | cuda | sim[:N[:SIZE]][:seed=S]; WEIR_DEVICES, else auto")(
      "rounds", po::value(&rounds)->default_value(rounds), "rounds, weir and the raw call in turn")(
      "json", po::bool_switch(&json), "print a line of JSON for each row")(
      "bytes", po::value(&bytes), "size of a large copy; 256MiB, 16MiB on simulated devices")(
      "pinned-bytes", po::value(&fresh), "size of new pinned memory; 1GiB, 64MiB on simulated devices")(
      "peer-bytes", po::value(&broadcast), "size of a copy between devices; 1GiB, 16MiB on simulated devices")(
      "row", po::value(&names), "only these");
  if (!understood(arguments, all, "row", -1))
    return 0;
  if (rounds < 1)
    throw invalid_use("bench copy", "--rounds " + std::to_string(rounds), "Use at least one",
                      source_location::current());
  auto const rows = all_rows();
  std::string known;
  for (auto const& [name, make] : rows)
    known += is_a_way(name) ? "" : name + ", ";
  known += "pin_*, sized_* or stage_*";
  for (std::string const& name : names) {
    if (std::none_of(rows.begin(), rows.end(), [&](auto const& one) { return is_wanted(one.first, {name}); })) {
      throw invalid_use("bench copy", "no row \"" + name + "\"", "Choose among " + known, source_location::current());
    }
  }
  use_devices(devices);
  device_guard const on(0);
  bool const simulated = get_device_properties(0).simulated;
  auto const size_or = [](std::string const& text, size_t otherwise) {
    if (text.empty())
      return otherwise;
    auto const size = size_from_text(text);
    if (!size || *size == 0)
      throw invalid_use("bench copy", "\"" + text + "\" is not a size", "Write bytes, or a number and KiB, MiB or GiB",
                        source_location::current());
    if (*size % 4_KiB)
      throw invalid_use("bench copy", "\"" + text + "\" is not a multiple of 4 KiB", "Write whole pages: 4KiB, 1MiB",
                        source_location::current());
    return *size;
  };
  rig r{{},
        size_or(bytes, simulated ? 16_MiB : 256_MiB),
        size_or(fresh, simulated ? 64_MiB : 1_GiB),
        size_or(broadcast, simulated ? 16_MiB : 1_GiB)};
  if (!json) {
    std::printf("%s, %d processors\n%-18s %10s %5s %10s %10s %7s\n", runtime::current().description().c_str(),
                os::usable_processors(), "row", "of", "in", "weir", "raw", "/ raw");
  }
  bool any = false;
  for (auto const& [name, make] : rows) {
    if (!is_wanted(name, names))
      continue;
    auto const one = make(r);
    if (one)
      show_progress(name), run(*one, rounds, json), any = true;
    else if (!names.empty())
      std::fprintf(stderr,
                   "weir: bench copy: no row %s: it needs a second device or CUDA's driver, and this machine is %s\n",
                   name.c_str(), runtime::current().description().c_str());
    for (int i = 0; i < r.devices; ++i)
      empty_cache(device(i));  // restores the state before the row
  }
  return any ? 0 : 1;
}

}  // namespace weir::tool
