// Around the gradients of docs/reference/collectives.md: two ranks whose gradients are 1 and 2 get the mean. So they do
// with halves of the sums of two passes.
#include <vector>

#include "weir/collective.h"
#include "weir/copy.h"
#include "weir/launch.h"
#include "weir/memory.h"
#include "weir/optimizer.h"
#include "weir/parallel_for.h"
#include "weir/stream.h"
#include "weir/tensor.h"

int main() {
  auto ranks = weir::communicator::create_launched(2);
  std::vector<float> means(ranks.size());
  std::vector<int> ok(ranks.size());
  weir::run_ranks(ranks, [&](weir::communicator& rank) {
    weir::stream const s;
    weir::stream_guard const on(s);
    float const mine = static_cast<float>(rank.rank() + 1);
#include <gradients.1>
    weir::buffer const values(64 * sizeof(float)), slopes(64 * sizeof(float));
    weir::fill(s, slopes.data(), std::byte{0}, slopes.size());
#include <gradients.2>
    float whole = 0;
    weir::copy(s, &whole, norm.data, sizeof whole);
    weir::tensor const mean =
        weir::tensor::from_blob(sums.data, {sums.count}, sums.dtype, rank.device()).to(weir::float32);
    ok[static_cast<std::size_t>(rank.rank())] = whole == 12.f && mean.cpu().host<float>()[63] == 0.125f;
#include <gradients.3>
    weir::copy(s, &means[static_cast<std::size_t>(rank.rank())], slope + 63, sizeof(float));
  });
  return means[0] == 1.5f && means[1] == 1.5f && ok[0] && ok[1] ? 0 : 1;
}
