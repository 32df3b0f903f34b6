// Computes the access of each page from the shields and the engines at work.
// Threads: as shield.h says.
#include "simulator/machine/shield.h"

#include <algorithm>
#include <utility>

#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {

base::atomic<std::uint64_t> last_number{0};

address page_floor(address at) noexcept {
  return at / os::page_size() * os::page_size();
}
address page_ceiling(address at) noexcept {
  return page_floor(at + os::page_size() - 1);
}
// Memory that the program mapped read-only can only be opened for reading.
bool open(address from, std::size_t bytes) {
  auto* const at = reinterpret_cast<void*>(from);
  return os::protect(at, bytes, os::reach::all) || os::protect(at, bytes, os::reach::reading);
}
bool shares_pages(touch const& t, address from, address to) noexcept {
  return page_floor(t.at) < to && from < page_ceiling(t.at + t.bytes);
}

}  // namespace

std::uint64_t shields::raise(touch t) {
  if (all_.size() >= most || t.bytes == 0)
    return 0;
  std::uint64_t const number = last_number.fetch_add(1) + 1;
  all_.push_back({number, t});
  apply(page_floor(t.at), page_ceiling(t.at + t.bytes));
  return number;
}

void shields::lower(std::uint64_t number) {
  auto const found = std::find_if(all_.begin(), all_.end(), [&](one const& s) { return s.number == number; });
  if (found == all_.end())
    return;
  touch const was = found->what;
  all_.erase(found);
  apply(page_floor(was.at), page_ceiling(was.at + was.bytes));
}

void shields::forget(address at, std::size_t bytes) {
  bool const any = concern(at, bytes);
  std::erase_if(all_, [&](one const& s) { return shares_pages(s.what, at, at + bytes); });
  if (any)
    apply(page_floor(at), page_ceiling(at + bytes));
}

bool shields::concern(address at, std::size_t bytes) const noexcept {
  return std::any_of(all_.begin(), all_.end(),
                     [&](one const& s) { return shares_pages(s.what, page_floor(at), page_ceiling(at + bytes)); });
}

void shields::open_for(touch const& t) {
  at_work_.push_back(t);
  if (concern(t.at, t.bytes))
    apply(page_floor(t.at), page_ceiling(t.at + t.bytes));
}

void shields::close_after(touch const& t) {
  auto const same = std::find_if(at_work_.begin(), at_work_.end(),
                                 [&](touch const& w) { return w.at == t.at && w.bytes == t.bytes; });
  if (same != at_work_.end())
    at_work_.erase(same);
  if (concern(t.at, t.bytes))
    apply(page_floor(t.at), page_ceiling(t.at + t.bytes));
}

void shields::open_all() {
  if (++anywhere_ > 1)
    return;
  for (one const& s : all_)
    open(page_floor(s.what.at), page_ceiling(s.what.at + s.what.bytes) - page_floor(s.what.at));
}

void shields::close_all() {
  if (--anywhere_ > 0)
    return;
  for (one const& s : all_)
    apply(page_floor(s.what.at), page_ceiling(s.what.at + s.what.bytes));
}

void shields::confine_to(std::vector<touch> pins) {
  confined_ = std::move(pins);
  for (touch const& pin : confined_)
    apply(pin.at, pin.at + pin.bytes);
}

void shields::release() {
  for (touch const& pin : std::exchange(confined_, {}))
    apply(pin.at, pin.at + pin.bytes);
}

os::reach shields::reach_of(address from, address to) const noexcept {
  if (anywhere_ > 0 ||
      std::any_of(at_work_.begin(), at_work_.end(), [&](touch const& w) { return shares_pages(w, from, to); }))
    return os::reach::all;
  if (!confined_.empty())
    return os::reach::nothing;
  os::reach reach = os::reach::all;
  for (one const& s : all_) {
    if (!shares_pages(s.what, from, to))
      continue;
    if (s.what.writes)
      return os::reach::nothing;
    reach = os::reach::reading;
  }
  return reach;
}

template <class Each>
void shields::each_part(address from, address to, Each each) const {
  std::vector<address> cuts{from, to};
  auto const cut = [&](touch const& t) {
    for (address const edge : {page_floor(t.at), page_ceiling(t.at + t.bytes)})
      if (from < edge && edge < to)
        cuts.push_back(edge);
  };
  for (one const& s : all_)
    cut(s.what);
  for (touch const& w : at_work_)
    cut(w);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
    each(cuts[i], cuts[i + 1], reach_of(cuts[i], cuts[i + 1]));
}

void shields::apply(address from, address to) const {
  each_part(from, to, [](address first, address last, os::reach reach) {
    if (reach == os::reach::all)
      open(first, last - first);
    else
      os::protect(reinterpret_cast<void*>(first), last - first, reach);
  });
}

bool shields::let_through(os::bad_access const& a, std::uint64_t& into) {
  auto const at = reinterpret_cast<address>(a.at);
  for (one const& s : all_) {
    bool const clashes = s.what.writes || a.how != os::bad_access::kind::read;
    if (clashes && at - s.what.at < s.what.bytes)
      into = s.number;
  }
  if (!confined_.empty() &&
      std::none_of(at_work_.begin(), at_work_.end(), [&](touch const& w) { return at - w.at < w.bytes; }))
    into = of_confined;
  bool const may_write = os::protect(reinterpret_cast<void*>(page_floor(at)), os::page_size(), os::reach::all);
  return may_write || (a.how == os::bad_access::kind::read && open(page_floor(at), os::page_size()));
}

template <class Each>
void shields::each_refused(touch const& call, Each each) const {
  auto const look = [&](address from, address to) {
    from = std::max(from, page_floor(call.at)), to = std::min(to, page_ceiling(call.at + call.bytes));
    if (from >= to)
      return;
    each_part(from, to, [&](address first, address last, os::reach reach) {
      if (reach == os::reach::nothing || (reach == os::reach::reading && call.writes))
        each(first, last);
    });
  };
  // While pins are confined, every other page is open.
  for (touch const& pin : confined_)
    look(pin.at, pin.at + pin.bytes);
  if (confined_.empty() && concern(call.at, call.bytes))
    look(0, ~address{0});
}

shields::refusal shields::refuses(touch const& call, std::uint64_t after) const {
  refusal found;
  each_refused(call, [&](address from, address to) {
    from = std::max(from, call.at), to = std::min(to, call.at + call.bytes);
    // Confined work may use no bytes that it does not declare, whoever else uses them.
    if (!confined_.empty()) {
      if (after < of_confined && !found.shield)
        found = {of_confined, from};
      return;
    }
    for (one const& s : all_) {
      bool const clashes = s.what.writes || call.writes;
      bool const is_hit = s.what.at < to && from < s.what.at + s.what.bytes;
      if (clashes && is_hit && s.number > after && (!found.shield || s.number < found.shield))
        found = {s.number, std::max(from, s.what.at)};
    }
  });
  return found;
}

void shields::open_to(touch const& call) const {
  each_refused(call, [](address from, address to) { open(from, to - from); });
}

}  // namespace weir::driver::sim
