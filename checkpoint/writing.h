// One writer's memory, thread and file. A save copies its items to a buffer in stream order. The thread waits
// for the copies, then writes the file.
// Threads: one that saves, beside its own, under one lock. It is not held in calls of the driver or the
// system.
//
// Invariant: the buffer is either free or of one save. The thread reads it behind `arrived`, an event
// after the copies. The next save writes it once the thread has let it go.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/header.h"
#include "runtime/base/os_file.h"
#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "weir/checkpoint.h"

namespace weir::checkpoints {

// Where the items of a save lie, in memory as in the file.
struct layout {
  header says;
  std::vector<std::uint64_t> begins;  // of each item, in the order of the call
  std::uint64_t bytes = 0;
};

// ranks: null for a writer of its own. Throws: invalid_use (as checkpoint_writer::save)
void require_items(std::string const& operation, std::vector<checkpoint_item> const&, checkpoint_metadata const&,
                   communicator const* ranks, source_location);

class writing : public std::enable_shared_from_this<writing> {
 public:
  // ranks: null for a writer of its own. Starts no thread. Throws: as checkpoint_writer
  writing(std::filesystem::path const&, communicator* ranks, source_location);
  // Whether a file can be written there: on rank 0 it begins one, and takes it away. Throws: checkpoint_error
  void require_place() const;
  void start();  // Throws: std::system_error

  void save(std::optional<stream_ref>, std::vector<checkpoint_item> const&, checkpoint_metadata, source_location);
  void finish(source_location);
  // Blocks: until the last save is written and the thread has ended. Idempotent. The runtime's end calls it,
  // too
  void close() noexcept;

 private:
  bool writes() const noexcept { return !ranks_ || ranks_->rank() == 0; }
  blocking how() const noexcept { return room_.kind() == memory_kind::pinned ? blocking::no : blocking::yes; }
  void enter(std::string const& operation, source_location) const;  // Throws: not_supported, invalid_use
  stream_ref stream_to_use(std::optional<stream_ref>, source_location) const;
  void require_open(source_location) const;  // under the lock
  void wait_for_last_save(source_location);
  // What a save needs beside its items. Only rank 0 has it.
  struct prepared {
    layout is;
    buffer gathered;  // the parts of one item
    std::optional<event> arrived{};
  };
  prepared prepare(stream_ref, std::vector<checkpoint_item> const&, checkpoint_metadata, source_location);
  // On all ranks, or on none. Blocks: with parts, until all ranks have called
  prepared prepare_all(stream_ref, std::vector<checkpoint_item> const&, checkpoint_metadata, source_location);
  void make_room(std::size_t bytes, source_location);
  void copy_items(stream_ref, std::vector<checkpoint_item> const&, layout const&, source_location) const;
  void gather_counts(checkpoint_item const&, buffer const& to, source_location) const;
  void gather_parts(stream_ref, std::vector<checkpoint_item> const&, prepared const&, source_location) const;

  void write_snapshots();
  bool wait_for_snapshot();  // false: the end
  void write_snapshot();     // Throws: checkpoint_error
  std::span<std::byte const> arrived_bytes() const;
  void require_written(os::file_refusal const&) const;

  std::string const path_;
  communicator* const ranks_;
  source_location const at_;
  runtime& runtime_;
  known_runtime const known_;           // the same: it may end first
  std::exception_ptr const no_memory_;  // made while there is host memory

  buffer room_;  // of the thread that saves; while next_ is set, of the other one
  base::mutex mutex_;
  base::condition changed_;
  // All below under mutex_.
  struct snapshot {
    layout is;
    event arrived;  // of the copies; a stamp's wait might cover later work, too
  };
  std::optional<snapshot> next_;  // set until it is written, or has failed
  std::exception_ptr failure_;    // of the last save
  bool ends_ = false;
  base::thread thread_;
};

}  // namespace weir::checkpoints
