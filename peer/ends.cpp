// Looking at addresses: weir's own memory first, by subtraction; then the driver is asked.
// Threads: any.
#include "peer/ends.h"

#include <algorithm>
#include <cstdio>

#include "runtime/observe/memory_beside.h"
#include "streams/pinned.h"

namespace weir::peer {
namespace {

std::string pointer_text(void const* p) {
  char text[32];
  std::snprintf(text, sizeof text, "%p", p);
  return text;
}
std::size_t distance(void const* from, void const* to) { return reinterpret_cast<driver::address>(to) - reinterpret_cast<driver::address>(from); }

}  // namespace

std::string end::text() const {
  std::string const where = in == driver::where::device ? "gpu:" + std::to_string(device) : in == driver::where::pinned ? "pinned" : "pageable";
  return where + " " + pointer_text(at);
}

end look_at(runtime::impl& r, std::string_view operation, std::string_view role, void const* at, std::size_t bytes, here where) {
  end found;
  found.at = at;
  auto const refuse = [&](std::string const& what, char const* remedy) {
    throw invalid_use(std::string(operation), std::string(role) + " " + what + ", asked " + std::to_string(bytes) + " B", remedy, where);
  };
  if (!at) refuse("is null", "Pass memory, or zero bytes");
  if (reinterpret_cast<driver::address>(at) + bytes < bytes) refuse(pointer_text(at) + " wraps around the address space", "Look for a size that overflowed");
  auto* const devices = r.part_if_made<memory::device_memory>();
  if (auto* const owner = devices ? devices->owner(at) : nullptr) {
    found.in = driver::where::device;
    found.device = owner->device();
    found.memory = owner;
    found.block = owner->find(at);
    if (!found.block) refuse(found.text() + " is not allocated", "Memory was freed before this call, or never handed out");
  } else if (auto* const pinned = r.part_if_made<streams::pinned_memory>()) {
    found.block = pinned->find(at);
    if (found.block || pinned->reserves(at)) found.in = driver::where::pinned;
    if (!found.block && found.in == driver::where::pinned) refuse(found.text() + " is not allocated", "Pinned memory was freed before this call, or never handed out");
  }
  auto const holds = [&](void const* base, std::size_t size) {
    std::size_t const left = size - std::min(size, distance(base, at));
    if (bytes <= left) return;
    std::string const inside = base == at ? "" : " to the end of its block of " + std::to_string(size) + " B";
    refuse(found.text() + " holds " + std::to_string(left) + " B" + inside, "Copy no more than both hold");
  };
  if (found.block) {
    holds(found.block->base, found.block->bytes);
    return found;
  }
  auto const* const beside = r.part_if_made<observe::memory_beside>();
  if (auto const its = beside ? beside->find(at) : std::nullopt; its && its->device >= 0) {  // of the host: the program's own, where pages count
    found.in = driver::where::device;
    found.device = its->device;
    found.foreign = its->kind == observe::sharing::imported;
    found.readers = its->readers;
    if (!its->in_use) refuse(found.text() + " lies in memory shared with other processes, in no buffer", "The buffer was given back before this call: keep it until then");
    holds(reinterpret_cast<void const*>(its->at), its->bytes);
    return found;
  }
  if (memory::device_memory::owner_in_process(at)) refuse(pointer_text(at) + " is device memory of another runtime", "Copy with the runtime whose memory it is");
  auto const ask = [&](void const* one) {
    auto const answer = r.machine().find(one);
    require(answer.is, operation, std::string(role) + " " + pointer_text(one), "The driver could not say where this lies", where);
    return answer.value;
  };
  auto const first = ask(at);
  found.in = first.in;
  found.device = first.device;
  if (first.in == driver::where::unknown_device) refuse(pointer_text(at) + " is device memory of no device of this runtime", "Copy with the runtime whose memory it is");
  if (first.in == driver::where::pinned) {  // a range that leaves its registration is pageable to an engine
    auto const last = ask(static_cast<std::byte const*>(at) + (bytes - 1));
    if (last.in != driver::where::pinned) found.in = driver::where::pageable;
  }
  return found;
}

}  // namespace weir::peer
