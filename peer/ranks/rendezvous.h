// How the ranks of several processes find each other: rank 0 listens, the others connect and name themselves.
// Threads: one.
//
//   rank r -> 0   hello: nonce of the rendezvous, rank, number of ranks, kind of machine, line
//   0 -> rank r   once all have come: welcome, with rank 0's greeting; or refused, with the reason
//
// Each rank connects twice. One line is for watching, the other carries the data of simulated devices.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/os_tcp.h"
#include "weir/collective.h"

namespace weir::peer {

struct rendezvous_id {
  std::string host;
  std::uint16_t port = 0;
  std::uint64_t nonce = 0;  // tells rendezvous apart, and keeps strangers out
  friend bool operator==(rendezvous_id const&, rendezvous_id const&) = default;
};
std::string text_of(rendezvous_id const&);                        // "weir:7f3a…:29500:10.0.0.5"
std::optional<rendezvous_id> rendezvous_id_of(std::string_view);  // none: no id

struct membership {
  int rank = 0, size = 1;
  bool simulated = false;
};

struct lines {  // by rank; rank 0 has one to each other rank, the others have one to rank 0
  std::vector<os::owned_file> watch, data;
};

struct met {
  lines with;
  std::string greeting;               // rank 0's
  std::function<void()> turn_away{};  // of rank 0: refuses the ranks that have come since. Blocks: no
};

// Blocks: until all ranks have come. Throws: timed_out (naming those that are missing), driver_error
met meet_others(os::tcp_socket listener, rendezvous_id const&, membership, std::string greeting, base::time_limit,
                source_location);
// Connects to rank 0, and tries again until the limit. Throws: invalid_use (rank 0 refuses: its reason),
// timed_out (rank 0 cannot be reached), driver_error (rank 0 has gone)
met meet_rank_0(rendezvous_id, std::function<rendezvous_id()> const& ask_again, membership, base::time_limit,
                source_location);

}  // namespace weir::peer
