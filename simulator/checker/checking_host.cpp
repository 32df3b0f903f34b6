// Host uses: those reported through host_uses(), and accesses that hit a shielded page.
// Threads: as checking_driver.h says; a fault is handled on the thread that caused it.
#include "runtime/base/os.h"
#include "simulator/checker/checking_driver.h"
#include "simulator/machine/shield.h"

namespace weir::driver::check {

void checking_driver::host_uses(address at, std::size_t bytes, host_use how, base::site site) {
  auto const known = judge_.lock();
  // Reported here: neither a page fault nor a changed source of the same work is reported again.
  for (access_ref const& a : known->host_uses(at, bytes, how, site)) {
    known->reading.forget([&](source const& s) { return s.copy.stream == a->stream && s.copy.n == a->n; });
    std::erase_if(known->shields, [&](knowledge::shielded const& s) {
      bool const same = s.use->stream == a->stream && s.use->n == a->n;
      if (same)
        machine_->unshield(s.number);
      return same;
    });
  }
}

// weir's own copies have no shields: weir may know more than it promises (base::unpromised).
void checking_driver::keep_host_away(knowledge& known, epoch e, std::span<range const> ranges, base::site site) {
  if (base::this_call().internal_ordering)
    return;
  for (range const& r : ranges) {
    // First without the pages that other data shares, then without those of other live blocks.
    auto const [from, length] = known.memory.on_pages_of_its_own(r.at, r.bytes);
    if (length == 0)
      continue;
    auto const [at, bytes] = known.blocks.alone_on_pages(from, length, os::page_size());
    if (bytes == 0)
      continue;
    std::uint64_t const number = machine_ ? machine_->shield({at, bytes, r.writes}) : 0;
    if (number)
      known.shields.push_back({number, check::made(r.writes ? action::writes : action::reads, e, site, r.at, r.bytes)});
    (number ? known.closed_to_host : known.open_to_host) = true;
  }
}

void checking_driver::let_host_back(knowledge& known) {
  if (known.shields.empty()) [[likely]]
    return;
  std::erase_if(known.shields, [&](knowledge::shielded const& s) {
    bool const over = known.order.complete({s.use->stream, s.use->n}, trust::promised);
    if (over)
      machine_->unshield(s.number);
    return over;
  });
}

void checking_driver::let_host_back(knowledge& known, address at, std::size_t bytes) {
  std::erase_if(known.shields, [&](knowledge::shielded const& s) {
    bool const there = s.use->at < at + bytes && at < s.use->at + s.use->bytes;
    if (there)
      machine_->unshield(s.number);
    return there;
  });
}

bool checking_driver::met_shield(std::uint64_t shield, os::bad_access const& a) {
  auto const known = judge_.lock();
  char const* const how = a.how == os::bad_access::kind::write  ? "writes"
                          : a.how == os::bad_access::kind::read ? "reads"
                                                                : "touches";
  base::running_work const* const work = base::this_call().running;
  if (shield == sim::shields::of_confined) {
    auto const at = reinterpret_cast<address>(a.at);
    if (!known->memory.is_pinned(at, 1))
      return false;
    if (work)
      known->report_undeclared(*work, how, at);  // else a thread of weir itself
    return true;
  }
  auto const met = std::find_if(known->shields.begin(), known->shields.end(),
                                [&](knowledge::shielded const& s) { return s.number == shield; });
  if (met == known->shields.end())
    return false;
  access_ref const use = met->use;
  machine_->unshield(shield);  // reported once
  known->shields.erase(met);
  if (!use->writes())  // the source of that copy changes now: it is not reported again
    known->reading.forget([&](source const& s) { return s.copy.stream == use->stream && s.copy.n == use->n; });
  if (work) {
    known->report_undeclared(*work, how, reinterpret_cast<address>(a.at));
    return true;
  }
  std::string const code = os::code_text(a.code);
  known->report_early_host(*use, code.empty() ? "host code" : "host code (" + code + ", for addr2line)", "that",
                           {nullptr, nullptr, 0}, code, use->at, use->bytes, how);
  return true;
}

}  // namespace weir::driver::check
