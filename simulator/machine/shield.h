// Shields protect pinned bytes from the host, by pages, until the host has waited for the work on them.
// Threads: one at a time; the memory holds its lock.
//
// If the work writes, its pages are inaccessible; if it reads, they are read-only. While an engine or a host
// function accesses its bytes, the pages are open to every thread.
#pragma once
#include <vector>

#include "runtime/base/os.h"
#include "runtime/driver/driver.h"

namespace weir::driver::sim {

class shields {
 public:
  // each may split a system mapping in three; a process has about 65,000
  static constexpr std::size_t most = 4096;
  // Returns: its number, unique in the process. 0: too many, or the system refused.
  std::uint64_t raise(touch);
  void lower(std::uint64_t number);
  void forget(address, std::size_t bytes);  // those pages are no longer pinned
  bool empty() const noexcept { return all_.empty(); }
  bool concern(address at, std::size_t bytes) const noexcept;  // is a page of that range shielded?

  void open_for(touch const&);  // an engine accesses these bytes
  void close_after(touch const&);
  void open_all();  // an engine may access any pinned bytes
  void close_all();
  // Until release(), these pins are open only for bytes of open_for(): work on this thread may use no others.
  void confine_to(std::vector<touch> pins);
  void release();

  static constexpr std::uint64_t of_confined = ~std::uint64_t{0};
  // `into`: the shield whose bytes it hit; 0: only the page; of_confined: bytes the work does not declare.
  // Ensures: the page is open until the next change there. Returns: false if the system refused.
  bool let_through(os::bad_access const&, std::uint64_t& into);
  struct refusal {
    std::uint64_t shield = 0;  // as `into` above; 0: none
    address at = 0;            // the first of its bytes
  };
  // The shield with the smallest number above `after` that refuses these bytes to a system call.
  refusal refuses(touch const&, std::uint64_t after) const;
  void open_to(touch const&) const;  // opens what is closed of their pages, until the next change there

 private:
  struct one {
    std::uint64_t number = 0;
    touch what;
  };
  // Calls each(from, to, reach) for the parts of a range of pages that have one access.
  template <class Each>
  void each_part(address from, address to, Each) const;
  // Calls each(from, to) for the parts of the call's pages that are closed to it.
  template <class Each>
  void each_refused(touch const& call, Each) const;
  void apply(address from, address to) const;  // sets the access of each page in the range
  os::reach reach_of(address from, address to) const noexcept;
  std::vector<one> all_;
  std::vector<touch> at_work_;
  int anywhere_ = 0;
  std::vector<touch> confined_;  // pins
};

}  // namespace weir::driver::sim
