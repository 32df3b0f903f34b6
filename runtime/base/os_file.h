// Small files that the user names.
// Threads: any.
#pragma once
#include <optional>
#include <string>

namespace weir::os {

struct file_text {
  std::optional<std::string> text;
  std::string why_not;  // "is a folder", to print after the path; set if there is no text
};
// The whole of a regular file. Never blocks on a FIFO or a device, which are refused.
file_text read_text(char const* path, std::size_t most_bytes);

}  // namespace weir::os
