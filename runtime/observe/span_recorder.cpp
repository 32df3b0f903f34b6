// The ring of spans: new ones replace the oldest.
// Threads: any.
#include "runtime/observe/span_recorder.h"

#include <algorithm>

#include "runtime/base/lasting.h"
#include "runtime/base/process.h"

namespace weir::observe {

span_recorder& span_recorder::process() noexcept {
  static base::lasting<span_recorder> only;
  return *only;
}

void span_recorder::start(std::size_t spans) {
  base::lock_guard const hold(lock_);
  ring_.clear();
  most_ = std::max<std::size_t>(spans, 1), next_ = 0;
  turn_.fetch_add(1);
  on_.set(true);
}

void span_recorder::add(span s) noexcept {
  if (process_was_forked())
    return;  // a thread of the parent may hold the lock
  try {
    base::lock_guard const hold(lock_);
    if (ring_.size() < most_) {
      ring_.push_back(std::move(s));
    } else {
      ring_[next_] = std::move(s);
      next_ = (next_ + 1) % most_;
    }
  } catch (std::bad_alloc const&) {}  // no memory: the span is dropped
}

std::vector<span> span_recorder::spans() const {
  base::lock_guard const hold(lock_);
  std::vector<span> out(ring_.begin() + static_cast<std::ptrdiff_t>(next_), ring_.end());
  out.insert(out.end(), ring_.begin(), ring_.begin() + static_cast<std::ptrdiff_t>(next_));
  return out;
}

namespace {
struct innermost {};
using innermost_of_thread = base::thread_pointer<innermost, static_cast<span*>(nullptr)>;
}  // namespace

void host_span::begin(std::string_view name, source_location at, std::size_t bytes, std::uint64_t stream) noexcept {
  around_ = innermost_of_thread::value;
  // Part of a call of that name: its work belongs to that call. A range has no work, and waits are no parts.
  if (stream && around_ && around_->link && around_->name == name) {
    within_ = around_->link;
    return;
  }
  try {
    open_ = std::make_unique<span>();
    open_->name = name;
    open_->at = at, open_->bytes = bytes, open_->stream = stream;
    open_->number = base::this_thread_id();
    open_->link = stream ? span_recorder::process().new_link() : 0;
    open_->begin_ns = base::now_ns();
    innermost_of_thread::value = open_.get();
  } catch (std::bad_alloc const&) {
    open_ = nullptr;
  }
}

void host_span::end() noexcept {
  open_->end_ns = base::now_ns();
  // Ranges that are not nested end in another order: none is taken for the innermost one then.
  innermost_of_thread::value = innermost_of_thread::value == open_.get() ? around_ : nullptr;
  if (span_recorder::on())
    span_recorder::process().add(std::move(*open_));
}

}  // namespace weir::observe
