// weir/peer.h: the table of links, access between two devices, and memory opened to a peer.
// Threads: any.
#include "weir/peer.h"

#include <bit>
#include <string>

#include "peer/link/links.h"
#include "peer/link/nvlinks.h"
#include "peer/link/openable_memory.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"

namespace weir {
namespace {
peer::links& links_of(runtime::impl& r) {
  return r.part<peer::links>();
}

void open(runtime::impl& r, int owner, clock::stream_clock* home, std::vector<device> const& readers,
          source_location at) {
  std::vector<int> ordinals;
  for (device const one : readers)
    ordinals.push_back(streams::resolve(one, r, "enable_peer_access", at));
  links_of(r).enable_peer_access(owner, home, ordinals, at);
}
}  // namespace

std::vector<peer_link> links(source_location at) {
  auto& r = streams::current_runtime(at);
  auto& all = links_of(r);
  std::vector<peer_link> table;
  std::vector<std::string> buses(static_cast<std::size_t>(r.device_count()));
  std::vector<std::vector<peer::nvlink_end>> ends(buses.size());
  bool const may_have_nvlinks = buses.size() > 1 && !r.machine().simulated();
  for (std::size_t i = 0; may_have_nvlinks && i < buses.size(); ++i) {
    buses[i] = r.machine().info(static_cast<int>(i)).value.pci_bus_id;
    ends[i] = peer::nvlink_ends(buses[i]);
  }
  for (int from = 0; from < r.device_count(); ++from) {
    for (int to = 0; to < r.device_count(); ++to) {
      if (from == to) {
        table.push_back({.from = device(from),
                         .to = device(to),
                         .by = peer_link::kind::self,
                         .nvlinks = 0,
                         .access = true,
                         .native_atomics = true,
                         .verified = true});
        continue;
      }
      auto is = peer::links::link_state::claimed;
      try {
        is = all.prove(from, to, at);
      } catch (out_of_memory const&) {}  // a later call tests it
      auto claim = all.driver_claim(from, to).value;
      auto const a = static_cast<std::size_t>(from), b = static_cast<std::size_t>(to);
      if (claim.access && claim.nvlinks == 0)
        claim.nvlinks = peer::nvlinks_between(ends[a], buses[a], ends[b], buses[b]);
      auto const by = !claim.access       ? peer_link::kind::host
                      : claim.nvlinks > 0 ? peer_link::kind::nvlink
                                          : peer_link::kind::direct;
      table.push_back({.from = device(from),
                       .to = device(to),
                       .by = by,
                       .nvlinks = claim.nvlinks,
                       .access = claim.access,
                       .native_atomics = claim.native_atomics,
                       .verified = is == peer::links::link_state::proven,
                       .wrong = is == peer::links::link_state::wrong});
    }
  }
  return table;
}

bool can_access_peer(device from, device to, source_location at) {
  auto& r = streams::current_runtime(at);
  int const reader = streams::resolve(from, r, "can_access_peer", at),
            owner = streams::resolve(to, r, "can_access_peer", at);
  require(links_of(r).driver_claim(reader, owner).is, "can_access_peer", base::pair_text(reader, owner), "Try again",
          at);
  auto const known = links_of(r).known(reader, owner);
  return known == peer::links::link_state::claimed || known == peer::links::link_state::proven;
}

void detail::enable_peer_access(void const* block, device reader, source_location at) {
  auto& r = streams::current_runtime(at);
  int const from = streams::resolve(reader, r, "enable_peer_access", at);
  if (r.part<streams::pinned_memory>().find(block))
    return;  // every device reads it
  auto* const memory = r.part<memory::device_memory>().owner(block);
  auto const found = memory ? memory->find(block) : std::nullopt;
  if (!found) {
    // It may be shared with other processes, or host memory that the program registered.
    auto const* const external = r.part_if_made<observe::external_memory>();
    auto const its = external ? external->find(block) : std::nullopt;
    if (!its || !its->in_use)
      throw invalid_use("enable_peer_access", streams::range_text(block, 0) + " for gpu:" + std::to_string(from),
                        "Pass a live block of this runtime", at, error_id{295});
    bool const is_of_host = its->device < 0;  // every device reads it
    if (is_of_host || from == its->device)
      return;
    links_of(r).must_reach(from, its->device, "enable_peer_access", at);
    links_of(r).open_to_each_other(from, its->device, at);
    require(r.part<peer::shared_memory>().of(its->kind)->open_to(block, from), "enable_peer_access",
            "shared memory at " + streams::range_text(block, 0) + " for gpu:" + std::to_string(from),
            "Copy instead, or repeat the call", at);
    return;
  }
  int const to = memory->device();
  if (from == to)
    return;
  links_of(r).must_reach(from, to, "enable_peer_access", at);
  links_of(r).open_to_each_other(from, to, at);
  if (memory->granted(block, from))
    return;  // open before, or with all memory of the device just now
  require(memory->grant(block, from), "enable_peer_access",
          streams::range_text(found->base, found->bytes) + " for gpu:" + std::to_string(from),
          "Copy instead, or repeat the call", at);
}

void enable_peer_access(stream_ref s, std::vector<device> const& readers, source_location at) {
  auto& stream = streams::clock_or_throw(s, "enable_peer_access", at);
  open(stream.owner(), stream.device(), &stream, readers, at);
}

void enable_peer_access(device owner, std::vector<device> const& readers, source_location at) {
  auto& r = streams::current_runtime(at);
  open(r, streams::resolve(owner, r, "enable_peer_access", at), nullptr, readers, at);
}

std::vector<device> memory_readers(stream_ref s, source_location at) {
  auto& stream = streams::clock_or_throw(s, "memory_readers", at);
  std::vector<device> all;
  for (std::uint64_t left = stream.owner().part<memory::device_memory>().on(stream.device(), at).readers(stream); left;
       left &= left - 1)
    all.emplace_back(std::countr_zero(left));
  return all;
}

}  // namespace weir
