// Every call of the driver interface by name, with its contract: the codes that a correct caller may get
// besides ok and not_ready. The failure-injection test uses this list, and fails if a pair was not injected.
// Threads: values.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/driver/driver.h"

namespace weir::driver {

class contract {
 public:
  template <class... Codes>
  static constexpr contract of(Codes... all) noexcept {
    contract c;
    c.bits_ = static_cast<std::uint16_t>((0u | ... | (1u << static_cast<unsigned>(all))));
    return c;
  }
  constexpr contract operator|(contract other) const noexcept {
    contract c;
    c.bits_ = static_cast<std::uint16_t>(bits_ | other.bits_);
    return c;
  }
  constexpr bool has(code c) const noexcept { return bits_ >> static_cast<unsigned>(c) & 1; }
  constexpr bool empty() const noexcept { return bits_ == 0; }

 private:
  std::uint16_t bits_ = 0;
};
inline constexpr int code_count = static_cast<int>(code::failed) + 1;

namespace may {
inline constexpr contract fail = contract::of(code::failed, code::forked, code::unloading);  // every call
inline constexpr contract lose = fail | contract::of(code::lost);  // the call's device, see driver.h
inline constexpr contract lack = contract::of(code::out_of_memory);
inline constexpr contract refuse = contract::of(code::not_supported);  // by this machine or pair of devices
inline constexpr contract forbid = contract::of(code::not_permitted);  // during any capture
inline constexpr contract mistake = contract::of(code::invalid);       // where the call is the way to find out
inline constexpr contract none{};                                      // for tests only
}  // namespace may

// X(name, contract): every call that can be refused.
#define WEIR_SEAM_CALLS(X)                                             \
  X(info, may::fail)                                                   \
  X(open, may::lose | may::lack)                                       \
  X(memory, may::lose)                                                 \
  X(make_current, may::fail)                                           \
  X(current_device, may::fail)                                         \
  X(synchronize_device, may::lose | may::forbid)                       \
  X(peer, may::fail)                                                   \
  X(reserve, may::fail | may::lack)                                    \
  X(unreserve, may::fail)                                              \
  X(create, may::lose | may::lack)                                     \
  X(release, may::fail)                                                \
  X(map, may::fail | may::lack)                                        \
  X(unmap, may::fail)                                                  \
  X(grant, may::fail | may::lack | may::refuse)                        \
  X(create_shared, may::lose | may::lack | may::refuse)                \
  X(export_handle, may::fail | may::lack)                              \
  X(import_handle, may::lose | may::lack | may::refuse | may::mistake) \
  X(create_segment, may::lose | may::lack | may::forbid)               \
  X(release_segment, may::lose | may::forbid)                          \
  X(pin, may::lose | may::lack | may::forbid)                          \
  X(unpin, may::lose | may::forbid)                                    \
  X(find, may::fail)                                                   \
  X(create_stream, may::lose | may::lack)                              \
  X(destroy_stream, may::lose)                                         \
  X(query_stream, may::lose | may::forbid)                             \
  X(synchronize_stream, may::lose | may::forbid)                       \
  X(capturing, may::lose)                                              \
  X(capture_of, may::lose | may::forbid)                               \
  X(kind_of, may::lose | may::forbid)                                  \
  X(adopt, may::lose | may::mistake)                                   \
  X(identify, may::lose | may::mistake)                                \
  X(stream_device, may::lose | may::mistake | may::forbid)             \
  X(native, may::fail | may::refuse)                                   \
  X(create_event, may::lose | may::lack)                               \
  X(destroy_event, may::lose)                                          \
  X(native_event, may::fail | may::refuse)                             \
  X(record, may::lose | may::forbid)                                   \
  X(wait, may::lose | may::forbid)                                     \
  X(query_event, may::lose | may::forbid)                              \
  X(synchronize_event, may::lose | may::forbid)                        \
  X(elapsed_ms, may::lose | may::forbid)                               \
  X(copy, may::lose | may::lack | may::forbid)                         \
  X(copy_peer, may::lose | may::lack | may::forbid)                    \
  X(upload, may::lose | may::lack | may::forbid)                       \
  X(fill, may::lose | may::lack | may::forbid)                         \
  X(host_function, may::lose | may::lack | may::forbid)                \
  X(enqueue, may::lose | may::lack)                                    \
  X(begin_capture, may::lose | may::forbid)                            \
  X(end_capture, may::lose | may::forbid)                              \
  X(keep_with_graph, may::lose | may::lack | may::forbid)              \
  X(update, may::lose | may::lack | may::refuse)                       \
  X(instantiate, may::lose | may::lack)                                \
  X(launch_graph, may::lose | may::lack | may::forbid)                 \
  X(destroy_graph, may::fail)                                          \
  X(destroy_executable, may::fail)                                     \
  X(hold, may::none)                                                   \
  X(open_gate, may::none)

enum class call : std::uint8_t {
#define WEIR_ONE(name, contract) name,
  WEIR_SEAM_CALLS(WEIR_ONE)
#undef WEIR_ONE
      any  // any name
};
inline constexpr std::size_t call_count = static_cast<std::size_t>(call::any);

inline constexpr std::array<std::string_view, call_count + 1> call_names{
#define WEIR_ONE(name, contract) #name,
    WEIR_SEAM_CALLS(WEIR_ONE)
#undef WEIR_ONE
        "any"};

inline constexpr std::array<contract, call_count> contracts{
#define WEIR_ONE(name, contract) contract,
    WEIR_SEAM_CALLS(WEIR_ONE)
#undef WEIR_ONE
};

constexpr std::string_view name_of(call c) noexcept {
  return call_names[static_cast<std::size_t>(c)];
}
constexpr contract contract_of(call c) noexcept {
  return contracts[static_cast<std::size_t>(c)];
}

}  // namespace weir::driver
