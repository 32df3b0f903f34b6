// The class c10::OutOfMemoryError adds nothing to c10::Error, whose constructor libc10 exports.
// So an object of it is a c10::Error with the other class's table of virtual functions. The constructor's
// name has the types of its parameters: if they change, the symbol is not found, and a std::runtime_error
// is thrown.
// Threads: any.
#include "interop/torch/torch_errors.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

extern "C" void __cxa_throw(void* thrown, void* type, void (*destroy)(void*)) __attribute__((noreturn));

namespace weir::interop {
namespace {

struct c10_source_location {
  char const* function;
  char const* file;
  std::uint32_t line;
};

struct c10_out_of_memory {
  void (*construct)(void* self, c10_source_location, std::string) = nullptr;  // c10::Error's; null: not found
  void* type = nullptr;
  void* const* virtuals = nullptr;
};

// Python loads modules locally, so each library is named. One finds the symbols of those that it needs, too.
c10_out_of_memory of_torch() {
  for (char const* const name : {"libc10_cuda.so", "libtorch_python.so", "libc10.so"}) {
    void* const library = ::dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
    if (!library)
      continue;
    auto* const made =
        ::dlsym(library, "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
    auto* const type = ::dlsym(library, "_ZTIN3c1016OutOfMemoryErrorE");
    auto* const table = static_cast<void* const*>(::dlsym(library, "_ZTVN3c1016OutOfMemoryErrorE"));
    ::dlclose(library);
    if (!made || !type || !table)
      continue;
    return {reinterpret_cast<decltype(c10_out_of_memory::construct)>(made), type,
            table + 2};  // behind the offset to the top and the type
  }
  return {};
}

// The first virtual function of a std::exception is its complete destructor.
void destroy(void* self) {
  (*reinterpret_cast<void (***)(void*)>(self))[0](self);
}

}  // namespace

bool knows_torch_errors() {
  return of_torch().construct != nullptr;
}

void throw_out_of_memory(std::string text) {
  c10_out_of_memory const torch = of_torch();
  if (!torch.construct)
    throw std::runtime_error(text);
  constexpr std::size_t room = 4096;  // more than a c10::Error of any release takes
  void* const thrown = abi::__cxa_allocate_exception(room);
  try {
    torch.construct(thrown, {"weir", "weir", 0}, std::move(text));
  } catch (...) {
    abi::__cxa_free_exception(thrown);
    throw;
  }
  *static_cast<void const**>(thrown) = torch.virtuals;
  __cxa_throw(thrown, torch.type, destroy);
}

}  // namespace weir::interop
