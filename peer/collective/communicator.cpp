// The communicator: checks a call against its memory and the other ranks, and passes it to the carrier.
// Threads: each rank by one thread at a time; abort by any.
#include <algorithm>

#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/api/known_range.h"
#include "streams/api/spills.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"

namespace weir {
std::string_view name_of(reduce_op how) noexcept {
  return base::name_in({"sum", "average", "min", "max"}, how);
}

namespace peer {

std::string_view name_of(collective what) noexcept {
  return base::name_in({"all_reduce", "broadcast", "all_gather", "reduce_scatter", "scatter", "gather", "all_to_all",
                        "send", "receive", "register_pool"},
                       what);
}

std::string_view name_of(requests all) noexcept { return all.size() > 1 ? "send_receive" : name_of(all[0].what); }

std::string text_of(requests all) {
  std::string text;
  for (collective_request const& r : all) text += (text.empty() ? "" : " and ") + r.text();
  return text;
}

bool collective_request::matches(collective_request const& other) const noexcept {
  return what == other.what && type == other.type && count == other.count && (!reduces() || how == other.how) &&
         (!has_root() || root == other.root) && placed == other.placed;
}

std::string collective_request::text() const {
  if (what == collective::register_pool) return base::text(name_of(what), " of ", count, " B");
  std::string s = base::text(name_of(what), " of ", count, " ", weir::name_of(type));
  if (reduces()) s += " (" + std::string(weir::name_of(how)) + ")";
  if (has_root() || between_two())
    s += (what == collective::gather || what == collective::send ? " to rank " : " from rank ") + std::to_string(root);
  return s + placed_text(placed);
}

collective_request::own_touches collective_request::touches(std::size_t ranks) const noexcept {
  std::size_t const part = part_bytes(), all = part * ranks;
  bool const reads_all = what == collective::reduce_scatter || what == collective::scatter ||
                         what == collective::all_to_all,
             writes_all = what == collective::all_gather || what == collective::gather ||
                          what == collective::all_to_all;
  own_touches t{{{{reinterpret_cast<driver::address>(in), reads_all ? all : part, false},
                  {reinterpret_cast<driver::address>(out), writes_all ? all : part, true}}},
                in ? 0u : 1u,
                2};
  t.count = part == 0 ? 0 : std::size_t{in != nullptr} + std::size_t{out != nullptr};
  return t;
}

bool reducible(dtype type) noexcept { return type != int16 && type != boolean; }

group::group(runtime::impl& owner, std::vector<int> devices, std::unique_ptr<collective_backend> by)
    : runtime_(owner), devices_(std::move(devices)), backend_(std::move(by)), registered_(devices_.size()) {}

bool needs(requests what, int rank) noexcept {
  return what.empty() || std::any_of(what.begin(), what.end(), [&](collective_request const& r) {
    return !r.between_two() || r.root == rank;
  });
}

runtime::impl& group::owner(std::string_view operation, source_location at) const {
  if (ended())
    throw invalid_use(std::string(operation), "the communicator's runtime has ended",
                      "Keep the runtime until its last use", at, error_id{253});
  return runtime_;
}

void group::refuse_if_broken(int rank, std::string const& operation, requests all, source_location at) {
  refuse_if_over(rank, operation, all, at);
  if (std::string const why = backend_->broken(rank); !why.empty()) {
    end_broken(rank, why, operation, at);
    throw driver_error(0, operation, base::text("rank ", rank, " of ", size(), ": ", why),
                       "Create a new communicator", at,
                       error_id{257});
  }
}

void group::take_back(int rank, std::string const& operation, requests all, source_location at) {
  if (std::string const why = backend_->broken(rank); why.empty()) withdraw(rank, all, at);
  else end_broken(rank, why, operation, at);
}

stamp group::issue(int rank, clock::stream_clock& on, std::span<collective_request> all, source_location at) {
  std::string_view const name = name_of(all);
  std::string const operation(name);
  refuse_if_broken(rank, operation, all, at);
  for (collective_request& r : all) r.placed = placed(rank, r);
  on.set_carries_collectives(true);
  if (auto* const memory = runtime_.part<memory::device_memory>().if_made(on.device()))
    memory->fence_what_came_free(on);
  on.count_collective();
  agree(rank, all, at);
  try {
    std::size_t bytes = 0;
    for (collective_request const& r : all) bytes += r.part_bytes();
    streams::timed_work const timed(on, name, bytes, at);
    backend_->issue(rank, on, all, at);
  } catch (...) {
    take_back(rank, operation, all, at);
    throw;
  }
  issued(rank);
  return streams::public_stamp(on.now());
}

namespace {

// A part of the runtime: all its communicators, which may outlive it.
class groups {
 public:
  // At their end, streams and pinned memory wait for work; a collective with a missing rank would block them
  // forever. A rank that leaves needs the clocks and the memory, so these parts must exist first.
  explicit groups(runtime::impl& r) {
    (void)r.part<clock::clocks>(), (void)r.part<memory::device_memory>();
    r.before_the_end(this, [](void* self) noexcept {
      auto const all = static_cast<groups*>(self)->all_.lock();
      for (auto const& one : *all)
        if (auto const alive = one.lock()) alive->runtime_ends();
    });
  }
  void add(std::shared_ptr<group> const& one) {
    auto all = all_.lock();
    std::erase_if(*all, [](auto const& g) { return g.expired(); });
    all->push_back(one);
  }

 private:
  base::guarded<std::vector<std::weak_ptr<group>>> all_;
};

}  // namespace

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
  if (bytes == 0) return;
  // another rank's thread may enqueue the collective
  if (auto* const pools = stream.owner().part_if_made<streams::spills>()) [[unlikely]] {
    void const* const named_there = what.data;
    pools->hold(&stream, {&named_there, 1}, at, streams::spills::until::the_end);
    pools->let_go();
  }
  using streams::known_range;
  auto const is = known_range::of(stream.owner(), what.data, bytes);
  bool const known = is.require_inside(operation, role(), at).is == known_range::verdict::inside;
  int device = is.device;
  if (!known) {  // the program's own driver memory
    auto const found = stream.owner().machine().find(what.data);
    require(found.is, operation, named(), "Pass memory that the driver knows", at);
    if (found.value.in == driver::where::device) device = found.value.device;
  }
  if (device != stream.device()) {
    std::string const whose =
        device < 0 ? "not memory of " : "memory of " + base::gpu_name(device) + ", the rank's device is ";
    throw invalid_use(op, named() + " is " + whose + base::gpu_name(stream.device()),
                      "Pass memory of the rank's device, from weir::allocate, a buffer or a tensor", at, error_id{261});
  }
  if (is.memory && is.block.home != &stream) is.memory->record_use(what.data, stream, at);
}

void add_to(runtime::impl& owner, std::shared_ptr<group> const& one) { owner.part<groups>().add(one); }

}  // namespace peer

communicator::state::~state() {
  if (all) all->leave(rank);
}
clock::stream_clock& communicator::state::stream(std::string_view operation, source_location at) const {
  return streams::current_clock(all->owner(operation, at), all->device(rank), at);
}

communicator::communicator(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
communicator::communicator(communicator&&) noexcept = default;
communicator& communicator::operator=(communicator&&) noexcept = default;
communicator::~communicator() = default;

std::vector<communicator> communicator::create_all(std::span<weir::device const> devices, source_location at) {
  runtime::impl& owner = streams::current_runtime(at);
  if (devices.empty())
    throw invalid_use("communicator::create_all", "no devices", "Pass a device for each rank", at, error_id{262});
  std::vector<int> ordinals;
  for (weir::device const d : devices) {
    int const ordinal = streams::resolve(d, owner, "communicator::create_all", at);
    if (std::find(ordinals.begin(), ordinals.end(), ordinal) != ordinals.end())
      throw invalid_use("communicator::create_all", base::gpu_name(ordinal) + " is named twice",
                        "Pass another device for each rank", at, error_id{263});
    ordinals.push_back(ordinal);
  }
  for (int const ordinal : ordinals) owner.open(ordinal, "communicator::create_all", at);
  auto const all = peer::group_of_threads(owner, ordinals, at);
  std::vector<communicator> ranks;
  for (int rank = 0; rank < all->size(); ++rank)
    ranks.push_back(communicator(std::unique_ptr<state>(new state{all, rank})));
  return ranks;
}

int communicator::rank() const noexcept { return state_->rank; }
int communicator::size() const noexcept { return state_->all->size(); }
weir::device communicator::device() const noexcept { return weir::device(state_->all->device(state_->rank)); }

namespace {

void require_reducible(dtype type, std::string_view operation, source_location at) {
  if (!peer::reducible(type))
    throw not_supported(std::string(operation), "elements of " + std::string(name_of(type)),
                        "Reduce float32, float64, float16, bfloat16, int8, uint8, int32 or int64", at, error_id{264});
}

void require_rank(int rank, int ranks, std::string_view operation, source_location at,
                  std::string_view role = "root") {
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
                      base::text("out and in are of ", name_of(out.dtype), " and ", name_of(in.dtype)),
                      "Use one element type for both", at, error_id{266});
}

std::uintptr_t first_byte(device_span s) { return reinterpret_cast<std::uintptr_t>(s.data); }
std::uintptr_t byte_count(device_span s) { return static_cast<std::uintptr_t>(s.count) * size_of(s.dtype); }
bool lie_apart(device_span a, device_span b) {
  return first_byte(a) + byte_count(a) <= first_byte(b) || first_byte(b) + byte_count(b) <= first_byte(a);
}

void require_apart(device_span out, device_span in, std::string_view operation, source_location at) {
  if (byte_count(in) != 0 && byte_count(out) != 0 && !lie_apart(out, in))
    throw invalid_use(std::string(operation),
                      base::text("out at ", base::address_text(out.data), " overlaps in at ",
                                 base::address_text(in.data)),
                      "Pass memory that does not overlap", at, error_id{436});
}

// Requires: `part` is the rank's slice of `whole`, or does not overlap it.
void require_slice_or_apart(device_span whole, device_span part, int rank, int ranks, std::string_view operation,
                            source_location at) {
  std::string const op(operation);
  require_one_type(whole, part, operation, at);
  std::int64_t product = 0;
  if (__builtin_mul_overflow(part.count, static_cast<std::int64_t>(ranks), &product) || product != whole.count)
    throw invalid_use(op,
                      base::text("parts of ", part.count, " elements from ", ranks, " ranks do not make ", whole.count),
                      "Pass one part for each rank", at, error_id{267});
  bool const slice = first_byte(part) == first_byte(whole) + static_cast<std::uintptr_t>(rank) * byte_count(part);
  if (!slice && !lie_apart(whole, part))
    throw invalid_use(op,
                      base::text("the part at ", base::address_text(part.data), " overlaps the whole at ",
                                 base::address_text(whole.data), ", and is not rank ", rank, "'s slice of it"),
                      "Pass that slice, or memory that does not overlap", at, error_id{268});
}

}  // namespace

stamp communicator::all_reduce(device_span what, reduce_op how, source_location at) {
  require_reducible(what.dtype, "all_reduce", at);
  clock::stream_clock& on = state_->stream("all_reduce", at);
  peer::use_on(on, what, "all_reduce", "the buffer", at);
  return state_->issue(on, {peer::collective::all_reduce, what.dtype, how, 0, what.count, what.data, what.data}, at);
}

stamp communicator::broadcast(device_span what, int root, source_location at) {
  require_rank(root, size(), "broadcast", at);
  clock::stream_clock& on = state_->stream("broadcast", at);
  peer::use_on(on, what, "broadcast", "the buffer", at);
  return state_->issue(
      on, {peer::collective::broadcast, what.dtype, reduce_op::sum, root, what.count, what.data, what.data}, at);
}

stamp communicator::scatter(device_span out, device_span in, int root, source_location at) {
  require_rank(root, size(), "scatter", at);
  clock::stream_clock& on = state_->stream("scatter", at);
  bool const mine = root == rank();
  if (mine) {
    require_slice_or_apart(in, out, rank(), size(), "scatter", at);
    peer::use_on(on, in, "scatter", "in", at);
  }
  peer::use_on(on, out, "scatter", "out", at);
  return state_->issue(
      on, {peer::collective::scatter, out.dtype, reduce_op::sum, root, out.count, mine ? in.data : nullptr, out.data},
      at);
}

stamp communicator::gather(device_span out, device_span in, int root, source_location at) {
  require_rank(root, size(), "gather", at);
  clock::stream_clock& on = state_->stream("gather", at);
  bool const mine = root == rank();
  if (mine) {
    require_slice_or_apart(out, in, rank(), size(), "gather", at);
    peer::use_on(on, out, "gather", "out", at);
  }
  peer::use_on(on, in, "gather", "in", at);
  return state_->issue(
      on, {peer::collective::gather, in.dtype, reduce_op::sum, root, in.count, in.data, mine ? out.data : nullptr}, at);
}

stamp communicator::all_gather(device_span out, device_span in, source_location at) {
  clock::stream_clock& on = state_->stream("all_gather", at);
  require_slice_or_apart(out, in, rank(), size(), "all_gather", at);
  peer::use_on(on, in, "all_gather", "in", at);
  peer::use_on(on, out, "all_gather", "out", at);
  return state_->issue(on, {peer::collective::all_gather, in.dtype, reduce_op::sum, 0, in.count, in.data, out.data},
                       at);
}

stamp communicator::reduce_scatter(device_span out, device_span in, reduce_op how, source_location at) {
  require_reducible(in.dtype, "reduce_scatter", at);
  clock::stream_clock& on = state_->stream("reduce_scatter", at);
  require_slice_or_apart(in, out, rank(), size(), "reduce_scatter", at);
  peer::use_on(on, in, "reduce_scatter", "in", at);
  peer::use_on(on, out, "reduce_scatter", "out", at);
  return state_->issue(on, {peer::collective::reduce_scatter, in.dtype, how, 0, out.count, in.data, out.data}, at);
}

stamp communicator::all_to_all(device_span out, device_span in, source_location at) {
  clock::stream_clock& on = state_->stream("all_to_all", at);
  require_one_type(out, in, "all_to_all", at);
  if (out.count != in.count || in.count % size() != 0)
    throw invalid_use("all_to_all",
                      base::text("in of ", in.count, " and out of ", out.count, " elements for ", size(), " ranks"),
                      "Pass equal counts, a multiple of the number of ranks", at, error_id{435});
  peer::use_on(on, in, "all_to_all", "in", at);
  peer::use_on(on, out, "all_to_all", "out", at);
  require_apart(out, in, "all_to_all", at);
  return state_->issue(
      on, {peer::collective::all_to_all, in.dtype, reduce_op::sum, 0, in.count / size(), in.data, out.data}, at);
}

stamp communicator::send(device_span in, int to, source_location at) {
  require_other_rank(to, rank(), size(), "send", at);
  clock::stream_clock& on = state_->stream("send", at);
  peer::use_on(on, in, "send", "in", at);
  return state_->issue(on, {peer::collective::send, in.dtype, reduce_op::sum, to, in.count, in.data, nullptr}, at);
}

stamp communicator::receive(device_span out, int from, source_location at) {
  require_other_rank(from, rank(), size(), "receive", at);
  clock::stream_clock& on = state_->stream("receive", at);
  peer::use_on(on, out, "receive", "out", at);
  return state_->issue(on, {peer::collective::receive, out.dtype, reduce_op::sum, from, out.count, nullptr, out.data},
                       at);
}

stamp communicator::send_receive(device_span in, int to, device_span out, int from, source_location at) {
  for (int const other : {to, from}) require_other_rank(other, rank(), size(), "send_receive", at);
  clock::stream_clock& on = state_->stream("send_receive", at);
  peer::use_on(on, in, "send_receive", "in", at);
  peer::use_on(on, out, "send_receive", "out", at);
  require_apart(out, in, "send_receive", at);
  peer::collective_request both[] = {
      {peer::collective::send, in.dtype, reduce_op::sum, to, in.count, in.data, nullptr},
      {peer::collective::receive, out.dtype, reduce_op::sum, from, out.count, nullptr, out.data}};
  return state_->all->issue(rank(), on, both, at);
}

void communicator::barrier(std::chrono::milliseconds limit, source_location at) {
  (void)state_->all->owner("barrier", at);
  state_->all->barrier(state_->rank, limit, at);
}
std::optional<communicator> communicator::split(int color, int key, source_location at) {
  (void)state_->all->owner("split", at);
  if (color < no_color)
    throw invalid_use("split", base::text("color ", color), "Pass 0 or more, or communicator::no_color", at,
                      error_id{439});
  auto made = std::make_unique<state>();  // first: a failure after the split would leave the other ranks alone
  peer::seat mine = state_->all->split(rank(), color, key, at);
  if (!mine.in) return {};
  made->all = std::move(mine.in), made->rank = mine.rank;
  return communicator(std::move(made));
}

std::string communicator::explain_last() const { return state_->all->said(state_->rank); }
void communicator::abort() noexcept { state_->all->abort(state_->rank, "its program aborted the communicator"); }
std::string communicator::failure() const { return state_->all->failure(); }

}  // namespace weir
