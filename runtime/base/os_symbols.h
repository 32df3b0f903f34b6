// The names of functions in a program that exports none, from the symbol table of its file.
// Threads: any.
#pragma once
#include <string>

namespace weir::os {

struct code_place {
  std::string file;        // the program's or library's path; empty: no code is there
  std::string function;    // mangled, as its file has it; empty: unknown, as in a stripped program
  std::size_t offset = 0;  // bytes from the function's start, or without one from where the file begins in memory
};
// Reads a file's symbol table once, at the first place in it whose name the loader does not have. Throws: bad_alloc
code_place place_of_code(void const*);

}  // namespace weir::os
