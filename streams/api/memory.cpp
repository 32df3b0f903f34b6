// weir/memory.h over the allocators, and buffers.
// Threads: any.
#include "weir/memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "runtime/base/os.h"
#include "runtime/base/round_up.h"
#include "runtime/core/log.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_allocator.h"  // known here, it is called directly
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/device/shortage.h"
#include "runtime/memory/heap/fast_path.h"
#include "runtime/observe/external_memory.h"
#include "runtime/observe/history.h"
#include "streams/api/adoptions.h"
#include "streams/api/pageable.h"
#include "streams/api/refused_free.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"

namespace weir {
namespace {

memory::device_memory& blocks(runtime::impl& r) {
  return r.part<memory::device_memory>();
}

[[noreturn]] void throw_foreign(char const* operation, void const* p, source_location at) {
  // A live block all the same, but no allocator's.
  if (find_block(p)) {
    throw invalid_use(
        operation,
        base::address_text(p) + " lies in an exportable_buffer, an imported_buffer or a registered_host_memory",
        "Use that object's own call (exportable_buffer::record_stream), or synchronize with the "
        "stream before it ends",
        at, error_id{196});
  }
  throw invalid_use(operation,
                    base::address_text(p) +
                        " is not a live block of weir: host memory, another library's, or of a runtime that has ended",
                    "Pass the address of a block that weir allocated and that is not freed", at, error_id{197});
}

// The block's allocator in the stream's runtime: a stream of another runtime could end before the block.
memory::allocator* device_owner(void const* p, clock::stream_clock const& user) {
  auto* const its = user.owner().part_if_made<memory::device_memory>();
  return its ? its->owner(p) : nullptr;
}
streams::pinned_memory* pinned_owner(void const* p, clock::stream_clock const& user) {
  auto* const its = user.owner().part_if_made<streams::pinned_memory>();
  return its && its->reserves(p) ? its : nullptr;
}
[[noreturn]] void throw_stranger(char const* operation, void const* p, clock::stream_clock const& user,
                                 source_location at) {
  if (!streams::block_of_allocator(p))
    throw_foreign(operation, p, at);
  throw invalid_use(operation,
                    base::address_text(p) + " is a block of another runtime than " + streams::describe(user) +
                        " of runtime " + std::to_string(user.owner().id()),
                    "Use streams of the block's runtime; synchronize two runtimes on the host", at, error_id{198});
}

// History: an allocation is noted after it succeeds, a free before it happens.
void* noted(void* p, std::size_t bytes, clock::stream_clock const& home, source_location const& at) noexcept {
  observe::note(observe::action::alloc, p, bytes, home.id(), home.owner().id(), home.device(), at);
  return p;
}
// The event says all of the block: it may have been allocated before the history began. Returns: whether it is noted
bool note_end(void const* p, source_location const& at) noexcept {
  if (!observe::history::on() || process_was_forked()) [[likely]]
    return false;
  std::optional<memory::block> its;
  std::uint64_t runtime = 0;
  if (memory::allocator const* const a = memory::device_memory::owner_in_process(p)) {
    its = a->find(p);
  } else if (auto const* const host = streams::pinned_memory::owner(p)) {
    its = host->find(p);
    runtime = host->runtime_id();
  }
  // Not the beginning of a live block: the free is refused.
  if (!its || its->base != p)
    return false;
  bool const is_pinned = its->device < 0;
  std::uint64_t const home = its->home ? its->home->id() : 0;
  if (its->home)
    runtime = its->home->owner().id();
  int const place = is_pinned ? observe::pinned_memory_place : its->device;
  observe::note(observe::action::free, p, its->bytes, home, runtime, place, at);
  return true;
}
// A free that throws has not happened.
template <class Free>
void end_noted(void const* p, source_location const& at, Free free) {
  bool const is_noted = note_end(p, at);
  try {
    free();
  } catch (...) {
    if (is_noted)
      observe::history::process().take_back(reinterpret_cast<std::uintptr_t>(p));
    throw;
  }
}

void tell_stays(void const* p, char const* end, std::string_view why) {
  memory::allocator const* const a = memory::device_memory::owner_in_process(p);
  auto const found = a ? a->find(p) : std::nullopt;
  if (!found || !found->home || !logs(found->home->owner(), log_level::warning))
    return;
  log(log_level::warning, {found->device, found->home->id(), found->bytes},
      base::text(end, " did not free the block at ", base::address_text(p), ": ", why,
                 ". The block stays. Free it with weir::deallocate after the capture, or end its owner before"));
}

void* allocate_on(clock::stream_clock& home, size_t bytes, size_t alignment, source_location const& at) {
  void* const p = memory::fast_allocate_noted(&home, bytes, alignment);
  return noted(p ? p : blocks(home.owner()).on(home.device(), at).allocate(home, bytes, alignment, at), bytes, home,
               at);
}
void* allocate_buffer(clock::stream_clock& home, size_t bytes, size_t alignment, source_location const& at) {
  return memory::as_called("buffer", [&] { return allocate_on(home, bytes, alignment, at); });
}

}  // namespace

void* allocate(size_t bytes, size_t alignment, source_location at) {
  return allocate_on(streams::current_clock(streams::current_runtime(at), at), bytes, alignment, at);
}

void* detail::allocate_quickly(stream_ref s, size_t bytes, size_t alignment) noexcept {
  return memory::fast_allocate(stream_access::stream(s), bytes, alignment);
}
bool detail::deallocate_quickly(void* p) noexcept {
  return memory::fast_deallocate(p);
}

void* detail::allocate_slowly(stream_ref s, size_t bytes, size_t alignment, source_location at) {
  return allocate_on(streams::clock_or_throw(s, "allocate", at), bytes, alignment, at);
}
void detail::deallocate_slowly(void* p, source_location at) {
  if (memory::fast_deallocate_marked(nullptr, p))
    return;  // a block with marks, while neither a history nor a checker is told
  end_noted(p, at, [&] {
    if (memory::fast_deallocate_noted(p))
      return;
    if (!p || process_was_forked())
      return;  // nothing, or a child's copy of a block
    if (memory::allocator* const a = memory::device_memory::owner_in_process(p))
      return a->deallocate(p, nullptr, at);
    if (auto* const host = streams::pinned_memory::owner(p))
      return host->deallocate(p, at);
    throw_foreign("deallocate", p, at);
  });
}

void deallocate(stream_ref last_use, void* p, source_location at) {
  if (memory::fast_deallocate_used(detail::stream_access::stream(last_use), p))
    return;
  if (!p || process_was_forked())
    return;
  if (memory::fast_deallocate_marked(detail::stream_access::stream(last_use), p))
    return;
  clock::stream_clock& stream = streams::clock_or_throw(last_use, "deallocate", at);
  clock::named_in_call const named(stream);
  end_noted(p, at, [&] {
    if (memory::allocator* const a = device_owner(p, stream))
      return a->deallocate(p, &stream, at);
    if (auto* const host = pinned_owner(p, stream)) {
      auto const found = host->find(p);
      if (found && found->base == p)
        host->record_use(p, stream);
      return host->deallocate(p, at);
    }
    throw_stranger("deallocate", p, stream, at);
  });
}

void streams::tell_of_refused_free(void const* p, char const* end) noexcept {
  try {
    try {
      throw;
    } catch (invalid_use const&) {  // freed elsewhere
    } catch (device_lost const&) {  // of a lost device nothing is allocated again
    } catch (driver_error const& e) {
      tell_stays(p, end, e.operands());
    } catch (std::bad_alloc const&) {
      tell_stays(p, end, "no host memory");
    }
  } catch (...) {}  // no host memory for the line, or another exception, as while the process ends
}

void record_stream(void const* p, stream_ref user, source_location at) {
  if (memory::fast_record_use(detail::stream_access::stream(user), p))
    return;
  clock::stream_clock& stream = streams::clock_or_throw(user, "record_stream", at);
  if (memory::allocator* const a = device_owner(p, stream)) {
    a->record_use(p, stream, at);
    // This thread's next mark for the stream needs no lock, except of borrowed and captured streams.
    if (stream.alive() != clock::life::borrowed && !stream.seen_captured())
      memory::remember_user(stream);
    return;
  }
  if (auto* const host = pinned_owner(p, stream)) {
    if (host->find(p))
      return host->record_use(p, stream);
    throw invalid_use("record_stream", base::address_text(p) + " lies in no live pinned block",
                      "Record the stream before the block is freed", at, error_id{202});
  }
  throw_stranger("record_stream", p, stream, at);
}

std::optional<block_info> streams::block_of_allocator(void const* p) noexcept {
  std::optional<memory::block> found;
  if (process_was_forked())
    return std::nullopt;
  if (memory::allocator const* const a = memory::device_memory::owner_in_process(p))
    found = a->find(p);
  else if (auto const* const host = streams::pinned_memory::owner(p))
    found = host->find(p);
  if (!found)
    return std::nullopt;
  block_info out{found->device < 0 ? cpu : device(found->device), found->kind, found->base, found->bytes, std::nullopt};
  if (found->home)
    out.home = streams::ref_of(*found->home);
  return out;
}

std::optional<block_info> find_block(void const* p) noexcept {
  if (auto own = streams::block_of_allocator(p))
    return own;
  auto const external = process_was_forked() ? std::nullopt : observe::external_memory::find_in_process(p);
  if (!external || !external->in_use)
    return std::nullopt;
  bool const of_host = external->device < 0;
  return block_info{of_host ? cpu : device(external->device), of_host ? memory_kind::pinned : memory_kind::device,
                    reinterpret_cast<void*>(external->at), external->bytes, std::nullopt};
}

buffer::buffer(size_t bytes, buffer_options o, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  if (o.kind == memory_kind::pinned) {
    data_ = r.part<streams::pinned_memory>().allocate_for("buffer", streams::pinned_memory::current_device, bytes,
                                                          o.alignment, at);
    observe::note(observe::action::alloc, data_, bytes, 0, r.id(), observe::pinned_memory_place, at);
    kind_ = static_cast<size_t>(memory_kind::pinned);
  } else if (o.kind == memory_kind::pageable || o.on.is_cpu()) {
    data_ = streams::allocate_pageable(&r, "buffer", bytes, o.alignment, at);
    kind_ = static_cast<size_t>(memory_kind::pageable);
  } else {
    clock::stream_clock& home = streams::current_clock(r, streams::resolve(o.on, r, "buffer", at), at);
    data_ = allocate_buffer(home, bytes, o.alignment, at);
    kind_ = static_cast<size_t>(memory_kind::device);
  }
  size_ = bytes;
  since_ = streams::adoptions::now();
}

buffer::buffer(stream_ref s, size_t bytes, size_t alignment, source_location at)
    : data_(allocate_buffer(streams::clock_or_throw(s, "buffer", at), bytes, alignment, at)),
      size_(bytes),
      kind_(static_cast<size_t>(memory_kind::device)),
      since_(streams::adoptions::now()) {}

void buffer::reset() noexcept {
  void* const p = data_;
  memory_kind const k = kind();
  std::uint64_t const since = since_;
  forget();
  if (!p)
    return;
  static constexpr source_location its_end{"the end of its buffer", "", 0};  // not a line of the program
  if (k == memory_kind::pageable)
    return std::free(p);
  if (process_was_forked() || !streams::adoptions::owner_ends(p, since))
    return;  // a child's copy of a block, or another buffer owns it
  try {      // if the runtime is gone, it has dealt with the block
    end_noted(p, its_end, [&] {
      if (k == memory_kind::pinned) {
        if (auto* const host = streams::pinned_memory::owner(p))
          host->deallocate(p, its_end);
        return;
      }
      if (memory::fast_deallocate_noted(p))
        return;
      if (memory::allocator* const a = memory::device_memory::owner_in_process(p))
        a->deallocate(p, nullptr, its_end);
    });
  } catch (...) {
    streams::tell_of_refused_free(p, its_end.file_name());
  }
}

void* buffer::host_data(char const* operation, source_location at) const {
  if (kind() == memory_kind::pinned)
    driver::check::host_uses(data_, size(), driver::check::host_use::takes_span, operation, at);
  if (kind() != memory_kind::device || !data_)
    return data_;
  throw invalid_use(operation, std::to_string(size()) + " B of device memory",
                    "Copy it to a pinned or pageable buffer first (weir::copy)", at, error_id{203});
}

block_info buffer::info() const noexcept {
  if (kind() != memory_kind::pageable && data_) {
    if (auto found = find_block(data_))
      return *found;
  }
  return {cpu, kind(), data_, size(), std::nullopt};
}

void buffer::record_stream(stream_ref s, source_location at) const {
  if (data_ && kind() != memory_kind::pageable)
    weir::record_stream(data_, s, at);
}

void buffer::set_stream(stream_ref home, source_location at) {
  memory::allocator* const a =
      data_ && kind() == memory_kind::device ? memory::device_memory::owner_in_process(data_) : nullptr;
  if (!a)
    throw invalid_use("buffer::set_stream", kind() == memory_kind::device ? "an empty buffer" : "host memory",
                      "Only device blocks have a home stream", at, error_id{204});
  clock::stream_clock& stream = streams::clock_or_throw(home, "buffer::set_stream", at);
  if (device_owner(data_, stream) != a)
    throw_stranger("buffer::set_stream", data_, stream, at);
  a->set_stream(data_, stream, at);
}

void* buffer::release() noexcept {
  void* const p = data_;
  if (p && kind() != memory_kind::pageable && !process_was_forked())
    (void)streams::adoptions::owner_ends(p, since_);
  forget();
  return p;
}

buffer buffer::adopt(void* p, source_location at) {
  buffer out;
  if (!p)
    return out;
  auto const found = streams::block_of_allocator(p);
  if (!found || found->base != p)
    throw_foreign("buffer::adopt", p, at);
  out.since_ = streams::adoptions::add(p, at);
  out.data_ = p;
  out.size_ = found->bytes;
  out.kind_ = static_cast<size_t>(found->kind);
  return out;
}

namespace {
buffer pinned_for(char const* operation, size_t bytes, source_location at) {
  return memory::as_called(operation, [&] { return buffer(bytes, {.on = cpu, .kind = memory_kind::pinned}, at); });
}
}  // namespace

buffer pinned(size_t bytes, source_location at) {
  return pinned_for("pinned", bytes, at);
}

buffer pin_memory(std::span<std::byte const> from, source_location at) {
  buffer out = pinned_for("pin_memory", from.size(), at);
  driver::check::host_uses(from.data(), from.size(), driver::check::host_use::reads, "pin_memory", at);
  if (!from.empty())
    std::memcpy(out.data(), from.data(), from.size());
  return out;
}

void reserve_pinned_memory(size_t bytes, source_location at) {
  auto& pool = streams::current_runtime(at).part<streams::pinned_memory>();
  pool.deallocate(pool.allocate_for("reserve_pinned_memory", pool.current_device, bytes, default_alignment, at), at);
}

void* detail::allocate_pinned(std::size_t count, std::size_t size, std::size_t alignment, source_location at) {
  if (size && count > std::numeric_limits<std::size_t>::max() / size)
    throw invalid_use("pinned_allocator::allocate",
                      std::to_string(count) + " elements of " + std::to_string(size) + " B",
                      "the size overflows: ask for fewer", at, error_id{207});
  runtime::impl& r = streams::current_runtime(at);
  void* const p = r.part<streams::pinned_memory>().allocate_for(
      "pinned_allocator::allocate", streams::pinned_memory::current_device, count * size, alignment, at);
  observe::note(observe::action::alloc, p, count * size, 0, r.id(), observe::pinned_memory_place, at);
  return p;
}

void detail::deallocate_pinned(void* block) noexcept {
  if (process_was_forked())
    return;
  if (auto* const pool = streams::pinned_memory::owner(block)) {
    constexpr source_location at = source_location::current();
    try {
      end_noted(block, at, [&] { pool->deallocate(block, at); });
    } catch (...) {
      streams::tell_of_refused_free(block, "pinned_allocator");
    }
  }
}

size_t empty_pinned_cache(source_location at) {
  auto* const pool = streams::current_runtime(at).part_if_made<streams::pinned_memory>();
  return pool ? pool->trim() : 0;
}

size_t empty_cache(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  memory::allocator* const a = blocks(r).if_made(streams::resolve(on, r, "empty_cache", at));
  return a ? a->empty_cache() : 0;
}

headroom memory_headroom(device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  int const d = streams::resolve(on, r, "memory_headroom", at);
  return blocks(r).on(d, at).headroom(streams::current_clock(r, d, at));
}

void set_memory_limit(size_t bytes, device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  blocks(r).on(streams::resolve(on, r, "set_memory_limit", at), at).set_limit(bytes);
}

void set_per_process_memory_fraction(double of_total, device on, source_location at) {
  runtime::impl& r = streams::current_runtime(at);
  int const d = streams::resolve(on, r, "set_per_process_memory_fraction", at);
  if (!(of_total > 0 && of_total <= 1))
    throw invalid_use("set_per_process_memory_fraction", std::to_string(of_total),
                      "Pass a fraction of the device's memory, above 0 and at most 1", at, error_id{205});
  auto const info = r.machine().info(d);
  require(info.is, "set_per_process_memory_fraction", device(d).str(), "", at);
  blocks(r).on(d, at).set_limit(static_cast<size_t>(of_total * static_cast<double>(info.value.total_memory)));
}

struct WEIR_LOCAL callback_registration::state {
  out_of_memory_callback call;
  memory::device_memory* in = nullptr;
  std::uint64_t id = 0;
};

callback_registration::callback_registration(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
callback_registration::callback_registration(callback_registration&&) noexcept = default;
callback_registration::~callback_registration() {
  if (state_ && !process_was_forked() && memory::device_memory::is_alive(state_->in))
    state_->in->remove_callback(state_->id);
}

callback_registration on_out_of_memory(out_of_memory_callback call, int order, source_location at) {
  if (!call)
    throw invalid_use("on_out_of_memory", "an empty function", "Pass a function", at, error_id{206});
  auto s = std::make_unique<callback_registration::state>();
  s->call = std::move(call);
  s->in = &blocks(streams::current_runtime(at));
  s->id = s->in->add_callback(
      [](void* p, memory_report const& r) { return static_cast<callback_registration::state*>(p)->call(r); }, s.get(),
      order);
  return callback_registration(std::move(s));
}

}  // namespace weir
