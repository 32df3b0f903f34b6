// Files of a program's data: one that takes the place of another, whole or not at all, and one that is read.
// Threads: one for each object.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "runtime/base/os_socket.h"

namespace weir::os {

// What the system refused. `remedy`: for a person.
struct file_refusal {
  std::string what;  // "/a/b.part cannot be written: No space left on device". Empty: nothing was refused
  std::string remedy;
  explicit operator bool() const noexcept { return !what.empty(); }
};

// A write of this thread beyond the process's limit of a file (RLIMIT_FSIZE) is refused, and sends no signal that
// would end the process.
void refuse_writes_beyond_the_limit() noexcept;

// Writes PATH.part and renames it to PATH once the disk has it. A process that ends at any moment leaves the
// old file whole, or the new one. PATH.part of a process that was killed is written anew.
// Invariant: one process at a time holds PATH.part, by a lock that ends with it and that its children do not
// have.
class file_in_place {
 public:
  explicit file_in_place(std::string path) : path_(std::move(path)), part_(path_ + ".part") {}
  ~file_in_place();  // removes PATH.part, unless it was put in place
  file_in_place(file_in_place const&) = delete;
  file_refusal begin();  // Requires: this process has no other one of this path
  file_refusal write(std::span<std::byte const>);
  // If only the folder is refused at last, the new file is in place, and may be lost with the machine's
  // power.
  file_refusal put_in_place();

 private:
  std::string const path_, part_;
  owned_file file_;
};

// A regular file, opened to be read. Never blocks on a FIFO or a device, which are refused.
class file_to_read {
 public:
  file_refusal open(std::string path);
  std::uint64_t bytes() const noexcept { return bytes_; }  // when it was opened
  // Reads exactly these bytes. A file that has become shorter is refused.
  file_refusal read(std::uint64_t offset, std::span<std::byte> to) const;

 private:
  std::string path_;
  owned_file file_;
  std::uint64_t bytes_ = 0;
};

}  // namespace weir::os
