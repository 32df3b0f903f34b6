// The uses of a block by work that is not known to be complete, as far as launches past weir need them: their bytes
// are known by a pointer alone, so that none takes the place of an exact one in the shadow.
// Threads: under the checker's lock.
//
// Invariant: of ordered uses that meet the same later uses, the last is kept.
#pragma once
#include <algorithm>
#include <vector>

#include "simulator/checker/shadow.h"

namespace weir::driver::check {

struct block_use {
  std::size_t from = 0, to = 0;  // offsets in the block
  epoch at;
  base::site site;
  action how = action::reads;
  grain known = grain::exact;
  bool quiet = false;                                // a file of suppressions names its kernel
  bool may_read_alone = false;                       // a launch whose signature is not known
  bool may_be_end = false;                           // vague, as it may be the end of the block in front
  std::shared_ptr<base::atomic<bool> const> over{};  // as access::over

  bool writes() const noexcept { return how != action::reads; }
  bool is_over() const noexcept { return over && over->load(); }
  bool meets(std::size_t begin, std::size_t end) const noexcept { return from < end && begin < to; }
  // If it comes after `old`: each later use that may clash with `old` clashes with this one, and no less surely.
  bool stands_for(block_use const& old) const noexcept {
    if (from > old.from || to < old.to || (old.writes() && !writes()))
      return false;
    switch (known) {
      case grain::exact: return old.known == grain::exact;
      case grain::pointer:
        return old.known == grain::structure || (old.known == grain::pointer && from == old.from && to == old.to &&
                                                 (!may_read_alone || old.may_read_alone));
      case grain::structure: return old.known == grain::structure;
    }
    return false;
  }
};

enum class verdict : std::uint8_t { none, possible, certain };

// What two unordered uses of one block are. Exact ones are the shadow's to judge. Which bytes behind its pointer a
// launch uses is not known: an exact use of them all meets it surely.
inline verdict verdict_on(block_use const& a, block_use const& b) noexcept {
  bool const both_exact = a.known == grain::exact && b.known == grain::exact;
  if (both_exact || !(a.writes() || b.writes()) || !a.meets(b.from, b.to))
    return verdict::none;
  auto const meet_surely = [](block_use const& pointer, block_use const& exact) {
    bool const covers = exact.from <= pointer.from && pointer.to <= exact.to;
    return pointer.known == grain::pointer && exact.known == grain::exact && covers &&
           (exact.writes() || !pointer.may_read_alone);
  };
  return meet_surely(a, b) || meet_surely(b, a) ? verdict::certain : verdict::possible;
}

class block_uses {
 public:
  static constexpr std::size_t most = 256;

  // Returns: how many uses were forgotten for it.
  // is_before(old): `old` comes before `u`. is_gone(old): it comes before all later uses
  template <class IsBefore, class IsGone>
  std::size_t keep(block_use u, IsBefore is_before, IsGone is_gone) {
    std::erase_if(all_, [&](block_use const& old) { return u.stands_for(old) && is_before(old); });
    std::size_t forgotten = 0;
    if (all_.size() >= most)
      std::erase_if(all_, is_gone);
    if (all_.size() >= most) {
      forgotten = most / 4;
      all_.erase(all_.begin(), all_.begin() + most / 4);
    }
    all_.push_back(std::move(u));
    return forgotten;
  }
  template <class Gone>
  void forget(Gone gone) {
    std::erase_if(all_, gone);
  }
  void clear() noexcept { all_ = {}; }
  std::size_t size() const noexcept { return all_.size(); }
  auto begin() const noexcept { return all_.begin(); }
  auto end() const noexcept { return all_.end(); }

 private:
  std::vector<block_use> all_;
};

}  // namespace weir::driver::check
