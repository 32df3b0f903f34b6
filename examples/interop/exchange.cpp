// The elements of an array go to another library and back by DLPack, without a copy. The other library here
// knows DLPack alone: it turns the matrix and hands it on. On GPUs and simulated devices alike.
// Threads: one.
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "examples/ending.h"
#include "weir/array.h"
#include "weir/dlpack.h"
#include "weir/observe.h"
#include "weir/pmr.h"

namespace {

// The other library: a matrix seen from the other side. It keeps what it was given until its reader is done.
DLManagedTensorVersioned* turned(DLManagedTensorVersioned* given) {
  auto out = std::make_unique<DLManagedTensorVersioned>(*given);
  out->manager_ctx = given;
  out->deleter = [](DLManagedTensorVersioned* self) {
    auto* const from = static_cast<DLManagedTensorVersioned*>(self->manager_ctx);
    std::swap(from->dl_tensor.shape[0], from->dl_tensor.shape[1]);
    std::swap(from->dl_tensor.strides[0], from->dl_tensor.strides[1]);
    from->deleter(from);
    delete self;
  };
  std::swap(given->dl_tensor.shape[0], given->dl_tensor.shape[1]);
  std::swap(given->dl_tensor.strides[0], given->dl_tensor.strides[1]);
  return out.release();
}

}  // namespace

int main() try {
  std::int64_t const rows = 300, columns = 200;
  std::pmr::vector<float> host(rows * columns, weir::pmr::pinned_memory());  // copies at full speed
  std::iota(host.begin(), host.end(), 0.f);

  weir::stream mine, theirs;
  weir::array<float> values(mine, host);  // copied on the stream mine; the host does not wait
  values.resize(rows * columns + 1);      // grows on that stream, too
  values.set_element(rows * columns, -1);
  values.resize(rows * columns);

  weir::tensor const matrix = std::move(values).to_tensor({rows, columns});
  weir::current_stream().wait(mine);
  DLManagedTensorVersioned* const handle = turned(weir::to_dlpack(matrix, theirs).release());
  weir::tensor const back = weir::from_dlpack(handle, theirs);
  bool same = back.data() == matrix.data() && back.shape() == weir::shape{columns, rows};

  weir::tensor const transposed = back.cpu();
  auto const got = transposed.contiguous();
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r)
      same = same && got.host<float>()[static_cast<size_t>(c * rows + r)] == static_cast<float>(r * columns + c);

  std::printf("%s: %lld elements went to another library and back in place; all of them are %s\n",
              back.device().str().c_str(), static_cast<long long>(back.numel()), same ? "right" : "WRONG");
  return examples::ending("exchange", same ? 0 : 1);
} catch (std::exception const& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
