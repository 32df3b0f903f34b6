// The system calls behind os.h.
// Threads: any.
#include "runtime/base/os.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/base/os_socket.h"
#include "runtime/base/sync.h"

namespace weir::os {
namespace {

constinit base::atomic<std::uint64_t> generation{0};
constinit base::atomic<refuser> refuses{nullptr};

// Set up before main, so that every fork is counted.
[[maybe_unused]] int const watching_forks = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });

char const* kind_of(mode_t mode) noexcept {
  if (S_ISDIR(mode))
    return "is a folder";
  if (S_ISFIFO(mode))
    return "is a FIFO";
  return S_ISSOCK(mode) ? "is a socket" : "is a device";
}

// Requires: alignment a power of two. Returns: null if none.
void* map_at_multiple_of(std::size_t alignment, std::size_t bytes, int access, int how) noexcept {
  alignment = std::max(alignment, page_size());
  std::size_t const slack = alignment - page_size();  // mmap() aligns to a page
  if (bytes == 0 || bytes + slack < bytes)
    return nullptr;
  void* const got = ::mmap(nullptr, bytes + slack, access, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0);
  if (got == MAP_FAILED)
    return nullptr;
  // An aligned range lies in what was got. What is before and behind it goes back.
  auto const from = reinterpret_cast<std::uintptr_t>(got);
  std::uintptr_t const at = (from + alignment - 1) & ~(alignment - 1);
  if (at > from)
    ::munmap(got, at - from);
  if (from + slack > at)
    ::munmap(reinterpret_cast<void*>(at + bytes), from + slack - at);
  return reinterpret_cast<void*>(at);
}

}  // namespace

void refuse_by(refuser by) noexcept {
  refuses.store(by, base::memory_order_release);
}

bool refused(call c) noexcept {
  refuser const by = refuses.load(base::memory_order_acquire);
  return by && by(c);
}

std::size_t page_size() noexcept {
  static std::size_t const bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

void* reserve_addresses(std::size_t bytes, std::size_t alignment) noexcept {
  return refused(call::reserve_addresses) ? nullptr : map_at_multiple_of(alignment, bytes, PROT_NONE, MAP_NORESERVE);
}

bool is_mapped(void const* at, std::size_t bytes) noexcept {
  std::uintptr_t const page = page_size(), before = reinterpret_cast<std::uintptr_t>(at) % page;
  std::uintptr_t const first_page = reinterpret_cast<std::uintptr_t>(at) - before;
  std::size_t const whole = before + bytes;
  unsigned char resident[1024];  // one for each page
  constexpr std::size_t most_pages = sizeof resident;
  for (std::size_t done = 0; done < whole; done += most_pages * page) {
    std::size_t const part = std::min(whole - done, most_pages * page);
    // ENOMEM says that a page is not mapped; other failures say nothing about the pages.
    if (::mincore(reinterpret_cast<void*>(first_page + done), part, resident) != 0 && errno == ENOMEM)
      return false;
  }
  return true;
}

bool return_addresses(void* at, std::size_t bytes) noexcept {
  return !refused(call::return_addresses) && ::munmap(at, bytes) == 0;
}

bool map_file(void* at, std::size_t bytes, int file, std::uint64_t offset, pages p) noexcept {
  int const how = MAP_SHARED | MAP_FIXED | (p == pages::now ? MAP_POPULATE : 0);
  return !refused(call::map_file) &&
         ::mmap(at, bytes, PROT_READ | PROT_WRITE, how, file, static_cast<off_t>(offset)) != MAP_FAILED;
}

bool unmap_to_nothing(void* at, std::size_t bytes) noexcept {
  return !refused(call::unmap_to_nothing) &&
         ::mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

bool protect(void* at, std::size_t bytes, reach r) noexcept {
  int const how = r == reach::all ? PROT_READ | PROT_WRITE : r == reach::reading ? PROT_READ : PROT_NONE;
  return !refused(r == reach::all ? call::give_access : call::take_access) && ::mprotect(at, bytes, how) == 0;
}

namespace {
bool (*explain_fault)(bad_access const&) = nullptr;
struct sigaction before_us;

bad_access access_of(siginfo_t const* info, [[maybe_unused]] void const* context) noexcept {
  bad_access a{info->si_addr};
#if defined(__x86_64__) && defined(REG_RIP)
  auto const& registers = static_cast<ucontext_t const*>(context)->uc_mcontext.gregs;
  a.code = reinterpret_cast<void const*>(registers[REG_RIP]);
  a.how = registers[REG_ERR] & 2 ? bad_access::kind::write : bad_access::kind::read;
#endif
  return a;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  int const errno_before = errno;
  bool const is_made_again = explain_fault(access_of(info, context));
  errno = errno_before;
  if (is_made_again)
    return;
  if (before_us.sa_flags & SA_SIGINFO)
    return before_us.sa_sigaction(signal, info, context);
  if (before_us.sa_handler != SIG_DFL && before_us.sa_handler != SIG_IGN)
    return before_us.sa_handler(signal);
  ::sigaction(SIGSEGV, &before_us, nullptr);  // the access is made again and now ends the process
}
}  // namespace

std::string code_text(void const* code) {
  Dl_info its{};
  if (!code || ::dladdr(code, &its) == 0 || !its.dli_fname)
    return {};
  std::string_view file = its.dli_fname;
  file = file.substr(file.rfind('/') + 1);
  char offset[24];
  std::snprintf(
      offset, sizeof offset, "+0x%llx",
      static_cast<unsigned long long>(static_cast<char const*>(code) - static_cast<char const*>(its.dli_fbase)));
  return std::string(file) + offset;
}

bool on_bad_access(bool (*explain)(bad_access const&)) noexcept {
  if (refused(call::on_bad_access))
    return false;
  explain_fault = explain;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return ::sigaction(SIGSEGV, &ours, &before_us) == 0;
}

bool bad_accesses_are_explained() noexcept {
  struct sigaction now {};
  return ::sigaction(SIGSEGV, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault;
}

void* map_memory(std::size_t bytes, std::size_t alignment) noexcept {
  return refused(call::map_memory) ? nullptr : map_at_multiple_of(alignment, bytes, PROT_READ | PROT_WRITE, 0);
}

bool advise(void* at, std::size_t bytes, advice what) noexcept {
  int how = MADV_NORMAL;
  switch (what) {
    case advice::not_to_children: how = MADV_DONTFORK; break;
    case advice::to_children: how = MADV_DOFORK; break;
    case advice::huge_pages: how = MADV_HUGEPAGE; break;
    case advice::no_huge_pages: how = MADV_NOHUGEPAGE; break;
    case advice::not_needed: how = MADV_DONTNEED; break;
  }
  return !refused(call::advise) && ::madvise(at, bytes, how) == 0;
}

int make_memory_file(char const* name) noexcept {
  return refused(call::make_memory_file) ? -1 : ::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
}

bool resize_file(int file, std::uint64_t bytes) noexcept {
  return !refused(call::resize_file) && ::ftruncate(file, static_cast<off_t>(bytes)) == 0;
}

bool punch_hole(int file, std::uint64_t offset, std::uint64_t bytes) noexcept {
  return !refused(call::punch_hole) && ::fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                                   static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

void close_file(int file) noexcept {
  ::close(file);
}

// Opens without waiting: an ordinary open() of a FIFO without a writer does not return.
file_text read_text(char const* path, std::size_t most_bytes) {
  auto const unreadable = [](int why) { return file_text{{}, std::string("cannot be read: ") + std::strerror(why)}; };
  owned_file const file(::open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  int const why_not_open = errno;
  struct ::stat about {};
  // What does not open is asked for its kind all the same: a socket is named as such.
  int const failed = file.is_open() ? ::fstat(file.get(), &about) : ::stat(path, &about);
  if (failed)
    return unreadable(errno);
  if (!S_ISREG(about.st_mode))
    return {{}, kind_of(about.st_mode)};
  if (!file.is_open())
    return unreadable(why_not_open);
  std::string text;
  std::array<char, 4096> part;
  for (;;) {
    auto const got = ::read(file.get(), part.data(), part.size());
    if (got < 0 && errno == EINTR)
      continue;
    if (got < 0)
      return unreadable(errno);
    if (got == 0)
      return {std::move(text), {}};
    text.append(part.data(), static_cast<std::size_t>(got));
    if (text.size() > most_bytes)
      return {{}, "has more than " + std::to_string(most_bytes) + " B"};
  }
}

std::optional<std::string> environment(char const* name) {
  char const* const value = std::getenv(name);
  if (!value)
    return std::nullopt;
  return value;
}

std::vector<std::string> environment_names(std::string_view prefix) {
  std::vector<std::string> names;
  for (char** one = environ; one && *one; ++one) {
    std::string_view const entry(*one);
    if (entry.starts_with(prefix))
      names.emplace_back(entry.substr(0, entry.find('=')));
  }
  return names;
}

void keep_this_code_loaded() noexcept {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void const*>(&keep_this_code_loaded), &here) == 0 || !here.dli_fname)
    return;
  // fails for the program itself, which stays loaded anyway
  if (!::dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE))
    (void)::dlerror();
}

int process_id() noexcept {
  return ::getpid();
}

// membarrier(2): the private expedited kind, since Linux 4.14.
bool can_fence_other_threads() noexcept {
  return !refused(call::can_fence_other_threads) &&
         ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}
void fence_other_threads() noexcept {
  // callers cannot do without it
  while (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) != 0 && errno == ENOMEM)
    ::sched_yield();
}

std::uint64_t fork_generation() noexcept {
  return generation.load(base::memory_order_relaxed);
}

bool around_forks(void (*before)(), void (*in_parent)(), void (*in_child)()) noexcept {
  return pthread_atfork(before, in_parent, in_child) == 0;
}

void sleep_while(int const& word, int value) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}
void wake_one(int const& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

std::uint64_t random_number() noexcept {
  std::uint64_t number = 0;
  if (refused(call::random_number) || ::getrandom(&number, sizeof number, 0) != sizeof number)
    number = static_cast<std::uint64_t>(base::now_ns()) ^ (static_cast<std::uint64_t>(::getpid()) << 32);
  return number;
}

std::size_t memory_of_host() noexcept {
  long const pages = refused(call::memory_of_host) ? -1 : ::sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? static_cast<std::size_t>(pages) * page_size() : 0;
}

int usable_processors() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (refused(call::usable_processors) || ::sched_getaffinity(0, sizeof set, &set) != 0)
    return base::hardware_threads();
  return std::max(1, CPU_COUNT(&set));
}

std::vector<int> processors_near(int numa_node) {
  std::vector<int> found;
  if (numa_node < 0)
    return found;
  std::string const path = "/sys/devices/system/node/node" + std::to_string(numa_node) + "/cpulist";
  std::string text = read_text(path.c_str(), 65536).text.value_or("");
  char* at = text.data();
  while (*at >= '0' && *at <= '9') {  // "0-3,8,10-11"
    long const first = std::strtol(at, &at, 10);
    long const last = *at == '-' ? std::strtol(at + 1, &at, 10) : first;
    for (long cpu = first; cpu <= last; ++cpu)
      found.push_back(static_cast<int>(cpu));
    if (*at == ',')
      ++at;
  }
  return found;
}

bool run_this_thread_on(std::vector<int> const& processors) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : processors)
    if (cpu >= 0 && cpu < CPU_SETSIZE)
      CPU_SET(cpu, &set);
  return CPU_COUNT(&set) > 0 && ::sched_setaffinity(0, sizeof set, &set) == 0;
}

// A pthread key: its destructor runs after those of thread_local values, and again if it sets the key again.
void run_after_thread_locals(void (*run)(void*)) noexcept {
  struct thread_key {
    pthread_key_t key{};
    bool is_made;
    explicit thread_key(void (*f)(void*)) noexcept : is_made(pthread_key_create(&key, f) == 0) {}
  };
  static thread_key const only(run);
  static char const not_null = 0;  // the destructor is not called for a null value
  if (only.is_made)
    (void)pthread_setspecific(only.key, &not_null);
}

void print_error(std::string_view line) noexcept {
  std::size_t at = 0;
  while (at < line.size()) {
    ssize_t const n = ::write(STDERR_FILENO, line.data() + at, line.size() - at);
    if (n <= 0)
      return;
    at += static_cast<std::size_t>(n);
  }
}

void end_process(int status) noexcept {
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace weir::os
