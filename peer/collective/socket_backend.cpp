// Collectives of simulated devices of several processes: a rank's part is two operations on its stream, and
// one thread exchanges the bytes over sockets, in the order of the calls.
// Threads: the rank's; abort by any. The operations run on the machine's workers.
//
//   arrive   copies what this rank brings to host memory
//   depart   after the exchange: copies what this rank gets to its buffer
//
// Rank 0 receives what each rank brings, in order of rank, reduces as one process does, and sends results.
// Invariant: the thread reads what a rank brings after its arrive has run.
#include <algorithm>
#include <cstring>
#include <deque>

#include "peer/collective/group.h"
#include "peer/collective/host_reduce.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"

namespace weir::peer {
namespace {

using bytes = std::vector<std::byte>;

// What precedes the bytes of each rank's part, and of its result.
struct part_head {
  std::uint64_t sequence = 0, bytes = 0;
  std::int64_t count = 0;
  std::int32_t root = 0;
  collective what{};
  dtype type{};
  reduce_op how{};
  std::uint8_t zero = 0;
};
static_assert(sizeof(part_head) == 32);

part_head head_of(collective_request const& r, std::uint64_t sequence, std::size_t bytes) {
  return {sequence, bytes, r.count, r.root, r.what, r.type, r.how, 0};
}
collective_request request_of(part_head const& h) { return {h.what, h.type, h.how, h.root, h.count, nullptr, nullptr}; }

std::size_t brought(collective_request const& r, int rank, int ranks) {
  std::size_t const part = r.part_bytes();
  switch (r.what) {
    case collective::all_reduce:
    case collective::all_gather:
    case collective::gather: return part;
    case collective::reduce_scatter:
    case collective::all_to_all: return part * static_cast<std::size_t>(ranks);
    case collective::broadcast: return rank == r.root ? part : 0;
    case collective::scatter: return rank == r.root ? part * static_cast<std::size_t>(ranks) : 0;
  }
  return 0;
}
std::size_t gotten(collective_request const& r, int rank, int ranks) {
  std::size_t const part = r.part_bytes();
  switch (r.what) {
    case collective::all_reduce:
    case collective::reduce_scatter:
    case collective::scatter: return part;
    case collective::broadcast: return rank == r.root ? 0 : part;
    case collective::all_gather:
    case collective::all_to_all: return part * static_cast<std::size_t>(ranks);
    case collective::gather: return rank == r.root ? part * static_cast<std::size_t>(ranks) : 0;
  }
  return 0;
}

// One collective of this rank, from its call to its depart.
struct exchange {
  collective_request const what;
  std::uint64_t const sequence;
  int const rank, ranks;
  source_location const at;
  bytes in{}, out{};
  base::atomic<bool> arrived{false}, done{false};
};

struct shared_state {
  base::guarded<std::deque<std::shared_ptr<exchange>>> queue;  // not exchanged yet, in order
  base::condition changed;
  base::atomic<bool> over{false};       // no more is exchanged; parts that wait go on
  base::atomic<bool> lost{false};       // a part was dropped before it ran: the device is lost
  base::atomic<bool> given{true};       // the last call enqueued all of its parts, or nothing
  base::atomic<std::uint64_t> open{0};  // collectives whose depart has not run

  void stop() noexcept {
    {
      auto q = queue.lock();
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
      if (std::size_t const n = brought(what->what, what->rank, what->ranks); n > 0) what->in.assign(from, from + n);
    } catch (...) {  // no host memory
      return all->stop();
    }
    {
      auto q = all->queue.lock();
      what->arrived.store(true);
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
    if (what->done.load() && !what->out.empty()) std::memcpy(what->what.out, what->out.data(), what->out.size());
    {
      auto q = all->queue.lock();
      all->open.fetch_sub(1);
    }
    all->changed.notify_all();
  }
};

template <class Part>
driver::work work_of(std::unique_ptr<Part> p) {
  return {[](void* p) { static_cast<Part*>(p)->run(); },
          [](void* p) {
            auto* const part = static_cast<Part*>(p);
            if (!part->ran && part->all->given.load()) {  // its device is lost
              part->all->lost.store(true);
              part->all->stop();
            }
            delete part;
          },
          p.release(), [](void* p) { return static_cast<Part*>(p)->ready(); }};
}

class sockets_backend final : public collective_backend {
 public:
  sockets_backend(runtime::impl& r, std::vector<int> devices, int rank, std::vector<os::owned_file> lines,
                  std::function<void(int, std::string const&)> blame, source_location at)
      : runtime_(r), devices_(std::move(devices)), rank_(rank), lines_(std::move(lines)), blame_(std::move(blame)) {
    try {
      thread_ = base::thread([this] { labour(); });
    } catch (...) {
      throw driver_error(0, "communicator", base::text("rank ", rank, " of ", ranks(), ": no thread is left"),
                         "Raise the limit of threads (ulimit -u)", at, error_id{412});
    }
  }
  ~sockets_backend() override {
    abort();
    end_thread();
  }

  void issue(int, clock::stream_clock& on, std::uint64_t sequence, collective_request const& r,
             source_location at) override {
    if (on.seen_captured())
      throw not_supported(std::string(name_of(r.what)), base::text("rank ", rank_, " of ", ranks(), ", in a capture"),
                          "Simulated devices of several processes exchange once a call: enqueue it at each step", at,
                          error_id{432});
    auto const what = std::make_shared<exchange>(r, sequence, rank_, ranks(), at);
    auto arrive = std::make_unique<arrival>(what, all_);
    auto depart = std::make_unique<departure>(what, all_);
    auto const touches = r.touches(devices_.size());
    std::vector<driver::touch> reads, writes;
    for (driver::touch const& t : std::span<driver::touch const>(touches)) (t.writes ? writes : reads).push_back(t);
    if (brought(r, rank_, ranks()) == 0) reads.clear();
    if (gotten(r, rank_, ranks()) == 0) writes.clear();
    auto const operands = [&] {
      return base::text("rank ", rank_, " of ", ranks(), ", ", r.text(), " on gpu:", on.device());
    };
    {
      auto q = all_->queue.lock();
      q->push_back(what);
      all_->open.fetch_add(1);
    }
    base::call_site const in(runtime_.observer(), name_of(r.what).data(), at);
    all_->given.store(false);
    driver::status s = runtime_.machine().enqueue(on.device(), on.handle(), reads, work_of(std::move(arrive)));
    if (!s.ok()) {
      {
        auto q = all_->queue.lock();  // the thread waits for its arrive, and has not taken it
        q->pop_back();
        all_->open.fetch_sub(1);
      }
      all_->given.store(true);
      throw_refusal(s, name_of(r.what), operands(), "Create a new communicator", at);
    }
    s = runtime_.machine().enqueue(on.device(), on.handle(), writes, work_of(std::move(depart)));
    all_->given.store(true);
    if (s.ok()) return;
    refused_.store(true);
    abort();
    throw_refusal(s, name_of(r.what), operands(), "Create a new communicator", at);
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
    if (all_->over.load()) return;
    all_->stop();
    for (os::owned_file const& line : lines_)
      if (line.is_open()) os::shut_down(line.get());
    runtime_.machine().recheck();
  }

  // Blocks: until this rank's collectives are complete. Ranks that never call them leave or fail.
  void leave(int) noexcept override {
    {
      auto q = all_->queue.lock();
      all_->changed.wait(q.lock(), [&] { return all_->over.load() || all_->open.load() == 0; });
    }
    abort();
    end_thread();
  }

 private:
  int ranks() const noexcept { return static_cast<int>(devices_.size()); }
  std::size_t size() const noexcept { return devices_.size(); }

  void end_thread() noexcept {
    if (!thread_.joinable()) return;
    if (process_was_forked()) return (void)new base::thread(std::move(thread_));
    thread_.join();
  }

  void labour() noexcept {
    int about = rank_;
    std::string why;
    try {
      while (why.empty()) {
        std::shared_ptr<exchange> next;
        {
          auto q = all_->queue.lock();
          all_->changed.wait(q.lock(),
                             [&] { return all_->over.load() || (!q->empty() && q->front()->arrived.load()); });
          if (all_->over.load()) break;
          next = q->front();
          q->pop_front();
        }
        why = rank_ == 0 ? carry_as_hub(*next, about) : carry(*next, about);
        if (!why.empty()) break;
        next->done.store(true);
        runtime_.machine().recheck();
      }
    } catch (std::exception const& e) {
      why = e.what();
    }
    if (all_->lost.load()) why = broken(rank_);
    // The watch knows better why a line ends: the other process ended, or follows a coming verdict.
    if (why == hung_up) {
      auto q = all_->queue.lock();
      all_->changed.wait_for(q.lock(), std::chrono::seconds(5), [&] { return all_->over.load(); });
    }
    if (!why.empty() && (!all_->over.load() || all_->lost.load())) blame_(about, base::text("rank ", about, " ", why));
  }

  // Both return why the rank `about` cannot continue; empty: the exchange is done.
  std::string carry(exchange& e, int& about) {
    about = 0;
    int const line = lines_[0].get();
    part_head h = head_of(e.what, e.sequence, e.in.size());
    if (!sent(line, h, e.in)) return hung_up;
    if (!received(line, h)) return hung_up;
    std::size_t const expected = gotten(e.what, rank_, ranks());
    if (h.sequence != e.sequence || h.bytes != expected) return nonsense;
    e.out.resize(expected);
    return received(line, e.out) ? std::string() : hung_up;
  }

  std::string carry_as_hub(exchange& e, int& about) {
    std::vector<bytes> parts(size());
    parts[0] = std::move(e.in);
    for (int r = 1; r < ranks(); ++r) {
      about = r;
      part_head h;
      int const line = lines_[static_cast<std::size_t>(r)].get();
      if (!received(line, h)) return hung_up;
      if (auto const asked = request_of(h); h.sequence != e.sequence || !known(h)) return nonsense;
      else if (!asked.matches(e.what))
        return base::text("calls ", asked.text(), " where rank 0 called ", e.what.text(),
                          e.at.file_name() ? base::text(" at ", e.at.file_name(), ":", e.at.line()) : "",
                          " (collective ", e.sequence + 1, ")");
      if (h.bytes != brought(e.what, r, ranks())) return nonsense;
      parts[static_cast<std::size_t>(r)].resize(h.bytes);
      if (!received(line, parts[static_cast<std::size_t>(r)])) return hung_up;
    }
    bytes const whole = combine(e.what, parts);
    for (int r = 0; r < ranks(); ++r) {
      about = r;
      std::span<std::byte const> const mine = result(e.what, whole, r);
      if (r == 0) {
        e.out.assign(mine.begin(), mine.end());
        continue;
      }
      if (!sent(lines_[static_cast<std::size_t>(r)].get(), head_of(e.what, e.sequence, mine.size()), mine))
        return hung_up;
    }
    return {};
  }

  bytes combine(collective_request const& r, std::vector<bytes>& parts) const {
    switch (r.what) {
      case collective::broadcast:
      case collective::scatter: return std::move(parts[static_cast<std::size_t>(r.root)]);
      case collective::all_gather:
      case collective::gather: {
        bytes all;
        for (bytes const& p : parts) all.insert(all.end(), p.begin(), p.end());
        return all;
      }
      case collective::all_to_all: {
        bytes all;
        std::size_t const one = r.part_bytes();
        for (std::size_t at = 0; at < size() * one; at += one)
          for (bytes const& p : parts)
            all.insert(all.end(), p.data() + at, p.data() + at + one);
        return all;
      }
      case collective::all_reduce:
      case collective::reduce_scatter: break;
    }
    bytes all(parts[0].size());
    std::vector<void const*> in;
    for (bytes const& p : parts) in.push_back(p.data());
    void* const out = all.data();
    reduce(r.type, r.how, in, {&out, 1}, 0, static_cast<std::int64_t>(all.size() / size_of(r.type)));
    return all;
  }
  std::span<std::byte const> result(collective_request const& r, bytes const& whole, int rank) const {
    std::size_t const n = gotten(r, rank, ranks());
    bool const sliced = r.what == collective::reduce_scatter || r.what == collective::scatter ||
                        r.what == collective::all_to_all;
    return std::span(whole).subspan(sliced ? n * static_cast<std::size_t>(rank) : 0, n);
  }

  static bool known(part_head const& h) noexcept {
    return h.what <= collective::all_to_all && h.type <= boolean && h.how <= reduce_op::max && h.count >= 0;
  }
  static bool sent(int line, part_head const& h, std::span<std::byte const> part) noexcept {
    return os::send_bytes(line, std::as_bytes(std::span(&h, 1)), os::no_limit) == os::heard::message &&
           os::send_bytes(line, part, os::no_limit) == os::heard::message;
  }
  static bool received(int line, part_head& h) noexcept {
    return os::receive_bytes(line, std::as_writable_bytes(std::span(&h, 1)), os::no_limit) == os::heard::message;
  }
  static bool received(int line, bytes& part) noexcept {
    return os::receive_bytes(line, part, os::no_limit) == os::heard::message;
  }

  static constexpr char const *hung_up = "has ended, or its connection is broken",
                              *nonsense = "sends what does not fit this rank's collective";
  runtime::impl& runtime_;
  std::vector<int> const devices_;
  int const rank_;
  std::vector<os::owned_file> const lines_;
  std::function<void(int, std::string const&)> const blame_;
  std::shared_ptr<shared_state> const all_ = std::make_shared<shared_state>();
  base::atomic<bool> refused_{false};
  base::thread thread_;
};

}  // namespace

std::unique_ptr<collective_backend> carried_by_sockets(runtime::impl& owner, std::vector<int> const& devices, int rank,
                                                       std::vector<os::owned_file> lines,
                                                       std::function<void(int, std::string const&)> blame,
                                                       source_location at) {
  return std::make_unique<sockets_backend>(owner, devices, rank, std::move(lines), std::move(blame), at);
}

}  // namespace weir::peer
