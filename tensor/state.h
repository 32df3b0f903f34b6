// The state behind a storage and a tensor, for the files in tensor/.
// Threads: a storage's count and version are atomic; states of tensors never change.
#pragma once
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/byte_range.h"
#include "runtime/base/sync.h"
#include "runtime/core/parts.h"
#include "tensor/ops.h"
#include "weir/tensor.h"

namespace weir {

// Memory that another library owns. Threads: any.
class foreign_memory {
 public:
  explicit foreign_memory(blob_owner owner) : owner_(std::in_place, std::move(owner)) {}
  void add_user(stream_ref);
  void give_back() noexcept;  // at the end of the last tensor

 private:
  base::guarded<blob_owner> owner_;
};

struct WEIR_LOCAL storage::state {
  // Device or pinned block; operator new; owned by `lent_buffer`; owned by the caller.
  enum class held : std::uint8_t { block, pageable, lent, borrowed };
  void* data = nullptr;
  size_t nbytes = 0;
  weir::device device = weir::cpu;  // never the unindexed gpu
  memory_kind kind = memory_kind::pageable;
  held how = held::borrowed;
  known_runtime owner;  // none for pageable memory
  buffer lent_buffer;
  std::unique_ptr<foreign_memory> foreign;  // of some borrowed memory
  std::shared_ptr<state> of;                // a peer view: the state of the memory's owner
  base::atomic<std::uint64_t> version{0};
  state() = default;
  state(state const&) = delete;
  ~state();
};

struct WEIR_LOCAL tensor::state {
  weir::storage storage;
  weir::shape shape;
  weir::strides strides;
  std::int64_t offset = 0;  // elements
  weir::dtype type = float32;
};

struct WEIR_LOCAL tensor_access {  // access for functions of tensor/ that are no members
  static tensor::state const& of(tensor const& t) noexcept { return *t.state_; }
  static storage::state& block_of(tensor const& t) noexcept;
  static std::shared_ptr<storage::state> const& shared(weir::storage const& s) noexcept { return s.state_; }
  static tensor make(std::shared_ptr<storage::state>, weir::shape, weir::strides, std::int64_t offset, dtype);
  // Another view of the same storage.
  static tensor with(tensor const&, weir::shape, weir::strides, std::int64_t offset);
};

namespace tensors {

// Called first by every operation. Throws: invalid_use (undefined, its runtime has ended). `name`: "source".
void require_defined(tensor const&, std::string_view operation, char const* name, source_location);
void require_same_shape(tensor const&, tensor const&, std::string_view operation, char const* first, char const* second,
                        source_location);
void require_same_device(tensor const&, tensor const&, std::string_view operation, char const* first,
                         char const* second, source_location);
void require_float32(tensor const&, std::string_view operation, char const* name, source_location);
base::byte_range memory_of(tensor const&) noexcept;  // first to last byte of its elements
// Also true if the search takes too long.
bool may_share_elements(tensor const& a, tensor const& b);
// Requires: same shape. Throws: invalid_use unless the operands are the same elements or share none.
void require_no_partial_overlap(tensor const& written, tensor const& read, std::string_view operation, source_location);
std::string describe(tensor const&);  // "float32 [2, 3] on gpu:1"

strides row_major(shape const&) noexcept;
// Strides for a view of `t` with this shape, if any.
std::optional<strides> strides_of_view(tensor const& t, shape const&) noexcept;
shape with_inferred_extent(shape, std::int64_t numel, std::string_view operation, source_location);  // fills in -1

// The current stream of the tensor's device, or the calling thread.
ops::place place_of(tensor const&, source_location);
ops::operand operand_of(tensor const&) noexcept;
// Declares uses by the calling thread to the race checker.
void on_host(memory_uses, char const* operation, source_location) noexcept;
void changed(tensor const&) noexcept;  // increments the storage's version
// Makes a contiguous tensor. owner: of device or pinned memory; unused for pageable memory. device -1: cpu.
tensor make_at(std::string_view operation, runtime::impl* owner, int device, memory_kind, shape const&, dtype,
               source_location);
// In the same kind of memory on the same device.
tensor empty_at(std::string_view operation, tensor const& like, shape const&, dtype, source_location);
int device_of(tensor const&) noexcept;  // -1: cpu

}  // namespace tensors
}  // namespace weir
