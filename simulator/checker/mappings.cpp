// Mappings, segments and pins by address.
// Threads: as mappings.h says.
#include "simulator/checker/mappings.h"

#include "runtime/base/byte_range.h"
#include "runtime/base/os.h"

namespace weir::driver::check {
namespace {
std::string of_device(int device) {
  return device < 0 ? " of host memory" : " of gpu:" + std::to_string(device);
}
}  // namespace

std::shared_ptr<physical> places::make(int device, std::size_t bytes) {
  auto p = std::make_shared<physical>();
  p->device = device;
  p->bytes = bytes;
  p->number = next_number_++;
  return p;
}

void places::create(memory_handle h, int device, std::size_t bytes) {
  handles_[static_cast<std::uint64_t>(h)] = make(device, bytes);
}

std::shared_ptr<physical> places::release(memory_handle h) {
  auto const found = handles_.find(static_cast<std::uint64_t>(h));
  if (found == handles_.end())
    return nullptr;
  auto p = std::move(found->second);
  handles_.erase(found);
  return p;
}

void places::map(address at, std::size_t bytes, memory_handle h) {
  drop_told(at, bytes);
  auto const found = handles_.find(static_cast<std::uint64_t>(h));
  regions_[at] = {bytes, as::mapping, found == handles_.end() ? make(-1, bytes) : found->second};
}

void places::map(address at, std::size_t bytes, as how, int device) {
  drop_told(at, bytes);
  regions_[at] = {bytes, how, make(device, bytes)};
}

bool places::map_told(address at, std::size_t bytes, int device) {
  if (base::overlaps(regions_, at, bytes))
    return false;
  map(at, bytes, as::told, device);
  return true;
}

void places::drop_told(address at, std::size_t bytes) {
  auto old = base::holder_of(regions_, at);
  if (old == regions_.end())
    old = regions_.lower_bound(at);
  while (old != regions_.end() && old->first < at + bytes)
    old = old->second.how == as::told ? regions_.erase(old) : std::next(old);
}

bool places::is_known(address at, std::size_t bytes) const {
  auto const in = base::holder_of(regions_, at);
  return in != regions_.end() && bytes <= in->second.bytes - (at - in->first);
}

std::optional<places::region> places::take(address at) {
  auto const found = regions_.find(at);
  if (found == regions_.end())
    return std::nullopt;
  region r = std::move(found->second);
  regions_.erase(found);
  return r;
}

places::parts places::find(address at, std::size_t bytes) {
  parts out;
  address const end = at + bytes;
  while (at < end) {
    if (auto const in = base::holder_of(regions_, at); in != regions_.end()) {
      address const to = std::min(end, in->first + in->second.bytes);
      out.push_back({in->second.shows.get(), at - in->first, to - in->first, at});
      at = to;
    } else {
      auto const after = regions_.upper_bound(at);
      address const to = after == regions_.end() ? end : std::min(end, after->first);
      out.push_back({&elsewhere_, at, to, at});
      at = to;
    }
  }
  return out;
}

bool places::is_pinned(address at, std::size_t bytes) const {
  auto const in = base::holder_of(regions_, at);
  if (in == regions_.end() || bytes > in->second.bytes - (at - in->first))
    return false;
  bool const of_program = in->second.how == as::told && in->second.shows->device < 0;
  return of_program || in->second.how == as::pin;
}

touch places::begins_in_pin(address at, std::size_t bytes) {
  auto const found = base::holder_of(regions_, at);
  if (found == regions_.end() || found->second.how != as::pin)
    return {};
  auto& [from, in] = *found;
  // It goes on in the next pin, because it shares a page with a range in front of it. No page is known to be its own.
  if (bytes > in.bytes - (at - from)) {
    for (auto next = found; next != regions_.end() && next->first < at + bytes; ++next)
      next->second.used = true;
    return {};
  }
  std::size_t const page = os::page_size();
  bool const fills_pin = at - from < page && at + bytes <= from + in.bytes && from + in.bytes - (at + bytes) < page;
  if (fills_pin)
    in.own_from = at, in.own_to = at + bytes;
  if (std::exchange(in.used, true) && !fills_pin)
    return {};
  auto const [first, length] = on_pages_of_its_own(from, in.bytes);
  return {first, length, false};
}

std::pair<address, std::size_t> places::on_pages_of_its_own(address at, std::size_t bytes) const {
  if (!is_pinned(at, bytes))
    return {at, 0};
  region const& in = std::prev(regions_.upper_bound(at))->second;
  if (in.own_to == 0)
    return {at, bytes};
  address const page = os::page_size();
  address const from = std::max(at, (in.own_from + page - 1) / page * page),
                to = std::min(at + bytes, in.own_to / page * page);
  return {from, from < to ? to - from : 0};
}

void places::census(std::vector<std::string>& found, std::vector<bool> const& lost) const {
  auto const is_lost = [&](int device) {
    return device >= 0 && static_cast<std::size_t>(device) < lost.size() && lost[static_cast<std::size_t>(device)];
  };
  bool const host_answers = lost.empty() || std::find(lost.begin(), lost.end(), false) != lost.end();
  for (auto const& [at, bytes] : reservations_)
    found.push_back("a reservation of " + std::to_string(bytes) + " bytes");
  for (auto const& [at, r] : regions_) {
    if (r.how == as::told)
      continue;  // not made through this driver
    // A segment of a lost device cannot be released, and no pin if all devices are lost. A mapping can.
    bool const stays = r.how == as::segment ? is_lost(r.shows->device) : r.how == as::pin && !host_answers;
    if (stays)
      continue;
    char const* const what = r.how == as::mapping   ? "a mapping of "
                             : r.how == as::segment ? "a segment of "
                                                    : "a pin of ";
    found.push_back(what + std::to_string(r.bytes) + " bytes" + of_device(r.shows->device));
  }
  for (auto const& [h, p] : handles_)
    found.push_back("a memory handle of " + std::to_string(p->bytes) + " bytes" + of_device(p->device));
}

}  // namespace weir::driver::check
