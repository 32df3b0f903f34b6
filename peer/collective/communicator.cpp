// The communicator: checks a call against its memory and the other ranks, and passes it to the backend.
// Threads: each rank by one thread at a time; abort by any.
#include <algorithm>

#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"
#include "weir/copy.h"
#include "weir/memory.h"

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

namespace {
bool are_send_receive(requests all) noexcept {
  return all.size() == 2 && all[0].what == collective::send && all[1].what == collective::receive;
}
}  // namespace

std::string_view name_of(requests all) noexcept {
  if (are_send_receive(all))
    return "send_receive";
  auto const is_as_the_first = [&](collective_request const& r) { return r.what == all[0].what; };
  bool const are_alike = !all.empty() && std::all_of(all.begin(), all.end(), is_as_the_first);
  return are_alike ? name_of(all[0].what) : "collective_group";
}

std::string text_of(requests all) {
  if (all.size() == 1)
    return all[0].text();
  if (are_send_receive(all))
    return all[0].text() + " and " + all[1].text();
  constexpr std::size_t named = 4;
  std::string text = base::text("a group of ", all.size(), ": ");
  for (std::size_t i = 0; i < std::min(named, all.size()); ++i)
    text += (i ? ", " : "") + all[i].of_one();
  return all.size() > named ? text + base::text(" and ", all.size() - named, " more") : text;
}

bool collective_request::matches(collective_request const& other) const noexcept {
  return what == other.what && type == other.type && count == other.count && (!reduces() || how == other.how) &&
         (!has_root() || root == other.root) && placed == other.placed && member == other.member &&
         members == other.members;
}

std::string collective_request::text() const {
  return members > 1 ? base::text(of_one(), ", member ", member + 1, " of a group of ", members) : of_one();
}

std::string collective_request::of_one() const {
  if (what == collective::register_pool)
    return base::text(name_of(what), " of ", count, " B");
  std::string s = base::text(name_of(what), " of ", count, " ", weir::name_of(type));
  if (reduces())
    s += " (" + std::string(weir::name_of(how)) + ")";
  if (has_root() || between_two())
    s += (what == collective::gather || what == collective::send ? " to rank " : " from rank ") + std::to_string(root);
  return s + placed_text(placed);
}

collective_request::own_touches collective_request::touches(std::size_t ranks) const noexcept {
  std::size_t const part = part_bytes(), all = part * ranks;
  driver::touch const read{reinterpret_cast<driver::address>(in), reads_all() ? all : part, false};
  driver::touch const written{reinterpret_cast<driver::address>(out), writes_all() ? all : part, true};
  own_touches t{{{read, written}}};
  // Without `in` the first is omitted, without `out` the second. Empty parts touch nothing.
  if (!in)
    t.first = 1;
  if (part > 0)
    t.count = std::size_t{in != nullptr} + std::size_t{out != nullptr};
  return t;
}

std::string_view name_of_round(rank_watch::round of) noexcept {
  return base::name_in({"barrier", "split", "register_pool", "checkpoint_writer::save", "communicator"}, of);
}

bool have_collective(requests all) noexcept {
  return std::any_of(all.begin(), all.end(), [](collective_request const& r) { return !r.between_two(); });
}

bool reducible(dtype type) noexcept {
  return type != int16 && type != boolean;
}

group::group(runtime::impl& owner, std::vector<int> devices, std::unique_ptr<collective_backend> by)
    : runtime_(owner),
      devices_(std::move(devices)),
      backend_(std::move(by)),
      registered_(devices_.size()),
      captured_(devices_.size()),
      unknown_graphs_(devices_.size()) {}

bool needs(requests what, int rank) noexcept {
  return what.empty() || std::any_of(what.begin(), what.end(),
                                     [&](collective_request const& r) { return !r.between_two() || r.root == rank; });
}

// A forked child has copies of locks that threads of its parent hold, or wait for: they cannot be destroyed.
std::shared_ptr<group> shared_by_ranks(std::unique_ptr<group> g) {
  return {g.release(), [](group* all) {
            if (!process_was_forked())
              delete all;
          }};
}

runtime::impl& group::owner(std::string_view operation, source_location at) const {
  if (process_was_forked())
    streams::throw_forked(operation, at);
  if (ended())
    throw invalid_use(std::string(operation), "the communicator's runtime has ended",
                      "Keep the runtime until its last use", at, error_id{253});
  return runtime_;
}

void group::refuse_if_broken(int rank, std::string const& operation, requests all, source_location at) {
  refuse_if_over(rank, operation, all, at);
  if (std::string const why = backend_->broken(rank); !why.empty()) {
    end_broken(rank, why, operation, at);
    throw driver_error(0, operation, base::text("rank ", rank, " of ", size(), ": ", why), "Create a new communicator",
                       at, error_id{257});
  }
}

void group::end_broken(int rank, std::string const& why, std::string const& operation, source_location at) {
  bool was_over = true;
  try {
    was_over = !failure().empty();
  } catch (std::bad_alloc const&) {}  // no host memory for the text: so there is a failure
  abort(rank, why);
  // They had ended before: this throws, and names the rank that ended them.
  if (was_over)
    refuse_if_over(rank, operation, {}, at);
}

void group::take_back(int rank, std::string const& operation, requests all, source_location at) {
  std::string why;
  try {
    why = backend_->broken(rank);
  } catch (std::bad_alloc const&) {
    return abort(rank, {});  // no host memory for the text: so it is broken
  }
  if (why.empty())
    withdraw(rank, all, at);
  else
    end_broken(rank, why, operation, at);
}

class group::captured_calls final : public clock::launch_listener {
 public:
  captured_calls(std::weak_ptr<group> of, int rank, std::uint64_t capture)
      : of_(std::move(of)), rank_(rank), capture_(capture) {}
  void taken() noexcept override {
    auto const all = of_.lock();
    if (all && !is_taken_.exchange(true))
      all->unknown_graphs_[static_cast<std::size_t>(rank_)].fetch_sub(1);
  }
  void begins(char const* operation, source_location at) override {
    auto const all = of_.lock();
    if (!all)
      throw invalid_use(operation,
                        base::text("a graph with collectives of rank ", rank_, ", whose communicator has ended"),
                        "Keep all ranks' communicators until the last launch", at, error_id{485});
    all->launches(rank_, all_, operation, at);
  }
  void launched(clock::stream_clock& on) noexcept override {
    if (auto const all = of_.lock())
      all->launched(rank_, on);
  }
  void refused() noexcept override {
    if (auto const all = of_.lock())
      all->launch_refused(rank_, all_);
  }
  bool is_of(std::uint64_t capture) const noexcept { return capture == capture_; }
  void make_room(requests all) {
    for (collective_request const& r : all)
      if (r.between_two())
        (void)all_.with[r.root];
  }
  void add(requests all) noexcept {
    for (collective_request const& r : all) {
      if (!r.between_two()) {
        ++all_.collectives;
        continue;
      }
      rank_watch::transfers& with = all_.with.find(r.root)->second;
      ++(r.what == collective::send ? with.sent : with.received);
    }
  }

 private:
  std::weak_ptr<group> const of_;
  int const rank_;
  std::uint64_t const capture_;
  captured_requests all_;  // complete when the capture ends
  base::atomic<bool> is_taken_{false};
};

group::captured_calls* group::captured_now(int rank, clock::stream_clock& on) {
  auto const lane = on.lane();
  if (!lane.ok() || !lane.value)
    return nullptr;
  auto& last = captured_[static_cast<std::size_t>(rank)];
  if (!last || !last->is_of(lane.value->capture())) {
    auto made = std::make_shared<captured_calls>(weak_from_this(), rank, lane.value->capture());
    runtime_.part<clock::clocks>().listen(*lane.value, made);
    unknown_graphs_[static_cast<std::size_t>(rank)].fetch_add(1);
    last = std::move(made);
  }
  return last.get();
}

clock::stream_clock& group::stream(int rank, std::string_view operation, source_location at) const {
  return streams::current_clock(owner(operation, at), device(rank), at);
}

stamp group::call(int rank, std::span<collective_request> all, std::span<source_location const> from,
                  source_location at) {
  clock::stream_clock& on = stream(rank, name_of(all), at);
  use_on(on, all, rank, size(), from);
  return issue(rank, on, all, at);
}

void group::place_members(int rank, std::span<collective_request> all) const noexcept {
  std::uint32_t members = 0;
  for (collective_request& r : all) {
    r.placed = placed(rank, r);
    if (r.between_two())
      continue;
    r.member = members;
    ++members;
  }
  for (collective_request& r : all)
    if (!r.between_two())
      r.members = members;
}

stamp group::issue(int rank, clock::stream_clock& on, std::span<collective_request> all, source_location at) {
  std::string_view const name = name_of(all);
  std::string const operation(name);
  refuse_if_broken(rank, operation, all, at);
  if (all.empty())
    return streams::public_stamp(on.now());
  place_members(rank, all);
  on.set_carries_collectives(true);
  // Before the collective: a fence behind it would wait for other ranks.
  if (auto* const memory = runtime_.part<memory::device_memory>().if_made(on.device()))
    memory->fence_what_came_free(on);
  on.count_collective();
  agree(rank, all, at);
  try {
    std::size_t bytes = 0;
    for (collective_request const& r : all)
      bytes += r.part_bytes();
    streams::timed_work const timed(on, name, bytes, at);
    captured_calls* const captured = on.seen_captured() ? captured_now(rank, on) : nullptr;
    if (captured)
      captured->make_room(all);
    backend_->issue(rank, on, all, at);
    if (captured)
      captured->add(all);
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
  // At the runtime's end, streams and pinned memory wait for work. A collective with a missing rank would
  // block them forever, so all ranks leave before. That needs the clocks and the memory: they are made here.
  explicit groups(runtime::impl& r) {
    (void)r.part<clock::clocks>(), (void)r.part<memory::device_memory>();
    r.before_the_end(this, [](void* self) noexcept {
      auto const all = static_cast<groups*>(self)->all_.lock();
      for (auto const& one : *all)
        if (auto const alive = one.lock())
          alive->runtime_ends();
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

void add_to(runtime::impl& owner, std::shared_ptr<group> const& one) {
  owner.part<groups>().add(one);
}

}  // namespace peer

communicator::state::~state() {
  if (all && !process_was_forked())
    all->leave(rank);
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
  for (int const ordinal : ordinals)
    owner.open(ordinal, "communicator::create_all", at);
  auto const all = peer::group_of_threads(owner, ordinals, at);
  std::vector<communicator> ranks;
  for (int rank = 0; rank < all->size(); ++rank)
    ranks.push_back(communicator(std::unique_ptr<state>(new state{all, rank})));
  return ranks;
}

int communicator::rank() const noexcept {
  return state_->rank;
}
int communicator::size() const noexcept {
  return state_->all->size();
}
weir::device communicator::device() const noexcept {
  return weir::device(state_->all->device(state_->rank));
}

stamp communicator::all_reduce(device_span what, reduce_op how, source_location at) {
  return state_->call(state_->asks(at).all_reduce(what, how), at);
}
stamp communicator::broadcast(device_span what, int root, source_location at) {
  return state_->call(state_->asks(at).broadcast(what, root), at);
}
stamp communicator::scatter(device_span out, device_span in, int root, source_location at) {
  return state_->call(state_->asks(at).scatter(out, in, root), at);
}
stamp communicator::gather(device_span out, device_span in, int root, source_location at) {
  return state_->call(state_->asks(at).gather(out, in, root), at);
}
stamp communicator::all_gather(device_span out, device_span in, source_location at) {
  return state_->call(state_->asks(at).all_gather(out, in), at);
}
stamp communicator::reduce_scatter(device_span out, device_span in, reduce_op how, source_location at) {
  return state_->call(state_->asks(at).reduce_scatter(out, in, how), at);
}
stamp communicator::all_to_all(device_span out, device_span in, source_location at) {
  return state_->call(state_->asks(at).all_to_all(out, in), at);
}
stamp communicator::send(device_span in, int to, source_location at) {
  return state_->call(state_->asks(at).send(in, to), at);
}
stamp communicator::receive(device_span out, int from, source_location at) {
  return state_->call(state_->asks(at).receive(out, from), at);
}
stamp communicator::send_receive(device_span in, int to, device_span out, int from, source_location at) {
  peer::collective_request both[] = {state_->asks(at).send(in, to, "send_receive"),
                                     state_->asks(at).receive(out, from, "send_receive")};
  source_location const where[] = {at, at};
  return state_->all->call(rank(), both, where, at);
}

void communicator::exchange_bytes(void const* mine, void* all, size_t bytes, source_location at) {
  stream_ref const on = streams::ref_of(state_->all->stream(rank(), "communicator::exchange", at));
  stream_guard const here(on, at);
  auto const each = static_cast<std::int64_t>(bytes);
  buffer const memory(on, bytes * (static_cast<size_t>(size()) + 1), default_alignment, at);
  device_span const in{memory.data(), each, uint8}, out{memory.data<std::byte>() + bytes, each * size(), uint8};
  weir::copy(on, in.data, mine, bytes, non_blocking, at);
  (void)all_gather(out, in, at);
  weir::copy(on, all, out.data, bytes * static_cast<size_t>(size()), blocking::yes, at);
  // An abort lets the copy return before the gather has written its bytes.
  if (!failure().empty())
    state_->all->refuse_if_broken(rank(), "communicator::exchange", {}, at);
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
  if (!mine.in)
    return {};
  made->all = std::move(mine.in), made->rank = mine.rank;
  return communicator(std::move(made));
}
void communicator::abort() noexcept {
  if (!process_was_forked())
    state_->all->abort(state_->rank, peer::by_its_program);
}
std::string communicator::failure() const {
  return process_was_forked() ? "this process was forked from the rank's" : state_->all->failure();
}

}  // namespace weir
