// Which addresses of the process are memory of devices that map, for the lock-free paths.
// Threads: any; find() takes no lock.
//
// Invariant: a place with bytes names an address space that is open.
#pragma once
#include <array>

#include "runtime/memory/space/address_space.h"

namespace weir::memory {

class mapped_spaces {
 public:
  static constexpr std::size_t most = 64;
  // beyond `most`: blocks there take the locked path
  static void enter(address base, std::size_t bytes, address_space const&) noexcept;
  static void leave(address base) noexcept;
  static region const* find(address) noexcept;

 private:
  struct place {
    base::atomic<address> base{0};
    base::atomic<std::size_t> bytes{0};
    base::atomic<address_space const*> space{nullptr};
  };
  static base::mutex changing_;  // for enter() and leave()
  static base::atomic<std::size_t> used_;
  static std::array<place, most> places_;
};

}  // namespace weir::memory
