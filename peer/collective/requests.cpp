// A rank's calls as requests: what can be refused without the other ranks, and the marks of their memory.
// Threads: each rank by one thread at a time.
#include <algorithm>

#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/api/known_range.h"
#include "streams/api/spills.h"

namespace weir::peer {

namespace {

void require_reducible(dtype type, std::string_view operation, source_location at) {
  if (!reducible(type))
    throw not_supported(std::string(operation), "elements of " + std::string(weir::name_of(type)),
                        "Reduce float32, float64, float16, bfloat16, int8, uint8, int32 or int64", at, error_id{264});
}

void require_rank(int rank, int ranks, std::string_view operation, source_location at, std::string_view role = "root") {
  if (rank < 0 || rank >= ranks)
    throw invalid_use(std::string(operation), base::text(role, " ", rank, " of ", ranks, " ranks"),
                      "Ranks count from 0 to " + std::to_string(ranks - 1), at, error_id{265});
}

void require_other_rank(int other, int own, int ranks, std::string_view operation, source_location at) {
  require_rank(other, ranks, operation, at, "rank");
  if (other == own)
    throw invalid_use(std::string(operation), base::text("rank ", own, " names itself"),
                      "Pass another rank, or use weir::copy", at, error_id{438});
}

void require_one_type(device_span out, device_span in, std::string_view operation, source_location at) {
  if (out.dtype != in.dtype)
    throw invalid_use(std::string(operation),
                      base::text("out and in are of ", weir::name_of(out.dtype), " and ", weir::name_of(in.dtype)),
                      "Use one element type for both", at, error_id{266});
}

std::uintptr_t first_byte(device_span s) {
  return reinterpret_cast<std::uintptr_t>(s.data);
}
std::uintptr_t byte_count(device_span s) {
  return static_cast<std::uintptr_t>(s.count) * size_of(s.dtype);
}
bool lie_apart(device_span a, device_span b) {
  return first_byte(a) + byte_count(a) <= first_byte(b) || first_byte(b) + byte_count(b) <= first_byte(a);
}

// Throws: invalid_use unless all ranks' parts make `whole`, and `part` is the rank's slice or lies apart.
void require_slice_or_apart(device_span whole, device_span part, int rank, int ranks, std::string_view operation,
                            source_location at) {
  std::string const op(operation);
  require_one_type(whole, part, operation, at);
  std::int64_t product = 0;
  if (__builtin_mul_overflow(part.count, static_cast<std::int64_t>(ranks), &product) || product != whole.count)
    throw invalid_use(op,
                      base::text("parts of ", part.count, " elements from ", ranks, " ranks do not make ", whole.count),
                      "Pass one part for each rank", at, error_id{267});
  bool const is_slice = first_byte(part) == first_byte(whole) + static_cast<std::uintptr_t>(rank) * byte_count(part);
  if (!is_slice && !lie_apart(whole, part))
    throw invalid_use(op,
                      base::text("the part at ", base::address_text(part.data), " overlaps the whole at ",
                                 base::address_text(whole.data), ", and is not rank ", rank, "'s slice of it"),
                      "Pass that slice, or memory that does not overlap", at, error_id{268});
}

}  // namespace

collective_request asking::all_reduce(device_span what, reduce_op how) const {
  require_reducible(what.dtype, "all_reduce", at);
  return {collective::all_reduce, what.dtype, how, 0, what.count, what.data, what.data};
}

collective_request asking::broadcast(device_span what, int root) const {
  require_rank(root, ranks, "broadcast", at);
  return {collective::broadcast, what.dtype, reduce_op::sum, root, what.count, what.data, what.data};
}

collective_request asking::scatter(device_span out, device_span in, int root) const {
  require_rank(root, ranks, "scatter", at);
  bool const mine = root == rank;
  if (mine)
    require_slice_or_apart(in, out, rank, ranks, "scatter", at);
  return {collective::scatter, out.dtype, reduce_op::sum, root, out.count, mine ? in.data : nullptr, out.data};
}

collective_request asking::gather(device_span out, device_span in, int root) const {
  require_rank(root, ranks, "gather", at);
  bool const mine = root == rank;
  if (mine)
    require_slice_or_apart(out, in, rank, ranks, "gather", at);
  return {collective::gather, in.dtype, reduce_op::sum, root, in.count, in.data, mine ? out.data : nullptr};
}

collective_request asking::all_gather(device_span out, device_span in) const {
  require_slice_or_apart(out, in, rank, ranks, "all_gather", at);
  return {collective::all_gather, in.dtype, reduce_op::sum, 0, in.count, in.data, out.data};
}

collective_request asking::reduce_scatter(device_span out, device_span in, reduce_op how) const {
  require_reducible(in.dtype, "reduce_scatter", at);
  require_slice_or_apart(in, out, rank, ranks, "reduce_scatter", at);
  return {collective::reduce_scatter, in.dtype, how, 0, out.count, in.data, out.data};
}

collective_request asking::all_to_all(device_span out, device_span in) const {
  require_one_type(out, in, "all_to_all", at);
  if (out.count != in.count || in.count % ranks != 0)
    throw invalid_use("all_to_all",
                      base::text("in of ", in.count, " and out of ", out.count, " elements for ", ranks, " ranks"),
                      "Pass equal counts, a multiple of the number of ranks", at, error_id{435});
  return {collective::all_to_all, in.dtype, reduce_op::sum, 0, in.count / ranks, in.data, out.data};
}

collective_request asking::send(device_span in, int to, std::string_view operation) const {
  require_other_rank(to, rank, ranks, operation, at);
  return {collective::send, in.dtype, reduce_op::sum, to, in.count, in.data, nullptr};
}

collective_request asking::receive(device_span out, int from, std::string_view operation) const {
  require_other_rank(from, rank, ranks, operation, at);
  return {collective::receive, out.dtype, reduce_op::sum, from, out.count, nullptr, out.data};
}

void use_on(clock::stream_clock& stream, device_span what, std::string_view operation, std::string_view operand,
            source_location at) {
  std::string const op(operation);
  auto const role = [&] { return base::text(operand, " of ", what.count, " ", weir::name_of(what.dtype), " at"); };
  auto const named = [&] { return role() + " " + base::address_text(what.data); };
  if (what.count < 0)
    throw invalid_use(op, named() + ": a negative count", "Pass a number of elements, 0 or more", at, error_id{259});
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::size_t>(what.count), size_of(what.dtype), &bytes))
    throw invalid_use(op, named() + ": the number of bytes overflows", "Pass a number of elements", at, error_id{260});
  if (bytes == 0)
    return;
  // the_end: the pool stays awake after let_go(), too. Another rank's thread may enqueue the work later.
  if (auto* const pools = stream.owner().part_if_made<streams::spills>()) [[unlikely]] {
    void const* const address = what.data;
    pools->hold(operation, &stream, {&address, 1}, at, streams::spills::until::the_end);
    pools->let_go();
  }
  using streams::known_range;
  auto const range = known_range::of(stream.owner(), what.data, bytes);
  bool const known = range.require_inside(operation, role(), at).is == known_range::verdict::inside;
  int device = range.device;
  if (!known) {  // the program's own driver memory
    auto const found = stream.owner().machine().find(what.data);
    require(found.is, operation, named(), "Pass memory that the driver knows", at);
    if (found.value.in == driver::where::device)
      device = found.value.device;
  }
  if (device != stream.device()) {
    std::string const whose =
        device < 0 ? "not memory of " : "memory of " + base::gpu_name(device) + ", the rank's device is ";
    throw invalid_use(op, named() + " is " + whose + base::gpu_name(stream.device()),
                      "Pass memory of the rank's device, from weir::allocate, a buffer or a tensor", at, error_id{261});
  }
  // The block's own stream needs no mark.
  if (range.memory && range.block.home != &stream)
    range.memory->record_use(what.data, stream, at);
}

namespace {

struct used {  // memory of one member
  std::uintptr_t begin, end;
  bool writes;
  std::size_t member;
};

std::vector<used> memory_of(requests all, std::size_t ranks) {
  std::vector<used> memory;
  memory.reserve(2 * all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto const touches = all[i].touches(ranks);
    for (driver::touch const& t : std::span<driver::touch const>(touches))
      memory.push_back({t.at, t.at + t.bytes, t.writes, i});
  }
  std::sort(memory.begin(), memory.end(), [](used const& a, used const& b) { return a.begin < b.begin; });
  return memory;
}

// Checks different members against each other, and the `in` of an all_to_all against its `out`. Any other
// member's own two are checked before: require_slice_or_apart() lets the rank's slice alone overlap.
void require_apart(requests all, std::size_t ranks, std::span<source_location const> from) {
  if (all.size() == 1 && all[0].what != collective::all_to_all)
    return;
  std::vector<used> const memory = memory_of(all, ranks);
  for (auto a = memory.begin(); a != memory.end(); ++a) {
    for (auto b = a + 1; b != memory.end() && b->begin < a->end; ++b) {
      bool const is_checked = a->member == b->member && all[a->member].what != collective::all_to_all;
      bool const both_read = !a->writes && !b->writes;
      if (is_checked || both_read)
        continue;
      // The member that was asked for later is refused.
      used const &first = a->member < b->member ? *a : *b, &second = a->member < b->member ? *b : *a;
      auto const text = [&](used const& its) {
        std::string const role = all.size() == 1 ? "" : base::text(" of ", all[its.member].of_one());
        return base::text(its.writes ? "out" : "in", role, " at ", base::address_text(its.begin));
      };
      throw invalid_use(std::string(name_of(all)), text(first) + " overlaps " + text(second),
                        "Pass memory that does not overlap", from[second.member], error_id{436});
    }
  }
}

}  // namespace

void use_on(clock::stream_clock& on, requests all, int rank, int ranks, std::span<source_location const> from) {
  bool const is_pair = name_of(all) == "send_receive";
  for (std::size_t i = 0; i < all.size(); ++i) {
    collective_request const& r = all[i];
    std::string_view const operation = is_pair ? "send_receive" : name_of(r.what);
    bool const in_place = r.what == collective::all_reduce || r.what == collective::broadcast;
    if (in_place) {
      use_on(on, {r.out, r.count, r.type}, operation, "the buffer", from[i]);
      continue;
    }
    // Of scatter the root alone reads, and of gather it alone writes.
    bool const is_root = r.root == rank;
    bool const reads = r.what != collective::receive && (r.what != collective::scatter || is_root);
    bool const writes = r.what != collective::send && (r.what != collective::gather || is_root);
    auto const times = static_cast<std::int64_t>(ranks);
    if (reads)
      use_on(on, {const_cast<void*>(r.in), r.reads_all() ? r.count * times : r.count, r.type}, operation, "in",
             from[i]);
    if (writes)
      use_on(on, {r.out, r.writes_all() ? r.count * times : r.count, r.type}, operation, "out", from[i]);
  }
  require_apart(all, static_cast<std::size_t>(ranks), from);
}

}  // namespace weir::peer
