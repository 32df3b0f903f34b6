// A collective request, the host state of a communicator, and the backend interface.
// Threads: any; each rank by one thread at a time.
#pragma once
#include <array>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peer/ranks/exceptions.h"
#include "peer/ranks/launcher.h"
#include "peer/ranks/watch.h"
#include "runtime/base/sync.h"
#include "runtime/clock/stream_clock.h"
#include "weir/collective.h"

namespace weir::memory {
class allocator;
class memory_pool;
}

namespace weir::peer {

enum class collective : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  scatter,
  gather,
  all_to_all,
  send,
  receive,       // between two ranks
  register_pool  // enqueues nothing. in, count: the pool's memory, in bytes
};
std::string_view name_of(collective) noexcept;

struct collective_request {
  collective what = collective::all_reduce;
  dtype type = float32;
  reduce_op how = reduce_op::sum;
  int root = 0;  // send, receive: the other rank
  // elements of one part: the buffer; `in` of all_gather and gather; `out` of reduce_scatter and scatter; what one
  // rank sends to another in all_to_all
  std::int64_t count = 0;
  void const* in = nullptr;  // equal to out for all_reduce and broadcast. Null: scatter, on a rank that is not its root
  void* out = nullptr;       // null: gather, on a rank that is not its root; send
  // 0, 1, 2, …: equal on all ranks, or on the sender and the receiver; set by group::agree
  std::uint64_t turn = 0;
  // where it lies in registered pools, as far as it is equal on all ranks; set by group::issue
  std::uint64_t placed = 0;
  // its place among the collectives of one call, and their number; set by group::issue. Of sends and receives as here
  std::uint32_t member = 0, members = 1;

  bool reduces() const noexcept { return what == collective::all_reduce || what == collective::reduce_scatter; }
  bool has_root() const noexcept {
    return what == collective::broadcast || what == collective::scatter || what == collective::gather;
  }
  bool reads_all() const noexcept {  // `in` holds a part for each rank
    return what == collective::reduce_scatter || what == collective::scatter || what == collective::all_to_all;
  }
  bool writes_all() const noexcept {
    return what == collective::all_gather || what == collective::gather || what == collective::all_to_all;
  }
  bool between_two() const noexcept { return what == collective::send || what == collective::receive; }
  std::size_t part_bytes() const noexcept { return static_cast<std::size_t>(count) * size_of(type); }
  bool matches(collective_request const& other) const noexcept;  // ignores the addresses
  bool fits(collective_request const& other) const noexcept {    // of a send and a receive
    return type == other.type && count == other.count;
  }
  collective_request seen_from(int rank) const noexcept {  // the other rank's side of this rank's send or receive
    return {what == collective::send ? collective::receive : collective::send,
            type,
            how,
            rank,
            count,
            nullptr,
            nullptr,
            turn};
  }
  // Of a rank's request; equal for all requests of one call: sender and receiver, both 0 for collectives; turn.
  using key = std::array<std::uint64_t, 3>;
  key key_of(int rank) const noexcept {
    auto const mine = static_cast<std::uint64_t>(rank), other = static_cast<std::uint64_t>(root);
    if (!between_two())
      return {0, 0, turn};
    return what == collective::send ? key{mine, other, turn} : key{other, mine, turn};
  }
  std::string text() const;    // "all_reduce of 12 float32 (sum)"; of a group: ", member 2 of a group of 3"
  std::string of_one() const;  // without the group
  struct own_touches {
    std::array<driver::touch, 2> all{};
    std::size_t first = 0, count = 0;
    operator std::span<driver::touch const>() const noexcept { return {all.data() + first, count}; }
  };
  own_touches touches(std::size_t ranks) const noexcept;  // own memory that one rank's part reads and writes
};

// What one call enqueues: a collective, a send, a receive, or a group of them, which do not wait for each other.
using requests = std::span<collective_request const>;
std::string_view name_of(requests) noexcept;
std::string text_of(requests);
bool needs(requests, int rank) noexcept;  // whether the call needs that rank. No request: the operation needs all

bool have_collective(requests) noexcept;  // one of them is not between two ranks alone

std::string placed_text(std::uint64_t placed);  // of collective_request::placed

bool reducible(dtype) noexcept;  // all but int16 and boolean, which NCCL lacks

// Carries out a collective that all ranks agreed on: by NCCL, or by simulated streams.
class collective_backend {
 public:
  virtual ~collective_backend() = default;
  // Enqueues this rank's part. Several: all or none, and none waits for another.
  // Blocks: only as NCCL does. Throws: device_lost, driver_error. After a throw nothing is under way, or
  // broken() tells why no rank can continue.
  virtual void issue(int rank, clock::stream_clock& on, requests, source_location) = 0;
  // Connects the ranks, so that collectives need not wait for another rank's call. `all_are_ready` comes behind all
  // that can fail on one rank alone: a rank that waits inside NCCL hears of no other. Once, before the first issue
  // Blocks: until all ranks have called. Throws: as issue
  virtual void connect(std::function<void()> const& all_are_ready, source_location) { all_are_ready(); }
  // Keeps that memory ready for the rank's collectives, until leave(rank) or abort(). Throws: as issue.
  // Blocks: with NCCL until all ranks have called
  // multicast: prepare_registration() of all ranks returned true.
  virtual void register_memory(int /*rank*/, clock::stream_clock&, collective_request const&, bool /*multicast*/,
                               source_location) {}
  // All that can fail on one rank alone, before ranks wait for each other.
  // Returns: whether its GPU may multicast among these. Throws: not_supported, driver_error, bad_alloc
  virtual bool prepare_registration(int /*rank*/, source_location) { return false; }
  // Why the ranks cannot continue; empty if they can. Checked before each collective. Threads: any
  virtual std::string broken(int rank) = 0;
  // A graph with collectives of the rank runs there now. They count as its calls for idle() and leave()
  virtual void launched(int /*rank*/, clock::stream_clock& /*on*/) noexcept {}
  // Whether all collectives of a rank are complete. Captured ones are by themselves. Of ranks in several processes.
  // Threads: any
  virtual bool idle(int /*rank*/) { return true; }
  virtual void abort() noexcept = 0;          // Threads: any. Idempotent. Ensures: no stream waits for a rank
  virtual void leave(int rank) noexcept = 0;  // ends a rank. Requires: the other ranks issued all that it issued
};
std::unique_ptr<collective_backend> carried_by_streams(runtime::impl&, std::vector<int> const& devices);
// Throws: not_supported, driver_error
std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl&, std::vector<int> const& devices, source_location);
// One rank of several processes. `id`: nccl_id() of rank 0. `gives_up`: why to wait no longer; empty: wait.
// Throws: as carried_by_nccl. Blocks: until all ranks are connected, or gives_up()
std::unique_ptr<collective_backend> carried_by_nccl(runtime::impl&, std::vector<int> const& devices, int rank,
                                                    std::string const& id, std::function<std::string()> gives_up,
                                                    source_location);
std::string nccl_id(source_location);  // Throws: not_supported (no NCCL), driver_error

// Carries the collectives of simulated devices of several processes over sockets. `blame` is called when a
// line ends or another rank sends what does not fit; then nothing more is carried.
std::unique_ptr<collective_backend> carried_by_sockets(runtime::impl&, std::vector<int> const& devices, int rank,
                                                       std::vector<os::owned_file> lines,
                                                       std::function<void(int rank, std::string const& why)> blame,
                                                       source_location);

inline constexpr std::string_view by_its_program = "its program aborted the communicator";

// What one rank enqueued in one capture, and each launch of its graph repeats.
struct captured_requests {
  std::uint64_t collectives = 0;
  std::map<int, rank_watch::transfers> with{};  // by the other rank
};

using color_and_key = std::array<int, 2>;  // of a rank in a split: its color and key
std::string_view name_of_round(rank_watch::round) noexcept;
class group;
struct seat {  // of a rank in a group
  std::shared_ptr<group> in{};
  int rank = 0;
};

// What the host knows of a communicator.
// Invariant: the i-th collective of every rank is the same, except for its addresses. The i-th send of a rank to
// another fits the other's i-th receive from it. Graphs that the ranks launch have as many collectives on each in
// the end: a rank that has launched fewer is waited for.
class group : public std::enable_shared_from_this<group> {
 public:
  group(runtime::impl&, std::vector<int> devices, std::unique_ptr<collective_backend>);
  virtual ~group() = default;
  // Throws: invalid_use after the runtime has ended
  runtime::impl& owner(std::string_view operation, source_location) const;
  bool ended() const noexcept { return ended_.load(base::memory_order_acquire); }
  int size() const noexcept { return static_cast<int>(devices_.size()); }
  int device(int rank) const noexcept { return devices_[static_cast<std::size_t>(rank)]; }  // of a rank of this process

  // The thread's current stream of the rank's device.
  clock::stream_clock& stream(int rank, std::string_view operation, source_location) const;
  // Marks the memory of all and enqueues them on that stream. from: where each was asked for.
  stamp call(int rank, std::span<collective_request>, std::span<source_location const> from, source_location);
  // Requires: their memory is marked.
  stamp issue(int rank, clock::stream_clock& on, std::span<collective_request>, source_location);
  stamp issue(int rank, clock::stream_clock& on, collective_request r, source_location at) {
    return issue(rank, on, std::span(&r, 1), at);
  }
  // Requires: a registered one
  void register_pool(int rank, clock::stream_clock& on, memory::allocator&, memory::memory_pool&, source_location);
  virtual void barrier(int rank, base::time_limit, source_location) = 0;
  // Before collectives that a rank alone may be unable to call: a rank that waits inside NCCL cannot be freed.
  // Blocks: until all ranks have come. Returns: whether `mine` of all ranks is true
  virtual bool all_are_ready(rank_watch::round, int rank, bool mine, source_location) = 0;
  // The rank's place among those of its color, by key and rank. Without one: communicator::no_color
  virtual seat split(int rank, int color, int key, source_location) = 0;
  virtual void abort(int rank, std::string_view why) noexcept = 0;
  virtual bool waits(int rank) const noexcept = 0;  // the rank called a collective that others have not called yet
  // An exception has ended an owner of the rank. Aborts all ranks once another waits for its next call, unless as
  // many exceptions ended owners of that one first. The rank's next call ends the matter.
  virtual void unwound(int rank, std::string_view owner) noexcept = 0;
  virtual void leave(int rank) noexcept = 0;
  // A graph that captured them for the rank is launched: launched() or launch_refused() follows.
  // Throws: as a call, if the ranks cannot continue; it is not launched then
  virtual void launches(int rank, captured_requests const&, char const* operation, source_location) = 0;
  virtual void launched(int rank, clock::stream_clock& on) noexcept { backend_->launched(rank, on); }
  virtual void launch_refused(int rank, captured_requests const&) noexcept = 0;
  virtual void runtime_ends() noexcept = 0;  // all ranks leave while the driver still exists
  virtual std::string failure() const = 0;   // why no rank can continue; empty while they can
  // Throws: driver_error or invalid_use if no rank can continue
  void refuse_if_broken(int rank, std::string const& operation, requests, source_location);

 protected:
  void leave_backend(int rank) noexcept;
  // Captures with calls of the rank that are under way, or whose graphs weir does not launch.
  bool has_unknown_graphs(int rank) const noexcept {
    return unknown_graphs_[static_cast<std::size_t>(rank)].load() > 0;
  }
  // `what`: empty if the operation needs all ranks.
  virtual void refuse_if_over(int rank, std::string const& operation, requests what, source_location) const = 0;
  // Sets the turns. Throws: invalid_use if another rank calls something else; nothing has changed
  virtual void agree(int rank, std::span<collective_request>, source_location) = 0;
  // The backend says why no rank can continue. Ends all ranks. Throws: driver_error that names the rank, if one
  // ended them before: an abort stops the backend, which does not know whose it was
  virtual void end_broken(int rank, std::string const& why, std::string const& operation, source_location);
  virtual void issued(int /*rank*/) noexcept {}  // what the rank agreed on last
  // the rank's last agreement, whose issue failed
  virtual void withdraw(int rank, requests, source_location) noexcept = 0;

  runtime::impl& runtime_;  // invalid once ended_
  base::atomic<bool> ended_{false};
  std::vector<int> const devices_;  // by rank; -1: of another process
  std::unique_ptr<collective_backend> const backend_;

 private:
  struct registered {
    memory::allocator* of;
    memory::memory_pool* pool;
    std::uintptr_t at;
    std::size_t bytes;
  };
  void place_members(int rank, std::span<collective_request>) const noexcept;
  // after the backend refused what was agreed on
  void take_back(int rank, std::string const& operation, requests, source_location);
  std::uint64_t placed(int rank, collective_request const&) const noexcept;
  std::vector<std::vector<registered>> registered_;  // by rank, by its thread
  class captured_calls;
  // What counts the rank's calls in the capture of that stream, for launches(). Null: there is none. Throws: bad_alloc
  captured_calls* captured_now(int rank, clock::stream_clock& on);
  std::vector<std::shared_ptr<captured_calls>> captured_;  // likewise: of the last capture
  std::vector<base::atomic<int>> unknown_graphs_;          // by rank
};

// All ranks are threads of this process.
class thread_group final : public group {
 public:
  thread_group(runtime::impl&, std::vector<int> devices, std::unique_ptr<collective_backend>);
  void barrier(int rank, base::time_limit, source_location) override;
  bool all_are_ready(rank_watch::round, int rank, bool mine, source_location) override;
  seat split(int rank, int color, int key, source_location) override;
  void abort(int rank, std::string_view why) noexcept override;
  bool waits(int rank) const noexcept override;
  void unwound(int rank, std::string_view owner) noexcept override;
  void leave(int rank) noexcept override;
  void launches(int rank, captured_requests const&, char const* operation, source_location) override;
  void launch_refused(int rank, captured_requests const&) noexcept override;
  void runtime_ends() noexcept override;
  std::string failure() const override;

 private:
  struct asked {  // a collective or transfer that not all of its ranks have called yet
    collective_request first;
    int first_rank;
    source_location at;
    int ranks = 0;                 // number of ranks that called it
    std::uint64_t exceptions = 0;  // of a transfer: those of the first rank then
  };
  struct pair {                                                    // what one rank sends to another
    std::uint64_t sent = 0, received = 0;                          // turns that were called
    std::vector<asked> open;                                       // called by one of the two
    std::size_t compared = 0;                                      // members of the call that is being compared
    exceptions_before_steps launched_sent{}, launched_received{};  // each transfer of a launched graph is a step
    exceptions_before_steps& launched(bool sender) noexcept { return sender ? launched_sent : launched_received; }
    exceptions_before_steps const& launched(bool sender) const noexcept {
      return sender ? launched_sent : launched_received;
    }
    bool is_ahead(bool sender) const noexcept { return launched(sender).steps() > launched(!sender).steps(); }
    // Before the first one in which the sender or the receiver waits. Requires: is_ahead(sender)
    std::uint64_t exceptions_of(bool sender) const noexcept {
      return launched(sender).before(launched(!sender).steps());
    }
  };
  struct round {  // a barrier, a split or a registration
    std::string_view operation;
    int first_rank;
    std::vector<bool> came;                 // by rank, as all that follows
    std::vector<color_and_key> colors;      // of a split; of a registration, whether the GPU may multicast
    bool full = false, is_seen_to = false;  // all have come; by the last rank
    int last_rank = -1;
    std::exception_ptr failed{};  // for the last rank; `why`: its text, for the others
    std::string why{};
    std::vector<seat> seats{};  // empty: failed
  };
  struct shared {
    std::vector<asked> open;                   // open[i] is turn closed + i
    std::size_t most_members = 1;              // of one call: as many may be withdrawn
    std::uint64_t closed = 0;                  // turns that all ranks have called
    std::vector<std::uint64_t> next;           // by rank: its next turn
    std::map<std::array<int, 2>, pair> pairs;  // by sender and receiver
    std::vector<bool> gone;                    // by rank
    std::shared_ptr<round> meets;              // null: no rank waits
    int aborted_by = -1;
    std::string why;  // empty: its program, or a rank left
    struct exceptions {
      std::uint64_t count = 0, step = 0;  // that ended owners of a rank before `step`
      bool silent = false;                // the rank has made no call since
      std::string_view owner{};
    };
    std::vector<exceptions> unwound;  // by rank, as the next two
    std::vector<exceptions_before_steps> before;
    std::vector<std::uint64_t> launched;  // collectives of graphs
    int silent = 0;                       // ranks
    std::uint64_t exceptions_of(int rank) const noexcept;
    void speaks(int rank) noexcept;
    int awaited() const noexcept;  // a silent rank that another waits for in vain; -1: none
    bool is_awaited(int rank) const noexcept;
    bool has_open(int rank) const noexcept;  // a collective, or a transfer of the rank, that others have not called
    // Of graphs: collectives than another rank, or transfers with it.
    bool has_launched_more(int rank) const noexcept;
    bool has_launched_less(int rank) const noexcept;
    bool transfers_are_ahead(int rank, bool its) const noexcept;  // launched ones: its own, or the other ranks'
    void add_launched(int rank, captured_requests const&) noexcept;
    void take_back_launched(int rank, captured_requests const&) noexcept;
    // f: for each pair whose transfers were captured; whether the rank is its sender; how many
    void each_pair(int rank, captured_requests const&, auto f) noexcept;
  };
  void refuse_if_over(int rank, std::string const& operation, requests, source_location) const override;
  void agree(int rank, std::span<collective_request>, source_location) override;
  void withdraw(int rank, requests, source_location) noexcept override;
  void refuse_if_over(shared const& s, int rank, std::string const& operation, requests, source_location at) const;
  static pair& pair_of(shared& s, int rank, collective_request const&);
  // Makes room. Throws: invalid_use if another rank calls something else; nothing has changed
  static void make_room(shared& s, int rank, requests);
  static void compare(shared& s, int rank, requests, source_location);
  // earlier: members of the same call, between the same two ranks in the same direction
  static void compare_with_peer(pair const&, std::size_t earlier, int rank, collective_request const&, source_location);
  void take_part(shared& s, int rank, collective_request&, std::uint64_t exceptions, source_location) const noexcept;
  void undo_part(shared& s, int rank, collective_request const&, source_location) const noexcept;
  // Blocks: until all ranks have come, and the last has seen to the round
  std::shared_ptr<round> meet(int rank, std::string_view operation, color_and_key, base::time_limit, source_location,
                              void (thread_group::*see_to)(round&, source_location) noexcept);
  static void leave_round(shared&, int rank);  // Requires: not all have come
  void seat_all(round&, source_location) noexcept;
  void end_if_awaited() noexcept;
  static std::string reason(shared const&);  // to follow "rank … aborted this communicator"
  [[noreturn]] static void refuse_other(int rank, collective_request const&, asked const& first, source_location);

  base::guarded<shared> shared_;
  base::condition changed_;
};

// The ranks of one color, by key and rank.
std::vector<int> members_of(int color, std::span<color_and_key const> colors);

std::shared_ptr<group> group_of_threads(runtime::impl&, std::vector<int> devices, source_location);
std::shared_ptr<group> shared_by_ranks(std::unique_ptr<group>);
// An id of a rendezvous, and where its rank 0 listens. Throws: driver_error (no port)
rendezvous_point new_point(std::string host, source_location);
// One rank of several processes. Blocks: until all ranks have come
std::shared_ptr<group> group_at(runtime::impl&, rendezvous_point, membership const&, int device, rank_options const&,
                                source_location);
// All communicators of a runtime, which they may outlive.
void add_to(runtime::impl&, std::shared_ptr<group> const&);

// Tells the destructor of an owner whether an exception ends it.
class scope_of_exceptions {
 public:
  bool is_ended() const noexcept { return std::uncaught_exceptions() > before_; }

 private:
  int before_ = std::uncaught_exceptions();
};

// Requests of one rank. They touch no memory and ask for no stream.
// Throw: invalid_use (counts, a root, a rank), not_supported (an element type)
struct asking {
  int rank, ranks;
  source_location at;
  collective_request all_reduce(device_span, reduce_op) const;
  collective_request broadcast(device_span, int root) const;
  collective_request scatter(device_span out, device_span in, int root) const;
  collective_request gather(device_span out, device_span in, int root) const;
  collective_request all_gather(device_span out, device_span in) const;
  collective_request reduce_scatter(device_span out, device_span in, reduce_op) const;
  collective_request all_to_all(device_span out, device_span in) const;
  collective_request send(device_span in, int to, std::string_view operation = "send") const;
  collective_request receive(device_span out, int from, std::string_view operation = "receive") const;
};
// Marks all memory that the rank's part uses. Throws: as use_on(device_span), and invalid_use (it overlaps).
// from: where each was asked for.
void use_on(clock::stream_clock&, requests, int rank, int ranks, std::span<source_location const> from);

// Marks the block for the stream. Throws: invalid_use unless all elements are in one block of its device.
void use_on(clock::stream_clock&, device_span, std::string_view operation, std::string_view operand, source_location);

}  // namespace weir::peer

namespace weir {

struct WEIR_LOCAL communicator::state {
  std::shared_ptr<peer::group> all;
  int rank = 0;

  peer::asking asks(source_location at) const { return {rank, all->size(), at}; }
  stamp call(peer::collective_request r, source_location at) const { return all->call(rank, {&r, 1}, {&at, 1}, at); }
  ~state();
};

}  // namespace weir
