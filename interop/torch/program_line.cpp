// The line of the Python program that allocates or launches, for the history and for the race checker.
// Python's functions are found in the process, so that one library serves every version of Python from 3.9.
// Threads: any. Takes Python's lock, as PyTorch's own recorder does.
#include <dlfcn.h>

#include <mutex>
#include <set>

#include "interop/torch/door.h"

namespace weir::interop {
namespace {

struct python {
  int (*is_initialized)();
  int (*is_finalizing)();  // null before 3.13
  int (*take)();
  void (*give)(int);
  void* (*frame)();  // borrowed
  void* (*back)(void*);
  void* (*code)(void*);
  int (*line)(void*);
  void* (*attribute)(void*, char const*);
  char const* (*text)(void*);
  void (*drop)(void*);
  void (*clear)();
  int (*is_taken)();  // by this thread

  python() {
    auto const find = [](auto& f, char const* name, char const* older = nullptr) {
      void* at = ::dlsym(RTLD_DEFAULT, name);
      if (!at && older)
        at = ::dlsym(RTLD_DEFAULT, older);
      f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(at);
      return at != nullptr;
    };
    find(is_finalizing, "Py_IsFinalizing", "_Py_IsFinalizing");
    bool const all = find(is_initialized, "Py_IsInitialized") & find(take, "PyGILState_Ensure") &
                     find(give, "PyGILState_Release") & find(frame, "PyEval_GetFrame") & find(back, "PyFrame_GetBack") &
                     find(code, "PyFrame_GetCode") & find(line, "PyFrame_GetLineNumber") &
                     find(attribute, "PyObject_GetAttrString") & find(text, "PyUnicode_AsUTF8") &
                     find(drop, "Py_DecRef") & find(clear, "PyErr_Clear") & find(is_taken, "PyGILState_Check");
    if (!all)
      is_initialized = nullptr;
  }
  bool runs() const { return is_initialized && is_initialized() && !(is_finalizing && is_finalizing()); }
};

std::mutex lock;
std::set<std::string, std::less<>>& texts =
    *new std::set<std::string, std::less<>>;  // for good: the history points there
std::string& library = *new std::string;

char const* kept(std::string_view text) {
  std::lock_guard const hold(lock);
  auto const found = texts.find(text);
  return (found == texts.end() ? texts.emplace(text).first : found)->c_str();
}
bool is_of_library(std::string_view file) {
  std::lock_guard const hold(lock);
  return !library.empty() && file.substr(0, library.size()) == library;
}

// The innermost frame that is not of PyTorch, else the innermost.
source_location line_of(python const& py) {
  constexpr int deepest = 64;
  source_location first, found;
  void* owned = nullptr;
  void* at = py.frame();
  for (int depth = 0; at && depth < deepest && !found.file_name(); ++depth) {
    if (void* const code = py.code(at)) {
      void* const file = py.attribute(code, "co_filename");
      void* const name = py.attribute(code, "co_name");
      char const* const file_text = file ? py.text(file) : nullptr;
      char const* const name_text = name ? py.text(name) : nullptr;
      if (file_text && name_text && (!first.file_name() || !is_of_library(file_text))) {
        source_location const here{kept(file_text), kept(name_text), static_cast<unsigned>(py.line(at))};
        if (!first.file_name())
          first = here;
        if (!is_of_library(file_text))
          found = here;
      }
      py.clear();
      for (void* const one : {file, name, code}) {
        if (one)
          py.drop(one);
      }
    }
    void* const outer = py.back(at);
    if (owned)
      py.drop(owned);
    owned = at = outer;
  }
  if (owned)
    py.drop(owned);
  return found.file_name() ? found : first;
}

}  // namespace

void name_library(std::string path_prefix) {
  std::lock_guard const hold(lock);
  library = std::move(path_prefix);
}

namespace {
python const& this_python() {
  static python const py;
  return py;
}
thread_local constinit source_location last_line;
}  // namespace

source_location last_line_of_program() noexcept {
  return last_line;
}

source_location line_without_waiting() noexcept {
  python const& py = this_python();
  return py.runs() && py.is_taken() ? line_of_program() : source_location();
}

source_location line_of_program() noexcept {
  constexpr source_location without{"(no Python frame: autograd, or a library)", "", 0};
  python const& py = this_python();
  if (!py.runs())
    return last_line = without;
  int const state = py.take();
  source_location found;
  try {
    found = line_of(py);
  } catch (...) {  // no host memory for a text
  }
  py.give(state);
  return last_line = found.file_name() ? found : without;
}

}  // namespace weir::interop
