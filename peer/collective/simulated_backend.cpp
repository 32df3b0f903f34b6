// Collectives of a simulated machine: a rank's part is three operations on its stream; no thread waits.
// Threads: each rank by one thread at a time; abort by any. The operations run on the machine's workers.
//
//   arrive   allows other ranks to access this rank's buffers
//   share    after all arrived: computes this rank's share of the elements, for all ranks
//   depart   after all shares are done or cancelled: this rank's stream continues
//
// A graph runs them at each launch: the n-th arrive of a rank meets the n-th of the others.
// Invariant: other ranks access a rank's buffers only between its arrive and its depart.
#include <algorithm>
#include <cstring>
#include <map>

#include "peer/collective/group.h"
#include "peer/collective/host_reduce.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

namespace weir::peer {
namespace {

// State shared by all collectives of a communicator and their parts, which may outlive it.
struct failure_state {
  base::atomic<bool> over{false};     // aborted, or a part was lost: unstarted parts never run
  base::atomic<int> lost_rank{-1};    // rank whose part was dropped before it ran
  base::atomic<int> failed_rank{-1};  // rank whose part was only partly enqueued
};

struct joint_call {
  joint_call(collective_request const& r, int ranks, std::shared_ptr<failure_state> f)
      : what(r),
        in(static_cast<std::size_t>(ranks)),
        out(in.size()),
        dropped(in.size()),
        given(in.size()),
        at(in.size()),
        over(std::move(f)),
        arrived(in.size()),
        done(in.size()) {}
  collective_request const what;
  std::vector<void const*> in;  // by rank, written before its arrive is enqueued
  std::vector<void*> out;
  // A part dropped before it ran was refused (its enqueue reports it) or lost. By rank: the number of dropped
  // parts, and whether all are enqueued, after which a dropped part is a lost one.
  std::vector<base::atomic<int>> dropped;
  std::vector<base::atomic<bool>> given;
  std::vector<source_location> at;  // by rank: the call, written before its arrive is enqueued
  std::shared_ptr<failure_state> const over;
  std::vector<base::atomic<std::uint64_t>> arrived, done;  // by rank: how often
  base::atomic<int> working{0};

  int ranks() const noexcept { return static_cast<int>(in.size()); }
  bool all_arrived(int rank) const noexcept { return as_often(arrived, rank) || over->over.load(); }
  bool all_done(int rank) const noexcept { return as_often(done, rank) || (over->over.load() && working.load() == 0); }
  // Whether each rank has done it as often as this rank has arrived.
  bool as_often(std::vector<base::atomic<std::uint64_t>> const& times, int rank) const noexcept {
    std::uint64_t const mine = arrived[static_cast<std::size_t>(rank)].load();
    return std::all_of(times.begin(), times.end(), [&](auto const& t) { return t.load() >= mine; });
  }
  void do_share(int rank) const noexcept;
  void lose(int rank) noexcept {
    if (over->over.load()) return;
    over->lost_rank.store(rank);
    over->over.store(true);
  }
};

void joint_call::do_share(int rank) const noexcept {
  std::size_t const r = static_cast<std::size_t>(rank), size = size_of(what.type),
                    part = static_cast<std::size_t>(what.count) * size;
  if (what.count == 0 || (ranks() == 1 && in[0] == out[0])) return;
  switch (what.what) {
    case collective::all_reduce: {
      constexpr std::int64_t stream = 64;  // elements: no two shares meet in a cache line, for any type
      std::int64_t const lines = (what.count + stream - 1) / stream;
      auto const from = [&](int k) { return std::min(what.count, lines * k / ranks() * stream); };
      return reduce(what.type, what.how, in, out, from(rank), from(rank + 1));
    }
    case collective::reduce_scatter: {
      std::vector<void const*> slices;
      for (void const* const whole : in) slices.push_back(static_cast<std::byte const*>(whole) + r * part);
      return reduce(what.type, what.how, slices, {&out[r], 1}, 0, what.count);
    }
    case collective::broadcast:
      if (rank != what.root) std::memcpy(out[r], in[static_cast<std::size_t>(what.root)], part);
      return;
    case collective::scatter:
      if (auto const* from = static_cast<std::byte const*>(in[static_cast<std::size_t>(what.root)]) + r * part;
          from != out[r])
        std::memcpy(out[r], from, part);
      return;
    case collective::gather:
      if (auto* to = static_cast<std::byte*>(out[static_cast<std::size_t>(what.root)]) + r * part; to != in[r])
        std::memcpy(to, in[r], part);
      return;
    case collective::all_gather:
      for (void* const whole : out) {
        std::byte* const to = static_cast<std::byte*>(whole) + r * part;
        if (to != in[r]) std::memcpy(to, in[r], part);
      }
      return;
    case collective::all_to_all:
      for (std::size_t to = 0; to < out.size(); ++to)
        std::memcpy(static_cast<std::byte*>(out[to]) + r * part, static_cast<std::byte const*>(in[r]) + to * part,
                    part);
      return;
  }
}

struct rank_task {
  enum class step : std::uint8_t { arrive, share, depart };
  std::shared_ptr<joint_call> where;
  int rank;
  step does;
  bool captured;  // a graph may end without a launch
  bool ran = false;

  bool ready() const noexcept {
    return does == step::arrive || (does == step::share ? where->all_arrived(rank) : where->all_done(rank));
  }
  void run() noexcept {
    ran = true;
    auto const mine = static_cast<std::size_t>(rank);
    if (does == step::arrive) where->arrived[mine].fetch_add(1);
    if (does != step::share) return;
    // Before reading `over`: otherwise a depart could see `over` and no worker while a share starts.
    where->working.fetch_add(1);
    if (!where->over->over.load()) {
      where->do_share(rank);
      where->done[mine].fetch_add(1);
    }
    where->working.fetch_sub(1);
  }
  void drop() noexcept {
    if (!ran && !captured) {
      where->dropped[static_cast<std::size_t>(rank)].fetch_add(1);
      if (where->given[static_cast<std::size_t>(rank)].load()) where->lose(rank);
    }
    delete this;
  }

  std::string name() const {
    source_location const& at = where->at[static_cast<std::size_t>(rank)];
    std::string_view const file = at.file_name() ? at.file_name() : "?";
    return base::text("rank ", rank, "'s part of ", where->what.text(), " (", file.substr(file.rfind('/') + 1), ":",
                      at.line(), ")");
  }
  bool needs(rank_task const& other) const noexcept {
    if (other.where != where || other.rank == rank || other.ran) return false;
    return does == step::share ? other.does == step::arrive : does == step::depart && other.does == step::share;
  }
  std::string missing() const {
    std::string none;
    for (int r = 0; r < where->ranks(); ++r)
      if (!where->given[static_cast<std::size_t>(r)].load())
        none += (none.empty() ? "rank " : ", rank ") + std::to_string(r);
    return none.empty() ? none : none + "'s part";
  }
};

bool is_ready(void* p) { return static_cast<rank_task*>(p)->ready(); }

driver::sim::words const parts_words{
    is_ready, [](void* p) { return static_cast<rank_task*>(p)->name(); },
    [](void* p, void* other) { return static_cast<rank_task*>(p)->needs(*static_cast<rank_task*>(other)); },
    [](void* p) { return static_cast<rank_task*>(p)->missing(); }};

driver::work work_of(std::unique_ptr<rank_task> p) {
  return {[](void* p) { static_cast<rank_task*>(p)->run(); }, [](void* p) { static_cast<rank_task*>(p)->drop(); },
          p.release(), is_ready};
}

class streams_backend final : public collective_backend {
 public:
  streams_backend(runtime::impl& r, std::vector<int> devices) : runtime_(r), devices_(std::move(devices)) {}

  void issue(int rank, clock::stream_clock& on, std::uint64_t sequence, collective_request const& r,
             source_location at) override {
    std::size_t const mine = static_cast<std::size_t>(rank);
    std::unique_ptr<rank_task> parts[3];  // all or none, so that a part enqueued implies memory for the last
    for (auto const does : {rank_task::step::arrive, rank_task::step::share, rank_task::step::depart})
      parts[static_cast<int>(does)] = std::make_unique<rank_task>(rank_task{nullptr, rank, does, on.seen_captured()});
    std::shared_ptr<joint_call> where;
    {
      auto open = open_.lock();
      entry& e = (*open)[sequence];
      if (!e.where) e.where = std::make_shared<joint_call>(r, ranks(), failure_);
      where = e.where;
      where->in[mine] = r.in;
      where->out[mine] = r.out;
      where->at[mine] = at;
      if (++e.issued == ranks()) open->erase(sequence);
    }
    for (auto& p : parts) p->where = where;
    auto const touches = r.touches(devices_.size());
    auto const enqueue = [&](rank_task::step does, std::span<driver::touch const> uses) {
      return runtime_.machine().enqueue(on.device(), on.handle(), uses,
                                        work_of(std::move(parts[static_cast<int>(does)])));
    };
    auto const operands = [&] {
      return base::text("rank ", rank, " of ", ranks(), ", ", r.text(), " on gpu:", on.device());
    };
    // arrive declares the buffers: no other rank accesses them before it has run, and until then the machine
    // may fill them with poison.
    base::call_site const in(runtime_.observer(), name_of(r.what).data(), at);
    driver::status s = enqueue(rank_task::step::arrive, touches);
    if (!s.ok()) {
      take_back(rank, sequence, where);
      throw_refusal(s, name_of(r.what), operands(), "Create a new communicator with communicator::create_all", at);
    }
    s = enqueue(rank_task::step::share, {});
    if (s.ok()) s = enqueue(rank_task::step::depart, {});
    if (s.ok()) {
      where->given[mine].store(true);
      if (where->dropped[mine].load() == 0) return;
      where->lose(rank);  // its device was lost meanwhile
      return runtime_.machine().recheck();
    }
    failure_->failed_rank.store(rank);
    abort();
    throw_refusal(s, name_of(r.what), operands(), "Create a new communicator with communicator::create_all", at);
  }

  std::string broken(int) override {
    if (!failure_->over.load()) return {};
    if (int const rank = failure_->lost_rank.load(); rank >= 0)
      return base::text("a part of rank ", rank, " never ran: gpu:", devices_[static_cast<std::size_t>(rank)],
                        " is lost");
    if (int const rank = failure_->failed_rank.load(); rank >= 0)
      return base::text("a part of rank ", rank, " was refused by gpu:", devices_[static_cast<std::size_t>(rank)]);
    return "the communicator was aborted";
  }

  void abort() noexcept override {
    failure_->over.store(true);
    runtime_.machine().recheck();
  }
  void leave(int) noexcept override {}

 private:
  struct entry {
    std::shared_ptr<joint_call> where;
    int issued = 0;
  };
  int ranks() const noexcept { return static_cast<int>(devices_.size()); }

  // Undoes the rank's part of a turn that was refused before anything was enqueued.
  void take_back(int rank, std::uint64_t sequence, std::shared_ptr<joint_call> const& where) {
    auto open = open_.lock();
    entry& e = (*open)[sequence];
    if (!e.where) e = {where, ranks()};  // it was the last
    where->in[static_cast<std::size_t>(rank)] = nullptr;
    where->out[static_cast<std::size_t>(rank)] = nullptr;
    where->dropped[static_cast<std::size_t>(rank)].store(0);
    if (--e.issued == 0) open->erase(sequence);
  }

  runtime::impl& runtime_;
  std::vector<int> const devices_;
  std::shared_ptr<failure_state> const failure_ = std::make_shared<failure_state>();
  base::guarded<std::map<std::uint64_t, entry>> open_;
};

}  // namespace

std::unique_ptr<collective_backend> carried_by_streams(runtime::impl& owner, std::vector<int> const& devices) {
  driver::sim::explain_work_with(&parts_words);
  return std::make_unique<streams_backend>(owner, devices);
}

}  // namespace weir::peer
