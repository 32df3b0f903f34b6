// Shields keep the host away from pinned bytes that work of a stream uses and the host has not waited for,
// page by page.
// Threads: one at a time; memory holds its lock.
//
// A shield against work that writes takes the pages out of reach, one against work that reads leaves them
// readable. While an engine or a host function is at its bytes they are open to every thread.
#pragma once
#include <vector>

#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class shields {
 public:
  // each may cut a mapping of the system's in three, of which a process has some 65,000
  static constexpr std::size_t most = 4096;
  // Returns: its number, of this process; 0: there are too many, or the system refused.
  std::uint64_t raise(touch);
  void lower(std::uint64_t number);
  void forget(address, std::size_t bytes);  // those pages are pinned no longer
  bool empty() const noexcept { return all_.empty(); }
  bool concern(address at, std::size_t bytes) const noexcept;  // is a page of that range shielded?

  void open_for(touch const&);   // an engine is at these bytes
  void close_after(touch const&);
  void open_all();               // and now one that may be at any
  void close_all();
  // Until `release`, pages of these pins are open for the engines above alone:
  // what runs on this thread is to use nothing else of them.
  void confine_to(std::vector<touch> pins);
  void release();

  static constexpr std::uint64_t of_confined = ~std::uint64_t{0};
  // The shield that this access ran into; 0: it only shares a page with one; of_confined:
  // bytes that confined work does not declare.
  // Ensures: the page is open until something changes there. false: the system refused.
  bool let_through(os::bad_access const&, std::uint64_t& into);

 private:
  struct one {
    std::uint64_t number = 0;
    touch what;
  };
  void apply(address from, address to) const;  // the reach that each page in between should have
  os::reach reach_of(address from, address to) const noexcept;
  std::vector<one> all_;
  std::vector<touch> at_work_;
  int anywhere_ = 0;
  std::vector<touch> confined_;  // the pins
};

}  // namespace weir::driver::sim
