// The short way of a copy: between a device and pinned memory that weir has, or within the device, by that
// device's engine, with nothing wished of the route. No string, no allocation once the blocks are known, no
// lock but perhaps that of the device's memory. What is not so plain, wrong arguments too, is left to
// copy.cpp as if nobody had looked.
// Threads: any; `wishes` are the thread's own.
#pragma once
#include <boost/container/small_vector.hpp>
#include <span>
#include <vector>

#include "runtime/base/byte_range.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/copy/copy_engine.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "weir/copy.h"

namespace weir::peer {

struct wishes {  // of a thread, and what it remembers
  copy_route by = copy_route::automatic;
  bool down = false;        // its last short copy left the device
  std::vector<int> lent{};  // ordinals
  streams::pinned_uses known{};

  using own = base::thread_pointer<wishes, static_cast<wishes*>(nullptr)>;  // null: none yet, or the thread ends
  ~wishes() { own::value = nullptr; }
};
wishes& make_wishes();
inline wishes& wished() {
  if (wishes* const mine = wishes::own::value) [[likely]] return *mine;
  return make_wishes();
}

struct asked {
  void* dst;
  void const* src;
  std::size_t bytes;
};

class short_way {
 public:
  // Is it a case of it? Its blocks are found then, those of the device marked for the line;
  // else one may be marked, and that is all.
  // given: null: the current stream of the device that the copy concerns.
  // Requires: bytes > 0. Throws: what the current stream of an opened device throws
  bool find(runtime::impl&, clock::timeline* given, asked const&, source_location const&);
  // Are these in the very blocks of the last find()?
  bool holds(asked const& a) const noexcept {
    if (!pinned.last) return false;
    return up ? in_device(a.dst, a.bytes) && pinned.holds(number(a.src), a.bytes)
              : in_device(a.src, a.bytes) && pinned.holds(number(a.dst), a.bytes);
  }

  // Ensures: the use of pinned memory is noted, also when the answer is no:
  // nobody knows what an engine had begun.
  driver::status enqueue(asked const& a, source_location const& at) const {
    notes_use const at_the_end{*this};
    return streams::try_copy(*line, a.dst, a.src, a.bytes, at);
  }
  void note_use() const noexcept {
    if (pinned.last) streams::pinned_memory::mark(pinned, line->now());
  }

  clock::timeline* line = nullptr;
  streams::pinned_spot pinned{};         // last null: both lie on the device
  bool up = false;                       // from the host to the device

 private:
  struct notes_use {
    short_way const& of;
    ~notes_use() { of.note_use(); }
  };
  static driver::address number(void const* p) noexcept { return reinterpret_cast<driver::address>(p); }
  static bool within(memory::allocator::range const& block, void const* at, std::size_t n) noexcept {
    return base::byte_range{number(block.base), block.bytes}.holds(number(at), n);
  }
  bool in_device(void const* at, std::size_t n) const noexcept { return within(device_, at, n); }

  memory::allocator::range device_{};
};

// The same for bytes that are set: the current stream of the device whose live block holds them all,
// marked for it. Null: no case of it.
clock::timeline* find_to_fill(runtime::impl&, clock::timeline* given, void* dst, std::size_t bytes,
                              source_location const&);

// Many on one line: all found before the first is enqueued.
class short_ways {
 public:
  // All of them are cases of it, or false. Zero bytes are, beside others.
  bool find(runtime::impl&, clock::timeline& line, std::span<copy_item const>, source_location const&);
  // In order. Returns: why one was refused, which is the one after the first `done`
  driver::status enqueue(std::span<copy_item const>, std::size_t& done, source_location const&);
  bool of_host() const noexcept { return of_host_; }
  short_way const& last() const noexcept { return all_.back(); }

 private:
  boost::container::small_vector<short_way, 4> all_;  // one for all that lie in the same blocks as the one before
  bool of_host_ = false;
};

}  // namespace weir::peer
