// Every system call of weir, so that one place can count them and make them fail.
// Threads: any.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weir::os {

// The calls that a test may refuse; base::thread asks here too. The rest has no visible failure: it answers
// "not known", or wakes without cause.
#define WEIR_SYSTEM_CALLS(X)                                                \
  X(reserve_addresses)                                                      \
  X(return_addresses)                                                       \
  X(map_file)                                                               \
  X(unmap_to_nothing)                                                       \
  X(take_access)                                                            \
  X(map_memory)                                                             \
  X(advise)                                                                 \
  X(make_memory_file)                                                       \
  X(resize_file)                                                            \
  X(punch_hole)                                                             \
  X(memory_of_host)                                                         \
  X(usable_processors)                                                      \
  X(make_thread)                                                            \
  X(duplicate_file)                                                         \
  X(make_sockets)                                                           \
  X(send_message)                                                           \
  X(receive_message)                                                        \
  X(seal_size)                                                              \
  X(compare_files)                                                          \
  /* asked once in a process; then: asked where there is no other way on */ \
  X(on_bad_access)                                                          \
  X(can_fence_other_threads)                                                \
  X(load_library)                                                           \
  X(random_number)                                                          \
  X(give_access)                                                            \
  X(listen_tcp)                                                             \
  X(accept_tcp)                                                             \
  X(connect_tcp)                                                            \
  X(send_bytes)                                                             \
  X(receive_bytes)                                                          \
  X(write_file)                                                             \
  X(sync_file)                                                              \
  X(rename_file)
enum class call : std::uint8_t {
#define WEIR_ONE(name) name,
  WEIR_SYSTEM_CALLS(WEIR_ONE)
#undef WEIR_ONE
};
inline constexpr int call_count = static_cast<int>(call::rename_file) + 1;
constexpr bool made_often(call c) noexcept {
  return c < call::on_bad_access;
}
constexpr bool made_once(call c) noexcept {
  return !made_often(c) && c < call::give_access;
}
// Called before each of these calls. True: the call is not made and fails as the system's would. Null (the
// default): every call is made. Threads: any; set while no other thread is inside weir.
using refuser = bool (*)(call) noexcept;
void refuse_by(refuser) noexcept;
bool refused(call) noexcept;

// Pages and addresses ---------------------------------------------------------------------------------------
std::size_t page_size() noexcept;  // bytes

// Addresses without memory; an access faults. Requires: whole pages; alignment a power of two. Returns: null if none.
void* reserve_addresses(std::size_t bytes, std::size_t alignment) noexcept;
bool return_addresses(void* at, std::size_t bytes) noexcept;  // mapped or not
enum class pages : std::uint8_t { when_touched, now };
// Maps the file shared, readable and writable, in place of what was mapped there.
bool map_file(void* at, std::size_t bytes, int file, std::uint64_t offset, pages = pages::when_touched) noexcept;
bool unmap_to_nothing(void* at, std::size_t bytes) noexcept;  // the addresses stay reserved
enum class reach : std::uint8_t { nothing, reading, all };
bool protect(void* at, std::size_t bytes, reach) noexcept;  // Requires: mapped pages
struct bad_access {
  void const* at = nullptr;                                                 // the address
  void const* code = nullptr;                                               // the instruction; null: not known
  enum class kind : std::uint8_t { touch, read, write } how = kind::touch;  // touch: not known which
};
// Calls explain(a) at each bad access, on its thread. True: the access is made again. False: the process ends
// as it would without weir; an earlier handler is called after this one.
bool on_bad_access(bool (*explain)(bad_access const&)) noexcept;
bool bad_accesses_are_explained() noexcept;  // false: on_bad_access was refused or replaced
std::string code_text(void const* code);     // "program+0x1a2b", as addr2line reads it. Empty: not known
bool is_mapped(void const* at, std::size_t bytes) noexcept;  // all of its pages
// Private zeroed pages. Requires: a power of two; above a page, whole pages. Returns: null if none.
void* map_memory(std::size_t bytes, std::size_t alignment = 1) noexcept;
enum class advice : std::uint8_t { not_to_children, to_children, huge_pages, no_huge_pages, not_needed };
bool advise(void* at, std::size_t bytes, advice) noexcept;
std::size_t memory_of_host() noexcept;  // bytes of physical memory; 0: not known

// Files -----------------------------------------------------------------------------------------------------
struct file_text {
  std::optional<std::string> text;
  std::string why_not;  // "is a folder", to print after the path; set if there is no text
};
// The whole of a regular file. Never blocks on a FIFO or a device, which are refused.
file_text read_text(char const* path, std::size_t most_bytes);
// Without a name, closed on exec. -1: refused
int make_memory_file(char const* name) noexcept;
bool resize_file(int file, std::uint64_t bytes) noexcept;
// frees the pages; they then read as zero
bool punch_hole(int file, std::uint64_t offset, std::uint64_t bytes) noexcept;
void close_file(int file) noexcept;

// The process -----------------------------------------------------------------------------------------------
std::optional<std::string> environment(char const* name);             // none: not set
std::vector<std::string> environment_names(std::string_view prefix);  // that begin with the prefix
// keeps the library of weir loaded after a dlclose: threads and exit handlers still run in it
void keep_this_code_loaded() noexcept;
int process_id() noexcept;
std::uint64_t fork_generation() noexcept;  // grows in every child; costs a load
// The handlers run on the thread that forks.
bool around_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept;
// Returns when woken, spuriously, or at once if the word has another value. Never spins.
void sleep_while(int const& word, int value) noexcept;
void wake_one(int const& word) noexcept;          // of the threads that sleep on it
std::uint64_t random_number() noexcept;           // from the system
int usable_processors() noexcept;                 // of this process, at least 1
std::vector<int> processors_near(int numa_node);  // empty: not known
bool can_fence_other_threads() noexcept;          // registers the process; false: not supported
void fence_other_threads() noexcept;              // a full memory fence in every running thread
bool run_this_thread_on(std::vector<int> const& processors) noexcept;
// Calls run after the calling thread has destroyed its thread_local values, and again if run asks again, a
// few times. Not in the thread that ends the process. Requires: the same function each time.
void run_after_thread_locals(void (*run)(void*)) noexcept;
void print_error(std::string_view line) noexcept;    // to stderr, in one piece
[[noreturn]] void end_process(int status) noexcept;  // flushes files; runs no exit handler

}  // namespace weir::os
