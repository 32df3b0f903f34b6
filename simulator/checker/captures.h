// Stream captures. A captured use happens at each launch of its graph: one operation with all uses of the
// graph, after all earlier launches of the executable.
// Threads: under the checker's lock.
#pragma once
#include <map>
#include <memory>

#include "runtime/base/call_site.h"
#include "runtime/driver/seen_calls.h"
#include "simulator/checker/shadow.h"

namespace weir::driver::check {

struct range {
  address at = 0;
  std::size_t bytes = 0;
  bool writes = false;
  bool copied = false;  // a copy reads it: pinned memory must not change meanwhile
};

// A launch past weir. Its pointers are resolved when the graph is launched.
struct given_launch {
  base::site site;
  bool quiet = false;
  std::vector<seen_pointer> pointers;
};

// A capture in progress, with the order of its own streams and events.
struct recording {
  std::uint64_t number = 0;  // from 1, never reused. 0: about to end
  std::vector<range> uses;
  std::vector<given_launch> given;
  std::shared_ptr<base::atomic<bool> const> over;  // as access::over
  graph order;
  std::map<std::uint64_t, shadow> memory;  // by physical::number
  std::map<stream_id, stream_id> streams;  // stream ids of the checker -> ids of `order`
  std::vector<stream_id> outside;          // the inverse: outside[s - 1]
  stream_id inside(stream_id s) {
    auto const [at, is_new] = streams.try_emplace(s, 0);
    if (is_new) {
      at->second = order.add(0, static_cast<stream_handle>(s), graph::joins::nothing);
      outside.push_back(s);
    }
    return at->second;
  }
};

struct captured_graph {
  std::shared_ptr<std::vector<range> const> uses;
  std::shared_ptr<std::vector<given_launch> const> given;
  std::shared_ptr<base::atomic<bool> const> over;
};

struct executable {
  captured_graph of;
  moment last;                      // its last launch
  bool has_host_functions = false;  // of a graph past weir
};

class captures {
 public:
  bool empty() const noexcept { return streams_.empty(); }
  void begin(stream_id s) { (streams_[s] = std::make_shared<recording>())->number = ++begun_; }
  // Null: not in a capture.
  recording* of(stream_id s) const {
    auto const found = streams_.find(s);
    return found == streams_.end() ? nullptr : found->second.get();
  }
  std::uint64_t number_of(stream_id s) const {  // 0: none
    recording const* const in = of(s);
    return in ? in->number : 0;
  }
  void about_to_end(stream_id s) {
    if (recording* const in = of(s))
      in->number = 0;
  }
  void goes_on(stream_id s) {
    if (recording* const in = of(s))
      in->number = ++begun_;
  }
  // Returns: whether the event is recorded inside a capture. before: number_of before the driver call. If the
  // number has changed since, the answer is unknown: no wait on the event joins a capture then.
  bool recorded(event_handle e, stream_id on, std::uint64_t before) {
    forget(e);
    auto const found = streams_.find(on);
    if (found == streams_.end() || before == 0 || found->second->number != before)
      return false;
    recording& in = *found->second;
    in.order.recorded(e, in.order.now(in.inside(on)));
    events_[static_cast<std::uintptr_t>(e)] = found->second;
    return true;
  }
  void forget(event_handle e) {
    if (!events_.empty())
      events_.erase(static_cast<std::uintptr_t>(e));
  }
  // The stream waits for the event and joins its capture. false: it was recorded outside a capture.
  bool waited(stream_id s, event_handle e) {
    auto const found = events_.find(static_cast<std::uintptr_t>(e));
    if (found == events_.end())
      return false;
    recording& in = *found->second;
    streams_[s] = found->second;
    in.order.waited(in.inside(s), in.order.record_of(e), trust::promised);
    return true;
  }
  captured_graph end(stream_id s) {  // ends it for all its streams. Null: none
    auto const found = streams_.find(s);
    if (found == streams_.end())
      return {};
    auto const ended = found->second;
    std::erase_if(streams_, [&](auto const& one) { return one.second == ended; });
    std::erase_if(events_, [&](auto const& one) { return one.second == ended; });
    return {std::make_shared<std::vector<range> const>(std::move(ended->uses)),
            std::make_shared<std::vector<given_launch> const>(std::move(ended->given)), ended->over};
  }
  std::map<std::uint64_t, captured_graph> graphs;
  std::map<std::uint64_t, executable> executables;

 private:
  std::uint64_t begun_ = 0;
  std::map<stream_id, std::shared_ptr<recording>> streams_;
  std::map<std::uintptr_t, std::shared_ptr<recording>> events_;
};

}  // namespace weir::driver::check
