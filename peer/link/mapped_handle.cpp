// Maps, grants and releases physical memory.
// Threads: as mapped_handle.h.
#include "peer/link/mapped_handle.h"

#include <utility>

namespace weir::peer {

mapped_handle& mapped_handle::operator=(mapped_handle&& other) noexcept {
  machine_ = other.machine_;
  handle_ = std::exchange(other.handle_, driver::memory_handle::none);
  at_ = std::exchange(other.at_, 0);
  bytes_ = other.bytes_;
  readers_.store(other.readers_.exchange(0));
  mapped_ = std::exchange(other.mapped_, false);
  books_ = std::exchange(other.books_, nullptr);
  counted_for_ = other.counted_for_;
  counted_as_ = other.counted_as_;
  return *this;
}

void mapped_handle::known_to(observe::external_memory& books, int device, observe::sharing as) noexcept {
  books_ = &books, counted_for_ = device, counted_as_ = as;
  books.appeared(device, as, at_, bytes_);
}

driver::status mapped_handle::map(std::size_t alignment) {
  auto const at = machine_->reserve(bytes_, alignment);
  if (!at.ok())
    return at.is.what == driver::code::out_of_memory ? driver::no_addresses : at.is;
  at_ = at.value;
  driver::status const s = machine_->map(at_, bytes_, handle_);
  mapped_ = s.ok();
  return s;
}

driver::status mapped_handle::grant(int device) {
  if (granted(device))
    return {};
  driver::status const s = machine_->grant(at_, bytes_, device);
  if (s.ok())
    readers_.store(readers_.load() | std::uint64_t{1} << device);
  if (s.ok() && books_)
    books_->opened(at_, device);
  return s;
}

bool mapped_handle::give_back() noexcept {
  try {
    if (mapped_ && !machine_->unmap(at_, bytes_).ok())
      return false;
    mapped_ = false;
    readers_.store(0);
    if (auto* const books = std::exchange(books_, nullptr))
      books->vanished(counted_for_, counted_as_, at_, bytes_);
    if (at_ && !machine_->unreserve(at_, bytes_).ok())
      return false;
    at_ = 0;
    if (handle_ != driver::memory_handle::none && !machine_->release(handle_).ok())
      return false;
    handle_ = driver::memory_handle::none;
    return true;
  } catch (...) {
    return false;  // no host memory for the driver's records: tried again later
  }
}

}  // namespace weir::peer
