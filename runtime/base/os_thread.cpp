// A key whose destructor the system calls:
// it does so after all that is thread_local, and again while one sets it anew.
// Threads: any.
#include "runtime/base/os_thread.h"

#include <pthread.h>

namespace weir::os {

void run_after_thread_locals(void (*run)(void*)) noexcept {
  struct made {
    pthread_key_t key{};
    bool is;
    explicit made(void (*f)(void*)) noexcept : is(pthread_key_create(&key, f) == 0) {}
  };
  static made const only(run);
  static char const something = 0;
  if (only.is) (void)pthread_setspecific(only.key, &something);
}

}  // namespace weir::os
