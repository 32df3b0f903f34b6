// Gradient buckets: the calls of a step, and the block's beginning and end.
// Threads: as the communicator.
#include <algorithm>
#include <exception>

#include "peer/collective/bucket_kernels.h"
#include "peer/collective/gradient_buckets.h"
#include "runtime/base/round_up.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/device/shortage.h"
#include "runtime/memory/heap/thread_caches.h"
#include "runtime/observe/history.h"
#include "streams/api/refused_free.h"
#include "streams/stream/context.h"
#include "weir/memory.h"

namespace weir {
namespace {

constexpr std::int64_t most_elements = std::int64_t{1} << 56;

// Orders the stream behind `s`; inside a capture behind all work so far of the stream that `s` is of.
driver::status wait_behind(clock::stream_clock& stream, clock::stamp s) {
  driver::status const is = stream.wait(s);
  if (is.what != driver::code::not_permitted)
    return is;
  // One of the two is captured: this stream joins that capture. If it cannot, the wait's refusal is told.
  driver::status const joined = stream.join(*clock::find(s.stream));
  return joined.ok() ? joined : is;
}

[[noreturn]] void refuse_in_capture(std::string_view operation, source_location at) {
  throw invalid_use(std::string(operation), "a capture, and gathers that optimizer::step began before it",
                    "Call gather(), and synchronize with its stream, before the capture", at, error_id{610});
}

// Returns: the number of the capture that the stream is in; 0: none
std::uint64_t capture_of(clock::stream_clock& stream, std::string_view operation, source_location at) {
  auto const lane = stream.lane();
  require(lane.is, std::string(operation), streams::describe(stream), "", at);
  return lane.value ? lane.value->capture() : 0;
}

}  // namespace

memory::allocator& gradient_buckets::state::memory(source_location at) const {
  return all->owner("gradient_buckets", at).part<memory::device_memory>().on(device(), at);
}

gradient_buckets::state::~state() {
  if (all->ended() || process_is_ending() || process_was_forked())
    return;
  // If host memory is short, a free waits for the users of the block. That could be a rank that this thread
  // must serve, so the ranks end first.
  constexpr std::string_view why = "an exception ended its gradient_buckets";
  // If no call of this rank waits, all end only once another rank waits for its next call.
  if (scope.is_ended()) {
    if (all->waits(rank))
      all->abort(rank, why);
    else
      all->unwound(rank, why);
  }
  if (!block)
    return;
  static constexpr char const* its_end = "the end of its gradient_buckets";
  try {
    weir::deallocate(block, {its_end, "", 0});
    if (pool)
      memory(source_location::current()).end_pool(*pool);
  } catch (...) {
    streams::tell_of_refused_free(block, its_end);
  }
}

gradient_buckets::state::one& gradient_buckets::state::find(int i, std::string_view operation, source_location at) {
  std::string const op(operation);
  if (!block)
    throw invalid_use(op, std::to_string(ones.size()) + " gradients are added, but not built",
                      "Call build() after the last add()", at, error_id{270});
  if (i < 0 || static_cast<std::size_t>(i) >= ones.size())
    throw invalid_use(op, base::text("gradient ", i, " of ", ones.size()), "Pass a number that add() returned", at,
                      error_id{271});
  return ones[static_cast<std::size_t>(i)];
}

void gradient_buckets::state::require_new(std::string const& name, std::int64_t count, dtype type,
                                          source_location at) const {
  if (block)
    throw invalid_use("gradient_buckets::add", "\"" + name + "\" after build()", "Call add() before build()", at,
                      error_id{272});
  if (count < 0 || count > most_elements)
    throw invalid_use("gradient_buckets::add", base::text("\"", name, "\" of ", count, " elements"),
                      "Pass a number of elements, 0 or more", at, error_id{273});
  if (!peer::reducible(type))
    throw not_supported("gradient_buckets::add", "\"" + name + "\" of " + std::string(name_of(type)),
                        "Reduce float32, float64, float16, bfloat16, int8, uint8, int32 or int64", at, error_id{274});
}

void* gradient_buckets::state::allocate(clock::stream_clock& home, std::size_t bytes, source_location at) {
  memory::allocator& from = memory(at);
  if (!options.registered)
    return from.allocate(home, bytes, peer::bucket_gap, at);
  pool = &from.make_registered_pool(base::text("gradient_buckets of rank ", rank), bytes, home, at);
  std::uint64_t inside = 0;  // what enter() returns for leave(); 0: not inside
  try {
    inside = memory::thread_caches::enter(*pool);  // until leave(), this thread allocates from that pool
    void* const p = from.allocate(home, bytes, peer::bucket_gap, at);
    memory::thread_caches::leave(inside);
    return p;
  } catch (...) {
    if (inside)
      memory::thread_caches::leave(inside);
    from.end_pool(*std::exchange(pool, nullptr));
    throw;
  }
}

void gradient_buckets::state::require_unprepared(std::string const& operation, source_location at) const {
  if (prepares)
    throw invalid_use(operation, "a call from before_reduction", "Call it outside of the function", at, error_id{491});
}

// A refused start comes again: a range that the function has scaled must not be scaled twice.
void gradient_buckets::state::prepare(bucket& b, source_location at) {
  stream_ref const on = side->ref();
  if (options.before_reduction) {
    runtime_guard const in(all->owner("gradient_buckets::mark_ready", at).facade());
    stream_guard const here(on, at);
    prepares = true;
    try {
      for (; b.prepared < b.ranges.size(); ++b.prepared)
        if (b.ranges[b.prepared].count > 0)
          options.before_reduction(b.ranges[b.prepared], on);
    } catch (...) {
      prepares = false;
      throw;
    }
    prepares = false;
  }
  if (!b.sent.data)
    return;
  device_span to = b.sent;
  for (device_span const r : b.ranges) {
    to.count = r.count;
    peer::cast(on, to, r, at);
    to.data = peer::end_of(to);
  }
}

peer::collective_request gradient_buckets::state::reduction_of(device_span r) const {
  reduce_op const how = options.average ? reduce_op::average : reduce_op::sum;
  if (!options.sharded)
    return {peer::collective::all_reduce, r.dtype, how, 0, r.count, r.data, r.data};
  device_span const mine = peer::share_of(r, rank, shares());
  return {peer::collective::reduce_scatter, r.dtype, how, 0, mine.count, r.data, mine.data};
}

void gradient_buckets::state::start_full_buckets(source_location at) {
  clock::stream_clock& on = streams::clock_of(*side);
  while (started < buckets.size() && buckets[started].missing == 0) {
    bucket& b = buckets[started];
    for (clock::stamp const s : b.written)
      require(wait_behind(on, s), "gradient_buckets::mark_ready", base::text("bucket ", started, " of rank ", rank), "",
              at);
    std::vector<peer::collective_request> requests;
    auto const add = [&](device_span r) { requests.push_back(reduction_of(r)); };
    for (device_span const r : b.ranges)
      peer::use_on(on, r, "gradient_buckets::mark_ready", "bucket " + std::to_string(started), at);
    prepare(b, at);
    if (b.sent.data)
      add(b.sent);
    else
      std::ranges::for_each(b.ranges, add);
    all->issue(rank, on, requests, at);
    ++started;
  }
}

gradient_buckets::gradient_buckets(communicator& of, bucket_options o)
    : state_(new state{of.state_->all, of.state_->rank, std::move(o)}) {}
gradient_buckets::gradient_buckets(gradient_buckets&&) noexcept = default;
gradient_buckets& gradient_buckets::operator=(gradient_buckets&&) noexcept = default;
gradient_buckets::~gradient_buckets() = default;

int gradient_buckets::add(std::string name, std::int64_t count, dtype type, source_location at) {
  state_->require_new(name, count, type, at);
  std::size_t const bytes = base::round_up(static_cast<std::size_t>(count) * size_of(type), peer::bucket_gap);
  if (bytes > ~std::size_t{0} / 2 - state_->half) {
    std::string const what = base::text("\"", name, "\" of ", count, " ", name_of(type), " (", bytes, " B)");
    throw invalid_use("gradient_buckets::add",
                      base::text(what, " beside ", state_->half, " B: twice as much overflows"),
                      "Check the product that the count was made from: one block holds all parameters and gradients",
                      at, error_id{275});
  }
  device_span const its{nullptr, count, type};
  state_->ones.push_back({std::move(name), its, its});
  state_->half += bytes;
  return size() - 1;
}

int gradient_buckets::add_shaped(std::string name, std::span<std::int64_t const> extents, std::int64_t count,
                                 dtype type, source_location at) {
  std::vector<std::int64_t> kept(extents.begin(), extents.end());
  int const i = add(std::move(name), count, type, at);
  state_->ones.back().extents = std::move(kept);
  state_->ones.back().has_shape = true;
  return i;
}

int gradient_buckets::add(std::string name, device_span parameter, device_span gradient, source_location at) {
  state_->require_new(name, gradient.count, gradient.dtype, at);
  if (parameter.count != gradient.count && parameter.count != 0)
    throw invalid_use("gradient_buckets::add",
                      base::text("\"", name, "\" of ", parameter.count, " elements, its gradient of ", gradient.count),
                      "Pass spans of equal counts, or no parameter: {}", at, error_id{489});
  state_->ones.push_back({std::move(name), parameter, gradient, true});
  return size() - 1;
}

void gradient_buckets::build(source_location at) {
  runtime::impl& owner = state_->all->owner("gradient_buckets::build", at);
  runtime_guard const in(owner.facade());
  build(streams::ref_of(streams::current_clock(owner, state_->all->device(state_->rank), at)), at);
}

void gradient_buckets::build(stream_ref on, source_location at) {
  state& s = *state_;
  if (s.block)
    throw invalid_use("gradient_buckets::build", "a second build()", "Call build() once, after the last add()", at,
                      error_id{276});
  if (s.ones.empty())
    throw invalid_use("gradient_buckets::build", "there is no gradient", "Call add() for each gradient first", at,
                      error_id{277});
  runtime::impl& owner = s.all->owner("gradient_buckets::build", at);
  runtime_guard const in(owner.facade());
  int const device = s.device();
  clock::stream_clock& home = streams::clock_or_throw(on, "gradient_buckets::build", at);
  if (&home.owner() != &owner || home.device() != device)
    throw invalid_use("gradient_buckets::build", base::text(streams::describe(home), " for the rank of gpu:", device),
                      "Pass a stream of the rank's device", at, error_id{278});
  s.buckets.clear();  // of a build() that was refused below
  if (s.options.reduce_as && *s.options.reduce_as != float16 && *s.options.reduce_as != bfloat16)
    throw invalid_use("gradient_buckets::build", "reduce_as is " + std::string(name_of(*s.options.reduce_as)),
                      "Reduce as float16 or bfloat16", at, error_id{492});
  s.lay_out();
  s.side.emplace(weir::device(device), priority::high, at);
  s.use_memory_of_program(at);
  std::size_t const bytes = s.set_sent(nullptr);
  void* const block = memory::as_called("gradient_buckets::build", [&] { return s.allocate(home, bytes, at); });
  try {
    require(owner.machine().fill(device, home.handle(), block, 0, 4, bytes / 4), "gradient_buckets::build",
            base::text(bytes, " B to be filled with zeros on gpu:", device), "", at);
    s.memory(at).record_use(block, streams::clock_of(*s.side), at);
    s.set_ranges(static_cast<std::byte*>(block), owner);
    // Last: a registration keeps the memory until the communicator ends.
    if (s.pool)
      s.all->register_pool(s.rank, streams::clock_of(*s.side), s.memory(at), *s.pool, at);
  } catch (...) {
    s.memory(at).deallocate(block, nullptr, at);
    if (s.pool)
      s.memory(at).end_pool(*std::exchange(s.pool, nullptr));
    throw;
  }
  s.block = static_cast<std::byte*>(block);
  if (auto* const checker = owner.machine().checker())
    s.tell(*checker, owner);
  observe::note(observe::action::alloc, block, bytes, home.id(), owner.id(), device, at);
}

int gradient_buckets::size() const noexcept {
  return static_cast<int>(state_->ones.size());
}
int gradient_buckets::bucket_count() const noexcept {
  return static_cast<int>(state_->buckets.size());
}

bool gradient_buckets::is_sharded() const noexcept {
  return state_->options.sharded;
}

device_span gradient_buckets::parameter(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::parameter", at).parameter;
}
device_span gradient_buckets::gradient(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::gradient", at).gradient;
}
device_span gradient_buckets::reduced(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::reduced", at).reduced;
}
gradient_buckets::part gradient_buckets::own(int i, source_location at) const {
  return state_->part_of(state_->find(i, "gradient_buckets::own", at), state_->rank);
}
std::vector<gradient_buckets::part> gradient_buckets::parts(int i, source_location at) const {
  state::one const& o = state_->find(i, "gradient_buckets::parts", at);
  std::vector<part> all;
  for (int rank = 0; rank < state_->all->size(); ++rank)
    all.push_back(state_->part_of(o, rank));
  return all;
}
std::string const& gradient_buckets::name(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::name", at).name;
}
std::span<std::int64_t const> gradient_buckets::extents_of(int i, std::string_view operation,
                                                           source_location at) const {
  state::one const& o = state_->find(i, operation, at);
  return o.has_shape ? std::span(o.extents) : std::span(&o.gradient.count, 1);
}
gradient_buckets::place gradient_buckets::place_of(std::string_view operation, source_location at) const {
  return {state_->all->owner(operation, at).facade(), weir::device(state_->device())};
}
device_span gradient_buckets::parameters(source_location at) const {
  state::one const& first = state_->find(0, "gradient_buckets::parameters", at);
  dtype const type = first.gradient.dtype;
  for (state::one const& o : state_->ones) {
    if (o.of_program)
      throw invalid_use("gradient_buckets::parameters", "\"" + o.name + "\" lies in the program's memory",
                        "Use parameter(i) and gradient(i) instead", at, error_id{490});
    if (o.gradient.dtype != type)
      throw invalid_use("gradient_buckets::parameters",
                        "\"" + first.name + "\" is of " + std::string(name_of(type)) + ", \"" + o.name + "\" of " +
                            std::string(name_of(o.gradient.dtype)),
                        "Use parameter(i) instead", at, error_id{279});
  }
  return {state_->block, static_cast<std::int64_t>(state_->half / size_of(type)), type};
}
device_span gradient_buckets::gradients(source_location at) const {
  device_span const same = parameters(at);
  return {state_->block + state_->half, same.count, same.dtype};
}

void gradient_buckets::mark_ready(int i, stream_ref writer, source_location at) {
  state& s = *state_;
  state::one& o = s.find(i, "gradient_buckets::mark_ready", at);
  s.require_unprepared("gradient_buckets::mark_ready", at);
  (void)s.all->owner("gradient_buckets::mark_ready", at);  // throws after the runtime has ended
  clock::stream_clock& stream = streams::clock_or_throw(writer, "gradient_buckets::mark_ready", at);
  if (stream.device() != s.device())
    throw invalid_use(
        "gradient_buckets::mark_ready",
        base::text(s.named(i), " from a stream of gpu:", stream.device(), ", the rank's device is gpu:", s.device()),
        "Pass the stream that wrote the gradient", at, error_id{280});
  // It can be asked in this call alone, and the reduction may start in a later one. A capture needs no answer.
  if (stream.alive() == clock::life::borrowed && !stream.captured().value)
    throw invalid_use("gradient_buckets::mark_ready",
                      s.named(i) + " from a borrowed stream, " + streams::describe(stream),
                      "Pass an external_stream of it, or a stream that waits for it", at, error_id{576});
  if (o.was_ready)
    throw invalid_use(
        "gradient_buckets::mark_ready", s.named(i) + " is ready twice in one step",
        "Call mark_ready once, after the last write. If a layer is recomputed or gradients accumulate, call it "
        "after the last pass",
        at, error_id{281});
  if (o.of_program)
    peer::use_on(stream, o.gradient, "gradient_buckets::mark_ready", s.named(i), at);
  else
    s.memory(at).record_use(s.block, stream, at);
  state::bucket& b = s.buckets[static_cast<std::size_t>(o.bucket)];
  // Of each stream the latest stamp covers those before.
  clock::stamp const written = stream.now();
  auto const earlier =
      std::find_if(b.written.begin(), b.written.end(), [&](clock::stamp w) { return w.stream == written.stream; });
  if (earlier == b.written.end())
    b.written.push_back(written);
  else
    *earlier = written;
  o.was_ready = true;
  --b.missing;
  s.start_full_buckets(at);
}

void gradient_buckets::finish(stream_ref reader, source_location at) {
  state& s = *state_;
  s.find(0, "gradient_buckets::finish", at);
  s.require_unprepared("gradient_buckets::finish", at);
  (void)s.all->owner("gradient_buckets::finish", at);  // throws after the runtime has ended
  clock::stream_clock& stream = streams::clock_or_throw(reader, "gradient_buckets::finish", at);
  constexpr int most_named = 8;
  std::string names;
  int missing = 0;
  for (int i = 0; i < size(); ++i) {
    if (s.ones[static_cast<std::size_t>(i)].was_ready)
      continue;
    if (missing < most_named)
      names += (names.empty() ? "" : ", ") + s.named(i);
    ++missing;
  }
  if (missing > 0)
    throw invalid_use("gradient_buckets::finish",
                      base::text(missing, " of ", size(), " gradients were not marked as ready: ", names,
                                 missing > most_named ? ", …" : ""),
                      "Call mark_ready for each gradient in each step, also for a zero gradient", at, error_id{282});
  s.start_full_buckets(at);  // again, if a start was refused before
  clock::stream_clock& side = streams::clock_of(*s.side);
  require(wait_behind(stream, side.now()), "gradient_buckets::finish", "rank " + std::to_string(s.rank), "", at);
  std::uint64_t const capture = s.options.sharded ? capture_of(stream, "gradient_buckets::finish", at) : 0;
  for (state::one& o : s.ones)
    o.was_ready = false;
  for (state::bucket& b : s.buckets) {
    b.missing = b.members;
    b.written.clear();
    b.prepared = 0;
    if (b.begun_in == capture)
      b.gathers = false;  // the reductions came behind it on their stream
  }
  s.started = 0;
  s.clipped = 0;
}

peer::collective_request gradient_buckets::state::gather_of(bucket const& b) const {
  device_span const whole = parameters_of(b), mine = peer::share_of(whole, rank, shares());
  return {peer::collective::all_gather, mine.dtype, reduce_op::sum, 0, mine.count, mine.data, whole.data};
}

clock::stream_clock& gradient_buckets::state::stream_of_rank(stream_ref on, std::string_view operation,
                                                             source_location at) const {
  (void)all->owner(operation, at);  // throws after the runtime has ended
  clock::stream_clock& stream = streams::clock_or_throw(on, operation, at);
  if (stream.device() != device())
    throw invalid_use(std::string(operation), base::text(streams::describe(stream), " for the rank of gpu:", device()),
                      "Pass a stream of the rank's device", at, error_id{560});
  return stream;
}

void gradient_buckets::gather(stream_ref on, source_location at) {
  state& s = *state_;
  s.find(0, "gradient_buckets::gather", at);
  s.require_unprepared("gradient_buckets::gather", at);
  if (!s.options.sharded)
    throw invalid_use("gradient_buckets::gather", "buckets that are not sharded",
                      "Set bucket_options::sharded, or leave this call out: each rank has all sums", at, error_id{559});
  clock::stream_clock& stream = s.stream_of_rank(on, "gradient_buckets::gather", at);
  std::uint64_t const capture = capture_of(stream, "gradient_buckets::gather", at);
  std::vector<peer::collective_request> requests;
  for (state::bucket const& b : s.buckets) {
    s.require_same_capture(b, capture, "gradient_buckets::gather", at);
    if (b.gathers_in(capture))
      s.wait_for_gather(b, on, capture, "gradient_buckets::gather", at);
    else
      requests.push_back(s.gather_of(b));
  }
  s.memory(at).record_use(s.block, stream, at);
  s.all->issue(s.rank, stream, requests, at);
  // The next call gathers what is updated from here on.
  for (state::bucket& b : s.buckets)
    b.gathers = false;
}

int gradient_buckets::bucket_at(void const* parameter) const noexcept {
  for (std::size_t i = 0; state_->options.sharded && i < state_->buckets.size(); ++i) {
    device_span const its = state_->parameters_of(state_->buckets[i]);
    if (parameter >= its.data && parameter < peer::end_of(its))
      return static_cast<int>(i);
  }
  return -1;
}

void gradient_buckets::require_step(stream_ref on, std::string const& operation, bool is_repeated,
                                    source_location at) const {
  std::uint64_t const capture = capture_of(state_->stream_of_rank(on, operation, at), operation, at);
  for (state::bucket const& b : state_->buckets) {
    state_->require_same_capture(b, capture, operation, at);
    if (b.gathers_in(capture) && !is_repeated)
      throw invalid_use(operation, "a step that gathers buckets whose gathers are under way",
                        "Call step(stream) for all optimizers of these buckets but the last, or gather() between", at,
                        error_id{611});
  }
}

void gradient_buckets::begin_gather(int bucket, stream_ref on, source_location at) {
  state& s = *state_;
  clock::stream_clock& stream = s.stream_of_rank(on, "optimizer::step", at);
  clock::stream_clock& side = streams::clock_of(*s.side);
  state::bucket& b = s.buckets[static_cast<std::size_t>(bucket)];
  std::uint64_t const capture = capture_of(stream, "optimizer::step", at);
  // A call that was refused behind the gather comes again: the other ranks gather once.
  if (!b.gathers_in(capture)) {
    require(wait_behind(side, stream.now()), "optimizer::step", "rank " + std::to_string(s.rank), "", at);
    peer::collective_request request[] = {s.gather_of(b)};
    s.all->issue(s.rank, side, request, at);
    b.is_noted = false;
    b.begun_in = capture;
    b.gathers = true;
  }
  if (!b.gathered)
    b.gathered.emplace();
  b.gathered->record(*s.side, at);
  b.is_noted = true;
}

void gradient_buckets::state::require_same_capture(bucket const& b, std::uint64_t capture, std::string_view operation,
                                                   source_location at) const {
  if (capture != 0 && b.gathers && b.begun_in == 0)
    refuse_in_capture(operation, at);
}

void gradient_buckets::state::wait_for_gather(bucket const& b, stream_ref reader, std::uint64_t capture,
                                              std::string_view operation, source_location at) {
  // A captured stream waits for nothing outside, unless it is known to be complete.
  try {
    if (b.is_noted)
      return reader.wait(*b.gathered, at);
    require(wait_behind(streams::clock_of(reader), streams::clock_of(*side).now()), std::string(operation),
            "rank " + std::to_string(rank), "", at);
  } catch (invalid_use const&) {
    if (capture == 0 || b.begun_in == capture)
      throw;
    refuse_in_capture(operation, at);
  }
}

void gradient_buckets::wait_gathered(int i, stream_ref reader, source_location at) {
  constexpr std::string_view operation = "gradient_buckets::wait_gathered";
  state& s = *state_;
  state::one const& o = s.find(i, operation, at);
  clock::stream_clock& stream = s.stream_of_rank(reader, operation, at);
  state::bucket const& its = s.buckets[static_cast<std::size_t>(o.bucket)];
  if (!its.begun_in)
    return;
  std::uint64_t const capture = capture_of(stream, operation, at);
  s.require_same_capture(its, capture, operation, at);
  // gather() and finish() have made their own streams wait. A capture that has ended is waited for by its launches.
  if (its.begun_in == 0 || its.begun_in == capture)
    s.wait_for_gather(its, reader, capture, operation, at);
}

}  // namespace weir
