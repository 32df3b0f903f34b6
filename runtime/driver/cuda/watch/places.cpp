// Walks the stack past the libraries of CUDA to the program.
// Threads: any.
#include "runtime/driver/cuda/watch/places.h"

#include <execinfo.h>

#include <compare>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "runtime/base/lasting.h"
#include "runtime/base/os_symbols.h"
#include "runtime/base/sync.h"
#include "runtime/driver/kernel_signature.h"

namespace weir::driver::cuda {
namespace {

constexpr int most_frames = 24;
constexpr int most_unnamed = 4;  // of a stripped program: which of them is its own cannot be told

// What calls these is the place.
constexpr std::string_view cuda_libraries[] = {"libcuda.so", "libcupti.so", "libcudart.so", "libnvidia", "libweir_",
                                               "libcublas",  "libcudnn",    "libcusparse",  "libcufft",  "libcusolver",
                                               "libcurand",  "libcutensor", "libnccl.so",   "libnvrtc"};

// Of the runtime library, which a program may hold itself, and of weir.
constexpr std::string_view runtime_functions[] = {"cuda", "__cuda", "__device_stub", "libcudart", "weir::driver::"};

struct frame_text {
  enum class of : std::uint8_t { cuda, program, unnamed } is = of::cuda;
  std::string text;      // "train(step+0x45)" or "train+0x1a2b"
  std::string function;  // mangled
};

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

bool starts_with_one(std::string_view text, std::span<std::string_view const> all) {
  for (std::string_view const name : all)
    if (text.starts_with(name))
      return true;
  return false;
}

std::string hex(std::size_t number) {
  char digits[2 + 16 + 1];
  std::snprintf(digits, sizeof digits, "0x%zx", number);
  return digits;
}

// The runtime library may be a part of the program: the names of its functions tell.
frame_text look_up_frame(void* code) {
  // A return address may be that of the next function.
  os::code_place const at = os::place_of_code(static_cast<char const*>(code) - 1);
  frame_text found;
  found.function = at.function;
  std::string const file(file_name(at.file));
  if (at.file.empty() || starts_with_one(file, cuda_libraries))
    return found;
  if (at.function.empty()) {
    found.is = frame_text::of::unnamed;
    found.text = file + "+" + hex(at.offset);
    return found;
  }
  std::string const name = signature_of(at.function.c_str()).name;
  if (starts_with_one(name, runtime_functions))
    return found;
  found.is = frame_text::of::program;
  found.text = file + "(" + name + "+" + hex(at.offset) + ")";
  return found;
}

// Entries stay where they are, and do not change. The loader's lock is taken with no other one held.
frame_text const& text_of_frame(void* code) {
  static base::lasting<base::guarded<std::unordered_map<void*, frame_text>>> all;
  {
    auto const known = (*all).lock();
    if (auto const at = known->find(code); at != known->end())
      return at->second;
  }
  frame_text text = look_up_frame(code);
  return (*all).lock()->try_emplace(code, std::move(text)).first->second;
}

char const* kept_text(std::string text) {
  static base::lasting<base::guarded<std::set<std::string>>> all;
  return (*all).lock()->insert(std::move(text)).first->c_str();
}

// The text of a path through a stripped program.
class path_text {
 public:
  void add(std::string const& frame) {
    if (count_ == most_unnamed)
      return;
    text_ += (count_ == 0 ? "" : " from ") + frame;
    ++count_;
  }
  bool is_empty() const noexcept { return count_ == 0; }
  char const* lasting() const { return kept_text(text_); }

 private:
  std::string text_;
  int count_ = 0;
};

}  // namespace

source_location place_of_caller(char const* kernel) {
  void* frames[most_frames];
  int const n = ::backtrace(frames, most_frames);
  path_text unnamed;
  for (int i = 1; i < n; ++i) {
    frame_text const& frame = text_of_frame(frames[i]);
    // On the host a kernel is a function of the same name, which launches it.
    if (frame.is == frame_text::of::cuda || (kernel && frame.function == kernel))
      continue;
    if (frame.is == frame_text::of::program && unnamed.is_empty())
      return {frame.text.c_str(), "", 0};
    unnamed.add(frame.text);
  }
  return unnamed.is_empty() ? source_location{nullptr, nullptr, 0} : source_location{unnamed.lasting(), "", 0};
}

source_location behind(source_location stack, source_location last_line) {
  struct pair {
    char const* stack;
    char const* file;
    unsigned line;
    auto operator<=>(pair const&) const = default;
  };
  static base::lasting<base::guarded<std::map<pair, char const*>>> all;
  if (!last_line.file_name() || last_line.line() == 0)
    return stack;
  pair const of{stack.file_name(), last_line.file_name(), last_line.line()};
  auto const known = (*all).lock();
  char const*& text = (*known)[of];
  if (!text)
    text = kept_text(std::string(of.stack ? of.stack : "a call") + " after " + std::string(file_name(of.file)) + ":" +
                     std::to_string(of.line));
  return {text, "", 0};
}

}  // namespace weir::driver::cuda
