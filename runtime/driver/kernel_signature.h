// What a kernel's mangled name says of its parameters.
// Threads: any.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weir::driver {

enum class parameter_kind : std::uint8_t {
  value,      // a number or a structure
  reads,      // a pointer to const: the kernel reads there
  may_write,  // another pointer
};
struct kernel_signature {
  std::string name;  // without its parameters: "add<float>"; the mangled name if that cannot be read
  bool is_known = false;
  std::vector<parameter_kind> parameters;  // empty unless known
};
// Source of the format: the Itanium C++ ABI, as the compiler's own demangler reads it.
kernel_signature signature_of(char const* mangled);
// The same of a name that is read already: "void add<float>(float*, float const*, int)".
kernel_signature signature_of_text(std::string_view);

}  // namespace weir::driver
