// A kernel that changes each word, on either driver.
// Threads: one; the calling thread's CUDA device becomes the stream's.
#pragma once
#include "runtime/driver/driver.h"

namespace weir::fuzz {

// to[i] = 3 * from[i] + i + k, words of four bytes. Requires: no overlap, and the device may use both.
driver::status stir(driver::driver&, int device, driver::stream_handle, driver::address to, driver::address from,
                    std::size_t words, std::uint32_t k);

}  // namespace weir::fuzz
