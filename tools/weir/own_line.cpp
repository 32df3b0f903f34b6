// Files and functions of Python and PyTorch are told by their paths and names.
#include "tools/weir/own_line.h"

#include <algorithm>
#include <array>

namespace weir::report {
namespace {

enum class owner : std::uint8_t { program, package, runtime, nobody };  // runtime: Python, PyTorch, C++

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}
template <std::size_t Count>
bool has_any(std::string_view text, std::array<std::string_view, Count> const& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return has(text, part); });
}
template <std::size_t Count>
bool begins_with_any(std::string_view text, std::array<std::string_view, Count> const& parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) { return text.starts_with(part); });
}

// Folders below which pip installs packages.
constexpr std::array<std::string_view, 2> installed = {"/site-packages/", "/dist-packages/"};
constexpr std::array<std::string_view, 5> packages_of_torch = {"torch/", "torch_", "torchgen/", "triton/",
                                                               "functorch/"};
// A build of PyTorch in its source folder, Python's own modules, and headers of C++.
constexpr std::array<std::string_view, 15> runtime_folders = {
    "/torch/nn/", "/torch/optim/", "/torch/autograd/", "/torch/utils/",       "/torch/cuda/",         "/torch/amp/",
    "/torch/_",   "/torch/csrc/",  "/torch/include/",  "/torch/distributed/", "/torch/functional.py", "/aten/src/",
    "/c10/",      "/usr/include/", "/include/c++/"};
// Code that Python or PyTorch makes.
constexpr std::array<std::string_view, 2> made_files = {"<frozen", "<eval_with_key>"};
constexpr std::array<std::string_view, 6> runtime_functions = {"torch::", "at::", "c10::", "std::", "_Py", "Py"};
constexpr std::array<std::string_view, 5> recorder_functions = {
    "torch::unwind::", "torch::CapturedTraceback::", "gather_with_cpp", "::gather(", "CachingAllocator"};

owner owner_of(frame const& f) {
  if (f.line == 0 || f.file.empty() || f.file == "??")
    return owner::nobody;
  std::string file = f.file;
  std::replace(file.begin(), file.end(), '\\', '/');
  for (std::string_view const folder : installed) {
    std::size_t const at = file.rfind(folder);
    if (at == file.npos)
      continue;
    return begins_with_any(std::string_view(file).substr(at + folder.size()), packages_of_torch) ? owner::runtime
                                                                                                 : owner::package;
  }
  if (has(file, "/lib/python3") || has_any(file, runtime_folders) || begins_with_any(file, made_files))
    return owner::runtime;
  bool const python = file.ends_with(".py") || file.starts_with('<');
  if (!python && begins_with_any(f.name, runtime_functions))
    return owner::runtime;
  return owner::program;
}

// "NAME" of "…PREFIXNAME::…"; empty: the function has no such prefix.
std::string_view word_after(std::string_view function, std::string_view prefix) {
  std::size_t const at = function.find(prefix);
  if (at == function.npos)
    return {};
  function.remove_prefix(at + prefix.size());
  return function.substr(0, function.find("::"));
}

}  // namespace

std::size_t own_line(std::span<frame const> all) {
  std::size_t best = all.size();
  owner of = owner::nobody;
  for (std::size_t i = 0; i < all.size(); ++i) {
    owner const is = owner_of(all[i]);
    if (is < of)
      best = i, of = is;
    if (of == owner::program)
      break;
  }
  return best;
}

std::string own_call(std::span<frame const> all) {
  std::string_view outermost_operator;
  for (frame const& f : all) {
    std::string_view const function = word_after(f.name, "torch::autograd::generated::");
    if (has(function, "Backward"))
      return std::string(function.substr(0, function.find_first_of("_(")));
    if (auto const name = word_after(f.name, "at::_ops::"); !name.empty())
      outermost_operator = name;
  }
  if (!outermost_operator.empty())
    return "operator " + std::string(outermost_operator);
  for (frame const& f : all) {
    if (!f.name.empty() && !has_any(f.name, recorder_functions))
      return f.name;
  }
  for (frame const& f : all) {  // weir in PyTorch writes words in the place of a file
    if (!f.file.empty() && f.file != "??")
      return f.file;
  }
  return all.empty() ? "" : all.front().name;
}

}  // namespace weir::report
