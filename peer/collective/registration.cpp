// Registered pools of a communicator: what is registered, and where a collective's memory lies in it.
// Threads: as the communicator.
//
// Invariant: a pool is held, and so keeps its memory, from its registration until its rank's communicator or
// runtime ends.
#include <algorithm>

#include "peer/collective/group.h"
#include "runtime/core/parts.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/space/memory_pool.h"
#include "streams/api/pool_state.h"

namespace weir {
namespace peer {
namespace {

// Of `placed`: the pool and the offset of the memory whose place is equal on all ranks, and the pool of the other.
constexpr int pool_bits = 8, offset_bits = 48;
constexpr std::size_t most_pools = (std::size_t{1} << pool_bits) - 1;

}  // namespace

std::string placed_text(std::uint64_t placed) {
  if (!placed)
    return {};
  std::uint64_t const its = placed >> offset_bits & most_pools, other = placed >> (offset_bits + pool_bits);
  std::string text;
  std::uint64_t const offset = placed & ((std::uint64_t{1} << offset_bits) - 1);
  if (its)
    text = base::text(", at byte ", offset, " of registered pool ", its);
  return other ? text + base::text(", its part in registered pool ", other) : text;
}

// The place of the whole buffer, and the pool of the other one: a part's place in its pool differs by rank.
// Scatter and gather have none: only their root passes both buffers.
std::uint64_t group::placed(int rank, collective_request const& r) const noexcept {
  auto const& all = registered_[static_cast<std::size_t>(rank)];
  if (all.empty() || r.count == 0 || r.between_two())
    return 0;
  if (r.what == collective::scatter || r.what == collective::gather)
    return 0;
  struct place {
    std::uint64_t pool = 0, offset = 0;  // pools count from 1; 0: it lies in none
  };
  auto const place_of = [&](void const* p) -> place {
    auto const at = reinterpret_cast<std::uintptr_t>(p);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (at - all[i].at < all[i].bytes)  // unsigned: false below its first byte, too
        return {i + 1, at - all[i].at};
    return {};
  };
  bool const whole_is_input = r.what == collective::reduce_scatter;
  place const whole = place_of(whole_is_input ? r.in : r.out);
  bool const has_one_buffer = r.what == collective::all_reduce || r.what == collective::broadcast;
  place other;
  if (!has_one_buffer)
    other = place_of(whole_is_input ? r.out : r.in);
  return other.pool << (offset_bits + pool_bits) | whole.pool << offset_bits | whole.offset;
}

void group::register_pool(int rank, clock::stream_clock& on, memory::allocator& of, memory::memory_pool& pool,
                          source_location at) {
  auto& all = registered_[static_cast<std::size_t>(rank)];
  bool const is_registered = std::any_of(all.begin(), all.end(), [&](registered const& r) { return r.pool == &pool; });
  if (is_registered || all.size() == most_pools)
    throw invalid_use(
        "register_pool",
        base::text("rank ", rank, ": pool ", pool.name(),
                   is_registered ? " is registered already" : base::text(" is one more than ", most_pools)),
        "Register each pool once, and few, of a higher limit", at, error_id{450});
  bool const may_multicast = backend_->prepare_registration(rank, at);
  auto const whole = of.whole(pool);
  all.reserve(all.size() + 1);  // so that nothing throws after all ranks have registered
  collective_request r{collective::register_pool,
                       uint8,
                       reduce_op::sum,
                       0,
                       static_cast<std::int64_t>(whole.bytes),
                       reinterpret_cast<void const*>(whole.at)};  // NOLINT(performance-no-int-to-ptr)
  std::string const operation(name_of(r.what));
  refuse_if_broken(rank, operation, {&r, 1}, at);
  agree(rank, {&r, 1}, at);
  try {
    bool all_may = may_multicast;
    if (!runtime_.machine().simulated())
      all_may = all_are_ready(rank_watch::round::register_pool, rank, may_multicast, at);
    backend_->register_memory(rank, on, r, all_may, at);
  } catch (...) {
    take_back(rank, operation, {&r, 1}, at);
    throw;
  }
  issued(rank);
  pool.hold();
  all.push_back({&of, &pool, whole.at, whole.bytes});
}

void group::leave_backend(int rank) noexcept {
  backend_->leave(rank);
  if (process_is_ending())
    return;
  for (registered const& r : registered_[static_cast<std::size_t>(rank)])
    r.of->let_go(*r.pool);
  registered_[static_cast<std::size_t>(rank)].clear();
}

}  // namespace peer

void communicator::register_pool(pool const& p, source_location at) {
  runtime::impl& owner = state_->all->owner("register_pool", at);
  pool::state const& its = p.usable("register_pool", at);
  int const device = state_->all->device(rank());
  std::string why;
  if (!its.here->is_registered())
    why = " is an ordinary pool";
  else if (its.of.if_alive() != &owner)
    why = " is of another runtime";
  else if (its.on.index() != device)
    why = base::text(" of ", its.on.str(), ", the rank's device is ", base::gpu_name(device));
  if (!why.empty())
    throw invalid_use("register_pool", base::text("rank ", rank(), ": pool ", its.name, why),
                      "Pass a pool of this runtime and of the rank's device, made with pool_options::registered", at,
                      error_id{449});
  state_->all->register_pool(rank(), state_->all->stream(rank(), "register_pool", at), *its.memory, *its.here, at);
}

}  // namespace weir
