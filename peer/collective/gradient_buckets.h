// State of gradient_buckets: one block holds [parameters | gradients], both laid out in reverse order of add(),
// so that gradients that a backward pass finishes together form one range, the bucket. A bucket of gradients in
// the program's memory has a range for each, or one for neighbours. Behind them lies what is reduced instead, if
// that is of another type, and last the norm.
// Threads: as the communicator.
//
// Invariant: every rank reduces the buckets in order of their ranges, each once a step.
#pragma once
#include <optional>

#include "peer/collective/group.h"
#include "runtime/driver/race_control.h"

namespace weir {
namespace peer {

inline constexpr std::size_t bucket_gap = 512;  // alignment of each parameter and gradient, bytes

inline std::size_t bytes_of(device_span s) noexcept {
  return static_cast<std::size_t>(s.count) * size_of(s.dtype);
}
inline std::byte* end_of(device_span s) noexcept {
  return static_cast<std::byte*>(s.data) + bytes_of(s);
}

// Of a range that is cut into equal shares, one for each rank
inline device_span share_of(device_span whole, int rank, int ranks) noexcept {
  std::int64_t const count = whole.count / ranks;
  return {static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(count * rank) * size_of(whole.dtype), count,
          whole.dtype};
}

}  // namespace peer

struct WEIR_LOCAL gradient_buckets::state {
  struct one {
    std::string name;
    device_span parameter, gradient;
    bool of_program = false;  // it owns the memory
    std::size_t offset = 0;   // otherwise: bytes, from the start of the parameters and of the gradients
    int bucket = 0;
    bool was_ready = false;
    device_span reduced{};
    std::vector<std::int64_t> extents{};  // of the tensors; empty and has_shape: one element
    bool has_shape = false;
  };
  struct bucket {
    dtype type;
    bool of_program;
    std::size_t bytes = 0;
    int members = 0, missing = 0;
    std::vector<device_span> ranges{};    // the gradients: in the order of add(), neighbours as one
    device_span sent{};                   // what is reduced instead, in the block; null: they are
    std::size_t prepared = 0;             // ranges that before_reduction has seen in this step
    std::vector<clock::stamp> written{};  // at most one a stream
    // Sharded, of the gather that optimizer::step(stream, buckets) began last:
    std::optional<std::uint64_t> begun_in{};  // its capture; 0: none
    bool gathers = false;                     // neither gather() nor finish() has come behind it
    std::optional<event> gathered{};          // behind it; a stamp's wait might cover other buckets' gathers, too
    bool is_noted = false;                    // the event is of that gather

    bool gathers_in(std::uint64_t capture) const noexcept { return gathers && begun_in == capture; }
  };

  std::shared_ptr<peer::group> all;
  int rank;
  bucket_options options;
  std::vector<one> ones{};
  std::vector<bucket> buckets{};
  std::size_t half = 0;                 // bytes of the block's parameters, gaps included
  std::byte* block = nullptr;           // null before build()
  memory::memory_pool* pool = nullptr;  // that the block lies in, if registered
  std::optional<stream> side{};         // carries the reductions
  std::size_t started = 0;              // reductions started in this step
  device_span norm{};                   // of clip(), and behind it a factor of float64
  std::size_t clipped = 0;              // ranges that a refused clip() has scaled in this step
  bool prepares = false;                // before_reduction runs
  peer::scope_of_exceptions scope{};

  int device() const { return all->device(rank); }
  int shares() const { return options.sharded ? all->size() : 1; }  // parts of a bucket
  memory::allocator& memory(source_location) const;
  std::string named(int i) const {
    return base::text("\"", ones[static_cast<std::size_t>(i)].name, "\" (gradient ", i, ")");
  }

  ~state();

  void* allocate(clock::stream_clock& home, std::size_t bytes, source_location);
  void require_new(std::string const& name, std::int64_t count, dtype, source_location) const;
  void use_memory_of_program(source_location);  // Throws: invalid_use unless the rank's device has it, each byte once
  void lay_out();
  // Returns: bytes of the block. own: the block; null: only those are asked for
  std::size_t set_sent(std::byte* own);
  void set_ranges(std::byte* own, runtime::impl& owner);  // own: the block
  device_span reduced_of(one const&) const;
  gradient_buckets::part part_of(one const&, int of_rank) const;
  // Sharded: the parameters of a bucket lie as its gradients do, half the block before them.
  device_span parameters_of(bucket const& b) const noexcept {
    device_span const range = b.ranges[0];
    return {static_cast<std::byte*>(range.data) - half, range.count, range.dtype};
  }
  peer::collective_request gather_of(bucket const&) const;
  // capture: of the reader
  void wait_for_gather(bucket const&, stream_ref reader, std::uint64_t capture, std::string_view operation,
                       source_location);
  // Throws: invalid_use in a capture, if the bucket's gather began outside of it and none has waited
  void require_same_capture(bucket const&, std::uint64_t capture, std::string_view operation, source_location) const;
  clock::stream_clock& stream_of_rank(stream_ref, std::string_view operation, source_location) const;
  // What the ranks do with a range of a bucket: a sum for all, or for each of its own part
  peer::collective_request reduction_of(device_span range) const;
  void prepare(bucket&, source_location);
  void require_unprepared(std::string const& operation, source_location) const;
  std::vector<device_span> ranges_to_clip(source_location) const;          // Throws: as clip()
  void tell(driver::check::control& checker, runtime::impl& owner) const;  // the gradients of each block
  void start_full_buckets(source_location);
  one& find(int i, std::string_view operation, source_location);
};

}  // namespace weir
