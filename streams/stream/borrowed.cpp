// Tells borrowed streams apart and forgets those that are gone.
// Threads: as borrowed.h. Streams are forgotten under the table's lock, while no thread may still use them.
#include "streams/stream/borrowed.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <tuple>

#include "runtime/base/lasting.h"
#include "streams/stream/by_handle.h"
#include "streams/stream/context.h"
#include "streams/stream/stream_pool.h"

namespace weir::streams {
namespace {

// What one thread borrowed last, of any runtime. Written under the lock of that runtime's table.
struct recent {
  std::array<base::atomic<clock::stream_clock const*>, borrowed_streams::kept_by_a_thread> streams{};
  std::size_t next = 0;

  recent();
  ~recent();
  void keep(clock::stream_clock const& s) noexcept {
    if (streams[(next + streams.size() - 1) % streams.size()].load(base::memory_order_relaxed) == &s)
      return;
    streams[next].store(&s, base::memory_order_relaxed);
    next = (next + 1) % streams.size();
  }
};

base::guarded<std::vector<recent*>>& of_threads() noexcept {
  static base::lasting<base::guarded<std::vector<recent*>>> value;
  return *value;
}
recent::recent() {
  base::no_switch const own_affair;
  of_threads().lock()->push_back(this);
}
recent::~recent() {
  base::no_switch const own_affair;
  std::erase(*of_threads().lock(), this);
}
recent& of_this_thread() {
  static base::per_thread<recent> value;
  return value.get();
}

bool in_use(clock::stream_clock const* s) {
  base::no_switch const own_affair;
  auto const all = of_threads().lock();
  return std::ranges::any_of(*all, [s](recent const* r) {
    return std::ranges::any_of(r->streams, [s](auto const& one) { return one.load(base::memory_order_relaxed) == s; });
  });
}

}  // namespace

borrowed_streams::borrowed_streams(runtime::impl& r) : runtime_(r), clocks_(r.part<clock::clocks>()) {
  contents_.lock()->uncovered.resize(static_cast<std::size_t>(r.device_count()));
}

// Of a captured stream. Returns: its clock if it is registered, on whatever device. Else null, and `device`
// becomes that where the handle was seen before, if it was.
clock::stream_clock* borrowed_streams::known_elsewhere(int& device, driver::identity const& is) {
  for (int d = 0; d < runtime_.device_count(); ++d)
    if (auto* const registered = clocks_.known(d, is.handle))
      return registered;
  auto all = contents_.lock();
  for (int d = 0; d < runtime_.device_count(); ++d)
    if (all->captured.contains(captured_at({d, is.handle})) || all->ids.contains({d, is.handle}))
      device = d;
  return nullptr;
}

void borrowed_streams::refuse_unless_ok(driver::status s, int device, source_location at) {
  if (s.what == driver::code::invalid)
    throw_other_device("borrow_stream", device, at);
  if (!s.ok())
    throw_refusal(s, "borrow_stream", base::gpu_name(device), "Pass the handle of a stream that exists", at);
}

clock::stream_clock* borrowed_streams::look_up(int& device, driver::identity const& is, of whose, bool asked,
                                               streams_gone& gone, source_location at) {
  recent& mine = of_this_thread();
  auto all = contents_.lock();
  auto const at_id = all->by_id.find(is.id);
  bool const is_known = !is.captured && at_id != all->by_id.end() && at_id->second.stream;
  // It is new: the caller asks the driver first, except in a capture, where a stream cannot be asked.
  if (!is_known && !is.captured && !asked)
    return nullptr;
  if (is_known && at_id->second.at.first != device) {
    if (whose != of::any_device)
      throw_other_device("borrow_stream", device, at);
    device = at_id->second.at.first;
  }
  clock::stream_clock* found = nullptr;
  // Without clocks from captures find() has nothing to end or to take over.
  if (is_known && all->captured.empty()) [[likely]] {
    at_id->second.turn = ++all->turn;
    found = at_id->second.stream;
  } else {
    found = &find(*all, device, is, gone);
  }
  mine.keep(*found);  // under the lock: no other thread forgets it any more
  return found;
}

clock::stream_clock& borrowed_streams::named(int device, CUstream_st* native, of whose, source_location at) {
  runtime_.open(device, "borrow_stream", at);
  auto const is = runtime_.machine().identify(device, native);
  refuse_unless_ok(is.is, device, at);
  bool const of_any = whose == of::any_device;
  if (of_any && is.value.captured) {
    if (auto* const registered = known_elsewhere(device, is.value))
      return *registered;
  }
  streams_gone gone;
  clock::stream_clock* found = look_up(device, is.value, whose, false, gone, at);
  if (!found) {
    // It is new. For any device the driver says which. adopt() refuses a stream that is not of `device`.
    if (of_any) {
      auto const its = runtime_.machine().stream_device(device, native);
      refuse_unless_ok(its.is, device, at);
      device = its.value;
      runtime_.open(device, "borrow_stream", at);
      if (auto* const registered = clocks_.known(device, is.value.handle))
        return *registered;
    }
    refuse_unless_ok(runtime_.machine().adopt(device, native).is, device, at);
    found = look_up(device, is.value, whose, true, gone, at);
  }
  found->saw_captured(is.value.captured);
  clock::named_in_call const now(*found);
  // The lane is asked for now: a free that names no stream asks nothing, and finds only a known lane.
  if (is.value.captured) {
    (void)found->lane();
    join_capture_of(*found, at);
  }
  if (found->owes_fence() && !is.value.captured)
    (void)found->fence();
  if (!gone.empty())
    retire(gone);
  return *found;
}

// Without such a stream weir waits for no device until the program names the stream outside of its capture.
void borrowed_streams::join_capture_of(clock::stream_clock& captured, source_location at) try {
  if (clocks_.joined_to(captured))
    return;
  uncaptured_stream const one(*this, captured.device(), at);
  (void)one.stream().join(captured);
} catch (std::exception const&) {}  // no host memory, or no stream

borrowed_streams::uncaptured_stream::uncaptured_stream(borrowed_streams& from, int device, source_location at)
    : from_(from) {
  for (std::size_t next = 0;; ++next) {
    stream_ = from_.take_idle(device, next);
    if (!stream_) {
      auto& pool = from_.runtime_.part<stream_pool>();
      stream_ = &pool.lease(device, driver::stream_kind::independent, priority::normal, at);
      try {
        from_.contents_.lock()->internal.push_back({stream_, true});
      } catch (...) {
        pool.give_back(*stream_);
        throw;
      }
    }
    // A stream may have been given back inside a capture that goes on.
    if (auto const inside = stream_->captured(); !inside.ok() || !inside.value)
      return;
    from_.give_back(*stream_);
  }
}

clock::stream_clock* borrowed_streams::take_idle(int device, std::size_t& next) {
  auto all = contents_.lock();
  for (; next < all->internal.size(); ++next) {
    auto& here = all->internal[next];
    if (here.joins || here.stream->device() != device)
      continue;
    here.joins = true;
    return here.stream;
  }
  return nullptr;
}

void borrowed_streams::give_back(clock::stream_clock const& s) noexcept {
  auto all = contents_.lock();
  std::ranges::find(all->internal, &s, &contents::internal_stream::stream)->joins = false;
}

// With no lock held, because it makes driver calls. None of these can be found any more.
void borrowed_streams::retire(streams_gone const& gone) {
  std::uint64_t wait_for = 0;  // devices, a bit each
  for (auto const& [s, exists, set_aside] : gone) {
    std::optional<clock::named_in_call> named_too;
    if (exists)
      named_too.emplace(*s);  // it is the named stream: retire() may record a last fence there
    bool fence_covers_its_work = false;
    if (set_aside)
      clocks_.set_aside(*s);
    else
      fence_covers_its_work = clocks_.retire(*s);
    if (fence_covers_its_work)
      continue;
    auto all = contents_.lock();
    std::size_t& uncovered = all->uncovered[static_cast<std::size_t>(s->device())];
    ++uncovered;
    if (uncovered >= most)
      wait_for |= std::uint64_t{1} << s->device();
  }
  // Ranks may wait for each other: while collectives are given a wait for the device might not end.
  if (!clocks_.collectives_given().empty())
    return;
  // Streams that ended without a fence leave memory that is free only when all work of the device is done.
  for (; wait_for; wait_for &= wait_for - 1) {
    int const device = std::countr_zero(wait_for);
    if (clocks_.synchronize_device(device).ok())
      contents_.lock()->uncovered[static_cast<std::size_t>(device)] = 0;
  }
}

clock::stream_clock& borrowed_streams::find_captured(contents& all, place here, streams_gone& gone) {
  if (auto const there = all.captured.find(captured_at(here)); there != all.captured.end())
    return *there->second;
  // Captures and streams that end leave their entries, until the stream is named outside of a capture.
  if (all.captured.size() >= most) {
    gone.reserve(gone.size() + all.captured.size());
    std::erase_if(all.captured, [&](auto const& e) {
      if (in_use(e.second))
        return false;
      gone.push_back({.stream = e.second});
      return true;
    });
  }
  auto& made = clocks_.make(here.first, here.second, clock::life::borrowed);
  all.captured.emplace(captured_at(here), &made);
  return made;
}

clock::stream_clock& borrowed_streams::find(contents& all, int device, driver::identity const& is, streams_gone& gone) {
  place const here{device, is.handle};
  if (is.captured)
    return find_captured(all, here, gone);
  gone.reserve(gone.size() + 2);  // so that the pushes below throw nothing
  known& its = all.by_id[is.id];
  its.turn = ++all.turn;
  its.at = here;
  auto const inside = all.captured.find(captured_at(here));
  if (!its.stream) {
    bool const has_name_from_capture = inside != all.captured.end();
    its.stream = has_name_from_capture ? inside->second : &clocks_.make(device, is.handle, clock::life::borrowed);
    if (has_name_from_capture)
      all.captured.erase(inside);
    if (is.handle != driver::stream_handle::per_thread) {  // of each thread another stream
      std::uint64_t& last = all.ids.try_emplace(here, is.id).first->second;
      // The stream that had this handle is gone. The new id comes first: forget() drops a place that has the old one.
      if (std::uint64_t const former = last; former != is.id) {
        last = is.id;
        forget(all, former, gone);
      }
    }
    // Rarely, because it looks at every known stream.
    if (all.by_id.size() > std::max(most, all.after_look + most / 2))
      forget_some(all, device, gone);
  } else if (inside != all.captured.end()) {  // it has two clocks: that of its capture ends
    gone.push_back({.stream = inside->second, .exists = true});
    all.captured.erase(inside);
  }
  return *its.stream;
}

// Requires: room in `gone`
void borrowed_streams::forget(contents& all, std::uint64_t id, streams_gone& gone, bool set_aside) noexcept {
  auto const at = all.by_id.find(id);
  if (at == all.by_id.end())
    return;
  if (at->second.stream)
    gone.push_back({.stream = at->second.stream, .set_aside = set_aside});
  if (auto const last = all.ids.find(at->second.at); last != all.ids.end() && last->second == id)
    all.ids.erase(last);
  all.by_id.erase(at);
}

// Half of those that nothing needs. If few are such, also half of those that marked blocks wait for.
void borrowed_streams::forget_some(contents& all, int device, streams_gone& gone) {
  bool const too_many = all.by_id.size() > most_marked;
  forget_half(all, device, gone, false);
  if (too_many && all.by_id.size() > most_marked / 2)
    forget_half(all, device, gone, true);
}

// First what owes no fence, and what was named longest ago. set_aside: of those that marked blocks wait for.
void borrowed_streams::forget_half(contents& all, int device, streams_gone& gone, bool set_aside) {
  std::vector<std::tuple<bool, std::uint64_t, std::uint64_t>> oldest;  // owes a fence, turn, id
  for (auto const& [id, its] : all.by_id) {
    bool const is_named_now = its.turn == all.turn;
    if (its.at.first != device || is_named_now || !its.stream || its.stream->has_blocks())
      continue;
    bool const marked = !its.stream->may_be_forgotten();
    if (marked == set_aside && !in_use(its.stream))
      oldest.emplace_back(!its.stream->is_fenced(), its.turn, id);
  }
  if (set_aside && !oldest.empty())
    (void)clocks_.rest_of(device);  // set_aside() requires it
  std::ranges::sort(oldest);
  oldest.resize((oldest.size() + 1) / 2);
  gone.reserve(gone.size() + oldest.size());
  for (auto const& [owes, turn, id] : oldest)
    forget(all, id, gone, set_aside);
  all.after_look = all.by_id.size();
}

}  // namespace weir::streams
