// Around the code of docs/how-to/other-libraries.md that needs no other library.
#include <cstdio>
#include <vector>

#include "weir/array.h"
#include "weir/dlpack.h"
#include "weir/pmr.h"

namespace {

bool there_and_back() {
  weir::tensor const t = weir::ones({8});
  weir::stream const theirs;
  weir::stream_ref const their_stream = theirs;
  DLManagedTensorVersioned* const managed = weir::to_dlpack(t, their_stream).release();
#include <libraries.1>
  bool const the_same = in.data<float>() == t.data<float>() && weir::sum(in).item<float>() == 8;
  out->deleter(out);
  return the_same;
}

bool in_containers() {
#include <libraries.2>
  batch.resize(100);
  table.resize(100);
  return reinterpret_cast<std::uintptr_t>(table.data()) % 64 == 0;
}

bool elements() {
  weir::stream const stream, other;
  std::vector<float> const host_values{1, 2, 3};
  std::int64_t const n = 3;
#include <libraries.3>
  static_cast<void>(last);
  return t.numel() == 2 * n && t.device() == stream.device();
}

}  // namespace

int main() {
  bool const as_said[] = {there_and_back(), in_containers(), elements()};
  std::printf("%d%d%d\n", as_said[0], as_said[1], as_said[2]);
  return as_said[0] && as_said[1] && as_said[2] ? 0 : 1;
}
