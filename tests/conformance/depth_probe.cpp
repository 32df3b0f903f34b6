// How many operations a stalled stream accepts before a call blocks, and which streams that call holds up.
// Threads: as probe.h.
#include <vector>

#include "tests/conformance/probe.h"

namespace weir::conformance::probe {
namespace {

constexpr int most = 5000;
using give = std::function<int(int)>;  // enqueues the k-th operation. Returns: 0 or an error

// Enqueues operations on another thread, until `most` are enqueued or one does not return for 300 ms.
class filling {
 public:
  filling(gpu const& g, give f)
      : thread_([this, &g, f = std::move(f)] {
          cu->cuCtxSetCurrent(g.context);
          for (int k = 0; k < most; ++k) {
            if ((error_ = f(k)) != 0)
              break;
            ++given_;
          }
          over_ = true;
        }) {
    for (int last = -1, still = 0; !over_ && still < 300; ++still) {
      if (int const now = given_; now != last)
        last = now, still = 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    stuck_at_ = over_ ? -1 : given_.load();
  }
  int stuck_at() const { return stuck_at_; }
  void join() { thread_.join(); }
  std::string text() const {
    if (error_ != 0)
      return std::to_string(given_) + " given, then error " + std::to_string(error_);
    return stuck_at_ < 0 ? "none of " + std::to_string(most) + " waits"
                         : std::to_string(stuck_at_) + " are given, the next WAITS";
  }

 private:
  std::atomic<int> given_{0}, error_{0};
  std::atomic<bool> over_{false};
  int stuck_at_ = -1;
  std::thread thread_;
};

// Objects that the questions enqueue work with.
struct kit {
  gpu const g{0};
  pages const p{0};
  void* const host = host_memory(page);
  CUevent recorded = nullptr, complete = nullptr, pending = nullptr;
  kit() {
    g.use();
    MUST(cu->cuMemHostRegister(host, page, CU_MEMHOSTREGISTER_PORTABLE));
    for (CUevent* e : {&recorded, &complete, &pending})
      MUST(cu->cuEventCreate(e, CU_EVENT_DISABLE_TIMING));
    MUST(cu->cuEventRecord(complete, g.other));
    MUST(cu->cuStreamSynchronize(g.other));
  }
  int launch(CUstream s, int k) const { return launch_store(s, p.words(), static_cast<std::uint32_t>(k)); }
  int h2d(CUstream s) const { return cu->cuMemcpyAsync(p.at, address_of(host), 64, s); }
  int d2h(CUstream s) const { return cu->cuMemcpyAsync(address_of(host) + 4096, p.at, 64, s); }
  int d2d(CUstream s) const { return cu->cuMemcpyAsync(p.at + 4096, p.at, 64, s); }
  int fill(CUstream s) const { return cu->cuMemsetD32Async(p.at + 8192, 1, 16, s); }
  int record(CUstream s) const { return cu->cuEventRecord(recorded, s); }
  int call_host(CUstream s) const {
    return cu->cuLaunchHostFunc(
        s, [](void*) {}, nullptr);
  }
  int mix(CUstream s, int k) const {
    switch (k % 9) {
      case 0:
      case 1: return launch(s, k);
      case 2: return h2d(s);
      case 3: return d2h(s);
      case 4: return d2d(s);
      case 5: return fill(s);
      case 6: return record(s);
      case 7: return cu->cuStreamWaitEvent(s, complete, 0);
      default: return call_host(s);
    }
  }
};

void ask(kit const& k, char const* question, give const& f) {
  held h(k.g, k.g.s);
  filling filled(k.g, f);
  h.open();
  filled.join();
  say(question, filled.text());
  k.g.use();
  MUST(cu->cuCtxSynchronize());
}

}  // namespace

void depth() {
  kit const k;
  CUstream const s = k.g.s;
  ask(k, "kernel launch", [&](int i) { return k.launch(s, i); });
  ask(k, "copy to the device, 64 B of registered memory", [&](int) { return k.h2d(s); });
  ask(k, "copy from the device, 64 B", [&](int) { return k.d2h(s); });
  ask(k, "copy in the device, 64 B", [&](int) { return k.d2d(s); });
  ask(k, "memset, 64 B", [&](int) { return k.fill(s); });
  ask(k, "event record", [&](int) { return k.record(s); });
  ask(k, "wait for a complete event", [&](int) { return cu->cuStreamWaitEvent(s, k.complete, 0); });
  {
    held other(k.g, k.g.other);
    MUST(cu->cuEventRecord(k.pending, k.g.other));
    held h(k.g, s);
    filling filled(k.g, [&](int) { return static_cast<int>(cu->cuStreamWaitEvent(s, k.pending, 0)); });
    h.open();
    other.open();
    filled.join();
    say("wait for a pending event", filled.text());
    k.g.use();
    MUST(cu->cuCtxSynchronize());
  }
  ask(k, "host function", [&](int) { return k.call_host(s); });
  ask(k, "the mix: 2 kernels, 3 copies, memset, record, wait, host function", [&](int i) { return k.mix(s, i); });
  ask(k, "the mix without host functions", [&](int i) { return k.mix(s, i / 8 * 9 + i % 8); });
  for (int n : {2, 8, 32}) {  // one gate holds all: the other streams wait for the first one's event
    std::vector<CUstream> all{s};
    while (static_cast<int>(all.size()) < n)
      all.push_back(k.g.stream());
    held h(k.g, s);
    MUST(cu->cuEventRecord(k.pending, s));
    for (int i = 1; i < n; ++i)
      MUST(cu->cuStreamWaitEvent(all[static_cast<std::size_t>(i)], k.pending, 0));
    filling filled(k.g, [&](int i) { return k.mix(all[static_cast<std::size_t>(i % n)], i / n); });
    h.open();
    filled.join();
    say("the mix, by turns on " + std::to_string(n) + " streams, all held; in all", filled.text());
    k.g.use();
    MUST(cu->cuCtxSynchronize());
  }
  if (devices() < 2)
    return say("peer copies", "needs 2 GPUs");
  gpu const b(1);
  pages const far(1);
  ask(k, "peer copy, 64 B, neither side granted",
      [&](int) { return cu->cuMemcpyPeerAsync(far.at, b.context, k.p.at, k.g.context, 64, s); });
  MUST(pages::grant(far.at, 0));
  ask(k, "peer copy, 64 B, target granted",
      [&](int) { return cu->cuMemcpyPeerAsync(far.at, b.context, k.p.at, k.g.context, 64, s); });
}

void depth_others() {
  kit const k;
  CUstream const free_stream = k.g.other;
  CUdeviceptr at = 0;
  MUST(cu->cuMemAddressReserve(&at, page, page, 0, 0));
  auto const handle = pages::make(0);
  CUevent e = nullptr;
  auto const while_full = [&](char const* question, give const& f, std::function<CUresult()> const& call) {
    held h(k.g, k.g.s);
    filling filled(k.g, f);
    if (filled.stuck_at() < 0) {
      say(question, "(nothing waits for room)");
      h.open();
    } else {
      waits(question, k.g, h, call);
    }
    filled.join();
    k.g.use();
    MUST(cu->cuCtxSynchronize());
  };
  struct kind {
    char const* name;
    give f;
  };
  for (kind const& full : {kind{"kernels", [&](int i) { return k.launch(k.g.s, i); }},
                           kind{"the mix", [&](int i) { return k.mix(k.g.s, i); }}}) {
    std::printf("  while a call waits for room on a stream full of %s, on another thread:\n", full.name);
    while_full("    a kernel on a free stream, synchronized", full.f, [&] {
      auto const r = static_cast<CUresult>(k.launch(free_stream, 1));
      return r == CUDA_SUCCESS ? cu->cuStreamSynchronize(free_stream) : r;
    });
    while_full("    a host function on a free stream", full.f,
               [&] { return static_cast<CUresult>(k.call_host(free_stream)); });
    while_full("    cuEventRecord + cuEventQuery on a free stream", full.f, [&] {
      CUresult const r = cu->cuEventRecord(k.complete, free_stream);
      CUresult const q = cu->cuEventQuery(k.complete);
      return r != CUDA_SUCCESS ? r : q == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : q;
    });
    while_full("    cuEventQuery of an event of the full stream", full.f, [&] {
      CUresult const q = cu->cuEventQuery(k.recorded);
      return q == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : q;
    });
    while_full("    cuMemMap, cuMemSetAccess, cuMemUnmap", full.f, [&] {
      CUresult r = cu->cuMemMap(at, page, 0, handle, 0);
      if (r == CUDA_SUCCESS)
        r = pages::grant(at, 0);
      if (r == CUDA_SUCCESS)
        r = cu->cuMemUnmap(at, page);
      return r;
    });
    while_full("    cuEventCreate + cuEventDestroy", full.f, [&] {
      CUresult const r = cu->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
      return r == CUDA_SUCCESS ? cu->cuEventDestroy(e) : r;
    });
  }
}

}  // namespace weir::conformance::probe
