// Devices and element types as text.
// Threads: any.
#include "weir/types.h"

#include <charconv>

#include "runtime/base/text.h"
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
  if (word != "gpu" && word != "cuda")
    refuse();
  if (word.size() == text.size())
    return;  // the current device
  std::string_view const digits = text.substr(word.size() + 1);
  auto const [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), index_);
  if (failed != std::errc{} || end != digits.data() + digits.size() || index_ < 0)
    refuse();
}

std::string device::str() const {
  if (is_cpu())
    return "cpu";
  return index_ < 0 ? "gpu" : "gpu:" + std::to_string(index_);
}

std::string_view name_of(dtype type) noexcept {
  return base::name_in(
      {"float32", "float16", "bfloat16", "float64", "int8", "uint8", "int16", "int32", "int64", "boolean"}, type);
}

}  // namespace weir
