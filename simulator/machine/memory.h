// Memory of the simulated machine: pages in one anonymous file a device, mappings, and pinned host pages.
// Threads: any. It has one lock. Callers may hold the lock of the machine, the checker or an allocator.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "simulator/machine/backing_memory.h"
#include "simulator/machine/shield.h"

namespace weir::driver::sim {

inline constexpr status fine{}, invalid{code::invalid};  // the usual answers

// A range that an operation of `device` reads or writes.
struct use {
  touch what;
  int device = -1;
  bool everything = false;  // a part of a collective: it reaches more than it declares
  std::uint64_t ends = 0;   // number of blocks freed before the work was enqueued: those it may not use
};

class memory {
 public:
  struct shape {
    int devices = 0;
    std::size_t bytes = 0;        // per device
    std::size_t granularity = 0;  // in bytes
    fresh_bytes pages = fresh_bytes::zero;
    std::uint64_t seed = 0;          // for arbitrary bytes
    bool handles_come_back = false;  // handles and addresses are reused at once, without a generation
    bool guarded = false;            // pages (under ASan, bytes) are accessible only between begin and end of a use
  };
  explicit memory(shape const&);
  ~memory();

  result<address> reserve(std::size_t bytes, std::size_t alignment);
  status unreserve(address, std::size_t bytes);
  result<memory_handle> create(int device, std::size_t bytes);
  status release(memory_handle);
  status map(address, std::size_t bytes, memory_handle);
  status unmap(address, std::size_t bytes);                         // Blocks: until no running work uses the range
  status grant(address, std::size_t bytes, std::uint64_t devices);  // a bit per device: all of them, or none
  result<memory_handle> create_shared(int device, std::size_t bytes);
  result<int> export_handle(memory_handle);
  result<memory_handle> import_handle(int device, std::size_t bytes, int file);
  result<address> create_segment(int device, std::size_t bytes);
  status release_segment(int device, address);
  status pin(void* host, std::size_t bytes);
  status unpin(void* host);
  place find(address) const;
  bool is_segment(int device, address) const;
  bool is_pin(address) const;
  memory_info room(int device) const;

  void consume_memory(int device, std::size_t bytes);
  void others_leave(int device, std::size_t bytes);
  void link(int from, int to, bool present);
  bool linked(int from, int to) const;
  void corrupt(int from, int to);  // the link
  // Corrupts what these uses carried over a corrupt link: a copy (uses: source, target), or writes of work.
  // Returns: whether anything was changed. Requires: begin() was called, and the bytes are written.
  bool distort(std::span<use const>, bool copy);
  std::uint64_t came_back() const;  // number of reused handles and addresses

  // Empty: every byte is pinned, or mapped and granted to the device that uses it. Else the defect as text.
  std::string judge(use const&) const;
  // Judges all uses. If all are valid, their ranges cannot be unmapped until `end`.
  std::string begin(std::span<use const>);
  void end(std::span<use const>);

  // Blocks of the allocator, kept only if bytes are guarded. Work enqueued after a free cannot reach the
  // block until its address is a block again or no memory.
  void block_taken(address, std::size_t bytes);
  void block_given_back(address);
  std::uint64_t blocks_ended() const;

  // Guarded: protects those pinned bytes from the host (shield.h), until unshield. 0: no shield.
  std::uint64_t shield(touch const&);
  void unshield(std::uint64_t number);
  void confine_work_from(touch const& pages);  // of a pin, without other data
  // While it lives, begun work accesses the pinned bytes it uses. alone: this thread may reach no other
  // pinned bytes, and no other thread of the program runs. anywhere: all pinned bytes are open.
  enum class pins : std::uint8_t { declared, alone, anywhere };
  class at_work {
   public:
    at_work(memory&, std::span<use const>, pins);
    ~at_work();
    at_work(at_work const&) = delete;

   private:
    memory* of_ = nullptr;  // null: not guarded
    std::span<use const> uses_;
    pins how_;
  };
  // pinned bytes in all; confinement costs about 10 ns a launch for each resident page
  static constexpr std::size_t confined_at_most = std::size_t{64} << 20;
  // Opens a pinned page that a shield closed, so that the access can be repeated. Returns: whether it was
  // one. `into`: the shield whose bytes it hit; 0: none.
  bool let_through(os::bad_access const&, std::uint64_t& into);
  // For a system call with these bytes, which meets no fault: the next shield that refuses them, as shield.h says.
  shields::refusal refuses(touch const& call, std::uint64_t after) const;
  void open_to_call(touch const&) const;
  // Around a fork, so that the child can ask the functions above.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

  // A number for an address, the same in every run with the same calls. Traces use it instead of the address.
  std::uint64_t name_of(address) const;
  std::string owner_of(address) const;  // "0x7f… of gpu:0", for fault reports; empty: not this machine's
  // Lists live objects that could be freed. Not listed: segments of lost devices, and pins if all are lost.
  void census(std::vector<std::string>&, std::vector<bool> const& lost) const;

 private:
  struct reservation {
    std::size_t bytes = 0;
    std::uint64_t ordinal = 0;
    bool of_segment = false;
  };
  struct physical {  // invariant: alive while mapped or not released
    int device = -1;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;  // in the device's file, or in its own
    int mappings = 0;
    bool released = false;
    std::uint32_t turn = 0;  // generation: tells apart handles of one slot
    int file = -1;           // its own file, mappable by other processes; -1: none
    bool foreign = false;    // imported: its bytes are not in this machine's banks
  };
  struct mapping {
    std::size_t bytes = 0;
    std::uint32_t handle = 0;   // index in handles_
    std::uint64_t granted = 0;  // a bit per device
    int users = 0;              // operations in progress
    bool segment = false;
  };
  struct pinned {
    std::size_t bytes = 0;
    std::uint64_t ordinal = 0;
    int users = 0;
    int shown = -1;  // its number among the pins that calls look for; -1: it has had no shield
    touch alone{};   // its pages without other data
  };
  static bool show(address at, pinned&);  // to system calls. False: too many are shown
  static void hide(pinned const&);
  status place_handle(address at, std::uint32_t index);
  void drop_mapping(std::map<address, mapping>::iterator);
  void drop_if_dead(std::uint32_t index);
  result<std::uint32_t> new_physical(int device, std::size_t bytes);
  std::uint32_t new_slot();
  void close_shared(physical&);
  physical* lookup(memory_handle);
  memory_handle handle_of(std::uint32_t index) const;
  bool reaches(mapping const&, int device) const;
  std::string judge_locked(use const&) const;
  template <class F>
  void each_part(touch const&, F);
  void end_locked(std::span<use const>);
  bool in_one_reservation(address, std::size_t bytes) const;
  mapping const* mapping_at(address) const;
  bool changes(int by, mapping const*) const;
  address take_addresses(std::size_t bytes, std::size_t alignment);  // 0: none
  void return_addresses(address, std::size_t bytes);

  bool reach(std::map<address, mapping>::value_type const&, bool open) const;  // false: the system refused
  bool open_to(use const&);
  void close_to(use const&);
  void open_bytes(use const&) const;
  void close_bytes(address, std::size_t bytes) const;
  void forget_ended(address, std::size_t bytes);

  shape const shape_;
  mutable base::mutex mutex_{base::quiet};
  template <class Map>
  auto unused(base::unique_lock&, Map&, address);
  base::condition unused_;
  int waiting_to_unmap_ = 0;
  std::vector<std::unique_ptr<backing_memory>> backing_;
  std::vector<std::uint64_t> links_;    // [from]: a bit for each `to`
  std::vector<std::uint64_t> corrupt_;  // [from]: a bit for each `to`
  base::atomic<bool> any_corrupt_{false};
  std::map<address, reservation> reservations_;
  std::map<address, mapping> mappings_;
  std::vector<physical> handles_;
  std::vector<std::uint32_t> free_handles_;
  std::map<address, pinned> pins_;
  shields shields_;  // of pins
  std::uint64_t next_ordinal_ = 1;
  std::vector<std::pair<address, std::size_t>> unreserved_;  // kept for reuse at once
  std::uint64_t came_back_ = 0;
  int open_to_all_ = 0;       // guarded: number of running uses of everything
  std::vector<use> running_;  // guarded: uses in progress
  struct ended {
    std::size_t bytes = 0;
    std::uint64_t when = 0;  // the value of ends_ at its end
  };
  std::map<address, std::size_t> blocks_;
  std::map<address, ended> ended_;  // disjoint from each other and from blocks_
  std::uint64_t ends_ = 0;
};

}  // namespace weir::driver::sim
