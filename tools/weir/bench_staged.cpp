// The rows stage_… of weir bench copy: the limits of pageable copies (threads, copy engine, both, a
// hand-written loop) and variants of staging.
// Threads: those of a round, joined before it ends.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench_copy.h"
#include "runtime/base/os.h"
#include "runtime/core/parts.h"
#include "runtime/options/options.h"
#include "streams/copy/copy_engine.h"
#include "streams/copy/staging.h"
#include "streams/stream/context.h"
#include "weir/device.h"
#include "weir/memory.h"

namespace weir::tool {
namespace {

using streams::staging;
using streams::stores;

// Bytes of pinned memory per experiment, as much as staging has. Beside threads the engine gets half.
constexpr size_t ring_bytes = 64_MiB;

struct places {
  std::vector<std::byte> host;
  buffer gpu, slots;
  size_t total() const { return host.size() * large_copies; }
};

std::shared_ptr<places> make_places(rig& r) {
  auto const made = std::make_shared<places>(
      places{std::vector<std::byte>(r.bytes, std::byte{1}), buffer(r.bytes, {.on = device(0)}), pinned(ring_bytes)});
  std::memset(made->slots.data(), 1, ring_bytes);
  return made;
}

// Starts the threads at the same time. Returns: seconds until the last one is done.
template <class Do>
double together(int threads, Do act) {
  base::atomic<int> ready{0};
  base::atomic<bool> go{false};
  std::vector<base::thread> all;
  for (int i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      ready.fetch_add(1);
      while (!go.load())
        base::yield_thread();
      act(i);
    });
  }
  while (ready.load() < threads)
    base::yield_thread();
  std::int64_t const from = base::now_ns();
  go.store(true);
  for (auto& one : all)
    one.join();
  return seconds_since(from);
}

double gigabytes(size_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds * 1e-9;
}

// Copies of the threads alone: each takes the next chunk until `stop` is set or `bytes` are taken. Returns:
// bytes copied
size_t copy_chunks(places& at, base::atomic<size_t>& next, size_t bytes, size_t chunk, bool into_slots, stores by,
                   base::atomic<bool> const& stop) {
  size_t done = 0;
  for (size_t from; !stop.load(base::memory_order_relaxed) && (from = next.fetch_add(chunk)) < bytes; done += chunk) {
    size_t const n = std::min(chunk, at.host.size()), offset = from / chunk * n;
    std::byte *const host = at.host.data() + offset % (at.host.size() / n * n), *const slot =
                                                                                    at.slots.data<std::byte>() +
                                                                                    offset % (ring_bytes / 2);
    into_slots ? streams::copy_in_host(slot, host, n, by) : streams::copy_in_host(host, slot, n, by);
  }
  return done;
}

// Threads without the engine. weir: into slots; raw: out of slots.
row threads_row(rig& r, std::string const& name, int threads, stores by, size_t chunk) {
  auto const at = make_places(r);
  row out{name, r.bytes, measure::rate};
  out.note =
      std::to_string(threads) + " threads alone, " + bytes_text(chunk) + " at a time: into slots; raw: out of them";
  auto const once = [=](bool into_slots) {
    base::atomic<size_t> next{0};
    base::atomic<bool> never{false};
    size_t const bytes = at->total();
    return gigabytes(bytes,
                     together(threads, [&](int) { copy_chunks(*at, next, bytes, chunk, into_slots, by, never); }));
  };
  out.weir = [=] { return once(true); };
  out.raw = [=] { return once(false); };
  return out;
}

// The engine without threads, out of slots or into them. weir: with a fence per chunk, as in staging; raw:
// without.
row engine_row(rig& r, std::string const& name, bool up, size_t chunk) {
  auto const at = make_places(r);
  row out{name, r.bytes, measure::rate};
  out.note = "engine alone, " + bytes_text(chunk) + " at a time, each fenced; raw: not fenced";
  auto const each = [at, up, chunk](auto one) {
    size_t const n = std::min(chunk, at->host.size());
    for (size_t from = 0; from + n <= at->total(); from += n) {
      std::byte *const gpu = at->gpu.data<std::byte>() + from % (at->host.size() / n * n),
                       *const slot = at->slots.data<std::byte>() + ring_bytes / 2 + from % (ring_bytes / 2);
      up ? one(gpu, slot, n) : one(slot, gpu, n);
    }
  };
  out.weir = [&r, at, each] {
    auto& line = streams::clock_of(r.on);
    std::int64_t const from = base::now_ns();
    each([&](void* to, void const* src, size_t n) {
      streams::enqueue_copy(line, to, src, n, source_location::current());
      static_cast<void>(line.fence());
    });
    r.on.synchronize();
    return gigabytes(at->total(), seconds_since(from));
  };
  out.raw = [&r, at, each] {
    r.raw.prepare(r.on);
    std::int64_t const from = base::now_ns();
    each([&](void* to, void const* src, size_t n) { r.raw.copy(to, src, n); });
    r.raw.synchronize();
    return gigabytes(at->total(), seconds_since(from));
  };
  return out;
}

// Alternates the chunks between two streams, so that their start and end overlap; raw: one stream.
row two_streams_row(rig& r, std::string const& name, bool up, size_t chunk) {
  auto const at = make_places(r);
  auto const other = std::make_shared<stream>(device(0));
  row out{name, r.bytes, measure::rate};
  out.note = "engine alone, " + bytes_text(chunk) + " at a time, in turn on two streams; raw: on one";
  auto const once = [&r, at, other, up, chunk](bool both) {
    size_t const n = std::min(chunk, at->host.size());
    std::int64_t const begin = base::now_ns();
    bool second = false;
    for (size_t from = 0; from + n <= at->total(); from += n, second = both && !second) {
      std::byte *const gpu = at->gpu.data<std::byte>() + from % (at->host.size() / n * n),
                       *const slot = at->slots.data<std::byte>() + from % (ring_bytes / n * n);
      auto& line = streams::clock_of(second ? stream_ref(*other) : stream_ref(r.on));
      up ? streams::enqueue_copy(line, gpu, slot, n, source_location::current())
         : streams::enqueue_copy(line, slot, gpu, n, source_location::current());
    }
    r.on.synchronize();
    other->synchronize();
    return gigabytes(at->total(), seconds_since(begin));
  };
  out.weir = [once] { return once(true); };
  out.raw = [once] { return once(false); };
  return out;
}

// The engine reads slots that threads have just written and that lie in their caches. raw: the threads.
row after_row(rig& r, std::string const& name, stores by) {
  auto const at = make_places(r);
  row out{name, r.bytes, measure::rate};
  out.note = "engine alone, 4 MiB at a time, right after threads wrote the slots; raw: these";
  auto const threads_rate = std::make_shared<double>(0);
  size_t const bytes = std::min(r.bytes, ring_bytes / 2), n = std::min(4_MiB, bytes);
  out.weir = [=, &r] {
    double written = 0, carried = 0;
    for (int i = 0; i < 8; ++i) {
      base::atomic<size_t> next{0};
      base::atomic<bool> never{false};
      written += together(std::clamp(os::usable_processors() - 1, 1, 15),
                          [&](int) { copy_chunks(*at, next, bytes, 256_KiB, true, by, never); });
      std::int64_t const begin = base::now_ns();
      for (size_t from = 0; from + n <= bytes; from += n)
        streams::enqueue_copy(streams::clock_of(r.on), at->gpu.data<std::byte>() + from,
                              at->slots.data<std::byte>() + from, n, source_location::current());
      r.on.synchronize();
      carried += seconds_since(begin);
    }
    *threads_rate = gigabytes(8 * bytes, written);
    return gigabytes(8 * bytes, carried);
  };
  out.raw = [threads_rate] { return *threads_rate; };
  return out;
}

// Threads and engine run concurrently and independently, which shows their contention. weir: the threads;
// raw: the engine.
row both_row(rig& r, std::string const& name, bool up, int threads, stores by) {
  auto const at = make_places(r);
  row out{name, r.bytes, measure::rate};
  out.note = std::to_string(threads) + " threads while the engine runs, neither waits; raw: the engine";
  auto const engine = std::make_shared<double>(0);
  out.weir = [=, &r] {
    base::atomic<size_t> next{0}, moved{0};
    base::atomic<bool> stop{false};
    double engines = 0;
    double const all = together(threads + 1, [&](int i) {
      if (i) {
        moved.fetch_add(copy_chunks(*at, next, ~size_t{0} / 2, 256_KiB, up, by, stop));
        return;
      }
      std::int64_t const from = base::now_ns();
      size_t const n = std::min(2_MiB, at->host.size());
      for (size_t done = 0; done + n <= at->total(); done += n) {
        std::byte *const gpu = at->gpu.data<std::byte>() + done % (at->host.size() / n * n),
                         *const slot = at->slots.data<std::byte>() + ring_bytes / 2 + done % (ring_bytes / 2);
        up ? streams::enqueue_copy(streams::clock_of(r.on), gpu, slot, n, source_location::current())
           : streams::enqueue_copy(streams::clock_of(r.on), slot, gpu, n, source_location::current());
      }
      r.on.synchronize();
      engines = seconds_since(from);
      stop.store(true);
    });
    *engine = gigabytes(at->total(), engines);
    return gigabytes(moved.load(), all);
  };
  out.raw = [engine] { return *engine; };
  return out;
}

row usual(rig& r, bool up) {
  return pageable_row(r, "usual", up, up ? non_blocking : blocking::yes);
}

// The hand-written loop: each thread has its own stream and two slots. The threads do not synchronize.
row hand_row(rig& r, std::string const& name, bool up, int threads, size_t chunk, stores by) {
  struct hand {
    raw_calls calls;
    stream on{device(0)};
  };
  auto const at = make_places(r);
  auto const hands = std::make_shared<std::vector<hand>>(static_cast<size_t>(threads));
  row out{name, r.bytes, measure::rate};
  out.note = "by hand: " + std::to_string(threads) + " threads, each with a stream and two slots of " +
             bytes_text(chunk) + "; raw: weir as usual";
  size_t const n = std::min({chunk, at->host.size(), ring_bytes / 2 / static_cast<size_t>(threads)});
  out.weir = [=] {
    base::atomic<size_t> next{0};
    size_t const wrap = at->host.size() / n * n, total = at->total() / n * n;
    return gigabytes(
        total, together(threads, [&](int i) {
          auto& mine = (*hands)[static_cast<size_t>(i)];
          std::byte* const slots = at->slots.data<std::byte>() + 2 * n * static_cast<size_t>(i);
          mine.calls.prepare(mine.on);
          std::byte *before = nullptr, *before_slot = nullptr;
          for (int k = 0;; ++k) {
            size_t const from = next.fetch_add(n);
            std::byte *const slot = slots + static_cast<size_t>(k % 2) * n, *const host = at->host.data() + from % wrap,
                             *const gpu = at->gpu.data<std::byte>() + from % wrap;
            if (up) {
              if (from >= total)
                break;
              streams::copy_in_host(slot, host, n, by);
              mine.calls.synchronize();  // the previous copy, whose slot is used next
              mine.calls.copy(gpu, slot, n);
            } else {
              mine.calls.synchronize();
              if (from < total)
                mine.calls.copy(slot, gpu, n);
              if (before)
                streams::copy_in_host(before, before_slot, n, by);
              if (from >= total)
                break;
              before = host, before_slot = slot;
            }
          }
          mine.calls.synchronize();
        }));
  };
  out.raw = usual(r, up).weir;
  return out;
}

enum class ways : std::uint8_t { both, up, down };
struct variant {
  char const* name;
  ways for_way;
  staging::tuning how;
  streams::copy_workers::tuning crew{.threads = 0};
};

std::string text_of(variant const& v) {
  auto const& h = v.how;
  std::string out = "slots of " + bytes_text(h.chunk);
  if (h.first < h.chunk)
    out += " from " + bytes_text(h.first) + " on";
  if (h.grain < h.chunk)
    out += " in pieces of " + bytes_text(h.grain);
  out += h.by == stores::plain         ? ", plain"
         : h.by == stores::past_caches ? ", past the caches"
                                       : ", to the shared cache";
  out += ", " + bytes_text(h.budget) + " in hand";
  if (v.crew.threads)
    out += ", " + std::to_string(v.crew.threads) + " threads";
  if (v.crew.helps)
    out += ", caller helps";
  if (v.crew.spin_ns)
    out += ", spins " + std::to_string(v.crew.spin_ns / 1000) + " us";
  return out;
}

row variant_row(rig& r, std::string const& name, bool up, variant const& v) {
  row out = usual(r, up);
  out.name = name;
  out.note = text_of(v) + "; raw: weir as usual";
  auto const as_usual = out.weir;
  auto* const it = &runtime::current().get().part<staging>();
  out.raw = as_usual;
  out.weir = [=] {
    up ? it->fill_by(v.how) : it->fetch_by(v.how);
    it->work_by(v.crew);
    double const rate = as_usual();
    up ? it->fill_by(staging::tuning{}) : it->fetch_by(staging::tuning{});
    it->work_by({.threads = 0});
    return rate;
  };
  return out;
}

std::vector<variant> const& variants() {
  constexpr auto past = stores::past_caches, plain = stores::plain, shared = stores::to_shared_cache;
  constexpr auto p = 256_KiB, first = 512_KiB, whole = staging::largest_slot;
  constexpr std::int64_t spin = 100'000;
  static std::vector<variant> const all{
      {"whole_2m", ways::up, {.chunk = 2_MiB, .first = 2_MiB, .grain = whole, .by = past}},
      {"whole_2m_plain", ways::both, {.chunk = 2_MiB, .first = 2_MiB, .grain = whole, .by = plain}},
      {"whole_2m_shared", ways::up, {.chunk = 2_MiB, .first = 2_MiB, .grain = whole, .by = shared}},
      {"4m", ways::both, {.chunk = 4_MiB, .first = first, .grain = p, .by = past}},
      {"8m", ways::both, {.chunk = 8_MiB, .first = first, .grain = p, .by = past}},
      {"8m_all", ways::up, {.chunk = 8_MiB, .first = 8_MiB, .grain = p, .by = past}},
      {"8m_spins",
       ways::both,
       {.chunk = 8_MiB, .first = first, .grain = p, .by = past},
       {.threads = 0, .spin_ns = spin}},
      {"4m_12", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = past}, {.threads = 12}},
      {"8m_10", ways::up, {.chunk = 8_MiB, .first = first, .grain = p, .by = past}, {.threads = 10}},
      {"8m_12", ways::up, {.chunk = 8_MiB, .first = first, .grain = p, .by = past}, {.threads = 12}},
      {"8m_12_spins",
       ways::up,
       {.chunk = 8_MiB, .first = first, .grain = p, .by = past},
       {.threads = 12, .spin_ns = spin}},
      {"shared_2m", ways::up, {.chunk = 2_MiB, .first = first, .grain = p, .by = shared}},
      {"shared_4m", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = shared}},
      {"shared_8m", ways::up, {.chunk = 8_MiB, .first = first, .grain = p, .by = shared}},
      {"shared_4m_128k", ways::up, {.chunk = 4_MiB, .first = first, .grain = 128_KiB, .by = shared}},
      {"shared_4m_24", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = shared, .budget = 24_MiB}},
      {"shared_4m_6", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = shared}, {.threads = 6}},
      {"shared_4m_8", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = shared}, {.threads = 8}},
      {"shared_4m_12", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = shared}, {.threads = 12}},
      {"shared_8m_12_spins",
       ways::up,
       {.chunk = 8_MiB, .first = first, .grain = p, .by = shared},
       {.threads = 12, .spin_ns = spin}},
      {"plain_4m", ways::both, {.chunk = 4_MiB, .first = first, .grain = p, .by = plain}},
      {"plain_4m_6", ways::up, {.chunk = 4_MiB, .first = first, .grain = p, .by = plain}, {.threads = 6}},
      {"plain_4m_8", ways::both, {.chunk = 4_MiB, .first = first, .grain = p, .by = plain}, {.threads = 8}},
      {"plain_4m_12", ways::both, {.chunk = 4_MiB, .first = first, .grain = p, .by = plain}, {.threads = 12}},
      {"plain_8m", ways::both, {.chunk = 8_MiB, .first = first, .grain = p, .by = plain}},
      {"plain_2m_spins",
       ways::down,
       {.chunk = 2_MiB, .first = first, .grain = p, .by = plain},
       {.threads = 0, .spin_ns = spin}},
      {"plain_4m_spins",
       ways::down,
       {.chunk = 4_MiB, .first = first, .grain = p, .by = plain},
       {.threads = 0, .spin_ns = spin}},
      {"plain_4m_128k_spins",
       ways::down,
       {.chunk = 4_MiB, .first = first, .grain = 128_KiB, .by = plain},
       {.threads = 0, .spin_ns = spin}},
      {"plain_4m_spins_helps",
       ways::down,
       {.chunk = 4_MiB, .first = first, .grain = p, .by = plain},
       {.threads = 0, .helps = true, .spin_ns = spin}},
      {"plain_8m_spins",
       ways::down,
       {.chunk = 8_MiB, .first = first, .grain = p, .by = plain},
       {.threads = 0, .spin_ns = spin}},
      {"plain_8m_12_spins",
       ways::down,
       {.chunk = 8_MiB, .first = first, .grain = p, .by = plain},
       {.threads = 12, .spin_ns = spin}},
  };
  return all;
}

}  // namespace

std::vector<std::pair<std::string, maker>> staged_rows() {
  std::vector<std::pair<std::string, maker>> rows;
  auto const add = [&](std::string const& name, auto make) {
    rows.emplace_back(name, [=](rig& r) -> std::optional<row> { return make(r, name); });
  };
  auto const fits = [](int threads) { return threads <= os::usable_processors() || threads <= 4; };
  auto const add_threads = [&](std::string const& name, int threads, stores by, size_t chunk) {
    if (fits(threads))
      add(name, [=](rig& r, std::string const& n) { return threads_row(r, n, threads, by, chunk); });
  };
  auto const named = [](stores by) {
    return std::string(by == stores::plain ? "plain" : by == stores::past_caches ? "past" : "shared");
  };
  constexpr stores some[] = {stores::plain, stores::past_caches, stores::to_shared_cache};
  for (int const threads : {1, 8, 16}) {
    for (auto const by : some)
      add_threads("stage_threads_" + std::to_string(threads) + "_" + named(by), threads, by, 256_KiB);
  }
  for (auto const by : some)
    add("stage_after_" + named(by), [=](rig& r, std::string const& n) { return after_row(r, n, by); });
  for (bool const up : {true, false}) {
    std::string const way = up ? "_h2d_" : "_d2h_";
    for (size_t const chunk : {1_MiB, 2_MiB, 4_MiB, 8_MiB}) {
      std::string const size = std::to_string(chunk / 1_MiB) + "m";
      add("stage_engine" + way + size, [=](rig& r, std::string const& n) { return engine_row(r, n, up, chunk); });
      add("stage_two" + way + size, [=](rig& r, std::string const& n) { return two_streams_row(r, n, up, chunk); });
    }
    for (auto const by : some) {
      if (!up && by == stores::to_shared_cache)
        continue;
      add("stage_both" + way + named(by), [=](rig& r, std::string const& n) {
        return both_row(r, n, up, std::clamp(os::usable_processors() - 1, 1, 15), by);
      });
      for (int const threads : {8, 16}) {
        add("stage_hand" + way + named(by) + "_" + std::to_string(threads), [=](rig& r, std::string const& n) {
          return hand_row(r, n, up, std::min(threads, os::usable_processors()), 2_MiB, by);
        });
      }
    }
    for (variant const& v : variants()) {
      if ((v.crew.threads && !fits(v.crew.threads)) || v.for_way == (up ? ways::down : ways::up))
        continue;
      add("stage" + way + v.name, [=](rig& r, std::string const& n) { return variant_row(r, n, up, v); });
    }
  }
  return rows;
}

}  // namespace weir::tool
