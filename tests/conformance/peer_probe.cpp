// Questions that need two GPUs: how one GPU's work blocks the other, and which copies work without access.
// Threads: as probe.h.
#include "tests/conformance/probe.h"

namespace weir::conformance::probe {

void unmap_peers() {
  if (devices() < 2)
    return say("unmap with peers mapped", "needs 2 GPUs");
  gpu const a(0), b(1);
  pages const p(0), q(0), r(0);
  auto const fresh = pages::make(0);
  for (pages const* each : {&p, &q, &r})
    MUST(pages::grant(each->at, 1));
  held h(b, b.s);
  MUST(static_cast<CUresult>(launch_store(b.s, p.words(), 1)));
  waits("unmap of a range granted to a peer, other work of the PEER held", a, h,
        [&] { return cu->cuMemUnmap(q.at, page); });
  b.use();
  say("  then the peer's stream", number(cu->cuStreamSynchronize(b.s)));
  held h2(b, b.s);
  MUST(static_cast<CUresult>(launch_store(b.s, r.words(), 5)));
  bool const waited = waits(
      "the same range unmapped and mapped to another page, under work of the PEER that will write it", a, h2, [&] {
        CUresult e = cu->cuMemUnmap(r.at, page);
        if (e == CUDA_SUCCESS)
          e = cu->cuMemMap(r.at, page, 0, fresh, 0);
        if (e == CUDA_SUCCESS)
          e = pages::grant(r.at, 0);
        if (e == CUDA_SUCCESS)
          e = pages::grant(r.at, 1);
        return e;
      });
  b.use();
  say("  then the peer's stream", number(cu->cuStreamSynchronize(b.s)));
  say("  the new page holds", waited ? "(waited)" : word_at(a, r.words()) == 5 ? "the store" : "not the store");
  held h3(b, b.s);
  MUST(static_cast<CUresult>(launch_store(b.s, p.words(), 1)));
  waits("unmap of a range that held work of the PEER will write", a, h3, [&] { return cu->cuMemUnmap(p.at, page); });
  b.use();
  say("  then the peer's stream", number(cu->cuStreamSynchronize(b.s)));
  a.use();
  say("  then the owner's stream", number(cu->cuStreamQuery(a.s)));
}

void peer_blocking() {
  if (devices() < 2)
    return say("calls while a PEER's stream is held", "needs 2 GPUs");
  gpu const a(0), b(1);
  pages const granted(0), work(1);
  MUST(pages::grant(granted.at, 1));
  a.use();
  CUdeviceptr at = 0, plain = 0;
  CUmemGenericAllocationHandle handle = 0;
  void* const host = host_memory(page);
  CUevent e = nullptr;
  MUST(cu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  auto const with_held = [&](char const* question, std::function<CUresult()> const& call) {
    held h(b, b.s);
    MUST(static_cast<CUresult>(launch_store(b.s, work.words(), 1)));
    waits(question, a, h, call);
    b.use();
    MUST(cu->cuStreamSynchronize(b.s));
  };
  with_held("device 0, a stream of device 1 held: cuMemCreate", [&] {
    handle = pages::make(0);
    return CUDA_SUCCESS;
  });
  with_held("  cuMemAddressReserve + cuMemMap", [&] {
    CUresult const r = cu->cuMemAddressReserve(&at, page, page, 0, 0);
    return r == CUDA_SUCCESS ? cu->cuMemMap(at, page, 0, handle, 0) : r;
  });
  with_held("  cuMemSetAccess, own device", [&] { return pages::grant(at, 0); });
  with_held("  cuMemSetAccess, the held peer", [&] { return pages::grant(at, 1); });
  with_held("  cuMemUnmap, granted to the held peer", [&] { return cu->cuMemUnmap(at, page); });
  with_held("  cuMemRelease, was granted to the held peer", [&] { return cu->cuMemRelease(handle); });
  with_held("  cuMemAlloc 64 MiB", [&] { return cu->cuMemAlloc(&plain, 32 * page); });
  with_held("  cuMemFree", [&] { return cu->cuMemFree(plain); });
  with_held("  cuMemHostRegister", [&] { return cu->cuMemHostRegister(host, page, CU_MEMHOSTREGISTER_PORTABLE); });
  with_held("  cuMemHostUnregister", [&] { return cu->cuMemHostUnregister(host); });
  with_held("  cuMemcpyPeerAsync on a stream of device 0, no access",
            [&] { return cu->cuMemcpyPeerAsync(work.at + 4096, b.context, granted.at, a.context, 64, a.s); });
  with_held("  cuMemcpyPeerAsync on a stream of device 0, no access, 64 MiB in all", [&] {
    CUresult r = CUDA_SUCCESS;
    for (int i = 0; i < 32 && r == CUDA_SUCCESS; ++i)
      r = cu->cuMemcpyPeerAsync(work.at, b.context, granted.at, a.context, page, a.s);
    return r;
  });
  with_held("  and that stream of device 0, synchronized", [&] {
    CUresult const r = cu->cuMemcpyPeerAsync(work.at + 4096, b.context, granted.at, a.context, 64, a.s);
    return r == CUDA_SUCCESS ? cu->cuStreamSynchronize(a.s) : r;
  });
  with_held("  cuCtxSynchronize of device 0", [&] { return cu->cuCtxSynchronize(); });
}

void peer_copies() {
  if (devices() < 2)
    return say("peer copies", "needs 2 GPUs");
  gpu const a(0), b(1);
  pages const p(0), q(1);
  a.use();
  MUST(static_cast<CUresult>(launch_store(a.s, p.words(), 21)));
  auto const then = [&](gpu const& g, CUstream s, CUresult r) {
    g.use();
    return number(r) + ", then " + number(cu->cuStreamSynchronize(s));
  };
  say("cuMemcpyPeerAsync, neither side granted",
      then(a, a.s, cu->cuMemcpyPeerAsync(q.at, b.context, p.at, a.context, 4, a.s)));
  say("  the bytes", word_at(b, q.words()) == 21 ? "arrived" : "WRONG");
  b.use();
  say("cuMemcpyPeerAsync on the target's stream",
      then(b, b.s, cu->cuMemcpyPeerAsync(q.at + 4, b.context, p.at, a.context, 4, b.s)));
  say("  the bytes", word_at(b, q.words() + 1) == 21 ? "arrived" : "WRONG");
  if (devices() > 2) {
    gpu const c(2);
    say("cuMemcpyPeerAsync on a third device's stream",
        then(c, c.s, cu->cuMemcpyPeerAsync(q.at + 8, b.context, p.at, a.context, 4, c.s)));
    say("  the bytes", word_at(b, q.words() + 2) == 21 ? "arrived" : "WRONG");
  }
  a.use();
  say("cuMemcpyAsync (default kind), neither side granted", then(a, a.s, cu->cuMemcpyAsync(q.at, p.at, 4, a.s)));
  MUST(pages::grant(q.at, 0));
  say("cuMemcpyAsync (default kind), target granted to the stream's device",
      then(a, a.s, cu->cuMemcpyAsync(q.at + 64, p.at, 4, a.s)));
  say("  the bytes", word_at(b, q.words() + 16) == 21 ? "arrived" : "WRONG");
  a.use();
  say("cuMemcpyAsync (default kind) back, source granted to the stream's device",
      then(a, a.s, cu->cuMemcpyAsync(p.at + 64, q.at + 64, 4, a.s)));
  say("cuMemsetD32Async of a granted peer's memory", then(a, a.s, cu->cuMemsetD32Async(q.at, 1, 1, a.s)));
  void* const host = host_memory(page);
  MUST(cu->cuMemHostRegister(host, page, CU_MEMHOSTREGISTER_PORTABLE));
  say("cuMemcpyAsync from registered memory to a granted peer's memory",
      then(a, a.s, cu->cuMemcpyAsync(q.at, address_of(host), 4, a.s)));
  pages const lone(1);
  a.use();
  say("cuMemcpyAsync from registered memory to an ungranted peer's memory",
      then(a, a.s, cu->cuMemcpyAsync(lone.at, address_of(host), 4, a.s)));
  say("cuMemsetD32Async of an ungranted peer's memory", then(a, a.s, cu->cuMemsetD32Async(lone.at, 1, 1, a.s)));
}

void peer_fault() {
  if (devices() < 2)
    return say("a kernel that writes ungranted memory of a peer", "needs 2 GPUs");
  gpu const a(0), b(1);
  pages const q(1);
  held h(b, b.s);
  MUST(static_cast<CUresult>(launch_store(b.s, q.words() + 1, 7)));
  a.use();
  MUST(static_cast<CUresult>(launch_store(a.s, q.words(), 9)));
  say("a kernel of device 0 that writes ungranted memory of device 1", number(cu->cuStreamSynchronize(a.s)));
  h.open();
  b.use();
  say("  device 1's held stream, which writes the same page", number(cu->cuStreamSynchronize(b.s)));
  say("  device 1's other stream", number(cu->cuStreamQuery(b.other)));
  say("  device 1's page holds", word_at(b, q.words()) == 9       ? "the ungranted store"
                                 : word_at(b, q.words() + 1) == 7 ? "its own store alone"
                                                                  : "neither store");
}

}  // namespace weir::conformance::probe
