// The checker's calls on addresses and pages, the observer's calls, and its answers.
// Threads: as checking_driver.h says.
#include "runtime/base/os.h"
#include "runtime/base/process.h"
#include "runtime/base/round_up.h"
#include "simulator/checker/checking_driver.h"
#include "simulator/machine/guard.h"

namespace weir::driver::check {
namespace {
using as = places::as;
}  // namespace

result<address> checking_driver::reserve(std::size_t bytes, std::size_t alignment) {
  auto const r = inner_->reserve(bytes, alignment);
  if (r.ok())
    judge_.lock()->memory.reserve(r.value, bytes);
  return r;
}

status checking_driver::unreserve(address at, std::size_t bytes) {
  if (process_was_forked())
    return inner_->unreserve(at, bytes);
  judge_.lock()->memory.unreserve(at);
  status const is = inner_->unreserve(at, bytes);
  if (!is.ok())
    judge_.lock()->memory.reserve(at, bytes);
  return is;
}

result<memory_handle> checking_driver::created(result<memory_handle> r, int device, std::size_t bytes) {
  if (r.ok())
    judge_.lock()->memory.create(r.value, device, bytes);
  else
    note(r.is, device);
  return r;
}

result<memory_handle> checking_driver::create(int device, std::size_t bytes) {
  return created(inner_->create(device, bytes), device, bytes);
}

status checking_driver::release(memory_handle h) {
  if (process_was_forked())
    return inner_->release(h);
  auto p = judge_.lock()->memory.release(h);
  status const is = inner_->release(h);
  if (!is.ok() && p)
    judge_.lock()->memory.put_back(h, std::move(p));
  return is;
}

status checking_driver::map(address at, std::size_t bytes, memory_handle h) {
  status const is = inner_->map(at, bytes, h);
  if (is.ok())
    judge_.lock()->memory.map(at, bytes, h);
  return is;
}

status checking_driver::unmap(address at, std::size_t bytes) {
  if (process_was_forked())
    return inner_->unmap(at, bytes);
  std::optional<places::region> gone = judge_.lock()->memory.take(at);
  status const is = inner_->unmap(at, bytes);
  if (!gone)
    return is;
  auto const known = judge_.lock();
  base::site const in = base::this_call().in;
  if (is.ok())
    known->unmapped(*gone, at, in.operation ? in : base::site{"unmap", in.at});
  else
    known->memory.put_back(at, std::move(*gone));
  return is;
}

result<memory_handle> checking_driver::create_shared(int device, std::size_t bytes) {
  return created(inner_->create_shared(device, bytes), device, bytes);
}

// A separate physical memory: accesses of other processes are not seen.
result<memory_handle> checking_driver::import_handle(int device, std::size_t bytes, int file) {
  return created(inner_->import_handle(device, bytes, file), device, bytes);
}

result<address> checking_driver::create_segment(int device, std::size_t bytes) {
  auto const r = inner_->create_segment(device, bytes);
  if (r.ok())
    judge_.lock()->memory.map(r.value, bytes, as::segment, device);
  else
    note(r.is, device);
  return r;
}

status checking_driver::release_segment(int device, address at) {
  if (process_was_forked())
    return inner_->release_segment(device, at);
  auto gone = judge_.lock()->memory.take(at);
  std::size_t const bytes = gone ? gone->bytes : 0;
  status const is = inner_->release_segment(device, at);
  auto const known = judge_.lock();
  if (is.ok())
    known->blocks.forget(at, bytes);
  else if (gone)
    known->memory.put_back(at, std::move(*gone));
  return is;
}

status checking_driver::pin(void* host, std::size_t bytes) {
  status const is = inner_->pin(host, bytes);
  if (is.ok())
    judge_.lock()->memory.map(reinterpret_cast<address>(host), bytes, as::pin, -1);
  return is;
}

status checking_driver::unpin(void* host) {
  if (process_was_forked())
    return inner_->unpin(host);
  auto const at = reinterpret_cast<address>(host);
  std::optional<places::region> gone = judge_.lock()->memory.take(at);
  std::size_t const bytes = gone ? gone->bytes : 0;
  status const is = inner_->unpin(host);
  auto const known = judge_.lock();
  if (is.ok())
    known->drop_sources(at, bytes), known->blocks.forget(at, bytes), let_host_back(*known, at, bytes);
  else if (gone)
    known->memory.put_back(at, std::move(*gone));
  return is;
}

// Observer --------------------------------------------------------------------------------------------------

// Blocks are told to a simulated machine alone: it guards them, and may hear of a free while work still uses
// the block.
void checking_driver::allocated(user home, address at, std::size_t bytes, source_location where) {
  if (process_was_forked())
    return;
  if (sim::bytes_are_guarded && simulated())
    inner_->block_taken(at, bytes);
  auto const known = judge_.lock();
  bool const without_stream = home.stream == stream_handle::none;
  if (home.device < 0) {
    // Shields on its pages are of earlier blocks.
    std::size_t const page = os::page_size(), before = at % page;
    let_host_back(*known, at - before, base::round_up(before + bytes, page));
    if (touch const own = known->memory.begins_in_pin(at, bytes); own.bytes && machine_)
      machine_->confine_work_from(own);
  }
  known->allocated(without_stream ? 0 : known->order.find(home.device, home.stream), home.device, at, bytes, where);
}

void checking_driver::marked(user by, address at) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  if (auto const b = known->blocks.find(at, 1); b != known->blocks.end() && b->second.live)
    b->second.marked.insert(known->order.find(by.device, by.stream));
}

void checking_driver::freed(address at, std::size_t bytes, std::span<user const> users, source_location where) {
  if (process_was_forked())
    return;
  boost::container::small_vector<stream_id, 4> behind;
  bool stays = false;  // with a graph, whose launches use it still
  {
    auto const known = judge_.lock();
    for (user const& u : users)
      behind.push_back(known->order.find(u.device, u.stream));
    stays = known->blocks.is_of_graph(at, bytes) ||
            std::ranges::any_of(behind, [&](stream_id s) { return known->captured.of(s) != nullptr; });
  }
  if (sim::bytes_are_guarded && simulated() && !stays)
    inner_->block_given_back(at);
  auto const known = judge_.lock();
  known->freed(at, bytes, {behind.data(), behind.size()}, where);
}

void checking_driver::manages(void const* at, managed_block what) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  auto const b = known->blocks.find(reinterpret_cast<address>(at), 1);
  if (b == known->blocks.end())
    return;
  b->second.user = known->order.find(what.device, what.stream);
  b->second.manages = std::make_shared<managed_block const>(std::move(what));
  known->order.set_weirs(b->second.user);
}

void checking_driver::is_weirs_own(int device, stream_handle s) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  known->order.set_weirs(known->order.find(device, s));
}

void checking_driver::stream_made(user s, source_location where) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  known->order.set_made(known->order.find(s.device, s.stream), where);
}

void checking_driver::stream_handed_out(user s) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  if (!known->watched)
    known->handed_out.insert(known->order.life_of(known->order.find(s.device, s.stream)));
}

void checking_driver::event_handed_out(event_handle e) {
  if (process_was_forked())
    return;
  judge_.lock()->events_handed_out.insert(e);
}

void checking_driver::handed_over(user to, address at, std::size_t bytes, source_location where) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  known->handed_over(known->order.find(to.device, to.stream), at, bytes, where);
}

void checking_driver::wait_inserted(user waiter, user other, address at, std::size_t bytes) {
  if (process_was_forked())
    return;
  auto const known = judge_.lock();
  known->wait_inserted(known->order.find(waiter.device, waiter.stream), known->order.find(other.device, other.stream),
                       at, bytes);
}

void checking_driver::relied_on(user waiter, user other) {
  if (process_was_forked() || base::this_call().internal_ordering)
    return;
  auto const known = judge_.lock();
  known->relied_on(waiter.device < 0 ? 0 : known->order.find(waiter.device, waiter.stream),
                   known->order.find(other.device, other.stream));
  if (waiter.device < 0)
    let_host_back(*known);
}

// Answers ---------------------------------------------------------------------------------------------------

std::vector<finding> checking_driver::findings() {
  auto const known = judge_.lock();
  known->taken = true;
  return known->in_words();
}

void checking_driver::on_finding(std::function<void(finding const&)> f) {
  judge_.listen(std::move(f));
}
test_control::late_waits checking_driver::counted() const {
  return judge_.lock()->over;
}

std::vector<std::string> checking_driver::census() const {
  std::vector<std::string> all;
  std::vector<bool> lost;
  {
    auto m = made_.lock();
    lost = m->lost;
    lost.resize(static_cast<std::size_t>(inner_->device_count()));
    for (auto const& [key, device] : m->streams)
      if (!lost[static_cast<std::size_t>(device)])
        all.push_back("a stream of gpu:" + std::to_string(device));
    for (auto const& [key, device] : m->events)
      if (!lost[static_cast<std::size_t>(device)])
        all.push_back("an event of gpu:" + std::to_string(device));
  }
  judge_.lock()->memory.census(all, lost);
  return all;
}

std::string checking_driver::describe(address at) {
  auto const known = judge_.try_lock();
  if (!known)
    return {};
  auto const b = (*known)->blocks.find(at, 1);
  if (b == (*known)->blocks.end())
    return {};
  return "byte " + std::to_string(at - b->first) + " of " + (*known)->block_text(b) +
         (b->second.live ? "" : ", freed at " + text_of(b->second.freed));
}

epoch checking_driver::position(int device, stream_handle s) {
  auto const known = judge_.lock();
  return known->order.now(known->order.find(device, s)).at;
}

bool checking_driver::ordered(epoch e, int device, stream_handle s) {
  auto const known = judge_.lock();
  moment const now = known->order.now(known->order.find(device, s));
  return known->order.ordered(e, now.at.stream, now.seen, trust::known);
}

bool checking_driver::complete(epoch e) {
  return judge_.lock()->order.complete(e, trust::known);
}

}  // namespace weir::driver::check
