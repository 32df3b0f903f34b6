// The allocator of one device: composes and calls the objects below, which decide.
// Threads: any. One heap's lock at a time, and no driver call under it but NVTX notices.
#pragma once
#include "runtime/memory/device/completion_poller.h"
#include "runtime/memory/device/free_path.h"
#include "runtime/memory/device/graph_pools.h"
#include "runtime/memory/device/idle_return.h"
#include "runtime/memory/device/memory_audit.h"
#include "runtime/memory/device/oom_ladder.h"
#include "runtime/memory/device/page_sharing.h"
#include "runtime/memory/device/reuse.h"
#include "runtime/memory/supply/growth.h"
#include "runtime/memory/supply/pool_sleep.h"

namespace weir::memory {

class device_allocator final : public allocator {
 public:
  device_allocator(weir::runtime::impl&, int device, oom_callbacks&,
                   source_location const& = source_location::current());
  ~device_allocator() override;

  int device() const noexcept override { return of_.device; }
  void* allocate(clock::stream_clock& home, std::size_t bytes, std::size_t alignment, source_location at) override {
    return allocate_from(heaps_.pool_here(), from::pools_in_force, home, bytes, alignment, at);
  }
  void* allocate_apart(clock::stream_clock& home, std::size_t bytes, source_location at) override {
    return allocate_from(heaps_.rest(), from::one_pool, home, bytes, 0, at);
  }
  void deallocate(void* p, clock::stream_clock* last_use, source_location at) override {
    memory_pool* const drained = free_.deallocate(p, last_use, at);
    if (drained) [[unlikely]]
      end_sleep(*drained);
  }
  void record_use(void const*, clock::stream_clock&, source_location) override;
  void set_stream(void*, clock::stream_clock&, source_location) override;
  std::optional<block> find(void const*) const noexcept override;
  range use(void const*, clock::stream_clock&) noexcept override;
  driver::status grant(void const* p, int reader) override { return peers_.grant(p, reader); }
  bool granted(void const* p, int reader) const noexcept override { return peers_.granted(p, reader); }
  driver::status open_to(clock::stream_clock* home, std::uint64_t readers) override {
    return peers_.open_to(home, readers);
  }
  void forget_own_readers(clock::stream_clock& home) noexcept override { heaps_.remove_own_readers(home); }
  std::uint64_t readers(clock::stream_clock& home) override { return heaps_.of(home).readers(); }
  void fence_what_came_free(clock::stream_clock& home) noexcept override { free_.fence_what_came_free(home); }
  std::size_t empty_cache() override;
  void return_idle() noexcept override { (void)idle_.look(); }
  void set_limit(std::size_t bytes) override;
  memory_pool& make_pool(std::string name, std::size_t limit) override {
    return heaps_.add_pool(memory_pool::kind::ordinary, std::move(name), limit);
  }
  memory_pool& make_registered_pool(std::string name, std::size_t limit, clock::stream_clock& home,
                                    source_location) override;
  whole_pool whole(memory_pool const&) const override;
  void end_pool(memory_pool&) noexcept override;
  void let_go(memory_pool&) noexcept override;
  void end(memory_pool&) noexcept;        // which nothing holds
  void end_sleep(memory_pool&) noexcept;  // the last block of a sleeping pool was freed
  driver::status sleep(memory_pool&, std::unique_ptr<page_store>&&, std::size_t& given) override;
  driver::status wake(memory_pool&, source_location) override;
  bool is_asleep(memory_pool const& p) override { return sleep_.is_asleep(p); }
  std::size_t free_pages() override { return now().look_for_room(nullptr, heaps_.rest()).anywhere; }
  pool_memory_use use_of(memory_pool const& p) const override { return audit_.use_of(p); }
  std::vector<pool_memory_use> by_pool() const override { return now().by_pool(); }
  pool_memory_use use_of_graphs(graph_hold const&) override;
  memory_statistics statistics() const override {
    memory_statistics out = now().statistics();
    out.bound_width = bound_.width();
    return out;
  }
  memory_report report() const override { return now().report(); }
  memory_report why_no_room(std::size_t requested, std::size_t rounded, driver::status last) override;
  void count_ran_out() noexcept override { of_.counts.ran_out(); }
  std::vector<mapped_range> layout() const override { return now().layout(); }
  std::vector<stream_memory_use> by_stream() const override { return now().by_stream(); }
  weir::headroom headroom(clock::stream_clock const& home) const override {
    return now().headroom(home, heaps_.pool_here());
  }
  void reset_peak() override { audit_.reset_peak(); }
  void reset_accumulated() override { audit_.reset_accumulated(); }
  std::vector<std::string> validate() const override { return now().validate(); }

  // For tests.
  bool lost() const noexcept { return of_.lost(); }
  address_space const& addresses() const noexcept { return of_.space; }
  heap_table const& heaps() const noexcept { return heaps_; }
  std::size_t unreclaimable() const { return audit_.unreclaimable(); }
  std::size_t reserved() const {
    return of_.counts.reserved();
  }  // bytes, including those charged for handles to be made
  void let_idle_go_after(std::int64_t ns) noexcept { idle_.set_after(ns); }
  std::uint64_t steps() const noexcept { return of_.searched.load(base::memory_order_relaxed); }

 private:
  enum class from : std::uint8_t { pools_in_force, one_pool };
  void* allocate_from(memory_pool&, from, clock::stream_clock&, std::size_t bytes, std::size_t alignment,
                      source_location);
  void* allocate_in(memory_pool&, from, alloc_request const&);
  void wake_or_refuse(memory_pool&, alloc_request const&);  // Throws: invalid_use, nothing woke the pool
  void make_way_for_a_graph();                              // before a heap is made in its pool. Throws: bad_alloc
  struct attempt {
    void* block = nullptr;  // null: nothing that is mapped serves,
    bool another = false;   // or the heap is not the stream's in that pool any more
    heap_stay stays{};      // of a miss: the heap stays the stream's meanwhile
  };
  attempt take_mapped(stream_heap& mine, memory_pool const&, alloc_request const&, thread_cache*);
  void* allocate_cold(stream_heap& mine, alloc_request const&);  // after a miss. Null: its pool fell asleep
  void return_at_the_end(stream_heap&);
  memory_report why_no_wake(memory_pool const&) const;
  void free_what_is_complete();
  void* allocate_shared(memory_pool&, alloc_request const&);  // null: the stream has pages of its own
  // The stream's lane, if it is captured; null: it is not. One driver call, two at the first look inside a capture.
  // Throws: as allocate
  clock::stream_clock* lane_of(clock::stream_clock& home, alloc_request const&) const;
  void* allocate_captured(clock::stream_clock& lane, alloc_request const&);
  static constexpr std::size_t most_left_idle = 16;               // heaps
  void empty_what_is_left(std::size_t spared, std::size_t page);  // their free pages go. Throws: bad_alloc
  range use_in(region&, address, clock::stream_clock&) noexcept;
  memory_audit const& now() const {  // without what graphs that are gone held
    graphs_.end_those_over();
    return audit_;
  }

  device_context of_;
  heap_table heaps_{of_};
  physical_memory memory_{of_};
  reserve_bound bound_{of_, heaps_};
  handle_mover mover_{of_};
  handle_return return_{of_, heaps_, memory_, mover_};
  peer_access peers_{of_, heaps_, memory_};
  pool_sleep sleep_{of_, heaps_, memory_, bound_, mover_, return_, peers_};
  mutable graph_pools graphs_{of_, heaps_, memory_};
  growth growth_{of_, heaps_, memory_, bound_, mover_, return_, peers_};
  completion_poller completion_{of_, heaps_};
  idle_return idle_{of_, heaps_, completion_, return_};
  block_reuse reuse_{of_, heaps_, completion_, bound_};
  page_sharing sharing_{of_, heaps_, completion_, growth_};
  memory_audit audit_{of_, heaps_, mover_, peers_, memory_};
  oom_ladder ladder_;
  free_path free_{of_, heaps_, graphs_};
  oom_callbacks& callbacks_;
};

}  // namespace weir::memory
