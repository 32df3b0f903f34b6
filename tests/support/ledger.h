// Records each operation that reaches a machine, as operations and edges, to judge the clocks without them.
// Threads: one at a time: a test's own, or scheduled threads. A non-blocking call and its entry in the ledger
// are one step.
#pragma once
#include <bitset>
#include <functional>
#include <map>
#include <vector>

#include "simulator/faults/fault_injector.h"

namespace weir::tests {

// `before` of an operation: all operations that precede it whatever the machine does.
class ledger final : public driver::fault_injector {
 public:
  static constexpr std::size_t most = 1024;
  using set = std::bitset<most>;
  using fault_injector::fault_injector;

  std::function<void()> other_threads;  // called before and after calls

  std::size_t size() const { return ops_.size(); }
  int tail(weir::driver::stream_handle s) const {
    auto const at = tails_.find(s);
    return at == tails_.end() ? -1 : at->second;
  }
  // Whether `op` precedes the next work on `s`.
  bool ordered(int op, weir::driver::stream_handle s) const {
    if (op < 0 || seen_[static_cast<std::size_t>(op)])
      return true;
    int const last = tail(s);
    return last == op || (last >= 0 && ops_[static_cast<std::size_t>(last)][static_cast<std::size_t>(op)]);
  }
  // Whether the host has seen `op` complete.
  bool complete(int op) const { return op < 0 || seen_[static_cast<std::size_t>(op)]; }

  weir::driver::status enqueue(int device, weir::driver::stream_handle s, std::span<weir::driver::touch const> t,
                               weir::driver::work w) override {
    step const one(*this, step::others::stay);
    auto const r = fault_injector::enqueue(device, s, t, w);
    if (r.ok())
      add(s, -1);
    return r;
  }
  weir::driver::status record(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    step const one(*this);
    auto const r = fault_injector::record(device, s, e);
    if (r.ok())
      records_[e] = add(s, -1);
    return r;
  }
  weir::driver::status wait(int device, weir::driver::stream_handle s, weir::driver::event_handle e) override {
    step const one(*this);
    auto const r = fault_injector::wait(device, s, e);
    if (r.ok())
      add(s, recorded(e));
    return r;
  }
  weir::driver::status query_event(weir::driver::event_handle e) override {
    step const one(*this);
    auto const r = fault_injector::query_event(e);
    if (r.ok())
      see(recorded(e));
    return r;
  }
  weir::driver::status query_stream(int device, weir::driver::stream_handle s) override {
    step const one(*this);
    auto const r = fault_injector::query_stream(device, s);
    if (r.ok())
      see(tail(s));
    return r;
  }
  // Waits are no single step: operations present at their begin are complete at their end.
  weir::driver::status synchronize_event(weir::driver::event_handle e) override {
    call_others();
    int const op = recorded(e);
    auto const r = fault_injector::synchronize_event(e);
    if (r.ok())
      see(op);
    call_others();
    return r;
  }
  weir::driver::status synchronize_stream(int device, weir::driver::stream_handle s) override {
    call_others();
    int const op = tail(s);
    auto const r = fault_injector::synchronize_stream(device, s);
    if (r.ok())
      see(op);
    call_others();
    return r;
  }
  weir::driver::status synchronize_device(int device) override {
    call_others();
    std::vector<int> last;
    for (auto const& [s, op] : tails_) {
      if (devices_[s] == device)
        last.push_back(op);
    }
    for (auto const& [on, op] : ended_) {
      if (on == device)
        last.push_back(op);
    }
    auto const r = fault_injector::synchronize_device(device);
    if (r.ok()) {
      for (int op : last)
        see(op);
    }
    call_others();
    return r;
  }
  weir::driver::result<weir::driver::stream_handle> create_stream(int device, weir::driver::stream_kind k,
                                                                  int priority) override {
    step const one(*this, step::others::stay);
    auto const r = fault_injector::create_stream(device, k, priority);
    if (r.ok()) {  // the driver may reuse the handle of an ended stream
      if (tail(r.value) >= 0)
        ended_.emplace_back(devices_[r.value], tail(r.value));
      devices_[r.value] = device;
      tails_.erase(r.value);
    }
    return r;
  }
  weir::driver::result<weir::driver::event_handle> create_event(int device, weir::driver::event_kind k) override {
    step const one(*this, step::others::stay);
    auto const r = fault_injector::create_event(device, k);
    if (r.ok())
      records_.erase(r.value);
    return r;
  }

 private:
  // During a step no other scheduled thread runs; others may run before and after it.
  class step {
   public:
    enum class others : std::uint8_t { stay, are_called };
    explicit step(ledger& of, others o = others::are_called) : of_(of), others_(o) {
      if (others_ == others::are_called)
        of_.call_others();
      base::switch_point();
      of_.one_.lock();
    }
    ~step() {
      of_.one_.unlock();
      if (others_ == others::are_called)
        of_.call_others();
    }
    step(step const&) = delete;

   private:
    ledger& of_;
    others others_;
  };

  void call_others() {
    if (other_threads)
      other_threads();
  }
  int recorded(weir::driver::event_handle e) const {
    auto const at = records_.find(e);
    return at == records_.end() ? -1 : at->second;
  }
  int add(weir::driver::stream_handle s, int after) {
    set before = seen_;
    for (int const p : {tail(s), after}) {
      if (p < 0)
        continue;
      before |= ops_[static_cast<std::size_t>(p)];
      before.set(static_cast<std::size_t>(p));
    }
    int const op = static_cast<int>(ops_.size());
    if (ops_.size() == most)
      std::abort();
    ops_.push_back(before);
    tails_[s] = op;
    return op;
  }
  void see(int op) {
    if (op < 0)
      return;
    seen_ |= ops_[static_cast<std::size_t>(op)];
    seen_.set(static_cast<std::size_t>(op));
  }

  base::mutex one_{base::quiet};
  std::vector<set> ops_;
  set seen_;
  std::map<weir::driver::stream_handle, int> tails_;
  std::map<weir::driver::stream_handle, int> devices_;
  std::vector<std::pair<int, int>> ended_;  // device and last operation of ended streams whose handle was reused
  std::map<weir::driver::event_handle, int> records_;
};

}  // namespace weir::tests
