// A libnccl.so.2 whose ranks are threads of one process: it blocks and frees as NCCL 2.26 to 2.30 do, and moves no
// data. It notes calls that NCCL forbids, and calls in which NCCL would use freed memory.
// Threads: any
//
// As in NCCL, the first collective of a kind and a transfer's first pair wait for the other ranks, and poll the abort
// flag alone; CommAbort sets it at once, and frees when the group around it ends.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

enum result : int { success = 0, internal_error = 3, invalid_argument = 4, in_progress = 7 };

struct id {
  char text[128];
};
struct config {  // as ncclConfig_t begins
  std::size_t size;
  unsigned magic, version;
  int blocking;
};

struct comm {
  std::string name;  // equal on all ranks
  int rank, size;
  bool blocking;
  std::atomic<bool> aborts{false}, freed{false};
  std::atomic<int> inside{0};
  comm** splits_to = nullptr;  // while a split is under way
  comm* child = nullptr;
  std::string waits_for;  // what the asynchronous call waits for
};

struct all {
  std::mutex lock;
  std::deque<std::unique_ptr<comm>> comms;  // also those that were freed
  std::map<std::string, int> came;          // ranks, by what they came for
  std::map<std::string, int> came_of;       // ranks of a call, by rank
  std::string wrong;
  int connects = 0, splits = 0;
};
all& state() {
  static all* const one = new all;
  return *one;
}

void note(std::string const& what) {
  std::lock_guard const in(state().lock);
  state().wrong += what + "\n";
}

struct call {
  comm* on;
  std::string kind;
  int ranks;
};
thread_local int depth = 0;
thread_local std::vector<call> calls;
thread_local std::vector<comm*> to_free;

comm* make(std::string name, int rank, int size, bool blocking) {
  std::lock_guard const in(state().lock);
  state().comms.push_back(std::make_unique<comm>());
  comm& c = *state().comms.back();
  c.name = std::move(name), c.rank = rank, c.size = size, c.blocking = blocking;
  return &c;
}

// Returns: whether it is the rank's first
bool come(std::string const& key, int rank) {
  std::lock_guard const in(state().lock);
  if (state().came_of[key + "/" + std::to_string(rank)]++)
    return false;
  ++state().came[key];
  return true;
}
bool all_came(std::string const& key, int ranks) {
  std::lock_guard const in(state().lock);
  return state().came[key] >= ranks;
}

int run(std::vector<call> const& now) {
  std::vector<call> connect;
  int worst = success;
  for (call const& c : now) {
    if (c.on->freed.load())
      note("a collective of a communicator that was freed");
    if (!c.on->blocking)
      note("a collective of a communicator that does not block");
    ++c.on->inside;
    if (c.on->size > 1 && come(c.on->name + c.kind, c.on->rank)) {
      connect.push_back(c);
      std::lock_guard const in(state().lock);
      ++state().connects;
    }
  }
  for (call const& c : connect) {
    while (!all_came(c.on->name + c.kind, c.ranks) && !c.on->aborts.load())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // it still uses the communicator
    if (c.on->aborts.load())
      worst = internal_error;
  }
  for (call const& c : now)
    --c.on->inside;
  return worst;
}

int enqueue(comm* on, std::string const& kind, int ranks) {
  if (!on)
    return invalid_argument;
  if (depth) {
    calls.push_back({on, kind, ranks});
    return success;
  }
  return run({{on, kind, ranks}});
}
int collective(comm* on, char const* kind, std::size_t count) {
  return enqueue(on, kind + std::string(count < 1024 ? " small" : " large"), on ? on->size : 0);
}

int free_now(comm* c) {
  if (c->inside.load())
    note("a communicator is freed while a thread is inside");
  if (c->freed.exchange(true))
    note("a communicator is freed twice");
  return success;
}
int free_later(comm* c) {
  if (!depth)
    return free_now(c);
  to_free.push_back(c);
  return success;
}

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE int ncclGetVersion(int* v) {
  return *v = 22809, success;
}
FAKE int ncclGetUniqueId(id* made) {
  static std::atomic<int> last{0};
  *made = {};
  std::string const text = "id" + std::to_string(++last);
  std::memcpy(made->text, text.data(), text.size());
  return success;
}
FAKE int ncclCommInitRankConfig(comm** made, int size, id its, int rank, config const* c) {
  comm* const m = make(its.text, rank, size, c->blocking != 0);
  come(m->name, rank);
  if (!m->blocking)
    m->waits_for = m->name;
  else if (size > 1)
    note("a first communicator of several ranks blocks: nothing ends its connection");
  return *made = m, m->blocking ? success : in_progress;
}
FAKE int ncclCommInitAll(comm** made, int size, int const*) {
  id one;
  ncclGetUniqueId(&one);
  for (int r = 0; r < size; ++r)
    made[r] = make(one.text, r, size, true);
  return success;
}
FAKE int ncclCommSplit(comm* of, int, int key, comm** made, config const* c) {
  *made = nullptr;
  {
    std::lock_guard const in(state().lock);
    ++state().splits;
  }
  of->child = make(of->name + "split", key, of->size, c->blocking != 0);
  of->splits_to = made;
  of->waits_for = of->name + "split";
  come(of->waits_for, key);
  return success;  // it has only begun
}
FAKE int ncclCommGetAsyncError(comm* c, int* answer) {
  if (c->freed.load())
    note("a question to a communicator that was freed");
  *answer = success;
  if (c->waits_for.empty())
    return success;
  if (!all_came(c->waits_for, c->size))
    return *answer = in_progress, success;
  c->waits_for.clear();
  if (c->splits_to)
    *std::exchange(c->splits_to, nullptr) = c->child;
  return success;
}
FAKE int ncclCommAbort(comm* c) {
  if (!c)
    return success;
  c->aborts.store(true);
  if (c->splits_to)  // NCCL's thread ends, and leaves what it has made
    *std::exchange(c->splits_to, nullptr) = c->child;
  return free_later(c);
}
FAKE int ncclCommDestroy(comm* c) {
  if (c && !c->waits_for.empty())
    note("a communicator is destroyed while a call is under way");
  return c ? free_later(c) : success;
}
FAKE char const* ncclGetErrorString(int r) {
  return r == internal_error ? "internal error" : r == success ? "no error" : "an error";
}
FAKE char const* ncclGetLastError(comm*) {
  return "";
}
FAKE int ncclAllReduce(void const*, void*, std::size_t n, int, int, comm* c, void*) {
  return collective(c, "all_reduce", n);
}
FAKE int ncclBroadcast(void const*, void*, std::size_t n, int, int, comm* c, void*) {
  return collective(c, "broadcast", n / 4);  // bytes
}
FAKE int ncclAllGather(void const*, void*, std::size_t n, int, comm* c, void*) {
  return collective(c, "all_gather", n / 4);
}
FAKE int ncclReduceScatter(void const*, void*, std::size_t n, int, int, comm* c, void*) {
  return collective(c, "reduce_scatter", n);
}
FAKE int ncclSend(void const*, std::size_t, int, int to, comm* c, void*) {
  return enqueue(c, " pair " + std::to_string(c->rank) + " " + std::to_string(to), 2);
}
FAKE int ncclRecv(void*, std::size_t, int, int from, comm* c, void*) {
  return enqueue(c, " pair " + std::to_string(from) + " " + std::to_string(c->rank), 2);
}
FAKE int ncclGroupStart() {
  return ++depth, success;
}
FAKE int ncclGroupEnd() {
  if (--depth)
    return success;
  int const answer = run(std::exchange(calls, {}));
  for (comm* const c : std::exchange(to_free, {}))
    free_now(c);
  return answer;
}
FAKE int ncclRedOpCreatePreMulSum(int* made, void*, int, int, comm*) {
  return *made = 99, success;
}
FAKE int ncclMemAlloc(void** at, std::size_t bytes) {
  return *at = ::operator new(bytes), success;
}
FAKE int ncclMemFree(void* at) {
  return ::operator delete(at), success;
}

// What was wrong since the last call, a line each. live: communicators that were not freed. connects: calls that
// waited for other ranks
FAKE void fake_nccl_report(std::string* wrong, int* live, int* connects) {
  std::lock_guard const in(state().lock);
  *wrong = std::exchange(state().wrong, {});
  *live = static_cast<int>(
      std::count_if(state().comms.begin(), state().comms.end(), [](auto const& c) { return !c->freed.load(); }));
  *connects = state().connects;
}
