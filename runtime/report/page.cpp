// The data of the page: names as JSON, and each device's events as base64 of numbers in 7 bits a byte, which
// page/data.js reads. The initial state is computed backward from now and written as the first events.
#include "runtime/report/snapshot.h"

#include <boost/unordered/unordered_flat_map.hpp>
#include <map>

#include "runtime/base/text.h"

namespace weir::report {

extern std::string_view const page_frame, page_style, page_script;  // page/*, embedded by the build

namespace {

enum class kind : std::uint8_t { alloc, free, ask, settle, map, unmap, oom };  // free: requested and complete at once

std::string plain(std::string_view text) {  // escapes text between tags
  std::string out;
  for (char const c : text)
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

std::string base64(std::string_view bytes) {
  constexpr char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t k = 0; k < 3; ++k)
      three = three << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    // One byte fills two letters, two fill three.
    for (std::size_t k = 0; k < 4; ++k)
      out += i + k > bytes.size() ? '=' : letters[three >> (18 - 6 * k) & 63];
  }
  return out;
}

// The innermost folder, the file and the line.
std::string short_name(std::string_view file, unsigned line) {
  if (std::size_t const cut = file.rfind('/'); cut != file.npos && cut > 0) {
    if (std::size_t const folder = file.rfind('/', cut - 1); folder != file.npos)
      file.remove_prefix(folder + 1);
  }
  return std::string(file) + (line ? ":" + std::to_string(line) : "");
}
constexpr char const* no_line = "(line not known)";
std::string full_name(source_location const& at) {
  if (!at.file_name())
    return no_line;
  return std::string(at.file_name()) + (at.line() ? ":" + std::to_string(at.line()) : "");
}

// Lines of the program, calls and streams, numbered once for all devices. A site is a line and the calls that led to
// it. Calls are a tree, the outermost nearest the root: two stacks share what they have in common outside.
class names {
 public:
  explicit names(std::span<stack_of const> stacks) {
    for (stack_of const& s : stacks)
      stacks_[s.number] = &s;
  }
  std::uint32_t site(source_location const& at, std::uint32_t stack) {
    auto const [found, fresh] = numbers_.try_emplace({at.file_name() ? at.file_name() : "", at.line(), stack},
                                                     static_cast<std::uint32_t>(numbers_.size()));
    if (fresh)
      sites_ += base::text(sites_.empty() ? "[" : ",[", line(at, stack), ',', innermost_call(at, stack), ']');
    return found->second;
  }
  std::uint32_t stream(std::uint64_t id) {
    auto const [found, fresh] = streams_.try_emplace(id, static_cast<std::uint32_t>(streams_.size()));
    if (fresh)
      stream_list_ += (stream_list_.empty() ? "" : ",") + base::json_text(std::to_string(id));
    return found->second;
  }
  std::string json() const {
    return "\"lines\":[" + lines_ + "],\"frames\":[" + frames_ + "],\"calls\":[" + calls_ + "],\"sites\":[" + sites_ +
           "],\"streams\":[" + stream_list_ + "]";
  }

 private:
  std::vector<frame> const* frames_of(std::uint32_t stack) const {
    auto const found = stacks_.find(stack);
    return found == stacks_.end() || found->second->frames.empty() ? nullptr : &found->second->frames;
  }
  // Sites of one line have one number, whichever stacks led there.
  std::uint32_t line(source_location const& at, std::uint32_t stack) {
    std::string name = label(at, stack);
    std::string key = at.file_name() ? base::text(at.file_name(), ':', at.line()) : name;
    auto const [found, fresh] = line_numbers_.try_emplace(std::move(key), line_numbers_.size());
    if (fresh)
      lines_ += (lines_.empty() ? "" : ",") + base::json_text(name);
    return static_cast<std::uint32_t>(found->second);
  }
  std::string label(source_location const& at, std::uint32_t stack) const {
    if (at.file_name())
      return short_name(at.file_name(), at.line());
    auto const* const frames = frames_of(stack);
    return frames ? frames->front().name : no_line;
  }
  // Returns: number of the innermost call plus one; 0: no call is known
  std::size_t innermost_call(source_location const& at, std::uint32_t stack) {
    std::size_t innermost = 0;
    bool const is_known = at.file_name() && at.line();
    bool is_among_frames = false;
    if (auto const* const frames = frames_of(stack)) {
      for (auto f = frames->rbegin(); f != frames->rend(); ++f) {
        innermost = call(innermost, *f);
        is_among_frames |= is_known && f->line == at.line() && f->file == at.file_name();
      }
    }
    if (!is_known || is_among_frames)
      return innermost;
    // The stack lacks the line, which is then the innermost call.
    return call(innermost, {at.function_name() ? at.function_name() : "", at.file_name(), at.line()});
  }
  // Numbers a frame by its text, and a call by its outer call and frame. Calls count from 1. outer 0: none
  std::size_t call(std::size_t outer, frame const& f) {
    std::string text = f.name;
    if (!f.file.empty() && f.file != "??")
      text += "\n  " + f.file;
    if (f.line)
      text += base::text(':', f.line);
    auto const [its_text, new_text] = frame_numbers_.try_emplace(std::move(text), frame_numbers_.size());
    if (new_text)
      frames_ += (frames_.empty() ? "" : ",") + base::json_text(its_text->first);
    auto const [found, fresh] = call_numbers_.try_emplace({outer, its_text->second}, call_numbers_.size() + 1);
    if (fresh)
      calls_ += base::text(calls_.empty() ? "" : ",", outer, ',', its_text->second);
    return found->second;
  }

  boost::unordered_flat_map<std::uint32_t, stack_of const*> stacks_;
  std::map<std::tuple<std::string_view, unsigned, std::uint32_t>, std::uint32_t> numbers_;  // of sites
  std::map<std::string, std::size_t> line_numbers_, frame_numbers_;
  std::map<std::pair<std::size_t, std::size_t>, std::size_t> call_numbers_;  // by the outer call and the frame
  std::map<std::uint64_t, std::uint32_t> streams_;
  std::string lines_, frames_, calls_, sites_, stream_list_;
};

struct block_there {
  std::size_t bytes = 0;
  std::uint64_t stream = 0;
  source_location where{nullptr, nullptr, 0};
  bool given_back = false;
};
// bytes and stream by address; disjoint
using ranges = std::map<std::uintptr_t, std::pair<std::size_t, std::uint64_t>>;

// Removes a range, and cuts the ranges that it overlaps.
void cut(ranges& all, std::uintptr_t at, std::size_t bytes) {
  auto found = all.upper_bound(at);
  if (found != all.begin())
    --found;
  while (found != all.end() && found->first < at + bytes) {
    auto const [from, what] = *found;
    std::uintptr_t const to = from + what.first;
    if (to <= at) {
      ++found;
      continue;
    }
    found = all.erase(found);
    if (from < at)
      all[from] = {at - from, what.second};
    if (to > at + bytes)
      all[at + bytes] = {to - at - bytes, what.second};
  }
}

struct beginning {
  std::map<std::uintptr_t, block_there> blocks;
  ranges mapped;
};
beginning before_the_trace(device_snapshot const& d) {
  beginning b;
  for (memory_segment const& s : d.segments) {
    b.mapped[s.address] = {s.bytes, s.stream};
    for (memory_block const& m : s.blocks) {
      if (m.state == block_state::inactive)
        continue;
      bool const is_live = m.state == block_state::active_allocated;
      b.blocks[m.address] = {.bytes = is_live && m.requested ? m.requested : m.bytes,
                             .stream = s.stream,
                             .where = m.where,
                             .given_back = !is_live};
    }
  }
  // Undoes the events, from the last to the first.
  for (std::size_t i = d.trace.size(); i-- > 0;) {
    trace_entry const& e = d.trace[i];
    if (e.action == "alloc")
      b.blocks.erase(e.at);
    else if (e.action == "free_completed")
      b.blocks[e.at] = {.bytes = e.bytes, .stream = e.stream, .given_back = true};
    else if (e.action == "free_requested")
      b.blocks[e.at] = {.bytes = e.bytes, .stream = e.stream};
    else if (e.action == "segment_map" || e.action == "segment_alloc")
      cut(b.mapped, e.at, e.bytes);
    else if (e.action == "segment_unmap" || e.action == "segment_free")
      b.mapped[e.at] = {e.bytes, e.stream};
  }
  return b;
}

class writer {
 public:
  explicit writer(names& n) : names_(n) {}

  void write(device_snapshot const& d) {
    std::int64_t const first = d.trace.empty() ? 0 : d.trace.front().us;
    beginning const before = before_the_trace(d);
    us_ = first;
    for (auto const& [at, what] : before.mapped)
      range(kind::map, first, at, what.first, what.second);
    for (auto const& [at, b] : before.blocks) {
      take(first, at, b.bytes, b.stream, names_.site(b.where, 0));
      if (b.given_back)
        give(kind::ask, first, at, 0);
    }
    before_ = events_;
    for (std::size_t i = 0; i < d.trace.size(); ++i)
      entry(d.trace[i], i + 1 < d.trace.size() ? &d.trace[i + 1] : nullptr);
    first_ = first;
  }
  // earlier: what lines held in another snapshot of the device, as JSON; null: there is none
  std::string json(int device, std::span<pool_memory_use const> pools, std::string_view earlier) const {
    std::string its;
    for (pool_memory_use const& p : pools)
      its += base::text(its.empty() ? "" : ",", '[', base::json_text(p.name), ',', p.allocated, ',', p.reserved, ',',
                        p.limit, ']');
    return base::text("{\"device\":", device, ",\"pools\":[", its, "],\"before\":", before_, ",\"events\":", events_,
                      ",\"blocks\":", blocks_, ",\"ranges\":", ranges_, ",\"begin_us\":", first_,
                      ",\"earlier\":", earlier, ",\"data\":\"", base64(out_), "\"}");
  }

 private:
  void entry(trace_entry const& e, trace_entry const* next) {
    if (is_written_) {
      is_written_ = false;
      return;
    }
    if (e.action == "alloc")
      return take(e.us, e.at, e.bytes, e.stream, names_.site(e.where, e.stack));
    if (e.action == "oom")
      return no_memory(e);
    if (e.action == "segment_map" || e.action == "segment_alloc")
      return range(kind::map, e.us, e.at, e.bytes, e.stream);
    if (e.action == "segment_unmap" || e.action == "segment_free")
      return range(kind::unmap, e.us, e.at, e.bytes, e.stream);
    if (e.action == "free_requested") {
      // Complete at once: both are one event.
      is_written_ = next && next->action == "free_completed" && next->at == e.at;
      return give(is_written_ ? kind::free : kind::ask, e.us, e.at, e.user);
    }
    if (e.action == "free_completed")
      give(kind::settle, e.us, e.at, 0);
  }
  void take(std::int64_t us, std::uintptr_t at, std::size_t bytes, std::uint64_t stream, std::uint32_t site) {
    if (number_at_.contains(at))
      give(kind::free, us, at, 0);  // its end was not recorded
    event(kind::alloc, us).near(at, block_at_).number(bytes).number(site).number(names_.stream(stream));
    number_at_[at] = blocks_++;
  }
  void give(kind k, std::int64_t us, std::uintptr_t at, std::uint64_t user) {
    auto const found = number_at_.find(at);
    if (found == number_at_.end())
      return;  // an unknown block
    // Counted from the newest block: small numbers take few bytes.
    event(k, us).number(blocks_ - found->second);
    if (k == kind::ask)
      number(user ? names_.stream(user) + 1 : 0);
    // After an ask, its settle still names the block.
    if (k != kind::ask)
      number_at_.erase(found);
  }
  void range(kind k, std::int64_t us, std::uintptr_t at, std::size_t bytes, std::uint64_t stream) {
    event(k, us).near(at, range_at_).number(bytes).number(names_.stream(stream));
    ranges_ += k == kind::map;
  }
  void no_memory(trace_entry const& e) {
    event(kind::oom, e.us).number(e.bytes).number(names_.site(e.where, e.stack)).number(names_.stream(e.stream));
  }

  writer& event(kind k, std::int64_t us) {
    ++events_;
    out_ += static_cast<char>(k);
    std::int64_t const later = std::max<std::int64_t>(us - us_, 0);
    us_ += later;
    return number(static_cast<std::uint64_t>(later));
  }
  // The distance from the last address, with its sign in bit 0: small numbers take few bytes.
  writer& near(std::uintptr_t at, std::uintptr_t& last) {
    auto const away = static_cast<std::int64_t>(at - last);
    last = at;
    return number(static_cast<std::uint64_t>(away) << 1 ^ static_cast<std::uint64_t>(away >> 63));
  }
  writer& number(std::uint64_t n) {
    for (; n >= 128; n >>= 7)
      out_ += static_cast<char>(n | 128);
    out_ += static_cast<char>(n);
    return *this;
  }

  names& names_;
  std::string out_;
  boost::unordered_flat_map<std::uintptr_t, std::uint64_t> number_at_;  // of the block at each address
  std::uint64_t events_ = 0, before_ = 0, blocks_ = 0, ranges_ = 0;     // before_: events that make the initial state
  std::uintptr_t block_at_ = 0, range_at_ = 0;
  std::int64_t us_ = 0, first_ = 0;
  bool is_written_ = false;  // the next entry, with the one before it
};

// Replaces each place in the frame, where they follow in the order of `parts`.
std::string filled(std::string_view frame, std::initializer_list<std::pair<std::string_view, std::string_view>> parts) {
  std::string out;
  for (auto const& [place, text] : parts) {
    std::size_t const at = frame.find(place);
    out += frame.substr(0, at);
    out += text;
    frame.remove_prefix(at + place.size());
  }
  return out += frame;
}

}  // namespace

std::map<std::string, line_use> live_lines(device_snapshot const& d) {
  std::map<std::string, line_use> all;
  for (memory_segment const& s : d.segments) {
    for (memory_block const& b : s.blocks) {
      if (b.state != block_state::active_allocated)
        continue;
      line_use& line = all[b.where.file_name() ? short_name(b.where.file_name(), b.where.line()) : no_line];
      line.bytes += b.requested ? b.requested : b.bytes;
      ++line.blocks;
    }
  }
  return all;
}

namespace {

// The live blocks of a recording, at its beginning or after some of its events.
class live_blocks {
 public:
  struct held {
    std::size_t bytes = 0;
    std::string line;
  };
  explicit live_blocks(device_snapshot const& d) {
    for (auto const& [at, b] : before_the_trace(d).blocks)
      if (!b.given_back)
        add(at, b.bytes, b.where);
  }
  void play(trace_entry const& e) {
    if (e.action != "alloc" && e.action != "free_requested")
      return;
    // Before an allocation, too: a block's end may not have been recorded.
    if (auto const known = all_.find(e.at); known != all_.end()) {
      bytes_ -= known->second.bytes;
      all_.erase(known);
    }
    if (e.action == "alloc")
      add(e.at, e.bytes, e.where);
  }
  std::size_t bytes() const { return bytes_; }
  std::map<std::uintptr_t, held> const& all() const { return all_; }

 private:
  void add(std::uintptr_t at, std::size_t bytes, source_location const& where) {
    all_[at] = {bytes, full_name(where)};
    bytes_ += bytes;
  }
  std::map<std::uintptr_t, held> all_;
  std::size_t bytes_ = 0;
};

}  // namespace

// The lines that hold most, from the state before the recording and its events.
peak_of_recording peak_of(device_snapshot const& d) {
  live_blocks const beginning(d);
  peak_of_recording peak{beginning.bytes(), d.trace.empty() ? 0 : d.trace.front().us, {}};
  std::size_t events_to_peak = 0;
  live_blocks live = beginning;
  for (std::size_t i = 0; i < d.trace.size(); ++i) {
    live.play(d.trace[i]);
    if (live.bytes() <= peak.live)
      continue;
    peak.live = live.bytes(), peak.us = d.trace[i].us;
    events_to_peak = i + 1;
  }
  // Played once more, up to the peak: a copy at each new peak would cost more.
  live = beginning;
  for (std::size_t i = 0; i < events_to_peak; ++i)
    live.play(d.trace[i]);
  for (auto const& [at, h] : live.all()) {
    line_use& line = peak.lines[h.line];
    line.bytes += h.bytes;
    ++line.blocks;
  }
  return peak;
}

namespace {

std::string earlier_json(std::span<device_snapshot const> all, int device) {
  for (device_snapshot const& d : all) {
    if (d.device != device)
      continue;
    std::string out;
    for (auto const& [name, use] : live_lines(d))
      out += base::text(out.empty() ? "[" : ",[", base::json_text(name), ',', use.bytes, ']');
    return '[' + out + ']';
  }
  return all.empty() ? "null" : "[]";
}

}  // namespace

std::string page(std::span<device_snapshot const> devices, std::span<stack_of const> stacks, std::string_view title,
                 page_extras const& more) {
  names all(stacks);
  std::string recordings;
  for (device_snapshot const& d : devices) {
    if (d.trace.empty() && d.segments.empty())
      continue;
    writer w(all);
    w.write(d);
    recordings += (recordings.empty() ? "" : ",\n") + w.json(d.device, d.pools, earlier_json(more.earlier, d.device));
  }
  std::string marks;
  for (page_extras::mark const& m : more.marks)
    marks += base::text(marks.empty() ? "[" : ",[", m.us, ',', base::json_text(m.name), ']');
  std::string const data = "{\"title\":" + base::json_text(title) + ",\"since\":" + base::json_text(more.since) +
                           ",\"marks\":[" + marks + "]," + all.json() + ",\n\"devices\":[" + recordings + "]}";
  return filled(page_frame, {{"<!-- title -->", plain(title.substr(0, title.find('\n')))},
                             {"<!-- style -->", page_style},
                             {"<!-- recording -->", data},
                             {"<!-- script -->", page_script}});
}

}  // namespace weir::report
