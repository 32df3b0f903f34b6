// Snapshots and their files. The history is a trace in PyTorch's terms: a free is requested, then completed
// when no stream uses it.
#include "streams/report/recording.h"

#include <algorithm>
#include <boost/stacktrace/frame.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "runtime/observe/history.h"
#include "streams/stream/context.h"
#include "weir/device.h"

namespace weir::streams {
namespace {

block_state told_state(memory::mapped_range::use u) noexcept {
  switch (u) {
    case memory::mapped_range::use::live: return block_state::active_allocated;
    case memory::mapped_range::use::pending: return block_state::active_pending_free;
    case memory::mapped_range::use::free: break;
  }
  return block_state::inactive;
}

// Writes entries by time. A free has two entries; the second follows at once, or when the block is reclaimed.
class trace_writer {
 public:
  explicit trace_writer(std::vector<report::trace_entry>& out) : out_(out) {}

  void add(observe::event const& e, std::int64_t us) {
    report::trace_entry one{"", e.at, e.bytes, e.stream, us, {e.file, e.function, e.line}, e.stack};
    switch (e.what) {
      case observe::action::alloc: return put("alloc", one);
      case observe::action::out_of_memory: return put("oom", one);
      case observe::action::map: return put("segment_map", one);
      case observe::action::unmap: return put("segment_unmap", one);
      case observe::action::free: {
        asked_[e.at] = out_.size();
        put("free_requested", one);
        return put("free_completed", one);
      }
      case observe::action::free_pending: return hold(e);
      case observe::action::free_completed: {
        auto const held = held_.find(e.at);
        if (held == held_.end()) {  // the history has lost its free
          one.stream = 0;
          return put("free_completed", one);
        }
        one.bytes = held->second.bytes, one.stream = held->second.stream;
        held_.erase(held);
        return put("free_completed", one);
      }
    }
  }
  void finish() {  // without the entries that hold() took back
    std::erase_if(out_, [](report::trace_entry const& e) { return e.action.empty(); });
  }

 private:
  void put(std::string_view action, report::trace_entry e) {
    e.action = action;
    out_.push_back(e);
  }
  // The free just added is not complete: its second entry is taken back, and comes with free_completed.
  void hold(observe::event const& e) {
    auto const asked = asked_.find(e.at);
    if (asked == asked_.end())
      return;
    report::trace_entry& request = out_[asked->second];
    request.user = e.stream;
    held_[e.at] = request;
    out_[asked->second + 1].action = {};
  }
  std::vector<report::trace_entry>& out_;
  boost::unordered_flat_map<std::uintptr_t, std::size_t> asked_;         // index of the newest free of an address
  boost::unordered_flat_map<std::uintptr_t, report::trace_entry> held_;  // blocks whose free is not complete
};

std::vector<report::frame> named(std::vector<void const*> const& stack) {
  std::vector<report::frame> out;
  for (void const* const p : stack) {
    std::string name = boost::stacktrace::frame(p).name();
    if (name.empty())
      name = base::address_text(p);
    out.push_back({std::move(name), "", 0});
  }
  return out;
}

void add_reserved(runtime::impl& r, int d, std::vector<memory_segment>& out) {
  memory::device_memory* const all = r.part_if_made<memory::device_memory>();
  memory::allocator const* const a = all ? all->if_made(d) : nullptr;
  if (!a)
    return;
  boost::unordered_flat_map<std::uintptr_t, observe::live_block> known;
  for (observe::live_block const& b : observe::history::process().live(static_cast<std::uint32_t>(r.id()), d))
    known[b.at] = b;
  for (memory::mapped_range const& range : a->layout()) {
    memory_segment& s = out.emplace_back(memory_segment{.address = range.at,
                                                        .bytes = range.bytes,
                                                        .stream = range.stream,
                                                        .small = range.slots,
                                                        .blocks = {},
                                                        .readers = range.readers,
                                                        .pool = range.pool});
    s.blocks.reserve(range.parts.size());
    for (memory::mapped_range::part const& p : range.parts) {
      auto const found = p.is == memory::mapped_range::use::live ? known.find(p.at) : known.end();
      s.blocks.push_back({p.at, p.bytes, p.requested, told_state(p.is),
                          found == known.end() ? source_location{nullptr, nullptr, 0} : found->second.from});
    }
  }
}

// Shared memory; the gaps between its blocks are free blocks.
void add_shared(runtime::impl& r, int d, std::vector<memory_segment>& to) {
  auto const* const external = r.part_if_made<observe::external_memory>();
  if (!external)
    return;
  for (auto const& its : external->segments(d)) {
    memory_segment& s = to.emplace_back(memory_segment{
        .address = its.at,
        .bytes = its.bytes,
        .stream = 0,
        .small = false,
        .blocks = {},
        .shared = its.kind == observe::sharing::exported ? memory_sharing::exported : memory_sharing::imported,
        .readers = its.readers});
    std::uintptr_t next = its.at;  // where what is not listed yet begins
    auto const free_until = [&](std::uintptr_t end) {
      if (next < end)
        s.blocks.push_back({next, end - next, 0, block_state::inactive, {nullptr, nullptr, 0}});
    };
    for (auto const& b : its.blocks) {
      free_until(b.at);
      s.blocks.push_back({b.at, b.bytes, b.requested, block_state::active_allocated, b.from});
      next = b.at + b.bytes;
    }
    free_until(its.at + its.bytes);
  }
  std::sort(to.begin(), to.end(), [](auto const& a, auto const& b) { return a.address < b.address; });
}

}  // namespace

std::vector<pool_memory_use> pools_of(runtime::impl& r, int d) {
  memory::device_memory* const all = r.part_if_made<memory::device_memory>();
  memory::allocator const* const a = all ? all->if_made(d) : nullptr;
  return a ? a->by_pool() : std::vector<pool_memory_use>{};
}

std::vector<memory_segment> segments_of(runtime::impl& r, int d) {
  std::vector<memory_segment> out;
  add_reserved(r, d, out);
  add_shared(r, d, out);
  return out;
}

recording take_recording(runtime::impl& r) {
  observe::history& h = observe::history::process();
  auto const scale = h.scale();
  std::int64_t const since_1970 = base::calendar_ns() - base::now_ns();
  recording out;
  std::vector<std::uint32_t> stacks;
  for (int d = 0, n = r.device_count(); d < n; ++d) {
    report::device_snapshot& one = out.devices.emplace_back(
        report::device_snapshot{.device = d, .segments = segments_of(r, d), .trace = {}, .pools = pools_of(r, d)});
    trace_writer trace(one.trace);
    for (observe::event const& e : h.events(static_cast<std::uint32_t>(r.id()), d)) {
      trace.add(e, (scale(e.ticks) + since_1970) / 1000);
      if (e.stack)
        stacks.push_back(e.stack);
    }
    trace.finish();
  }
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  for (std::uint32_t const number : stacks)
    out.stacks.push_back({number, named(h.stack(number))});
  return out;
}

void write_file(std::string const& path, std::string_view bytes, char const* operation, source_location at) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file)
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  if (file)
    return;
  int const why = errno;
  bool const is_full = why == ENOSPC || why == EDQUOT;
  throw invalid_use(operation, path + ": " + std::strerror(why),
                    is_full ? "Name a file on a disk with " + std::to_string(bytes.size()) + " B free"
                            : std::string("Name a file in a folder that is there and may be written"),
                    at, error_id{218});
}

}  // namespace weir::streams

namespace weir {

std::vector<memory_segment> memory_snapshot(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  return streams::segments_of(r, streams::resolve(on, r, "memory_snapshot", at));
}

void dump_memory_snapshot(std::string const& path, source_location at) {
  auto const all = streams::take_recording(streams::current_runtime(at));
  streams::write_file(path, report::snapshot(all.devices, all.stacks, "weir:" + runtime::current(at).description()),
                      "dump_memory_snapshot", at);
}

void dump_memory_page(std::string const& path, std::string const& title, source_location at) {
  auto const all = streams::take_recording(streams::current_runtime(at));
  streams::write_file(
      path,
      report::page(all.devices, all.stacks, title.empty() ? "Memory\n" + runtime::current(at).description() : title),
      "dump_memory_page", at);
}

}  // namespace weir
