// Who has called is counted by machine. Who was waited for in vain is remembered for the whole process.
// Threads: any.
#include "simulator/machine/callers.h"

#include <algorithm>
#include <vector>

#include "runtime/base/lasting.h"
#include "runtime/base/os_threads.h"

namespace weir::driver::sim {
namespace {

using numbers = callers::numbers;

base::atomic<std::uint64_t> last_machine{0};
constexpr std::uint64_t no_machine = 0;  // of workers

std::shared_ptr<numbers> const& workers() {
  static auto* const all = new std::shared_ptr<numbers>(std::make_shared<numbers>());
  return *all;
}

base::guarded<std::vector<os::thread_seen>>& idle_strangers() {
  static base::lasting<base::guarded<std::vector<os::thread_seen>>> all;
  return *all;
}

// The counts that a thread is part of until it ends.
struct counted_in {
  struct one {
    std::uint64_t machine;
    std::shared_ptr<numbers> threads;
  };
  int number = os::this_thread();
  std::vector<one> all;
  ~counted_in() {
    for (one const& its : all)
      its.threads->lock()->erase(number);
  }
};

void count_this_thread(std::uint64_t machine, std::shared_ptr<numbers> const& threads) {
  static base::per_thread<counted_in> value;
  counted_in& mine = value.get();
  auto const is_it = [&](counted_in::one const& its) { return its.machine == machine; };
  if (std::any_of(mine.all.rbegin(), mine.all.rend(), is_it))
    return;
  std::erase_if(mine.all, [](counted_in::one const& its) { return its.threads.use_count() == 1; });
  mine.all.reserve(mine.all.size() + 1);  // what may throw comes before the change
  threads->lock()->insert(mine.number);
  mine.all.push_back({machine, threads});
}

// The threads of the process without those.
std::vector<os::thread_seen> all_but(numbers& known) {
  auto here = os::threads_here();
  auto const out = known.lock();
  std::erase_if(here, [&](os::thread_seen const& t) { return out->contains(t.number); });
  return here;
}

}  // namespace

callers::callers() : machine_(last_machine.fetch_add(1) + 1) {}

void callers::add_this_thread() const {
  count_this_thread(machine_, all_);
}
void callers::this_thread_never_calls() noexcept try {
  count_this_thread(no_machine, workers());
} catch (std::bad_alloc const&) {}  // it is taken for a thread that may call: a stuck program is told later

bool callers::others_may_come() const {
  auto here = all_but(*all_);
  {
    auto const never = workers()->lock();
    std::erase_if(here, [&](os::thread_seen const& t) { return never->contains(t.number); });
  }
  auto const idle = idle_strangers().lock();
  return std::any_of(here.begin(), here.end(),
                     [&](auto const& t) { return std::find(idle->begin(), idle->end(), t) == idle->end(); });
}

void callers::none_has_come() const {
  *idle_strangers().lock() = all_but(*all_);
}

}  // namespace weir::driver::sim
