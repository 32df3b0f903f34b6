// The kernels, compiled for GPUs and for simulated devices. They declare only the array of addresses: the
// blocks are too many to declare.
#include "examples/seeds/write_through.h"

#include "weir/copy.h"
#include "weir/parallel_for.h"

namespace seeds {
namespace {

struct writing {
  std::uint32_t* const* blocks;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { *blocks[i] = static_cast<std::uint32_t>(i); }
};
struct counting {  // each thread checks one part of the blocks
  std::uint32_t* const* blocks;
  std::size_t count, part;
  std::uint32_t* wrong;
  WEIR_HOST_DEVICE void operator()(std::size_t k) const {
    std::uint32_t n = 0;
    for (std::size_t i = k * part; i < (k + 1) * part && i < count; ++i)
      n += *blocks[i] != static_cast<std::uint32_t>(i);
    wrong[k] = n;
  }
};

}  // namespace

void write_through(std::uint32_t* const* blocks, std::size_t count) {
  weir::parallel_for(weir::current_stream(), count, {weir::reads(blocks, count * sizeof *blocks)}, writing{blocks});
}

void count_wrong(std::uint32_t* const* blocks, std::size_t count, std::uint32_t* wrong, std::size_t parts) {
  weir::parallel_for(weir::current_stream(), parts,
                     {weir::reads(blocks, count * sizeof *blocks), weir::writes(wrong, parts * sizeof *wrong)},
                     counting{blocks, count, (count + parts - 1) / parts, wrong});
}

}  // namespace seeds
