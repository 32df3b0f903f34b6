// Products by cuBLAS on a GPU, by a CBLAS elsewhere, each loaded at the first product.
// Threads: any. Calls for one GPU are enqueued one at a time.
#include <cblas.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/os_library.h"
#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tensor/number.h"
#include "tensor/ops.h"

namespace weir::ops {
namespace {

// The cuBLAS functions in use, without its header: handles are opaque, enumerators are numbers of the ABI.
struct cublas_functions {
  using handle = void*;
  int (*create)(handle*) = nullptr;
  int (*destroy)(handle) = nullptr;
  int (*set_stream)(handle, CUstream_st*) = nullptr;
  int (*set_workspace)(handle, void*, size_t) = nullptr;
  int (*set_math_mode)(handle, int) = nullptr;
  int (*gemm)(handle, int, int, int, int, int, void const*, void const*, int, int, void const*, int, int, void const*,
              void*, int, int, int, int) = nullptr;
  int (*gemms)(handle, int, int, int, int, int, void const*, void const*, int, int, long long, void const*, int, int,
               long long, void const*, void*, int, int, long long, int, int, int) = nullptr;
  char const* missing = nullptr;

  cublas_functions() {
    void* library = nullptr;
    for (char const* name : {"libcublas.so.13", "libcublas.so.12"})
      if ((library = os::load_library(name)))
        break;
    if (!library) {
      missing = "libcublas.so.13 or libcublas.so.12";
      return;
    }
    auto const find = [&](auto& function, char const* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(os::find_symbol(library, name));
      if (!function)
        missing = name;
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(set_workspace, "cublasSetWorkspace_v2");
    find(set_math_mode, "cublasSetMathMode");
    find(gemm, "cublasGemmEx");
    find(gemms, "cublasGemmStridedBatchedEx");
  }
};
constexpr int not_turned = 0, turned = 1;  // CUBLAS_OP_N, CUBLAS_OP_T
constexpr int compute_float32 = 68;        // CUBLAS_COMPUTE_32F
constexpr int compute_tf32 = 77;           // CUBLAS_COMPUTE_32F_FAST_TF32
constinit base::atomic<bool> tf32{false};
// CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: otherwise partial sums may be rounded to 16 bits.
constexpr int sums_in_full = 16;
constexpr int any_algorithm = -1;  // CUBLAS_GEMM_DEFAULT
// CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F
constexpr int code_of(dtype t) {
  return t == float16 ? 2 : t == bfloat16 ? 14 : 0;
}

class cublas {  // a part of the runtime: one handle a GPU, created at first use
 public:
  explicit cublas(runtime::impl& r) : runtime_(r), devices_(static_cast<size_t>(r.device_count())) {
    for (auto& d : devices_)
      d = std::make_unique<of_device>();
  }
  ~cublas() {
    for (size_t i = 0; i < devices_.size(); ++i)
      if (devices_[i]->made && runtime_.machine().make_current(static_cast<int>(i)).ok())
        functions_.destroy(devices_[i]->made);
  }
  size_t workspace_bytes(int device) {  // as NVIDIA recommends: 32 MiB from compute capability 9, 4 MiB before
    of_device& its = *devices_[static_cast<size_t>(device)];
    base::lock_guard const lock(its.turn);
    if (!its.workspace) {
      auto const info = runtime_.machine().info(device);
      its.workspace = info.ok() && info.value.major < 9 ? 4_MiB : 32_MiB;
    }
    return its.workspace;
  }
  // Requires: the device is current.
  void multiply(int device, CUstream_st* s, product const& p, void* workspace, size_t bytes, source_location at) {
    if (functions_.missing)
      throw not_supported("matmul", std::string(functions_.missing) + " was not found",
                          "Install cuBLAS 12 or 13, or add its folder to LD_LIBRARY_PATH", at, error_id{352});
    of_device& its = *devices_[static_cast<size_t>(device)];
    base::lock_guard const lock(its.turn);
    auto const require = [&](int code, char const* what) {
      if (code != 0)
        throw driver_error(code, "matmul", base::text(what, " on gpu:", device, ": cuBLAS status ", code),
                           "An earlier kernel may have failed. Find its line with CUDA_LAUNCH_BLOCKING=1", at,
                           error_id{353});
    };
    if (!its.made) {
      require(functions_.create(&its.made), "cublasCreate");
      require(functions_.set_math_mode(its.made, sums_in_full), "cublasSetMathMode");
    }
    require(functions_.set_stream(its.made, s), "cublasSetStream");  // resets to cuBLAS's own workspace
    require(functions_.set_workspace(its.made, workspace, bytes), "cublasSetWorkspace");
    float const one = 1;
    // cuBLAS matrices are column-major: computes the transpose of c, op(b)' x op(a)'.
    int const in = code_of(p.in);
    bool const by_tf32 = p.in == float32 && p.out == float32 && tf32.load(base::memory_order_relaxed);
    int const turn_b = p.b_transposed ? turned : not_turned, turn_a = p.a_transposed ? turned : not_turned;
    int const m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k);
    int const lda = static_cast<int>(p.lda), ldb = static_cast<int>(p.ldb), ldc = static_cast<int>(p.ldc);
    int const out = code_of(p.out), compute = by_tf32 ? compute_tf32 : compute_float32;
    if (p.count == 1)
      return require(functions_.gemm(its.made, turn_b, turn_a, n, m, k, &one, p.b, in, ldb, p.a, in, lda, &p.beta, p.c,
                                     out, ldc, compute, any_algorithm),
                     "cublasGemmEx");
    require(functions_.gemms(its.made, turn_b, turn_a, n, m, k, &one, p.b, in, ldb, p.step_b, p.a, in, lda, p.step_a,
                             &p.beta, p.c, out, ldc, p.step_c, static_cast<int>(p.count), compute, any_algorithm),
            "cublasGemmStridedBatchedEx");
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

// The CBLAS found at build time, or one of its name. It is not linked, because OpenBLAS starts a spinning
// thread on every core when it is loaded, even in programs that never multiply on the host.
struct host_functions {
  decltype(&cblas_sgemm) gemm = nullptr;
  void (*set_threads)(int) = nullptr;  // OpenBLAS only
};
base::guarded<host_functions> loaded_host_functions;

// OpenBLAS takes a lock in each product, and again as the process exits. A child that is forked while a product
// holds it would never exit. So a fork waits for the products that run, and none begins until it is over. The wait
// has a limit: a large product holds the lock at its beginning and its end only, and the page fault of another one
// may need a lock that the fork has.
// Lock order: door, then running.
struct product_gate {
  base::mutex door;
  base::guarded<int> running;  // products
  base::condition none_runs;
  std::optional<base::guarded<int>::access> held;  // by a fork
};
product_gate& gate() noexcept {
  static base::lasting<product_gate> g;  // a thread may multiply while the process ends
  return *g;
}
void before_a_fork() {
  gate().door.lock();
  auto& held = gate().held;
  held.emplace(gate().running.lock());
  (void)gate().none_runs.wait_for(held->lock(), std::chrono::milliseconds(200), [&] { return **held == 0; });
}
void after_a_fork() {
  gate().held.reset();
  gate().door.unlock();
}
void in_a_child() {
  **gate().held = 0;
  after_a_fork();
}
class one_product {
 public:
  one_product() {
    base::lock_guard const lock(gate().door);
    ++*gate().running.lock();
  }
  ~one_product() {
    auto const n = gate().running.lock();
    if (--*n == 0)
      gate().none_runs.notify_all();
  }
  one_product(one_product const&) = delete;
};

// Simulated devices multiply concurrently, so each gets a share of the cores.
decltype(&cblas_sgemm) host_gemm(int devices, source_location at) {
  auto f = loaded_host_functions.lock();
  if (f->gemm)
    return f->gemm;
#ifdef WEIR_CBLAS_FILE
  for (char const* name : {WEIR_CBLAS_FILE, "libopenblas.so.0", "libcblas.so.3", "libblas.so.3"}) {
    void* const library = os::load_library(name);
    if (!library)
      continue;
    f->gemm = reinterpret_cast<decltype(f->gemm)>(os::find_symbol(library, "cblas_sgemm"));
    f->set_threads = reinterpret_cast<decltype(f->set_threads)>(os::find_symbol(library, "openblas_set_num_threads"));
    if (f->gemm)
      break;
  }
#else
  f->gemm = cblas_sgemm;
#endif
  if (!f->gemm)
    throw not_supported("matmul", "no library with cblas_sgemm was found",
                        "Install OpenBLAS, or add its folder to LD_LIBRARY_PATH", at, error_id{354});
  // After the library: OpenBLAS ends its threads before a fork, and no product may need them then.
  (void)os::around_forks(before_a_fork, after_a_fork, in_a_child);
  if (f->set_threads && !os::environment("OPENBLAS_NUM_THREADS") && !os::environment("OMP_NUM_THREADS"))
    f->set_threads(std::max(1, os::usable_processors() / std::max(1, devices)));
  return f->gemm;
}

using gemm_function = decltype(&cblas_sgemm);
void multiply_floats(gemm_function gemm, product const& p, float const* a, std::int64_t lda, float const* b,
                     std::int64_t ldb, float* c, std::int64_t ldc) {
  one_product const runs;
  gemm(CblasRowMajor, p.a_transposed ? CblasTrans : CblasNoTrans, p.b_transposed ? CblasTrans : CblasNoTrans,
       static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1.0f, a, static_cast<int>(lda), b,
       static_cast<int>(ldb), p.beta, c, static_cast<int>(ldc));
}

std::vector<float> floats_of(dtype type, void const* from, std::int64_t rows, std::int64_t columns, std::int64_t ld) {
  std::vector<float> to(static_cast<size_t>(rows * columns));
  for (std::int64_t i = 0; i < rows; ++i)
    for (std::int64_t j = 0; j < columns; ++j)
      to[static_cast<size_t>(i * columns + j)] = static_cast<float>(load(type, from, i * ld + j));
  return to;
}

// No CBLAS multiplies 16-bit floats: float32 does, and the sum is rounded once, as on a GPU.
void multiply_on_host(gemm_function gemm, product const& p) {
  if (p.in == float32)
    return multiply_floats(gemm, p, static_cast<float const*>(p.a), p.lda, static_cast<float const*>(p.b), p.ldb,
                           static_cast<float*>(p.c), p.ldc);
  std::int64_t const a_columns = p.a_transposed ? p.m : p.k, b_columns = p.b_transposed ? p.k : p.n;
  std::vector<float> const a = floats_of(p.in, p.a, p.m * p.k / a_columns, a_columns, p.lda),
                           b = floats_of(p.in, p.b, p.k * p.n / b_columns, b_columns, p.ldb);
  if (p.out == float32)
    return multiply_floats(gemm, p, a.data(), a_columns, b.data(), b_columns, static_cast<float*>(p.c), p.ldc);
  std::vector<float> c =
      p.beta == 0 ? std::vector<float>(static_cast<size_t>(p.m * p.n)) : floats_of(p.out, p.c, p.m, p.n, p.ldc);
  multiply_floats(gemm, p, a.data(), a_columns, b.data(), b_columns, c.data(), p.n);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j)
      store(p.out, p.c, i * p.ldc + j, c[static_cast<size_t>(i * p.n + j)]);
}

// The i-th of the products that a product stands for.
product nth(product p, std::int64_t i) {
  auto const past = [i](void const* from, std::int64_t step, dtype type) {
    return static_cast<std::byte const*>(from) + static_cast<size_t>(i * step) * size_of(type);
  };
  p.a = past(p.a, p.step_a, p.in), p.b = past(p.b, p.step_b, p.in);
  p.c = static_cast<std::byte*>(p.c) + static_cast<size_t>(i * p.step_c) * size_of(p.out);
  return p;
}
void multiply_all_on_host(gemm_function gemm, product const& p) {
  for (std::int64_t i = 0; i < p.count; ++i)
    multiply_on_host(gemm, nth(p, i));
}

}  // namespace

size_t product_workspace(place const& where) {
  if (!where)
    return 0;
  clock::stream_clock const& stream = streams::clock_of(*where);
  runtime::impl& r = stream.owner();
  return r.machine().simulated() ? 0 : r.part<cublas>().workspace_bytes(stream.device());
}

void multiply(place const& where, product const& p, void* workspace, size_t workspace_bytes, source_location at) {
  auto const bytes_of = [&p](dtype type, bool turned, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                             std::int64_t step) {
    if (turned)
      std::swap(rows, columns);
    return static_cast<size_t>((p.count - 1) * step + (rows - 1) * ld + columns) * size_of(type);
  };
  memory_use const all[] = {
      {p.c, p.beta == 0 ? access_mode::write : access_mode::update, bytes_of(p.out, false, p.m, p.n, p.ldc, p.step_c)},
      reads(p.a, bytes_of(p.in, p.a_transposed, p.m, p.k, p.lda, p.step_a)),
      reads(p.b, bytes_of(p.in, p.b_transposed, p.k, p.n, p.ldb, p.step_b)),
      writes(workspace, workspace_bytes)};
  // Only the calling thread multiplies.
  if (!where)
    return on_host(all, at), multiply_all_on_host(host_gemm(os::usable_processors(), at), p);
  clock::stream_clock const& stream = streams::clock_of(*where);
  runtime::impl& r = stream.owner();
  gemm_function const gemm = r.machine().simulated() ? host_gemm(r.device_count(), at) : nullptr;
  launch(
      *where, all,
      [&](CUstream_st* s) { r.part<cublas>().multiply(stream.device(), s, p, workspace, workspace_bytes, at); },
      [p, gemm] { multiply_all_on_host(gemm, p); }, at);
}

}  // namespace weir::ops

namespace weir {
void allow_tf32(bool yes) noexcept {
  ops::tf32.store(yes, base::memory_order_relaxed);
}
bool tf32_is_allowed() noexcept {
  return ops::tf32.load(base::memory_order_relaxed);
}
}  // namespace weir
