// weir::copy: selects a route for two addresses, gives the reason, and enqueues the copy.
// Threads: any; a route_guard affects its own thread only.
#include "weir/copy.h"

#include <cstring>
#include <utility>

#include "peer/copy/by_registration.h"
#include "peer/copy/endpoint.h"
#include "peer/copy/fast_copy.h"
#include "peer/copy/stripes.h"
#include "peer/link/links.h"
#include "runtime/driver/race_control.h"
#include "runtime/observe/span_recorder.h"
#include "streams/api/spills.h"
#include "streams/copy/copy_engine.h"
#include "streams/copy/staging.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"

namespace weir {
namespace peer {
namespace {

struct plan {
  endpoint dst, src;
  std::size_t bytes = 0;
  copy_route by = copy_route::automatic;
  char const* reason = "";
  bool dst_open = false, src_open = false;  // to the device of the other end
};

std::string text_of(plan const& p) {
  return "dst " + p.dst.text() + " <- src " + p.src.text() + ", " + std::to_string(p.bytes) + " B";
}

bool overlap(void const* a, void const* b, std::size_t bytes) {
  auto const x = reinterpret_cast<driver::address>(a), y = reinterpret_cast<driver::address>(b);
  return x < y ? y - x < bytes : x - y < bytes;
}

void choose_between_host_and_device(runtime::impl& r, plan& p) {
  bool const pinned = (p.dst.on_host() ? p.dst : p.src).in == driver::where::pinned;
  p.by = pinned ? copy_route::engine : copy_route::staged;
  p.reason = pinned ? "pinned memory: the device's copy engine reaches it"
                    : "pageable memory: the copy goes through pinned staging buffers, of weir or of the driver";
  if (!pinned || p.bytes < stripes::worth)
    return;
  auto const& lent = settings().helpers;
  if (lent.empty())
    return;
  if (r.part<stripes>().any_reaches(p.dst.on_host() ? p.src.device : p.dst.device, lent)) {
    p.by = copy_route::striped;
    p.reason = "pinned memory, a large copy: in parts over this device's host link and those of shared devices";
  } else {
    p.reason = "pinned memory: the device's copy engine reaches it, and no shared device reaches the device";
  }
}

void choose_between_devices(runtime::impl& r, plan& p) {
  auto& all = r.part<links>();
  auto const there = all.known(p.src.device, p.dst.device), back = all.known(p.dst.device, p.src.device);
  if (there == links::link_state::wrong || back == links::link_state::wrong) {
    p.by = copy_route::staged;
    p.reason = "the link between these devices failed its test";
    return;
  }
  if (there == links::link_state::refused && back == links::link_state::refused) {
    p.by = copy_route::staged;
    p.reason = "neither device can access the other";
    return;
  }
  p.by = copy_route::peer;
  p.dst_open = p.dst.open_to(p.src.device), p.src_open = p.src.open_to(p.dst.device);
  p.reason = p.dst_open || p.src_open ? "device to device over the link: the peer has access to the memory"
                                      : "device to device by the driver: the peer gets access when enough was copied";
}

void choose(runtime::impl& r, plan& p) {
  if (p.dst.on_host() && p.src.on_host()) {
    p.by = copy_route::host;
    p.reason = "host to host: this thread copies when the stream is complete";
  } else if (p.dst.on_host() || p.src.on_host()) {
    choose_between_host_and_device(r, p);
  } else if (p.dst.device == p.src.device) {
    p.by = copy_route::same_device;
    p.reason = "both are on one device";
  } else {
    choose_between_devices(r, p);
  }
}

void force(plan& p, copy_route by, source_location at) {
  if (by == copy_route::automatic || by == p.by)
    return;
  // What an engine or a link reaches can go through staging slots, too.
  bool const through_slots = by == copy_route::staged &&
                             (p.by == copy_route::engine || p.by == copy_route::striped || p.by == copy_route::peer);
  // A striped copy can take the device's own link alone.
  bool const in_one_part = by == copy_route::engine && p.by == copy_route::striped;
  // Between devices the driver finds a path: through the host, if no link is usable.
  bool const by_driver = by == copy_route::peer && p.by == copy_route::staged && !p.dst.on_host() && !p.src.on_host();
  if (!through_slots && !in_one_part && !by_driver)
    throw invalid_use("copy", text_of(p) + ", by copy_route::" + std::string(name_of(by)),
                      "Use a route that this memory has: automatic selects copy_route::" + std::string(name_of(p.by)),
                      at, error_id{288});
  p.by = by;
  p.reason = "a route_guard of this thread selects it";
}

// Requires: a.bytes > 0.
plan look(runtime::impl& r, asked a, source_location at) {
  plan p;
  p.bytes = a.bytes;
  p.dst = inspect(r, "copy", "dst", a.dst, a.bytes, at);
  p.src = inspect(r, "copy", "src", a.src, a.bytes, at);
  if (a.dst != a.src && overlap(a.dst, a.src, a.bytes))
    throw invalid_use("copy", text_of(p) + ", which overlap", "Copy through a third buffer", at, error_id{289});
  choose(r, p);
  force(p, settings().by, at);
  return p;
}

// As look(), for a copy to be made: with options::peer_access, the devices first open their memory.
plan meet_and_look(runtime::impl& r, asked a, source_location at) {
  plan p = look(r, a, at);
  bool const between = !p.dst.on_host() && !p.src.on_host() && p.dst.device != p.src.device;
  if (between && r.options().peer_access && r.part<links>().open_to_each_other(p.src.device, p.dst.device, at))
    p = look(r, a, at);
  return p;
}

// The device whose current stream does the copy, if none is given. Host to host: -1, for the current device.
int device_of_stream(plan const& p) {
  if (p.src.on_host())
    return p.dst.device;
  // Work on the device of another process's memory would make the two processes take turns there.
  if (p.src.foreign && !p.dst.on_host())
    return p.dst.device;
  return p.src.device;
}

void check_stream(plan const& p, clock::stream_clock const& stream, source_location at) {
  bool const is_host = p.by == copy_route::host;
  if (is_host || stream.device() == p.dst.device || stream.device() == p.src.device)
    return;
  throw invalid_use("copy", text_of(p) + ", on a stream of gpu:" + std::to_string(stream.device()),
                    "Pass a stream of a device that holds the memory", at, error_id{290});
}

void synchronize(runtime::impl& r, clock::stream_clock const& stream, clock::stamp s, char const* operation,
                 plan const& p, source_location at) {
  auto waited = r.part<clock::clocks>().synchronize(s);
  // After a throw the caller may free its memory, so a refused wait is retried on the driver's stream first.
  if (!waited.ok() && waited.what != driver::code::lost &&
      r.machine().synchronize_stream(stream.device(), stream.handle()).ok())
    waited = {};
  if (!waited.ok())
    throw_refusal(waited, operation, text_of(p), "Repeat the call", at);
}

// Marks the block for a stream other than its home.
void mark(endpoint const& e, clock::stream_clock& stream, source_location at) {
  if (e.memory && e.block->home != &stream)
    e.memory->record_use(e.at, stream, at);
}
void mark_host(runtime::impl& r, endpoint const& e, clock::stream_clock& stream) {
  if (e.block && e.in == driver::where::pinned)
    r.part<streams::pinned_memory>().record_use(e.at, stream.now());
}

struct marks_host {  // at its end, marks pinned memory as used by the enqueued work
  runtime::impl& r;
  plan const& p;
  clock::stream_clock& stream;
  ~marks_host() {
    mark_host(r, p.dst, stream);
    mark_host(r, p.src, stream);
  }
};

// Copies between the stream's device and another one. They run after the work that the other device's current
// stream had at construction. Its later work runs after them once other_follows() is called.
class between {
 public:
  between(runtime::impl& r, plan const& first, clock::stream_clock& stream, source_location at)
      : r_(r),
        one_(stream),
        other_(streams::current_clock(r, far(first, stream).device, at)),
        without_order_(needs_no_order(first, stream)) {
    if (without_order_)
      return;
    if (auto const ordered = one_.wait(other_.now()); !ordered.ok())
      throw_refused(ordered, first, at);
  }
  static bool concerns(plan const& p) {
    return !p.dst.on_host() && !p.src.on_host() && (p.by == copy_route::peer || p.by == copy_route::staged);
  }
  bool serves(plan const& p) const {
    return concerns(p) && far(p, one_).device == other_.device() && needs_no_order(p, one_) == without_order_;
  }

  void copy(plan const& p, asked a, source_location at) {
    if (p.by == copy_route::staged) {
      staged(p, a, at);
    } else {
      mark(p.src, one_, at);
      mark(p.dst, one_, at);
      streams::enqueue_peer_copy(one_, a.dst, p.dst.device, a.src, p.src.device, a.bytes, at);
    }
    has_copied_ = true;
  }
  // Orders the other stream after the copies. If the wait is refused, the host waits instead.
  void other_follows(plan const& last, source_location at) {
    if (!without_order_ && has_copied_)
      order_after(other_, one_, last, at);
  }
  void count(plan const& p, std::size_t bytes, source_location at) const {  // towards a grant of the memory
    auto const& end = far(p, one_);
    bool const open = &end == &p.dst ? p.dst_open : p.src_open;
    if (end.memory && p.by == copy_route::peer && !open)
      r_.part<links>().count_bytes(one_.device(), *end.memory, *end.block, bytes, at);
  }

 private:
  // The end on the other device
  static endpoint const& far(plan const& p, clock::stream_clock const& stream) {
    return stream.device() == p.src.device ? p.dst : p.src;
  }
  // Memory of another process is ordered by messages between the processes, not by a stream of its device
  // here. Work enqueued there would make the two processes take turns on that device (0.1 ms each time).
  static bool needs_no_order(plan const& p, clock::stream_clock const& stream) {
    return far(p, stream).foreign && p.by == copy_route::peer;
  }
  [[noreturn]] void throw_refused(driver::status s, plan const& p, source_location at) const {
    throw_refusal(s, "copy", text_of(p) + streams::which_is_lost(r_, s, p.dst.device, p.src.device),
                  "Repeat the call: the streams of both devices could not be ordered", at);
  }
  void order_after(clock::stream_clock& later, clock::stream_clock& earlier, plan const& p, source_location at) const {
    if (later.wait(earlier.now()).ok())
      return;
    if (auto const done = r_.part<clock::clocks>().synchronize(earlier.now()); !done.ok())
      throw_refused(done, p, at);
  }
  void staged(plan const& p, asked a, source_location at) {
    bool const from_here = one_.device() == p.src.device;
    auto& from = from_here ? one_ : other_;
    auto& to = from_here ? other_ : one_;
    // The other stream carries out one half of the copy, after the work that this stream was given before.
    if (auto const ordered = other_.wait(one_.now()); !ordered.ok())
      throw_refused(ordered, p, at);
    mark(p.src, from, at);
    mark(p.dst, to, at);
    try {
      r_.part<streams::staging>().between(from, to, a.dst, a.src, a.bytes, at);
    } catch (device_lost const&) {
      throw;  // the waits below would fail, too
    } catch (...) {
      // Parts of the copy may be enqueued on both streams.
      order_after(one_, other_, p, at);
      order_after(other_, one_, p, at);
      throw;
    }
    order_after(one_, other_, p, at);  // the reverse is for other_follows()
  }

  runtime::impl& r_;
  clock::stream_clock &one_, &other_;
  bool const without_order_;
  bool has_copied_ = false;
};

// Enqueues the first copies, as far as one `between` serves them. Empty ones on the way are passed over.
// Requires: the first is not empty. Returns: the number of those enqueued or passed over.
std::size_t between_devices(runtime::impl& r, std::span<plan const> plans, clock::stream_clock& stream,
                            std::span<copy_item const> items, source_location at) {
  between both(r, plans.front(), stream, at);
  std::size_t n = 0;
  std::size_t last = 0;  // the last one that is not empty: an error names it
  try {
    for (; n < items.size(); ++n) {
      if (items[n].bytes == 0)
        continue;
      if (!both.serves(plans[n]))
        break;
      last = n;
      both.copy(plans[n], {items[n].dst, items[n].src, items[n].bytes}, at);
    }
  } catch (...) {  // those before it are enqueued
    both.other_follows(plans[last], at);
    throw;
  }
  both.other_follows(plans[last], at);
  for (std::size_t i = 0; i < n; ++i)
    if (items[i].bytes)
      both.count(plans[i], items[i].bytes, at);
  return n;
}

// By the processor, after all that the stream was given.
void by_host(runtime::impl& r, plan const& p, clock::stream_clock& stream, asked a, source_location at) {
  synchronize(r, stream, stream.now(), "copy", p, at);
  driver::check::host_uses(a.src, a.bytes, driver::check::host_use::reads, "copy", at);
  driver::check::host_uses(a.dst, a.bytes, driver::check::host_use::writes, "copy", at);
  std::memcpy(a.dst, a.src, a.bytes);
}

void by_engine(runtime::impl& r, plan const& p, clock::stream_clock& stream, asked a, source_location at) {
  mark(p.dst, stream, at);
  mark(p.src, stream, at);
  marks_host const at_the_end{r, p, stream};
  bool const carried = p.by == copy_route::striped && is_in_one_registration(r, a.dst, a.src, a.bytes) &&
                       r.part<stripes>().carry(stream, p.dst, p.src, a.bytes, settings().helpers, at);
  if (!carried)
    enqueue_by_registration(r, stream, a.dst, a.src, a.bytes, at);
}

// Returns: of a copy to pageable memory, what arrives after this call or has arrived; of other copies, nothing.
streams::staging::download by_staging(runtime::impl& r, plan const& p, clock::stream_clock& stream, asked a,
                                      source_location at, bool caller_waits) {
  streams::staging::download bytes;
  streams::staging& through = r.part<streams::staging>();
  bool const to_host = p.dst.on_host();
  mark(to_host ? p.src : p.dst, stream, at);
  if (!to_host)
    through.to_device(stream, a.dst, a.src, a.bytes, p.src.is_pageable(), at);
  else if (caller_waits)
    bytes = through.to_waiting_host(stream, a.dst, a.src, a.bytes, at);
  else
    bytes = through.to_host(stream, a.dst, a.src, a.bytes, p.dst.is_pageable(), at);
  // A destination may be pinned, if a route_guard asks for slots. A source on the host has been read by now.
  mark_host(r, p.dst, stream);
  return bytes;
}

// Returns: as by_staging
streams::staging::download carry_out(runtime::impl& r, plan const& p, clock::stream_clock& stream, asked a,
                                     source_location at, bool caller_waits = false) {
  // Onto itself: nothing changes.
  if (a.dst == a.src)
    return {};
  observe::host_span const call("copy", at, a.bytes, stream.id());  // one span, however many parts the copy has
  if (between::concerns(p)) {
    copy_item const alone{a.dst, a.src, a.bytes};
    between_devices(r, {&p, 1}, stream, {&alone, 1}, at);
    return {};
  }
  switch (p.by) {
    case copy_route::host: by_host(r, p, stream, a, at); break;
    case copy_route::striped:
    case copy_route::engine:
    case copy_route::same_device: by_engine(r, p, stream, a, at); break;
    case copy_route::staged: return by_staging(r, p, stream, a, at, caller_waits);
    case copy_route::peer:              // see above
    case copy_route::automatic: break;  // never chosen
  }
  return {};
}

stamp finish(runtime::impl& r, plan const& last, clock::stream_clock& stream, bool host_waits, source_location at) {
  auto const done = stream.now();
  if (host_waits || r.options().launch_blocking)
    synchronize(r, stream, done, "copy", last, at);
  return streams::public_stamp(done);
}

stamp finish(runtime::impl& r, fast_copy const& way, asked const& a, bool host_waits, source_location const& at) {
  auto const done = way.stream->now();
  if (!host_waits && !r.options().launch_blocking)
    return streams::public_stamp(done);
  plan p;  // for the error text only
  p.bytes = a.bytes;
  p.dst.at = a.dst;
  p.src.at = a.src;
  p.dst.in = p.src.in = driver::where::device;
  p.dst.device = p.src.device = way.stream->device();
  if (way.pinned.last)
    (way.up ? p.src : p.dst).in = driver::where::pinned;
  synchronize(r, *way.stream, done, "copy", p, at);
  return streams::public_stamp(done);
}

// The given stream, or else the current one of the device that shall do the copy.
clock::stream_clock& stream_for(runtime::impl& r, clock::stream_clock* given, plan const& p, source_location at) {
  if (given) {
    check_stream(p, *given, at);
    return *given;
  }
  int const device = device_of_stream(p);
  return device < 0 ? streams::current_clock(r, at) : streams::current_clock(r, device, at);
}

stamp copy_one(runtime::impl& r, clock::stream_clock* given, asked a, blocking b, source_location const& at) {
  if (a.bytes == 0)
    return streams::public_stamp((given ? *given : streams::current_clock(r, at)).now());
  streams::awake const held(r, "copy", given, {a.dst, a.src}, at);
  if (fast_copy way; way.find(r, given, a, at)) [[likely]] {
    auto const enqueued = way.enqueue(a, at);
    if (!enqueued.ok()) [[unlikely]]
      streams::throw_refused_copy(enqueued, *way.stream, a.dst, a.src, a.bytes, at);
    // Within the device the host has nothing to wait for.
    bool const host_waits = b == blocking::yes && way.pinned.last;
    return finish(r, way, a, host_waits, at);
  }
  plan const p = meet_and_look(r, a, at);
  auto& stream = stream_for(r, given, p, at);
  bool const caller_waits = b == blocking::yes || r.options().launch_blocking;
  auto const bytes = carry_out(r, p, stream, a, at, caller_waits);
  if (auto const arrived = bytes.arrived())
    return streams::public_stamp(*arrived);
  // A blocking copy waits for host memory only. A copy by the host is over by now.
  bool const has_host_end = p.dst.on_host() || p.src.on_host();
  bool const host_waits = b == blocking::yes && has_host_end && p.by != copy_route::host;
  try {
    return finish(r, p, stream, host_waits, at);
  } catch (...) {  // the caller may free its memory now
    bytes.cancel();
    throw;
  }
}

stamp fill(runtime::impl& r, clock::stream_clock* given, void* dst, std::byte value, std::size_t bytes,
           source_location at) {
  if (bytes == 0)
    return streams::public_stamp((given ? *given : streams::current_clock(r, at)).now());
  streams::awake const held(r, "fill", given, {dst}, at);
  plan p;  // without a source
  p.bytes = bytes;
  if (auto* const stream = find_to_fill(r, given, dst, bytes, at)) [[likely]] {
    p.dst.at = dst;
    p.dst.in = driver::where::device;
    p.dst.device = stream->device();
    streams::enqueue_fill(*stream, dst, value, bytes, at);
    return finish(r, p, *stream, false, at);
  }
  p.dst = inspect(r, "fill", "dst", dst, bytes, at);
  if (given && !p.dst.on_host() && given->device() != p.dst.device)
    throw invalid_use("fill", "dst " + p.dst.text() + ", on a stream of gpu:" + std::to_string(given->device()),
                      "Pass a stream of the device that holds the memory", at, error_id{291});
  auto& stream = given             ? *given
                 : p.dst.on_host() ? streams::current_clock(r, at)
                                   : streams::current_clock(r, p.dst.device, at);
  if (p.dst.on_host()) {
    synchronize(r, stream, stream.now(), "fill", p, at);
    driver::check::host_uses(dst, bytes, driver::check::host_use::writes, "fill", at);
    std::memset(dst, static_cast<int>(value), bytes);
  } else {
    mark(p.dst, stream, at);
    streams::enqueue_fill(stream, dst, value, bytes, at);
  }
  return finish(r, p, stream, false, at);
}

// Each item is one copy by an engine.
stamp copy_fast(runtime::impl& r, fast_copies& all, clock::stream_clock& stream, std::span<copy_item const> items,
                blocking b, source_location at) {
  std::size_t done = 0;
  bool const host_waits = b == blocking::yes && all.of_host();
  if (auto const refused = all.enqueue(items, done, at); !refused.ok()) [[unlikely]] {
    // The error says how much was enqueued before it.
    for (auto const& item : items.first(done))
      streams::copy_in_parts::enqueued(item.bytes);
    // the caller may access the host memory now
    if (host_waits)
      static_cast<void>(r.machine().synchronize_stream(stream.device(), stream.handle()));
    streams::throw_refused_copy(refused, stream, items[done].dst, items[done].src, items[done].bytes, at);
  }
  return finish(r, all.last(), {items.back().dst, items.back().src, items.back().bytes}, host_waits, at);
}

// Looks at all items before the first is enqueued.
std::vector<plan> plan_each(runtime::impl& r, clock::stream_clock& stream, std::span<copy_item const> items,
                            source_location at) {
  std::vector<plan> plans;
  plans.reserve(items.size());
  for (auto const& item : items) {
    plans.emplace_back();
    if (item.bytes == 0)
      continue;
    plans.back() = meet_and_look(r, {item.dst, item.src, item.bytes}, at);
    check_stream(plans.back(), stream, at);
  }
  return plans;
}

bool is_of_host(std::span<plan const> plans, std::span<copy_item const> items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (items[i].bytes && (plans[i].dst.on_host() || plans[i].src.on_host()))
      return true;
  }
  return false;
}

void carry_out_each(runtime::impl& r, std::span<plan const> plans, clock::stream_clock& stream,
                    std::span<copy_item const> items, std::vector<streams::staging::download>& later,
                    source_location at) {
  for (std::size_t i = 0; i < items.size();) {
    auto const& item = items[i];
    // Neighbours between the same devices share one wait at each end.
    if (item.bytes && between::concerns(plans[i])) {
      i += between_devices(r, plans.subspan(i), stream, items.subspan(i), at);
      continue;
    }
    if (item.bytes)
      later.push_back(carry_out(r, plans[i], stream, {item.dst, item.src, item.bytes}, at));
    ++i;
  }
}

}  // namespace
}  // namespace peer

std::string_view name_of(copy_route by) noexcept {
  return base::name_in({"automatic", "same_device", "engine", "peer", "staged", "host", "striped"}, by);
}

stamp copy(void* dst, void const* src, size_t bytes, blocking b, source_location at) {
  return peer::copy_one(streams::current_runtime(at), nullptr, {dst, src, bytes}, b, at);
}

stamp copy(stream_ref s, void* dst, void const* src, size_t bytes, blocking b, source_location at) {
  auto& stream = streams::worker_or_throw(s, "copy", at);
  streams::named_work const named(stream);
  return peer::copy_one(stream.owner(), &stream, {dst, src, bytes}, b, at);
}

stamp copy(stream_ref s, std::span<copy_item const> items, blocking b, source_location at) {
  auto& stream = streams::worker_or_throw(s, "copy", at);
  streams::named_work const named(stream);
  auto& r = stream.owner();
  streams::call_under_way const marked;  // before it asks for a spill
  std::vector<void const*> ends;         // without spills no pool has to be woken for them
  if (r.part_if_made<streams::spills>()) [[unlikely]] {
    for (auto const& item : items)
      ends.push_back(item.dst), ends.push_back(item.src);
  }
  streams::awake const held(r, "copy", &stream, ends, at);
  streams::copy_in_parts const whole;
  if (peer::fast_copies all; all.find(r, stream, items, at)) [[likely]]
    return peer::copy_fast(r, all, stream, items, b, at);
  std::vector<peer::plan> const plans = peer::plan_each(r, stream, items, at);
  bool const host_waits = b == blocking::yes && peer::is_of_host(plans, items);
  std::vector<streams::staging::download> later;
  later.reserve(items.size());
  try {
    peer::carry_out_each(r, plans, stream, items, later, at);
    // The last plan is for an error's text.
    return peer::finish(r, plans.empty() ? peer::plan{} : plans.back(), stream, host_waits, at);
  } catch (...) {
    // The caller of a blocking copy may access all host memory at once, so the engine's work is waited for.
    // After cancel() no host thread writes to the caller's memory.
    if (host_waits)
      static_cast<void>(r.machine().synchronize_stream(stream.device(), stream.handle()));
    for (auto const& one : later)
      one.cancel();
    throw;
  }
}

stamp fill(void* dst, std::byte value, size_t bytes, source_location at) {
  return peer::fill(streams::current_runtime(at), nullptr, dst, value, bytes, at);
}

stamp fill(stream_ref s, void* dst, std::byte value, size_t bytes, source_location at) {
  auto& stream = streams::worker_or_throw(s, "fill", at);
  streams::named_work const named(stream);
  return peer::fill(stream.owner(), &stream, dst, value, bytes, at);
}

route_choice explain_copy(void const* dst, void const* src, size_t bytes, source_location at) {
  if (bytes == 0)
    return {copy_route::automatic, "nothing to copy"};
  auto const p = peer::look(streams::current_runtime(at), {const_cast<void*>(dst), src, bytes}, at);
  return {p.by, p.reason};
}

route_guard::route_guard(copy_route by) : found_(std::exchange(peer::settings().by, by)) {}
route_guard::~route_guard() {
  peer::settings().by = found_;
}

}  // namespace weir
