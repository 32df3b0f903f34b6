// A client of the key-value store that torchrun's agent serves (PyTorch's TCPStore).
// Threads: one.
//
// Wire, in the machine's byte order: an operation (u8), then its operands. A string is its length (u64) and
// its bytes. VALIDATE 0, magic (u32); PING 13, nonce (u32) -> nonce; SET 1, key, value; GET 3, key -> value;
// CHECK 5, number of keys (u64), keys -> 0 if all are there.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/os_tcp.h"
#include "weir/types.h"

namespace weir::peer {

class torch_store {
 public:
  // Blocks: up to the limit, here and in each call. Throws: driver_error (unreachable, or no such store)
  torch_store(std::string host, std::uint16_t port, base::time_limit, source_location);

  // Throws for all: driver_error (the store hangs up, is silent for the limit, or answers nonsense)
  void set(std::string_view key, std::string_view value);
  // Returns: none if the key has no value yet.
  std::optional<std::string> get(std::string_view key);

 private:
  [[noreturn]] void fail(std::string const& why) const;
  void send(std::string const& message);
  void receive(void* into, std::size_t bytes);
  bool has(std::string_view key);

  std::string const host_;
  std::uint16_t const port_;
  base::time_limit const limit_;
  source_location const at_;
  os::owned_file socket_;
};

}  // namespace weir::peer
