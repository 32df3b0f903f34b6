// PyTorch's memory pools: of graphs that it captures, and of torch.cuda.MemPool.
// A stream that is captured allocates from the graph memory of the pool whose filter accepts it, another from a
// weir::pool of the same id. PyTorch lets several graphs share one pool, and promises that they never run at once.
// Threads: any. The filters are called with the lock held, and none after its end().
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "weir/graph.h"
#include "weir/pool.h"

namespace weir::interop {

class pools_of_torch {
 public:
  explicit pools_of_torch(std::atomic<int>& open) noexcept : open_(open) {}  // open: counts begin() less end()
  using id = std::pair<unsigned long long, unsigned long long>;              // c10::MempoolId_t
  using filter = std::function<bool(CUstream_st*)>;

  void begin(int device, id, filter);     // holds the pool, as hold()
  void end(int device, id) noexcept;      // this thread's newest begin() of that pool; it has none: another's
  void hold(int device, id);              // Throws: bad_alloc, as pool
  void release(int device, id) noexcept;  // the last one for each hold() gives the pool up
  int holds(int device, id) noexcept;     // hold() and begin() less release(); 0: no such pool
  int begun(int device, id) noexcept;     // begin() less end()
  // The newest pool that accepts the stream on this thread, captured or not.
  std::optional<id> in_force(int device, CUstream_st*);
  std::map<std::uint64_t, id> by_number(int device);  // memory_segment::pool of all pools that hold memory
  // What is allocated in it outside of captures, as pool::sleep and pool::wake. No effect without such memory.
  void sleep(int device, id, sleep_to);
  void wake(int device, id);
  // Of an allocation on this stream: the pool that its thread has entered. Null: none, or the stream is captured
  std::shared_ptr<pool const> entered(int device, CUstream_st*, stream_ref);

 private:
  using place = std::pair<int, id>;
  struct one {
    int holds = 0;
    graph_memory graphs;
    std::shared_ptr<pool> others;  // made at its first allocation
  };
  struct route {
    place of;
    std::thread::id by;
    filter accepts;
    std::unique_ptr<graph_memory_route> of_captures;
  };
  std::shared_ptr<pool> memory_of(int device, id);  // null: none yet

  std::mutex lock_;
  std::map<place, one> all_;
  std::vector<route> routes_;  // the newest last
  std::atomic<int>& open_;
};

}  // namespace weir::interop
