// Gradient buckets: one block holds [parameters | gradients], both laid out in reverse order of add(), so
// that gradients that a backward pass finishes together form one range, the bucket. A bucket of gradients in the
// program's memory has a range for each, or one for neighbours.
// Threads: as the communicator.
//
// Invariant: every rank reduces the buckets in order of their ranges, each once a step.
#include <algorithm>
#include <exception>
#include <map>
#include <optional>

#include "peer/collective/group.h"
#include "runtime/base/round_up.h"
#include "runtime/core/parts.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/device/shortage.h"
#include "runtime/memory/heap/thread_caches.h"
#include "runtime/observe/history.h"
#include "streams/api/known_range.h"
#include "streams/api/refused_free.h"
#include "streams/stream/context.h"
#include "weir/memory.h"

namespace weir {
namespace {

constexpr std::size_t gap = 512;  // alignment of each parameter and gradient, bytes
constexpr std::int64_t most_elements = std::int64_t{1} << 56;
constexpr std::size_t least_bucket = std::size_t{1} << 20, most_bucket = std::size_t{25} << 20;

// Orders the stream behind `s`; inside a capture behind all work so far of the stream that `s` is of.
driver::status wait_behind(clock::stream_clock& stream, clock::stamp s) {
  driver::status const is = stream.wait(s);
  if (is.what != driver::code::not_permitted)
    return is;
  // One of the two is captured: this stream joins that capture. If it cannot, the wait's refusal is told.
  driver::status const joined = stream.join(*clock::find(s.stream));
  return joined.ok() ? joined : is;
}

std::size_t bytes_of(device_span s) {
  return static_cast<std::size_t>(s.count) * size_of(s.dtype);
}
std::byte* end_of(device_span s) {
  return static_cast<std::byte*>(s.data) + bytes_of(s);
}
// of the block that holds the memory; null: weir does not know it
std::byte* block_of(runtime::impl& owner, device_span s) {
  auto const range = streams::known_range::of(owner, s.data, bytes_of(s));
  return range.is == streams::known_range::verdict::inside ? static_cast<std::byte*>(range.block.base) : nullptr;
}

}  // namespace

struct WEIR_LOCAL gradient_buckets::state {
  struct one {
    std::string name;
    device_span parameter, gradient;
    bool of_program = false;  // it owns the memory
    std::size_t offset = 0;   // otherwise: bytes, from the start of the parameters and of the gradients
    int bucket = 0;
    bool was_ready = false;
  };
  struct bucket {
    dtype type;
    bool of_program;
    std::size_t bytes = 0;
    int members = 0, missing = 0;
    std::vector<device_span> ranges{};    // what is reduced: by address, apart
    std::vector<clock::stamp> written{};  // at most one a stream
  };

  std::shared_ptr<peer::group> all;
  int rank;
  bucket_options options;
  std::vector<one> ones{};
  std::vector<bucket> buckets{};
  std::size_t half = 0;                 // bytes of the block's parameters, gaps included
  std::byte* block = nullptr;           // null before build()
  memory::memory_pool* pool = nullptr;  // that the block lies in, if registered
  std::optional<stream> side{};         // carries the reductions
  std::size_t started = 0;              // reductions started in this step
  peer::scope_of_exceptions scope{};

  int device() const { return all->device(rank); }
  memory::allocator& memory(source_location at) const {
    return all->owner("gradient_buckets", at).part<memory::device_memory>().on(device(), at);
  }
  std::string named(int i) const {
    return base::text("\"", ones[static_cast<std::size_t>(i)].name, "\" (gradient ", i, ")");
  }

  ~state() {
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

  void* allocate(clock::stream_clock& home, std::size_t bytes, source_location);
  void require_new(std::string const& name, std::int64_t count, dtype, source_location) const;
  void use_memory_of_program(source_location);  // Throws: invalid_use unless the rank's device has it, each byte once
  void lay_out();
  void set_ranges(std::byte* own, runtime::impl& owner);                   // own: the block
  void tell(driver::check::control& checker, runtime::impl& owner) const;  // the gradients of each block
  void start_full_buckets(source_location);
  one& find(int i, std::string_view operation, source_location);
};

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

void gradient_buckets::state::use_memory_of_program(source_location at) {
  std::vector<int> by_address;
  for (int i = 0; i < static_cast<int>(ones.size()); ++i) {
    one const& o = ones[static_cast<std::size_t>(i)];
    if (!o.of_program)
      continue;
    if (options.registered)
      throw invalid_use("gradient_buckets::build", named(i) + " lies in the program's memory, which is not registered",
                        "Leave bucket_options::registered off. Memory of a pool that register_pool() took is reduced "
                        "as registered memory",
                        at, error_id{487});
    peer::use_on(streams::clock_of(*side), o.gradient, "gradient_buckets::build", named(i), at);
    if (o.gradient.count > 0)
      by_address.push_back(i);
  }
  auto const gradient = [&](int i) { return ones[static_cast<std::size_t>(i)].gradient; };
  std::ranges::sort(by_address, std::less{}, [&](int i) { return gradient(i).data; });
  for (std::size_t k = 1; k < by_address.size(); ++k)
    if (int const i = by_address[k - 1], next = by_address[k]; end_of(gradient(i)) > gradient(next).data)
      throw invalid_use("gradient_buckets::build", named(i) + " and " + named(next) + " share memory",
                        "Add each gradient once: it would be reduced twice", at, error_id{488});
}

void gradient_buckets::state::lay_out() {
  std::size_t total = 0;
  for (one const& o : ones)
    total += bytes_of(o.gradient);
  std::size_t const full =
      options.bucket_bytes ? options.bucket_bytes : std::clamp(total / 4, least_bucket, most_bucket);
  std::size_t at = 0;
  for (auto o = ones.rbegin(); o != ones.rend(); ++o) {
    dtype const type = o->gradient.dtype;
    // A bucket ends where the type or the memory's owner changes, or once it is full.
    if (buckets.empty() || buckets.back().type != type || buckets.back().of_program != o->of_program ||
        buckets.back().bytes >= full)
      buckets.push_back({type, o->of_program});
    bucket& its = buckets.back();
    o->bucket = static_cast<int>(buckets.size()) - 1;
    std::size_t bytes = bytes_of(o->gradient);
    if (!o->of_program) {
      bytes = base::round_up(bytes, gap);
      o->offset = at;
      at += bytes;
    }
    its.bytes += bytes;
    ++its.members;
    its.missing = its.members;
  }
}

void gradient_buckets::state::set_ranges(std::byte* own, runtime::impl& owner) {
  std::byte* at = own + half;
  for (bucket& b : buckets) {
    if (b.of_program)
      continue;
    b.ranges.push_back({at, static_cast<std::int64_t>(b.bytes / size_of(b.type)), b.type});
    at += b.bytes;
  }
  for (one& o : ones) {
    if (!o.of_program) {
      o.parameter.data = own + o.offset;
      o.gradient.data = own + half + o.offset;
    } else if (o.gradient.count > 0) {
      buckets[static_cast<std::size_t>(o.bucket)].ranges.push_back(o.gradient);
    }
  }
  for (bucket& b : buckets) {
    std::ranges::sort(b.ranges, std::less{}, &device_span::data);
    std::vector<device_span> merged;
    for (device_span const r : b.ranges) {
      // Two blocks may be neighbours on this rank alone: only the program's layout within one is equal on all.
      if (!merged.empty() && end_of(merged.back()) == r.data && block_of(owner, r) &&
          block_of(owner, r) == block_of(owner, merged.back()))
        merged.back().count += r.count;
      else
        merged.push_back(r);
    }
    b.ranges = std::move(merged);
  }
}

void* gradient_buckets::state::allocate(clock::stream_clock& home, std::size_t bytes, source_location at) {
  memory::allocator& from = memory(at);
  if (!options.registered)
    return from.allocate(home, bytes, gap, at);
  pool = &from.make_registered_pool(base::text("gradient_buckets of rank ", rank), bytes, home, at);
  std::uint64_t inside = 0;  // what enter() returns for leave(); 0: not inside
  try {
    inside = memory::thread_caches::enter(*pool);  // until leave(), this thread allocates from that pool
    void* const p = from.allocate(home, bytes, gap, at);
    memory::thread_caches::leave(inside);
    return p;
  } catch (...) {
    if (inside)
      memory::thread_caches::leave(inside);
    from.end_pool(*std::exchange(pool, nullptr));
    throw;
  }
}

void gradient_buckets::state::tell(driver::check::control& checker, runtime::impl& owner) const {
  std::map<std::byte*, driver::check::managed_block> blocks;
  for (int i = 0; i < static_cast<int>(ones.size()); ++i) {
    one const& o = ones[static_cast<std::size_t>(i)];
    std::byte* const its = block_of(owner, o.gradient);
    if (!its)
      continue;
    blocks[its].parts.push_back({static_cast<std::size_t>(static_cast<std::byte*>(o.gradient.data) - its),
                                 bytes_of(o.gradient), base::text("gradient ", named(i), " in bucket ", o.bucket)});
  }
  for (auto& [its, what] : blocks) {
    std::ranges::sort(what.parts, std::less{}, &driver::check::managed_block::part::offset);
    what.device = device();
    what.stream = streams::clock_of(*side).handle();
    what.work = base::text("the reductions of rank ", rank);
    what.call_before = "gradient_buckets::mark_ready";
    what.call_after = "gradient_buckets::finish";
    checker.manages(its, std::move(what));
  }
}

void gradient_buckets::state::start_full_buckets(source_location at) {
  clock::stream_clock& on = streams::clock_of(*side);
  while (started < buckets.size() && buckets[started].missing == 0) {
    bucket& b = buckets[started];
    for (clock::stamp const s : b.written)
      require(wait_behind(on, s), "gradient_buckets::mark_ready", base::text("bucket ", started, " of rank ", rank), "",
              at);
    reduce_op const how = options.average ? reduce_op::average : reduce_op::sum;
    std::vector<peer::collective_request> requests;
    for (device_span const r : b.ranges) {
      peer::use_on(on, r, "gradient_buckets::mark_ready", "bucket " + std::to_string(started), at);
      requests.push_back({peer::collective::all_reduce, b.type, how, 0, r.count, r.data, r.data});
    }
    all->issue(rank, on, requests, at);
    ++started;
  }
}

gradient_buckets::gradient_buckets(communicator& of, bucket_options o)
    : state_(new state{of.state_->all, of.state_->rank, o}) {}
gradient_buckets::gradient_buckets(gradient_buckets&&) noexcept = default;
gradient_buckets& gradient_buckets::operator=(gradient_buckets&&) noexcept = default;
gradient_buckets::~gradient_buckets() = default;

int gradient_buckets::add(std::string name, std::int64_t count, dtype type, source_location at) {
  state_->require_new(name, count, type, at);
  std::size_t const bytes = base::round_up(static_cast<std::size_t>(count) * size_of(type), gap);
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
  s.lay_out();
  s.side.emplace(weir::device(device), priority::high, at);
  s.use_memory_of_program(at);
  std::size_t const bytes = std::max(2 * s.half, gap);
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

device_span gradient_buckets::parameter(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::parameter", at).parameter;
}
device_span gradient_buckets::gradient(int i, source_location at) const {
  return state_->find(i, "gradient_buckets::gradient", at).gradient;
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
  (void)s.all->owner("gradient_buckets::mark_ready", at);  // throws after the runtime has ended
  clock::stream_clock& stream = streams::clock_or_throw(writer, "gradient_buckets::mark_ready", at);
  if (stream.device() != s.device())
    throw invalid_use(
        "gradient_buckets::mark_ready",
        base::text(s.named(i), " from a stream of gpu:", stream.device(), ", the rank's device is gpu:", s.device()),
        "Pass the stream that wrote the gradient", at, error_id{280});
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
  for (state::one& o : s.ones)
    o.was_ready = false;
  for (state::bucket& b : s.buckets) {
    b.missing = b.members;
    b.written.clear();
  }
  s.started = 0;
}

}  // namespace weir
