// What a session does with a heap's handles: they come, move, fall asleep and go.
// Threads: as session.h.
#include <algorithm>

#include "runtime/core/log.h"
#include "runtime/memory/heap/session.h"

namespace weir::memory {

void excluded::note_readers(address at, std::uint64_t more) noexcept {
  handle& h = heap_.handles_.at(at);
  heap_.peer_bytes_ -= heap_.of_.open_bytes(h);
  h.readers |= more;
  heap_.peer_bytes_ += heap_.of_.open_bytes(h);
}

bool session::has_handle(aliased_handle const* h, address at) const noexcept {
  auto const found = heap_.handles_.find(at);
  return found != heap_.handles_.end() && &found->second == h;
}

void session::list_made(region& in, handle const& h, handle_node node) noexcept {
  static_cast<handle&>(node.mapped()) = h;
  in.set_pages(h, &heap_.handles_.insert(std::move(node)).position->second);
  heap_.note_mapped(h);
}

void session::list_arrived(region& in, handle_node node) noexcept {
  aliased_handle& h = heap_.handles_.insert(std::move(node)).position->second;
  in.set_pages(h, &h);
  heap_.of_.counts.handle_moved();
  heap_.counts_.mapped(static_cast<std::int64_t>(h.bytes));
  heap_.record_mapping(h, observe::action::map);
}

void session::enter_segment(region& in, handle const& h) {
  try {
    aliased_handle& known = heap_.handles_[h.at];
    static_cast<handle&>(known) = h;
    in.set_pages(h, &known);
    heap_.blocks_.add_region(in, state::free);
  } catch (std::bad_alloc const&) {
    // If it got there. The caller drops the region, whose pages may name it still.
    heap_.handles_.erase(h.at);
    throw;
  }
  heap_.note_mapped(h);
}

std::optional<std::uint64_t> session::free_since(handle const& h) noexcept {
  heap_block const* const p = heap_.blocks_.free_around(h);
  return p ? std::optional(p->freed) : std::nullopt;
}

released session::reserve_around(handle const& h) {
  released r{nullptr, heap_.of_.space.find(reinterpret_cast<void const*>(h.at)), {h}};
  r.place = heap_.blocks_.reserve_around(h);
  return r;
}

released session::reserve_unmapped(address from, std::size_t bytes) {
  return {heap_.blocks_.reserve_unmapped(from, bytes), nullptr, {}};
}

void session::leave_alias(alias_table& in, address of_handle, address at) {
  in.leave(heap_.handles_.at(of_handle), at, {}, false);
}

session::detached session::detach(released const& r) noexcept {
  auto const which = heap_.handles_.find(r.handles.front().at);
  aliased_handle const& h = which->second;
  heap_.record_mapping(h, observe::action::unmap);
  r.place->in->set_pages(h, nullptr);
  return {heap_.handles_.extract(which), {heap_.home().id(), r.place->freed}};
}

void session::vacated(released const& r) noexcept {
  heap_.counts_.mapped(-static_cast<std::int64_t>(r.handles.front().bytes));
  heap_.of_.counts.handle_gone();
  if (heap_.rules().places_stay)
    heap_.left_behind_ += r.place->bytes;  // stays reserved
  else
    release(r);
}

void session::forget_handle(region& in, handle const& h) noexcept {
  in.set_pages(h, nullptr);
  heap_.handles_.erase(h.at);
  heap_.note_unmapped(h);
}

void session::keep_unusable(released&& r) noexcept {
  try {
    heap_.unusable_.push_back(std::move(r));
  } catch (std::bad_alloc const&) {}  // its block stays reserved until the end
}

void session::keep_unusable(region& in, handle const& h) {
  heap_.unusable_.push_back({heap_.blocks_.reserve_around(h), &in, {h}});
}

std::vector<released> session::take_unusable() noexcept {
  return std::exchange(heap_.unusable_, {});
}

session::handle_node session::detach_segment(address at) noexcept {
  handle_node its = heap_.handles_.extract(at);
  heap_.record_mapping(its.mapped(), observe::action::unmap);
  return its;
}

void session::attach_segment(region& in, handle_node node) noexcept {
  aliased_handle& h = heap_.handles_.insert(std::move(node)).position->second;
  in.set_pages(h, &h);
  heap_.record_mapping(h, observe::action::map);
}

void session::segment_gone(released const& r, handle const& h) noexcept {
  heap_.of_.counts.handle_gone();
  heap_.counts_.mapped(-static_cast<std::int64_t>(h.bytes));
  heap_.pool().refund(h.bytes);
  heap_.of_.counts.refund(h.bytes);
  log_mapping(h.bytes, "memory returned to the driver");
  release(r);
  heap_.blocks_.drop_region(*r.in);
}

std::optional<handle> session::take_any_handle() noexcept {
  if (heap_.handles_.empty())
    return std::nullopt;
  return heap_.handles_.extract(heap_.handles_.begin()).mapped();
}

void session::log_mapping(std::size_t bytes, char const* what) const noexcept {
  if (bytes && logs(heap_.of_.runtime, log_level::debug)) [[unlikely]]
    log(log_level::debug, {heap_.of_.device, heap_.shown_stream(), bytes}, what);
}

bool session::came_unstamped_after(std::uint64_t number) const noexcept {
  return heap_.came_unstamped_.stream == heap_.home().id() && heap_.came_unstamped_.n > number;
}

clock::stamp session::newest_freed() const noexcept {
  clock::stamp newest{heap_.home().id(), std::max(heap_.blocks_.newest_given(), heap_.slots_.newest_freed())};
  if (heap_.came_unstamped_.stream == newest.stream)
    newest.n = std::max(newest.n, heap_.came_unstamped_.n);
  return newest;
}

void session::fall_asleep() noexcept {
  WEIR_RULE(!heap_.asleep_.get() && heap_.pending_.empty(), "a heap falls asleep twice, or with pending blocks");
  heap_.pool().add_asleep(heap_.count_asleep(true));
  heap_.asleep_.set(true);
}

void session::wake_up() noexcept {
  WEIR_RULE(heap_.asleep_.get(), "a heap wakes up that is not asleep");
  heap_.asleep_.set(false);
  heap_.count_asleep(false);
}

void session::put_asleep(address at) noexcept {
  aliased_handle& h = heap_.handles_.at(at);
  WEIR_RULE(!h.asleep && !h.alias_count.get(), "a handle falls asleep twice, or with an alias");
  heap_.note_unmapped(h);
  h.physical = driver::memory_handle::none;
  h.asleep = true;
}

// Throws: bad_alloc, with nothing changed
void session::split_sleeping() {
  std::size_t const page = heap_.of_.space.page_bytes();
  std::map<address, aliased_handle> fresh;  // of one page each
  each_free([&](heap_block const& p) {
    for (address at = round_up(p.at, page); at + page <= p.end();) {
      handle const& h = *p.in->page(at);
      at = h.at + h.bytes;
      // A mapped handle stays. One that is wholly free needs no cut: drop_sleeping() forgets it.
      if (!h.asleep || (h.at >= p.at && at <= p.end()))
        continue;
      for (address a = h.at; a < at; a += page) {
        auto const [i, is_new] = fresh.try_emplace(a);
        if (!is_new)  // another free block lies in that handle, too
          continue;
        handle& single = i->second;  // a sleeping handle has no aliases
        single = h;
        single.at = a, single.bytes = page;
      }
    }
  });
  if (fresh.empty())
    return;
  heap_.blocks_.change_handles([&] {
    for (auto const& [at, h] : fresh)
      heap_.handles_.erase(at);  // the old handle, if it begins there
    while (!fresh.empty()) {
      handle& h = heap_.handles_.insert(fresh.extract(fresh.begin())).position->second;
      heap_.of_.space.find(reinterpret_cast<void const*>(h.at))->set_pages(h, &h);
    }
  });
}

std::vector<released> session::drop_sleeping() {
  return_empty_runs();
  split_sleeping();
  auto found = reserve_handles(~std::size_t{0}, arena::first::lowest, [](std::uint64_t) { return true; });
  for (released& r : found.all) {
    for (handle const& h : r.handles) {
      if (!h.asleep)
        continue;
      r.in->set_pages(h, nullptr);
      heap_.handles_.erase(h.at);
    }
    std::erase_if(r.handles, [](handle const& h) { return h.asleep; });
    // Nothing there is left to unmap.
    if (r.handles.empty())
      release(r);
  }
  std::erase_if(found.all, [](released const& r) { return r.handles.empty(); });
  return std::move(found.all);
}

void session::adopt(handle const& made) noexcept {
  auto const first = heap_.handles_.find(made.at);
  heap_.handles_.erase(std::next(first), heap_.handles_.lower_bound(made.at + made.bytes));
  aliased_handle& h = first->second;
  h.bytes = made.bytes, h.physical = made.physical, h.readers = made.readers, h.asleep = false;
  heap_.of_.space.find(reinterpret_cast<void const*>(h.at))->set_pages(h, &h);
  heap_.note_mapped(h);
}

}  // namespace weir::memory
