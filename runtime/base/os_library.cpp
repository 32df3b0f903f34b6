// Libraries found at run time, through the system's loader.
// Threads: any.
#include "runtime/base/os_library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <cstring>

#include "runtime/base/os.h"
#include "runtime/base/os_call_watch.h"

namespace weir::os {

// Local: the exports of one library must not resolve a missing name of another.
void* load_library(char const* name) noexcept {
  return refused(call::load_library) ? nullptr : ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
}
void* find_symbol(void* library, char const* name) noexcept {
  return ::dlsym(library, name);
}

bool watch_calls(call_watcher& w) noexcept {
  auto const watch = reinterpret_cast<watch_function>(::dlsym(RTLD_DEFAULT, name_of_watch));
  return watch && watch(&w);
}

namespace {
std::string file_name_of(char const* loaded) {  // the loader has no name for the program itself
  if (loaded && *loaded)
    return loaded;
  char name[4096];
  auto const length = ::readlink("/proc/self/exe", name, sizeof name);
  return length > 0 ? std::string(name, static_cast<std::size_t>(length)) : "the program";
}

struct search {
  char const* name;
  std::uint32_t type;
  std::function<void(std::string const&, void const*, std::size_t)> const& see;

  // Notes stand one after another: a header, the name and the text, the last two padded to 4 bytes.
  void look_in(char const* file, char const* at, std::size_t left) const {
    struct header {
      std::uint32_t name_bytes, text_bytes, type;
    } h;
    auto const padded = [](std::size_t n) { return (n + 3) / 4 * 4; };
    while (left >= sizeof h) {
      std::memcpy(&h, at, sizeof h);
      std::size_t const whole = sizeof h + padded(h.name_bytes) + padded(h.text_bytes);
      if (whole > left)
        return;
      char const* const text = at + sizeof h + padded(h.name_bytes);
      bool const same_name =
          h.name_bytes == std::strlen(name) + 1 && std::memcmp(at + sizeof h, name, h.name_bytes) == 0;
      if (h.type == type && same_name)
        see(file_name_of(file), text, h.text_bytes);
      at += whole, left -= whole;
    }
  }
};
}  // namespace

void each_note(char const* name, std::uint32_t type,
               std::function<void(std::string const&, void const*, std::size_t)> const& see) {
  search wanted{name, type, see};
  ::dl_iterate_phdr(
      [](dl_phdr_info* file, std::size_t, void* what) {
        for (int i = 0; i < file->dlpi_phnum; ++i) {
          auto const& part = file->dlpi_phdr[i];
          // Notes that are aligned to 8 bytes are padded to 8: none of them is weir's.
          if (part.p_type == PT_NOTE && part.p_align <= 4)
            static_cast<search*>(what)->look_in(
                file->dlpi_name, reinterpret_cast<char const*>(file->dlpi_addr + part.p_vaddr), part.p_memsz);
        }
        return 0;
      },
      &wanted);
}

std::string file_of_code(void const* code) {
  Dl_info its{};
  return ::dladdr(code, &its) ? file_name_of(its.dli_fname) : "the program";
}

}  // namespace weir::os
