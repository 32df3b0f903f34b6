// One rank of several processes: what it knows of others, and how it meets them.
// Threads: the rank's; abort and the watch by any.
#include <algorithm>
#include <cstring>
#include <exception>

#include "peer/collective/group.h"
#include "peer/ranks/watch.h"
#include "runtime/base/os.h"
#include "runtime/core/parts.h"

namespace weir {
namespace peer {
namespace {

constexpr char const* restart = "Start the program again, from its last checkpoint";

class process_group;

void give_up(rank_watch& watch, int rank, std::string_view why) noexcept {
  try {
    watch.accuse(rank, base::text("rank ", rank, " gave up: ", why));
  } catch (...) {  // no host memory for the text
    watch.accuse(rank, why);
  }
}

// A hash of a sequence of requests and one more; ranks that call the same have the same.
std::uint64_t next_trace(std::uint64_t before, collective_request const& r) noexcept {
  std::uint64_t const how = r.reduces() ? static_cast<std::uint64_t>(r.how) : 0;
  std::uint64_t const root = r.has_root() ? static_cast<std::uint64_t>(r.root) : 0;
  std::uint64_t const kind = static_cast<std::uint64_t>(r.what) | static_cast<std::uint64_t>(r.type) << 8 | how << 16;
  std::uint64_t const member = r.member | static_cast<std::uint64_t>(r.members) << 32;
  std::uint64_t x = before ^ static_cast<std::uint64_t>(r.count);
  for (std::uint64_t const part : {kind, root ^ r.placed, member}) {
    x = (x ^ part) * 0x9e3779b97f4a7c15u;
    x ^= x >> 32;
  }
  return x;
}

// The watch begins before the backend is connected, and so before there is a group.
struct bond {
  base::atomic<process_group*> of{nullptr};
  std::unique_ptr<rank_watch> watch;
  void changed() noexcept;
};

class process_group final : public group {
 public:
  process_group(runtime::impl& owner, std::vector<int> devices, int rank, std::unique_ptr<collective_backend> by,
                std::shared_ptr<bond> to_others, rank_options const& o)
      : group(owner, std::move(devices), std::move(by)),
        rank_(rank),
        simulated_(owner.machine().simulated()),
        options_(o),
        bond_(std::move(to_others)) {
    transfers_.lock()->resize(devices_.size());
    bond_->of.store(this);
    if (watch().failed())
      backend_->abort();
  }
  ~process_group() override { leave(rank_); }

  void connect(source_location at) {
    try {
      backend_->connect([&] { (void)meet(rank_watch::round::connect, {}, options_.start, at); }, at);
      if (watch().failed())
        refuse_if_over(rank_, std::string(name_of_round(rank_watch::round::connect)), {}, at);
    } catch (driver_error const& e) {
      // The cause may be a rank that has failed: then its verdict is told.
      end_broken(rank_, std::string(e.operands()), std::string(name_of_round(rank_watch::round::connect)), at);
      throw;
    } catch (std::exception const& e) {
      abort(rank_, e.what());
      throw;
    }
  }

  void barrier(int, base::time_limit limit, source_location at) override {
    (void)meet(rank_watch::round::barrier, {}, limit, at);
  }

  bool all_are_ready(rank_watch::round why, int, bool mine, source_location at) override {
    // what all ranks have called, this call too
    std::string const calls(reinterpret_cast<char const*>(&trace_), sizeof trace_);
    auto const all = meet(why, calls + (mine ? '1' : '0'), options_.start, at);
    return std::ranges::all_of(all, [](rank_watch::offer const& its) { return its.bytes.back() == '1'; });
  }

  // Any rank may be the first of its color, so each brings an id. One round tells all: a failure never leaves
  // some ranks waiting in a second one.
  seat split(int, int color, int key, source_location at) override {
    bool const takes_part = color != communicator::no_color;
    color_and_key const mine{color, key};
    rendezvous_point point;
    std::string brings(reinterpret_cast<char const*>(mine.data()), sizeof mine);
    if (takes_part) {
      try {
        point = new_point(watch().own_address(), at);
        brings += text_of(point.id);
      } catch (std::exception const& e) {
        // In place of the id: if this rank is the first of its color, the others tell this text.
        brings += std::string_view(e.what()).substr(0, longest_text);
      }
    }
    auto const all = meet(rank_watch::round::split, brings, options_.start, at);
    std::vector<color_and_key> colors(all.size());
    for (std::size_t r = 0; r < all.size(); ++r)
      std::memcpy(&colors[r], all[r].bytes.data(), sizeof mine);
    if (!takes_part)
      return {};
    std::vector<int> const members = members_of(color, colors);
    std::string const id = all[static_cast<std::size_t>(members[0])].bytes.substr(sizeof mine);
    auto const where = rendezvous_id_of(id);
    if (!where)
      throw driver_error(0, "split", base::text(subject(), ": rank ", members[0], " has no port: ", base::visible(id)),
                         "Remove what that rank's error names, and repeat the call on all ranks", at, error_id{440});
    // The first one listens, the others need no port.
    if (members[0] != rank_)
      point = {};
    point.id = *where;
    int const rank = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
    return {group_at(runtime_, std::move(point), {rank, static_cast<int>(members.size()), simulated_}, device(rank_),
                     options_, at),
            rank};
  }

  void abort(int, std::string_view why) noexcept override { give_up(watch(), rank_, why); }

  // Other processes' calls are not known at once: a collective that is not complete may wait for one.
  bool waits(int) const noexcept override { return !watch().failed() && !is_idle(); }

  void unwound(int, std::string_view) noexcept override {
    exceptions_.store(exceptions() + 1);  // those before the last collective or launch count no more
    exceptions_at_.store(called());
    silent_.store(true);
    watch().unwound(exceptions_.load(), met_.load(), *transfers_.lock());
  }

  void launches(int, captured_requests const& all, char const* operation, source_location at) override {
    if (left_.load() || watch().failed())
      refuse_if_over(rank_, operation, {}, at);
    // As agree() does: others_changed() looks at the launches and at calls_under_way_.
    speaks();
    std::uint64_t const exceptions = this->exceptions();
    count_launched_transfers(all, true);
    launched_.fetch_add(all.collectives);
    watch().launches(all.collectives, exceptions);
    calls_under_way_.fetch_add(1);
    if (watch().any_unwound() || watch().any_left())
      others_changed();
    if (!watch().failed())
      return;
    launch_refused(rank_, all);
    refuse_if_over(rank_, operation, {}, at);
  }
  void launched(int, clock::stream_clock& on) noexcept override {
    backend_->launched(rank_, on);
    calls_under_way_.fetch_sub(1);
  }
  void launch_refused(int, captured_requests const& all) noexcept override {
    calls_under_way_.fetch_sub(1);
    count_launched_transfers(all, false);
    launched_.fetch_sub(all.collectives);
    watch().launch_refused(all.collectives);
  }

  void leave(int) noexcept override {
    bool const has_left = left_.exchange(true);
    if (has_left)
      return;
    if (std::uncaught_exceptions() > 0 && waits(rank_))
      abort(rank_, "an exception ended its communicator");
    if (!ended())
      leave_backend(rank_);
    std::vector<rank_watch::transfers> called;
    called.swap(*transfers_.lock());  // the watch's thread may need the lock while it ends
    watch().end(called);
  }

  void runtime_ends() noexcept override {
    leave(rank_);
    ended_.store(true, base::memory_order_release);
  }

  std::string failure() const override { return watch().failure(); }

  // Others have failed, left, or been silenced by an exception: ends all if this rank waits for one in vain.
  // By the watch's thread, by one that accuses, and by the rank's own before it waits.
  void others_changed() noexcept {
    if (watch().failed())
      return backend_->abort();
    std::uint64_t const called = next_.load();
    awaited const other = find_awaited(called);
    if (other.rank < 0)
      return;
    bool const by_exception = other.why == awaited::cause::exception;
    // A rank that leaves ends the meeting itself; one that an exception silenced does not.
    bool const meets_in_vain = by_exception && waits_in_meet_.load();
    // A rank whose calls are complete waits for no other.
    if (!meets_in_vain && is_idle())
      return;
    try {
      watch().accuse(other.rank, accusation_of(other, called));
    } catch (...) {  // no host memory for the text
      watch().accuse(other.rank, by_exception ? "an exception ended what a rank waits for"
                                              : "a rank has destroyed its communicator");
    }
  }

 private:
  static constexpr std::size_t longest_text = 1000;

  struct awaited {  // a rank that never makes the call that this one waits for
    enum class cause : std::uint8_t { left_before_collective, left_before_launch, left_before_transfer, exception };
    int rank = -1;  // -1: there is none
    cause why{};
  };
  // called: this rank's calls with a collective
  awaited find_awaited(std::uint64_t called) {
    if (int const r = watch().left_before(called); r >= 0)
      return {r, awaited::cause::left_before_collective};
    if (int const r = watch().left_before_launch(); r >= 0)
      return {r, awaited::cause::left_before_launch};
    auto const with = transfers_.lock();
    for (std::size_t r = 0; r < with->size(); ++r)
      if (watch().left_with_less(static_cast<int>(r), (*with)[r]))
        return {static_cast<int>(r), awaited::cause::left_before_transfer};
    // Empty: this rank has left, and waits for no other.
    if (with->empty())
      return {};
    return {watch().unwound_before(exceptions(), *with, waits_in_meet_.load()), awaited::cause::exception};
  }
  std::string accusation_of(awaited const& other, std::uint64_t called) const {
    std::string const waits = base::text(", and rank ", rank_, " waits for it");
    switch (other.why) {
      case awaited::cause::left_before_collective:
        return base::text("rank ", other.rank, " has destroyed its communicator", waits, " in collective ", called);
      case awaited::cause::left_before_launch:
        return base::text("rank ", other.rank, " has destroyed its communicator", waits, " in a graph");
      case awaited::cause::left_before_transfer:
        return base::text("rank ", other.rank, " has destroyed its communicator", waits, " in a transfer");
      case awaited::cause::exception: break;
    }
    return base::text("rank ", other.rank, ": an exception ended its gradient_buckets or collective_group", waits);
  }

  // Returns: what each rank brought. A split brings a color, a key and more; a registration and a save what all
  // ranks must share, and a character of their own; a barrier nothing.
  std::vector<rank_watch::offer> meet(rank_watch::round why, std::string const& brings, base::time_limit limit,
                                      source_location at) {
    std::string const operation(name_of_round(why));
    refuse_if_over(rank_, operation, {}, at);
    speaks();
    auto const end = wait_for_others(why, limit, brings);
    if (end.is == rank_watch::at_barrier::end::all_came) {
      met_.fetch_add(1);
      require_same(why, brings, end.brought, at);
      return end.brought;
    }
    refuse_if_over(rank_, operation, {}, at);  // throws if that is why it ended
    std::string missing;
    for (int const r : end.missing)
      missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(r);
    throw timed_out(operation, base::text(subject(), " waited ", limit.ns() / 1'000'000, " ms for ", missing),
                    "Check why the process of that rank did not call, or use a longer limit", at, error_id{402});
  }

  // As rank_watch::meet(). Others see meanwhile that this rank waits.
  rank_watch::at_barrier wait_for_others(rank_watch::round why, base::time_limit limit, std::string const& brings) {
    struct until_it_ends {
      base::atomic<std::uint64_t>& waits;
      ~until_it_ends() { waits.store(0); }
    } const told{waits_in_meet_};
    waits_in_meet_.store(met_.load() + 1);
    // The news that an exception silenced a rank may have come before the line above: it is looked at again, and may
    // end all ranks.
    if (watch().any_unwound())
      others_changed();
    return watch().meet(why, limit, brings);
  }

  // Throws: invalid_use unless all ranks came for the same, and brought what fits.
  void require_same(rank_watch::round why, std::string const& brings, std::vector<rank_watch::offer> const& brought,
                    source_location at) const {
    std::string const operation(name_of_round(why));
    // The last character of a registration or a save is the rank's own. A barrier brings nothing.
    std::string shared = brings;
    if (!shared.empty())
      shared.pop_back();
    for (std::size_t r = 0; r < brought.size(); ++r) {
      rank_watch::offer const& its = brought[r];
      bool const same = its.is.value_or(why) == why;
      bool fits = its.bytes.size() == brings.size() && its.bytes.starts_with(shared);
      // What ranks bring to a split differs.
      if (why == rank_watch::round::split)
        fits = its.bytes.size() >= sizeof(color_and_key);
      if (!same || !fits)
        throw invalid_use(operation,
                          base::text("rank ", rank_, " calls ", operation, " where rank ", r, " calls ",
                                     name_of_round(its.is.value_or(why)),
                                     same ? " of another pool or size, or after other collectives" : ""),
                          "Call the same collectives in the same order on all ranks", at, error_id{441});
    }
  }

  std::uint64_t called() const noexcept { return next_.load() + launched_.load(); }
  // Exceptions that have ended owners of this rank since its last collective or launch.
  std::uint64_t exceptions() const noexcept { return exceptions_at_.load() == called() ? exceptions_.load() : 0; }
  // All calls are complete, and all launches. A graph that weir does not launch may run at any time.
  bool is_idle() const noexcept {
    return calls_under_way_.load() == 0 && !has_unknown_graphs(rank_) && backend_->idle(rank_);
  }
  void speaks() noexcept {
    if (silent_.exchange(false))
      watch().unwound(0, met_.load(), *transfers_.lock());
  }
  rank_watch& watch() const noexcept { return *bond_->watch; }
  std::string subject() const { return base::text("rank ", rank_, " of ", size()); }

  // Ranks that leave after a verdict send the verdict first. So the verdict is read last.
  void refuse_if_over(int, std::string const& operation, requests what, source_location at) const override {
    int left = -1;
    if (left_.load())
      left = rank_;
    for (int const r : watch().left_in_order()) {
      // Rank 0 carries what simulated devices transfer.
      bool const is_needed = needs(what, r) || (r == 0 && simulated_);
      if (left < 0 && is_needed)
        left = r;
    }
    if (watch().failed())
      throw driver_error(0, operation, base::text(subject(), ": ", watch().failure()), restart, at, error_id{403});
    if (left >= 0)
      throw invalid_use(operation, base::text(subject(), ": rank ", left, "'s communicator is destroyed"),
                        "Keep all ranks' communicators until the last collective call", at, error_id{404});
  }

  // NCCL may notice sooner than the watch that a process has ended. Then the verdict is under way: it names
  // the rank.
  void end_broken(int, std::string const& why, std::string const& operation, source_location at) override {
    constexpr std::int64_t patience_ns = 2'000'000'000, pause_ns = 1'000'000;
    std::int64_t const until = base::now_ns() + patience_ns;
    while (!runtime_.machine().simulated() && !watch().failed() && base::now_ns() < until)
      base::sleep_ns(pause_ns);
    group::end_broken(rank_, why, operation, at);
  }

  void agree(int, std::span<collective_request> all, source_location at) override {
    speaks();
    {
      auto counts = transfers_.lock();
      for (collective_request& r : all)
        if (r.between_two()) {
          std::uint64_t& count = count_of(*counts, r);
          r.turn = count;
          ++count;
        }
    }
    // The watch counts a call once, and its trace has all members: so it sees a rank that calls them singly.
    if (have_collective(all)) {
      before_ = trace_;
      for (collective_request& r : all) {
        if (r.between_two())
          continue;
        r.turn = turn_;
        ++turn_;
        trace_ = next_trace(trace_, r);
      }
      std::uint64_t const exceptions = this->exceptions();  // before the count changes, which forgets them
      watch().counts(next_.fetch_add(1) + 1, trace_, exceptions);
    }
    bool is_under_way = false;
    try {
      // The call is counted by now. This check finds a rank that left before, and accuses nobody.
      refuse_if_over(rank_, std::string(name_of(all)), all, at);
      // From here on others_changed() finds a rank that leaves: it looks at the count and at calls_under_way_.
      calls_under_way_.fetch_add(1);
      is_under_way = true;
      // A rank that an exception silenced before is found only now, and may end all ranks.
      if (watch().any_unwound())
        others_changed();
      // This check finds that verdict, and a rank that left before the call was under way.
      refuse_if_over(rank_, std::string(name_of(all)), all, at);
    } catch (...) {
      if (is_under_way)
        issued(rank_);
      uncount(all);
      throw;
    }
  }
  void issued(int) noexcept override { calls_under_way_.fetch_sub(1); }
  void withdraw(int, requests all, source_location) noexcept override {
    issued(rank_);
    uncount(all);
  }
  void uncount(requests all) noexcept {
    {
      auto counts = transfers_.lock();
      for (collective_request const& r : all)
        if (r.between_two())
          --count_of(*counts, r);
    }
    if (!have_collective(all))
      return;
    for (collective_request const& r : all)
      if (!r.between_two())
        --turn_;
    trace_ = before_;
    watch().counts(next_.fetch_sub(1) - 1, trace_);
  }
  // A launch calls them once more.
  void count_launched_transfers(captured_requests const& all, bool launched) noexcept {
    auto counts = transfers_.lock();
    // This rank has left, and told what it had called.
    if (counts->empty())
      return;
    for (auto const& [other, with] : all.with) {
      rank_watch::transfers& count = (*counts)[static_cast<std::size_t>(other)];
      count.sent += launched ? with.sent : 0 - with.sent;
      count.received += launched ? with.received : 0 - with.received;
    }
  }
  static std::uint64_t& count_of(std::vector<rank_watch::transfers>& all, collective_request const& r) noexcept {
    auto& with = all[static_cast<std::size_t>(r.root)];
    return r.what == collective::send ? with.sent : with.received;
  }

  int const rank_;
  base::atomic<std::uint64_t> next_{0};   // calls with a collective
  std::uint64_t turn_ = 0;                // collectives. By the rank's thread
  std::uint64_t trace_ = 0, before_ = 0;  // of all calls; and without the last. By the rank's thread
  base::guarded<std::vector<rank_watch::transfers>> transfers_;  // called, by the other rank
  bool const simulated_;
  rank_options const options_;
  base::atomic<std::uint64_t> launched_{0};  // collectives of graphs
  // Between agree and issued, and while a graph is launched: the backend may wait, and not know it yet.
  base::atomic<int> calls_under_way_{0};
  base::atomic<std::uint64_t> waits_in_meet_{0};  // met_ + 1 while this rank meets the others
  base::atomic<std::uint64_t> met_{0};            // how often
  base::atomic<bool> left_{false};
  base::atomic<std::uint64_t> exceptions_{0}, exceptions_at_{0};  // see exceptions(); by the rank's thread
  base::atomic<bool> silent_{false};                              // the others know of exceptions, and of no call since
  std::shared_ptr<bond> const bond_;
};

void bond::changed() noexcept {
  if (process_group* const g = of.load())
    g->others_changed();
}

}  // namespace

rendezvous_point new_point(std::string host, source_location at) {
  os::tcp_socket listener = os::listen_tcp(0);
  if (!listener.file.is_open())
    throw driver_error(0, "communicator::unique_id", "no port to listen on: " + listener.why_not,
                       "Raise the limit of open files (ulimit -n), or allow TCP sockets", at, error_id{411});
  rendezvous_id id{host.empty() ? os::own_address() : std::move(host), listener.port, os::random_number()};
  return {std::move(id), std::move(listener), {}};
}

namespace {

// A failure here ends the others too: they may wait for this rank inside NCCL.
std::unique_ptr<collective_backend> backend_of(runtime::impl& owner, std::vector<int> const& devices,
                                               membership const& m, met& with, rank_watch& watch, rank_options const& o,
                                               source_location at) {
  try {
    if (m.simulated)
      return carried_by_sockets(
          owner, devices, m.rank, std::move(with.with.data),
          [&watch](int rank, std::string const& why) { watch.accuse(rank, why); }, at);
    std::int64_t const end = base::time_limit(o.start).after(base::now_ns());
    auto const gives_up = [&watch, end]() -> std::string {
      if (watch.failed())
        return watch.failure();
      return base::now_ns() > end ? "it took longer than rank_options::start" : "";
    };
    return carried_by_nccl(owner, devices, m.rank, with.greeting, gives_up, at);
  } catch (std::exception const& e) {
    give_up(watch, m.rank, e.what());
    throw;
  }
}

std::shared_ptr<group> group_of_processes(runtime::impl& owner, membership const& m, int device, met with,
                                          rank_options const& o, source_location at) {
  std::vector<int> devices(static_cast<std::size_t>(m.size), -1);
  devices[static_cast<std::size_t>(m.rank)] = device;
  auto const to_others = std::make_shared<bond>();
  to_others->watch = std::make_unique<rank_watch>(m.rank, m.size, std::move(with.with.watch),
                                                  rank_watch::limits{o.silence, o.behind, !m.simulated},
                                                  [b = to_others.get()] { b->changed(); });
  rank_watch& watch = *to_others->watch;
  watch.turn_away_by(std::move(with.turn_away));
  watch.start(at);
  auto all = std::make_unique<process_group>(owner, devices, m.rank, backend_of(owner, devices, m, with, watch, o, at),
                                             to_others, o);
  all->connect(at);
  return shared_by_ranks(std::move(all));
}

}  // namespace

std::shared_ptr<group> group_at(runtime::impl& owner, rendezvous_point point, membership const& m, int device,
                                rank_options const& o, source_location at) {
  if (owner.machine().schedules_threads())
    throw not_supported("communicator", "a seeded machine: its order cannot depend on other processes",
                        "Use simulated{.schedule = scheduling::threads}, or communicator::create_all", at,
                        error_id{407});
  owner.open(device, "communicator", at);
  met with;
  if (m.rank == 0) {
    std::string const greeting = m.simulated ? std::string() : nccl_id(at);
    with = meet_others(std::move(point.listener), point.id, m, greeting, o.start, at);
  } else {
    with = meet_rank_0(point.id, point.ask_again, m, o.start, at);
  }
  auto all = group_of_processes(owner, m, device, std::move(with), o, at);
  add_to(owner, all);
  return all;
}

}  // namespace peer
}  // namespace weir
