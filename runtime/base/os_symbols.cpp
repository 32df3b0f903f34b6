// Reads ELF symbol tables. Source of the format: the System V ABI, chapter 4.
// Threads: any.
#include "runtime/base/os_symbols.h"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <vector>

#include "runtime/base/lasting.h"
#include "runtime/base/os_library.h"
#include "runtime/base/sync.h"

namespace weir::os {
namespace {

struct function_symbol {
  std::uint64_t at = 0, bytes = 0;  // at: as the file was linked
  std::string name;
};
struct symbol_table {
  std::vector<function_symbol> functions;  // by address
  bool is_absolute = false;                // the file is loaded where it was linked
};

template <class T>
bool read_at(std::ifstream& file, std::uint64_t offset, T* to, std::size_t count) {
  file.seekg(static_cast<std::streamoff>(offset));
  return static_cast<bool>(file.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(sizeof(T) * count)));
}

// Sizes come from the file: one that is damaged must not take the memory of the machine.
constexpr std::uint64_t most_table_bytes = std::uint64_t{1} << 30;

std::vector<function_symbol> functions_in(std::ifstream& file, Elf64_Shdr const& symbols, Elf64_Shdr const& names) {
  std::vector<function_symbol> found;
  if (symbols.sh_size > most_table_bytes || names.sh_size > most_table_bytes)
    return found;
  std::vector<Elf64_Sym> all(symbols.sh_size / sizeof(Elf64_Sym));
  std::vector<char> text(names.sh_size + 1, '\0');
  if (!read_at(file, symbols.sh_offset, all.data(), all.size()) ||
      !read_at(file, names.sh_offset, text.data(), names.sh_size))
    return found;
  for (Elf64_Sym const& s : all) {
    bool const is_function = ELF64_ST_TYPE(s.st_info) == STT_FUNC && s.st_value != 0 && s.st_name < names.sh_size;
    if (is_function)
      found.push_back({s.st_value, s.st_size, std::string(text.data() + s.st_name)});
  }
  std::sort(found.begin(), found.end(), [](auto const& a, auto const& b) { return a.at < b.at; });
  return found;
}

symbol_table read_table(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header{};
  if (!file || !read_at(file, 0, &header, 1) || !std::equal(ELFMAG, ELFMAG + SELFMAG, header.e_ident) ||
      header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_shentsize != sizeof(Elf64_Shdr))
    return {};
  std::vector<Elf64_Shdr> sections(header.e_shnum);
  if (!read_at(file, header.e_shoff, sections.data(), sections.size()))
    return {};
  for (Elf64_Shdr const& s : sections)
    if (s.sh_type == SHT_SYMTAB && s.sh_link < sections.size())
      return {functions_in(file, s, sections[s.sh_link]), header.e_type == ET_EXEC};
  return {};
}

symbol_table const& table_of(std::string const& path) {
  static base::lasting<base::guarded<std::map<std::string, symbol_table>>> all;
  auto const tables = (*all).lock();
  auto const [at, is_new] = tables->try_emplace(path);
  if (is_new)
    at->second = read_table(path);
  return at->second;  // entries stay where they are, and do not change
}

}  // namespace

code_place place_of_code(void const* code) {
  Dl_info its{};
  if (::dladdr(code, &its) == 0 || !its.dli_fname)
    return {};
  auto const offset_from = [&](void const* start) {
    return static_cast<std::size_t>(static_cast<char const*>(code) - static_cast<char const*>(start));
  };
  std::string const path = file_of_code(code);
  if (its.dli_sname)
    return {path, its.dli_sname, offset_from(its.dli_saddr)};
  // A file that can be loaded anywhere is linked at 0.
  symbol_table const& table = table_of(path);
  std::vector<function_symbol> const& all = table.functions;
  std::uint64_t const at = table.is_absolute ? reinterpret_cast<std::uint64_t>(code) : offset_from(its.dli_fbase);
  auto after = std::upper_bound(all.begin(), all.end(), at, [](std::uint64_t a, auto const& s) { return a < s.at; });
  if (after == all.begin())
    return {path, {}, at};
  function_symbol const& last = *std::prev(after);
  if (last.bytes != 0 && at >= last.at + last.bytes)
    return {path, {}, at};
  return {path, last.name, at - last.at};
}

}  // namespace weir::os
