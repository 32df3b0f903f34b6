// weir/copy.h: one call; the addresses decide the route. Returns when `blocking::yes` promises have been kept:
// device<->device: at once. pinned or pageable <-> device: when the host may touch both. docs/copies.md has the full table, each line a test.
#pragma once
#include "weir/memory.h"

namespace weir {
stamp copy(void* dst, void const* src, size_t bytes, blocking = blocking::yes, here = here::current());               // current stream
stamp copy(stream_ref, void* dst, void const* src, size_t bytes, blocking = blocking::yes, here = here::current());
struct copy_item { void* dst; void const* src; size_t bytes; };
stamp copy(stream_ref, std::span<copy_item const>, blocking = blocking::no, here = here::current());                  // many small ones
stamp set(void* dst, std::byte, size_t bytes, here = here::current());

enum class route { automatic, same_device, peer, engine, staged, striped, host };
struct route_choice { route by; std::string reason; };
route_choice explain_copy(void const* dst, void const* src, size_t bytes);
class [[nodiscard]] route_guard { public: explicit route_guard(route); ~route_guard(); route_guard(route_guard const&) = delete; };
class [[nodiscard]] lend_links { public: explicit lend_links(std::span<device const>); ~lend_links(); lend_links(lend_links const&) = delete; };  // striping may use these
}
