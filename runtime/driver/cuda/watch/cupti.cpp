// Finds CUPTI where toolkits and PyTorch's packages have it.
// Threads: any.
#include "runtime/driver/cuda/watch/cupti.h"

#if WEIR_HAS_CUPTI
#include <cstdlib>
#include <vector>

#include "runtime/base/os_library.h"

namespace weir::driver::cuda {
namespace {

// The library's version is that of the toolkit: 13 serves drivers of CUDA 13, and older ones as far as it says.
std::vector<std::string> places() {
  std::vector<std::string> all;
  std::vector<std::string> const names{"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
  std::vector<std::string> folders{""};
  for (char const* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
    char const* const home = std::getenv(variable);
    if (!home)
      continue;
    folders.push_back(std::string(home) + "/extras/CUPTI/lib64/");
    folders.push_back(std::string(home) + "/lib64/");
  }
  folders.push_back("/usr/local/cuda/extras/CUPTI/lib64/");
  folders.push_back("/usr/local/cuda/lib64/");
  for (std::string const& folder : folders)
    for (std::string const& name : names)
      all.push_back(folder + name);
  return all;
}

cupti_found search_cupti() {
  static cupti table;
  for (std::string const& place : places()) {
    void* const library = os::load_library(place.c_str());
    if (!library)
      continue;
    auto const find = [&](auto& entry, char const* name) {
      entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(os::find_symbol(library, name));
      return entry != nullptr;
    };
    bool const has_all = find(table.subscribe, "cuptiSubscribe") && find(table.unsubscribe, "cuptiUnsubscribe") &&
                         find(table.enable_callback, "cuptiEnableCallback") &&
                         find(table.result_string, "cuptiGetResultString");
    if (has_all)
      return {&table, {}};
  }
  return {nullptr,
          "libcupti.so was not found. Put the folder of the toolkit that has it (extras/CUPTI/lib64) into "
          "LD_LIBRARY_PATH"};
}

}  // namespace

cupti_found const& find_cupti() {
  static cupti_found const* const once = new cupti_found(search_cupti());  // never destroyed, as the library
  return *once;
}

}  // namespace weir::driver::cuda
#endif
