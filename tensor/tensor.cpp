// Storages, tensors as views of them, and uses.
// Threads: as weir/tensor.h.
#include <cstdlib>
#include <cstring>

#include "runtime/base/process.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_memory.h"
#include "streams/api/refused_free.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "tensor/state.h"
#include "weir/peer.h"

namespace weir {

// shape -----------------------------------------------------------------------------------------------------
void shape::too_many(size_t n, source_location at) {
  throw invalid_use("shape", std::to_string(n) + " extents", "A shape has at most " + std::to_string(max_rank), at,
                    error_id{355});
}

std::int64_t shape::numel(source_location at) const {
  std::int64_t n = 1;
  bool overflows = false, empty = false;
  for (std::int64_t const e : *this) {
    if (e < 0)
      throw invalid_use("shape", str() + " has a negative extent", "Pass extents of 0 or more", at, error_id{356});
    if (e == 0)
      empty = true;
    else
      overflows |= __builtin_mul_overflow(n, e, &n);
  }
  if (empty)
    return 0;
  if (overflows)
    throw invalid_use("shape", str() + " has more than 2^63 elements", "Use fewer elements", at, error_id{357});
  return n;
}

std::string shape::str() const {
  std::string s = "[";
  for (int i = 0; i < rank_; ++i)
    s += (i ? ", " : "") + std::to_string((*this)[i]);
  return s + "]";
}

// storage ---------------------------------------------------------------------------------------------------
storage::state::~state() {
  if (foreign)
    foreign->give_back();
  if (!data)
    return;
  static constexpr char const* its_end = "the end of its tensor";
  try {
    if (how == held::pageable)
      std::free(data);
    else if (how == held::block && !process_is_ending() && !process_was_forked() && owner.if_alive())
      deallocate(data, {its_end, "", 0});  // by address
  } catch (...) {
    streams::tell_of_refused_free(data, its_end);
  }
}

void* storage::data() const noexcept {
  return state_ ? state_->data : nullptr;
}
size_t storage::nbytes() const noexcept {
  return state_ ? state_->nbytes : 0;
}
weir::device storage::device() const noexcept {
  return state_ ? state_->device : weir::cpu;
}
memory_kind storage::kind() const noexcept {
  return state_ ? state_->kind : memory_kind::pageable;
}
long storage::use_count() const noexcept {
  return state_.use_count();
}
std::uint64_t storage::version() const noexcept {
  return state_ ? state_->version.load(base::memory_order_relaxed) : 0;
}

storage storage::pin_memory(source_location at) const {
  if (!state_)
    throw invalid_use("storage::pin_memory", "no storage", "Use the storage of a defined tensor: t.storage()", at,
                      error_id{358});
  if (kind() == memory_kind::device)
    throw invalid_use("storage::pin_memory", base::text(nbytes(), " B on ", device().str()),
                      "Call cpu() on its tensor first: only host memory can be pinned", at, error_id{359});
  if (kind() == memory_kind::pinned)
    return *this;
  tensor const there = tensors::make_at("storage::pin_memory", &streams::current_runtime(at), -1, memory_kind::pinned,
                                        {static_cast<std::int64_t>(nbytes())}, uint8, at);
  driver::check::host_uses(data(), nbytes(), driver::check::host_use::reads, "storage::pin_memory", at);
  if (nbytes())
    std::memcpy(there.data(), data(), nbytes());
  return there.storage();
}

// tensor ----------------------------------------------------------------------------------------------------
namespace {
tensor::state const nothing{{}, shape{0}, strides{1}, 0, float32};
}

storage::state& tensor_access::block_of(tensor const& t) noexcept {
  return *t.state_->storage.state_;
}

tensor tensor_access::make(std::shared_ptr<storage::state> block, shape extents, strides by, std::int64_t offset,
                           dtype type) {
  tensor t;
  weir::storage s;
  s.state_ = std::move(block);
  t.state_ = std::make_shared<tensor::state const>(tensor::state{std::move(s), extents, by, offset, type});
  return t;
}

tensor tensor_access::with(tensor const& t, shape extents, strides by, std::int64_t offset) {
  return make(of(t).storage.state_, extents, by, offset, t.dtype());
}

tensor tensor::from_buffer(buffer b, weir::shape s, weir::dtype type, source_location at) {
  auto block = std::make_shared<storage::state>();
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(s.numel(at)), size_of(type), &bytes) || bytes > b.size())
    throw invalid_use("tensor::from_buffer",
                      base::text("a buffer of ", b.size(), " B for ", name_of(type), " ", s.str()),
                      "Use no more elements than the buffer holds", at, error_id{360});
  block_info const info = b.info();
  if (b.data() && info.kind == memory_kind::device && !info.home)
    throw invalid_use("tensor::from_buffer", base::text("a buffer of ", b.size(), " B, whose runtime has ended"),
                      "Keep the runtime until its last use", at, error_id{361});
  block->data = b.data();
  block->nbytes = b.size();
  block->kind = info.kind;
  block->device = info.kind == memory_kind::device ? info.on : weir::cpu;
  block->how = storage::state::held::lent;
  block->owner = known_runtime(info.kind == memory_kind::device && info.home ? streams::clock_of(*info.home).owner()
                                                                             : streams::current_runtime(at));
  block->lent_buffer = std::move(b);
  return tensor_access::make(std::move(block), s, tensors::row_major(s), 0, type);
}

tensor tensor::from_storage(weir::storage of, weir::shape s, weir::dtype type, std::int64_t offset,
                            source_location at) {
  if (!tensor_access::shared(of))
    throw invalid_use("tensor::from_storage", "no storage", "Use the storage of a defined tensor: t.storage()", at,
                      error_id{362});
  auto const first = static_cast<size_t>(offset), count = static_cast<size_t>(s.numel(at)),
             room = of.nbytes() / size_of(type);
  if (offset < 0 || first > room || count > room - first)
    throw invalid_use("tensor::from_storage",
                      base::text("a storage of ", of.nbytes(), " B for ", name_of(type), " ", s.str(), " from element ",
                                 offset, " on"),
                      "Use no more elements than the storage holds", at, error_id{363});
  return tensor_access::make(tensor_access::shared(of), s, tensors::row_major(s), offset, type);
}

tensor tensor::from_blob(void* p, weir::shape s, weir::dtype type, weir::device on, source_location at) {
  auto block = std::make_shared<storage::state>();
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(s.numel(at)), size_of(type), &bytes))
    throw invalid_use("tensor::from_blob", std::string(name_of(type)) + " " + s.str() + " has more than 2^64 bytes",
                      "Use fewer elements", at, error_id{364});
  if (!p && bytes)
    throw invalid_use("tensor::from_blob", "a null address for " + s.str(), "Pass the address of the memory", at,
                      error_id{365});
  if (bytes > ~reinterpret_cast<std::uintptr_t>(p))
    throw invalid_use("tensor::from_blob",
                      base::text(bytes, " B at ", base::address_text(p), ", which wrap around the address space"),
                      "The address or the size has overflowed: check what it was made from", at, error_id{458});
  block->data = p;
  block->nbytes = bytes;
  if (on.is_cpu()) {
    block->kind = memory_kind::pageable;
    if (std::optional<block_info> const known = p ? find_block(p) : std::nullopt) {
      if (known->kind == memory_kind::device)
        throw invalid_use("tensor::from_blob", "an address on " + known->on.str() + " as memory of the cpu",
                          "Pass the device that holds it", at, error_id{366});
      block->kind = known->kind;
    }
  } else {
    auto& owner = streams::current_runtime(at);
    block->owner = known_runtime(owner);
    block->device = weir::device(streams::resolve(on, owner, "tensor::from_blob", at));
    block->kind = memory_kind::device;
  }
  return tensor_access::make(std::move(block), s, tensors::row_major(s), 0, type);
}

tensor tensor::peer_view(weir::device reader, source_location at) const {
  tensors::require_defined(*this, "tensor::peer_view", "tensor", at);
  storage::state const& block = tensor_access::block_of(*this);
  if (block.kind == memory_kind::pageable)
    throw invalid_use("tensor::peer_view", tensors::describe(*this) + " in pageable memory",
                      "Pin it, or copy it with to(device)", at, error_id{367});
  if (reader.is_cpu())
    throw invalid_use("tensor::peer_view", tensors::describe(*this) + " as seen from the cpu",
                      "Use cpu(): the host reads no device memory in place", at, error_id{368});
  // Borrowed pinned memory has no owner.
  auto& owner = block.owner.any() ? block.owner.get("tensor::peer_view", tensors::describe(*this), at)
                                  : streams::current_runtime(at);
  weir::device const on(streams::resolve(reader, owner, "tensor::peer_view", at));
  if (on == block.device)
    return *this;
  if (block.data)
    enable_peer_access(block.data, on, at);
  runtime_guard const in(owner.facade());
  if (block.kind == memory_kind::device)
    current_stream(on, at).wait(current_stream(block.device, at), at);
  auto seen = std::make_shared<storage::state>();
  seen->data = block.data, seen->nbytes = block.nbytes;
  seen->device = on, seen->kind = memory_kind::device,
  seen->owner = block.owner.any() ? block.owner : known_runtime(owner);
  seen->of = tensor_access::shared(storage());
  return tensor_access::make(std::move(seen), shape(), strides(), storage_offset(), dtype());
}

weir::shape const& tensor::shape() const noexcept {
  return (state_ ? *state_ : nothing).shape;
}
weir::strides const& tensor::strides() const noexcept {
  return (state_ ? *state_ : nothing).strides;
}
weir::dtype tensor::dtype() const noexcept {
  return (state_ ? *state_ : nothing).type;
}
weir::device tensor::device() const noexcept {
  return storage().device();
}
size_t tensor::nbytes() const noexcept {
  return static_cast<size_t>(numel()) * size_of(dtype());
}
weir::storage const& tensor::storage() const noexcept {
  return (state_ ? *state_ : nothing).storage;
}
std::int64_t tensor::storage_offset() const noexcept {
  return state_ ? state_->offset : 0;
}
bool tensor::is_pinned() const noexcept {
  return storage().kind() == memory_kind::pinned;
}

std::int64_t tensor::numel() const noexcept {  // overflow was checked with the shape
  std::uint64_t n = 1;                         // unsigned: extents before a 0 may overflow
  for (std::int64_t const e : shape())
    n *= static_cast<std::uint64_t>(e);
  return static_cast<std::int64_t>(n);
}

void* tensor::data() const noexcept {
  if (!state_)
    return nullptr;
  return static_cast<char*>(state_->storage.data()) + static_cast<size_t>(state_->offset) * size_of(state_->type);
}

bool tensor::is_contiguous() const noexcept {
  std::int64_t expected = 1;
  if (numel() == 0)
    return true;
  for (int i = dim() - 1; i >= 0; --i) {
    if (shape()[i] != 1 && strides()[i] != expected)
      return false;
    expected *= shape()[i];
  }
  return true;
}

namespace {
int dimension(tensor const& t, int dim, std::string_view operation, source_location at) {
  int const d = dim < 0 ? dim + t.dim() : dim;
  if (d < 0 || d >= t.dim())
    throw invalid_use(std::string(operation), base::text("dimension ", dim, " of ", t.shape().str()),
                      "Count dimensions from 0, or from -1 backwards", at, error_id{369});
  return d;
}
}  // namespace

std::int64_t tensor::size(int dim, source_location at) const {
  return shape()[dimension(*this, dim, "tensor::size", at)];
}

void* tensor::data_as(int code, source_location at) const {
  tensors::require_defined(*this, "tensor::data", "tensor", at);
  bool const sixteen = dtype() == float16 || dtype() == bfloat16;
  if (code == bits16 ? !sixteen : code != static_cast<int>(dtype()))
    throw invalid_use(
        "tensor::data",
        "asked for " +
            (code == bits16 ? std::string("uint16_t") : std::string(name_of(static_cast<weir::dtype>(code)))) + " in " +
            tensors::describe(*this),
        "Use the tensor's own dtype, or convert with to(dtype)", at, error_id{370});
  return data();
}

void* tensor::host_as(int code, source_location at) const {
  void* const p = data_as(code, at);
  if (!device().is_cpu())
    throw invalid_use("tensor::host", tensors::describe(*this),
                      "Copy it with cpu(): the host cannot read device memory", at, error_id{371});
  if (!is_contiguous())
    throw invalid_use("tensor::host", tensors::describe(*this) + " with strides " + strides().str(),
                      "Call contiguous() first: a span has no gaps", at, error_id{372});
  driver::check::host_uses(data(), nbytes(), driver::check::host_use::takes_span, "tensor::host", at);
  return p;
}

// views -----------------------------------------------------------------------------------------------------
tensor tensor::view(weir::shape s, source_location at) const {
  tensors::require_defined(*this, "tensor::view", "tensor", at);
  s = tensors::with_inferred_extent(s, numel(), "tensor::view", at);
  std::optional<weir::strides> const by = tensors::strides_of_view(*this, s);
  if (!by)
    throw invalid_use("tensor::view", shape().str() + " with strides " + strides().str() + " as " + s.str(),
                      "Use reshape(), which copies: no strides describe that view", at, error_id{373});
  return tensor_access::with(*this, s, *by, storage_offset());
}

tensor tensor::reshape(weir::shape s, source_location at) const {
  tensors::require_defined(*this, "tensor::reshape", "tensor", at);
  s = tensors::with_inferred_extent(s, numel(), "tensor::reshape", at);
  if (std::optional<weir::strides> const by = tensors::strides_of_view(*this, s))
    return tensor_access::with(*this, s, *by, storage_offset());
  return clone(at).view(s, at);
}

tensor tensor::detach(source_location at) const {
  tensors::require_defined(*this, "tensor::detach", "tensor", at);
  return *this;
}

tensor tensor::transpose(int a, int b, source_location at) const {
  tensors::require_defined(*this, "tensor::transpose", "tensor", at);
  int const i = dimension(*this, a, "tensor::transpose", at), j = dimension(*this, b, "tensor::transpose", at);
  weir::shape s = shape();
  weir::strides by = strides();
  std::swap(s[i], s[j]);
  std::swap(by[i], by[j]);
  return tensor_access::with(*this, s, by, storage_offset());
}

tensor tensor::t(source_location at) const {
  tensors::require_defined(*this, "tensor::t", "tensor", at);
  if (dim() != 2)
    throw invalid_use("tensor::t", shape().str(), "Use transpose(a, b): t() needs two dimensions", at, error_id{374});
  return transpose(0, 1, at);
}

tensor tensor::slice(int dim, std::int64_t from, std::int64_t to, source_location at) const {
  tensors::require_defined(*this, "tensor::slice", "tensor", at);
  int const d = dimension(*this, dim, "tensor::slice", at);
  std::int64_t const extent = shape()[d];
  std::int64_t const first = from < 0 ? from + extent : from, last = to < 0 ? to + extent : to;
  if (first < 0 || last > extent || first > last)
    throw invalid_use("tensor::slice", base::text("[", from, ", ", to, ") of dimension ", d, " of ", shape().str()),
                      "Pass 0 <= from <= to <= extent", at, error_id{375});
  weir::shape s = shape();
  s[d] = last - first;
  return tensor_access::with(*this, s, strides(),
                             s.numel() ? storage_offset() + first * strides()[d] : storage_offset());
}

tensor tensor::operator[](index which) const {
  auto const& [i, at] = which;
  tensors::require_defined(*this, "tensor[]", "tensor", at);
  std::int64_t const k = dim() && i < 0 ? i + shape()[0] : i;
  if (dim() == 0 || k < 0 || k >= shape()[0])
    throw invalid_use("tensor[]", base::text("index ", i, " of ", shape().str()),
                      "Count indices from 0, or from -1 backwards", at, error_id{376});
  auto const rest = static_cast<size_t>(dim() - 1);
  weir::shape const s(std::span(shape().begin() + 1, rest));
  weir::strides const by(std::span(strides().begin() + 1, rest));
  return tensor_access::with(*this, s, by, s.numel() ? storage_offset() + k * strides()[0] : storage_offset());
}

void tensor::record_stream(stream_ref user, source_location at) const {
  if (!state_ || storage().kind() == memory_kind::pageable || !storage().data())
    return;
  storage::state const& block = tensor_access::block_of(*this);
  if (block.owner.any())
    (void)block.owner.get("tensor::record_stream", tensors::describe(*this), at);
  if (block.foreign) {
    (void)streams::clock_or_throw(user, "tensor::record_stream", at);
    block.foreign->add_user(user);
  }
  // Memory unknown to weir: the caller keeps it alive.
  if (block.how == storage::state::held::borrowed && !streams::block_of_allocator(block.data))
    return;
  weir::record_stream(block.data, user, at);
}

// uses ------------------------------------------------------------------------------------------------------
namespace {
memory_use use_of(tensor const& t, access_mode how) noexcept {
  auto const memory = tensors::memory_of(t);
  return {memory.bytes ? t.data() : nullptr, how, memory.bytes};
}
}  // namespace
memory_use reads(tensor const& t) noexcept {
  return use_of(t, access_mode::read);
}
memory_use writes(tensor const& t) noexcept {
  return use_of(t, access_mode::write);
}
memory_use updates(tensor const& t) noexcept {
  return use_of(t, access_mode::update);
}

}  // namespace weir
