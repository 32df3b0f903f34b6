// The calls of other threads. One thread in each process sends and receives: watch_state.h.
// Threads: as the header says.
#include "peer/ranks/watch.h"

#include <algorithm>
#include <cstring>

#include "peer/ranks/watch_state.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::peer {

rank_watch::rank_watch(int rank, int size, std::vector<os::owned_file> by_rank, limits l,
                       std::function<void()> on_change)
    : rank_(rank), size_(size), limits_(l), on_change_(std::move(on_change)), state_(new state(*this)) {
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    if (by_rank[r].is_open() && own_address_.empty())
      own_address_ = os::address_of(by_rank[r].get());
    state_->lines[r].socket = std::move(by_rank[r]);
  }
}

rank_watch::~rank_watch() {
  end();
}

void rank_watch::start(source_location at) {
  try {
    if (!state_->wake.is_open())
      throw std::bad_alloc();
    thread_ = base::thread([this] { labour(); });
  } catch (...) {
    throw driver_error(0, "communicator",
                       base::text("rank ", rank_, " of ", size_, ": no thread or file is left to watch the others"),
                       "Raise the limits of threads and open files (ulimit -u, ulimit -n)", at, error_id{427});
  }
}

void rank_watch::end(std::span<transfers const> by_rank) noexcept {
  if (!thread_.joinable())
    return;
  try {
    auto s = state_->all.lock();
    s->own_transfers.assign(by_rank.begin(), by_rank.end());
  } catch (...) {}  // no host memory: the others are told no transfers
  ending_.store(true, base::memory_order_release);
  os::wake_up(state_->wake.get());
  thread_.join();
}

void rank_watch::labour() noexcept {
  try {
    state_->run();
  } catch (...) {  // no host memory: the others see this rank end
    if (state_->decide(rank_, "this rank has no host memory to watch the others", false))
      on_change_();
    for (auto& line : state_->lines)
      line.socket.close();
  }
}

void rank_watch::counts(std::uint64_t collectives, std::uint64_t trace, std::uint64_t exceptions) noexcept {
  auto s = state_->all.lock();
  // A smaller count withdraws a call, whose place the next call takes.
  if (collectives > s->own.count)
    s->before.take(exceptions);
  if (collectives < s->own.count)
    s->before.take_back();
  s->own.count = collectives;
  s->own.trace = trace;
  s->traces[collectives % state::traces_kept] = trace;
}

void rank_watch::launches(std::uint64_t collectives, std::uint64_t exceptions) noexcept {
  auto s = state_->all.lock();
  s->own.launched += collectives;
  s->before.take(exceptions, collectives);
}

void rank_watch::launch_refused(std::uint64_t collectives) noexcept {
  auto s = state_->all.lock();
  s->own.launched -= collectives;
  s->before.take_back(collectives);
}

void rank_watch::unwound(std::uint64_t exceptions, std::uint64_t meets, std::span<transfers const> by_rank) noexcept {
  try {
    auto s = state_->all.lock();
    // state::end_counts, and state::marks
    std::uint64_t const numbers[] = {s->own.count, s->own.launched, s->before.steps(), exceptions, meets};
    state_->tell_end(*s, state::kind::unwound, rank_, {state::chars_of(numbers).data(), sizeof numbers},
                     {reinterpret_cast<char const*>(by_rank.data()), by_rank.size_bytes()});
  } catch (...) {}  // no host memory: the others wait until this rank ends
  os::wake_up(state_->wake.get());
}

int rank_watch::unwound_before(std::uint64_t exceptions, std::span<transfers const> own, std::uint64_t meets) const {
  auto s = state_->all.lock();
  for (std::size_t r = 0; r < s->unwound.size(); ++r) {
    std::uint64_t const its = s->unwound[r].exceptions;
    if (its == 0 || s->gone[r])
      continue;
    std::uint64_t const next = s->gone_counts[r].steps;  // the step that it has not taken
    bool const has_taken_next = s->before.steps() > next;
    if (has_taken_next) {
      // This rank is judged by that step: both come to their other calls behind it.
      if (s->before.before(next) < its)
        return static_cast<int>(r);
      continue;
    }
    transfers const& with_this = s->gone_transfers[r];
    bool const in_transfer = own[r].sent > with_this.received || own[r].received > with_this.sent;
    bool const in_meet = meets == s->unwound[r].meets + 1;  // the first one that it has not come to
    // This rank waits for it now, so its own exceptions of now count.
    if ((in_transfer || in_meet) && exceptions < its)
      return static_cast<int>(r);
  }
  return -1;
}

std::string rank_watch::failure() const {
  auto s = state_->all.lock();
  return failed_.load() && s->failure.empty() ? "the ranks cannot continue" : s->failure;
}

void rank_watch::accuse(int rank, std::string_view why) noexcept {
  if (!state_->decide(rank, why, true))
    return;
  os::wake_up(state_->wake.get());
  on_change_();
}

std::vector<int> rank_watch::left_in_order() const {
  return state_->all.lock()->gone_in_order;
}

bool rank_watch::left_with_less(int rank, transfers own) const {
  auto s = state_->all.lock();
  auto const& with_this = s->gone_transfers[static_cast<std::size_t>(rank)];
  return s->gone[static_cast<std::size_t>(rank)] && (own.sent > with_this.received || own.received > with_this.sent);
}

int rank_watch::left_before(std::uint64_t collectives) const {
  auto s = state_->all.lock();
  for (int const r : s->gone_in_order)
    if (s->gone_counts[static_cast<std::size_t>(r)].collectives < collectives)
      return r;
  return -1;
}

int rank_watch::left_before_launch() const {
  auto s = state_->all.lock();
  for (int const r : s->gone_in_order)
    if (s->gone_counts[static_cast<std::size_t>(r)].launched < s->own.launched)
      return r;
  return -1;
}

rank_watch::at_barrier rank_watch::meet(round for_what, base::time_limit limit, std::string_view brings) {
  auto s = state_->all.lock();
  std::uint64_t const mine = s->barriers;
  auto const all_came = [&] { return s->barriers != mine; };
  auto const is_over = [&] {
    return failed_.load() || std::find(s->gone.begin(), s->gone.end(), true) != s->gone.end();
  };
  state_->arrive(*s, for_what, brings);
  state_->changed.wait_for(s.lock(), limit, [&] { return all_came() || is_over(); });
  if (!all_came())
    state_->withdraw(*s);
  // Rank 0 knows whether the last rank came before the withdrawal: the others wait for its answer.
  if (!state_->is_hub())
    state_->changed.wait(s.lock(), [&] { return all_came() || s->withdrawn || is_over(); });
  if (all_came())
    return {.brought = std::exchange(s->brought, std::vector<offer>(static_cast<std::size_t>(size_)))};
  if (is_over())
    return {at_barrier::end::over};
  at_barrier late{at_barrier::end::late};
  for (int r = 0; r < size_; ++r)
    if (s->places[static_cast<std::size_t>(r)] == state::place::away)
      late.missing.push_back(r);
  if (!late.missing.empty())
    return late;
  // Each came, but not at one time: the first that has given up is named.
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || s->places[static_cast<std::size_t>(r)] == state::place::waits)
      continue;
    late.missing.push_back(r);
    break;
  }
  return late;
}

}  // namespace weir::peer
