// weir/c.h over the C++ interface: handles become streams, exceptions become statuses.
// Threads: any. The last error is each thread's own.
#include "weir/c.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/sync.h"
#include "runtime/base/text.h"
#include "runtime/memory/heap/fast_path.h"
#include "streams/stream/by_handle.h"
#include "streams/stream/context.h"
#include "weir/copy.h"
#include "weir/observe.h"
#include "weir/peer.h"
#include "weir/pool.h"

namespace {

struct refusal {  // the last one of a thread
  std::string text;
  weir_status status = WEIR_OK;
  int driver_code = 0;
};

refusal& last() {
  static weir::base::per_thread<refusal> value;
  return value.get();
}

weir_status note(weir_status s, char const* text, int driver_code = 0) noexcept {
  try {
    refusal& r = last();
    r.status = s;
    r.driver_code = driver_code;
    r.text.clear();  // if there is no room for the text, none is better than another call's
    r.text = text;
  } catch (...) {}
  return s;
}

weir_status note_what_was_thrown() noexcept {
  try {
    throw;
  } catch (weir::out_of_memory const& e) {
    return note(WEIR_OUT_OF_MEMORY, e.what());
  } catch (weir::invalid_use const& e) {
    return note(WEIR_INVALID_USE, e.what());
  } catch (weir::not_supported const& e) {
    return note(WEIR_NOT_SUPPORTED, e.what());
  } catch (weir::device_lost const& e) {
    return note(WEIR_DEVICE_LOST, e.what(), e.code());
  } catch (weir::driver_error const& e) {
    return note(WEIR_DRIVER_ERROR, e.what(), e.code());
  } catch (weir::timed_out const& e) {
    return note(WEIR_TIMED_OUT, e.what());
  } catch (std::bad_alloc const&) {
    return note(WEIR_NO_HOST_MEMORY, "weir-113: the host has no memory left for weir's own records");
  } catch (std::exception const& e) {
    return note(WEIR_UNKNOWN_ERROR, e.what());
  } catch (...) {
    return note(WEIR_UNKNOWN_ERROR, "weir-114: an unknown exception");
  }
}

// What `act` throws as a status and a text. Lines of C are not known.
constexpr weir::source_location from_c;
template <class Act>
weir_status answer(Act act) noexcept {
  try {
    act();
    return WEIR_OK;
  } catch (...) {
    return note_what_was_thrown();
  }
}

void require_out(void const* out, char const* operation) {
  if (!out)
    throw weir::invalid_use(operation, "null for a result", "Pass the address of a variable", from_c,
                            weir::error_id{379});
}

void require_given(void const* argument, char const* which, char const* operation) {
  if (!argument)
    throw weir::invalid_use(operation, weir::base::text("null for ", which), weir::base::text("Pass ", which), from_c,
                            weir::error_id{459});
}

// Members beyond what the caller knows are not written.
template <class Struct>
void give(Struct* out, Struct whole, char const* operation) {
  require_out(out, operation);
  std::size_t const size = out->size;
  if (size < sizeof(size_t) * 2) {
    throw weir::invalid_use(operation, weir::base::text("a struct whose size is ", size),
                            weir::base::text("Set its member size to sizeof, ", sizeof whole, " here"), from_c,
                            weir::error_id{380});
  }
  whole.size = std::min(size, sizeof whole);
  std::memcpy(out, &whole, whole.size);
}

void give_text(char** out, std::string const& text, char const* operation) {
  require_out(out, operation);
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (!copy)
    throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  *out = copy;
}

weir::device device_of(int ordinal) {
  if (ordinal < WEIR_CURRENT_DEVICE) {
    throw weir::invalid_use("device", weir::base::text("the ordinal ", ordinal),
                            "Devices count from 0; WEIR_CURRENT_DEVICE is the thread's own", from_c,
                            weir::error_id{381});
  }
  return ordinal;  // weir::gpu is -1 too
}

weir::stream_ref stream_of(int device, weir_stream s) {
  return weir::borrow_stream(device_of(device), s, from_c);
}

void give_bytes(std::size_t* out, std::size_t bytes) {
  if (out)
    *out = bytes;
}

weir::pool& pool_of(weir_pool* p, char const* operation) {
  require_given(p, "the pool", operation);
  return *reinterpret_cast<weir::pool*>(p);
}

}  // namespace

extern "C" {

int weir_c_version(void) {
  return WEIR_C_VERSION;
}
char const* weir_version(void) {
  return WEIR_VERSION;
}

char const* weir_last_error(void) {
  try {
    return last().text.c_str();
  } catch (...) {
    return "";
  }
}
weir_status weir_last_status(void) {
  try {
    return last().status;
  } catch (...) {
    return WEIR_NO_HOST_MEMORY;
  }
}
int weir_last_driver_code(void) {
  try {
    return last().driver_code;
  } catch (...) {
    return 0;
  }
}
void weir_free_text(char* text) {
  std::free(text);
}

weir_status weir_device_count(int* count) {
  return answer([&] {
    require_out(count, "weir_device_count");
    *count = weir::device_count(from_c);
  });
}
weir_status weir_is_simulated(int* yes) {
  return answer([&] {
    require_out(yes, "weir_is_simulated");
    *yes = weir::runtime::current(from_c).is_simulated();
  });
}
weir_status weir_set_device(int device) {
  return answer([&] { weir::set_device(device_of(device), from_c); });
}
weir_status weir_synchronize(int device) {
  return answer([&] { weir::synchronize(device_of(device), from_c); });
}

weir_status weir_allocate(void** block, size_t bytes, size_t alignment, int device, weir_stream stream) {
  auto const* const known = weir::streams::handle_memo::find(device, stream);
  void* const p = known && block ? weir::memory::fast_allocate(known, bytes, alignment) : nullptr;
  if (p) [[likely]] {
    *block = p;
    return WEIR_OK;
  }
  return answer([&] {
    require_out(block, "weir_allocate");
    *block = weir::detail::allocate_slowly(stream_of(device, stream), bytes, alignment, from_c);
  });
}

weir_status weir_free(void* block) {
  if (weir::memory::fast_deallocate(block)) [[likely]]
    return WEIR_OK;
  return answer([&] { weir::detail::deallocate_slowly(block, from_c); });
}

weir_status weir_free_on_stream(void* block, int device, weir_stream stream) {
  auto const* const known = weir::streams::handle_memo::find(device, stream);
  if (known && weir::memory::fast_deallocate_used(known, block)) [[likely]]
    return WEIR_OK;
  return answer([&] {
    if (block)
      weir::deallocate(stream_of(device, stream), block, from_c);
  });
}

weir_status weir_record_stream(void const* block, int device, weir_stream stream) {
  return answer([&] { weir::record_stream(block, stream_of(device, stream), from_c); });
}

weir_status weir_allocate_pinned(void** block, size_t bytes, size_t alignment) {
  return answer([&] {
    require_out(block, "weir_allocate_pinned");
    weir::buffer made(bytes, {.on = weir::cpu, .kind = weir::memory_kind::pinned, .alignment = alignment}, from_c);
    *block = made.release();
  });
}

weir_status weir_copy(void* to, void const* from, size_t bytes, int device, weir_stream stream) {
  return answer(
      [&] { weir::copy(stream_of(device, stream), to, from, bytes, weir::blocking::yes, from_c).synchronize(); });
}

weir_status weir_find_block(void const* address, weir_block* out) {
  return answer([&] {
    auto const found = weir::find_block(address);
    if (!found) {
      throw weir::invalid_use("weir_find_block", weir::base::address_text(address) + " lies in no live block of weir",
                              "Pass an address of a block that weir allocated and that is still held", from_c,
                              weir::error_id{382});
    }
    bool const host = found->on.is_cpu();
    give(out,
         {.size = 0,
          .base = found->base,
          .bytes = found->bytes,
          .device = host ? -1 : found->on.index(),
          .kind = host ? WEIR_PINNED_MEMORY : WEIR_DEVICE_MEMORY,
          .stream = found->home ? found->home->id() : 0},
         "weir_find_block");
  });
}

weir_status weir_set_memory_limit(int device, size_t bytes) {
  return answer([&] { weir::set_memory_limit(bytes, device_of(device), from_c); });
}
weir_status weir_memory_limit(int device, size_t* bytes) {
  return answer([&] {
    require_out(bytes, "weir_memory_limit");
    *bytes = weir::current_memory_report(device_of(device), from_c).limit;
  });
}
weir_status weir_set_memory_fraction(int device, double of_total) {
  return answer([&] { weir::set_per_process_memory_fraction(of_total, device_of(device), from_c); });
}
weir_status weir_empty_cache(int device, size_t* bytes) {
  return answer([&] { give_bytes(bytes, weir::empty_cache(device_of(device), from_c)); });
}
weir_status weir_empty_pinned_cache(size_t* bytes) {
  return answer([&] { give_bytes(bytes, weir::empty_pinned_cache(from_c)); });
}

weir_status weir_pool_create(weir_pool** out, char const* name, int device, size_t limit) {
  return answer([&] {
    require_out(out, "weir_pool_create");
    require_given(name, "the name", "weir_pool_create");
    *out = reinterpret_cast<weir_pool*>(new weir::pool(name, {.on = device_of(device), .limit = limit}, from_c));
  });
}
weir_status weir_pool_destroy(weir_pool* p) {
  return answer([&] { delete reinterpret_cast<weir::pool*>(p); });
}
weir_status weir_pool_allocate(weir_pool* p, void** block, size_t bytes, size_t alignment, weir_stream stream) {
  return answer([&] {
    require_out(block, "weir_pool_allocate");
    weir::pool const& from = pool_of(p, "weir_pool_allocate");
    *block = from.allocate(stream_of(from.device().index(), stream), bytes, alignment, from_c);
  });
}
weir_status weir_pool_sleep(weir_pool* p, int drop, size_t* bytes) {
  return answer([&] {
    auto const to = drop ? weir::sleep_to::nowhere : weir::sleep_to::host;
    give_bytes(bytes, pool_of(p, "weir_pool_sleep").sleep(to, from_c));
  });
}
weir_status weir_pool_wake(weir_pool* p) {
  return answer([&] { pool_of(p, "weir_pool_wake").wake(from_c); });
}

weir_status weir_enable_peer_access(int owner, int const* readers, size_t count) {
  return answer([&] {
    if (count)
      require_given(readers, "the readers", "weir_enable_peer_access");
    std::vector<weir::device> all;
    for (size_t i = 0; i < count; ++i)
      all.push_back(device_of(readers[i]));
    weir::enable_peer_access(device_of(owner), all, from_c);
  });
}
weir_status weir_enable_peer_access_to_block(void const* block, int reader) {
  return answer([&] { weir::enable_peer_access(block, device_of(reader), from_c); });
}

weir_status weir_register_stream(int device, weir_stream stream) {
  return answer([&] {
    auto& r = weir::streams::current_runtime(from_c);
    (void)weir::streams::register_handle(
        r, weir::streams::resolve(device_of(device), r, "weir_register_stream", from_c), stream, from_c);
  });
}
weir_status weir_unregister_stream(int device, weir_stream stream) {
  return answer([&] {
    auto& r = weir::streams::current_runtime(from_c);
    weir::streams::unregister_handle(r, weir::streams::resolve(device_of(device), r, "weir_unregister_stream", from_c),
                                     stream, from_c);
  });
}

weir_status weir_memory_stats(int device, weir_memory_statistics* out) {
  return answer([&] {
    auto const s = weir::memory_stats(device_of(device), from_c);
    give(out,
         {.size = 0,
          .allocated_bytes = s.allocated_bytes.all.current,
          .allocated_peak = s.allocated_bytes.all.peak,
          .requested_bytes = s.requested_bytes.all.current,
          .reserved_bytes = s.reserved_bytes.all.current,
          .reserved_peak = s.reserved_bytes.all.peak,
          .pending_bytes = s.pending_bytes.all.current,
          .cached_bytes = s.cached_bytes.all.current,
          .blocks = s.allocation.all.current,
          .blocks_ever = s.allocation.all.allocated,
          .out_of_memory_errors = static_cast<std::int64_t>(s.num_ooms),
          .fences = static_cast<std::int64_t>(s.fences),
          .waits_inserted = static_cast<std::int64_t>(s.waits_inserted)},
         "weir_memory_stats");
  });
}
weir_status weir_memory_stats_json(int device, char** text) {
  return answer([&] {
    std::string all;
    for (auto const& [key, value] : weir::memory_stats(device_of(device), from_c).flat())
      all += weir::base::text(all.empty() ? "{" : ", ", weir::base::json_text(key), ": ", value);
    give_text(text, all + "}", "weir_memory_stats_json");
  });
}
weir_status weir_memory_summary(int device, char** text) {
  return answer([&] { give_text(text, weir::memory_summary(device_of(device), from_c), "weir_memory_summary"); });
}
weir_status weir_memory_report(int device, char** text) {
  return answer(
      [&] { give_text(text, weir::current_memory_report(device_of(device), from_c).text(), "weir_memory_report"); });
}
weir_status weir_reset_peak_memory_stats(int device) {
  return answer([&] { weir::reset_peak_memory_stats(device_of(device), from_c); });
}

weir_status weir_record_memory_history(size_t events, int stacks) {
  return answer([&] {
    weir::history_options o;
    if (events)
      o.events = events;
    o.stacks = stacks != 0;
    weir::record_memory_history(o, from_c);
  });
}
weir_status weir_stop_memory_history(void) {
  return answer([] { weir::stop_memory_history(); });
}
weir_status weir_dump_memory_snapshot(char const* path) {
  return answer([&] {
    if (!path)
      throw weir::invalid_use("weir_dump_memory_snapshot", "null for a path", "Name a file", from_c,
                              weir::error_id{383});
    weir::dump_memory_snapshot(path, from_c);
  });
}
}  // extern "C"
