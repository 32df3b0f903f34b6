// A pthread key: its destructor runs after those of thread_local values, and again if it sets the key again.
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
