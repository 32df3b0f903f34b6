// Which physical bytes are mapped at which addresses, and which driver objects are not yet released.
// Threads: under the checker's lock.
#pragma once
#include <optional>
#include <string>
#include <unordered_map>

#include "simulator/checker/shadow.h"

namespace weir::driver::check {

// Physical memory, however many addresses map it. It lives as long as a handle or a mapping.
struct physical {
  int device = -1;           // -1: host memory
  std::uint64_t number = 0;  // from 1, among all physical memory of this driver
  std::size_t bytes = 0;
  shadow uses{};
};

struct part {  // of an address range
  physical* of = nullptr;
  shadow::offset from = 0, to = 0;
  address at = 0;
};

class places {
 public:
  enum class as : std::uint8_t { mapping, segment, pin, told };  // told: the program took it from CUDA
  struct region {
    std::size_t bytes = 0;
    as how = as::mapping;
    std::shared_ptr<physical> shows;
    // the bytes of a pin whose first and last page may also hold other data; 0, 0: no such pin
    address own_from = 0, own_to = 0;
    bool used = false;  // a block began in it
  };

  void reserve(address at, std::size_t bytes) { reservations_[at] = bytes; }
  void unreserve(address at) { reservations_.erase(at); }
  void create(memory_handle, int device, std::size_t bytes);
  // Called before the driver call: another thread may get the same handle value then. put_back() on refusal.
  std::shared_ptr<physical> release(memory_handle);
  void put_back(memory_handle h, std::shared_ptr<physical> p) {
    handles_[static_cast<std::uint64_t>(h)] = std::move(p);
  }
  void map(address, std::size_t bytes, memory_handle);
  void map(address, std::size_t bytes, as, int device);
  // Memory that the program took. false: a part of it is known already
  bool map_told(address, std::size_t bytes, int device);
  void drop_told(address, std::size_t bytes);
  std::optional<region> take(address at);
  bool is_known(address at, std::size_t bytes) const;  // all of it, within one region
  void put_back(address at, region r) { regions_[at] = std::move(r); }

  using parts = boost::container::small_vector<part, 4>;
  parts find(address, std::size_t bytes);            // an unknown range is `elsewhere_`
  bool is_pinned(address, std::size_t bytes) const;  // all within one pin
  // A host block as long as its pin may be the program's own memory, pinned in place.
  // Returns: the pages of its pin that hold nothing else, if not reported yet. bytes 0: none.
  touch begins_in_pin(address, std::size_t bytes);
  // Returns the part of pinned bytes that shares no page with other data. bytes 0: none.
  std::pair<address, std::size_t> on_pages_of_its_own(address, std::size_t bytes) const;
  template <class F>
  void each_physical(F visit) {
    for (auto& [h, p] : handles_)
      visit(*p);
    for (auto& [at, r] : regions_)
      visit(*r.shows);
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
