// Which physical bytes lie at which addresses, and all that was taken of the driver and not given back.
// Threads: under the checker's lock.
#pragma once
#include <optional>
#include <string>
#include <unordered_map>

#include "simulator/checker/shadow.h"

namespace weir::driver::check {

// Bytes that exist once, however many addresses show them. Lives while a handle or a mapping holds it.
struct physical {
  int device = -1;           // -1: of the host
  std::uint64_t number = 0;  // of all physical memory of this driver, from 1
  std::size_t bytes = 0;
  shadow uses{};
};

struct part {  // of a range of addresses
  physical* of = nullptr;
  shadow::offset from = 0, to = 0;
  address at = 0;
};

class places {
 public:
  enum class as : std::uint8_t { mapping, segment, pin };
  struct region {
    std::size_t bytes = 0;
    as how = as::mapping;
    std::shared_ptr<physical> shows;
    // of a pin whose first and last page hold other things beside these bytes; 0, 0: of none
    address own_from = 0, own_to = 0;
    bool used = false;                 // a block of it began
  };

  void reserve(address at, std::size_t bytes) { reservations_[at] = bytes; }
  void unreserve(address at) { reservations_.erase(at); }
  void create(memory_handle, int device, std::size_t bytes);
  // Taken out before the driver is asked, so that another thread's new object of the same name is not mixed
  // up with it; put back when the driver refuses.
  std::shared_ptr<physical> release(memory_handle);
  void put_back(memory_handle h, std::shared_ptr<physical> p) {
    handles_[static_cast<std::uint64_t>(h)] = std::move(p);
  }
  void map(address, std::size_t bytes, memory_handle);
  void map(address, std::size_t bytes, as, int device);
  std::optional<region> take(address at);
  void put_back(address at, region r) { regions_[at] = std::move(r); }

  using parts = boost::container::small_vector<part, 4>;
  parts find(address, std::size_t bytes);  // what is nowhere known is memory of its own
  bool is_pinned(address, std::size_t bytes) const;  // all of it inside one pin
  // A block of the host that begins. One that is as long as its pin may be memory of the program's own,
  // pinned where it lies.
  // Returns: what of that pin are pages of its own, where that is news; bytes 0: it is none, or none are.
  touch begins_in_pin(address, std::size_t bytes);
  // The part of pinned bytes that shares no page with memory that is not pinned for its own sake.
  // Empty: bytes 0.
  std::pair<address, std::size_t> on_pages_of_its_own(address, std::size_t bytes) const;
  template <class F>
  void each_physical(F visit) {
    for (auto& [h, p] : handles_) visit(*p);
    for (auto& [at, r] : regions_) visit(*r.shows);
    visit(elsewhere_);
  }
  void census(std::vector<std::string>&, std::vector<bool> const& lost) const;

 private:
  std::shared_ptr<physical> make(int device, std::size_t bytes);
  std::map<address, std::size_t> reservations_;
  std::unordered_map<std::uint64_t, std::shared_ptr<physical>> handles_;
  std::map<address, region> regions_;
  physical elsewhere_{-1, 0, ~std::size_t{0}};
  std::uint64_t next_number_ = 1;
};

}  // namespace weir::driver::check
