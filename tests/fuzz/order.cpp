// Keeps a program's outcome unique: waits for bytes' last use before they are used, unmapped or read.
// Threads: as player.h says.
#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/fuzz/player.h"

namespace weir::fuzz {
namespace {
// bytes of each area that are used and compared, because machines differ in their page sizes
constexpr std::size_t compared = 60 << 10;
}  // namespace

player::where_to player::place(int n, int offset, int twist, std::size_t bytes) {
  switch (twist & 15) {
    case 1:
      return {reinterpret_cast<address>(host_[0]) + 64, 0};  // pageable, or pinned meanwhile
    // perhaps unmapped
    case 2: return {reservations_[0].alive ? reservations_[0].at + reservations_[0].bytes - unit_ : 64, 0};
    case 3: return {~address{0} - 63, 0};  // past the end of the address space
    case 4: return {64, 0};
    default: break;
  }
  if (areas_.empty())
    return {reservations_[1].alive ? reservations_[1].at : 64, 0};
  area const& x = areas_[static_cast<std::size_t>(n) % areas_.size()];
  std::size_t const whole = std::min(x.bytes, compared), room = whole > bytes ? whole - bytes : 0;
  // 5: past the end
  std::size_t const at = (twist & 15) == 5 && !ends_reservation(x)
                             ? x.bytes - bytes / 8 * 4
                             : static_cast<std::size_t>(offset) * 4 % (room + 4) / 4 * 4;
  return {x.at + at, x.device};
}

bool player::ends_reservation(area const& x) const {
  return std::any_of(reservations_.begin(), reservations_.end(),
                     [&](auto const& r) { return r.alive && r.at + r.bytes == x.at + x.bytes; });
}

std::vector<player::area*> player::under(address at, std::size_t bytes) {
  std::vector<area*> found;
  for (area& x : areas_) {
    if (at < x.at + x.bytes && x.at < at + bytes)
      found.push_back(&x);
  }
  return found;
}

driver::event_handle player::tail_of(stream_slot const& s) {
  auto const made = machine_.create_event(s.device, driver::event_kind::order_only);
  if (!made.ok())
    return driver::event_handle::none;
  tails_.emplace_back(s.device, made.value);
  static_cast<void>(machine_.record(s.device, s.handle, made.value));
  return made.value;
}

void player::given(stream_slot& s) {
  using kind = stream_slot::kind;
  if (s.joins == kind::blocking)
    s.held |= legacy_of(s.device).held;
  if (s.joins != kind::legacy)
    return;
  s.held |= s.held_by_ended;
  for (stream_slot const& other : streams_) {
    if (other.alive && other.joins == kind::blocking && other.device == s.device)
      s.held |= other.held;
  }
}

// A machine may let a legacy stream with held work block an unused blocking stream, and vice versa.
std::uint32_t player::holds(stream_slot const& s) const {
  if (s.joins == stream_slot::kind::independent)
    return s.held;
  std::uint32_t all = s.held;
  for (stream_slot const& other : streams_) {
    if (other.joins != stream_slot::kind::independent && other.device == s.device)
      all |= other.held | other.held_by_ended;
  }
  return all;
}

std::vector<player::area*> player::usable(int device) {
  std::vector<area*> all;
  for (area& x : areas_) {
    if (x.of->filled && x.device >= 0 && (x.granted >> device & 1) != 0)
      all.push_back(&x);
  }
  return all;
}

std::uint32_t player::order(std::vector<area*> const& all, int me) {
  std::uint32_t held = 0;
  stream_slot const& mine = streams_[static_cast<std::size_t>(me)];
  for (area* x : all) {
    content& of = *x->of;
    if (of.stream == me)
      continue;
    if (of.stream >= 0) {  // the legacy stream and a blocking one are already ordered: the bytes must show it
      using kind = stream_slot::kind;
      stream_slot& last = streams_[static_cast<std::size_t>(of.stream)];
      bool const joined = (last.joins == kind::legacy && mine.joins == kind::blocking) ||
                          (last.joins == kind::blocking && mine.joins == kind::legacy);
      if (joined && last.device == mine.device)
        continue;
      given(last);  // a record on it
    }
    driver::event_handle const tail = of.stream >= 0 ? tail_of(streams_[static_cast<std::size_t>(of.stream)]) : of.tail;
    if (tail == driver::event_handle::none)
      continue;
    static_cast<void>(machine_.wait(mine.device, mine.handle, tail));
    held |= of.stream >= 0 ? streams_[static_cast<std::size_t>(of.stream)].held : of.held;
  }
  return held;
}

void player::use(std::vector<area*> const& all, int stream) {
  for (area* x : all)
    x->of->stream = stream;
}

bool player::idle(area& x) {
  content& of = *x.of;
  if (of.stream >= 0) {
    stream_slot const& s = streams_[static_cast<std::size_t>(of.stream)];
    return holds(s) == 0 && machine_.synchronize_stream(s.device, s.handle).ok();
  }
  return of.held == 0 && (of.tail == driver::event_handle::none || machine_.synchronize_event(of.tail).ok());
}

// Fresh memory holds any bytes, so it is filled with zero before its first use.
void player::first_bytes(area& x) {
  if (x.of->filled || x.granted == 0)
    return;
  int const by = std::countr_zero(x.granted);
  auto const s = own_[static_cast<std::size_t>(by)];
  x.of->filled = machine_.fill(by, s, reinterpret_cast<void*>(x.at), 0, 4, x.bytes / 4).ok() &&
                 machine_.synchronize_stream(by, s).ok();
}

void player::finish(outcome& out) {
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    if (closed_ >> i & 1)
      out.ends.push_back("gate: " + say(machine_.open_gate(gates_[i])));
  }
  closed_ = 0;
  for (int d = 0; d < may_.devices; ++d)
    out.ends.push_back("synchronize_device: " + say(machine_.synchronize_device(d)));
  std::unique_lock lock(mutex_);
  for (auto const& log : logs_) {
    std::string text = "log";
    for (int x : log)
      text += ' ' + std::to_string(x);
    out.ends.push_back(text);
  }
  out.ends.push_back(std::to_string(inside_) + " of " + std::to_string(given_) +
                     " host functions were refused a call, " + std::to_string(dropped_) + " dropped");
  lock.unlock();
  for (area const& x : areas_) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    auto const add = [&](unsigned char const* at, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    };
    if (x.device < 0) {
      add(reinterpret_cast<unsigned char const*>(x.at), x.bytes);
    } else {
      if (x.granted == 0 || !x.of->filled)
        continue;
      int const by = std::countr_zero(x.granted);
      auto const s = own_[static_cast<std::size_t>(by)];
      std::size_t const n = std::min(x.bytes, compared);
      if (!machine_.copy(by, s, window_, reinterpret_cast<void const*>(x.at), n).ok() ||
          !machine_.synchronize_stream(by, s).ok())
        out.ends.push_back("unreadable");
      add(window_, n);
    }
    out.ends.push_back("bytes " + std::to_string(hash));
  }
}

void player::take_down() {
  for (auto const& s : streams_) {
    if (s.alive && s.joins != stream_slot::kind::legacy)
      static_cast<void>(machine_.destroy_stream(s.device, s.handle));
  }
  for (auto const& e : events_) {
    if (e.alive)
      static_cast<void>(machine_.destroy_event(e.device, e.handle));
  }
  for (auto const& [device, e] : tails_)
    static_cast<void>(machine_.destroy_event(device, e));
  for (area const& x : areas_) {
    bool const segment =
        std::any_of(segments_.begin(), segments_.end(), [&](auto const& g) { return g.alive && g.at == x.at; });
    if (x.device >= 0 && !segment)
      static_cast<void>(machine_.unmap(x.at, x.bytes));
  }
  for (auto const& g : segments_) {
    if (g.alive)
      static_cast<void>(machine_.release_segment(g.device, g.at));
  }
  for (std::size_t i = 0; i < pins_.size(); ++i) {
    if (pins_[i].alive)
      static_cast<void>(machine_.unpin(host_[i]));
  }
  for (auto const& r : reservations_) {
    if (r.alive)
      static_cast<void>(machine_.unreserve(r.at, r.bytes));
  }
  for (auto const& h : handles_) {
    if (h.alive)
      static_cast<void>(machine_.release(h.handle));
  }
  for (std::size_t d = 0; d < own_.size(); ++d)
    static_cast<void>(machine_.destroy_stream(static_cast<int>(d), own_[d]));
}

}  // namespace weir::fuzz
