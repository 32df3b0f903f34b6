// Libraries found at run time. CUDA, cuBLAS and NCCL are never linked, so that one binary runs without them.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace weir::os {

// Loads a library and keeps it loaded. Returns: null if the system does not have it.
void* load_library(char const* name) noexcept;
// Returns: the address of a function or variable; null if the library has none. Requires: library not null.
void* find_symbol(void* library, char const* name) noexcept;

// Calls `see` for every ELF note of that name and type in the program and in all libraries loaded now.
// Requires: `see` loads and closes no library.
void each_note(char const* name, std::uint32_t type,
               std::function<void(std::string const& file, void const* text, std::size_t bytes)> const& see);
std::string file_of_code(void const*);  // the program or library that holds it

}  // namespace weir::os
