// Every system call weir makes comes from here, so that one place can count them and make them fail.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weir::os {

// Pages and addresses --------------------------------------------------------------------------------------------
std::size_t page_size() noexcept;  // bytes

// Address space without memory: touching it faults. Requires: alignment a power of two.
// Returns: null when there is no room.
void* reserve_addresses(std::size_t bytes, std::size_t alignment) noexcept;
bool return_addresses(void* at, std::size_t bytes) noexcept;                  // whatever lies there, mapped or not
bool map_file(void* at, std::size_t bytes, int file, std::uint64_t offset) noexcept;  // shared, readable and writable, in place of what was there
bool unmap_to_nothing(void* at, std::size_t bytes) noexcept;                  // addresses stay reserved
enum class reach : std::uint8_t { nothing, all };
bool protect(void* at, std::size_t bytes, reach) noexcept;                    // of mapped pages
// explain(address) is called before a bad access ends the process as it would have (whoever was to be told is told after it).
bool on_bad_access(void (*explain)(void const*)) noexcept;
void* map_memory(std::size_t bytes) noexcept;                                 // private zeroed pages of one's own. Null: none left
enum class advice : std::uint8_t { not_to_children, to_children, huge_pages, no_huge_pages, not_needed };
bool advise(void* at, std::size_t bytes, advice) noexcept;
std::size_t memory_of_host() noexcept;                                        // bytes of physical memory; 0: not known

// Files without a name -------------------------------------------------------------------------------------------
int make_memory_file(char const* name) noexcept;                              // closed on exec; -1: refused
bool resize_file(int file, std::uint64_t bytes) noexcept;
bool punch_hole(int file, std::uint64_t offset, std::uint64_t bytes) noexcept;  // gives the pages back; they read as zero
void close_file(int file) noexcept;

// The process ----------------------------------------------------------------------------------------------------
std::optional<std::string> environment(char const* name);                     // none: not set
void keep_this_code_loaded() noexcept;                                        // a library that holds weir stays although it is closed: threads and exit handlers run in it
int process_id() noexcept;
std::uint64_t fork_generation() noexcept;                                     // one more in every child; costs a load
std::uint64_t random_number() noexcept;                                       // from the system, not to be repeated
int usable_processors() noexcept;                                             // that this process may run on, at least 1
std::vector<int> processors_near(int numa_node);                              // empty: not known
bool run_this_thread_on(std::vector<int> const& processors) noexcept;
void print_error(std::string const& line) noexcept;                           // to stderr, in one piece

}  // namespace weir::os
