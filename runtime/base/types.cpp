// Devices and element types as text.
// Threads: any.
#include "weir/types.h"

#include <charconv>

#include "weir/error.h"

namespace weir {

device::device(std::string_view text, source_location at) : index_(-1) {
  auto const refuse = [&] {
    throw invalid_use("device", "\"" + std::string(text) + "\" is not a device",
                      "Write cpu, gpu, gpu:N, cuda or cuda:N", at, error_id{145});
  };
  if (text == "cpu") {
    index_ = cpu.index_;
    return;
  }
  std::string_view const word = text.substr(0, text.find(':'));
  if (word != "gpu" && word != "cuda") refuse();
  if (word.size() == text.size()) return;  // the current device
  std::string_view const digits = text.substr(word.size() + 1);
  auto const [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), index_);
  if (failed != std::errc{} || end != digits.data() + digits.size() || index_ < 0) refuse();
}

std::string device::str() const {
  if (is_cpu()) return "cpu";
  return index_ < 0 ? "gpu" : "gpu:" + std::to_string(index_);
}

std::string_view name_of(dtype type) noexcept {
  switch (type) {
    case float32: return "float32";
    case float16: return "float16";
    case bfloat16: return "bfloat16";
    case float64: return "float64";
    case int8: return "int8";
    case uint8: return "uint8";
    case int16: return "int16";
    case int32: return "int32";
    case int64: return "int64";
    case boolean: return "boolean";
  }
  return "unknown";
}

}  // namespace weir
