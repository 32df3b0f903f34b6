// Where in the program a CUDA call was made, from the stack of the thread.
// Threads: any.
#pragma once
#include "weir/types.h"

namespace weir::driver::cuda {

// The file is "train(step+0x45)", the line 0: no debug information is read. A stripped program has its innermost
// frames instead: "train+0x1a2b from train+0x99". No file name: no frame is the program's. The texts live as long as
// the process. kernel: the mangled name of what is launched; null: no launch. Throws: bad_alloc
source_location place_of_caller(char const* kernel);
// "libtorch_cuda.so(copy+0x50a) after train.py:12", of a line that is known. Throws: bad_alloc
source_location behind(source_location stack, source_location last_line);

}  // namespace weir::driver::cuda
