// One kernel for the consumer. Threads: as weir::parallel_for.
#pragma once
#include <weir/launch.h>

void scale(weir::stream_ref, float* y, float const* x, std::size_t n, float by);
