// Start and end of a soak, and the ledger of freed memory with its last uses.
// Threads: as soak.h says; the ledger has one lock.
#include "tests/soak/soak.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "runtime/core/parts.h"
#include "simulator/machine/machine.h"
#include "streams/stream/context.h"
#include "tests/soak/worker.h"

namespace weir::soak {
namespace {

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}
constexpr std::int64_t patience_ns = 90'000'000'000;  // without any operation: stuck

template <class Map, class Key>
auto overlapping(Map& all, Key at, std::size_t bytes) {
  auto first = all.upper_bound(at);
  if (first != all.begin() && at < std::prev(first)->first + std::prev(first)->second.bytes)
    --first;
  auto last = first;
  while (last != all.end() && last->first < at + bytes)
    ++last;
  return std::pair(first, last);
}

}  // namespace

soak::soak(plan p) : plan_(p) {
  auto [machine, why] = open_machine();
  simulated_ = machine->simulated();
  devices_ = machine->device_count();
  description_ = why;
  if (!plan_.limit)
    plan_.limit = simulated_ ? 66_MiB : 640_MiB;
  auto owned = std::make_unique<crooked>(std::move(machine), plan_.told);
  machine_ = owned.get();
  options o;
  o.device_limit = plan_.limit;
  runtime_ = make_runtime(std::move(owned), o, why);
}

soak::~soak() {
  stop_.store(true);
  for (auto& t : threads_) {
    if (t.joinable())
      t.join();
  }
  runtime_guard const in(*runtime_);
  lanes_.clear();
}

void soak::start() {
  runtime_guard const in(*runtime_);
  lanes_.resize(static_cast<std::size_t>(plan_.threads * devices_ * plan_.streams));
  ledger_.resize(static_cast<std::size_t>(devices_));
  inbox_.resize(static_cast<std::size_t>(plan_.threads));
  if (devices_ > 1)
    (void)links();
  for (int w = 0; w < plan_.threads; ++w) {
    for (int d = 0; d < devices_; ++d) {
      for (int s = 0; s < plan_.streams; ++s) {
        lane& l = lane_of(w, d, s);
        l.on.emplace(device(d));
        l.key = {d, streams::clock_of(*l.on).handle()};
        stream_guard const on(*l.on);
        l.found = static_cast<tally*>(allocate(sizeof(tally)));
        fill(l.found, std::byte{0}, sizeof(tally));
        l.on->synchronize();
      }
    }
  }
  machine_->arm();
  began_ns_ = moved_ns_ = now_ns();
  for (int w = 0; w < plan_.threads; ++w) {
    threads_.emplace_back([this, w] { worker(*this, w).run(); });
  }
}

bool soak::over() {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  auto const done = operations_.load();
  if (done != moved_operations_) {
    moved_operations_ = done;
    moved_ns_ = now_ns();
  } else if (now_ns() - moved_ns_ > patience_ns) {
    std::fprintf(stderr, "soak: nothing has moved for 90 s after %llu operations\n",
                 static_cast<unsigned long long>(done));
    std::_Exit(5);
  }
  bool const found = plan_.told != lie::none && mismatches_.load() > 0;
  if (progress() < 1 && !stop_.load() && !found && !(plan_.soon && enough()))
    return false;
  stop_.store(true);
  return true;
}

bool soak::enough() const {
  outcome const o = so_far();
  for (std::size_t i = 0; i < paths; ++i) {
    auto const p = static_cast<path>(i);
    // a refused allocation has used the ladder
    if (p != path::ladder && possible(p, devices_) && o.times[i] < plan_.least)
      return false;
  }
  return true;
}

double soak::progress() const {
  return static_cast<double>(now_ns() - began_ns_) * 1e-9 / plan_.seconds;
}

void soak::caught(std::string what, std::uint64_t mismatches) {
  std::lock_guard const hold(lock_);
  mismatches_.fetch_add(mismatches ? mismatches : 1);
  if (first_mismatch_.empty())
    first_mismatch_ = std::move(what);
  if (caught_after_ < 0)
    caught_after_ = static_cast<double>(now_ns() - began_ns_) * 1e-9;
}

void soak::failed(std::string what, bool lost) {
  std::lock_guard const hold(lock_);
  if (lost && !lost_.exchange(true) && caught_after_ < 0)
    caught_after_ = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  if (!lost && caught_after_ < 0)
    caught_after_ = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  if (!lost && failure_.empty())
    failure_ = std::move(what);
  else if (lost && first_mismatch_.empty())
    first_mismatch_ = std::move(what);
  stop_.store(true);
}

// Requires: all uses are enqueued, and the block is not yet freed.
void soak::gave_back(held const& h) {
  lane const& home = lane_of(h.worker, h.device, h.stream);
  freed f{h.bytes, home.key, {{home.key, machine_->given(home.key)}}};
  for (lane const* l : h.others)
    f.last_use.emplace_back(l->key, machine_->given(l->key));
  std::lock_guard const hold(lock_);
  auto& of_device = ledger_[static_cast<std::size_t>(h.device)];
  auto const [first, last] = overlapping(of_device, h.at, h.bytes);
  of_device.erase(first, last);
  of_device.emplace(h.at, std::move(f));
}

void soak::handed_out(held const& h, stream_key home, noted const& notes) {
  std::lock_guard const hold(lock_);
  auto& of_device = ledger_[static_cast<std::size_t>(h.device)];
  auto const [first, last] = overlapping(of_device, h.at, h.bytes);
  if (notes.created) {
    count(path::growth);
  } else if (first != last) {
    freed const& was = first->second;
    bool const same = was.home == home && was.last_use.size() == 1;
    std::uint64_t beyond = 0;
    bool waited = false;
    for (auto part = first; part != last; ++part) {  // a large block overlaps several
      for (auto const& w : notes.waits) {
        for (auto const& [key, position] : part->second.last_use) {
          if (w.on != key || w.covered < position)
            continue;
          waited = true;
          beyond += w.covered - position;
        }
      }
    }
    if (waited) {
      waits_.fetch_add(1);
      over_wait_.fetch_add(beyond);
    }
    count(waited ? path::device_wait : same ? path::same_stream : notes.yes ? path::polled : path::ordered);
  }
  of_device.erase(first, last);
}

outcome soak::so_far() const {
  outcome o;
  for (std::size_t i = 0; i < paths; ++i)
    o.times[i] = times_[i].load();
  o.times[static_cast<std::size_t>(path::unmapped)] = machine_->unmapped();
  o.mismatches = mismatches_.load();
  o.operations = operations_.load();
  o.devices = devices_;
  o.machine = description_;
  o.seconds = static_cast<double>(now_ns() - began_ns_) * 1e-9;
  return o;
}

outcome soak::finish() {
  for (auto& t : threads_)
    t.join();
  threads_.clear();
  outcome o = so_far();
  o.lost = lost_.load();
  o.waits = waits_.load();
  o.over_wait = over_wait_.load();
  runtime_guard const in(*runtime_);
  std::uint64_t on_devices = 0;
  try {
    for (auto& box : inbox_) {
      for (held const& h : box)
        deallocate(h.at);
      box.clear();
    }
    for (int d = 0; d < devices_ && !o.lost; ++d) {
      synchronize(d);
      o.times[static_cast<std::size_t>(path::ladder)] += memory_stats(d).num_alloc_retries;
    }
    for (lane& l : lanes_) {
      if (o.lost)
        break;
      tally found{};
      copy(*l.on, &found, l.found, sizeof found);
      o.launched += l.launched;
      o.reported += found.reported;
      on_devices += found.mismatches;
      if (found.mismatches && first_mismatch_.empty())
        caught("block " + std::to_string(found.expected) + ": word " + std::to_string(found.word) + " holds " +
                   std::to_string(found.found),
               0);
      deallocate(l.found);
    }
  } catch (device_lost const& e) {
    failed(e.what(), true);
  } catch (std::exception const& e) {
    failed(e.what(), false);
  }
  o.lost = lost_.load();
  o.mismatches = std::max(mismatches_.load(), on_devices);
  if (auto* const control = driver::sim::controls_of(machine_->inner())) {
    auto const findings = control->findings();
    if (!findings.empty())
      failed("the simulated machine says: " + findings.front(), false);
  }
  std::lock_guard const hold(lock_);
  o.first_mismatch = first_mismatch_;
  o.failure = failure_;
  o.caught_after = caught_after_;
  return o;
}

}  // namespace weir::soak
