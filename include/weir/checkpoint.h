// weir/checkpoint.h: checkpoints in files. A writer takes values in stream order and writes them beside the
// training, whole or not at all. A reader checks a file before it gives values. The format is safetensors
// (github.com/huggingface/safetensors, README.md): PyTorch, JAX and NumPy read the files, and weir reads
// theirs.
// Threads: one at a time for each writer; a reader's const members on any.
#pragma once
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/collective.h"
#include "weir/optimizer.h"
#include "weir/tensor.h"

namespace weir {
namespace checkpoints {
class writing;
struct opened_file;
}  // namespace checkpoints
}  // namespace weir

namespace weir WEIR_API {

// A file could not be written, or is damaged. what() names the file, the item and the reason.
class checkpoint_error : public std::runtime_error, public error {
 public:
  // As weir::error
  checkpoint_error(std::string operation, std::string operands, std::string remedy, source_location,
                   error_id = error_id::none);
  char const* what() const noexcept override { return std::runtime_error::what(); }
};

// Texts of the program that a file holds, by name. UTF-8.
using checkpoint_metadata = std::map<std::string, std::string>;

// Values under a name: elements one after another, in the memory of a device or of the host. They are the
// caller's.
struct checkpoint_item {
  // As many elements as the shape has
  checkpoint_item(std::string item_name, device_span of, weir::shape s)
      : name(std::move(item_name)), values(of), extents(s) {}
  // A contiguous tensor. Throws: invalid_use (undefined, with gaps)
  checkpoint_item(std::string item_name, tensor const&, source_location = source_location::current());
  // This rank's part of values that lie on all ranks, one after another in order of rank. All parts are of
  // one size; what is behind the last element of `whole` is left out. For a writer with a communicator.
  static checkpoint_item part(std::string item_name, device_span of, weir::shape whole) {
    checkpoint_item i(std::move(item_name), of, whole);
    i.is_part = true;
    return i;
  }
  // The same with parts of any sizes: `counts` has the elements of each rank, in order of rank, on all ranks alike.
  // They make up `whole`. Requires: rank < counts.size()
  static checkpoint_item part(std::string item_name, device_span of, weir::shape whole, int rank,
                              std::vector<std::int64_t> counts) {
    checkpoint_item i = part(std::move(item_name), of, whole);
    i.first = 0;
    for (int r = 0; r < rank; ++r)
      i.first += counts[static_cast<size_t>(r)];
    i.counts = std::move(counts);
    return i;
  }

  std::string name;                    // UTF-8, and not "__metadata__"
  device_span values;                  // of this rank
  weir::shape extents;                 // of the item in the file
  bool is_part = false;                // made by part()
  std::int64_t first = -1;             // of a part with counts: the first element
  std::vector<std::int64_t> counts{};  // of each rank; empty: all parts are of one size
};

// What a training goes on from: the parameters of the buckets under their names, and the optimizer's state. Of sharded
// buckets that state is parts: a checkpoint_writer with the communicator takes it, and any number of ranks reads it.
// Requires: gather() of sharded buckets comes before the save. The optimizer was made from these buckets, or items_of()
// them. The buckets and the optimizer outlive the use of the items. Throws: invalid_use (not built)
std::vector<checkpoint_item> training_items(gradient_buckets const&, optimizer const&,
                                            source_location = source_location::current());

// Writes one file again and again, on a thread of its own. Each save replaces the file. A process that ends
// at any moment leaves the last checkpoint that was whole.
class checkpoint_writer {
 public:
  // Writes for the thread's current runtime. Requires: no other writer of this process has the path.
  // Throws: invalid_use (no path), std::system_error (no thread)
  explicit checkpoint_writer(std::filesystem::path const&, source_location = source_location::current());
  // One writer for each rank: all call save() in the same order, and rank 0 writes. A save whose values come
  // behind a collective that did not complete is not written. Requires: the communicator stays in its place,
  // and outlives this.
  checkpoint_writer(std::filesystem::path const&, communicator&, source_location = source_location::current());
  // Blocks: until the last save is written. A runtime that ends first does so. The end of a process may lose
  // the last save of a writer of static storage: call finish() before main returns.
  ~checkpoint_writer();
  checkpoint_writer(checkpoint_writer const&) = delete;

  // Copies the items to memory of the writer in the order of the stream, by default the current one of the
  // current device or of the communicator's. Later work of that stream may change them.
  // The file has the metadata, and under "weir.crc32" a checksum of all. A failure while it is written goes
  // to standard error at once, and finish() throws it. save() does not: the old file stays, and the training
  // goes on.
  // Blocks: host, until the save before is written; not for this one, except for items in host memory. If the
  // system has no pinned memory left, the copies go through pageable memory, and may block the host. With parts
  // every rank waits until all have called, and until rank 0's last file is written.
  // Throws: invalid_use (a name twice, or that the format cannot have; counts; a borrowed stream, or one in a
  // capture; the runtime has ended), out_of_memory, device_lost, driver_error; with parts, checkpoint_error
  // (another rank cannot save), timed_out: nothing is written.
  void save(std::vector<checkpoint_item> const&, checkpoint_metadata = {},
            source_location = source_location::current());
  void save(stream_ref, std::vector<checkpoint_item> const&, checkpoint_metadata = {},
            source_location = source_location::current());
  // Blocks: until the last save is written; no, on ranks other than 0. Throws, once: checkpoint_error, if the
  // last save is not written
  void finish(source_location = source_location::current());

 private:
  friend class training_checkpoint;
  std::shared_ptr<checkpoints::writing> writing_;
};

// What a file says of an item.
struct checkpoint_entry {
  std::string name;             // as it was saved
  weir::dtype dtype = float32;  // of its elements
  weir::shape extents;          // of all of it
  std::uint64_t bytes = 0;      // in the file
};

// Reads one file. It believes nothing of it: what does not fit is refused, with the item and the reason.
class checkpoint_reader {
 public:
  // Throws: checkpoint_error (it cannot be read; it is damaged, or no safetensors file; an element type, or
  // more than shape::max_rank extents, that weir does not have)
  explicit checkpoint_reader(std::filesystem::path const&, source_location = source_location::current());
  checkpoint_metadata const& metadata() const noexcept;                // of the program
  std::vector<checkpoint_entry> const& entries() const noexcept;       // in the order of the file
  checkpoint_entry const* find(std::string_view name) const noexcept;  // null: none
  bool has_checksums() const noexcept;                                 // as every file of a checkpoint_writer
  // Reads an item to memory of a device or of the host. With `first`, a range of its elements, as many as
  // fit: any number of ranks reads its parts. For device memory the copies are of the current stream of that
  // device. A whole item is compared with its checksum, if the file has one.
  // Blocks: host, until the values are there. Throws: checkpoint_error (no such item; damaged: the memory
  // then has the damaged values), invalid_use (another type, count or range), and as copy
  void read(std::string_view name, device_span to, source_location = source_location::current()) const;
  void read(std::string_view name, device_span to, std::int64_t first,
            source_location = source_location::current()) const;
  // Reads all items to their memory, of a part its own range. Stops at the first that is refused.
  void read(std::span<checkpoint_item const>, source_location = source_location::current()) const;
  tensor read(std::string_view name, device on = gpu, source_location = source_location::current()) const;
  // Compares all items with their checksums. Throws: checkpoint_error
  void check(source_location = source_location::current()) const;

 private:
  std::shared_ptr<checkpoints::opened_file const> file_;
};

// The checkpoints of one training: its items, the number of its steps, and texts that make it another training if they
// differ. Rank 0 alone has the file.
// Threads: as checkpoint_writer.
class training_checkpoint {
 public:
  // Without a path nothing is saved. The items' memory outlives this. Requires: as checkpoint_writer of that communicator.
  // Blocks: host, until all ranks have called. Throws: what checkpoint_writer and its save() throw of their arguments;
  // invalid_use (a text "step"); checkpoint_error (no file can be written there, which a training would learn at its
  // first save; another rank throws). Also as communicator::exchange
  training_checkpoint(std::filesystem::path const&, communicator&, std::vector<checkpoint_item>,
                      checkpoint_metadata of = {}, source_location = source_location::current());
  // Goes on from the file if there is one, or from another one, which is there unless the path is empty. Every rank gets
  // its items from rank 0, on the current stream of its device. Parts have counts.
  // Returns: the steps of the file; 0: there is none. Blocks: host, until all ranks have called.
  // Throws: checkpoint_error, on all ranks (it cannot be read; it is damaged; it is of another training); invalid_use (a
  // part without counts; checkpoint_error on the other ranks): nothing has changed. Also as communicator::broadcast
  std::int64_t resume(source_location = source_location::current());
  std::int64_t resume(std::filesystem::path const& from, source_location = source_location::current());
  // As checkpoint_writer's, with the number of steps so far.
  void save(std::int64_t steps, source_location = source_location::current());
  void finish(source_location = source_location::current());

 private:
  std::int64_t steps_of(checkpoint_reader const&, std::string const& path, source_location) const;
  void give(checkpoint_item const&, checkpoint_reader const*, source_location);
  std::filesystem::path path_;
  communicator& ranks_;
  std::vector<checkpoint_item> items_;
  checkpoint_metadata of_;
  std::optional<checkpoint_writer> writer_;
};

}  // namespace weir
