// A product by the library of the place: cuBLAS on a GPU, found at run time; a CBLAS on the simulated machine and on the host.
// Threads: any; calls for one GPU take turns while they are given to the stream.
#include <cblas.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/parts.h"
#include "streams/context.h"
#include "tensor/ops.h"

// OpenBLAS's own; another CBLAS has none and none is called.
extern "C" __attribute__((weak)) void openblas_set_num_threads(int);

namespace weir::ops {
namespace {

// cuBLAS, as much of it as is used. Its header is not needed: handles are opaque, enumerators numbers of its ABI.
struct cublas_functions {
  using handle = void*;
  int (*create)(handle*) = nullptr;
  int (*destroy)(handle) = nullptr;
  int (*set_stream)(handle, CUstream_st*) = nullptr;
  int (*set_workspace)(handle, void*, size_t) = nullptr;
  int (*sgemm)(handle, int, int, int, int, int, float const*, float const*, int, float const*, int, float const*, float*, int) = nullptr;
  char const* missing = nullptr;

  cublas_functions() {
    void* library = nullptr;
    for (char const* name : {"libcublas.so.13", "libcublas.so.12"}) {
      if ((library = os::load_library(name))) break;
    }
    if (!library) {
      missing = "libcublas.so.13 or libcublas.so.12";
      return;
    }
    auto const find = [&](auto& function, char const* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(os::find_symbol(library, name));
      if (!function) missing = name;
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(set_workspace, "cublasSetWorkspace_v2");
    find(sgemm, "cublasSgemm_v2");
  }
};
constexpr int not_turned = 0, turned = 1;  // CUBLAS_OP_N, CUBLAS_OP_T

class cublas {  // a part of the runtime: a handle a GPU, made on first use
 public:
  explicit cublas(runtime::impl& r) : runtime_(r), devices_(static_cast<size_t>(r.device_count())) {
    for (auto& d : devices_) d = std::make_unique<of_device>();
  }
  ~cublas() {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (devices_[i]->made && runtime_.machine().make_current(static_cast<int>(i)).ok()) functions_.destroy(devices_[i]->made);
    }
  }
  size_t workspace_bytes(int device) {  // what NVIDIA recommends: 32 MiB from compute capability 9 on, 4 MiB before
    of_device& its = *devices_[static_cast<size_t>(device)];
    base::lock_guard const lock(its.turn);
    if (!its.workspace) {
      auto const info = runtime_.machine().info(device);
      its.workspace = info.ok() && info.value.major < 9 ? 4_MiB : 32_MiB;
    }
    return its.workspace;
  }
  // Requires: the device is current.
  void multiply(int device, CUstream_st* s, product const& p, void* workspace, size_t bytes, here at) {
    if (functions_.missing) throw not_supported("matmul", std::string(functions_.missing) + " was not found", "Install cuBLAS 12 or 13, or name its folder in LD_LIBRARY_PATH", at);
    of_device& its = *devices_[static_cast<size_t>(device)];
    base::lock_guard const lock(its.turn);
    auto const require = [&](int code, char const* what) {
      if (code != 0) throw driver_error(code, "matmul", std::string(what) + " on gpu:" + std::to_string(device) + ": cuBLAS status " + std::to_string(code), "An earlier kernel may be the cause: CUDA_LAUNCH_BLOCKING=1 finds the line", at);
    };
    if (!its.made) require(functions_.create(&its.made), "cublasCreate");
    require(functions_.set_stream(its.made, s), "cublasSetStream");  // takes the library's own workspace again
    require(functions_.set_workspace(its.made, workspace, bytes), "cublasSetWorkspace");
    float const one = 1;
    // Its matrices have their columns together: the transpose of c is op(b)' x op(a)'.
    require(functions_.sgemm(its.made, p.b_transposed ? turned : not_turned, p.a_transposed ? turned : not_turned, static_cast<int>(p.n), static_cast<int>(p.m),
                             static_cast<int>(p.k), &one, p.b, static_cast<int>(p.ldb), p.a, static_cast<int>(p.lda), &p.beta, p.c, static_cast<int>(p.ldc)),
            "cublasSgemm");
  }

 private:
  struct of_device {
    base::mutex turn;
    cublas_functions::handle made = nullptr;
    size_t workspace = 0;
  };
  cublas_functions const functions_;
  runtime::impl& runtime_;
  std::vector<std::unique_ptr<of_device>> devices_;
};

// Simulated devices multiply at the same time: each on its share of the cores, or the library's threads fight for them.
void share_cores(int devices) {
  static bool const once = [devices] {
    if (openblas_set_num_threads && !os::environment("OPENBLAS_NUM_THREADS") && !os::environment("OMP_NUM_THREADS")) {
      openblas_set_num_threads(std::max(1, os::usable_processors() / std::max(1, devices)));
    }
    return true;
  }();
  (void)once;
}

void multiply_on_host(product const& p) {
  cblas_sgemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.b_transposed ? CblasTrans : CblasNoTrans, static_cast<int>(p.m), static_cast<int>(p.n),
              static_cast<int>(p.k), 1.0f, p.a, static_cast<int>(p.lda), p.b, static_cast<int>(p.ldb), p.beta, p.c, static_cast<int>(p.ldc));
}

size_t bytes_of(std::int64_t rows, std::int64_t columns, std::int64_t ld) { return static_cast<size_t>((rows - 1) * ld + columns) * sizeof(float); }

}  // namespace

size_t product_workspace(place const& where) {
  if (!where) return 0;
  clock::timeline const& line = streams::line_of(*where);
  runtime::impl& r = line.owner();
  return r.machine().simulated() ? 0 : r.part<cublas>().workspace_bytes(line.device());
}

void multiply(place const& where, product const& p, void* workspace, size_t workspace_bytes, here at) {
  if (!where) {
    share_cores(os::usable_processors());  // the caller's thread alone
    return multiply_on_host(p);
  }
  clock::timeline const& line = streams::line_of(*where);
  runtime::impl& r = line.owner();
  if (r.machine().simulated()) share_cores(r.device_count());
  use const all[] = {{p.c, p.beta == 0 ? access::write : access::update, bytes_of(p.m, p.n, p.ldc)},
                     reads(p.a, p.a_transposed ? bytes_of(p.k, p.m, p.lda) : bytes_of(p.m, p.k, p.lda)),
                     reads(p.b, p.b_transposed ? bytes_of(p.n, p.k, p.ldb) : bytes_of(p.k, p.n, p.ldb)),
                     writes(workspace, workspace_bytes)};
  launch(*where, all, [&](CUstream_st* s) { r.part<cublas>().multiply(line.device(), s, p, workspace, workspace_bytes, at); }, [p] { multiply_on_host(p); }, at);
}

}  // namespace weir::ops
