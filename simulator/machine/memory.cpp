// Reserve, create, map, grant and pin: the part of the simulated machine that owns bytes.
// Threads: any.
#include "simulator/machine/memory.h"

#include <algorithm>
#include <bit>

#include "runtime/base/byte_range.h"
#include "runtime/base/os.h"
#include "runtime/base/text.h"
#include "simulator/machine/guard.h"
#include "simulator/machine/left_behind.h"

namespace weir::driver::sim {
namespace {

void* pointer(address at) {
  return reinterpret_cast<void*>(at);
}
bool wraps(address at, std::size_t bytes) {
  return at + bytes < at;
}
constexpr std::uint64_t bit(int device) {
  return std::uint64_t{1} << device;
}

using base::holder_of;
using base::overlaps;

}  // namespace

memory::memory(shape const& s) : shape_(s), links_(static_cast<std::size_t>(s.devices)), corrupt_(links_.size()) {
  for (int d = 0; d < s.devices; ++d)
    backing_.push_back(std::make_unique<backing_memory>(s.bytes, s.pages, s.seed + static_cast<std::uint64_t>(d)));
  if (s.guarded)
    watch_faults(*this);
}

memory::~memory() {
  if (shape_.guarded)
    unwatch_faults(*this);
  for (auto const& [at, m] : mappings_)
    if (shape_.guarded)
      unpoison_bytes(at, m.bytes);
  for (auto const& [at, r] : reservations_)
    left_behind::give_back_all_but(mappings_, at, r.bytes);
  for (auto const& [at, bytes] : unreserved_)
    os::return_addresses(pointer(at), bytes);
  for (auto const& [at, p] : pins_)
    shields_.forget(at, p.bytes), hide(p);
  for (physical& p : handles_)
    close_shared(p);
}

result<address> memory::reserve(std::size_t bytes, std::size_t alignment) {
  std::size_t const unit = shape_.granularity;
  if (bytes == 0 || bytes % unit != 0 || alignment % unit != 0 || (alignment & (alignment - 1)) != 0)
    return {invalid};
  base::lock_guard lock(mutex_);
  address const where = take_addresses(bytes, std::max(alignment, unit));
  if (!where)
    return {{code::out_of_memory}};
  reservations_[where] = {bytes, next_ordinal_++, false};
  return {fine, where};
}

status memory::unreserve(address at, std::size_t bytes) {
  base::lock_guard lock(mutex_);
  auto const found = reservations_.find(at);
  if (found == reservations_.end() || found->second.bytes != bytes || found->second.of_segment ||
      overlaps(mappings_, at, bytes))
    return invalid;
  reservations_.erase(found);
  return_addresses(at, bytes);
  return fine;
}

address memory::take_addresses(std::size_t bytes, std::size_t alignment) {
  auto const again = std::find_if(unreserved_.rbegin(), unreserved_.rend(),
                                  [&](auto const& u) { return u.second == bytes && u.first % alignment == 0; });
  if (again == unreserved_.rend())
    return reinterpret_cast<address>(os::reserve_addresses(bytes, alignment));
  address const at = again->first;
  unreserved_.erase(std::next(again).base());
  ++came_back_;
  return at;
}

// Requires: nothing is mapped there.
void memory::return_addresses(address at, std::size_t bytes) {
  constexpr std::size_t most_kept = 8, largest_kept = std::size_t{1} << 30;
  if (!shape_.handles_come_back || bytes > largest_kept) {
    os::return_addresses(pointer(at), bytes);
    return;
  }
  unreserved_.emplace_back(at, bytes);
  if (unreserved_.size() <= most_kept)
    return;
  os::return_addresses(pointer(unreserved_.front().first), unreserved_.front().second);
  unreserved_.erase(unreserved_.begin());
}

result<std::uint32_t> memory::new_physical(int device, std::size_t bytes) {
  auto const offset = backing_[static_cast<std::size_t>(device)]->take(bytes);
  if (!offset)
    return {{code::out_of_memory}};
  std::uint32_t const index = new_slot();
  physical& p = handles_[index];
  p = {.device = device, .bytes = bytes, .offset = *offset, .turn = p.turn + 1};
  return {fine, index};
}

std::uint32_t memory::new_slot() {
  if (free_handles_.empty()) {
    handles_.emplace_back();
    return static_cast<std::uint32_t>(handles_.size()) - 1;
  }
  std::uint32_t const index = free_handles_.back();
  free_handles_.pop_back();
  if (shape_.handles_come_back)
    ++came_back_;
  return index;
}

memory_handle memory::handle_of(std::uint32_t index) const {
  std::uint64_t const turn = shape_.handles_come_back ? 1 : handles_[index].turn;
  return static_cast<memory_handle>(turn << 32 | (index + 1));
}

memory::physical* memory::lookup(memory_handle h) {
  auto const index = static_cast<std::uint32_t>(static_cast<std::uint64_t>(h)) - 1;
  if (index >= handles_.size() || handles_[index].device < 0 || handles_[index].released || handle_of(index) != h)
    return nullptr;
  return &handles_[index];
}

// Returns pages to the system once no mapping or handle can reach them.
void memory::drop_if_dead(std::uint32_t index) {
  physical& p = handles_[index];
  if (!p.released || p.mappings > 0)
    return;
  if (p.file >= 0)
    close_shared(p);
  else
    backing_[static_cast<std::size_t>(p.device)]->give_back(p.offset, p.bytes);
  p.device = -1;
  free_handles_.push_back(index);
}

result<memory_handle> memory::create(int device, std::size_t bytes) {
  if (bytes == 0 || bytes % shape_.granularity != 0)
    return {invalid};
  base::lock_guard lock(mutex_);
  auto const made = new_physical(device, bytes);
  if (!made.ok())
    return {made.is};
  return {fine, handle_of(made.value)};
}

status memory::release(memory_handle h) {
  base::lock_guard lock(mutex_);
  physical* const p = lookup(h);
  if (!p)
    return invalid;
  p->released = true;
  drop_if_dead(static_cast<std::uint32_t>(p - handles_.data()));
  return fine;
}

bool memory::in_one_reservation(address at, std::size_t bytes) const {
  auto const r = holder_of(reservations_, at);
  return r != reservations_.end() && bytes <= r->second.bytes - (at - r->first);
}

status memory::place_handle(address at, std::uint32_t index) {
  physical& p = handles_[index];
  bool const placed = p.file >= 0 ? os::map_file(pointer(at), p.bytes, p.file, 0)
                                  : backing_[static_cast<std::size_t>(p.device)]->map(pointer(at), p.offset, p.bytes);
  if (!placed)
    return {code::out_of_memory};
  os::advise(pointer(at), p.bytes, os::advice::not_to_children);
  if (shape_.guarded && open_to_all_ == 0) {
    os::protect(pointer(at), p.bytes, os::reach::nothing);
    poison_bytes(at, p.bytes);
  }
  ++p.mappings;
  return fine;
}

status memory::map(address at, std::size_t bytes, memory_handle h) {
  base::lock_guard lock(mutex_);
  physical* const p = lookup(h);
  if (!p || bytes != p->bytes || at % shape_.granularity != 0 || wraps(at, bytes))
    return invalid;
  if (!in_one_reservation(at, bytes) || overlaps(mappings_, at, bytes))
    return invalid;
  auto const index = static_cast<std::uint32_t>(p - handles_.data());
  // inserted first: an exception here must leave the counters unchanged
  auto const entry = mappings_.insert_or_assign(at, mapping{.bytes = bytes, .handle = index}).first;
  status const placed = place_handle(at, index);
  if (!placed.ok())
    mappings_.erase(entry);
  return placed;
}

void memory::drop_mapping(std::map<address, mapping>::iterator m) {
  std::uint32_t const index = m->second.handle;
  if (shape_.guarded)
    unpoison_bytes(m->first, m->second.bytes), forget_ended(m->first, m->second.bytes);
  mappings_.erase(m);
  --handles_[index].mappings;
  drop_if_dead(index);
}

// The entry once nothing uses it, or the end: it has gone meanwhile.
template <class Map>
auto memory::unused(base::unique_lock& lock, Map& map, address at) {
  ++waiting_to_unmap_;
  auto found = map.find(at);
  for (; found != map.end() && found->second.users > 0; found = map.find(at))
    unused_.wait(lock);
  --waiting_to_unmap_;
  return found;
}

status memory::unmap(address at, std::size_t bytes) {
  base::unique_lock lock(mutex_);
  auto found = mappings_.find(at);
  if (found == mappings_.end() || found->second.bytes != bytes || found->second.segment)
    return invalid;
  found = unused(lock, mappings_, at);
  if (found == mappings_.end() || found->second.bytes != bytes)
    return invalid;  // another thread unmapped it first
  os::unmap_to_nothing(pointer(at), bytes);
  drop_mapping(found);
  return fine;
}

status memory::grant(address at, std::size_t bytes, std::uint64_t devices) {
  base::lock_guard lock(mutex_);
  if (bytes == 0 || wraps(at, bytes))
    return invalid;
  address const end = at + bytes;
  auto const first = mappings_.find(at);
  address next = at;
  auto last = first;
  for (; last != mappings_.end() && last->first == next && next < end && !last->second.segment; ++last) {
    int const owner = handles_[last->second.handle].device;
    for (std::uint64_t others = devices & ~bit(owner); others; others &= others - 1)
      if (!(links_[static_cast<std::size_t>(std::countr_zero(others))] & bit(owner)))
        return {code::not_supported};
    next = last->first + last->second.bytes;
  }
  if (next != end)
    return invalid;
  for (auto m = first; m != last; ++m)
    m->second.granted |= devices;
  return fine;
}

result<address> memory::create_segment(int device, std::size_t bytes) {
  std::size_t const unit = shape_.granularity;
  if (bytes == 0 || bytes + unit - 1 < bytes)
    return {invalid};
  std::size_t const whole = (bytes + unit - 1) / unit * unit;
  base::lock_guard lock(mutex_);
  address const where = take_addresses(whole, unit);
  if (!where)
    return {{code::out_of_memory}};
  auto const made = new_physical(device, whole);
  status placed = made.is;
  if (made.ok()) {
    handles_[made.value].released = true;  // the bytes live as long as this one mapping
    placed = place_handle(where, made.value);
    if (!placed.ok())
      drop_if_dead(made.value);
  }
  if (!placed.ok()) {
    os::return_addresses(pointer(where), whole);
    return {placed};
  }
  reservations_[where] = {whole, next_ordinal_++, true};
  mappings_[where] = {.bytes = bytes, .handle = made.value, .granted = bit(device), .segment = true};
  return {fine, where};
}

status memory::release_segment(int device, address at) {
  base::unique_lock lock(mutex_);
  auto found = mappings_.find(at);
  if (found == mappings_.end() || !found->second.segment || handles_[found->second.handle].device != device)
    return invalid;
  found = unused(lock, mappings_, at);
  if (found == mappings_.end() || !found->second.segment)
    return invalid;
  std::size_t const bytes = reservations_.at(at).bytes;  // rounded up to whole pages
  os::unmap_to_nothing(pointer(at), bytes);
  reservations_.erase(at);
  drop_mapping(found);
  return_addresses(at, bytes);
  return fine;
}

status memory::pin(void* host, std::size_t bytes) {
  auto const at = reinterpret_cast<address>(host);
  if (!host || bytes == 0 || at % os::page_size() != 0 || bytes % os::page_size() != 0 || wraps(at, bytes))
    return invalid;
  base::lock_guard lock(mutex_);
  if (overlaps(pins_, at, bytes) || overlaps(reservations_, at, bytes))
    return invalid;
  if (!os::is_mapped(host, bytes))
    return invalid;
  pins_[at] = {bytes, next_ordinal_++};
  return fine;
}

status memory::unpin(void* host) {
  base::unique_lock lock(mutex_);
  auto const at = reinterpret_cast<address>(host);
  auto found = pins_.find(at);
  if (found == pins_.end())
    return invalid;
  found = unused(lock, pins_, at);
  if (found == pins_.end())
    return invalid;
  shields_.forget(at, found->second.bytes), hide(found->second);
  pins_.erase(found);
  return fine;
}

place memory::find(address at) const {
  base::lock_guard lock(mutex_);
  auto const m = holder_of(mappings_, at);
  if (m != mappings_.end())
    return {where::device, handles_[m->second.handle].device};
  auto const p = holder_of(pins_, at);
  if (p != pins_.end())
    return {where::pinned, -1};
  if (in_one_reservation(at, 1) || left_behind::has(at))
    return {where::unknown_device, -1};
  return {};
}

bool memory::is_segment(int device, address at) const {
  base::lock_guard lock(mutex_);
  auto const m = mappings_.find(at);
  return m != mappings_.end() && m->second.segment && handles_[m->second.handle].device == device;
}

bool memory::is_pin(address at) const {
  base::lock_guard lock(mutex_);
  return pins_.count(at) != 0;
}

memory_info memory::room(int device) const {
  base::lock_guard lock(mutex_);
  return {backing_[static_cast<std::size_t>(device)]->free_bytes(), shape_.bytes};
}

void memory::consume_memory(int device, std::size_t bytes) {
  base::lock_guard lock(mutex_);
  backing_[static_cast<std::size_t>(device)]->consume_memory(bytes);
}

void memory::others_leave(int device, std::size_t bytes) {
  base::lock_guard lock(mutex_);
  backing_[static_cast<std::size_t>(device)]->others_leave(bytes);
}

std::uint64_t memory::came_back() const {
  base::lock_guard lock(mutex_);
  return came_back_;
}

void memory::corrupt(int from, int to) {
  base::lock_guard lock(mutex_);
  corrupt_[static_cast<std::size_t>(from)] |= bit(to);
  any_corrupt_.store(true);
}

memory::mapping const* memory::mapping_at(address at) const {
  auto const m = holder_of(mappings_, at);
  return m != mappings_.end() ? &m->second : nullptr;
}

// Does `by` access that memory over a corrupt link?
bool memory::changes(int by, mapping const* m) const {
  return m && handles_[m->handle].device != by && reaches(*m, by) &&
         (corrupt_[static_cast<std::size_t>(by)] & bit(handles_[m->handle].device));
}

bool memory::distort(std::span<use const> uses, bool copy) {
  if (!any_corrupt_.load())
    return false;
  base::lock_guard lock(mutex_);
  auto const change = [](touch const& t) {
    auto& byte = reinterpret_cast<std::uint8_t*>(t.at)[t.bytes / 2];
    byte = static_cast<std::uint8_t>(byte ^ 0x24);
  };
  if (copy) {  // over a link if one side is granted to the other's device, else through the host
    use const &src = uses[0], &dst = uses[1];
    auto const *from = mapping_at(src.what.at), *to = mapping_at(dst.what.at);
    if (!changes(src.device, from) && !changes(dst.device, to) && !changes(src.device, to) &&
        !changes(dst.device, from))
      return false;
    change(dst.what);
    return true;
  }
  bool any = false;
  for (use const& u : uses) {
    if (!u.what.writes || u.what.bytes == 0 || !changes(u.device, mapping_at(u.what.at)))
      continue;
    change(u.what);
    any = true;
  }
  return any;
}

void memory::link(int from, int to, bool present) {
  base::lock_guard lock(mutex_);
  if (present)
    links_[static_cast<std::size_t>(from)] |= bit(to);
  else
    links_[static_cast<std::size_t>(from)] &= ~bit(to);
}

bool memory::linked(int from, int to) const {
  base::lock_guard lock(mutex_);
  return links_[static_cast<std::size_t>(from)] & bit(to);
}

bool memory::reaches(mapping const& m, int device) const {
  int const owner = handles_[m.handle].device;
  return (m.granted & bit(device)) && (owner == device || (links_[static_cast<std::size_t>(device)] & bit(owner)));
}

std::string memory::judge_locked(use const& u) const {
  address at = u.what.at;
  if (wraps(at, u.what.bytes))
    return "a range that wraps around the address space";
  address const end = at + u.what.bytes;
  auto const verb = u.what.writes ? "writes" : "reads";
  auto const access = [&] {
    return base::text("device ", u.device, " ", verb, " ", u.what.bytes, " bytes at ", base::address_text(u.what.at));
  };
  if (at == end)
    return {};
  auto const p = holder_of(pins_, at);
  if (p != pins_.end()) {
    if (u.what.bytes <= p->second.bytes - (at - p->first))
      return {};
    return access() + ", past the end of a pinned range";
  }
  if (!in_one_reservation(at, 1))
    return access() + ", pageable host memory";
  if (!in_one_reservation(at, u.what.bytes))
    return access() + ", past the end of a reservation";
  while (at < end) {
    auto const m = holder_of(mappings_, at);
    if (m == mappings_.end())
      return access() + ", which is not mapped";
    if (!reaches(m->second, u.device))
      return base::text(access(), ", memory of device ", handles_[m->second.handle].device, " without a grant");
    at = m->first + m->second.bytes;
  }
  return {};
}

std::string memory::judge(use const& u) const {
  base::lock_guard lock(mutex_);
  return judge_locked(u);
}

template <class F>
void memory::each_part(touch const& t, F visit) {
  address at = t.at;
  while (at < t.at + t.bytes) {
    if (auto const m = holder_of(mappings_, at); m != mappings_.end()) {
      visit(m->second.users);
      at = m->first + m->second.bytes;
    } else if (auto const p = holder_of(pins_, at); p != pins_.end()) {
      visit(p->second.users);
      at = p->first + p->second.bytes;
    } else {
      return;
    }
  }
}

std::string memory::begin(std::span<use const> uses) {
  if (uses.empty())
    return {};
  base::lock_guard lock(mutex_);
  for (use const& u : uses)
    if (std::string wrong = judge_locked(u); !wrong.empty())
      return wrong;
  for (use const& u : uses)
    each_part(u.what, [](int& users) { ++users; });
  if (!shape_.guarded)
    return {};
  bool open = true;
  for (use const& u : uses)
    open &= open_to(u);
  if (open)
    return {};
  end_locked(uses);
  return base::text("device ", uses.front().device, " has no access to its pages: mprotect failed");
}

void memory::end(std::span<use const> uses) {
  if (uses.empty())
    return;
  base::lock_guard lock(mutex_);
  end_locked(uses);
}

void memory::end_locked(std::span<use const> uses) {
  for (use const& u : uses)
    each_part(u.what, [](int& users) { --users; });
  if (shape_.guarded) {
    for (use const& u : uses)
      close_to(u);
  }
  if (waiting_to_unmap_ > 0)
    unused_.notify_all();
}

std::uint64_t memory::name_of(address at) const {
  base::lock_guard lock(mutex_);
  if (auto const r = holder_of(reservations_, at); r != reservations_.end())
    return r->second.ordinal << 44 ^ (at - r->first);
  if (auto const p = holder_of(pins_, at); p != pins_.end())
    return p->second.ordinal << 44 ^ (at - p->first);
  return 0;
}

void memory::census(std::vector<std::string>& found, std::vector<bool> const& lost) const {
  base::lock_guard lock(mutex_);
  for (auto const& [at, r] : reservations_)
    if (!r.of_segment)
      found.push_back(base::text("reservation ", r.ordinal, " of ", r.bytes, " bytes"));
  for (auto const& [at, m] : mappings_) {
    int const owner = handles_[m.handle].device;
    if (m.segment && lost[static_cast<std::size_t>(owner)])
      continue;
    auto const device = std::to_string(owner);
    found.push_back((m.segment ? "segment of " : "mapping of ") + std::to_string(m.bytes) + " bytes of device " +
                    device);
  }
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    physical const& p = handles_[i];
    if (p.device >= 0 && !p.released)
      found.push_back(base::text("memory handle ", i + 1, " of ", p.bytes, " bytes of device ", p.device));
  }
  if (std::find(lost.begin(), lost.end(), false) == lost.end())
    return;
  for (auto const& [at, p] : pins_)
    found.push_back(base::text("pin ", p.ordinal, " of ", p.bytes, " bytes"));
}

}  // namespace weir::driver::sim
