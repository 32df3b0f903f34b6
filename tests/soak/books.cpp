// Counts at every answer that is ok.
// Threads: as the seam.
#include "tests/soak/books.h"

#include <algorithm>
#include <chrono>

namespace weir::soak {
namespace {

template <class Answer>
Answer counted(Answer said, std::atomic<std::int64_t>& in, std::int64_t by) {
  if (said.ok())
    in.fetch_add(by);
  return said;
}

}  // namespace

std::int64_t books::used() const {
  std::lock_guard const hold(lock_);
  return used_pages_ * static_cast<std::int64_t>(page);
}

weir::driver::result<bookkeeper::address> bookkeeper::reserve(std::size_t bytes, std::size_t alignment) {
  auto const said =
      counted(fault_injector::reserve(bytes, alignment), books_->reserved, static_cast<std::int64_t>(bytes));
  if (!said.ok())
    return said;
  std::lock_guard const hold(books_->lock_);
  books_->reservations_[said.value].used.resize((bytes + books::page - 1) / books::page);
  return said;
}

bookkeeper::status bookkeeper::unreserve(address at, std::size_t bytes) {
  {  // before the driver may give the addresses to another thread
    std::lock_guard const hold(books_->lock_);
    if (auto const it = books_->reservations_.extract(at))
      books_->used_pages_ -= std::count(it.mapped().used.begin(), it.mapped().used.end(), true);
  }
  return counted(fault_injector::unreserve(at, bytes), books_->reserved, -static_cast<std::int64_t>(bytes));
}

bookkeeper::memory bookkeeper::made(memory said, std::size_t bytes) {
  if (!said.ok())
    return said;
  books_->device.fetch_add(static_cast<std::int64_t>(bytes));
  std::lock_guard const hold(books_->lock_);
  books_->handles_[said.value] = bytes;
  return said;
}
bookkeeper::memory bookkeeper::create(int device, std::size_t bytes) {
  return made(fault_injector::create(device, bytes), bytes);
}
bookkeeper::memory bookkeeper::create_shared(int device, std::size_t bytes) {
  return made(fault_injector::create_shared(device, bytes), bytes);
}
bookkeeper::memory bookkeeper::import_handle(int device, std::size_t bytes, int file) {
  return made(fault_injector::import_handle(device, bytes, file), bytes);
}

bookkeeper::status bookkeeper::release(weir::driver::memory_handle h) {
  std::size_t bytes = 0;
  {
    std::lock_guard const hold(books_->lock_);
    if (auto const it = books_->handles_.extract(h))
      bytes = it.mapped();
  }
  return counted(fault_injector::release(h), books_->device, -static_cast<std::int64_t>(bytes));
}

bookkeeper::status bookkeeper::map(address at, std::size_t bytes, weir::driver::memory_handle h) {
  status const said = fault_injector::map(at, bytes, h);
  if (!said.ok())
    return said;
  std::lock_guard const hold(books_->lock_);
  auto in = books_->reservations_.upper_bound(at);
  if (in == books_->reservations_.begin())
    return said;
  --in;
  auto& used = in->second.used;
  std::size_t const first = (at - in->first) / books::page, end = (at - in->first + bytes - 1) / books::page + 1;
  for (std::size_t p = first; p < std::min(end, used.size()); ++p) {
    books_->used_pages_ += !used[p];
    used[p] = true;
  }
  return said;
}

weir::driver::result<bookkeeper::address> bookkeeper::create_segment(int device, std::size_t bytes) {
  auto const said =
      counted(fault_injector::create_segment(device, bytes), books_->device, static_cast<std::int64_t>(bytes));
  if (!said.ok())
    return said;
  std::lock_guard const hold(books_->lock_);
  books_->segments_[said.value] = bytes;
  return said;
}

bookkeeper::status bookkeeper::release_segment(int device, address at) {
  std::size_t bytes = 0;
  {
    std::lock_guard const hold(books_->lock_);
    if (auto const it = books_->segments_.extract(at))
      bytes = it.mapped();
  }
  return counted(fault_injector::release_segment(device, at), books_->device, -static_cast<std::int64_t>(bytes));
}

bookkeeper::status bookkeeper::pin(void* p, std::size_t bytes) {
  return counted(fault_injector::pin(p, bytes), books_->pins, 1);
}
bookkeeper::status bookkeeper::unpin(void* p) {
  return counted(fault_injector::unpin(p), books_->pins, -1);
}

weir::driver::result<weir::driver::stream_handle> bookkeeper::create_stream(int device, weir::driver::stream_kind k,
                                                                            int priority) {
  return counted(fault_injector::create_stream(device, k, priority), books_->streams, 1);
}
bookkeeper::status bookkeeper::destroy_stream(int device, weir::driver::stream_handle s) {
  return counted(fault_injector::destroy_stream(device, s), books_->streams, -1);
}
weir::driver::result<weir::driver::event_handle> bookkeeper::create_event(int device, weir::driver::event_kind k) {
  return counted(fault_injector::create_event(device, k), books_->events, 1);
}
bookkeeper::status bookkeeper::destroy_event(int device, weir::driver::event_handle e) {
  return counted(fault_injector::destroy_event(device, e), books_->events, -1);
}

bookkeeper::status bookkeeper::record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) {
  auto const until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(200) * walked_.load();
  while (std::chrono::steady_clock::now() < until) {}
  return fault_injector::record(device, s, e);
}

weir::driver::result<weir::driver::graph_handle> bookkeeper::end_capture(int device, weir::driver::stream_handle s) {
  return counted(fault_injector::end_capture(device, s), books_->graphs, 1);
}
bookkeeper::status bookkeeper::destroy_graph(weir::driver::graph_handle g) {
  return counted(fault_injector::destroy_graph(g), books_->graphs, -1);
}
weir::driver::result<weir::driver::executable_handle> bookkeeper::instantiate(int device,
                                                                              weir::driver::graph_handle g) {
  return counted(fault_injector::instantiate(device, g), books_->graphs, 1);
}
bookkeeper::status bookkeeper::destroy_executable(weir::driver::executable_handle x) {
  return counted(fault_injector::destroy_executable(x), books_->graphs, -1);
}

}  // namespace weir::soak
