// weir/types.h: the types that every other header uses. Values only, no state.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "weir/export.h"
#if __cplusplus < 202002L
#error "weir needs C++20 or newer: compile with -std=c++20"
#include <weir needs C++20 or newer: compile with -std=c++20>  // ends the compilation
#endif

namespace weir WEIR_API {
using std::size_t;
// The caller's line: the last parameter of every call that can throw. clang 14 lacks std::source_location.
class source_location {
 public:
  constexpr source_location() noexcept = default;
  constexpr source_location(char const* file, char const* function, unsigned line) noexcept
      : file_(file), function_(function), line_(line) {}
  static constexpr source_location current(char const* file = __builtin_FILE(),
                                           char const* function = __builtin_FUNCTION(),
                                           unsigned line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }
  constexpr char const* file_name() const noexcept { return file_; }  // null: unknown
  constexpr char const* function_name() const noexcept { return function_; }
  constexpr unsigned line() const noexcept { return line_; }

 private:
  char const* file_ = nullptr;
  char const* function_ = nullptr;
  unsigned line_ = 0;
};

inline namespace literals {
consteval size_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
consteval size_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
consteval size_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
}

// cpu, gpu (the thread's current GPU, resolved at use) or gpu:i. A simulated GPU is a gpu.
class device {
 public:
  constexpr device(int gpu_index) noexcept : index_(gpu_index) {}  // as in torch: an int is a GPU ordinal
  // "cpu" "gpu" "gpu:1"; "cuda:1" means the same. Throws: invalid_use
  explicit device(std::string_view text, source_location = source_location::current());
  static constexpr device host() noexcept { return device(-2); }
  static constexpr device current_gpu() noexcept { return device(-1); }
  constexpr bool is_cpu() const noexcept { return index_ == -2; }
  constexpr bool is_gpu() const noexcept { return index_ != -2; }
  constexpr int index() const noexcept { return index_; }  // -1: current
  std::string str() const;                                 // "gpu:1"
  friend constexpr bool operator==(device, device) noexcept = default;

 private:
  int index_;
};
inline constexpr device cpu = device::host();
inline constexpr device gpu = device::current_gpu();

enum class dtype : std::uint8_t { float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64, boolean };
using enum dtype;
constexpr size_t size_of(dtype type) noexcept {  // bytes of one element
  switch (type) {
    case float64:
    case int64: return 8;
    case float32:
    case int32: return 4;
    case float16:
    case bfloat16:
    case int16: return 2;
    case int8:
    case uint8:
    case boolean: return 1;
  }
  return 0;
}
std::string_view name_of(dtype) noexcept;  // "float32"

enum class memory_kind : std::uint8_t { device, pinned, pageable };
enum class blocking : bool { no, yes };
inline constexpr blocking non_blocking = blocking::no;
}  // namespace weir
