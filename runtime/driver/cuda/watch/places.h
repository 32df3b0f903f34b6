// Where in the program a CUDA call was made, from the stack of the thread.
// Threads: any.
#pragma once
#include "weir/types.h"

namespace weir::driver::cuda {

// The file is "train(step(float*)+0x45)" or "train+0x1a2b", the line 0: no debug information is read. No file name: no
// frame is the program's. The texts live as long as the process, one for each address.
source_location place_of_caller();

}  // namespace weir::driver::cuda
