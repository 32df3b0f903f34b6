// A collective in NCCL's calls: those that NCCL lacks are groups of sends and receives.
// Threads: each communicator by one
#pragma once
#include "peer/collective/group.h"
#include "peer/collective/nccl_library.h"

#if defined(WEIR_WITH_CUDA) && __has_include(<nccl.h>)

namespace weir::peer {

std::byte* part_of(void const* whole, std::size_t rank, std::size_t bytes) noexcept;
// ranks: of the communicator. how: of a reduction. Returns: the first error; then nothing is enqueued
ncclResult_t nccl_enqueue(int rank, std::size_t ranks, collective_request const&, ncclRedOp_t how, ncclComm_t,
                          CUstream_st* on);

// Makes the calls in one NCCL group. NCCL enqueues all or none. Returns: the first error
template <class Calls>
ncclResult_t in_a_group(Calls calls) {
  ncclResult_t worst = nccl().GroupStart();
  if (worst != ncclSuccess)
    return worst;
  auto const note = [&](ncclResult_t answer) {
    if (worst == ncclSuccess)
      worst = answer;
  };
  calls(note);
  note(nccl().GroupEnd());
  return worst;
}

}  // namespace weir::peer

#endif
