// What is captured: uses that do not happen now but at each launch of the graph they are in. A launch is one operation of its
// stream that uses all of it; the order of a graph's own parts among themselves is not judged.
// Threads: under the checker's lock.
#pragma once
#include <set>

#include "runtime/base/call_site.h"
#include "runtime/driver/check/graph.h"

namespace weir::driver::check {

struct range {
  address at = 0;
  std::size_t bytes = 0;
  bool writes = false;
};

class captures {
 public:
  using uses = std::vector<range>;
  bool empty() const noexcept { return streams_.empty(); }
  void begin(stream_id s) { streams_[s] = std::make_shared<uses>(); }
  // The capture that stream is in; null: none.
  std::shared_ptr<uses> of(stream_id s) const {
    auto const found = streams_.find(s);
    return found == streams_.end() ? nullptr : found->second;
  }
  void recorded(event_handle e, std::shared_ptr<uses> in) {
    if (in) events_[static_cast<std::uintptr_t>(e)] = std::move(in);
    else if (!events_.empty()) events_.erase(static_cast<std::uintptr_t>(e));
  }
  // That stream waits for the event: it joins the capture the event was recorded in. false: it was recorded outside.
  bool waited(stream_id s, event_handle e) {
    auto const found = events_.find(static_cast<std::uintptr_t>(e));
    if (found == events_.end()) return false;
    streams_[s] = found->second;
    return true;
  }
  std::shared_ptr<uses> end(stream_id s) {  // for all its streams
    auto const ended = of(s);
    std::erase_if(streams_, [&](auto const& one) { return one.second == ended; });
    return ended;
  }
  std::map<std::uint64_t, std::shared_ptr<uses>> graphs, executables;

 private:
  std::map<stream_id, std::shared_ptr<uses>> streams_;
  std::map<std::uintptr_t, std::shared_ptr<uses>> events_;
};

}  // namespace weir::driver::check
