// Walks the stack past the libraries of CUDA to the program.
// Threads: any.
#include "runtime/driver/cuda/watch/places.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/base/lasting.h"
#include "runtime/base/sync.h"
#include "runtime/driver/kernel_signature.h"

namespace weir::driver::cuda {
namespace {

constexpr int most_frames = 24;

struct place_text {
  bool is_programs = false;
  std::string text;
};

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool is_of_cuda(std::string_view file) {
  for (std::string_view const name : {"libcuda.so", "libcupti.so", "libcudart.so", "libnvidia", "libweir"})
    if (file.starts_with(name))
      return true;
  return false;
}

// Functions of the runtime library, which a program may hold itself.
bool is_of_runtime_library(std::string_view function) {
  for (std::string_view const name : {"cuda", "__cuda", "cudart", "__device_stub", "libcudart"})
    if (function.starts_with(name))
      return true;
  return false;
}

std::string offset_of(void* frame, void* from) {
  char digits[2 + 16 + 1];
  std::snprintf(digits, sizeof digits, "0x%tx", static_cast<char*>(frame) - static_cast<char*>(from));
  return digits;
}

place_text look_up_frame(void* frame) {
  Dl_info its{};
  if (::dladdr(frame, &its) == 0 || !its.dli_fname)
    return {};
  place_text found;
  std::string_view const file = base_name(its.dli_fname);
  std::string_view const function = its.dli_sname ? its.dli_sname : "";
  found.is_programs = !is_of_cuda(file) && !is_of_runtime_library(function);
  found.text = std::string(file);
  if (its.dli_sname)
    found.text += "(" + signature_of(its.dli_sname).name + "+" + offset_of(frame, its.dli_saddr) + ")";
  else
    found.text += "+" + offset_of(frame, its.dli_fbase);
  return found;
}

}  // namespace

source_location place_of_caller() {
  static base::lasting<base::guarded<std::unordered_map<void*, place_text>>> all;
  void* frames[most_frames];
  int const n = ::backtrace(frames, most_frames);
  auto const known = (*all).lock();
  for (int i = 1; i < n; ++i) {
    auto const [at, is_new] = known->try_emplace(frames[i]);
    if (is_new)
      at->second = look_up_frame(frames[i]);
    if (at->second.is_programs)
      return {at->second.text.c_str(), "", 0};
  }
  return {nullptr, nullptr, 0};
}

}  // namespace weir::driver::cuda
