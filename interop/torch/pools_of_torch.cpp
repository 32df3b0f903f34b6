#include "interop/torch/pools_of_torch.h"

#include <algorithm>
#include <string>

namespace weir::interop {
namespace {
constexpr source_location unknown;  // a line of Python
}

void pools_of_torch::hold(int device, id which) {
  std::lock_guard const hold(lock_);
  ++all_[{device, which}].holds;
}

void pools_of_torch::begin(int device, id which, filter accepts) {
  std::lock_guard const hold(lock_);
  one& its = all_[{device, which}];
  routes_.reserve(routes_.size() + 1);
  auto of_captures = std::make_unique<graph_memory_route>(its.graphs, weir::device(device), accepts, unknown);
  routes_.push_back({{device, which}, std::this_thread::get_id(), std::move(accepts), std::move(of_captures)});
  ++its.holds;
  open_.fetch_add(1, std::memory_order_relaxed);
}

void pools_of_torch::end(int device, id which) noexcept {
  route gone;  // destroyed after the lock
  std::lock_guard const hold(lock_);
  auto const is_its = [&](route const& r) { return r.of == place{device, which}; };
  auto newest = std::find_if(routes_.rbegin(), routes_.rend(),
                             [&](route const& r) { return is_its(r) && r.by == std::this_thread::get_id(); });
  if (newest == routes_.rend())
    newest = std::find_if(routes_.rbegin(), routes_.rend(), is_its);
  if (newest == routes_.rend())
    return;
  gone = std::move(*newest);
  routes_.erase(std::next(newest).base());
  open_.fetch_sub(1, std::memory_order_relaxed);
}

void pools_of_torch::release(int device, id which) noexcept {
  decltype(all_)::node_type gone;
  std::lock_guard const hold(lock_);
  auto const found = all_.find({device, which});
  if (found != all_.end() && --found->second.holds <= 0)
    gone = all_.extract(found);
}

int pools_of_torch::holds(int device, id which) noexcept {
  std::lock_guard const hold(lock_);
  auto const found = all_.find({device, which});
  return found == all_.end() ? 0 : found->second.holds;
}

int pools_of_torch::begun(int device, id which) noexcept {
  std::lock_guard const hold(lock_);
  auto const count = std::count_if(routes_.begin(), routes_.end(), [&](route const& r) {
    return r.of == place{device, which};
  });
  return static_cast<int>(count);
}

std::shared_ptr<pool> pools_of_torch::memory_of(int device, id which) {
  std::lock_guard const hold(lock_);
  auto const found = all_.find({device, which});
  return found == all_.end() ? nullptr : found->second.others;
}

void pools_of_torch::sleep(int device, id which, sleep_to where) {
  if (auto const its = memory_of(device, which))
    its->sleep(where, unknown);
}
void pools_of_torch::wake(int device, id which) {
  if (auto const its = memory_of(device, which))
    its->wake(unknown);
}

auto pools_of_torch::in_force(int device, CUstream_st* handle) -> std::optional<id> {
  std::lock_guard const hold(lock_);
  for (auto r = routes_.rbegin(); r != routes_.rend(); ++r) {
    if (r->of.first == device && r->accepts(handle))
      return r->of.second;
  }
  return std::nullopt;
}

auto pools_of_torch::by_number(int device) -> std::map<std::uint64_t, id> {
  std::map<std::uint64_t, id> all;
  std::lock_guard const hold(lock_);
  for (auto const& [where, its] : all_) {
    if (where.first != device)
      continue;
    if (its.others)
      all[its.others->number()] = where.second;
    if (std::uint64_t const number = its.graphs.number(weir::device(device), unknown))
      all[number] = where.second;
  }
  return all;
}

std::shared_ptr<pool const> pools_of_torch::entered(int device, CUstream_st* handle, stream_ref home) {
  std::lock_guard const hold(lock_);
  for (auto r = routes_.rbegin(); r != routes_.rend(); ++r) {
    if (r->of.first != device || !r->accepts(handle))
      continue;
    if (home.is_capturing(unknown))
      return nullptr;
    auto& its = all_[r->of].others;
    if (!its) {
      std::string const name =
          "torch " + std::to_string(r->of.second.first) + "." + std::to_string(r->of.second.second);
      its = std::make_shared<pool>(name, pool_options{.on = weir::device(device)}, unknown);
    }
    return its;
  }
  return nullptr;
}

}  // namespace weir::interop
