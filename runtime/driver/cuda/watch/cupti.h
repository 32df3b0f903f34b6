// CUPTI's callbacks, found at run time.
// Threads: any; the table is filled once.
#pragma once
#if __has_include(<cupti.h>)
#include <cupti.h>
#define WEIR_HAS_CUPTI 1
#else
#define WEIR_HAS_CUPTI 0
#endif

#if WEIR_HAS_CUPTI
#include <string>

namespace weir::driver::cuda {

struct cupti {
  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiEnableCallback) enable_callback = nullptr;
  decltype(&cuptiGetResultString) result_string = nullptr;
};
struct cupti_found {
  cupti const* api = nullptr;  // null: not here
  std::string why;             // the reason, if api is null
};
// Looks in the loader's path, then beside the toolkits. The library stays loaded.
cupti_found const& find_cupti();

}  // namespace weir::driver::cuda
#endif
