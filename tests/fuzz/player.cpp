// Plays a program: makes its calls, and orders them so that machines stay comparable.
// Threads: as player.h says.
#include "tests/fuzz/player.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "tests/fuzz/stir.h"

namespace weir::fuzz {

using driver::code;
namespace {
constexpr std::size_t window = 64 << 10, pin_bytes = 16 << 10;
void* pages(std::size_t bytes) {
  return ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
template <class Slots>
auto& slot(Slots& all, int n) {
  return all[static_cast<std::size_t>(n) % all.size()];
}
}  // namespace

std::string difference(program const& p, outcome const& a, outcome const& b) {
  // A copy past a mapping is refused, or overlaps and is skipped: bytes beyond are the machine's choice.
  auto const as_good = [&](std::size_t i) {
    bool const copies = p[i].what == verb::copy || p[i].what == verb::copy_peer;
    return copies &&
           ((a.answers[i] == "invalid" && b.answers[i] == "-") || (a.answers[i] == "-" && b.answers[i] == "invalid"));
  };
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (a.answers[i] != b.answers[i] && !as_good(i))
      return "call " + std::to_string(i) + ", " + std::string(name_of(p[i].what)) + ": " + a.answers[i] + " | " +
             b.answers[i];
  }
  for (std::size_t i = 0; i < std::max(a.ends.size(), b.ends.size()); ++i) {
    std::string const x = i < a.ends.size() ? a.ends[i] : "nothing", y = i < b.ends.size() ? b.ends[i] : "nothing";
    if (x != y)
      return "at the end: " + x + " | " + y;
  }
  return {};
}

player::player(driver::driver& m, limits may) : machine_(m), may_(may), unit_(m.info(0).value.granularity) {
  for (int d = 0; d < may_.devices; ++d) {
    if (!m.open(d).ok())
      continue;
    own_.push_back(m.create_stream(d, driver::stream_kind::independent, 0).value);
  }
  for (int d = 0; d < may_.devices; ++d) {
    // A device's first kernel and its first work on the legacy stream may wait for all held work.
    static_cast<void>(stir(m, d, own_[static_cast<std::size_t>(d)], 0, 0, 0, 0));
    legacy_of(d) = {driver::stream_handle::legacy, d, static_cast<int>(logs_.size()), true, true, 0,
                    stream_slot::kind::legacy,     0};
    logs_.emplace_back();
    static_cast<void>(m.host_function(d, driver::stream_handle::legacy, {[](void*) {}, nullptr, nullptr}));
    static_cast<void>(m.synchronize_device(d));
  }
  for (void*& h : host_)
    h = pages(pin_bytes);
  window_ = static_cast<unsigned char*>(pages(window));
  static_cast<void>(m.pin(window_, window));
}

player::~player() {
  take_down();
  static_cast<void>(machine_.unpin(window_));
  ::munmap(window_, window);
  for (void* h : host_)
    ::munmap(h, pin_bytes);
}

outcome player::play(program const& p) {
  outcome out;
  for (call const& c : p)
    out.answers.push_back(make(c));
  finish(out);
  return out;
}

std::string player::make(call const& c) {
  if (c.what <= verb::peer)
    return memory_call(c);
  if (c.what <= verb::elapsed)
    return stream_call(c);
  return work_call(c);
}

std::string player::say(status s) const {
  return std::string(driver::name_of(s.what));
}
std::string player::settled(status s, std::uint32_t held) const {
  return held == 0 && (s.ok() || s.what == code::not_ready) ? "ok or not ready" : say(s);
}

int player::device_of(int n, int right) const {
  int const twist = n >> 8 & 63;
  return twist == 1               ? -1
         : twist == 2             ? machine_.device_count()
         : twist == 3             ? 99
         : twist > 3 && twist < 8 ? n % may_.devices
                                  : right;
}

std::size_t player::size_of(int n, int twist) const {
  std::size_t const units = 1 + static_cast<std::size_t>(n) % 3;
  switch (twist & 31) {
    case 1: return 0;
    case 2: return units * unit_ - 512;
    case 3: return units * unit_ + 4096;
    default: return units * unit_;
  }
}

// Waits for all work need open gates. The last use of pages completes before they are unmapped.
std::string player::memory_call(call const& c) {
  auto const [a, b, n, offset, d, twist] = c.with;
  range_slot& r = slot(reservations_, a);
  handle_slot& h = slot(handles_, b);
  std::size_t const odd = (twist & 15) == 5 ? 4096 : 0;
  switch (c.what) {
    case verb::reserve: {
      if (r.alive)
        return "-";
      static constexpr std::size_t alignments[] = {0, 0, 1, 3, 4096};
      std::size_t const bytes = size_of(n, twist) * ((twist & 31) > 3 ? 2 : 1);
      std::size_t const alignment = (twist & 31) == 4 ? alignments[static_cast<std::size_t>(d) % 5]
                                    : d % 3           ? 0
                                                      : unit_ << d % 2;
      auto const made = machine_.reserve(bytes, alignment);
      if (made.ok())
        r = {made.value, bytes, 0, true, true}, ++given_addresses_;
      return say(made.is) + (made.ok() && made.value % std::max(alignment, unit_) ? ", not aligned" : "");
    }
    case verb::unreserve: {
      if (!r.alive && !is_unused(r))
        return say(machine_.unreserve(unit_, unit_));
      status const s = machine_.unreserve(r.at + odd, (twist & 31) == 6 ? unit_ : r.bytes);
      if (s.ok())
        r.alive = false, r.gone = given_addresses_;
      return say(s);
    }
    case verb::create: {
      if (h.alive)
        return "-";
      int const device = device_of(d, n % may_.devices);
      std::size_t const bytes = size_of(n, twist);
      auto const made = machine_.create(device, bytes);
      if (made.ok()) {
        h = {made.value, bytes, device, true, true};
        ++given_handles_;
        slot(contents_, b) = std::make_shared<content>();
      }
      return say(made.is);
    }
    case verb::release: {
      if (!stands(h))
        return "-";
      status const s = machine_.release(h.handle);
      if (s.ok())
        h.alive = false, h.gone = given_handles_;
      return say(s);
    }
    case verb::map: {
      if ((!r.alive && !is_unused(r)) || !stands(h))
        return "-";
      address const at = r.at + (r.bytes ? static_cast<std::size_t>(offset) % (r.bytes / unit_) : 0) * unit_ + odd;
      std::size_t const bytes = (twist & 31) < 8 ? size_of(n, twist) : h.bytes;
      status const s = machine_.map(at, bytes, h.handle);
      if (s.ok())
        areas_.push_back({at, bytes, h.device, 0, slot(contents_, b)});
      return say(s);
    }
    case verb::unmap: {
      auto const found = std::find_if(areas_.begin(), areas_.end(), [&](area const& x) {
        return x.device >= 0 && r.at <= x.at && x.at < r.at + r.bytes;
      });
      if (!r.alive && !is_unused(r))
        return "-";
      if (!r.alive || found == areas_.end())
        return say(machine_.unmap(r.at, unit_));
      if (!idle(*found))
        return "-";
      status const s = machine_.unmap(found->at + odd, (twist & 31) == 7 ? found->bytes + unit_ : found->bytes);
      if (s.ok())
        areas_.erase(found);
      return say(s);
    }
    case verb::grant: {
      auto const found = areas_.empty() ? nullptr : &slot(areas_, offset);
      bool const some = found && found->device >= 0;
      if (!some && !r.alive && !is_unused(r))
        return "-";
      int const device = device_of(d, some ? found->device : d % may_.devices);
      address const at = (some ? found->at : r.at) + odd;
      std::size_t const whole = some ? found->bytes : unit_;
      std::size_t const bytes = (twist & 31) == 8 && some && !ends_reservation(*found) ? whole + unit_
                                : (twist & 31) == 9                                    ? 0
                                                                                       : whole;
      status const s = machine_.grant(at, bytes, device);
      for (area& x : areas_) {
        if (!s.ok() || x.at < at || x.at >= at + bytes)
          continue;
        x.granted |= 1u << device;
        first_bytes(x);
      }
      return say(s);
    }
    case verb::create_segment: {
      range_slot& g = slot(segments_, a);
      if (g.alive)
        return "-";
      int const device = device_of(d, n % may_.devices);
      std::size_t const bytes = size_of(n, twist);
      auto const made = machine_.create_segment(device, bytes);
      if (made.ok()) {
        g = {made.value, bytes, device, true, true};
        ++given_addresses_;
        ++given_handles_;
        areas_.push_back({g.at, bytes, device, 1u << device, std::make_shared<content>()});
        first_bytes(areas_.back());
      }
      return say(made.is);
    }
    case verb::release_segment: {
      range_slot& g = slot(segments_, a);
      if (any_held())
        return "-";
      if (!g.alive && !is_unused(g))
        return r.alive ? say(machine_.release_segment(d % may_.devices, r.at)) : "-";
      for (area& x : areas_) {
        if (g.alive && x.at == g.at && !idle(x))
          return "-";
      }
      status const s = machine_.release_segment(device_of(d, g.device), g.at + odd);
      if (s.ok()) {
        std::erase_if(areas_, [&](area const& x) { return x.at == g.at; });
        g.alive = false, g.gone = given_addresses_;
      }
      return say(s);
    }
    case verb::pin: {
      range_slot& p = slot(pins_, a);
      void* const host = slot(host_, a);
      int const kind = twist & 15;
      auto* const at = kind == 1 ? static_cast<char*>(host) + 64 : kind == 2 ? nullptr : static_cast<char*>(host);
      std::size_t const bytes = kind == 3 ? 0 : kind == 4 ? 1000 : pin_bytes;
      status const s = machine_.pin(at, bytes);
      if (s.ok()) {
        p = {reinterpret_cast<address>(host), pin_bytes, -1, true, true};
        std::memset(host, 0, pin_bytes);
        areas_.push_back({p.at, pin_bytes, -1, ~0u, std::make_shared<content>()});
      }
      return say(s);
    }
    case verb::unpin: {
      if (any_held())
        return "-";
      range_slot& p = slot(pins_, a);
      auto* const host = static_cast<char*>(slot(host_, a));
      status const s = machine_.unpin(host + odd);
      if (s.ok()) {
        std::erase_if(areas_, [&](area const& x) { return x.at == p.at; });
        p.alive = false;
      }
      return say(s);
    }
    case verb::find: {
      where_to const w = place(a, offset, (twist & 15) == 5 ? 0 : twist, 1);
      auto const found = machine_.find(reinterpret_cast<void const*>(w.at));
      return say(found.is) + ", " + std::to_string(static_cast<int>(found.value.in)) + " of device " +
             std::to_string(found.value.device);
    }
    default: {
      int const from = device_of(a, a % may_.devices), to = device_of(b, b % may_.devices);
      auto const answer = machine_.peer(from, to);
      return say(answer.is) + (from == to && answer.ok() ? answer.value.access ? ", access" : ", no access" : "");
    }
  }
}

std::string player::stream_call(call const& c) {
  auto const [a, b, n, offset, d, twist] = c.with;
  stream_slot& s = slot(streams_, a);
  event_slot& e = slot(events_, b);
  auto const unusable = [&](auto const& x) { return !x.alive && !(may_.stale_streams && x.ever); };
  bool const legacy = s.joins == stream_slot::kind::legacy;
  int const by = may_.others_streams && !legacy ? device_of(d, s.device) : s.device;
  bool const right = s.alive && by == s.device;
  switch (c.what) {
    case verb::create_stream: {
      if (s.alive)
        return "-";
      int const device = device_of(d, n % may_.devices);
      bool const blocking = (twist >> 9) % 3 == 1;
      auto const made = machine_.create_stream(
          device, blocking ? driver::stream_kind::blocking : driver::stream_kind::independent, offset % 9 - 6);
      if (!made.ok())
        return say(made.is);
      s = {made.value,
           device,
           static_cast<int>(logs_.size()),
           true,
           true,
           0,
           blocking ? stream_slot::kind::blocking : stream_slot::kind::independent,
           0};
      std::lock_guard const lock(mutex_);
      logs_.emplace_back();
      return say(made.is);
    }
    case verb::destroy_stream: {
      if (unusable(s) || legacy)
        return "-";
      driver::event_handle const tail = right ? tail_of(s) : driver::event_handle::none;
      status const said = machine_.destroy_stream(by, s.handle);
      if (!said.ok())
        return say(said);
      for (area& x : areas_) {
        if (x.of->stream == &s - streams_.data())
          *x.of = {-1, tail, s.device, s.held, x.of->filled};
      }
      if (s.joins == stream_slot::kind::blocking)
        legacy_of(s.device).held_by_ended |= s.held;
      s.alive = false;
      return say(said);
    }
    // A machine may let the legacy stream's answer include other streams' work.
    case verb::query_stream:
      return unusable(s) ? "-" : settled(machine_.query_stream(by, s.handle), right && !legacy ? s.held : 0);
    case verb::synchronize_stream:
      return unusable(s) || (right && holds(s)) ? "-" : say(machine_.synchronize_stream(by, s.handle));
    case verb::capturing: {
      if (unusable(s))
        return "-";
      auto const is = machine_.capturing(by, s.handle);
      return say(is.is) + (is.value ? ", captured" : "");
    }
    case verb::create_event: {
      if (e.alive)
        return "-";
      int const device = device_of(d, n % may_.devices);
      auto const made = machine_.create_event(device, static_cast<driver::event_kind>(offset % 4));
      if (made.ok())
        e = {made.value, device, true, true, false, 0};
      return say(made.is);
    }
    case verb::destroy_event: {
      if (unusable(e))
        return "-";
      status const said = machine_.destroy_event(device_of(d, e.device), e.handle);
      if (said.ok())
        e.alive = false;
      return say(said);
    }
    case verb::record: {
      if (unusable(s) || unusable(e))
        return "-";
      if (!may_.others_streams && e.device != s.device && twist % 2)
        return "-";
      status const said = machine_.record(by, s.handle, e.handle);
      if (said.ok()) {
        given(s);
        e.recorded = true, e.held = s.held, e.on = static_cast<int>(&s - streams_.data()), e.turn = ++turns_;
      }
      return say(said);
    }
    case verb::wait: {
      if (unusable(s) || unusable(e))
        return "-";
      status const said = machine_.wait(by, s.handle, e.handle);
      if (said.ok())
        s.held |= e.held, given(s);
      return say(said);
    }
    case verb::query_event: return unusable(e) ? "-" : settled(machine_.query_event(e.handle), e.alive ? e.held : 0);
    case verb::synchronize_event:
      return unusable(e) || (e.alive && e.held) ? "-" : say(machine_.synchronize_event(e.handle));
    default: {
      event_slot const& to = slot(events_, a);
      if (unusable(e) || unusable(to))
        return "-";
      auto const took = machine_.elapsed_ms(e.handle, to.handle);
      bool const forward = e.alive && to.alive && e.on >= 0 && e.on == to.on && e.turn <= to.turn;
      return settled(took.is, e.held | to.held) + (took.ok() && forward && took.value < 0 ? ", before its start" : "");
    }
  }
}

std::string player::work_call(call const& c) {
  auto const [a, b, n, offset, d, twist] = c.with;
  if (c.what == verb::open_gate) {
    driver::gate_handle const g = slot(gates_, a);
    std::uint32_t const bit = 1u << static_cast<std::size_t>(a) % gates_.size();
    status const said = machine_.open_gate(g);
    if (said.ok()) {
      closed_ &= ~bit;
      for (auto& s : streams_)
        s.held &= ~bit, s.held_by_ended &= ~bit;
      for (auto& e : events_)
        e.held &= ~bit;
      for (auto& x : areas_)
        x.of->held &= ~bit;
    }
    return say(said);
  }
  stream_slot& s = slot(streams_, a);
  if (!s.alive && !(may_.stale_streams && s.ever))
    return "-";
  bool const legacy = s.joins == stream_slot::kind::legacy;
  int const me = static_cast<int>(&s - streams_.data()),
            by = may_.others_streams && !legacy ? device_of(d, s.device) : s.device;
  bool const right = s.alive && by == s.device;
  if (c.what == verb::kernel)
    return s.alive ? kernel_call(c, s) : "-";
  if (c.what == verb::graph)
    return s.alive ? graph_call(c, s) : "-";
  if (c.what == verb::hold) {
    if (legacy)
      return "-";  // would hold every stream
    std::uint32_t const bit = 1u << static_cast<std::size_t>(b) % gates_.size();
    if (closed_ & bit)
      return "-";
    auto const made = machine_.hold(by, s.handle);
    if (!made.ok())
      return say(made.is);
    slot(gates_, b) = made.value;
    closed_ |= bit;
    s.held |= bit;
    given(s);
    return say(made.is);
  }
  if (c.what == verb::host_function) {
    struct note {
      player* in;
      int log, number;
    };
    ++given_;
    if (right)
      given(s);
    auto* const state = new note{this, s.log, given_};
    return say(machine_.host_function(
        by, s.handle,
        {[](void* p) {
           auto const& x = *static_cast<note*>(p);
           bool const refused = x.in->machine_.query_event(driver::event_handle::none).what == code::not_permitted;
           std::lock_guard const lock(x.in->mutex_);
           x.in->logs_[static_cast<std::size_t>(x.log)].push_back(x.number);
           x.in->inside_ += refused;
         },
         [](void* p) {
           auto* const x = static_cast<note*>(p);
           {
             std::lock_guard const lock(x->in->mutex_);
             ++x->in->dropped_;
           }
           delete x;
         },
         state}));
  }
  bool const odd_place = (twist & 15) == 0;
  std::size_t const bytes =
      odd_place && (twist >> 4) % 4 == 0 && right ? 0 : 4 * (1 + static_cast<std::size_t>(n) % 1024);
  where_to const to = place(b, offset, odd_place ? twist >> 4 : 0, bytes),
                 from = place(n, offset * 7, odd_place ? twist >> 5 : 0, bytes);
  if (to.at < from.at + bytes && from.at < to.at + bytes && c.what != verb::fill)
    return "-";
  bool const peers = c.what == verb::copy_peer;
  int const to_device = peers ? device_of(offset, to.device < 0 ? s.device : to.device) : s.device,
            from_device = peers ? device_of(twist, from.device < 0 ? s.device : from.device) : s.device;
  if (!may_.others_segments &&
      (of_others_segment(to, to_device) || (c.what != verb::fill && of_others_segment(from, from_device))))
    return "-";
  auto touched = under(to.at, bytes);
  if (c.what != verb::fill) {
    for (area* x : under(from.at, bytes))
      touched.push_back(x);
  }
  if (touched.size() == 2 && touched[0]->of == touched[1]->of)
    return "-";  // mapped twice: the same bytes
  if (right)
    s.held |= order(touched, me), given(s);
  auto* const dst = reinterpret_cast<void*>(to.at);
  auto const* const src = reinterpret_cast<void const*>(from.at);
  status said;
  if (c.what == verb::copy) {
    said = machine_.copy(by, s.handle, dst, src, bytes);
  } else if (c.what == verb::copy_peer) {
    said = machine_.copy_peer(by, s.handle, dst, to_device, src, from_device, bytes);
  } else {
    int const width = odd_place ? n % 5 : 4;
    said = machine_.fill(by, s.handle, dst, static_cast<std::uint32_t>(n) * 0x01010101u, width, bytes / 4);
  }
  if (said.ok() && bytes)
    use(touched, me);
  return say(said);
}

bool player::of_others_segment(where_to const& place, int device) const {
  return std::any_of(segments_.begin(), segments_.end(), [&](range_slot const& g) {
    return g.ever && g.device != device && place.at >= g.at && place.at < g.at + g.bytes;
  });
}

}  // namespace weir::fuzz
