// Collectives of simulated devices of several processes: a rank's part is two operations on its stream, and
// two threads exchange the bytes over sockets.
// Threads: the rank's; abort by any. The operations run on the machine's workers.
//
//   arrive   copies what this rank brings to host memory
//   depart   after the exchange: copies what this rank gets to its buffer
//
// A rank that has arrived sends what it brings to rank 0. Rank 0 joins the parts of one call, reduces as one process
// does, and sends each rank its result. A send and its receive are such a call of two ranks: place 0 sends.
// One thread only reads, so that every send ends; the other sends in order.
// Invariant: what a rank brings is sent after its arrive has run. A rank says that it leaves before its line ends.
#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "peer/collective/frames.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

namespace weir::peer {
namespace {

// One call of this rank, from its enqueue to its depart.
struct exchange {
  collective_request const what;
  int const rank, ranks;
  source_location const at;
  byte_vector in{}, out{};
  base::atomic<bool> done{false};
  base::atomic<bool> given{false};    // the call enqueued all of its parts
  base::atomic<bool> dropped{false};  // a part that has not run
};

struct job {                        // of the sending thread
  std::shared_ptr<exchange> own{};  // has arrived; else rank 0 sends a result:
  int to = 0;
  frame_head head{};
  std::shared_ptr<byte_vector const> whole{};
  std::span<std::byte const> part{};
};

struct shared_state {
  struct lists {
    std::deque<job> jobs;
    std::map<collective_request::key, std::shared_ptr<exchange>> waiting;  // enqueued, and without a result
    bool leaves = false;                                                   // no more jobs come
  };
  base::guarded<lists> all;
  base::condition changed;
  base::atomic<bool> over{false};       // no more is exchanged; parts that wait go on
  base::atomic<bool> lost{false};       // a part was dropped before it ran: the device is lost
  base::atomic<std::uint64_t> open{0};  // exchanges whose depart has not run

  void lose() noexcept {
    lost.store(true);
    stop();
  }
  void stop() noexcept {
    {
      auto q = all.lock();
      over.store(true);
    }
    changed.notify_all();
  }
};

struct arrival {
  std::shared_ptr<exchange> what;
  std::shared_ptr<shared_state> all;
  bool ran = false;
  void run() {
    ran = true;
    try {
      auto const* const from = static_cast<std::byte const*>(what->what.in);
      if (std::size_t const n = brought(what->what, what->rank, what->ranks); n > 0)
        what->in.assign(from, from + n);
      auto q = all->all.lock();
      q->jobs.push_back({.own = what});
    } catch (...) {  // no host memory
      return all->stop();
    }
    all->changed.notify_all();
  }
  bool ready() const noexcept { return true; }
};

struct departure {
  std::shared_ptr<exchange> what;
  std::shared_ptr<shared_state> all;
  bool ran = false;
  bool ready() const noexcept { return what->done.load() || all->over.load(); }
  void run() {
    ran = true;
    if (what->done.load() && !what->out.empty())
      std::memcpy(what->what.out, what->out.data(), what->out.size());
    {
      auto q = all->all.lock();  // leave() waits for this number under the lock
      all->open.fetch_sub(1);
    }
    all->changed.notify_all();
  }
};

template <class Part>
driver::work work_of(std::unique_ptr<Part> task) {
  return {[](void* p) { static_cast<Part*>(p)->run(); },
          [](void* p) {
            auto* const part = static_cast<Part*>(p);
            if (!part->ran) {
              part->what->dropped.store(true);
              // The call was enqueued in full: its device is lost. Before that, issue() looks at `dropped`.
              if (part->what->given.load())
                part->all->lose();
            }
            delete part;
          },
          task.release(), [](void* p) { return static_cast<Part*>(p)->ready(); }};
}

class sockets_backend final : public collective_backend {
 public:
  sockets_backend(runtime::impl& r, std::vector<int> devices, int rank, std::vector<os::owned_file> lines,
                  std::function<void(int, std::string const&)> blame, source_location at)
      : runtime_(r), devices_(std::move(devices)), rank_(rank), lines_(std::move(lines)), blame_(std::move(blame)) {
    try {
      sender_ = base::thread([this] { labour(&sockets_backend::send_all); });
      reader_ = base::thread([this] { labour(&sockets_backend::read_all); });
    } catch (...) {
      abort();
      end_threads();
      throw driver_error(0, "communicator", base::text("rank ", rank, " of ", ranks(), ": no thread is left"),
                         "Raise the limit of threads (ulimit -u)", at, error_id{412});
    }
  }
  ~sockets_backend() override {
    abort();
    end_threads();
  }

  void issue(int, clock::stream_clock& on, requests all, source_location at) override {
    refuse_in_capture(on, all, at);
    std::vector<part> parts = parts_of(all, at);
    expect_results(parts);
    base::call_site const in(runtime_.observer(), name_of(all).data(), at);
    enqueued const so_far = enqueue_in_steps(parts, on);
    if (so_far.is.ok()) {
      note_given(parts);
      // If rank 0 has left, no result comes any more.
      if (hub_left_.load())
        blame_hub();
      return;
    }
    bool const has_begun = so_far.any;
    if (has_begun) {
      // The other ranks wait for parts that never come. The abort frees what is enqueued.
      refused_.store(true);
      abort();
    } else {
      expect_no_results(parts);
    }
    throw_refusal(so_far.is, name_of(all),
                  base::text("rank ", rank_, " of ", ranks(), ", ", text_of(all), " on gpu:", on.device()),
                  has_begun ? "Create a new communicator" : "Repeat the call", at);
  }

  // Nothing is brought: rank 0 compares.
  void register_memory(int rank, clock::stream_clock& on, collective_request const& r, bool,
                       source_location at) override {
    on.set_carries_collectives(true);
    on.count_collective();
    issue(rank, on, {&r, 1}, at);
  }

  std::string broken(int) override {
    if (all_->lost.load())
      return base::text("a part of rank ", rank_, " never ran: gpu:", devices_[static_cast<std::size_t>(rank_)],
                        " is lost");
    if (refused_.load())
      return base::text("a part of rank ", rank_, " was refused by gpu:", devices_[static_cast<std::size_t>(rank_)]);
    return all_->over.load() ? "the communicator was aborted" : "";
  }
  bool idle(int) override { return all_->open.load() == 0; }

  void abort() noexcept override {
    all_->stop();
    bool const has_hung_up = hung_up_.exchange(true);
    // The lines are shut once. After that the runtime may end, so a later call leaves it alone.
    if (has_hung_up)
      return;
    for (os::owned_file const& line : lines_)
      if (line.is_open())
        os::shut_down(line.get());
    runtime_.machine().recheck();
  }

  // Blocks: until this rank's calls are complete. Ranks that never make them leave or fail.
  void leave(int) noexcept override {
    {
      auto q = all_->all.lock();
      all_->changed.wait(q.lock(), [&] { return all_->over.load() || all_->open.load() == 0; });
      q->leaves = true;
    }
    all_->changed.notify_all();
    end(sender_);  // it says farewell
    abort();
    end_threads();
  }

 private:
  struct part {  // of one call
    std::shared_ptr<exchange> what;
    std::unique_ptr<arrival> arrive;
    std::unique_ptr<departure> depart;
    std::vector<driver::touch> reads, writes;
  };
  struct enqueued {
    driver::status is;
    bool any = false;
  };
  struct joined {  // the parts of one call, on rank 0
    struct one {
      collective_request asks;
      source_location at;
      byte_vector brings;
      bool came = false;
    };
    std::vector<one> parts;  // by place
    std::size_t came = 0;
  };
  struct fault {  // why the ranks cannot continue, and which rank is to blame
    int about;
    std::string why;
  };

  int ranks() const noexcept { return static_cast<int>(devices_.size()); }
  std::size_t size() const noexcept { return devices_.size(); }

  void refuse_in_capture(clock::stream_clock const& on, requests all, source_location at) const {
    if (on.seen_captured())
      throw not_supported(std::string(name_of(all)), base::text("rank ", rank_, " of ", ranks(), ", in a capture"),
                          "Simulated devices of several processes exchange once a call: enqueue it at each step", at,
                          error_id{432});
  }

  std::vector<part> parts_of(requests all, source_location at) const {
    std::vector<part> parts;
    for (collective_request const& r : all)
      parts.push_back(part_of(r, at));
    return parts;
  }
  // Its arrival reads only what the rank brings, and its departure writes only what it gets.
  part part_of(collective_request const& r, source_location at) const {
    auto const what = std::make_shared<exchange>(r, rank_, ranks(), at);
    part made{what, std::make_unique<arrival>(what, all_), std::make_unique<departure>(what, all_), {}, {}};
    auto const touches = r.touches(devices_.size());
    for (driver::touch const& t : std::span<driver::touch const>(touches)) {
      if (t.writes)
        made.writes.push_back(t);
      else
        made.reads.push_back(t);
    }
    if (brought(r, rank_, ranks()) == 0)
      made.reads.clear();
    if (gotten(r, rank_, ranks()) == 0)
      made.writes.clear();
    return made;
  }

  // Of all parts, or of none. Throws: bad_alloc
  void expect_results(std::vector<part> const& parts) {
    try {
      auto q = all_->all.lock();
      for (part const& p : parts) {
        q->waiting.emplace(p.what->what.key_of(rank_), p.what);
        all_->open.fetch_add(1);
      }
    } catch (...) {
      expect_no_results(parts);
      throw;
    }
  }
  void expect_no_results(std::vector<part> const& parts) {
    auto q = all_->all.lock();
    for (part const& p : parts)
      all_->open.fetch_sub(q->waiting.erase(p.what->what.key_of(rank_)));
  }

  // From now on a part that is dropped tells of a lost device. Some may have been dropped before.
  void note_given(std::vector<part> const& parts) {
    for (part const& p : parts)
      p.what->given.store(true);
    if (std::ranges::any_of(parts, [](part const& p) { return p.what->dropped.load(); }))
      all_->lose();
  }
  // All parts arrive before one departs: no part waits for another of its call.
  enqueued enqueue_in_steps(std::vector<part>& parts, clock::stream_clock& on) {
    driver::driver& machine = runtime_.machine();
    enqueued so_far;
    for (part& p : parts) {
      so_far.is = machine.enqueue(on.device(), on.handle(), p.reads, work_of(std::move(p.arrive)));
      if (!so_far.is.ok())
        return so_far;
      so_far.any = true;
    }
    for (part& p : parts) {
      so_far.is = machine.enqueue(on.device(), on.handle(), p.writes, work_of(std::move(p.depart)));
      if (!so_far.is.ok())
        return so_far;
    }
    return so_far;
  }

  void end(base::thread& t) noexcept {
    if (t.joinable())
      t.join();
  }
  void end_threads() noexcept { end(sender_), end(reader_); }
  void blame_hub() const {
    blame_(0, base::text("rank 0 has destroyed its communicator, which carries all transfers, and rank ", rank_,
                         " waits"));
  }

  void labour(void (sockets_backend::*does)()) noexcept {
    fault f{rank_, {}};  // without a reason there is none
    try {
      (this->*does)();
    } catch (fault& found) {
      f = std::move(found);
    } catch (std::exception const& e) {
      f.why = e.what();
    }
    if (all_->lost.load())
      f = {rank_, broken(rank_)};
    // The watch may know better why the line ended: for a time its verdict is awaited, which ends this rank.
    if (f.why == hung_up) {
      auto q = all_->all.lock();
      all_->changed.wait_for(q.lock(), std::chrono::seconds(5), [&] { return all_->over.load(); });
    }
    // After an abort no rank is to blame, unless this rank's device was lost.
    if (!f.why.empty() && (!all_->over.load() || all_->lost.load()))
      blame_(f.about, base::text("rank ", f.about, " ", f.why));
  }

  // The two threads. Both throw a fault.
  void send_all() {
    while (true) {
      job next;
      {
        auto q = all_->all.lock();
        all_->changed.wait(q.lock(), [&] { return all_->over.load() || q->leaves || !q->jobs.empty(); });
        if (all_->over.load())
          return;
        if (q->jobs.empty())
          break;  // this rank leaves, and has sent all
        next = std::move(q->jobs.front());
        q->jobs.pop_front();
      }
      exchange* const own = next.own.get();
      if (!own)
        send(next.to, next.head, next.part);
      else if (rank_ == 0)
        take(0, own->what, own->at, std::move(own->in));
      else
        send(0, head_of(own->what, own->in.size()), own->in);
    }
    frame_head farewell;
    farewell.leaves = 1;
    for (os::owned_file const& line : lines_)
      if (line.is_open())
        (void)sent(line.get(), farewell, {});
  }

  void read_all() {
    std::vector<int> open = open_lines();
    std::vector<bool> ready;
    while (std::any_of(open.begin(), open.end(), [](int line) { return line >= 0; })) {
      os::wait_readable(open, ready, os::no_limit);
      if (all_->over.load())
        return;
      for (std::size_t i = 0; i < open.size(); ++i) {
        if (open[i] < 0 || !ready[i])
          continue;
        bool const goes_on = read_frame(static_cast<int>(i), open[i]);
        if (goes_on)
          continue;
        open[i] = -1;
        // The other ranks have a line to rank 0 alone.
        if (rank_ != 0)
          return hub_leaves();
      }
    }
  }

  // By rank; -1: no line
  std::vector<int> open_lines() const {
    std::vector<int> open;
    for (os::owned_file const& line : lines_) {
      if (line.is_open())
        open.push_back(line.get());
      else
        open.push_back(-1);
    }
    return open;
  }

  // Returns: false if it was the last frame of that rank
  bool read_frame(int from, int line) {
    frame_head h;
    if (!received(line, h))
      throw fault{from, hung_up};
    if (h.leaves)
      return false;
    // No program could have asked for it.
    if (!known(h, ranks()))
      throw fault{from, nonsense};
    collective_request const asks = request_of(h);
    if (h.bytes != bytes_due(asks, from))
      throw fault{from, nonsense};
    byte_vector came;
    if (!received(line, came, h.bytes))
      throw fault{from, hung_up};
    // Rank 0 gets the parts of the others, and they get its results.
    if (rank_ == 0)
      take(from, asks, {}, std::move(came));
    else
      finish(asks, std::move(came));
    return true;
  }
  std::size_t bytes_due(collective_request const& asks, int from) const {
    if (rank_ == 0)
      return brought(asks, from, ranks());
    return gotten(asks, rank_, ranks());
  }

  // All results came before. What still waits gets none.
  void hub_leaves() {
    hub_left_.store(true);
    if (!all_->all.lock()->waiting.empty())
      blame_hub();
  }

  // Rank 0: a rank's part of a call. The last part completes it.
  void take(int from, collective_request const& asks, source_location at, byte_vector brings) {
    // No rank sends to itself.
    if (asks.between_two() && asks.root == from)
      throw fault{from, nonsense};
    joined call;
    {
      auto all = joining_.lock();
      auto const [place_of_call, is_new] = all->try_emplace(asks.key_of(from));
      joined& j = place_of_call->second;
      if (is_new)
        j.parts.resize(asks.between_two() ? 2 : size());
      std::size_t place = static_cast<std::size_t>(from);
      if (asks.between_two())
        place = asks.what == collective::send ? 0 : 1;
      auto& its = j.parts[place];
      if (its.came)
        throw fault{from, nonsense};
      its = {asks, at, std::move(brings), true};
      ++j.came;
      compare(j, from);
      if (j.came < j.parts.size())
        return;
      call = std::move(j);
      all->erase(place_of_call);
    }
    answer_all(call, asks);
  }

  // Rank 0: joins the parts, and tells each rank its result. asks: of any of the ranks
  void answer_all(joined& call, collective_request const& asks) {
    std::vector<byte_vector> parts;
    for (auto& p : call.parts)
      parts.push_back(std::move(p.brings));
    auto const whole = std::make_shared<byte_vector const>(combine(asks, parts));
    std::optional<collective_request> own;  // its result comes last: then this rank may leave
    for (std::size_t place = 0; place < call.parts.size(); ++place) {
      collective_request const& r = call.parts[place].asks;
      // The other one of two names this one.
      int const rank = r.between_two() ? call.parts[1 - place].asks.root : static_cast<int>(place);
      if (rank == 0) {
        own = r;
        continue;
      }
      std::span<std::byte const> const answer = result(r, *whole, rank, ranks());
      {
        auto q = all_->all.lock();
        q->jobs.push_back({.to = rank, .head = head_of(r, answer.size()), .whole = whole, .part = answer});
      }
      all_->changed.notify_all();
    }
    if (!own)
      return;
    auto const answer = result(*own, *whole, 0, ranks());
    finish(*own, {answer.begin(), answer.end()});
  }

  // Throws: a fault, if the part of `from`, which came last, does not fit those that came before.
  static void compare(joined const& j, int from) {
    if (j.parts.size() == 2 && j.parts[0].asks.between_two()) {
      auto const &sends = j.parts[0], &receives = j.parts[1];
      if (!sends.came || !receives.came || sends.asks.fits(receives.asks))
        return;
      // The one whose part came last is named. The receive's other rank is the sender.
      if (from == receives.asks.root)
        refuse_other(from, sends, sends.asks.root, receives, "transfer");
      refuse_other(from, receives, receives.asks.root, sends, "transfer");
    }
    // Rank 0's part decides what the call is: the others are compared with it once it has come.
    if (!j.parts[0].came)
      return;
    for (std::size_t r = 1; r < j.parts.size(); ++r)
      if (j.parts[r].came && !j.parts[r].asks.matches(j.parts[0].asks))
        refuse_other(static_cast<int>(r), j.parts[r], 0, j.parts[0], "collective");
  }
  [[noreturn]] static void refuse_other(int rank, joined::one const& its, int first, joined::one const& of_first,
                                        char const* kind) {
    source_location const& at = of_first.at;
    std::string const line = at.file_name() ? base::text(" at ", at.file_name(), ":", at.line()) : "";
    throw fault{rank, base::text("calls ", its.asks.text(), " where rank ", first, " called ", of_first.asks.text(),
                                 line, " (", kind, " ", of_first.asks.turn + 1, ")")};
  }

  // This rank has its result.
  void finish(collective_request const& asks, byte_vector result) {
    std::shared_ptr<exchange> e;
    {
      auto q = all_->all.lock();
      auto const found = q->waiting.find(asks.key_of(rank_));
      if (found != q->waiting.end()) {
        e = found->second;
        q->waiting.erase(found);
      }
    }
    if (!e || !asks.matches(e->what))
      throw fault{0, nonsense};
    e->out = std::move(result);
    e->done.store(true);
    runtime_.machine().recheck();
  }

  void send(int to, frame_head const& h, std::span<std::byte const> content) const {
    bool const is_sent = sent(lines_[static_cast<std::size_t>(to)].get(), h, content);
    // A rank 0 that has left reads no more, and blame_hub() tells of that if a call still waits.
    if (!is_sent && !hub_left_.load())
      throw fault{to, hung_up};
  }
  static constexpr char const *hung_up = "has ended, or its connection is broken",
                              *nonsense = "sends what does not fit this rank's collective";
  runtime::impl& runtime_;
  std::vector<int> const devices_;
  int const rank_;
  std::vector<os::owned_file> const lines_;
  std::function<void(int, std::string const&)> const blame_;
  std::shared_ptr<shared_state> const all_ = std::make_shared<shared_state>();
  base::guarded<std::map<collective_request::key, joined>> joining_;
  base::atomic<bool> refused_{false}, hung_up_{false}, hub_left_{false};
  base::thread sender_, reader_;
};

}  // namespace

std::unique_ptr<collective_backend> carried_by_sockets(runtime::impl& owner, std::vector<int> const& devices, int rank,
                                                       std::vector<os::owned_file> lines,
                                                       std::function<void(int, std::string const&)> blame,
                                                       source_location at) {
  return std::make_unique<sockets_backend>(owner, devices, rank, std::move(lines), std::move(blame), at);
}

}  // namespace weir::peer
