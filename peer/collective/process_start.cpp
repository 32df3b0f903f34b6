// How a process becomes a rank of several: the calls of weir/collective.h that create it.
// Threads: any
#include <map>

#include "peer/collective/group.h"
#include "runtime/base/lasting.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"

namespace weir {
namespace {

// Listeners of ids that no rank 0 has taken yet.
base::guarded<std::map<std::string, os::tcp_socket>>& waiting_listeners() noexcept {
  static base::lasting<base::guarded<std::map<std::string, os::tcp_socket>>> all;
  return *all;
}

void check_options(rank_options const& o, source_location at) {
  using namespace std::chrono_literals;
  for (auto const& [name, span] :
       {std::pair("start", o.start), std::pair("silence", o.silence), std::pair("behind", o.behind)})
    if (span <= 0ms)
      throw invalid_use("communicator", base::text("rank_options{.", name, " = ", span.count(), " ms}"),
                        "Pass a time above 0", at, error_id{405});
}

peer::membership membership_of(runtime::impl& owner, int rank, int size, source_location at) {
  if (size < 1 || rank < 0 || rank >= size)
    throw invalid_use("communicator", base::text("rank ", rank, " of ", size), "Ranks count from 0 to their number - 1",
                      at, error_id{406});
  return {rank, size, owner.machine().simulated()};
}

}  // namespace

communicator communicator::from_environment(rank_options o, source_location at) {
  check_options(o, at);
  launch_info const l = this_launch(at);
  runtime::impl& owner = streams::current_runtime(at);
  peer::membership const m = membership_of(owner, l.rank, l.size, at);
  int device = l.local_rank;
  int const devices = owner.device_count();
  // A launcher may show each process its own GPU alone. A simulated process has a machine to itself.
  if (devices == 1 || m.simulated) {
    device %= devices;
  } else if (device >= devices) {
    throw invalid_use(
        "communicator::from_environment",
        base::text("rank ", l.rank, " of ", l.size, ": local rank ", device, ", and there are ", devices, " devices"),
        "Start at most one process for each device of a machine", at, error_id{408});
  }
  auto all = peer::group_at(owner, peer::rendezvous_of(l, o.start, at), m, device, o, at);
  return communicator(std::unique_ptr<state>(new state{std::move(all), m.rank}));
}

communicator communicator::create(std::string_view id, int rank, int size, weir::device on, rank_options o,
                                  source_location at) {
  check_options(o, at);
  runtime::impl& owner = streams::current_runtime(at);
  peer::membership const m = membership_of(owner, rank, size, at);
  int const device = streams::resolve(on, owner, "communicator::create", at);
  auto const where = peer::rendezvous_id_of(id);
  if (!where)
    throw invalid_use("communicator::create", "\"" + base::visible(id.substr(0, 100)) + "\" is no id",
                      "Pass what communicator::unique_id() returned on rank 0", at, error_id{409});
  peer::rendezvous_point point{*where, {}, {}};
  if (rank == 0) {
    auto all = waiting_listeners().lock();
    auto const found = all->find(std::string(id));
    if (found == all->end())
      throw invalid_use("communicator::create", "rank 0 with an id that this process did not make, or that is used",
                        "Call communicator::unique_id() in the process of rank 0, once for each communicator", at,
                        error_id{410});
    point.listener = std::move(found->second);
    all->erase(found);
  }
  auto all = peer::group_at(owner, std::move(point), m, device, o, at);
  return communicator(std::unique_ptr<state>(new state{std::move(all), rank}));
}

std::string communicator::unique_id(source_location at) {
  peer::rendezvous_point point = peer::new_point({}, at);
  std::string const id = peer::text_of(point.id);
  waiting_listeners().lock()->emplace(id, std::move(point.listener));
  return id;
}

}  // namespace weir
