// libweir_check.so: the race checker in a program that does not use weir. CUDA loads the library when the program
// starts CUDA, because CUDA_INJECTION64_PATH names it (`weir check` sets it).
// Threads: any.
#include <cstdlib>
#include <string>

#include "runtime/base/os.h"
#include "runtime/core/parts.h"
#include "runtime/driver/call_watch.h"
#include "weir/error.h"

namespace {

void say(std::string const& why) {
  weir::os::print_error("weir-582: weir check sees nothing: " + why + "\n");
}

// At the first call that is told, because CUDA is not ready before. The checker lives as long as the process: its
// findings are printed at the end. A mistake in a variable ends the process: it would run unchecked.
void begin() {
  weir::driver::opened found = weir::driver::open_cuda();
  if (!found.machine)
    return say(found.why);
  try {
    static_cast<void>(weir::with_checker(std::move(found.machine), {}).release());
  } catch (weir::invalid_use const& wrong) {
    say(wrong.what());
    std::_Exit(2);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (std::string const why = weir::driver::call_when_told(begin); !why.empty())
    say(why);
  return 1;
}
