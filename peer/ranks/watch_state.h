// What the watching thread of a rank knows, sends and hears. It never blocks on a connection.
// Threads: run() in one. What is `shared` has its own lock; functions that take it are called with the lock.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>

#include "peer/ranks/exceptions.h"
#include "peer/ranks/watch.h"
#include "runtime/base/text.h"

namespace weir::peer {

struct rank_watch::state {
  enum class kind : std::uint32_t { beat = 1, arrive, withdraw, standing, accuse, verdict, gone, brought, unwound };
  struct head {
    std::uint32_t bytes = 0;  // that follow
    kind is = kind::beat;
    // The accused, the rank that has gone, brought or unwound. standing: 1 answers the receiver's withdrawal.
    std::int32_t about = 0;
    rank_watch::round round{};  // arrive, brought
  };
  static constexpr std::size_t most_bytes = 16384;
  static constexpr std::size_t most_unsent = 1 << 20;
  static constexpr std::int64_t flush_ns = 1'000'000'000;

  struct end_counts {  // of a rank that has gone, or is unwound: what it had called
    std::uint64_t collectives = 0, launched = 0, steps = 0;
  };
  struct marks {  // of a rank's silence
    std::uint64_t exceptions = 0, meets = 0;
  };
  struct called {
    std::uint64_t count = 0, trace = 0;  // of calls
    std::uint64_t launched = 0;          // collectives of launched graphs
    std::uint64_t all() const noexcept { return count + launched; }
  };
  static constexpr std::size_t traces_kept = 1024;

  static std::span<char const> chars_of(auto const& value) {
    return {reinterpret_cast<char const*>(&value), sizeof value};
  }

  enum class place : char { away, waits, gave_up };  // gave_up: it came, and timed out

  // Known to the watching thread alone.
  struct peer_line {
    os::owned_file socket{};
    std::string unread{};
    std::int64_t heard_ns = 0;
    called has{};
    std::int64_t waited_ns = 0;  // since when others wait for this rank; 0: they do not
  };
  struct shared {
    called own;
    std::array<std::uint64_t, traces_kept> traces{};  // of this rank, by count
    exceptions_before_steps before{};                 // likewise
    std::string failure;
    std::vector<std::string> unsent;  // by rank
    std::vector<bool> gone;
    std::vector<int> gone_in_order;         // the same ranks
    std::vector<end_counts> gone_counts;    // of a rank when it left
    std::vector<transfers> gone_transfers;  // with this rank
    std::vector<marks> unwound;             // after the calls that the two above count
    std::vector<transfers> own_transfers;   // set when this rank ends
    std::uint64_t barriers = 0;             // completed
    std::vector<place> places;              // at the current one: as rank 0 knows them, or has told
    bool withdrawn = false;                 // rank 0 has answered a withdrawal
    std::vector<offer> coming;              // to the current barrier, as rank 0 knows them
    std::vector<offer> brought;             // to the last one that was completed
  };

  rank_watch& of;
  os::owned_file wake = os::make_wake_up();
  std::vector<peer_line> lines;  // by rank; not open: this rank, and on ranks other than 0 all but rank 0
  base::guarded<shared> all{};
  base::condition changed{};

  explicit state(rank_watch& w) : of(w), lines(static_cast<std::size_t>(w.size_)) {
    auto s = all.lock();
    s->unsent.resize(lines.size()), s->gone.resize(lines.size()), s->gone_counts.resize(lines.size());
    s->gone_transfers.resize(lines.size()), s->unwound.resize(lines.size());
    s->places.resize(lines.size()), s->coming.resize(lines.size()), s->brought.resize(lines.size());
  }

  bool is_hub() const noexcept { return of.rank_ == 0; }
  std::size_t all_transfers() const noexcept { return lines.size() * sizeof(transfers); }

  void send(shared& s, int to, kind is, int about, std::span<char const> bytes, round of_round = {}) {
    std::string& out = s.unsent[static_cast<std::size_t>(to)];
    if (out.size() > most_unsent)
      return;  // the other end is frozen, which its silence tells
    head const h{static_cast<std::uint32_t>(bytes.size()), is, about, of_round};
    out.append(chars_of(h).data(), sizeof h).append(bytes.data(), bytes.size());
  }
  // To all that have a line here.
  void send_all(shared& s, kind is, int about, std::span<char const> bytes, round of_round = {}) {
    if (!is_hub())
      return send(s, 0, is, about, bytes, of_round);
    for (int r = 1; r < of.size_; ++r)
      send(s, r, is, about, bytes, of_round);
  }

  // Tells that a rank has gone, or is unwound. `counts`: its end_counts; if it is unwound, its marks follow.
  // `by_rank`: its transfers with each rank; empty: not known.
  // Rank 0 gets the whole table. It tells each other rank one entry: the transfers with that rank.
  void tell_end(shared& s, kind is, int rank, std::string_view counts, std::string_view by_rank) {
    if (!is_hub())
      return send(s, 0, is, rank, std::string(counts) + std::string(by_rank));
    for (int r = 1; r < of.size_; ++r) {
      if (r == rank)
        continue;
      std::string_view with_r;
      if (!by_rank.empty())
        with_r = by_rank.substr(static_cast<std::size_t>(r) * sizeof(transfers), sizeof(transfers));
      send(s, r, is, rank, std::string(counts) + std::string(with_r));
    }
  }

  // Sends as much as the lines take now. What has no line, or none any more, is dropped.
  void write_out() {
    auto s = all.lock();
    for (std::size_t r = 0; r < lines.size(); ++r) {
      std::string& out = s->unsent[r];
      if (!lines[r].socket.is_open()) {
        out.clear();
        continue;
      }
      if (out.empty())
        continue;
      out.erase(0, os::send_some(lines[r].socket.get(), std::as_bytes(std::span(out))));
    }
  }
  bool all_sent() const {
    auto s = all.lock();
    return std::all_of(s->unsent.begin(), s->unsent.end(), [](auto const& out) { return out.empty(); });
  }

  // The first verdict counts. Returns: whether this is it.
  bool decide(int rank, std::string_view why, bool tell) noexcept {
    {
      auto s = all.lock();
      if (of.failed_.load())
        return false;
      try {
        s->failure = why.substr(0, most_bytes);
        if (tell)
          send_all(*s, is_hub() ? kind::verdict : kind::accuse, rank, s->failure);
      } catch (...) {}  // no host memory: this rank alone has failed, until the others see it end
      of.failed_.store(true, base::memory_order_release);
    }
    changed.notify_all();
    return true;
  }
  void decide_here(int rank, std::string const& why, bool tell = true) {
    if (!decide(rank, why, tell))
      return;
    write_out();  // before on_change, which may end the process
    of.on_change_();
  }

  called own() const { return all.lock()->own; }

  std::string counted(int rank) const {
    return base::text("after its collective ",
                      rank == of.rank_ ? own().all() : lines[static_cast<std::size_t>(rank)].has.all());
  }

  // Rank 0: all wait at the barrier.
  void complete_barrier(shared& s) {
    s.places.assign(s.places.size(), place::away);
    ++s.barriers;
    s.brought.swap(s.coming);
    s.coming.assign(lines.size(), {});
    bool const is_news = std::any_of(s.brought.begin(), s.brought.end(),
                                     [&](offer const& b) { return !b.bytes.empty() || b.is != s.brought[0].is; });
    // Without news each rank takes the others' offers to be as its own.
    if (!is_news)
      return;
    for (int rank = 0; rank < of.size_; ++rank) {
      offer const& its = s.brought[static_cast<std::size_t>(rank)];
      send_all(s, kind::brought, rank, its.bytes, *its.is);
    }
  }

  // Rank 0: counts those at the barrier, and tells all. `answered`: the rank whose withdrawal this answers.
  void stand(shared& s, int answered = -1) {
    // First: offers go before the message that ends the ranks' wait.
    if (std::count(s.places.begin(), s.places.end(), place::waits) == of.size_)
      complete_barrier(s);
    std::string text(chars_of(s.barriers).data(), sizeof s.barriers);
    for (place const p : s.places)
      text += static_cast<char>(p);
    if (text.size() > most_bytes)
      text.resize(sizeof s.barriers);  // too many ranks to be named
    for (int r = 1; r < of.size_; ++r)
      send(s, r, kind::standing, r == answered ? 1 : 0, text);
  }

  // This rank comes to the barrier, or gives it up after its limit.
  void arrive(shared& s, round for_what, std::string_view brings) {
    if (is_hub()) {
      s.coming[0] = {for_what, std::string(brings)};  // first: it may throw
      s.places[0] = place::waits;
      stand(s);
    } else {
      std::string text(chars_of(s.barriers).data(), sizeof s.barriers);
      text += brings;
      send(s, 0, kind::arrive, of.rank_, text, for_what);
    }
    os::wake_up(wake.get());
  }
  void withdraw(shared& s) {
    if (is_hub()) {
      s.places[0] = place::gave_up;
      stand(s);
    } else {
      s.withdrawn = false;  // until rank 0 answers this one
      send(s, 0, kind::withdraw, of.rank_, chars_of(s.barriers));
    }
    os::wake_up(wake.get());
  }

  void close(int rank, std::string const& how) {
    lines[static_cast<std::size_t>(rank)].socket.close();
    // It said before that it goes: its end is no failure.
    if (all.lock()->gone[static_cast<std::size_t>(rank)])
      return;
    decide_here(rank, base::text("rank ", rank, " ", how, ", ", counted(rank)));
  }

  void read(int from) {
    peer_line& line = lines[static_cast<std::size_t>(from)];
    std::array<std::byte, 4096> part;
    while (true) {
      int const n = os::receive_some(line.socket.get(), part);
      // All that has come is read.
      if (n == 0)
        break;
      // What it sent before its end may tell why.
      if (n < 0) {
        take_messages(from);
        if (line.socket.is_open())
          close(from, "has ended, or its connection is broken");
        return;
      }
      line.unread.append(reinterpret_cast<char const*>(part.data()), static_cast<std::size_t>(n));
      line.heard_ns = base::now_ns();
      take_messages(from);
      if (!line.socket.is_open())
        return;
    }
  }

  void take_messages(int from) {
    peer_line& line = lines[static_cast<std::size_t>(from)];
    while (line.unread.size() >= sizeof(head)) {
      head h;
      std::memcpy(&h, line.unread.data(), sizeof h);
      // A message of an end has a table of all ranks, and so may be longer: understood() knows its length.
      bool const tells_an_end = h.is == kind::gone || h.is == kind::unwound;
      bool const is_too_long = h.bytes > most_bytes && !tells_an_end;
      if (is_too_long || !understood(from, h))
        return close(from, "sends what is none of weir's messages");
      if (line.unread.size() < sizeof h + h.bytes)
        return;
      std::string const bytes = line.unread.substr(sizeof h, h.bytes);
      line.unread.erase(0, sizeof h + h.bytes);
      heard(from, h, bytes);
    }
  }

  bool understood(int from, head const& h) const noexcept {
    bool const by_hub = from == 0, about_a_rank = h.about >= 0 && h.about < of.size_;
    // All in bytes. A message of an end may lack the transfers.
    std::size_t const number = sizeof(std::uint64_t), its_transfers = by_hub ? sizeof(transfers) : all_transfers();
    switch (h.is) {
      case kind::beat: return h.bytes == sizeof(called) && about_a_rank;
      case kind::gone: return (h.bytes == 3 * number || h.bytes == 3 * number + its_transfers) && about_a_rank;
      case kind::unwound: return (h.bytes == 5 * number || h.bytes == 5 * number + its_transfers) && about_a_rank;
      case kind::arrive: return !by_hub && h.bytes >= number && h.round <= round::connect;
      case kind::withdraw: return !by_hub && h.bytes == number;
      case kind::brought: return by_hub && about_a_rank && h.round <= round::connect;
      case kind::accuse: return !by_hub && about_a_rank && h.bytes > 0;
      case kind::verdict: return by_hub && about_a_rank && h.bytes > 0;
      case kind::standing: return by_hub && (h.bytes == number || h.bytes == number + lines.size());
    }
    return false;
  }

  void heard(int from, head const& h, std::string const& bytes) {
    switch (h.is) {
      case kind::beat: return heard_beat(from, bytes);
      case kind::accuse:
      case kind::verdict: return decide_here(h.about, bytes);
      case kind::gone:
      case kind::unwound: return heard_end(from, h, bytes);
      case kind::arrive:
      case kind::withdraw: heard_arrival(from, h, bytes); break;
      case kind::brought: all.lock()->brought[static_cast<std::size_t>(h.about)] = {h.round, bytes}; break;
      case kind::standing: heard_standing(h, bytes); break;
    }
    changed.notify_all();
  }

  static std::uint64_t number_in(std::string const& bytes) {  // the first one
    std::uint64_t number = 0;
    if (bytes.size() >= sizeof number)
      std::memcpy(&number, bytes.data(), sizeof number);
    return number;
  }

  void heard_beat(int from, std::string const& bytes) {
    peer_line& line = lines[static_cast<std::size_t>(from)];
    std::uint64_t const before = line.has.all();
    std::memcpy(&line.has, bytes.data(), sizeof line.has);
    if (line.has.all() != before)
      line.waited_ns = 0;
  }

  // A rank is gone, or an exception has unwound its communicators. tell_end() made the bytes: its counts, its
  // marks if it is unwound, and its transfers.
  void heard_end(int from, head const& h, std::string const& bytes) {
    bool const is_gone = h.is == kind::gone;
    // Each rank tells rank 0 of itself; rank 0 tells the others of any.
    std::size_t const about = static_cast<std::size_t>(is_hub() ? from : h.about);
    std::size_t counts_bytes = sizeof(end_counts);
    if (!is_gone)
      counts_bytes += sizeof(marks);
    {
      auto s = all.lock();
      if (is_gone && !s->gone[about]) {
        s->gone_in_order.push_back(static_cast<int>(about));
        s->gone[about] = true;
        of.any_left_.store(true);
      }
      std::memcpy(&s->gone_counts[about], bytes.data(), sizeof(end_counts));
      transfers& with_this = s->gone_transfers[about];
      // The most there can be, in case they are not told: then no transfer seems to wait for that rank.
      with_this = {~std::uint64_t{0}, ~std::uint64_t{0}};
      // The first entry is this rank's: rank 0 leads the table that it hears, the others hear one entry.
      if (bytes.size() > counts_bytes)
        std::memcpy(&with_this, bytes.data() + counts_bytes, sizeof with_this);
      if (!is_gone)
        std::memcpy(&s->unwound[about], bytes.data() + sizeof(end_counts), sizeof(marks));
      of.any_unwound_.store(std::ranges::any_of(s->unwound, [](marks const& m) { return m.exceptions > 0; }));
      if (is_hub())
        tell_end(*s, h.is, from, bytes.substr(0, counts_bytes), std::string_view(bytes).substr(counts_bytes));
    }
    changed.notify_all();
    of.on_change_();
  }

  // A rank comes to a barrier, or gives it up. One of an earlier barrier changes no place.
  void heard_arrival(int from, head const& h, std::string const& bytes) {
    std::uint64_t const barrier = number_in(bytes);
    std::size_t const who = static_cast<std::size_t>(from);
    bool const arrives = h.is == kind::arrive;
    auto s = all.lock();
    if (barrier == s->barriers) {
      if (arrives)
        s->coming[who] = {h.round, bytes.substr(sizeof barrier)};
      s->places[who] = arrives ? place::waits : place::gave_up;
    }
    int withdrawing = -1;
    if (!arrives)
      withdrawing = from;  // it waits for an answer, also about an earlier barrier
    stand(*s, withdrawing);
  }

  void heard_standing(head const& h, std::string const& bytes) {
    auto s = all.lock();
    s->barriers = number_in(bytes);
    for (std::size_t r = 0; sizeof s->barriers + r < bytes.size(); ++r)
      s->places[r] = static_cast<place>(bytes[sizeof s->barriers + r]);
    // The message answers this rank's withdrawal.
    if (h.about == 1)
      s->withdrawn = true;
  }

  // Rank 0: whether a rank has called something else; it is named.
  bool compare() {
    for (int r = 1; r < of.size_; ++r) {
      peer_line const& line = lines[static_cast<std::size_t>(r)];
      {
        auto s = all.lock();
        // Nothing to compare: that rank has called nothing, rank 0 less, or rank 0 has dropped that trace.
        std::uint64_t const count = line.has.count;
        if (count == 0 || count > s->own.count || s->own.count - count >= traces_kept)
          continue;
        if (s->traces[count % traces_kept] == line.has.trace)
          continue;
      }
      decide_here(
          r, base::text("rank ", r, " has called other collectives than rank 0, or in another order, among its first ",
                        line.has.count));
      return true;
    }
    return false;
  }

  // Names a rank that is silent, and on rank 0 also one that calls something else or nothing.
  void judge(std::int64_t now) {
    std::vector<bool> const gone = all.lock()->gone;
    for (int r = 0; r < of.size_; ++r) {
      peer_line const& line = lines[static_cast<std::size_t>(r)];
      if (line.socket.is_open() && !gone[static_cast<std::size_t>(r)] && now - line.heard_ns > of.limits_.silence.ns())
        return decide_here(r, base::text("rank ", r, " has sent nothing for ", (now - line.heard_ns) / 1'000'000,
                                         " ms, ", counted(r), ": its process or machine is frozen"));
    }
    if (!is_hub())
      return;
    if (of.limits_.compares && compare())
      return;
    judge_counts(now, gone);
  }

  // Rank 0: names a rank that is behind the furthest one for too long.
  void judge_counts(std::int64_t now, std::vector<bool> const& gone) {
    called const own = this->own();
    auto most = own.all();
    for (peer_line const& line : lines)
      most = std::max(most, line.has.all());
    for (int r = 0; r < of.size_; ++r) {
      peer_line& line = lines[static_cast<std::size_t>(r)];
      // Rank 0 sends itself no beat: what heard_beat() does for the others is done here.
      if (r == 0) {
        if (line.has.all() != own.all())
          line.waited_ns = 0;
        line.has = own;
      }
      if (line.has.all() == most || gone[static_cast<std::size_t>(r)])
        line.waited_ns = 0;
      else if (line.waited_ns == 0)
        line.waited_ns = now;
      else if (now - line.waited_ns > of.limits_.behind.ns())
        return decide_here(
            r, base::text("rank ", r, " has called no collective for ", (now - line.waited_ns) / 1'000'000, " ms, ",
                          counted(r), ", while others wait in collective ", most));
    }
  }

  // The watching thread: a turn each period, or when something comes. After this rank's end began, it stays
  // until all is sent, for a limited time.
  void run() {
    std::int64_t const period = std::clamp<std::int64_t>(of.limits_.silence.ns() / 8, 2'000'000, 1'000'000'000);
    std::int64_t last = base::now_ns();
    std::int64_t next_beat = 0;
    for (peer_line& line : lines)
      line.heard_ns = last;
    std::int64_t end = 0;  // of the time for what is unsent; 0: the end has not begun
    while (end == 0 || (base::now_ns() < end && !all_sent())) {
      std::vector<bool> const& ready = wait_for_messages(period);
      std::int64_t const now = base::now_ns();
      // If this process was stopped, the others' silence is its own: they get another chance.
      if (now - last > of.limits_.silence.ns() / 2) {
        for (peer_line& line : lines)
          line.heard_ns = now;
      }
      last = now;
      read_all(ready);
      if (now >= next_beat) {
        next_beat = now + period;
        auto s = all.lock();
        send_all(*s, kind::beat, of.rank_, chars_of(s->own));
      }
      if (end == 0 && of.ending_.load(base::memory_order_acquire)) {
        end = now + flush_ns;
        tell_own_end();
      }
      write_out();
      // A rank that ends judges no other.
      if (end != 0)
        continue;
      if (of.turn_away_)
        of.turn_away_();
      judge(now);
    }
  }

  // Returns: which can be read, the wake-up first, then the line of each rank.
  std::vector<bool> const& wait_for_messages(std::int64_t most_ns) {
    std::vector<int> sockets{wake.get()};
    for (peer_line const& line : lines)
      sockets.push_back(line.socket.get());
    os::wait_readable(sockets, ready_, std::chrono::nanoseconds(most_ns));
    return ready_;
  }

  void read_all(std::vector<bool> const& ready) {
    if (ready[0])
      os::take_wake_ups(wake.get());
    for (int r = 0; r < of.size_; ++r) {
      if (ready[static_cast<std::size_t>(r) + 1])
        read(r);
    }
  }

  void tell_own_end() {
    auto s = all.lock();
    std::string_view by_rank;
    // Without a table, end() was told none: the transfers are not known.
    if (s->own_transfers.size() == lines.size())
      by_rank = {reinterpret_cast<char const*>(s->own_transfers.data()), all_transfers()};
    end_counts const own{s->own.count, s->own.launched, s->before.steps()};
    auto const counts = chars_of(own);
    tell_end(*s, kind::gone, of.rank_, {counts.data(), counts.size()}, by_rank);
  }

  std::vector<bool> ready_;
};

}  // namespace weir::peer
