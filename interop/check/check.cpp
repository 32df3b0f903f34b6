// libweir_check.so: the race checker in a program that does not use weir. CUDA loads the library when the program
// starts CUDA, because CUDA_INJECTION64_PATH names it (`weir check` sets it).
// Threads: any.
#include <cstdio>
#include <string>

#include "runtime/base/os.h"
#include "runtime/driver/call_watch.h"
#include "simulator/checker/race_checker.h"

namespace {

// Made at the first call that is told, because CUDA is not ready before. It lives as long as the process: its findings
// are printed at the end.
weir::driver::check::control* checker() {
  weir::driver::opened found = weir::driver::open_cuda();
  if (!found.machine) {
    weir::os::print_error("weir-661: weir check sees nothing: " + found.why + "\n");
    return nullptr;
  }
  weir::driver::check::wrapped made = weir::driver::check::wrap(std::move(found.machine));
  made.machine.release();
  return made.control;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  std::string const why = weir::driver::watch_when_called(checker);
  if (!why.empty())
    weir::os::print_error("weir-661: weir check sees nothing: " + why + "\n");
  return 1;
}
