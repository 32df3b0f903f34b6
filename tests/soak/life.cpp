// Beginning, rests and end of a long life, and what it found.
// Threads: as life.h says.
#include "tests/soak/life.h"

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "runtime/base/os_socket.h"
#include "runtime/core/parts.h"
#include "tests/soak/actor.h"
#include "tests/soak/crooked.h"
#include "weir/observe.h"

namespace weir::soak {
namespace {

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
constexpr std::int64_t patience_ns = 60'000'000'000;      // of one act: it waits for 20 s at most for a process
constexpr int large_block = 128 << 10;                    // bytes of the heap that have pages of their own
constexpr std::int64_t most_of_captures = 8 << 20;        // bytes, of one actor's captures: four pages
constexpr double fewest_rests = 40, longest_between = 5;  // a quarter has ten samples; seconds

}  // namespace

std::string_view name_of(leak l) noexcept {
  switch (l) {
    case leak::none: return "none";
    case leak::addresses: return "addresses";
    case leak::used_addresses: return "used_addresses";
    case leak::device_bytes: return "device_bytes";
    case leak::descriptors: return "descriptors";
    case leak::threads: return "threads";
    case leak::host_bytes: return "host_bytes";
    case leak::time: return "time";
  }
  return "unknown";
}

bool found_by(leak l, measure m) noexcept {
  switch (l) {
    case leak::addresses: return m == measure::reserved;
    case leak::used_addresses: return m == measure::used_addresses;
    case leak::device_bytes: return m == measure::device_bytes;
    case leak::descriptors: return m == measure::descriptors;
    case leak::threads: return m == measure::threads;
    case leak::host_bytes: return m >= measure::host_blocks;
    default: return false;
  }
}

bool life_outcome::found(leak l) const noexcept {
  if (l == leak::time)
    return std::any_of(slowed.begin(), slowed.end(), [](auto const& s) { return s.too_much(); });
  return std::any_of(grew.begin(), grew.end(), [l](growth const& g) { return found_by(l, g.of) && g.too_much(); });
}
bool life_outcome::clean() const noexcept {
  return failure.empty() && std::none_of(grew.begin(), grew.end(), [](growth const& g) { return g.too_much(); }) &&
         std::none_of(slowed.begin(), slowed.end(), [](slowdown const& s) { return s.too_much(); });
}

life::lasting::lasting(int device)
    : on(weir::device(device)), weights(on, 1 << 20), staging((device_guard(device), pinned(1 << 18))) {
  fill(on, weights.data(), std::byte{0}, weights.size());
}

life::life(life_plan p) : plan_(std::move(p)) {
  // Fixed, so that neither depends on the order of events: each arena takes addresses when threads first collide,
  // and the size of a large block grows with the blocks that are freed.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, large_block);
  auto [machine, why] = open_machine();
  simulated_ = machine->simulated();
  devices_ = machine->device_count();
  limit_ = std::size_t{simulated_ ? 96u : 1024u} << 20;
  description_ = why;
  auto owned = std::make_unique<bookkeeper>(std::move(machine), books_);
  driver_ = owned.get();
  runtime_ = make_runtime(std::move(owned), {.device_limit = limit_}, why);
  runtime_guard const in(*runtime_);
  for (int d = 0; d < devices_; ++d)
    lasting_.push_back(std::make_unique<lasting>(d));
  for (int n = 0; n < plan_.actors; ++n)
    actors_.push_back(std::make_unique<actor>(*this, n));
}

life::~life() {
  runtime_guard const in(*runtime_);
  actors_.clear();
  lasting_.clear();
}

std::unique_ptr<runtime> life::another_runtime() {
  auto [machine, why] = open_machine();
  return make_runtime(std::make_unique<bookkeeper>(std::move(machine), books_), {.device_limit = limit_}, why);
}

void life::failed(std::string what) {
  std::lock_guard const hold(lock_);
  if (failure_.empty())
    failure_ = std::move(what);
}

bool life::rests(actor& a) {
  a.end_all();
  std::unique_lock hold(lock_);
  std::uint64_t const mine = rest_;
  ++resting_;
  changed_.notify_all();
  changed_.wait(hold, [&] { return rest_ != mine; });
  return !over_.load();
}

// Ends the process if an act takes too long: nothing else could.
void life::watch() {
  while (!over_.load()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    for (auto const& a : actors_) {
      auto const* const act = a->doing_.load();
      std::int64_t const since = a->since_ns_.load();
      if (!act || a->doing_.load() != act || now_ns() - since < patience_ns)
        continue;
      std::fprintf(stderr, "soak: HANGS: actor %d has been in %s for 60 s\nrepeat: soak life --seed %llu\n", a->number_,
                   std::string(*act).c_str(), static_cast<unsigned long long>(plan_.seed));
      std::_Exit(5);
    }
  }
}

// An importer lets go of what its owner gave back when it next receives, so one more buffer is sent.
void life::give_back_what_is_shared() {
  for (int d = 0; d < devices_; ++d)
    share_pool({.on = d}).trim();
  auto const [a, b] = os::make_sockets();
  share_channel from(a), to(b);
  {
    exportable_buffer const last(default_stream(0), 1);
    from.send(last, default_stream(0));
    to.receive(0).release(default_stream(0));
  }
  share_pool({.on = 0}).trim();
}

// Returns: what is wrong at rest; empty: nothing.
std::string life::take_sample() {
  for (auto& b : left_)
    deallocate(b.exchange(nullptr));
  for (int d = 0; d < devices_; ++d)
    synchronize(d);
  give_back_what_is_shared();
  for (int d = 0; d < devices_; ++d)
    empty_cache(d);
  empty_pinned_cache();
  ::malloc_trim(0);
  std::string said;
  for (int d = 0; d < devices_; ++d) {
    auto const now = memory_stats(d);
    std::int64_t const lasts = static_cast<std::int64_t>(lasting_[static_cast<std::size_t>(d)]->weights.size());
    if (plan_.planted == leak::none && now.requested_bytes.all.current != lasts)
      said += "gpu:" + std::to_string(d) + " has " + std::to_string(now.requested_bytes.all.current - lasts) +
              " live bytes at rest\n";
    if (now.pending_bytes.all.current != 0)
      said += "gpu:" + std::to_string(d) + " has " + std::to_string(now.pending_bytes.all.current) +
              " pending bytes at rest\n";
  }
  sample s = sample_now(*books_);
  for (int d = 0; d < devices_; ++d) {
    // The memory of graphs keeps its pages while it lasts: as many as captures at one time needed.
    auto const kept = static_cast<std::int64_t>(lasting_[static_cast<std::size_t>(d)]->graphs.reserved());
    if (kept > plan_.actors * most_of_captures)
      said += "gpu:" + std::to_string(d) + " keeps " + std::to_string(kept) + " bytes for captures of 150 kB at most\n";
    s.of[static_cast<std::size_t>(measure::device_bytes)] -= kept;
  }
  std::vector<std::uint64_t> played(actor::acts().size());
  for (auto const& a : actors_) {
    for (std::size_t i = 0; i < played.size(); ++i)
      played[i] += a->played_[i];
  }
  s.ends = std::accumulate(played.begin(), played.end(), std::uint64_t{0});
  std::erase(played, 0u);
  s.rarest = played.empty() ? 0 : *std::min_element(played.begin(), played.end());
  samples_.push_back(s);
  return said;
}

life_outcome life::outcome() const {
  life_outcome o;
  o.grew = growth_of(samples_);
  o.rests = samples_.size();
  o.seconds = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  o.machine = description_;
  for (std::size_t c = 0; c < calls; ++c) {
    slowdown s{name_of(static_cast<call>(c)), {}, {}};
    for (auto const& a : actors_)
      s.first.add(a->first_[c]), s.last.add(a->last_[c]);
    if (s.first.count() + s.last.count())
      o.slowed.push_back(s);
  }
  auto const all = actor::acts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    life_outcome::played p{all[i].name};
    for (auto const& a : actors_)
      p.times += a->played_[i], p.refused += a->refused_[i];
    if (p.times)
      o.acts.push_back(p);
  }
  return o;
}

life_outcome life::run(std::function<void(double, sample const&)> const& tick) {
  runtime_guard const in(*runtime_);
  if (devices_ > 1)
    (void)weir::links();
  std::vector<std::thread> threads;
  began_ns_ = now_ns();
  for (auto const& a : actors_)
    threads.emplace_back([&] { a->run(); });
  std::thread watcher([this] { watch(); });
  double const between = std::min(plan_.seconds / fewest_rests, longest_between);
  samples_.reserve(static_cast<std::size_t>(2 * plan_.seconds / between));  // what this run keeps is no growth
  for (double next = between;; next += between) {
    auto const share = [this] { return static_cast<double>(now_ns() - began_ns_) * 1e-9 / plan_.seconds; };
    std::this_thread::sleep_for(std::chrono::duration<double>(next) - std::chrono::nanoseconds(now_ns() - began_ns_));
    quarter_.store(static_cast<int>(share() * 4));
    pause_.store(true);
    std::unique_lock hold(lock_);
    changed_.wait(hold, [&] { return resting_ + gone_ == plan_.actors; });
    bool broken = !failure_.empty();
    hold.unlock();
    if (!broken) {
      try {
        if (auto const said = take_sample(); !said.empty())
          failed(said);
      } catch (std::exception const& e) {
        failed(std::string("at rest: ") + e.what());
      }
    }
    if (!samples_.empty())
      tick(share(), samples_.back());
    hold.lock();
    broken = !failure_.empty();
    pause_.store(false);
    if (share() >= 1 || broken)
      over_.store(true);
    resting_ = 0;
    ++rest_;
    hold.unlock();
    changed_.notify_all();
    if (over_.load())
      break;
  }
  for (auto& t : threads)
    t.join();
  watcher.join();
  life_outcome o = outcome();
  o.failure = failure_;
  return o;
}

}  // namespace weir::soak
