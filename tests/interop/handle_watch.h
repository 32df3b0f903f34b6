// A machine that reports every call about a stream that was destroyed: CUDA's answer to one is undefined.
// Threads: any.
#pragma once
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/core/parts.h"
#include "runtime/driver/driver_front.h"
#include "simulator/machine/machine.h"

namespace weir::driver {

class handle_watch final : public driver_front<handle_watch> {
 public:
  explicit handle_watch(std::unique_ptr<driver> inner) : driver_front(std::move(inner)) {}
  driver* behind() noexcept override { return inner_.get(); }

  template <class Behind>
  auto pass(call, call_subject, Behind behind) {
    return behind();
  }

  std::vector<std::string> asked_of_the_dead() {
    std::lock_guard const hold(mutex_);
    return wrong_;
  }
  std::uint64_t records() {
    std::lock_guard const hold(mutex_);
    return records_;
  }
  std::uint64_t captures_asked() {
    std::lock_guard const hold(mutex_);
    return captures_asked_;
  }

  result<stream_handle> create_stream(int d, stream_kind kind, int priority) override {
    auto const made = inner_->create_stream(d, kind, priority);
    std::lock_guard const hold(mutex_);
    if (made.ok())
      dead_.erase({d, made.value});
    return made;
  }
  status destroy_stream(int d, stream_handle s) override {
    ask(d, s, "destroy_stream");
    {
      std::lock_guard const hold(mutex_);
      dead_[{d, s}] = true;
    }
    return inner_->destroy_stream(d, s);
  }
  status query_stream(int d, stream_handle s) override { return ask(d, s, "query_stream"), inner_->query_stream(d, s); }
  status synchronize_stream(int d, stream_handle s) override {
    return ask(d, s, "synchronize_stream"), inner_->synchronize_stream(d, s);
  }
  result<bool> capturing(int d, stream_handle s) override {
    ask(d, s, "capturing");
    {
      std::lock_guard const hold(mutex_);
      ++captures_asked_;
    }
    return inner_->capturing(d, s);
  }
  result<std::uint64_t> capture_of(int d, stream_handle s) override {
    return ask(d, s, "capture_of"), inner_->capture_of(d, s);
  }
  status record(int d, stream_handle s, event_handle e) override {
    ask(d, s, "record");
    {
      std::lock_guard const hold(mutex_);
      ++records_;
    }
    return inner_->record(d, s, e);
  }
  status wait(int d, stream_handle s, event_handle e) override { return ask(d, s, "wait"), inner_->wait(d, s, e); }

 private:
  void ask(int d, stream_handle s, char const* call) {
    std::lock_guard const hold(mutex_);
    if (dead_.contains({d, s}))
      wrong_.push_back(std::string(call) + " of " + std::to_string(static_cast<long>(s)));
  }
  std::mutex mutex_;
  std::map<std::pair<int, stream_handle>, bool> dead_;
  std::vector<std::string> wrong_;
  std::uint64_t records_ = 0, captures_asked_ = 0;
};

}  // namespace weir::driver

namespace weir {

// A runtime of simulated devices behind such a watch.
struct watched_runtime {
  explicit watched_runtime(simulated like, options o = {}) {
    auto owned = std::make_unique<driver::handle_watch>(driver::sim::make(like).machine);
    watch = owned.get();
    rt = make_runtime(std::move(owned), o, "watched simulated devices");
  }
  driver::handle_watch* watch;
  std::unique_ptr<runtime> rt;
};

}  // namespace weir
