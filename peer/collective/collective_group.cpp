// The members of a group until its end(): requests, and the lines that asked for them.
// Threads: as the communicator.
#include "peer/collective/group.h"

namespace weir {

// Its communicator may move or end first: calls then throw.
struct WEIR_LOCAL collective_group::state {
  std::shared_ptr<peer::group> all;
  int rank;
  std::vector<peer::collective_request> members{};
  std::vector<source_location> from{};  // by member
  peer::scope_of_exceptions scope{};

  ~state() {
    if (scope.is_ended() && !all->ended() && !process_is_ending() && !process_was_forked())
      all->unwound(rank, "an exception ended its collective_group");
  }
  peer::asking asks(source_location at) const { return {rank, all->size(), at}; }
  void add(peer::collective_request const& r, source_location at) {
    from.push_back(at);
    try {
      members.push_back(r);
    } catch (...) {  // no host memory
      from.pop_back();
      throw;
    }
  }
};

collective_group::collective_group(communicator const& of) : state_(new state{of.state_->all, of.state_->rank}) {}
collective_group::collective_group(collective_group&&) noexcept = default;
collective_group& collective_group::operator=(collective_group&&) noexcept = default;
collective_group::~collective_group() = default;

void collective_group::all_reduce(device_span what, reduce_op how, source_location at) {
  state_->add(state_->asks(at).all_reduce(what, how), at);
}
void collective_group::broadcast(device_span what, int root, source_location at) {
  state_->add(state_->asks(at).broadcast(what, root), at);
}
void collective_group::scatter(device_span out, device_span in, int root, source_location at) {
  state_->add(state_->asks(at).scatter(out, in, root), at);
}
void collective_group::gather(device_span out, device_span in, int root, source_location at) {
  state_->add(state_->asks(at).gather(out, in, root), at);
}
void collective_group::all_gather(device_span out, device_span in, source_location at) {
  state_->add(state_->asks(at).all_gather(out, in), at);
}
void collective_group::reduce_scatter(device_span out, device_span in, reduce_op how, source_location at) {
  state_->add(state_->asks(at).reduce_scatter(out, in, how), at);
}
void collective_group::all_to_all(device_span out, device_span in, source_location at) {
  state_->add(state_->asks(at).all_to_all(out, in), at);
}
void collective_group::send(device_span in, int to, source_location at) {
  state_->add(state_->asks(at).send(in, to), at);
}
void collective_group::receive(device_span out, int from, source_location at) {
  state_->add(state_->asks(at).receive(out, from), at);
}

int collective_group::size() const noexcept {
  return static_cast<int>(state_->members.size());
}

stamp collective_group::end(source_location at) {
  stamp const done = state_->all->call(state_->rank, state_->members, state_->from, at);
  state_->members.clear();
  state_->from.clear();
  return done;
}

}  // namespace weir
