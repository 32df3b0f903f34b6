// Room in a container for one more, so that putting it in cannot fail:
// twice as much as there was, as push_back would take.
// Threads: one at a time a container.
#pragma once
#include <algorithm>
#include <cstddef>

namespace weir::base {

template <class All>
void make_room(All& all, std::size_t in_all) {  // Throws: bad_alloc
  if (in_all > all.capacity()) all.reserve(std::max<std::size_t>({16, 2 * all.capacity(), in_all}));
}
template <class All>
void make_room(All& all) {
  make_room(all, all.size() + 1);
}

}  // namespace weir::base
