// Allocates ranges of a device's file; keeps files for the next machine.
// Threads: as backing_memory.h says; the shelf has a lock.
#include "simulator/machine/backing_memory.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/sync.h"

namespace weir::driver::sim {
namespace {
constexpr std::size_t window_bytes = 16u << 20;  // that a kept file retains
constexpr std::size_t most_kept = 8;             // files
constexpr std::size_t most_at_once = 1u << 20;   // bytes
}  // namespace

struct backing_memory::shelf {
  base::guarded<std::vector<file>> files;
};

backing_memory::shelf& backing_memory::kept() noexcept {
  static base::lasting<shelf> all;  // machines of static objects end late
  return *all;
}

backing_memory::backing_memory(std::size_t capacity, fresh_bytes f, std::uint64_t seed)
    : capacity_(capacity), fresh_(f), seed_(seed) {}

backing_memory::~backing_memory() {
  if (file_.number < 0)
    return;
  // In a forked child the window is the parent's.
  bool const has_window = file_.window && file_.generation == os::fork_generation();
  if (has_window) {
    if (file_.end > window_bytes && os::resize_file(file_.number, window_bytes))
      file_.end = window_bytes;
    auto files = kept().files.lock();
    if (files->size() < most_kept && file_.end <= window_bytes) {
      files->push_back(file_);
      return;
    }
  }
  if (has_window)
    os::return_addresses(file_.window, window_bytes);
  os::close_file(file_.number);
}

bool backing_memory::open() {
  if (file_.number >= 0)
    return true;
  if (fresh_ == fresh_bytes::arbitrary) {
    auto files = kept().files.lock();
    while (!files->empty() && file_.number < 0) {
      if (files->back().generation == os::fork_generation())
        file_ = files->back();  // else the parent's
      files->pop_back();
    }
    if (file_.number >= 0)
      return true;
  }
  file_.generation = os::fork_generation();
  file_.number = os::make_memory_file("weir simulated device");
  if (file_.number < 0)
    return false;
  if (fresh_ == fresh_bytes::arbitrary && os::resize_file(file_.number, window_bytes)) {
    file_.end = window_bytes;
    void* const at = os::reserve_addresses(window_bytes, 1);
    if (at && os::map_file(at, window_bytes, file_.number, 0)) {
      os::advise(at, window_bytes, os::advice::not_to_children);
      file_.window = at;
    }
  }
  return true;
}

std::optional<std::uint64_t> backing_memory::take(std::size_t bytes) {
  if (bytes > free_bytes() || !open())
    return std::nullopt;
  auto const hole = std::find_if(holes_.begin(), holes_.end(), [&](auto const& h) { return h.second >= bytes; });
  std::uint64_t offset = end_;
  if (hole != holes_.end()) {
    offset = hole->first;
    std::uint64_t const rest = hole->second - bytes;
    holes_.erase(hole);
    if (rest)
      holes_[offset + bytes] = rest;
  } else {
    if (end_ + bytes > file_.end) {
      if (!os::resize_file(file_.number, end_ + bytes))
        return std::nullopt;
      file_.end = end_ + bytes;
    }
    end_ += bytes;
  }
  used_ += bytes;
  if (fresh_ == fresh_bytes::arbitrary)  // by the seed, and never 0
    fill(offset, bytes, static_cast<int>((seed_ * 0x9e3779b97f4a7c15u + ++takes_ * 0xd1b54a32d192ed03u) >> 56) | 1);
  return offset;
}

void backing_memory::fill(std::uint64_t offset, std::size_t bytes, int value) {
  if (file_.window && offset + bytes <= window_bytes) {
    std::memset(static_cast<std::byte*>(file_.window) + offset, value, bytes);
  } else if (void* const at = os::reserve_addresses(bytes, 1)) {
    if (os::map_file(at, bytes, file_.number, offset))
      std::memset(at, value, bytes);
    os::return_addresses(at, bytes);
  }
}

void backing_memory::give_back(std::uint64_t offset, std::size_t bytes) {
  used_ -= bytes;
  if (fresh_ == fresh_bytes::zero && !os::punch_hole(file_.number, offset, bytes))
    fill(offset, bytes, 0);
  auto after = holes_.lower_bound(offset);
  std::uint64_t size = bytes;
  if (after != holes_.end() && offset + size == after->first) {
    size += after->second;
    after = holes_.erase(after);
  }
  if (after != holes_.begin()) {
    auto const before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  holes_[offset] = size;
}

bool backing_memory::count(std::size_t bytes) noexcept {
  if (bytes > free_bytes())
    return false;
  used_ += bytes;
  return true;
}
void backing_memory::uncount(std::size_t bytes) noexcept {
  used_ -= bytes;
}

bool backing_memory::map(void* at, std::uint64_t offset, std::size_t bytes) {
  // Few pages with content: one call that maps all is cheaper than one fault a page.
  bool const at_once = fresh_ == fresh_bytes::arbitrary && bytes <= most_at_once;
  return os::map_file(at, bytes, file_.number, offset, at_once ? os::pages::now : os::pages::when_touched);
}

void backing_memory::consume_memory(std::size_t bytes) {
  others_ += std::min(bytes, free_bytes());
}
void backing_memory::others_leave(std::size_t bytes) {
  others_ -= std::min(bytes, others_);
}

std::size_t backing_memory::free_bytes() const noexcept {
  return capacity_ - used_ - others_;
}

}  // namespace weir::driver::sim
