// The rules of pools, a row for each kind.
// Threads: any.
#include "runtime/memory/space/memory_pool.h"

namespace weir::memory {

// Only an ordinary pool can be asleep. Then its memory is away, and its blocks can only be freed.
constexpr pool_rules pool_rules::rows[] = {
    // ordinary
    {.caches = true},
    // registered
    {.caches = true, .pages_stay = true, .one_handle = true},
    // graph
    {.pages_stay = true, .places_stay = true, .captured = true},
    // rest
    {.caches = true},
    // left
    {.serves_rest = true},
    // asleep
    {.pages_stay = true},
};

}  // namespace weir::memory
