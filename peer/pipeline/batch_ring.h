// The slots of a loop and the threads that move them. A slot holds one batch in pinned and in device memory. The
// stamps of its last uses say when each side may be used again.
// Threads: any, under one lock, which is not held in calls of the program or of the driver. One consumer.
//
// A slot goes free -> filling -> filled -> given -> taken -> free; with results, taken -> returning -> free.
// Invariant: a thread writes pinned memory only behind `copied`, the copy that read it. A copy to the device comes
// behind `used`, the consumer's work. A result is read from pinned memory only behind `returned`.
#pragma once
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "weir/pipeline.h"

namespace weir::peer {

using write_function = std::function<void(std::uint64_t, std::span<std::byte const>)>;

struct batch_slot {
  enum class state : std::uint8_t { free, filling, filled, given, taken, returning } is = state::free;
  std::uint64_t number = 0;  // of its batch, unless free
  std::size_t bytes = 0, result_bytes = 0;
  buffer host{}, device{}, result{};  // result: null if there is none, or if the batch itself comes back
  std::optional<stream_ref> consumer{};
  stamp copied{}, used{}, returned{};

  void* result_data() const noexcept { return result.data() ? result.data() : device.data(); }
};

class batch_ring : public std::enable_shared_from_this<batch_ring> {
 public:
  // write: empty for a loader. Starts no thread. Throws: as loader
  batch_ring(char const* name, pipeline_options, fill_function, write_function, source_location);
  void start();  // Throws: std::system_error; close() then ends the threads that began

  std::optional<batch> next(std::optional<stream_ref>, source_location);
  void give_back(batch_slot&) noexcept;
  // No batch from this one on is given out or written. why: null for the end.
  void end_at(std::uint64_t number, std::exception_ptr why) noexcept;
  void wait_for_writes(source_location);  // Throws: what ended the loop; not_supported (in a forked child)
  void close() noexcept;  // Blocks: until all threads have ended. Idempotent. The runtime's end calls it, too

  bool is_closed() const noexcept { return closed_.load(); }
  bool has_results() const noexcept { return static_cast<bool>(write_); }
  std::uint64_t batches() const noexcept { return taken_; }  // Requires: the consumer
  char const* name() const noexcept { return name_; }

 private:
  static constexpr std::uint64_t no_end = std::numeric_limits<std::uint64_t>::max();

  static void require_arguments(char const* name, pipeline_options const&, bool has_functions, source_location);
  void require_open(std::string const& operation, source_location) const;
  void enter(std::string const& what) const;  // Throws: invalid_use (the runtime has ended), device_lost
  void fill_batches();
  batch_slot* slot_to_fill();                  // null: no more
  std::size_t filled_by_program(batch_slot&);  // Returns: bytes. Throws: batch_failed, invalid_use
  void give_in_order(base::unique_lock&);
  void write_results();
  batch_slot* result_to_write();  // null: no more
  void write_by_program(batch_slot&);
  void make_free(batch_slot&) noexcept;                                // under the lock, as below
  batch_slot* find(std::uint64_t number, batch_slot::state) noexcept;  // null: none
  bool all_are_held() const noexcept;                                  // no slot moves without the consumer
  void end_under_lock_at(std::uint64_t number, std::exception_ptr) noexcept;
  batch_slot* wait_for_next(std::string const& operation, source_location);  // null: the end

  char const* const name_;
  pipeline_options const with_;
  fill_function const fill_;
  write_function const write_;
  source_location const at_;
  runtime& runtime_;
  known_runtime const known_;  // the same: it may end first
  stream in_;
  device const device_;
  stream out_;
  std::vector<batch_slot> slots_;

  base::mutex mutex_;
  base::condition changed_;
  base::atomic<bool> closed_{false};
  // All below under mutex_. Free slots, the one that has been free for longest first.
  std::vector<batch_slot*> free_;
  std::uint64_t to_fill_ = 0, to_give_ = 0, taken_ = 0, to_write_ = 0;  // the next batch of each stage
  std::uint64_t end_ = no_end;                                          // the first batch that is not given out
  std::exception_ptr why_;                                              // null: the end
  bool giving_ = false, in_next_ = false, told_the_end_ = false;
  std::vector<base::thread> threads_;
};

}  // namespace weir::peer
