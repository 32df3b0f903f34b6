// Bytes of a limited room that copies of one device use until their stamps are complete.
// Threads: any.
#pragma once
#include <cstddef>
#include <deque>
#include <optional>

#include "runtime/base/sync.h"
#include "runtime/clock/stream_clock.h"

namespace weir::streams {

class room_in_use {
 public:
  room_in_use(clock::clocks& c, std::size_t limit) : clocks_(c), limit_(limit) {}
  std::size_t bytes();  // not known to be free

  // Whether that many more bytes keep the limit. If they exceed it as far as is known, asks the driver for the oldest
  // ones. Of an empty room: true, because no wait makes more.
  bool has(std::size_t bytes);
  bool take(std::size_t bytes);  // if they keep the limit, as has(). Others may have taken all: then false
  // Of bytes that were taken, or that exceed the limit: they are in use until then.
  void add(std::size_t bytes) noexcept;
  // Returns: whether half of the room is in use
  bool until(clock::stamp, std::size_t bytes) noexcept;
  void give_back(std::size_t bytes) noexcept;
  std::optional<clock::stamp> oldest() const;

 private:
  struct used {
    clock::stamp until;
    std::size_t bytes;
  };
  struct books {
    std::deque<used> in_use{};
    std::size_t bytes = 0;
  };
  bool may_have(std::size_t bytes, bool takes);
  void forget_complete(books&);

  clock::clocks& clocks_;
  std::size_t const limit_;
  base::guarded<books> books_;
};

}  // namespace weir::streams
