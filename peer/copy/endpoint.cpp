// Classifies an address: by weir's own records first, then by the driver.
// Threads: any.
#include "peer/copy/endpoint.h"

namespace weir::peer {
std::string endpoint::text() const {
  std::string const where = in == driver::where::device   ? base::gpu_name(device)
                            : in == driver::where::pinned ? "pinned"
                                                          : "pageable";
  return where + " " + base::address_text(at);
}

endpoint inspect(runtime::impl& r, std::string_view operation, std::string_view role, void const* at, std::size_t bytes,
                 source_location where) {
  endpoint found;
  found.at = at;
  auto const refuse = [&](std::string const& what, char const* remedy, error_id id) {
    throw invalid_use(std::string(operation),
                      std::string(role) + " " + what + ", asked " + std::to_string(bytes) + " B", remedy, where, id);
  };
  if (!at)
    refuse("is null", "Pass an address, or zero bytes", error_id{292});
  using streams::known_range;
  auto const its = known_range::of(r, at, bytes);
  bool const registered_by_program = its.locked_in_place;
  if (!registered_by_program)
    its.require_inside(operation, role, where);
  if (!registered_by_program && its.is == known_range::verdict::inside) {
    found.in = its.device >= 0 ? driver::where::device : driver::where::pinned;
    found.device = its.device;
    // Shared memory is no block of an allocator, so that no stream is marked for it.
    if (its.memory || its.pinned)
      found.block = its.block;
    found.memory = its.memory;
    found.foreign = its.imported;
    found.readers = its.readers;
    return found;
  }
  // weir does not know the memory, or the program registered it. A range may end behind its registration, in
  // the rest of a locked page. That is pinned, too, which only the driver knows.
  auto const ask = [&](void const* one) {
    auto const answer = r.machine().find(one);
    require(answer.is, operation, std::string(role) + " " + base::address_text(one),
            "Pass memory that the driver knows", where);
    return answer.value;
  };
  auto const first = ask(at);
  found.in = first.in;
  found.device = first.device;
  if (first.in == driver::where::unknown_device)
    refuse(base::address_text(at) + " is device memory of another runtime or library",
           "Copy with the runtime that allocated the memory", error_id{293});
  if (first.in == driver::where::pinned) {  // a range that leaves its registration is pageable to a copy engine
    auto const last = ask(static_cast<std::byte const*>(at) + (bytes - 1));
    found.leaves_its_pin = last.in != driver::where::pinned;
    if (found.leaves_its_pin)
      found.in = driver::where::pageable;
  }
  return found;
}

}  // namespace weir::peer
