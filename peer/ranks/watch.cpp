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
  } catch (...) {}  // no host memory: the others are not told
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
  if (collectives > s->own.count)
    s->exceptions[collectives % state::traces_kept] = exceptions;
  s->own = {collectives, trace};
  s->traces[collectives % state::traces_kept] = trace;
}

void rank_watch::unwound(std::uint64_t exceptions, std::uint64_t meets, std::span<transfers const> by_rank) noexcept {
  try {
    auto s = state_->all.lock();
    std::uint64_t const numbers[] = {s->own.count, exceptions, meets};
    state_->tell_end(*s, state::kind::unwound, rank_, {state::chars_of(numbers).data(), sizeof numbers},
                     {reinterpret_cast<char const*>(by_rank.data()), by_rank.size_bytes()});
  } catch (...) {}  // no host memory: the others wait until this rank ends
  os::wake_up(state_->wake.get());
}

int rank_watch::unwound_before(std::uint64_t exceptions, std::span<transfers const> own, std::uint64_t meets) const {
  auto s = state_->all.lock();
  for (std::size_t r = 0; r < s->unwound.size(); ++r) {
    std::uint64_t const its = s->unwound[r].exceptions, next = s->gone_count[r] + 1;
    if (its == 0 || s->gone[r])
      continue;
    bool const in_collective = next <= s->own.count && s->own.count - next < state::traces_kept &&
                               s->exceptions[next % state::traces_kept] < its;
    transfers const& with = s->gone_transfers[r];
    bool const in_transfer = own[r].sent > with.received || own[r].received > with.sent;
    bool const in_other = s->own.count < next && (in_transfer || meets == s->unwound[r].meets + 1);
    if (in_collective || (in_other && exceptions < its))
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
  auto const& with = s->gone_transfers[static_cast<std::size_t>(rank)];
  return s->gone[static_cast<std::size_t>(rank)] && (own.sent > with.received || own.received > with.sent);
}

int rank_watch::left_before(std::uint64_t collectives) const {
  auto s = state_->all.lock();
  for (int const r : s->gone_in_order)
    if (s->gone_count[static_cast<std::size_t>(r)] < collectives)
      return r;
  return -1;
}

rank_watch::at_barrier rank_watch::meet(round for_what, base::time_limit limit, std::string_view brings) {
  auto s = state_->all.lock();
  std::uint64_t const mine = s->barriers;
  bool const hub = state_->is_hub();
  auto const is_over = [&] {
    return failed_.load() || std::find(s->gone.begin(), s->gone.end(), true) != s->gone.end();
  };
  auto const say = [&](state::kind is) {
    if (hub) {
      s->coming[0] = {for_what, std::string(brings)};  // first: it may throw
      s->places[0] = is == state::kind::arrive ? state::place::waits : state::place::waited;
      state_->stand(*s);
    } else {
      s->withdrawn = false;
      std::string text(state::chars_of(mine).data(), sizeof mine);
      if (is == state::kind::arrive)
        text += brings;
      state_->send(*s, 0, is, rank_, text, is == state::kind::arrive ? for_what : round{});
    }
    os::wake_up(state_->wake.get());
  };
  say(state::kind::arrive);
  state_->changed.wait_for(s.lock(), limit, [&] { return s->barriers != mine || is_over(); });
  if (s->barriers == mine)
    say(state::kind::withdraw);
  // Rank 0 knows whether the last rank came before the withdrawal.
  if (!hub)
    state_->changed.wait(s.lock(), [&] { return s->barriers != mine || s->withdrawn || is_over(); });
  if (s->barriers != mine)
    return {.brought = std::exchange(s->brought, std::vector<offer>(static_cast<std::size_t>(size_)))};
  if (is_over())
    return {at_barrier::end::over};
  at_barrier late{at_barrier::end::late};
  for (int r = 0; r < size_; ++r)
    if (s->places[static_cast<std::size_t>(r)] == state::place::away)
      late.missing.push_back(r);
  for (int r = 0; late.missing.empty() && r < size_; ++r) {  // each came, but not at one time
    if (r != rank_ && s->places[static_cast<std::size_t>(r)] != state::place::waits)
      late.missing.push_back(r);
  }
  return late;
}

}  // namespace weir::peer
