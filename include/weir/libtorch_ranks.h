// weir/libtorch_ranks.h: what weir/libtorch.h and weir/libtorch_norm.h share: the order between LibTorch's work and a
// rank's collectives, and tensors that these carry. A program includes those two.
// Threads: as the communicator.
#pragma once
#include <c10/core/DeviceGuard.h>
#include <torch/types.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "weir/collective.h"
#include "weir/copy.h"
#if __has_include(<c10/cuda/impl/cuda_cmake_macros.h>)  // a LibTorch with CUDA
#include <c10/cuda/CUDAStream.h>
#define WEIR_LIBTORCH_HAS_CUDA 1
#else
#define WEIR_LIBTORCH_HAS_CUDA 0
#endif

namespace weir::libtorch::detail {

// A rank's device. Tensors of a simulated device lie on the host: LibTorch runs their operations at once.
struct place {
  runtime* machine;
  weir::device on;

  bool is_simulated() const noexcept { return machine->is_simulated(); }
  at::Device device() const {
    return is_simulated() ? at::Device(at::kCPU) : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(on.index()));
  }
  // The stream of LibTorch's work, on simulated devices weir's current stream.
  stream_ref here([[maybe_unused]] source_location at = source_location::current()) const {
#if WEIR_LIBTORCH_HAS_CUDA
    if (!is_simulated())
      return borrow_stream(on, c10::cuda::getCurrentCUDAStream(device().index()).stream(), at);
#endif
    return current_stream(on, at);
  }
};

// Makes the rank's runtime and device current. LibTorch gets its device back last: weir does not see what it set.
class at_place {
 public:
  explicit at_place(place const& p) : of_libtorch_(p.device()), in_(*p.machine), on_(p.on) {}

 private:
  c10::DeviceGuard of_libtorch_;
  runtime_guard in_;
  device_guard on_;
};

// A tensor that collectives read and write: itself on a GPU, or a copy in the memory of a simulated device.
class carried {
 public:
  // is_copied: collectives of one group share no memory
  carried(place const& p, at::Tensor const& t, bool is_copied = false)
      : tensor_(t), packed_(is_copied ? t.clone(at::MemoryFormat::Contiguous) : t.contiguous()) {
    if (!p.is_simulated() || packed_.numel() == 0)
      return;
    staged_ = buffer(packed_.nbytes());
    copy(staged_.data(), packed_.data_ptr(), packed_.nbytes());
  }
  // Requires: `type` is the tensor's, or uint8 for its bytes.
  device_span span(dtype type) const {
    void* const at = staged_.data() ? staged_.data() : packed_.data_ptr();
    return {at, static_cast<std::int64_t>(packed_.nbytes() / size_of(type)), type};
  }
  // Brings the result back to the tensor.
  void back() {
    if (staged_.data())
      copy(packed_.data_ptr(), staged_.data(), packed_.nbytes());
    if (!packed_.is_same(tensor_))
      tensor_.copy_(packed_);
  }

 private:
  at::Tensor tensor_, packed_;
  buffer staged_;
};

// Calls `enqueue` with a stream of weir current: its work comes behind LibTorch's work and ahead of what follows.
template <class Enqueue>
void between(place const& p, Enqueue enqueue) {
  stream const own(p.on);
  own.wait(p.here());
  {
    stream_guard const current(own);
    enqueue();
  }
  p.here().wait(own.ref());
}

// Collectives that never end release the streams that wait for them. Only afterwards is it known whether they ended.
inline void require_ended(communicator const& c, source_location at) {
  if (std::string const why = c.failure(); !why.empty())
    throw driver_error(0, "data_parallel", "rank " + std::to_string(c.rank()) + " cannot continue: " + why,
                       "End all ranks, and begin anew from a checkpoint", at, error_id{564});
}

inline void broadcast(place const& p, communicator& c, std::vector<at::Tensor> const& tensors, int root,
                      source_location at) {
  torch::NoGradGuard const no_grad;
  at_place const guard(p);
  std::vector<carried> all;
  std::unordered_set<void const*> storages;
  for (at::Tensor const& t : tensors)
    all.emplace_back(p, t, !storages.insert(t.storage().unsafeGetStorageImpl()).second);
  between(p, [&] {
    collective_group g(c);
    for (carried& each : all)
      g.broadcast(each.span(uint8), root);
    g.end();
  });
  for (carried& each : all)
    each.back();
  require_ended(c, at);
}

inline void all_reduce(place const& p, communicator& c, at::Tensor const& t, dtype type, reduce_op how,
                       source_location at = source_location::current()) {
  torch::NoGradGuard const no_grad;
  at_place const guard(p);
  carried its(p, t);
  between(p, [&] { c.all_reduce(its.span(type), how); });
  its.back();
  require_ended(c, at);
}

// Returns: false if weir reduces no such numbers
inline bool set_type(at::ScalarType from, dtype& to) {
  switch (from) {
    case at::kFloat: to = float32; return true;
    case at::kDouble: to = float64; return true;
    case at::kHalf: to = float16; return true;
    case at::kBFloat16: to = bfloat16; return true;
    default: return false;
  }
}

}  // namespace weir::libtorch::detail
