// Threads: as the header says.
#include "peer/collective/nccl_calls.h"

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

namespace weir::peer {

std::byte* part_of(void const* whole, std::size_t rank, std::size_t bytes) noexcept {
  return static_cast<std::byte*>(const_cast<void*>(whole)) + rank * bytes;
}

namespace {

// The root sends all parts, its own too unless that is in place.
ncclResult_t nccl_scatter(int rank, std::size_t ranks, collective_request const& r, std::size_t bytes, ncclComm_t comm,
                          CUstream_st* on) {
  bool const is_root = rank == r.root;
  bool const in_place = is_root && part_of(r.in, static_cast<std::size_t>(rank), bytes) == r.out;
  return in_a_group([&](auto const& note) {
    if (is_root)
      for (std::size_t to = 0; to < ranks; ++to) {
        int const peer = static_cast<int>(to);
        if (peer != rank || !in_place)
          note(nccl().Send(part_of(r.in, to, bytes), bytes, ncclUint8, peer, comm, on));
      }
    if (!in_place)
      note(nccl().Recv(r.out, bytes, ncclUint8, r.root, comm, on));
  });
}

// The root receives all parts, its own too unless that is in place.
ncclResult_t nccl_gather(int rank, std::size_t ranks, collective_request const& r, std::size_t bytes, ncclComm_t comm,
                         CUstream_st* on) {
  bool const is_root = rank == r.root;
  bool const in_place = is_root && part_of(r.out, static_cast<std::size_t>(rank), bytes) == r.in;
  return in_a_group([&](auto const& note) {
    if (is_root)
      for (std::size_t from = 0; from < ranks; ++from) {
        int const peer = static_cast<int>(from);
        if (peer != rank || !in_place)
          note(nccl().Recv(part_of(r.out, from, bytes), bytes, ncclUint8, peer, comm, on));
      }
    if (!in_place)
      note(nccl().Send(r.in, bytes, ncclUint8, r.root, comm, on));
  });
}

ncclResult_t nccl_exchange(std::size_t ranks, collective_request const& r, std::size_t bytes, ncclComm_t comm,
                           CUstream_st* on) {
  return in_a_group([&](auto const& note) {
    for (std::size_t other = 0; other < ranks; ++other) {
      int const peer = static_cast<int>(other);
      note(nccl().Send(part_of(r.in, other, bytes), bytes, ncclUint8, peer, comm, on));
      note(nccl().Recv(part_of(r.out, other, bytes), bytes, ncclUint8, peer, comm, on));
    }
  });
}

}  // namespace

// Long: the switch has a line for each collective.
ncclResult_t nccl_enqueue(int rank, std::size_t ranks, collective_request const& r, ncclRedOp_t how, ncclComm_t comm,
                          CUstream_st* on) {
  if (r.count == 0)
    return ncclSuccess;
  bool const as_bytes = !r.reduces();  // no arithmetic: element types do not matter
  std::size_t const count = static_cast<std::size_t>(r.count) * (as_bytes ? size_of(r.type) : 1);
  ncclDataType_t const type = as_bytes ? ncclUint8 : nccl_type(r.type);
  switch (r.what) {
    case collective::all_reduce: return nccl().AllReduce(r.in, r.out, count, type, how, comm, on);
    case collective::broadcast: return nccl().Broadcast(r.in, r.out, count, type, r.root, comm, on);
    case collective::all_gather: return nccl().AllGather(r.in, r.out, count, type, comm, on);
    case collective::reduce_scatter: return nccl().ReduceScatter(r.in, r.out, count, type, how, comm, on);
    case collective::scatter: return nccl_scatter(rank, ranks, r, count, comm, on);
    case collective::gather: return nccl_gather(rank, ranks, r, count, comm, on);
    case collective::all_to_all: return nccl_exchange(ranks, r, count, comm, on);
    case collective::send: return nccl().Send(r.in, count, type, r.root, comm, on);
    case collective::receive: return nccl().Recv(r.out, count, type, r.root, comm, on);
    case collective::register_pool: return ncclSuccess;
  }
  return ncclSuccess;
}

}  // namespace weir::peer

#endif
