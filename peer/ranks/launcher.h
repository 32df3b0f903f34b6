// What a launcher told this process: by its environment, the store of torchrun's agent, or Open MPI.
// Threads: one.
#pragma once
#include <functional>

#include "peer/ranks/rendezvous.h"

namespace weir::peer {

// Where rank 0 waits, if this process was launched. Rank 0 listens here and tells the others.
// Throws: as communicator::from_environment
struct rendezvous_point {
  rendezvous_id id;
  os::tcp_socket listener;  // rank 0 only
  // The id that rank 0 published last. A launcher that restarts processes keeps what earlier ones published,
  // so a place that cannot be reached is asked for again. Null: the id is final.
  std::function<rendezvous_id()> ask_again;
};
rendezvous_point rendezvous_of(launch_info const&, base::time_limit, source_location);

}  // namespace weir::peer
