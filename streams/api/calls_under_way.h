// Launches, copies and fills of all threads that are under way. Those hold no pool of a spill that begins meanwhile.
// Threads: any. A mark belongs to the thread that made it.
//
// Invariant: a call marks itself before it asks for a spill. So a spill that the call does not see finds the mark.
#pragma once
#include <vector>

#include "runtime/base/sync.h"

namespace weir::streams {

class call_under_way {  // while it lives. Calls nest
 public:
  call_under_way() { begin(); }  // Throws: bad_alloc
  ~call_under_way() { end(); }
  call_under_way(call_under_way const&) = delete;

  // For a call that spans functions: each begin() has its end(), on the same thread. Throws: bad_alloc
  static void begin() {
    mark* m = mark_of_thread::value;
    if (!m) [[unlikely]]
      m = first_of_thread();
    if (m->depth++ == 0)
      m->calls.begin(m->fences);
  }
  static void end() noexcept {
    mark& m = *mark_of_thread::value;
    if (--m.depth == 0)
      m.calls.end();
  }

 private:
  friend class earlier_calls;
  // Never freed: a later thread goes on with its count.
  struct mark {
    base::call_count calls;
    std::uint32_t depth = 0;  // of the owner
    bool fences = false;
    mark* next = nullptr;
    base::atomic<bool> taken{true};
  };
  struct marks;
  using mark_of_thread = base::thread_pointer<mark, static_cast<mark*>(nullptr)>;
  static mark* first_of_thread();
};

class earlier_calls {  // Threads: one at a time for an object
 public:
  void note();            // those under way, also of this thread. Throws: bad_alloc
  bool are_over();        // forgets those that are
  bool has_mine() const;  // the calling thread is in one
 private:
  struct call {
    call_under_way::mark const* of;
    std::uint64_t number;
  };
  std::vector<call> all_;
};

}  // namespace weir::streams
