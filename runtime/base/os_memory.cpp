// /proc/meminfo, and the limits of the control groups above this process.
// Threads: any.
#include "runtime/base/os_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::os {
namespace {

constinit base::atomic<memory_teller> told_by{nullptr};

// A file of the kernel: small, with a length of 0 until it is read.
class text_file {
 public:
  // The path is the parts, joined.
  text_file(std::string_view root, std::string_view folder, std::string_view group, std::string_view name) noexcept {
    char path[1024];
    int const n = std::snprintf(path, sizeof path, "%.*s%.*s%.*s%.*s", static_cast<int>(root.size()), root.data(),
                                static_cast<int>(folder.size()), folder.data(), static_cast<int>(group.size()),
                                group.data(), static_cast<int>(name.size()), name.data());
    if (n < 0 || static_cast<std::size_t>(n) >= sizeof path)
      return;
    int const file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
      return;
    while (size_ < sizeof text_) {
      ssize_t const got = ::read(file, text_ + size_, sizeof text_ - size_);
      if (got <= 0)
        break;
      size_ += static_cast<std::size_t>(got);
    }
    close_file(file);
  }
  std::string_view text() const noexcept { return {text_, size_}; }
  // The number at the beginning of the file; none for "max".
  std::optional<std::size_t> number() const noexcept { return first_number(text()); }
  // The number after the first word of a line.
  std::optional<std::size_t> number(std::string_view word) const noexcept {
    for (std::string_view left = text(); !left.empty();) {
      std::string_view const line = left.substr(0, left.find('\n'));
      left.remove_prefix(std::min(left.size(), line.size() + 1));
      if (line.starts_with(word) && line.substr(word.size()).find_first_of(" \t") == 0)
        return first_number(line.substr(word.size()));
    }
    return {};
  }

 private:
  static std::optional<std::size_t> first_number(std::string_view text) noexcept {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    std::size_t n = 0;
    return std::from_chars(text.data(), text.data() + text.size(), n).ec == std::errc{} ? std::optional(n)
                                                                                        : std::nullopt;
  }
  char text_[8192];
  std::size_t size_ = 0;
};

// throttle: a second limit, which counts like the first. Above it the kernel ends no process, but takes pages
// back and slows the group down.
struct kind {
  std::string_view folder, limit, throttle, used, inactive, active;
};
constexpr kind v1{.folder = "/sys/fs/cgroup/memory",
                  .limit = "/memory.limit_in_bytes",
                  .throttle = "",
                  .used = "/memory.usage_in_bytes",
                  .inactive = "total_inactive_file",
                  .active = "total_active_file"};
constexpr kind v2{.folder = "/sys/fs/cgroup",
                  .limit = "/memory.max",
                  .throttle = "/memory.high",
                  .used = "/memory.current",
                  .inactive = "inactive_file",
                  .active = "active_file"};

void look_at(std::string_view root, kind const& names, std::string_view group, host_memory& out) noexcept {
  auto limit = text_file(root, names.folder, group, names.limit).number();
  if (!names.throttle.empty()) {
    auto const high = text_file(root, names.folder, group, names.throttle).number();
    if (high && (!limit || *high < *limit))
      limit = high;
  }
  auto const used = text_file(root, names.folder, group, names.used).number();
  if (!limit || !used)
    return;
  // The group limits nothing, even with its file caches counted as used.
  if (*limit >= out.total && *limit - std::min(*limit, *used) >= out.available)
    return;
  text_file const parts(root, names.folder, group, "/memory.stat");
  std::size_t const files = parts.number(names.inactive).value_or(0) + parts.number(names.active).value_or(0);
  std::size_t const held = *used - std::min(*used, files);
  // Each minimum by itself: a group above may be nearly full, though its limit is larger.
  out.total = std::min(out.total, *limit);
  out.available = std::min(out.available, *limit - std::min(*limit, held));
}

// Every group above limits a group too. A path with ".." is not visible in a container: only the top is read.
void look_up_from(std::string_view root, kind const& names, std::string_view group, host_memory& out) noexcept {
  if (group.find("..") != group.npos)
    group = {};
  for (; !group.empty() && group != "/"; group = group.substr(0, group.rfind('/')))
    look_at(root, names, group, out);
  look_at(root, names, {}, out);
}

}  // namespace

void memory_told_by(memory_teller teller) noexcept {
  told_by.store(teller, base::memory_order_release);
}

std::optional<host_memory> memory_available(char const* root) noexcept {
  if (refused(call::memory_of_host))
    return {};
  if (memory_teller const teller = told_by.load(base::memory_order_acquire); teller && !*root)
    return teller();
  text_file const all(root, "/proc", "", "/meminfo");
  auto const total = all.number("MemTotal:"), available = all.number("MemAvailable:");
  if (!total || !available)
    return {};
  host_memory out{*total << 10, *available << 10};
  text_file const groups(root, "/proc", "/self", "/cgroup");
  for (std::string_view left = groups.text(); !left.empty();) {  // "4:memory:/a/b" or "0::/a/b"
    std::string_view const line = left.substr(0, left.find('\n'));
    left.remove_prefix(std::min(left.size(), line.size() + 1));
    std::size_t const colon = line.find(':'), second = colon == line.npos ? colon : line.find(':', colon + 1);
    if (second == line.npos)
      continue;
    std::string_view const controllers = line.substr(colon + 1, second - colon - 1), group = line.substr(second + 1);
    if (controllers.empty())
      look_up_from(root, v2, group, out);
    else if (controllers.find("memory") != controllers.npos)
      look_up_from(root, v1, group, out);
  }
  return out;
}

}  // namespace weir::os
