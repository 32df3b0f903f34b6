// weir/pool.h over the device's memory.
// Threads: any.
#include "weir/pool.h"

#include "runtime/memory/device/shortage.h"
#include "runtime/memory/heap/thread_caches.h"
#include "streams/api/host_store.h"
#include "streams/api/spills.h"
#include "streams/stream/context.h"

namespace weir {
pool::pool(std::string name, pool_options o, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  int const d = streams::resolve(o.on, r, "pool", at);
  if (name.empty())
    throw invalid_use("pool", "an empty name", "Name the pool: reports and errors show it", at, error_id{394});
  memory::allocator& its = r.part<memory::device_memory>().on(d, at);
  if (o.registered && !o.limit)
    throw invalid_use("pool", "pool " + name + ", registered, without a limit",
                      "Set pool_options::limit: a registered pool takes it at once", at, error_id{443});
  auto made =
      std::make_unique<state>(state{{.name = name, .on = d, .of = known_runtime(r), .memory = &its, .here = nullptr}});
  auto const make_registered = [&] {
    return &its.make_registered_pool(std::move(name), o.limit, streams::current_clock(r, d, at), at);
  };
  if (o.registered)  // takes its memory at once: what is refused there names this call
    made->here = memory::as_called("pool", make_registered);
  else
    made->here = &its.make_pool(std::move(name), o.limit);
  state_ = std::move(made);
}

pool::~pool() {
  if (!state_ || !state_->usable())
    return;
  streams::spills::leave(*state_);
  state_->memory->end_pool(*state_->here);
}
pool::pool(pool&&) noexcept = default;
pool& pool::operator=(pool&& other) noexcept {
  pool const old(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

pool::state& pool::usable(char const* operation, source_location at) const {
  if (!state_)
    throw invalid_use(operation, "a pool that was moved from", "Use the pool it was moved to", at, error_id{395});
  if (process_was_forked())
    streams::throw_forked(operation, at);
  (void)state_->of.get(operation, "pool " + state_->name, at);
  return *state_;
}

std::string const& pool::name() const noexcept {
  return state_->name;
}
weir::device pool::device() const noexcept {
  return state_->on;
}
std::uint64_t pool::number() const noexcept {
  return state_->usable() ? state_->here->number() : 0;
}
size_t pool::limit() const noexcept {
  return state_->usable() ? state_->here->now().limit : 0;
}

void pool::set_limit(size_t bytes, source_location at) {
  state const& s = usable("pool::set_limit", at);
  if (s.here->is_registered())
    throw invalid_use("pool::set_limit", "pool " + s.name + ", which is registered",
                      "A registered pool keeps its limit: make another pool", at, error_id{446});
  s.here->set_limit(bytes);
}

pool_memory_use pool::statistics(source_location at) const {
  state const& s = usable("pool::statistics", at);
  return s.memory->use_of(*s.here);
}

void* pool::allocate(size_t bytes, size_t alignment, source_location at) const {
  return allocate(current_stream(usable("pool::allocate", at).on, at), bytes, alignment, at);
}

void* pool::allocate(stream_ref s, size_t bytes, size_t alignment, source_location at) const {
  pool_guard const here(*this, at);
  if (weir::device const on = s.device(); on != state_->on)
    throw invalid_use("pool::allocate",
                      "a stream of " + on.str() + " for pool " + state_->name + " of " + state_->on.str(),
                      "Name a stream of the pool's device", at, error_id{396});
  return memory::as_called("pool::allocate", [&] { return weir::allocate(s, bytes, alignment, at); });
}

pool_guard::pool_guard(pool const& p, source_location at)
    : thread_(base::this_thread_id()), number_(memory::thread_caches::enter(*p.usable("pool_guard", at).here)) {}

pool_guard::~pool_guard() {
  if (thread_ == base::this_thread_id())
    memory::thread_caches::leave(number_);
}

size_t pool::sleep(sleep_to where, source_location at) {
  state& s = usable("pool::sleep", at);
  if (s.here->is_registered())
    throw invalid_use("pool::sleep", "pool " + s.name + ", which is registered",
                      "Peers may use its memory at any time: keep what is to sleep in another pool", at, error_id{447});
  bool const to_host = where == sleep_to::host;
  if (to_host)
    streams::host_store::prepare(*s.of.if_alive(), s.on.index(), at);
  streams::spills::turn const alone(s);
  runtime::impl& r = *s.of.if_alive();
  memory_report short_of{};
  auto const attempt = [&]() -> std::optional<size_t> {
    // A call of another thread may fail, and leave the pool awake: its end is waited for.
    if (s.memory->is_asleep(*s.here))
      return size_t{0};
    std::unique_ptr<streams::copied_store> store;  // null: its bytes are dropped
    if (to_host)
      store = std::make_unique<streams::host_store>(r, s.on.index(), at);
    return s.sleep(std::move(store), short_of, at);
  };
  return *memory::find_or_run_out(
      {&r, "pool::sleep", at}, attempt, [&] { return short_of; },
      [&] { r.part<streams::pinned_memory>().count_ran_out(); });
}

void pool::wake(source_location at) {
  state& s = usable("pool::wake", at);
  streams::host_store::prepare(*s.of.if_alive(), s.on.index(), at);
  streams::spills::turn const alone(s);
  memory::as_called("pool::wake", [&] { s.wake(at); });
}

std::optional<std::size_t> streams::pool_state::sleep(std::unique_ptr<copied_store> store, memory_report& short_of,
                                                      source_location at) {
  std::size_t given = 0;
  copied_store* const its = store.get();
  std::unique_ptr<memory::page_store> to_give = std::move(store);
  driver::status const is = memory->sleep(*here, std::move(to_give), given);
  // Refused: the store is this call's still.
  if (!is.ok() && its && its->refusal)
    std::rethrow_exception(its->refusal);
  if (!is.ok() && its && its->short_of) {
    short_of = std::move(*its->short_of);
    return std::nullopt;
  }
  if (!is.ok())  // the text needs host memory
    require(is, "pool::sleep", "pool " + name,
            is.what == driver::code::not_permitted
                ? "A capture or a graph uses blocks of the pool: end the capture, and destroy the graph, before"
                : "The pool is awake, and its memory is as it was: try again",
            at);
  return given;
}

void streams::pool_state::wake(source_location at) {
  if (!here->is_asleep())
    return;
  if (auto const is = memory->wake(*here, at); !is.ok())
    require(is, "pool::wake", "pool " + name, "The pool stays asleep, and its memory is kept: try again", at);
}

bool pool::is_asleep() const noexcept {
  return state_->usable() && state_->here->is_asleep();
}

std::vector<pool_memory_use> memory_by_pool(weir::device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  auto* const all = r.part_if_made<memory::device_memory>();
  memory::allocator const* const a = all ? all->if_made(streams::resolve(on, r, "memory_by_pool", at)) : nullptr;
  return a ? a->by_pool() : std::vector<pool_memory_use>{};
}

}  // namespace weir
