// Reserves space for further elements, so that inserting them cannot fail. Doubles as push_back does.
// Threads: one at a time for each container.
#pragma once
#include <algorithm>
#include <cstddef>

namespace weir::base {

template <class All>
void make_room(All& all, std::size_t in_all) {  // Throws: bad_alloc
  if (in_all > all.capacity())
    all.reserve(std::max<std::size_t>({16, 2 * all.capacity(), in_all}));
}
template <class All>
void make_room(All& all) {
  make_room(all, all.size() + 1);
}

}  // namespace weir::base
