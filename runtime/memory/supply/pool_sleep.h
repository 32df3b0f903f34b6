// Gives the pages of a pool to the device, and maps others at the same addresses later.
// Threads: any; one pool of a device at a time. Holds a heap's lock to look and to note, never over a driver call.
// Blocks: until all work on the pool is complete, and for copies.
// The last free of a block of a sleeping pool drops the store.
// A store belongs to the sleep that filled it: what wakes a pool reads the bytes of its last sleep.
//
// Invariant: a pool is awake or asleep, whichever call the driver refuses. Awake: its handles are mapped and hold
// its bytes. Asleep: what was saved is in the store, and the rest is mapped still (`part::saved` says which).
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "runtime/memory/supply/handle_return.h"
#include "runtime/memory/supply/peer_access.h"
#include "runtime/memory/supply/reserve_bound.h"

namespace weir::memory {

// Where the bytes of a sleeping pool are. Copies are enqueued, and run in order.
class page_store {
 public:
  virtual ~page_store() = default;
  virtual driver::status reserve(std::size_t bytes) = 0;
  virtual driver::status save(address from, std::size_t bytes, std::size_t offset) = 0;
  virtual driver::status restore(address to, std::size_t bytes, std::size_t offset) = 0;
  virtual driver::status mark(std::size_t number) = 0;  // of what is enqueued so far
  virtual driver::status wait(std::size_t number) = 0;  // Blocks: until all up to that mark is complete
  virtual driver::status wait_all() = 0;                // likewise
  // At most, of a handle that wakes from here. Each grant or unmap stops the copies for 30 to 150 us.
  static constexpr std::size_t usual_pages = 32;
  virtual std::size_t pages_a_handle() const noexcept { return usual_pages; }
  virtual void drop() noexcept {}  // no byte of it is wanted any more. Blocks: until copies are complete
};

class pool_sleep {
 public:
  pool_sleep(device_context& of, heap_table& heaps, physical_memory& memory, reserve_bound& bound, handle_mover& mover,
             handle_return& back, peer_access& peers)
      : of_(of), heaps_(heaps), memory_(memory), bound_(bound), mover_(mover), return_(back), peers_(peers) {}

  ~pool_sleep();
  // As allocator::sleep, likewise
  driver::status sleep(memory_pool&, std::unique_ptr<page_store>&&, std::size_t& given);
  driver::status wake(memory_pool&);  // out_of_memory: nothing was freed for it
  bool is_asleep(memory_pool const&);
  // Its last block was freed: the store is dropped, and pages that stayed mapped go. The pool stays asleep.
  void drop(memory_pool&) noexcept;
  // The pool has ended asleep, and never wakes: heaps of it without live blocks are as others, without memory.
  void end(memory_pool const&) noexcept;
  std::size_t bytes_to_map(memory_pool const&) const;  // by the next wake()

 private:
  struct range {
    address at;
    std::size_t bytes, offset;  // offset: in the store
  };
  struct part {  // a handle, or neighbours that wake as one
    stream_heap* in;
    address at;
    std::size_t bytes;
    std::vector<range> ranges{};
    bool saved = false;  // its bytes are in the store alone
    handle made{};       // while it wakes
  };
  struct sleeper {
    std::vector<part> parts;
    std::size_t bytes = 0;
    std::unique_ptr<page_store> store{};  // null: its bytes are dropped
    bool copying = false;                 // copies of a call that failed may still use what is mapped
  };
  driver::status finish(std::vector<stream_heap*> const&);  // all work on live and freed blocks
  void plan(session const&, sleeper&) const;                // Throws: bad_alloc
  driver::status put_to_rest(stream_heap&, sleeper&);       // Requires: its pool is marked asleep. Throws: bad_alloc
  driver::status give_free_handles(std::vector<stream_heap*> const&, std::size_t& given);
  // Requires: the pool is marked asleep. Unless ok, it is not listed as a sleeper
  driver::status put_all_to_rest(memory_pool&, std::vector<stream_heap*>& heaps);
  static driver::status save(sleeper const&, page_store&);
  struct pages_given {
    driver::status is;
    std::size_t parts = 0;  // that were to be unmapped, before it failed
  };
  pages_given give_pages(sleeper&, page_store*, std::size_t& given);
  bool unmap(part const&, std::size_t& given);
  void return_what_is_free(stream_heap&);  // Requires: not mapping_lock::exclusive. Throws: bad_alloc
  bool copies_ended(page_store*) const;    // if a wait is refused, it asks for the device
  driver::status finish_copies(sleeper&);
  static void forget_free_handles(stream_heap&);
  std::size_t plan_again(std::vector<stream_heap*> const&, sleeper&);
  void join(sleeper&, std::size_t most) const;
  bool charge_for_a_wake(memory_pool&, std::size_t need);  // False: there is no room, though free handles went
  driver::status map(part&, std::size_t& orphaned);
  driver::status map_and_restore(sleeper&, page_store*, std::size_t& orphaned);
  void undo(sleeper&, memory_pool&, std::size_t charged, std::size_t orphaned, bool copies_are_over);
  static void wake_heaps(std::vector<stream_heap*> const&, memory_pool&);

  device_context& of_;
  heap_table& heaps_;
  physical_memory& memory_;
  reserve_bound& bound_;
  handle_mover& mover_;
  handle_return& return_;
  peer_access& peers_;
  base::mutex changing_;                          // held over driver calls
  std::map<memory_pool const*, sleeper> asleep_;  // with changing_
};

}  // namespace weir::memory
