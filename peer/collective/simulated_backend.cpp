// Collectives of a simulated machine: a rank's part is three operations on its stream; no thread waits.
// Threads: each rank by one thread at a time; abort by any. The operations run on the machine's workers.
//
//   arrive   allows other ranks to access this rank's buffers
//   share    after all arrived: computes this rank's share of the elements, for all ranks
//   depart   after all shares are done or cancelled: this rank's stream continues
//
// A send and a receive are such a call of two: place 0 sends, place 1 receives.
// A graph runs them at each launch: the n-th arrive of a rank meets the n-th of the others.
// Invariant: other ranks access a rank's buffers only between its arrive and its depart.
#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

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
  joint_call(collective_request const& r, std::vector<int> members, std::shared_ptr<failure_state> f)
      : what(r),
        rank_of(std::move(members)),
        in(rank_of.size()),
        out(in.size()),
        dropped(in.size()),
        given(in.size()),
        at(in.size()),
        over(std::move(f)),
        arrived(in.size()),
        done(in.size()) {}
  collective_request const what;
  std::vector<int> const rank_of;  // by place; all that follows is by place too
  std::vector<void const*> in;     // written before its arrive is enqueued
  std::vector<void*> out;
  // A part dropped before it ran was refused (its enqueue reports it) or lost. The number of dropped
  // parts, and whether all are enqueued, after which a dropped part is a lost one.
  std::vector<base::atomic<int>> dropped;
  std::vector<base::atomic<bool>> given;
  std::vector<source_location> at;  // the call, written before its arrive is enqueued
  std::shared_ptr<failure_state> const over;
  std::vector<base::atomic<std::uint64_t>> arrived, done;  // how often
  base::atomic<int> working{0};

  int ranks() const noexcept { return static_cast<int>(in.size()); }
  bool all_arrived(std::size_t place) const noexcept { return as_often(arrived, place) || over->over.load(); }
  bool all_done(std::size_t place) const noexcept {
    return as_often(done, place) || (over->over.load() && working.load() == 0);
  }
  // Whether each rank has done it as often as this one has arrived.
  bool as_often(std::vector<base::atomic<std::uint64_t>> const& times, std::size_t place) const noexcept {
    std::uint64_t const mine = arrived[place].load();
    return std::all_of(times.begin(), times.end(), [&](auto const& t) { return t.load() >= mine; });
  }
  void do_share(std::size_t place) const noexcept;
  void reduce_own_lines(std::size_t place) const noexcept;
  void reduce_own_slice(std::size_t place) const noexcept;
  void copy_share(std::size_t place) const noexcept;
  void copy_to_all(std::size_t place) const noexcept;
  void copy_to_each(std::size_t place) const noexcept;
  void pass_on(std::size_t place) const noexcept;
  // A rank's part of a buffer that holds one for each.
  std::byte* part_in(void* whole, std::size_t rank) const noexcept {
    return static_cast<std::byte*>(whole) + rank * what.part_bytes();
  }
  std::byte const* part_in(void const* whole, std::size_t rank) const noexcept {
    return static_cast<std::byte const*>(whole) + rank * what.part_bytes();
  }
  void copy_part(void* to, void const* from) const noexcept {
    if (to != from)  // else in place
      std::memcpy(to, from, what.part_bytes());
  }
  void lose(std::size_t place) noexcept {
    if (over->over.load())
      return;
    over->lost_rank.store(rank_of[place]);
    over->over.store(true);
  }
};

// Place and rank are the same, except in a send and its receive.
void joint_call::do_share(std::size_t place) const noexcept {
  // One rank alone, in place, has its result already.
  if (what.count == 0 || (ranks() == 1 && in[0] == out[0]))
    return;
  if (what.what == collective::all_reduce)
    reduce_own_lines(place);
  else if (what.what == collective::reduce_scatter)
    reduce_own_slice(place);
  else
    copy_share(place);
}

void joint_call::reduce_own_lines(std::size_t place) const noexcept {
  constexpr std::int64_t block = 64;  // elements: no two shares meet in a cache line, for any type
  std::int64_t const blocks = (what.count + block - 1) / block;
  auto const begin_of = [&](int rank) { return std::min(what.count, blocks * rank / ranks() * block); };
  int const own = static_cast<int>(place);
  reduce(what.type, what.how, in, out, begin_of(own), begin_of(own + 1));
}

void joint_call::reduce_own_slice(std::size_t place) const noexcept {
  std::vector<void const*> slices;
  for (void const* const whole : in)
    slices.push_back(part_in(whole, place));
  reduce(what.type, what.how, slices, {&out[place], 1}, 0, what.count);
}

void joint_call::copy_share(std::size_t place) const noexcept {
  auto const root = static_cast<std::size_t>(what.root);
  switch (what.what) {
    case collective::broadcast: return copy_part(out[place], in[root]);
    case collective::scatter: return copy_part(out[place], part_in(in[root], place));
    case collective::gather: return copy_part(part_in(out[root], place), in[place]);
    case collective::all_gather: return copy_to_all(place);
    case collective::all_to_all: return copy_to_each(place);
    case collective::send:
    case collective::receive: return pass_on(place);
    case collective::all_reduce:
    case collective::reduce_scatter:
    case collective::register_pool: return;
  }
}

void joint_call::copy_to_all(std::size_t place) const noexcept {
  for (void* const whole : out)
    copy_part(part_in(whole, place), in[place]);
}

void joint_call::copy_to_each(std::size_t place) const noexcept {
  for (std::size_t to = 0; to < out.size(); ++to)
    std::memcpy(part_in(out[to], place), part_in(in[place], to), what.part_bytes());
}

// The receiver copies; the sender only waits.
void joint_call::pass_on(std::size_t place) const noexcept {
  if (place == 1)
    std::memcpy(out[1], in[0], what.part_bytes());
}

struct rank_task {
  enum class step : std::uint8_t { arrive, share, depart };
  std::shared_ptr<joint_call> where;
  std::size_t mine;  // place
  step does;
  bool captured;  // a graph may end without a launch
  bool ran = false;

  bool ready() const noexcept {
    switch (does) {
      case step::arrive: break;
      case step::share: return where->all_arrived(mine);
      case step::depart: return where->all_done(mine);
    }
    return true;
  }
  void run() noexcept {
    ran = true;
    if (does == step::arrive)
      where->arrived[mine].fetch_add(1);
    if (does != step::share)
      return;
    // Before reading `over`: otherwise a depart could see `over` and no worker while a share starts.
    where->working.fetch_add(1);
    if (!where->over->over.load()) {
      where->do_share(mine);
      where->done[mine].fetch_add(1);
    }
    where->working.fetch_sub(1);
  }
  void drop() noexcept {
    if (!ran && !captured) {
      where->dropped[mine].fetch_add(1);
      // Before it is given, issue() is under way: its expect_all_to_run() or take_back() sees to it.
      if (where->given[mine].load())
        where->lose(mine);
    }
    delete this;
  }

  std::string name() const {
    source_location const& at = where->at[mine];
    std::string_view const file = at.file_name() ? at.file_name() : "?";
    collective_request asks = where->what;
    if (asks.between_two()) {
      asks.what = mine == 0 ? collective::send : collective::receive;
      asks.root = where->rank_of[1 - mine];
    }
    return base::text("rank ", where->rank_of[mine], "'s part of ", asks.text(), " (", file.substr(file.rfind('/') + 1),
                      ":", at.line(), ")");
  }
  bool needs(rank_task const& other) const noexcept {
    if (other.where != where || other.mine == mine || other.ran)
      return false;
    switch (does) {
      case step::arrive: break;
      case step::share: return other.does == step::arrive;
      case step::depart: return other.does == step::share;
    }
    return false;
  }
  std::string missing() const {
    std::string text;
    for (std::size_t place = 0; place < where->given.size(); ++place)
      if (!where->given[place].load())
        text += (text.empty() ? "rank " : ", rank ") + std::to_string(where->rank_of[place]);
    if (!text.empty())
      text += "'s part";
    return text;
  }
};

bool is_ready(void* p) {
  return static_cast<rank_task*>(p)->ready();
}

driver::sim::words const parts_words{
    is_ready, [](void* p) { return static_cast<rank_task*>(p)->name(); },
    [](void* p, void* other) { return static_cast<rank_task*>(p)->needs(*static_cast<rank_task*>(other)); },
    [](void* p) { return static_cast<rank_task*>(p)->missing(); }};

driver::work work_of(std::unique_ptr<rank_task> task) {
  return {[](void* p) { static_cast<rank_task*>(p)->run(); }, [](void* p) { static_cast<rank_task*>(p)->drop(); },
          task.release(), is_ready};
}

class streams_backend final : public collective_backend {
 public:
  streams_backend(runtime::impl& r, std::vector<int> devices) : runtime_(r), devices_(std::move(devices)) {}

  void issue(int rank, clock::stream_clock& on, requests all, source_location at) override {
    std::vector<part> parts = parts_of(rank, on, all);
    join_all(parts, rank, at);
    base::call_site const in(runtime_.observer(), name_of(all).data(), at);
    enqueued const so_far = enqueue_in_steps(parts, on);
    if (so_far.is.ok())
      return expect_all_to_run(parts);
    // Nothing is enqueued yet: no other rank waits for this one. Else none can continue.
    if (!so_far.any) {
      for (part& each : parts)
        take_back(each, rank);
    } else {
      failure_->failed_rank.store(rank);
      abort();
    }
    throw_refusal(so_far.is, name_of(all),
                  base::text("rank ", rank, " of ", devices_.size(), ", ", text_of(all), " on gpu:", on.device()),
                  "Create a new communicator with communicator::create_all", at);
  }

  std::string broken(int) override {
    if (!failure_->over.load())
      return {};
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
  static constexpr rank_task::step steps[] = {rank_task::step::arrive, rank_task::step::share, rank_task::step::depart};
  struct entry {
    std::shared_ptr<joint_call> where;
    std::size_t issued = 0;
  };
  using calls = std::map<collective_request::key, entry>;
  struct part {  // of this rank in one joint call
    collective_request const* what;
    std::size_t mine;  // place
    std::unique_ptr<rank_task> tasks[3];
    std::shared_ptr<joint_call> where;
    calls::node_type last;  // its entry, if this rank was the last
  };
  static std::size_t place_of(int rank, collective_request const& r) noexcept {
    return r.between_two() ? r.what == collective::receive : static_cast<std::size_t>(rank);
  }
  std::vector<int> members(int rank, collective_request const& r) const {
    if (r.what == collective::send)
      return {rank, r.root};
    if (r.what == collective::receive)
      return {r.root, rank};
    std::vector<int> all(devices_.size());
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  // Makes all tasks: once the first is enqueued, no later one fails for want of host memory. join() gives
  // them their call.
  static std::vector<part> parts_of(int rank, clock::stream_clock& on, requests all) {
    std::vector<part> parts;
    parts.reserve(all.size());
    for (collective_request const& r : all)
      parts.push_back({&r, place_of(rank, r), {}, {}, {}});
    for (part& p : parts) {
      for (auto const does : steps)
        p.tasks[static_cast<std::size_t>(does)] =
            std::make_unique<rank_task>(rank_task{nullptr, p.mine, does, on.seen_captured()});
    }
    return parts;
  }

  // Joins the calls of all parts, or of none.
  void join_all(std::vector<part>& parts, int rank, source_location at) {
    std::size_t joined = 0;
    try {
      for (; joined < parts.size(); ++joined)
        join(parts[joined], rank, at);
    } catch (...) {  // no host memory
      while (joined > 0)
        take_back(parts[--joined], rank);
      throw;
    }
  }
  void join(part& p, int rank, source_location at) {
    auto open = open_.lock();
    auto const k = p.what->key_of(rank);
    entry& e = (*open)[k];
    if (!e.where)
      e.where = std::make_shared<joint_call>(*p.what, members(rank, *p.what), failure_);
    p.where = e.where;
    p.where->in[p.mine] = p.what->in;
    p.where->out[p.mine] = p.what->out;
    p.where->at[p.mine] = at;
    for (auto& t : p.tasks)
      t->where = p.where;
    ++e.issued;
    // All have called it: the next call with this key is another.
    if (e.issued == p.where->rank_of.size())
      p.last = open->extract(k);
  }

  struct enqueued {
    driver::status is;
    bool any = false;
  };
  // All parts arrive before one shares, and share before one departs: no part waits for another of its call.
  enqueued enqueue_in_steps(std::vector<part>& parts, clock::stream_clock& on) {
    enqueued so_far;
    for (auto const does : steps) {
      for (part& p : parts) {
        so_far.is = enqueue_step(p, does, on);
        if (!so_far.is.ok())
          return so_far;
        so_far.any = true;
      }
    }
    return so_far;
  }
  driver::status enqueue_step(part& p, rank_task::step does, clock::stream_clock& on) {
    auto const touches = p.what->touches(devices_.size());
    std::span<driver::touch const> declared;
    // arrive declares the buffers: no other rank accesses them before it has run, and until then the machine
    // may fill them with poison.
    if (does == rank_task::step::arrive)
      declared = touches;
    return runtime_.machine().enqueue(on.device(), on.handle(), declared,
                                      work_of(std::move(p.tasks[static_cast<std::size_t>(does)])));
  }
  // All parts are enqueued. A part that is dropped from now on, or was dropped meanwhile, is lost.
  void expect_all_to_run(std::vector<part>& parts) {
    bool lost = false;
    for (part& p : parts) {
      p.where->given[p.mine].store(true);
      if (p.where->dropped[p.mine].load() == 0)
        continue;
      p.where->lose(p.mine);
      lost = true;
    }
    if (lost)
      runtime_.machine().recheck();
  }

  // Undoes the rank's part of a turn that was refused before anything was enqueued.
  void take_back(part& p, int rank) noexcept {
    auto open = open_.lock();
    // This rank was the last to join, which took the entry away: it is open again.
    if (p.last)
      open->insert(std::move(p.last));
    auto const at = open->find(p.what->key_of(rank));
    p.where->in[p.mine] = nullptr;
    p.where->out[p.mine] = nullptr;
    p.where->dropped[p.mine].store(0);
    --at->second.issued;
    if (at->second.issued == 0)
      open->erase(at);
  }

  runtime::impl& runtime_;
  std::vector<int> const devices_;
  std::shared_ptr<failure_state> const failure_ = std::make_shared<failure_state>();
  base::guarded<calls> open_;
};

}  // namespace

std::unique_ptr<collective_backend> carried_by_streams(runtime::impl& owner, std::vector<int> const& devices) {
  driver::sim::explain_work_with(&parts_words);
  return std::make_unique<streams_backend>(owner, devices);
}

}  // namespace weir::peer
