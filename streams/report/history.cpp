// weir/observe.h: memory use over time and by source line.
// Threads: any; a tracker belongs to one thread.
#include "runtime/observe/history.h"

#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdio>
#include <cstdlib>
#include <ostream>

#include "runtime/options/options.h"
#include "streams/report/recording.h"
#include "streams/stream/context.h"
#include "weir/observe.h"

namespace weir {
namespace {

struct place {  // a device of a runtime
  std::uint32_t runtime;
  int device;
};
place place_of(device on, char const* operation, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  return {static_cast<std::uint32_t>(r.id()),
          on.is_cpu() ? observe::pinned_memory_place : streams::resolve(on, r, operation, at)};
}

std::string_view name_of(observe::action a) noexcept {
  switch (a) {
    case observe::action::alloc: return "alloc";
    case observe::action::free: return "free";
    case observe::action::out_of_memory: return "oom";
    default: return "";  // only in snapshots
  }
}

std::string line_text(source_location const& at) {
  if (!at.file_name())
    return "(not known)";
  std::string_view file = at.file_name();
  // the last two path components identify the file
  if (size_t const cut = file.rfind('/'); cut != file.npos && cut > 0) {
    if (size_t const folder = file.rfind('/', cut - 1); folder != file.npos)
      file.remove_prefix(folder + 1);
  }
  // Line 0: no line of the program, as "the end of its buffer".
  return at.line() ? std::string(file) + ":" + std::to_string(at.line()) : std::string(file);
}

std::string signed_bytes(std::int64_t n) {
  return (n < 0 ? "-" : "+") + bytes_text(static_cast<size_t>(n < 0 ? -n : n));
}

}  // namespace

namespace streams {
namespace {
// Throws: not_supported (a forked child), invalid_use
void require_room(history_options o, source_location at) {
  if (process_was_forked())
    throw_forked("record_memory_history", at);
  constexpr size_t most = size_t{1} << 32;  // 320 GiB
  if (o.events == 0 || o.events > most)
    throw invalid_use("record_memory_history", "room for " + std::to_string(o.events) + " events",
                      o.events ? "Ask for 4294967296 at most; one takes 80 B" : "Ask for at least 1", at,
                      error_id{217});
}
}  // namespace

void record_history_if_off(history_options o, source_location at) {
  require_room(o, at);
  observe::history::process().start_if_off(o.events, o.stacks);
}
}  // namespace streams

void record_memory_history(history_options o, source_location at) {
  streams::require_room(o, at);
  observe::history::process().start(o.events, o.stacks);
}
void stop_memory_history() {
  observe::history::process().stop();
}

std::vector<memory_event> memory_history(device on, source_location at) {
  place const its = place_of(on, "memory_history", at);
  auto& h = observe::history::process();
  auto const scale = h.scale();
  std::vector<memory_event> out;
  for (observe::event const& e : h.events(its.runtime, its.device)) {
    if (name_of(e.what).empty())
      continue;
    out.push_back({scale(e.ticks),
                   name_of(e.what),
                   e.at,
                   e.bytes,
                   e.stream,
                   e.thread,
                   {e.file, e.function, e.line},
                   e.stack ? h.stack(e.stack) : std::vector<void const*>{}});
  }
  return out;
}

std::vector<line_statistics> memory_by_line(device on, source_location at) {
  place const its = place_of(on, "memory_by_line", at);
  std::vector<line_statistics> out;
  for (observe::line_sums const& l : observe::history::process().lines(its.runtime, its.device))
    out.push_back({{l.file, l.function, l.line},
                   l.blocks,
                   l.bytes,
                   l.blocks_at_peak,
                   l.bytes_at_peak,
                   l.total_blocks,
                   l.total_bytes});
  std::stable_sort(out.begin(), out.end(), [](auto const& a, auto const& b) {
    return std::max(a.bytes, a.bytes_at_peak) > std::max(b.bytes, b.bytes_at_peak);
  });
  return out;
}

std::string format(std::vector<line_statistics> const& lines) {
  char text[320];
  std::string out;
  auto const row = [&](auto const&... column) {
    std::snprintf(text, sizeof text, "%12s %8s %12s %8s %12s %10s  %s\n", column...);
    out += text;
  };
  row("live", "blocks", "at the peak", "blocks", "allocated", "blocks", "line");
  for (line_statistics const& l : lines)
    row(bytes_text(static_cast<size_t>(l.bytes)).c_str(), std::to_string(l.blocks).c_str(),
        bytes_text(static_cast<size_t>(l.bytes_at_peak)).c_str(), std::to_string(l.blocks_at_peak).c_str(),
        bytes_text(static_cast<size_t>(l.total_bytes)).c_str(), std::to_string(l.total_blocks).c_str(),
        line_text(l.where).c_str());
  return out;
}

struct WEIR_LOCAL memory_tracker::state {
  struct count {
    source_location where;
    std::int64_t blocks = 0, bytes = 0;
  };
  std::ostream& out;
  device on;
  boost::unordered_flat_map<std::string, count> before = {};

  boost::unordered_flat_map<std::string, count> now(source_location at) const {
    boost::unordered_flat_map<std::string, count> all;
    for (line_statistics const& l : memory_by_line(on, at)) {
      count& c = all[line_text(l.where)];
      c.where = l.where, c.blocks += l.blocks, c.bytes += l.bytes;
    }
    return all;
  }
};

memory_tracker::memory_tracker(std::ostream& out, device on, source_location at) : state_(new state{out, on}) {
  streams::record_history_if_off({}, at);
  state_->before = state_->now(at);
}
memory_tracker::~memory_tracker() = default;

void memory_tracker::track(source_location at) {
  auto now = state_->now(at);
  struct change {
    std::string line;
    std::int64_t blocks, bytes;
  };
  std::vector<change> changes;
  std::int64_t bytes = 0, blocks = 0;
  for (auto const& [line, c] : now) {
    auto const known = state_->before.find(line);
    state::count const old = known == state_->before.end() ? state::count{} : known->second;
    std::int64_t const more_blocks = c.blocks - old.blocks, more_bytes = c.bytes - old.bytes;
    bytes += more_bytes, blocks += more_blocks;
    if (more_blocks || more_bytes)
      changes.push_back({line, more_blocks, more_bytes});
  }
  std::sort(changes.begin(), changes.end(),
            [](change const& a, change const& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.line < b.line; });
  state_->out << line_text(at) << ": " << signed_bytes(bytes) << " in " << (blocks < 0 ? "" : "+") << blocks
              << (std::abs(blocks) == 1 ? " block\n" : " blocks\n");
  for (change const& c : changes)
    state_->out << "  " << signed_bytes(c.bytes) << " in " << (c.blocks < 0 ? "" : "+") << c.blocks << " of " << c.line
                << '\n';
  state_->before = std::move(now);
}

}  // namespace weir
