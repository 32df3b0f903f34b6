// Around the code of docs/how-to/other-libraries.md about CCCL's memory resources.
#include "weir/cuda_mr.h"

int main() {
  weir::stream s;
  cuda::stream_ref const stream{s.native()};
  std::size_t const bytes = 4096;
#include <resources.1>
  static_cast<void>(any);
  static_cast<void>(staging);
}
