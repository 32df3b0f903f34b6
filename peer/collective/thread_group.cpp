// Ranks that are threads of this process: what they have called, and who waits for whom.
// Threads: each rank by one thread at a time; abort by any.
#include <algorithm>
#include <utility>

#include "peer/collective/group.h"
#include "peer/link/links.h"
#include "runtime/core/parts.h"

namespace weir::peer {

thread_group::thread_group(runtime::impl& owner, std::vector<int> devices, std::unique_ptr<collective_backend> by)
    : group(owner, std::move(devices), std::move(by)) {
  auto s = shared_.lock();
  s->next.resize(devices_.size());
  s->gone.resize(devices_.size());
  s->unwound.resize(devices_.size());
  s->before.resize(devices_.size());
  s->launched.resize(devices_.size());
}

void thread_group::refuse_if_over(int rank, std::string const& operation, requests what, source_location at) const {
  auto s = shared_.lock();
  refuse_if_over(*s, rank, operation, what, at);
}

std::string thread_group::failure() const {
  auto s = shared_.lock();
  if (s->aborted_by < 0)
    return {};
  return base::text("rank ", s->aborted_by, " aborted this communicator", reason(*s));
}

std::string thread_group::reason(shared const& s) {
  return s.why.empty() ? s.why : ": " + s.why;
}

void thread_group::refuse_if_over(shared const& s, int rank, std::string const& operation, requests what,
                                  source_location at) const {
  std::string const subject = base::text("rank ", rank, " of ", size());
  if (s.aborted_by >= 0)
    throw driver_error(0, operation,
                       base::text(subject, ": rank ", s.aborted_by, " aborted this communicator", reason(s)),
                       "Create a new communicator", at, error_id{254});
  for (std::size_t other = 0; other < s.gone.size(); ++other)
    if (s.gone[other] && needs(what, static_cast<int>(other)))
      throw invalid_use(operation, base::text(subject, ": rank ", other, "'s communicator is destroyed"),
                        "Keep all ranks' communicators until the last collective call", at, error_id{255});
}

thread_group::pair& thread_group::pair_of(shared& s, int rank, collective_request const& r) {
  return s.pairs[r.what == collective::send ? std::array{rank, r.root} : std::array{r.root, rank}];
}

namespace {
[[noreturn]] void refuse_difference(std::string_view operation, int rank, std::string const& own, int first,
                                    std::string const& others, source_location at) {
  throw invalid_use(std::string(operation),
                    base::text("rank ", rank, " calls ", own, " where rank ", first, " called ", others),
                    "Call the same collectives in the same order on all ranks", at, error_id{256});
}
}  // namespace

void thread_group::refuse_other(int rank, collective_request const& r, asked const& first, source_location at) {
  std::string const line = first.at.file_name() ? base::text(" at ", first.at.file_name(), ":", first.at.line()) : "";
  if (!r.between_two())
    refuse_difference(name_of(r.what), rank, r.text(), first.first_rank, first.first.text() + line, at);
  throw invalid_use(std::string(name_of(r.what)),
                    base::text("rank ", rank, " calls ", r.text(), " where rank ", first.first_rank, " called ",
                               first.first.text(), line),
                    "Pass equal counts and types to a send and its receive", at, error_id{437});
}

void thread_group::agree(int rank, std::span<collective_request> all, source_location at) {
  int awaited = -1;
  {
    auto s = shared_.lock();
    refuse_if_over(*s, rank, std::string(name_of(all)), all, at);
    make_room(*s, rank, all);
    compare(*s, rank, all, at);
    std::uint64_t const exceptions = s->exceptions_of(rank);
    s->speaks(rank);
    for (collective_request& r : all)
      take_part(*s, rank, r, exceptions, at);
    if (have_collective(all))
      s->before[static_cast<std::size_t>(rank)].take(exceptions);
    awaited = s->awaited();
  }
  if (awaited < 0)
    return;
  // A rank now waits for one that an exception has silenced: all ranks end, this one too.
  end_if_awaited();
  refuse_if_over(rank, std::string(name_of(all)), all, at);
}

// The lists of open calls get room for this call, and for as many members as undo_part() reopens.
void thread_group::make_room(shared& s, int rank, requests all) {
  s.most_members = std::max(s.most_members, all.size());
  auto const reserve = [&](std::vector<asked>& open) {
    std::size_t const needed = open.size() + all.size() + s.most_members;
    if (open.capacity() < needed)
      open.reserve(std::max(needed, 2 * open.size()));
  };
  reserve(s.open);
  for (collective_request const& r : all) {
    if (r.between_two())
      reserve(pair_of(s, rank, r).open);
  }
}

void thread_group::compare_with_peer(pair const& p, std::size_t earlier, int rank, collective_request const& r,
                                     source_location at) {
  bool const sends = r.what == collective::send;
  std::uint64_t const own_calls = (sends ? p.sent : p.received) + earlier;
  std::uint64_t const peers_calls = sends ? p.received : p.sent;
  // The peer's calls that this rank has not answered are open, in order.
  if (own_calls < peers_calls && !r.fits(p.open[earlier].first))
    refuse_other(rank, r, p.open[earlier], at);
}

void thread_group::compare(shared& s, int rank, requests all, source_location at) {
  for (collective_request const& r : all) {
    if (r.between_two())
      pair_of(s, rank, r).compared = 0;
  }
  // This rank's next place among the calls that some rank has not made yet.
  std::size_t place = static_cast<std::size_t>(s.next[static_cast<std::size_t>(rank)] - s.closed);
  for (collective_request const& r : all) {
    if (r.between_two()) {
      pair& p = pair_of(s, rank, r);
      compare_with_peer(p, p.compared, rank, r, at);
      ++p.compared;
      continue;
    }
    // Past the open calls this rank is the first.
    if (place < s.open.size() && !r.matches(s.open[place].first))
      refuse_other(rank, r, s.open[place], at);
    ++place;
  }
}

void thread_group::take_part(shared& s, int rank, collective_request& r, std::uint64_t exceptions,
                             source_location at) const noexcept {
  if (r.between_two()) {
    pair& p = pair_of(s, rank, r);
    bool const sends = r.what == collective::send;
    std::uint64_t& own_calls = sends ? p.sent : p.received;
    std::uint64_t const peers_calls = sends ? p.received : p.sent;
    r.turn = own_calls;
    ++own_calls;
    // The peer has called it before: that is the oldest open call.
    if (r.turn < peers_calls)
      p.open.erase(p.open.begin());
    else
      p.open.push_back({.first = r, .first_rank = rank, .at = at, .ranks = 1, .exceptions = exceptions});
    return;
  }
  std::uint64_t& next = s.next[static_cast<std::size_t>(rank)];
  std::size_t const place = static_cast<std::size_t>(next - s.closed);
  if (place == s.open.size())
    s.open.push_back({.first = r, .first_rank = rank, .at = at, .ranks = 0});
  ++s.open[place].ranks;
  r.turn = next++;
  if (s.open.front().ranks == size()) {  // only the front can be complete; this rank was its last
    s.open.erase(s.open.begin());
    ++s.closed;
  }
}

void thread_group::withdraw(int rank, requests all, source_location at) noexcept {
  auto s = shared_.lock();
  if (have_collective(all))
    s->before[static_cast<std::size_t>(rank)].take_back();
  for (std::size_t i = all.size(); i-- > 0;)
    undo_part(*s, rank, all[i], at);
}

void thread_group::undo_part(shared& s, int rank, collective_request const& r, source_location at) const noexcept {
  if (r.between_two()) {
    pair& p = pair_of(s, rank, r);
    bool const sends = r.what == collective::send;
    std::uint64_t& own_calls = sends ? p.sent : p.received;
    std::uint64_t const peers_calls = sends ? p.received : p.sent;
    --own_calls;
    // The peer had called it before: its call is open again.
    if (own_calls < peers_calls)
      p.open.insert(p.open.begin(), asked{.first = r.seen_from(rank), .first_rank = r.root, .at = at, .ranks = 1});
    else
      p.open.pop_back();
    return;
  }
  std::uint64_t& next = s.next[static_cast<std::size_t>(rank)];
  --next;
  // This rank's call was the last, and closed it: it opens again for the retry, in the name of another rank.
  if (next < s.closed) {
    int const other = rank == 0 ? size() - 1 : 0;
    s.open.insert(s.open.begin(), asked{.first = r, .first_rank = other, .at = at, .ranks = size() - 1});
    --s.closed;
    return;
  }
  asked& call = s.open[static_cast<std::size_t>(next - s.closed)];
  --call.ranks;
  // No other rank got this far, so it is the last entry.
  if (call.ranks == 0)
    s.open.pop_back();
}

namespace {
// came: by rank
[[noreturn]] void throw_timed_out(group const& all, std::vector<bool> const& came, int rank,
                                  std::string const& operation, base::time_limit limit, source_location at) {
  std::string missing;
  for (int other = 0; other < all.size(); ++other) {
    if (other == rank || came[static_cast<std::size_t>(other)])
      continue;
    if (!missing.empty())
      missing += ", ";
    missing += base::text("rank ", other, " (gpu:", all.device(other), ")");
  }
  throw timed_out(operation, base::text("rank ", rank, " waited ", limit.ns() / 1'000'000, " ms for ", missing),
                  "Check why the thread of that rank did not call, or use a longer limit", at, error_id{258});
}

bool is_any(std::vector<bool> const& of) {
  return std::find(of.begin(), of.end(), true) != of.end();
}
}  // namespace

// The others go on waiting, and their round is named by one of them.
void thread_group::leave_round(shared& s, int rank) {
  round& m = *s.meets;
  m.came[static_cast<std::size_t>(rank)] = false;
  auto const first = std::find(m.came.begin(), m.came.end(), true);
  if (first == m.came.end())
    s.meets.reset();
  else if (m.first_rank == rank)
    m.first_rank = static_cast<int>(first - m.came.begin());
}

std::shared_ptr<thread_group::round> thread_group::meet(int rank, std::string_view operation, color_and_key mine,
                                                        base::time_limit limit, source_location at,
                                                        void (thread_group::*see_to)(round&,
                                                                                     source_location) noexcept) {
  auto const self = static_cast<std::size_t>(rank);
  std::string const op(operation);
  std::shared_ptr<round> m;
  {
    auto s = shared_.lock();
    refuse_if_over(*s, rank, op, {}, at);
    if (!s->meets)
      s->meets = std::make_shared<round>(
          round{operation, rank, std::vector<bool>(devices_.size()), std::vector<color_and_key>(devices_.size())});
    m = s->meets;
    s->speaks(rank);
    if (m->operation != operation)
      refuse_difference(operation, rank, op, m->first_rank, std::string(m->operation), at);
    m->came[self] = true;
    m->colors[self] = mine;
    m->full = std::count(m->came.begin(), m->came.end(), true) == size();
    if (m->full) {
      m->last_rank = rank;
      s->meets.reset();
    } else {
      s.lock().unlock();  // end_if_awaited() takes it
      end_if_awaited();
      s.lock().lock();
      // After an abort, or without a rank that has left, it never fills.
      auto const never_fills = [&] { return !m->full && (s->aborted_by >= 0 || is_any(s->gone)); };
      changed_.wait_for(s.lock(), limit, [&] { return m->is_seen_to || never_fills(); });
      // The last rank sees to the round. This rank's limit no longer counts.
      if (m->full) {
        changed_.wait(s.lock(), [&] { return m->is_seen_to; });
        return m;
      }
      leave_round(*s, rank);
      refuse_if_over(*s, rank, op, {}, at);
      throw_timed_out(*this, m->came, rank, op, limit, at);
    }
  }
  // The last rank alone.
  if (see_to)
    (this->*see_to)(*m, at);
  {
    auto s = shared_.lock();
    m->is_seen_to = true;
  }
  changed_.notify_all();
  return m;
}

void thread_group::barrier(int rank, base::time_limit limit, source_location at) {
  (void)meet(rank, "barrier", {}, limit, at, nullptr);
}

constexpr std::chrono::minutes longest_wait{10};

bool thread_group::all_are_ready(rank_watch::round why, int rank, bool mine, source_location at) {
  auto const m = meet(rank, name_of_round(why), {mine ? 1 : 0, 0}, longest_wait, at, nullptr);
  return std::ranges::all_of(m->colors, [](color_and_key const& its) { return its[0] != 0; });
}

seat thread_group::split(int rank, int color, int key, source_location at) {
  auto const m = meet(rank, "split", {color, key}, longest_wait, at, &thread_group::seat_all);
  if (m->seats.empty() && m->last_rank == rank)
    std::rethrow_exception(std::exchange(m->failed, nullptr));
  if (m->seats.empty())
    throw driver_error(0, "split", base::text("rank ", rank, " of ", size(), ": rank ", m->last_rank, " has: ", m->why),
                       "Repeat the call on all ranks", at, error_id{442});
  return std::move(m->seats[static_cast<std::size_t>(rank)]);
}

// By the last rank's thread, for all.
void thread_group::seat_all(round& m, source_location at) noexcept {
  std::vector<seat> seats;
  try {
    seats.resize(devices_.size());
    for (std::size_t r = 0; r < seats.size(); ++r) {
      // A rank of the same color has seated it before.
      bool const is_seated = seats[r].in != nullptr;
      if (m.colors[r][0] == communicator::no_color || is_seated)
        continue;
      std::vector<int> const members = members_of(m.colors[r][0], m.colors);
      std::vector<int> on;
      for (int const member : members)
        on.push_back(device(member));
      auto const made = group_of_threads(runtime_, on, at);
      for (int k = 0; k < made->size(); ++k)
        seats[static_cast<std::size_t>(members[static_cast<std::size_t>(k)])] = {made, k};
    }
    m.seats = std::move(seats);
  } catch (std::exception const& e) {
    m.failed = std::current_exception();
    try {
      m.why = e.what();
    } catch (...) {}  // no host memory for the text
    for (seat const& one : seats)
      if (one.in)
        one.in->leave(one.rank);
  }
}

void thread_group::abort(int rank, std::string_view why) noexcept {
  {
    auto s = shared_.lock();
    if (s->aborted_by < 0) {
      s->aborted_by = rank;
      try {
        if (why != by_its_program)
          s->why = why;
      } catch (...) {}  // no host memory for the text
    }
  }
  changed_.notify_all();
  if (!ended())
    backend_->abort();
}

void thread_group::end_if_awaited() noexcept {
  int rank = -1;
  std::string_view owner;
  {
    auto s = shared_.lock();
    if (s->aborted_by < 0)
      rank = s->awaited();
    if (rank >= 0)
      owner = s->unwound[static_cast<std::size_t>(rank)].owner;
  }
  if (rank >= 0)
    abort(rank, owner);
}

void thread_group::unwound(int rank, std::string_view owner) noexcept {
  {
    auto s = shared_.lock();
    auto& its = s->unwound[static_cast<std::size_t>(rank)];
    // Those before its last call count no more.
    its.count = s->exceptions_of(rank) + 1;
    its.step = s->before[static_cast<std::size_t>(rank)].steps();
    its.owner = owner;
    if (!its.silent)
      ++s->silent;
    its.silent = true;
  }
  end_if_awaited();
}

void thread_group::launches(int rank, captured_requests const& all, char const* operation, source_location at) {
  int gone = -1;  // a rank that can launch no more, and that this one waits for
  {
    auto s = shared_.lock();
    if (s->aborted_by >= 0 || s->gone[static_cast<std::size_t>(rank)])
      refuse_if_over(*s, rank, operation, {}, at);
    s->add_launched(rank, all);
    s->speaks(rank);
    for (std::size_t other = 0; other < s->gone.size(); ++other)
      if (s->gone[other] && s->has_launched_less(static_cast<int>(other)))
        gone = static_cast<int>(other);
  }
  if (gone >= 0)
    abort(gone, "its communicator is destroyed, and another rank launches a graph with its collectives");
  else
    end_if_awaited();
  if (failure().empty())
    return;
  launch_refused(rank, all);
  refuse_if_over(rank, operation, {}, at);
}

void thread_group::launch_refused(int rank, captured_requests const& all) noexcept {
  shared_.lock()->take_back_launched(rank, all);
}

bool thread_group::waits(int rank) const noexcept {
  auto s = shared_.lock();
  if (s->aborted_by >= 0)
    return false;
  // For a collective.
  if (s->next[static_cast<std::size_t>(rank)] > s->closed || s->has_launched_more(rank))
    return true;
  // For a transfer: all open calls of a pair are of one rank.
  return std::any_of(s->pairs.begin(), s->pairs.end(),
                     [&](auto const& p) { return !p.second.open.empty() && p.second.open.front().first_rank == rank; });
}

void thread_group::leave(int rank) noexcept {
  bool has_open = false, is_aborted = false;
  {
    auto s = shared_.lock();
    // Others wait for this rank, or for ranks that are refused from now on.
    has_open = s->has_open(rank) || s->has_launched_more(rank) || s->has_launched_less(rank);
    is_aborted = s->aborted_by >= 0;
    s->gone[static_cast<std::size_t>(rank)] = true;
  }
  changed_.notify_all();
  if (has_open && !is_aborted)
    abort(rank, {});
  if (!ended())
    leave_backend(rank);
}

void thread_group::runtime_ends() noexcept {
  for (int rank = 0; rank < size(); ++rank) {
    bool has_left = false, has_open = false, is_aborted = false;
    {
      auto s = shared_.lock();
      has_left = s->gone[static_cast<std::size_t>(rank)];
      has_open = s->has_open(rank) || s->has_launched_more(rank) || s->has_launched_less(rank);
      is_aborted = s->aborted_by >= 0;
      s->gone[static_cast<std::size_t>(rank)] = true;
    }
    if (has_left)
      continue;
    if (has_open && !is_aborted)
      abort(rank, {});
    leave_backend(rank);
  }
  changed_.notify_all();
  ended_.store(true, base::memory_order_release);
}

std::vector<int> members_of(int color, std::span<color_and_key const> colors) {
  std::vector<int> members;
  for (std::size_t r = 0; r < colors.size(); ++r)
    if (colors[r][0] == color)
      members.push_back(static_cast<int>(r));
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return colors[static_cast<std::size_t>(a)][1] < colors[static_cast<std::size_t>(b)][1];
  });
  return members;
}

std::shared_ptr<group> group_of_threads(runtime::impl& owner, std::vector<int> devices, source_location at) {
  bool const simulated = owner.machine().simulated();
  auto by = simulated ? carried_by_streams(owner, devices) : carried_by_nccl(owner, devices, at);
  // Links are proven now. Later collectives may always be under way, and no link is tested beside them.
  if (!simulated && devices.size() > 1)
    owner.part<links>().prove_all(devices, at);
  auto all = shared_by_ranks(std::make_unique<thread_group>(owner, std::move(devices), std::move(by)));
  add_to(owner, all);
  return all;
}

}  // namespace weir::peer
