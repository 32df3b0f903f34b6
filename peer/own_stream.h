// A stream of weir's own, with its clock.
// Threads: any; its end blocks until what it was given is done.
#pragma once
#include <string>

#include "runtime/clock/timeline.h"

namespace weir::peer {

class own_stream {
 public:
  own_stream(runtime::impl& r, int device, std::string_view operation, here where) : owner_(r) {
    r.open(device, operation, where);
    auto const made = r.machine().create_stream(device, driver::stream_kind::independent, 0);
    require(made.is, operation, "a stream on gpu:" + std::to_string(device), "Try again", where);
    try {
      line_ = &r.part<clock::clocks>().make(device, made.value, clock::life::own);
    } catch (...) {
      static_cast<void>(r.machine().destroy_stream(device, made.value));
      throw;
    }
  }
  ~own_stream() {
    static_cast<void>(line_->synchronize());  // a lost device's answers at once
    owner_.part<clock::clocks>().retire(*line_);
    static_cast<void>(owner_.machine().destroy_stream(line_->device(), line_->handle()));
  }
  own_stream(own_stream const&) = delete;
  own_stream& operator=(own_stream const&) = delete;
  clock::timeline& line() const noexcept { return *line_; }

 private:
  runtime::impl& owner_;
  clock::timeline* line_ = nullptr;
};

}  // namespace weir::peer
