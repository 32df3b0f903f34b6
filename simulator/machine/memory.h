// The simulated machine's memory: physical pages in a nameless file a device, addresses they are mapped at,
// and host pages that are pinned.
// Threads: any; one lock of its own, taken inside no other's holder but the machine's.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/driver/driver.h"
#include "simulator/machine/backing_memory.h"
#include "simulator/machine/shield.h"

namespace weir::driver::sim {

inline constexpr status fine{}, invalid{code::invalid};  // what most calls answer

// A range that something on `device` reads or writes.
struct use {
  touch what;
  int device = -1;
  bool everything = false;  // work that reaches more than it can declare: a part of a collective
  std::uint64_t ends = 0;   // of blocks, before the work was given: those blocks it may not use
};

class memory {
 public:
  struct shape {
    int devices = 0;
    std::size_t bytes = 0;        // a device
    std::size_t granularity = 0;  // bytes
    fresh_bytes pages = fresh_bytes::zero;
    std::uint64_t seed = 0;       // of arbitrary bytes
    bool handles_come_back = false;  // and addresses: at once, not told apart from those that were released
    bool guarded = false;            // pages are out of reach but between begin and end of a use; under ASan, bytes
  };
  explicit memory(shape const&);
  ~memory();

  // The seam's calls of the same names.
  result<address> reserve(std::size_t bytes, std::size_t alignment);
  status unreserve(address, std::size_t bytes);
  result<memory_handle> create(int device, std::size_t bytes);
  status release(memory_handle);
  status map(address, std::size_t bytes, memory_handle);
  status unmap(address, std::size_t bytes);  // Blocks: until no running work uses the range
  status grant(address, std::size_t bytes, std::uint64_t devices);  // a bit each: all of them, or none
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
  // What these uses carried over a corrupt link is changed:
  // of a copy (its source, its target) and of what work wrote.
  // Returns: whether anything was. Requires: they were begun and the bytes are written.
  bool distort(std::span<use const>, bool copy);
  std::uint64_t came_back() const;  // handles and addresses

  // May this be used now? Every byte mapped and granted to the device that uses it, or pinned.
  // Empty: yes; else what is wrong.
  std::string judge(use const&) const;
  // As judge, of all; and if all is well the ranges cannot be unmapped until `end`.
  std::string begin(std::span<use const>);
  void end(std::span<use const>);

  // Blocks, as their allocator says, kept only where bytes are guarded. One that was given back is out of
  // reach of all work that is given later, until its place is a block again or no memory;
  // work that was given before goes on with it.
  void block_taken(address, std::size_t bytes);
  void block_given_back(address);
  std::uint64_t blocks_ended() const;

  // Guarded: the host is kept away from those pinned bytes (shield.h), until unshield. 0: it is not.
  std::uint64_t shield(touch const&);
  void unshield(std::uint64_t number);
  void confine_work_from(touch const& pages);  // of a pin, which hold nothing else
  // While one lives, work that was begun is at the pinned bytes it uses. alone: this thread is to use no
  // other pinned bytes, and no other thread of the program runs; anywhere: at any.
  enum class pins : std::uint8_t { declared, alone, anywhere };
  class at_work {
   public:
    at_work(memory&, std::span<use const>, pins);
    ~at_work();
    at_work(at_work const&) = delete;

   private:
    memory* of_ = nullptr;  // null: nothing to open
    std::span<use const> uses_;
    pins how_;
  };
  // pinned bytes in all: each resident page costs some 10 ns a launch
  static constexpr std::size_t confined_at_most = std::size_t{64} << 20;
  // Was that a pinned page which a shield had closed? It is open now, and the access may be made again.
  // `into`: the shield whose bytes it met; 0: none.
  bool let_through(os::bad_access const&, std::uint64_t& into);

  // A number for an address that is the same in every run of the same calls:
  // the address itself must not enter a trace.
  std::uint64_t name_of(address) const;
  std::string owner_of(address) const;  // "0x7f… of gpu:0", for a fault there; empty: no device memory of this machine
  // What is alive and can be given back, by name:
  // a lost device's segments cannot, nor can pins when all devices are lost.
  void census(std::vector<std::string>&, std::vector<bool> const& lost) const;

 private:
  struct reservation {
    std::size_t bytes = 0;
    std::uint64_t ordinal = 0;
    bool of_segment = false;
  };
  struct physical {  // invariant: alive while mappings > 0 or not released
    int device = -1;
    std::size_t bytes = 0;
    std::uint64_t offset = 0;  // in the device's file, or its own
    int mappings = 0;
    bool released = false;
    std::uint32_t turn = 0;    // tells a handle from the one before it in this slot
    int file = -1;             // its own, that other processes may map; -1: none
    bool foreign = false;      // made elsewhere: its bytes are no bytes of this machine's banks
  };
  struct mapping {
    std::size_t bytes = 0;
    std::uint32_t handle = 0;   // index in handles_
    std::uint64_t granted = 0;  // a bit a device
    int users = 0;              // running work
    bool segment = false;
  };
  struct pinned {
    std::size_t bytes = 0;
    std::uint64_t ordinal = 0;
    int users = 0;
    bool shielded = false;  // some page of it was, at some time
    touch alone{};          // pages that hold nothing but the program's pinned memory
  };
  status place_handle(address at, std::uint32_t index);
  void drop_mapping(std::map<address, mapping>::iterator);
  void drop_if_dead(std::uint32_t index);
  result<std::uint32_t> new_physical(int device, std::size_t bytes);
  std::uint32_t new_slot();
  void make_room();
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
  std::vector<std::unique_ptr<bank>> banks_;
  std::vector<std::uint64_t> links_;    // [from]: a bit for each `to`
  std::vector<std::uint64_t> corrupt_;  // [from]: a bit for each `to`
  base::atomic<bool> any_corrupt_{false};
  std::map<address, reservation> reservations_;
  std::map<address, mapping> mappings_;
  std::vector<physical> handles_;
  std::vector<std::uint32_t> free_handles_;
  std::map<address, pinned> pins_;
  shields shields_;                    // of pins
  std::uint64_t next_ordinal_ = 1;
  std::vector<std::pair<address, std::size_t>> unreserved_;  // kept from the system, to come back at once
  std::uint64_t came_back_ = 0;
  int open_to_all_ = 0;                // guarded: running uses of everything
  std::vector<use> running_;           // guarded: what is within reach
  struct ended {
    std::size_t bytes = 0;
    std::uint64_t when = 0;            // it was the so-manieth
  };
  std::map<address, std::size_t> blocks_;
  std::map<address, ended> ended_;     // disjoint, and no block's
  std::uint64_t ends_ = 0;
};

}  // namespace weir::driver::sim
