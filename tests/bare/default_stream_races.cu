// The legacy stream beside streams that are not ordered with it, and launches that name no stream.
#include <dlfcn.h>

#include "tests/bare/races.cuh"

namespace bare {
namespace {

// A launch without a stream is on the legacy stream, which a non-blocking stream does not wait for.
void legacy_beside_non_blocking(bool right) {
  scene s(right ? cudaStreamDefault : cudaStreamNonBlocking);
  write<<<grid, threads>>>(s.x, count, late);
  read<<<grid, threads, 0, s.a>>>(s.x, count, 0, s.last);
}

// All calls but one name the stream: the kernel between the two copies runs on the legacy stream.
void launch_without_a_stream(bool right) {
  scene s;
  to_device(s.x, s.host, s.a);
  if (right)
    update<<<grid, threads, 0, s.a>>>(s.x, count, late);
  else
    update<<<grid, threads>>>(s.x, count, late);
  to_host(s.other_host, s.x, s.a);
}

// cudaMemcpy waits for the legacy stream alone, so that it reads before the kernel has written.
void read_back_beside_non_blocking(bool right) {
  scene s;
  std::vector<float> results(count);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (right)
    MUST(cudaStreamSynchronize(s.a));
  MUST(cudaMemcpy(results.data(), s.x, bytes, cudaMemcpyDeviceToHost));
}

// The upload of the next batch does not wait for the kernel that still reads this one.
void upload_beside_non_blocking(bool right) {
  scene s;
  std::vector<float> const batch(count, 2);
  read<<<grid, threads, 0, s.a>>>(s.x, count, late, s.last);
  if (right)
    MUST(cudaStreamSynchronize(s.a));
  MUST(cudaMemcpy(s.x, batch.data(), bytes, cudaMemcpyHostToDevice));
}

// cudaMemset returns before the fill is done, and the stream does not wait for it.
void fill_beside_non_blocking(bool right) {
  scene s;
  if (right)
    MUST(cudaMemsetAsync(s.x, 0, bytes, s.a));
  else
    MUST(cudaMemset(s.x, 0, bytes));
  update<<<grid, threads, 0, s.a>>>(s.x, count, 0);
}

// Only one of the two streams is blocking: the legacy stream's launch comes after that one alone.
void one_stream_of_two_is_blocking(bool right) {
  scene s;
  own_stream const blocking(cudaStreamDefault);
  write<<<grid, threads, 0, blocking>>>(s.x, count, 0);
  write<<<grid, threads, 0, s.b>>>(s.y, count, late);
  if (right)
    order(s.b, blocking);
  add<<<grid, threads>>>(s.x, s.y, count, 0);
}

// The configuration's stream was not set.
void configuration_without_a_stream(bool right) {
  scene s;
  to_device(s.x, s.host, s.a);
  cudaLaunchConfig_t how{};
  how.gridDim = grid;
  how.blockDim = threads;
  if (right)
    how.stream = s.a;
  MUST(cudaLaunchKernelEx(&how, update, static_cast<float*>(s.x), int{count}, int{late}));
  to_host(s.other_host, s.x, s.a);
}

// What a call of cuBLAS takes, without its header: the library is found at run time.
struct cublas {
  void* library = nullptr;
  void* handle = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;
  int (*scale)(void*, int, float const*, float*, int) = nullptr;

  cublas() {
    for (char const* const name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"})
      if (!library)
        library = dlopen(name, RTLD_NOW);
    auto const find = [&](auto& to, char const* name) {
      void* const found = library ? dlsym(library, name) : nullptr;
      std::memcpy(&to, &found, sizeof(to));
    };
    int (*create)(void**) = nullptr;
    find(create, "cublasCreate_v2");
    find(set_stream, "cublasSetStream_v2");
    find(scale, "cublasSscal_v2");
    if (create && set_stream && scale && create(&handle) == 0)
      return;
    std::fprintf(stderr, "skipped: no cuBLAS\n");
    std::_Exit(skipped);
  }
};

// cublasSetStream was not called: the library's launch is on the legacy stream. Its pointers lie in a structure.
void cublas_without_a_stream(bool right) {
  scene s;
  cublas const library;  // lasts as long as the process
  float const factor = 2;
  MUST(cudaDeviceSynchronize());
  if (right && library.set_stream(library.handle, s.a) != 0)
    std::_Exit(1);
  write<<<grid, threads, 0, s.a>>>(s.x, count, late);
  if (library.scale(library.handle, count, &factor, s.x, 1) != 0)
    std::_Exit(1);
  read<<<grid, threads, 0, s.a>>>(s.x, count, 0, s.last);
}

constexpr known_case all[] = {
    {"legacy_beside_non_blocking", "possible", legacy_beside_non_blocking},
    {"launch_without_a_stream", "race", launch_without_a_stream},
    {"read_back_beside_non_blocking", "race", read_back_beside_non_blocking},
    {"upload_beside_non_blocking", "race", upload_beside_non_blocking},
    {"fill_beside_non_blocking", "race", fill_beside_non_blocking},
    {"one_stream_of_two_is_blocking", "possible", one_stream_of_two_is_blocking},
    {"configuration_without_a_stream", "race", configuration_without_a_stream},
    {"cublas_without_a_stream", "possible", cublas_without_a_stream},
};

}  // namespace

cases default_stream_races() {
  return all;
}

}  // namespace bare
