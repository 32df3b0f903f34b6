// weir/observe.h: memory as it lies, and the file that PyTorch's viewer opens.
// Threads: any.
#include <algorithm>
#include <boost/unordered/unordered_flat_map.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/memory/allocator.h"
#include "runtime/observe/history.h"
#include "runtime/report/snapshot.h"
#include "streams/context.h"
#include "weir/device.h"

namespace weir {
namespace {

block_state state_of(memory::mapped_range::use u) noexcept {
  switch (u) {
    case memory::mapped_range::use::live: return block_state::active_allocated;
    case memory::mapped_range::use::pending: return block_state::active_pending_free;
    case memory::mapped_range::use::free: break;
  }
  return block_state::inactive;
}

std::vector<memory_segment> segments_of(runtime::impl& r, int d) {
  memory::device_memory* const all = r.part_if_made<memory::device_memory>();
  memory::allocator const* const a = all ? all->if_made(d) : nullptr;
  if (!a) return {};
  boost::unordered_flat_map<std::uintptr_t, observe::live_block> known;
  for (observe::live_block const& b : observe::history::process().live(static_cast<std::uint32_t>(r.id()), d)) known[b.at] = b;
  std::vector<memory_segment> out;
  for (memory::mapped_range const& range : a->layout()) {
    memory_segment& s = out.emplace_back(memory_segment{range.at, range.bytes, range.stream, range.slots, {}});
    s.blocks.reserve(range.parts.size());
    for (memory::mapped_range::part const& p : range.parts) {
      auto const found = p.is == memory::mapped_range::use::live ? known.find(p.at) : known.end();
      s.blocks.push_back({p.at, p.bytes, p.requested, state_of(p.is), found == known.end() ? here{nullptr, nullptr, 0} : found->second.from});
    }
  }
  return out;
}

std::string_view name_in_trace(observe::action a) noexcept {
  switch (a) {
    case observe::action::alloc: return "alloc";
    case observe::action::free: return "free";
    case observe::action::out_of_memory: return "oom";
    case observe::action::map: return "segment_map";
    case observe::action::unmap: return "segment_unmap";
  }
  return "?";
}

}  // namespace

std::vector<memory_segment> memory_snapshot(device on) {
  runtime::impl& r = streams::current_runtime();
  return segments_of(r, streams::resolve(on, r, "memory_snapshot", here::current()));
}

void dump_memory_snapshot(std::string const& path, here at) {
  runtime::impl& r = streams::current_runtime();
  observe::history& h = observe::history::process();
  auto const scale = h.scale();
  std::int64_t const since_1970 = base::calendar_ns() - base::now_ns();
  std::vector<report::device_snapshot> all;
  std::vector<report::stack_of> stacks;
  for (int d = 0, n = device_count(); d < n; ++d) {
    report::device_snapshot& one = all.emplace_back(report::device_snapshot{d, segments_of(r, d), {}});
    for (observe::event const& e : h.events(static_cast<std::uint32_t>(r.id()), d)) {
      one.trace.push_back({name_in_trace(e.what), e.at, e.bytes, e.stream, (scale(e.ticks) + since_1970) / 1000, {e.file, e.function, e.line}, e.stack});
      if (e.stack) stacks.push_back({e.stack, {}});
    }
  }
  std::sort(stacks.begin(), stacks.end(), [](auto const& a, auto const& b) { return a.number < b.number; });
  stacks.erase(std::unique(stacks.begin(), stacks.end(), [](auto const& a, auto const& b) { return a.number == b.number; }), stacks.end());
  for (report::stack_of& s : stacks) s.frames = h.stack(s.number);
  std::string const bytes = report::snapshot(all, stacks, "weir:" + runtime::current().description());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  if (file) file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())).flush();
  if (!file) throw invalid_use("dump_memory_snapshot", path + ": " + std::strerror(errno), "Name a file in a folder that is there and may be written, on a disk with " + std::to_string(bytes.size()) + " B free", at);
}

}  // namespace weir
