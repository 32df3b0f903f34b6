// CRC-32 of ISO 3309, as zlib's crc32() and PNG have it.
// Threads: values.
#pragma once
#include <cstddef>
#include <cstdint>

namespace weir::checkpoints {

class checksum {
 public:
  // With the processor's carry-less multiplication if it has one
  void process_bytes(void const*, std::size_t) noexcept;
  // By tables alone, for other processors and for what is left of a block
  void process_bytes_by_tables(void const*, std::size_t) noexcept;
  std::uint32_t value() const noexcept { return ~register_; }

 private:
  std::uint32_t register_ = 0xffffffff;
};

}  // namespace weir::checkpoints
