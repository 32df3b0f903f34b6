// The state of a simulated machine, and the checks at the start of every call.
// Threads: as the driver interface.
#pragma once
#include <map>

#include "simulator/faults/fault_injector.h"
#include "simulator/machine/capture.h"
#include "simulator/machine/executor.h"
#include "simulator/machine/host_threads.h"
#include "simulator/machine/machine.h"

namespace weir::driver::sim {

class machine final : public driver, public controls {
 public:
  machine(weir::simulated const&, std::uint64_t seed, tape* lent, std::vector<int> visible);
  ~machine() override;

  bool simulated() const noexcept override { return true; }
  bool moves_by_itself() const noexcept override { return how_ == weir::simulated::scheduling::threads; }
  bool schedules_threads() const noexcept override { return hosts_ != nullptr; }
  int device_count() const noexcept override { return devices_; }
#include "runtime/driver/overrides.h"
  void recheck() override;
  void number_stream(int device, stream_handle, std::uint64_t number) override;
  void block_taken(address at, std::size_t bytes) override {
    pages_.block_taken(at, bytes);
  }
  void block_given_back(address at) override {
    pages_.block_given_back(at);
  }

  bool step(int device, stream_handle) override;
  bool run() override;
  std::string stuck() const override;
  std::uint64_t fail_call(std::string_view call, std::uint64_t k, code c) override {
    return front_->fail_call(call, k, c);
  }
  bool cancel_failure(std::uint64_t number) override {
    return front_->cancel(number);
  }
  void clear_failures() override {
    front_->forget_orders();
  }
  fault_injector& refusing() noexcept override {
    return *front_;
  }
  // What stands in front of this, see make().
  void refused_by(fault_injector& front) noexcept {
    front_ = &front;
  }
  int device_of(event_handle) const;  // -1: unknown event
  void lose_device(int device) override;
  void disconnect(int from, int to) override;
  void corrupt(int from, int to) override;
  void consume_memory(int device, std::size_t bytes) override;
  std::uint64_t seed() const noexcept override {
    return tape_.seed();
  }
  std::uint64_t trace_hash() const noexcept override;
  std::vector<freedom_taken> freedoms_taken() const override;
  std::vector<std::string> findings() const override {
    return all_.findings();
  }
  std::string why_stuck() override {
    return all_.why_stuck();
  }
  base::thread_scheduler* host_threads() noexcept override {
    return hosts_ ? &hosts_->threads() : nullptr;
  }
  std::vector<std::string> census() const override;
  void at_end(std::function<void(std::vector<std::string> const&)>) override;
  bool unsafe_call() override;
  std::uint64_t shield(touch const& t) override {
    return pages_.shield(t);
  }
  void unshield(std::uint64_t number) override {
    pages_.unshield(number);
  }
  void look_behind_shields(touch const& t, std::function<void()> const& look) override {
    use const one{t};
    memory::at_work const here(pages_, {&one, 1}, memory::pins::declared);
    look();
  }
  void confine_work_from(touch const& pages) override {
    pages_.confine_work_from(pages);
  }

 private:
  enum class need : std::uint8_t { exists, opened, alive };  // each includes the one before it
  status may_call() const;  // checks the process and thread; a switch point of host threads
  status may_call_among_hosts() const;
  status may_call(int device, need);
  status check(int device, need);  // Requires: the lock, except for need::exists
  bool exists(int device) const noexcept {
    return device >= 0 && device < devices_;
  }
  stream* find_stream(int device, stream_handle, status&);  // Requires: the lock
  bool is_idle(int device, stream_handle);
  int owner_of(int otherwise, stream_handle);
  struct stream_call {  // holds the lock and a stream, or says why there is none
    stream_call(machine&, int device, stream_handle);
    explicit operator bool() const noexcept { return found; }
    stream& operator*() const noexcept { return *found; }
    stream* operator->() const noexcept { return found; }
    status why;
    base::unique_lock lock;
    stream* found = nullptr;
  };
  status append(int device, stream_handle, operation&&);    // drops the work if refused
  status queue(base::unique_lock&, stream&, operations&&);  // releases the lock. Allocates nothing
  void put(stream&, operations&&) noexcept;                 // with its legacy_waits(), which it notes
  status answer(base::unique_lock&, int device, outcome);
  status polled(base::unique_lock&, stream&, std::uint64_t position);

  // Captures and the legacy stream. Require: the lock. not_permitted also spoils the capture, unless noted.
  enum class given : std::uint8_t { queued, kept, refused };
  given give(stream&, operations& one, status&);        // queued: the caller enqueues it, and the waits before it
  status keep(stream&, operation&&, std::size_t lane);  // into its capture's graph; refused if spoiled
  status record_captured(stream&, event&);
  status wait_captured(stream&, event&);  // one of the two is captured
  bool meets_capture(stream const&);      // would a query, or legacy work, violate a capture?
  status spoil_met(stream const&);        // ok: no capture concerned
  status spoil_on(int device);            // ok: no stream of the device is in a capture
  status spoil_of(event const&);          // ok: its last record was outside captures
  void forget_captures();
  template <class Visit>
  void in_legacy_order(stream&, Visit visit);  // visit(other stream, how much of it was seen)
  operations legacy_waits(stream&);            // come before what is put next
  void replay_on(stream&, executable&);
  template <class Thing>
  status destroy(handle_table<Thing>&, std::uint64_t, int call);
  stream* standing_stream(int device, stream_handle);  // legacy or per_thread, created at first use
  void end_streams_of_ended_threads();
  void graph_census(std::vector<std::string>&) const;

  status wait_for_all(int only);  // Blocks: until all work so far is done, of one device or all (-1)
  bool any_alive() const;         // at least one device is not lost
  bool refuses_memory();          // this time, whatever room there is (F8)
  // Other processes allocate and free memory (F8). Requires: the lock
  void let_others_allocate();
  // Notes the call in the trace and, if the schedule chooses so, blocks a non-enqueueing call (F3).
  template <class... Numbers>
  void blocking_call(Numbers... numbers);
  template <class... Numbers>
  status enter(int call, Numbers... numbers) {  // may_call(), and then blocking_call()
    status const s = may_call();
    if (s.ok())
      blocking_call(call, numbers...);
    return s;
  }
  template <class... Numbers>
  status enter_on(int device, need n, int call, Numbers... numbers) {
    status const s = may_call(device, n);
    if (s.ok())
      blocking_call(call, device, numbers...);
    return s;
  }
  template <class... Numbers>
  void note(Numbers... numbers);  // Requires: the lock

  // among all of the machine's devices
  int whole_number_of(int device) const {
    return visible_.empty() ? device : visible_[static_cast<std::size_t>(device)];
  }

  fault_injector* front_ = nullptr;
  std::vector<int> const visible_;
  int const devices_;
  weir::simulated::scheduling const how_;
  std::size_t const granularity_, bytes_;
  bool const maps_;                 // only reported by info(): the mapping calls work regardless
  std::uint64_t const generation_;  // os::fork_generation() of the process that made this
  std::uint64_t const number_;      // of this machine, in its process
  tape own_tape_;
  tape& tape_;
  freedoms takes_;
  bool connections_drawn_ = false;  // false: a given number, shared in turn, so that few streams never collide
  sim::memory pages_;
  queues all_;
  handle_table<graph> graphs_{handle_table<graph>::reuse::told_apart};
  std::uint64_t last_capture_ = 0;
  handle_table<executable> executables_{handle_table<executable>::reuse::told_apart};
  std::vector<std::shared_ptr<stream>> legacy_;  // by device; null: unused
  struct of_thread {
    std::shared_ptr<stream> its;
    std::weak_ptr<void> thread;  // expires when it ends
  };
  std::map<std::pair<int, std::uint64_t>, of_thread> of_threads_;  // (device, thread)
  std::unique_ptr<executor> executor_;
  std::vector<std::size_t> others_hold_;  // by device: bytes taken by F8
  std::unique_ptr<host_order> hosts_;     // seeded
  std::function<void(std::vector<std::string> const&)> at_end_;
};

template <class... Numbers>
void machine::note(Numbers... numbers) {
  if (how_ != weir::simulated::scheduling::threads)
    tape_.note(numbers...);
}

template <class... Numbers>
void machine::blocking_call(Numbers... numbers) {
  bool const others = takes_.on(freedom::room);
  if (how_ == weir::simulated::scheduling::threads && !others)
    return;
  base::unique_lock lock(all_.mutex);
  note(numbers...);
  if (others)
    let_others_allocate();
  executor_->pause();
}

}  // namespace weir::driver::sim
