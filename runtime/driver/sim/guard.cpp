// What is said about a host that touches device memory.
// Threads: any; the explanation is made on the thread that faulted, which is about to die.
#include "runtime/driver/sim/guard.h"

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/driver/sim/memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#endif

namespace weir::driver::sim {
namespace {

struct watched {
  std::vector<memory const*> all;
  std::string (*more)(address) = nullptr;
};
base::guarded<watched>& watching() {
  static auto* const w = new base::guarded<watched>;  // asked until the process is gone
  return *w;
}

void explain(void const* at) {
  std::string who, more;
  auto const where = reinterpret_cast<address>(at);
  {
    auto const w = watching().lock();
    for (memory const* m : w->all) {
      if (who.empty()) who = m->owner_of(where);
    }
    if (who.empty()) return;
    if (w->more) more = w->more(where);
  }
  os::print_error("weir: host code touched " + who + (more.empty() ? "" : ", in " + more) +
                  ", outside of any work that declares it. Device memory is read and written by work on a stream: declare it to launch or parallel_for, or copy it with weir::copy.\n");
}

}  // namespace

void watch_faults(memory const& m) {
  static bool const installed = os::on_bad_access(explain);
  (void)installed;
  watching().lock()->all.push_back(&m);
}
void unwatch_faults(memory const& m) noexcept { std::erase(watching().lock()->all, &m); }
void explain_addresses_with(std::string (*more)(address)) { watching().lock()->more = more; }

#ifdef ASAN_POISON_MEMORY_REGION
void poison_bytes(address at, std::size_t n) noexcept { ASAN_POISON_MEMORY_REGION(reinterpret_cast<void*>(at), n); }
void unpoison_bytes(address at, std::size_t n) noexcept { ASAN_UNPOISON_MEMORY_REGION(reinterpret_cast<void*>(at), n); }
#else
void poison_bytes(address, std::size_t) noexcept {}
void unpoison_bytes(address, std::size_t) noexcept {}
#endif

}  // namespace weir::driver::sim
