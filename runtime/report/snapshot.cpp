// Rules of the viewer, which replays a trace backward from the segments: a free is requested and then
// completed, at once or much later; addresses in a trace lie in segments of that time; lists of more than a
// thousand items are written in parts.
#include "runtime/report/snapshot.h"

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>
#include <tuple>

#include "runtime/report/pickle.h"

namespace weir::report {
namespace {

class snapshot_writer {
 public:
  explicit snapshot_writer(std::span<stack_of const> stacks) {
    for (stack_of const& s : stacks)
      stacks_[s.number] = &s;
  }

  std::string write(std::span<device_snapshot const> all, std::string_view settings) && {
    out_.open_dict();
    out_.key("segments").open_list();
    for (device_snapshot const& d : all)
      for (memory_segment const& s : d.segments)
        segment(d.device, s);
    out_.close_list();
    out_.key("device_traces").open_list();
    for (device_snapshot const& d : all)
      trace(d);
    out_.close_list();
    out_.key("allocator_settings").open_dict();
    out_.key("PYTORCH_CUDA_ALLOC_CONF").text(settings);
    out_.key("expandable_segments").truth(true);
    out_.close_dict();
    out_.close_dict();
    return std::move(out_).finish();
  }

 private:
  void item(std::size_t index) {
    if (index != 0 && index % 1000 == 0)
      out_.next_thousand();
  }
  pickle& field(std::string_view name, std::uint64_t value) {
    return out_.key(name).number(static_cast<std::int64_t>(value));
  }

  void segment(int device, memory_segment const& s) {
    item(segments_++);
    std::uint64_t live = 0, pending = 0, requested = 0;
    for (memory_block const& b : s.blocks) {
      if (b.state == block_state::active_allocated)
        live += b.bytes;
      if (b.state == block_state::active_pending_free)
        pending += b.bytes;
      requested += b.requested;
    }
    out_.open_dict();
    field("device", static_cast<std::uint64_t>(device));
    field("address", s.address);
    field("total_size", s.bytes);
    field("allocated_size", live);
    field("active_size", live + pending);
    field("requested_size", requested);
    field("stream", s.stream);
    out_.key("segment_type").text(s.small ? "small" : "large");
    // (0, 1): exported, (0, 2): imported, (n, 0): pool n
    out_.key("segment_pool_id").pair(static_cast<std::int64_t>(s.pool), static_cast<std::int64_t>(s.shared));
    out_.key("is_expandable").truth(true);
    out_.key("frames");
    frames({nullptr, nullptr, 0}, 0);
    out_.key("blocks").open_list();
    for (std::size_t i = 0; i < s.blocks.size(); ++i) {
      item(i);
      memory_block const& b = s.blocks[i];
      out_.open_dict();
      field("address", b.address);
      field("size", b.bytes);
      field("requested_size", b.requested);
      out_.key("state").text(b.state == block_state::active_allocated ? "active_allocated"
                             : b.state == block_state::inactive       ? "inactive"
                                                                      : "active_pending_free");
      out_.key("frames");
      frames(b.where, 0);
      out_.close_dict();
    }
    out_.close_list();
    out_.close_dict();
  }

  void trace(device_snapshot const& d) {
    out_.open_list();
    for (std::size_t i = 0; i < d.trace.size(); ++i)
      entry(i, d.trace[i]);
    out_.close_list();
  }
  void entry(std::size_t index, trace_entry const& e) {
    item(index);
    out_.open_dict();
    out_.key("action").text(e.action);
    field(e.action == "oom" ? "device_free" : "addr", e.at);
    field("size", e.bytes);
    field("stream", e.stream);
    field("time_us", static_cast<std::uint64_t>(e.us));
    if (e.user)
      field("still_used_by", e.user);
    out_.key("frames");
    frames(e.where, e.stack);
    out_.close_dict();
  }

  void frames(source_location const& where, std::uint32_t stack) {
    auto const [at, fresh] = lists_.try_emplace({where.file_name(), where.line(), stack}, 0u);
    if (!fresh) {
      out_.again(at->second);
      return;
    }
    out_.open_list();
    if (where.file_name())
      frame(where.function_name() ? where.function_name() : "", where.file_name(), where.line());
    if (auto const found = stacks_.find(stack); found != stacks_.end()) {
      for (report::frame const& f : found->second->frames)
        frame(f.name, f.file, f.line);
    }
    out_.close_list();
    at->second = out_.remember();
  }
  void frame(std::string_view name, std::string_view file, unsigned line) {
    out_.open_dict();
    out_.key("name").text(name);
    out_.key("filename").text(file);
    field("line", line);
    out_.close_dict();
  }

  struct list_key {
    char const* file;
    unsigned line;
    std::uint32_t stack;
    friend bool operator==(list_key const&, list_key const&) = default;
    friend std::size_t hash_value(list_key const& k) noexcept {
      return boost::hash<std::tuple<char const*, unsigned, std::uint32_t>>{}({k.file, k.line, k.stack});
    }
  };
  pickle out_;
  std::size_t segments_ = 0;
  boost::unordered_flat_map<std::uint32_t, stack_of const*> stacks_;
  boost::unordered_flat_map<list_key, std::uint32_t, boost::hash<list_key>> lists_;
};

}  // namespace

std::string snapshot(std::span<device_snapshot const> all, std::span<stack_of const> stacks,
                     std::string_view settings) {
  return snapshot_writer(stacks).write(all, settings);
}

}  // namespace weir::report
