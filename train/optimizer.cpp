// Optimizers: the table of their items and its memory, and the calls of a step.
// Threads: as weir/optimizer.h.
//
// Invariant: one block holds [numbers | sums of the norm | state | table], and no call but the constructor
// changes where anything lies. The sums, which ranks add, lie at one place of the block on each rank.
#include "weir/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "runtime/base/round_up.h"
#include "runtime/base/text.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/shortage.h"
#include "streams/stream/context.h"
#include "train/update.h"
#include "weir/copy.h"

namespace weir {
namespace {

constexpr std::size_t gap = 256;  // alignment of each part of the block, bytes

std::size_t bytes_of(device_span s) noexcept {
  return static_cast<std::size_t>(s.count) * size_of(s.dtype);
}
bool is_short(dtype type) noexcept {
  return type == float16 || type == bfloat16;
}
device_span cut(device_span all, gradient_buckets::part to) noexcept {
  return {static_cast<std::byte*>(all.data) + static_cast<std::size_t>(to.first) * size_of(all.dtype), to.count,
          all.dtype};
}
bool is_updated(update_item const& i) noexcept {
  return i.rate != 0 && i.parameter.count > 0;
}
std::int64_t chunks_of(update_item const& i) noexcept {
  return (i.parameter.count + train::chunk - 1) / train::chunk;
}

std::int64_t chunks_of_all(std::span<update_item const> items) noexcept {
  std::int64_t all = 0;
  for (update_item const& o : items)
    all += is_updated(o) ? chunks_of(o) : 0;
  return all;
}

void require_numbers(std::string const& what, std::initializer_list<std::pair<char const*, double>> numbers,
                     source_location at) {
  for (auto const& [name, value] : numbers)
    if (!(value >= 0) || (std::isinf(value) && std::strcmp(name, "max_norm") != 0))
      throw invalid_use(what, base::text(name, " is ", value), "Pass a finite number of 0 or more", at, error_id{548});
}
void require_share(std::string const& what, char const* name, double value, source_location at) {
  if (!(value >= 0 && value < 1))
    throw invalid_use(what, base::text(name, " is ", value), "Pass a number from 0 to less than 1", at, error_id{549});
}

void require_items(std::string const& what, std::span<update_item const> items, source_location at) {
  std::vector<std::size_t> by_address;
  for (std::size_t i = 0; i < items.size(); ++i) {
    update_item const& o = items[i];
    std::string const name = base::text("item ", i);
    require_numbers(base::text(what, " (", name, ")"), {{"rate", o.rate}, {"decay", o.decay}}, at);
    if (o.rate == 0)
      continue;
    dtype const p = o.parameter.dtype, g = o.gradient.dtype;
    if (o.parameter.count != o.gradient.count || o.parameter.count < 0)
      throw invalid_use(what,
                        base::text(name, " of ", o.parameter.count, " elements, its gradient of ", o.gradient.count),
                        "Pass spans of equal counts, or the rate 0 for what is not updated", at, error_id{550});
    if ((p != float32 && p != float64 && !is_short(p)) || (g != p && g != float32 && !is_short(g)))
      throw not_supported(
          what, base::text(name, " of ", name_of(p), ", its gradient of ", name_of(g)),
          "Update float32, float64, float16 or bfloat16 by gradients of that type, float32, float16 or bfloat16", at,
          error_id{551});
    if (o.parameter.count == 0)
      continue;
    if (!o.parameter.data || !o.gradient.data)
      throw invalid_use(what, base::text(name, " has no ", o.parameter.data ? "gradient" : "parameter"),
                        "Pass device memory, or the rate 0 for what is not updated", at, error_id{552});
    by_address.push_back(i);
  }
  // A rank may have no part of a small model.
  auto const is_some_part = [](update_item const& i) { return i.is_part && i.rate != 0; };
  if (by_address.empty() && std::ranges::none_of(items, is_some_part))
    throw invalid_use(what, base::text("nothing to update among ", items.size(), " items"),
                      "Pass a parameter with elements and a rate that is not 0", at, error_id{553});
  auto const begin = [&](std::size_t i) { return static_cast<std::byte*>(items[i].parameter.data); };
  std::ranges::sort(by_address, std::less{}, begin);
  for (std::size_t k = 1; k < by_address.size(); ++k)
    if (std::size_t const i = by_address[k - 1], next = by_address[k];
        begin(i) + bytes_of(items[i].parameter) > begin(next))
      throw invalid_use(what, base::text("items ", i, " and ", next, " share memory"),
                        "Add each parameter once: it would be updated twice", at, error_id{554});
}

}  // namespace

struct WEIR_LOCAL optimizer::parts {
  std::string what;  // adamw or sgd
  std::vector<update_item> items;
  buffer block{};
  train::kernels kernels{};
  std::vector<memory_use> to_add_squares{}, to_read{};
  // What a step does behind begin(), in turn: updates chunks, or begins the gather of a bucket.
  struct action {
    std::int64_t first = 0, chunks = 0;
    std::vector<memory_use> uses{};
    int gathers = -1;  // that bucket
  };
  std::vector<action> whole{};      // one launch for all
  std::vector<action> by_bucket{};  // of the buckets whose parameters begin there
  void const* by_bucket_of = nullptr;
  std::vector<state_part> state{};
  communicator* ranks = nullptr;     // that share the norm; null: it is of the items alone
  int refused_at = 0;                // the launch of step() that was refused and comes next; 0: none
  void const* refused_of = nullptr;  // the first parameter of its buckets; null: step(stream)
  bool rounds = false;               // an item has a master copy
  bool is_exact = false;             // each range of memory is declared, not its block alone

  void make(train::rule, double rate, loss_scale const*, communicator*, source_location);
  void share_norm(stream_ref, source_location) const;
  // The calls of a step, in turn. Those of the norm are the first, and the actions the last.
  static constexpr int without_norm = 3, first_action = 4;
  void call(int number, std::vector<action> const&, stream_ref, gradient_buckets*, source_location) const;
  std::vector<action> const& actions_for(gradient_buckets*, source_location);
  // Before anything is enqueued. first: the first call of a step. Throws: invalid_use
  void require_buckets(gradient_buckets const*, stream_ref, int first, source_location) const;

 private:
  // Gives out parts of the block. Without one it only counts.
  struct places {
    std::byte* block;
    std::size_t used = 0;
    void* next(std::size_t bytes) {
      std::byte* const p = block ? block + used : nullptr;
      used += base::round_up(bytes, gap);
      return p;
    }
  };
  std::size_t lay_out(std::byte* own, std::vector<train::row>&, std::vector<std::int32_t>& row_of);
  void declare(runtime::impl&);
  // Updates the items that `chosen` names
  action update_of(std::vector<std::size_t> const& chosen) const;
};

// Returns: bytes of the block. own: the block; null: only those are asked for
std::size_t optimizer::parts::lay_out(std::byte* own, std::vector<train::row>& rows,
                                      std::vector<std::int32_t>& row_of) {
  places at{own};
  rows.clear(), row_of.clear(), state.clear();
  auto* const numbers = static_cast<train::control*>(at.next(sizeof(train::control)));
  kernels.numbers = numbers;
  state.push_back({"steps", {numbers ? &numbers->steps : nullptr, 1, int64}});
  state.push_back({"skipped", {numbers ? &numbers->skipped : nullptr, 1, int64}});
  state.push_back({"rate", {numbers ? &numbers->rate : nullptr, 1, float64}});
  kernels.chunks = chunks_of_all(items);
  bool const limits = std::isfinite(kernels.how.max_norm) || kernels.scale;
  auto const sums = static_cast<std::size_t>(train::kernels::norm_threads(kernels.chunks)) * sizeof(double);
  kernels.sums = limits ? static_cast<double*>(at.next(sums)) : nullptr;
  for (std::size_t i = 0; i < items.size(); ++i) {
    update_item const& o = items[i];
    // A part of no elements has a state of none: all ranks tell of the same items.
    if (!is_updated(o) && !(o.is_part && o.rate != 0))
      continue;
    dtype const type = is_short(o.parameter.dtype) ? float32 : o.parameter.dtype;
    auto const more = [&](char const* name) {
      device_span const s{at.next(static_cast<std::size_t>(o.parameter.count) * size_of(type)), o.parameter.count,
                          type};
      state.push_back({base::text(name, ".", i), s, static_cast<int>(i)});
      return s.data;
    };
    train::row r{.value = o.parameter.data,
                 .rounded = nullptr,
                 .gradient = o.gradient.data,
                 .first = nullptr,
                 .second = nullptr,
                 .count = o.parameter.count,
                 .first_chunk = static_cast<std::int64_t>(row_of.size()),
                 .rate = o.rate,
                 .decay = o.decay,
                 .type = type,
                 .of_gradient = o.gradient.dtype,
                 .of_rounded = o.parameter.dtype,
                 // Each rank has the whole gradient of what is no part: the sum over the ranks takes it once.
                 .in_norm = !ranks || o.is_part || ranks->rank() == 0};
    if (kernels.how.adaptive)
      r.first = more("mean"), r.second = more("square");
    else if (kernels.how.momentum > 0)
      r.first = more("velocity");
    if (is_short(o.parameter.dtype))
      r.rounded = o.parameter.data, r.value = more("master"), rounds = true;
    if (!is_updated(o))
      continue;
    row_of.insert(row_of.end(), static_cast<std::size_t>(chunks_of(o)), static_cast<std::int32_t>(rows.size()));
    rows.push_back(r);
  }
  kernels.rows = static_cast<train::row*>(at.next(rows.size() * sizeof rows[0]));
  kernels.row_of = static_cast<std::int32_t*>(at.next(row_of.size() * sizeof row_of[0]));
  return at.used;
}

namespace {

// A checker and a simulated device get each range. To others a use only marks its block: one of each block is
// enough.
class uses_of_items {
 public:
  explicit uses_of_items(bool exact) : exact_(exact) {}
  void add(memory_use u) {
    std::optional<block_info> const its = exact_ ? std::nullopt : find_block(u.address);
    auto const [at, is_new] = all_.emplace(its ? its->base : u.address, its ? memory_use{its->base, u.how} : u);
    // Items may share a gradient, and have different counts of it.
    if (!is_new && at->second.bytes < u.bytes)
      at->second.bytes = u.bytes;
  }
  void append_to(std::vector<memory_use>& all) const {
    for (auto const& [p, u] : all_)
      all.push_back(u);
  }

 private:
  bool exact_;
  std::map<void const*, memory_use> all_{};
};

}  // namespace

optimizer::parts::action optimizer::parts::update_of(std::vector<std::size_t> const& chosen) const {
  action a;
  uses_of_items gradients(is_exact), parameters(is_exact);
  for (std::size_t const i : chosen) {
    a.chunks += chunks_of(items[i]);
    gradients.add(weir::reads(items[i].gradient));
    parameters.add(weir::updates(items[i].parameter));
  }
  a.uses = {weir::updates(block)};
  gradients.append_to(a.uses);
  parameters.append_to(a.uses);
  return a;
}

void optimizer::parts::declare(runtime::impl& owner) {
  is_exact = owner.machine().simulated() || owner.machine().checker();
  std::vector<std::size_t> updated;
  uses_of_items gradients(is_exact), short_ones(is_exact);
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!is_updated(items[i]))
      continue;
    updated.push_back(i);
    gradients.add(weir::reads(items[i].gradient));
    if (is_short(items[i].parameter.dtype))
      short_ones.add(weir::reads(items[i].parameter));
  }
  whole = {update_of(updated)};
  to_add_squares = to_read = {weir::updates(block)};
  gradients.append_to(to_add_squares);
  short_ones.append_to(to_read);
  kernels.to_add_squares = &to_add_squares, kernels.to_read = &to_read;
}

// The forward pass uses the last bucket first. Items that no bucket has come before all. Each rank has the actions of
// all buckets, also of those that it has no part of: all ranks gather in one order.
std::vector<optimizer::parts::action> const& optimizer::parts::actions_for(gradient_buckets* g, source_location at) {
  if (!g)
    return whole;
  void const* const theirs = g->parameter(0, at).data;
  if (by_bucket_of == theirs)
    return by_bucket;
  std::vector<action> all;
  auto const update_bucket = [&](int bucket) {
    std::int64_t next = 0, first = 0;  // chunks
    std::vector<std::size_t> run;      // items whose chunks follow each other
    auto const end_run = [&] {
      if (run.empty())
        return;
      all.push_back(update_of(run));
      all.back().first = first;
      run.clear();
    };
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (!is_updated(items[i]))
        continue;
      if (g->bucket_at(items[i].parameter.data) != bucket) {
        end_run();
      } else if (run.push_back(i); run.size() == 1) {
        first = next;
      }
      next += chunks_of(items[i]);
    }
    end_run();
  };
  update_bucket(-1);
  for (int bucket = g->bucket_count() - 1; bucket >= 0; --bucket) {
    update_bucket(bucket);
    all.push_back({.gathers = bucket});
  }
  by_bucket = std::move(all);
  by_bucket_of = theirs;
  return by_bucket;
}

void optimizer::parts::require_buckets(gradient_buckets const* g, stream_ref on, int first, source_location at) const {
  void const* const theirs = g ? g->parameter(0, at).data : nullptr;
  // It would go on in a list of other actions.
  if (refused_at > first && refused_of != theirs)
    throw invalid_use(what, "a step with other buckets, and an earlier one was refused in part",
                      "Repeat the refused call with its own buckets first", at, error_id{612});
  if (!g)
    return;
  if (!g->is_sharded())
    throw invalid_use(what, "a step that gathers buckets that are not sharded",
                      "Set bucket_options::sharded, or call step(stream)", at, error_id{606});
  bool const has_items = std::ranges::any_of(items, is_updated);
  auto const lies_in_it = [&](update_item const& i) { return is_updated(i) && g->bucket_at(i.parameter.data) >= 0; };
  // A rank may have no part of a small model.
  if (has_items && std::ranges::none_of(items, lies_in_it))
    throw invalid_use(what, "a step that gathers buckets with none of its items",
                      "Pass the buckets of this rank that the items were made from", at, error_id{613});
  g->require_step(on, what, refused_at > first, at);
}

// Each rank's few sums are of its own parts. Their sums over the ranks are equal bit by bit.
void optimizer::parts::share_norm(stream_ref on, source_location at) const {
  if (!ranks)
    return;
  stream_guard const here(on, at);
  ranks->all_reduce({kernels.sums, peer::few_sums, float64}, reduce_op::sum, at);
}

void optimizer::parts::call(int number, std::vector<action> const& actions, stream_ref on, gradient_buckets* g,
                            source_location at) const {
  switch (number) {
    case 0: return kernels.add_squares(on, at);
    case 1: return kernels.add_few(on, at);
    case 2: return share_norm(on, at);
    case without_norm: return kernels.begin(on, at);
    default: break;
  }
  action const& a = actions[static_cast<std::size_t>(number - first_action)];
  if (a.gathers >= 0)
    g->begin_gather(a.gathers, on, at);
  else
    kernels.update(on, a.first, a.chunks, a.uses, at);
}

void optimizer::parts::make(train::rule how, double rate, loss_scale const* scale, communicator* shared,
                            source_location at) {
  require_items(what, items, at);
  bool const has_norm = std::isfinite(how.max_norm) || scale;
  if (!shared && has_norm && std::ranges::any_of(items, &update_item::is_part))
    throw invalid_use(what, "a norm of parts without the ranks that have the rest",
                      "Set the option `ranks` to the communicator of the buckets", at, error_id{561});
  ranks = has_norm ? shared : nullptr;
  require_numbers(what, {{"rate", rate}, {"decay", how.decay}, {"max_norm", how.max_norm}}, at);
  kernels.how = how;
  if (scale) {
    kernels.scale = static_cast<train::scale_state*>(scale->state().data);
    kernels.grows = {static_cast<float>(scale->options().most), static_cast<float>(scale->options().steps_to_grow)};
  }
  std::vector<train::row> rows;
  std::vector<std::int32_t> row_of;
  std::size_t const bytes = lay_out(nullptr, rows, row_of);
  auto const has_memory = [](update_item const& i) { return i.rate != 0 && i.parameter.data; };
  auto const first = std::ranges::find_if(items, has_memory);
  // A rank without any part has no parameter that would name a device.
  std::optional<block_info> const its = first != items.end() ? find_block(first->parameter.data) : std::nullopt;
  stream_ref const on = current_stream(its ? its->on : gpu, at);
  block = memory::as_called(what, [&] { return buffer(on, bytes, default_alignment, at); });
  lay_out(block.data<std::byte>(), rows, row_of);
  declare(streams::clock_or_throw(on, what, at).owner());
  fill(on, block.data(), std::byte{0}, bytes, at);
  copy_item const table[] = {
      {const_cast<train::row*>(kernels.rows), rows.data(), rows.size() * sizeof rows[0]},
      {const_cast<std::int32_t*>(kernels.row_of), row_of.data(), row_of.size() * sizeof row_of[0]},
      {&kernels.numbers->rate, &rate, sizeof rate}};
  copy(on, table, blocking::yes, at);
  if (rounds)
    kernels.read_parameters(on, at);
}

std::vector<update_item> items_of(gradient_buckets const& g, source_location at) {
  std::vector<update_item> all;
  (void)g.parameter(0, at);  // throws before build(), also if nothing was added
  for (int i = 0; i < g.size(); ++i) {
    update_item o{g.parameter(i, at), g.reduced(i, at)};
    gradient_buckets::part const mine = g.own(i, at);
    if (!o.parameter.data)
      o.rate = 0;
    else if (g.is_sharded())
      o = {.parameter = cut(o.parameter, mine), .gradient = cut(o.gradient, mine), .is_part = true};
    all.push_back(o);
  }
  return all;
}

optimizer::optimizer(std::unique_ptr<parts> p) noexcept : parts_(std::move(p)) {}
optimizer::optimizer(optimizer&&) noexcept = default;
optimizer& optimizer::operator=(optimizer&&) noexcept = default;
optimizer::~optimizer() = default;

void optimizer::step(stream_ref on, source_location at) {
  make_calls(on, nullptr, at);
}
void optimizer::step(stream_ref on, gradient_buckets& g, source_location at) {
  make_calls(on, &g, at);
}

void optimizer::make_calls(stream_ref on, gradient_buckets* g, source_location at) {
  clock::stream_clock const& stream = streams::clock_or_throw(on, parts_->what, at);
  // The norm would be summed on another stream, beside the launches of this one.
  if (parts_->ranks && on.device() != parts_->ranks->device())
    throw invalid_use(parts_->what,
                      base::text("a step on ", streams::describe(stream), " for the rank of ",
                                 base::gpu_name(parts_->ranks->device().index())),
                      "Pass a stream of the rank's device", at, error_id{563});
  int const first = parts_->kernels.sums ? 0 : parts::without_norm;
  parts_->require_buckets(g, on, first, at);
  std::vector<parts::action> const& actions = parts_->actions_for(g, at);
  int const all_calls = parts::first_action + static_cast<int>(actions.size());
  // A refused call spoils its capture, and nothing of it runs: a graph has all calls of a step, or is none.
  if (auto const captured = stream.captured(); captured.ok() && captured.value) {
    if (parts_->refused_at > first)
      throw invalid_use(parts_->what, "a captured step, and an earlier one was refused in part",
                        "Repeat the refused call outside of the capture first", at, error_id{562});
    for (int number = first; number < all_calls; ++number)
      parts_->call(number, actions, on, g, at);
    return;
  }
  // A step that was refused has counted already if begin() was enqueued: it goes on where it stopped.
  int& next = parts_->refused_at;
  parts_->refused_of = g ? g->parameter(0, at).data : nullptr;
  for (next = std::max(next, first); next < all_calls; ++next)
    parts_->call(next, actions, on, g, at);
  next = 0;
}

void optimizer::set_rate(stream_ref on, double rate, source_location at) {
  require_numbers(parts_->what, {{"rate", rate}}, at);
  train::put(on, &parts_->kernels.numbers->rate, rate, at);
}
void optimizer::set_steps(stream_ref on, std::int64_t steps, source_location at) {
  if (steps < 0)
    throw invalid_use(parts_->what, base::text("set_steps of ", steps), "Pass a number of steps, 0 or more", at,
                      error_id{555});
  train::put(on, &parts_->kernels.numbers->steps, steps, at);
}
void optimizer::read_parameters(stream_ref on, source_location at) {
  if (parts_->rounds)
    parts_->kernels.read_parameters(on, at);
}

std::int64_t optimizer::steps(stream_ref on, source_location at) const {
  std::int64_t n = 0;
  copy(on, &n, &parts_->kernels.numbers->steps, sizeof n, blocking::yes, at);
  return n;
}
std::int64_t optimizer::skipped(stream_ref on, source_location at) const {
  std::int64_t n = 0;
  copy(on, &n, &parts_->kernels.numbers->skipped, sizeof n, blocking::yes, at);
  return n;
}
device_span optimizer::norm() const {
  return {&parts_->kernels.numbers->norm, parts_->kernels.sums ? 1 : 0, float32};
}
std::vector<state_part> optimizer::state() const {
  return parts_->state;
}

adamw::adamw(std::span<update_item const> items, adamw_options o, source_location at)
    : optimizer(std::unique_ptr<parts>(new parts{"adamw", {items.begin(), items.end()}})) {
  require_share("adamw", "beta1", o.beta1, at);
  require_share("adamw", "beta2", o.beta2, at);
  require_numbers("adamw", {{"epsilon", o.epsilon}}, at);
  parts_->make({.adaptive = true,
                .beta1 = o.beta1,
                .beta2 = o.beta2,
                .epsilon = o.epsilon,
                .decay = o.decay,
                .max_norm = o.max_norm},
               o.rate, o.scale, o.ranks, at);
}
adamw::adamw(gradient_buckets const& g, adamw_options o, source_location at) : adamw(items_of(g, at), o, at) {}

sgd::sgd(std::span<update_item const> items, sgd_options o, source_location at)
    : optimizer(std::unique_ptr<parts>(new parts{"sgd", {items.begin(), items.end()}})) {
  require_numbers("sgd", {{"momentum", o.momentum}}, at);
  if (o.nesterov && o.momentum == 0)
    throw invalid_use("sgd", "nesterov with a momentum of 0", "Pass a momentum", at, error_id{556});
  parts_->make({.momentum = o.momentum, .decay = o.decay, .max_norm = o.max_norm, .nesterov = o.nesterov}, o.rate,
               o.scale, o.ranks, at);
}
sgd::sgd(gradient_buckets const& g, sgd_options o, source_location at) : sgd(items_of(g, at), o, at) {}

}  // namespace weir
