// The machine's calls on devices and memory, its controls, and its construction.
// Threads: as the driver interface.
#include "simulator/machine/machine.h"

#include <algorithm>
#include <bit>

#include "runtime/base/lasting.h"
#include "runtime/base/os.h"
#include "runtime/base/process.h"
#include "runtime/base/process_end.h"
#include "simulator/machine/machine_state.h"
#include "weir/types.h"

namespace weir::driver::sim {
namespace {
using scheduling = weir::simulated::scheduling;
using namespace weir::literals;

constexpr std::size_t page_of(scheduling how) {
  return how == scheduling::threads ? 2_MiB : 64_KiB;
}

base::atomic<std::uint64_t> next_number{1};

struct made_current {  // what a thread made current last, and on which machine
  std::uint64_t machine = 0;
  int device = no_device;
};
// Their workers end before the process does.
base::guarded<std::vector<executor*>>& with_workers() noexcept {
  static base::lasting<base::guarded<std::vector<executor*>>> all;
  return *all;
}

made_current& of_this_thread() {
  static base::per_thread<made_current> value;
  return value.get();
}

// A machine whose calls can be refused.
class refusable final : public fault_injector {
 public:
  explicit refusable(std::unique_ptr<machine> inner)
      : fault_injector(std::move(inner)), machine_(static_cast<machine&>(fault_injector::inner())) {
    machine_.refused_by(*this);
  }
  driver* behind() noexcept override { return &machine_; }  // where its controls are

 private:
  int device_of(event_handle e) const override { return machine_.device_of(e); }
  void refused_as_lost(int device) override {
    for (int d = 0; d < machine_.device_count(); ++d)
      if (device == d || device == every_device)
        machine_.lose_device(d);
  }
  machine& machine_;
};

}  // namespace

controls* controls_of(driver& d) noexcept {
  for (driver* at = &d; at; at = at->behind())
    if (auto* const c = dynamic_cast<controls*>(at))
      return c;
  return nullptr;
}

made make(weir::simulated const& like, std::vector<int> visible) {
  watch_process();
  run_at_process_end([] {
    for (auto const all = with_workers().lock(); executor* const e : *all)
      e->stop();
  });
  tape* const lent = lent_tape::here();
  std::uint64_t seed = lent && like.seed == 0 ? lent->seed() : like.seed;
  if (seed == 0 && like.schedule == scheduling::seeded) {
    seed = os::random_number() | 1;
    os::print_error("weir: simulated machine with seed " + std::to_string(seed) + "\n");
  }
  auto inner = std::make_unique<machine>(like, seed, lent, std::move(visible));
  controls* const control = inner.get();
  return {std::make_unique<refusable>(std::move(inner)), control};
}

machine::machine(weir::simulated const& like, std::uint64_t seed, tape* lent, std::vector<int> visible)
    : visible_(std::move(visible)),
      devices_(visible_.empty() ? std::clamp(like.devices, 0, most_devices) : static_cast<int>(visible_.size())),
      how_(like.schedule),
      granularity_(page_of(like.schedule)),
      bytes_(like.memory / granularity_ * granularity_),
      maps_(like.virtual_memory),
      generation_(os::fork_generation()),
      number_(next_number.fetch_add(1)),
      own_tape_(seed),
      tape_(lent ? *lent : own_tape_),
      takes_(like, tape_),
      pages_({devices_, bytes_, granularity_, how_ == scheduling::threads ? fresh_bytes::zero : fresh_bytes::arbitrary,
              seed, takes_.on(freedom::reuse), like.protect_memory}),
      all_(devices_, takes_, pages_),
      legacy_(static_cast<std::size_t>(devices_)),
      others_hold_(static_cast<std::size_t>(devices_)) {
  using links = weir::simulated::links;
  for (int from = 0; from < devices_; ++from) {
    for (int to = 0; to < devices_; ++to) {
      bool const linked =
          from != to && (like.peers == links::all ||
                         (like.peers == links::pairs && whole_number_of(from) / 2 == whole_number_of(to) / 2));
      if (!linked)
        continue;
      pages_.link(from, to, true);
      if (takes_.on(freedom::wrong_bytes) && tape_.coin(10))
        pages_.corrupt(from, to);
    }
  }
  if (like.connections > 0) {
    all_.connections = static_cast<std::uint32_t>(like.connections);
  } else if (takes_.on(freedom::shared_connections) && tape_.coin(50)) {
    all_.connections = 1 + tape_.draw(4);
    connections_drawn_ = true;
  }
  if (how_ == scheduling::seeded)
    all_.spreads = [this] { return tape_.coin(50); };
  executor_ = how_ == scheduling::threads   ? make_threaded_executor(all_)
              : how_ == scheduling::stepped ? make_stepping_executor(all_)
                                            : make_seeded_executor(all_, tape_);
  if (how_ == scheduling::threads)
    with_workers().lock()->push_back(executor_.get());
  else
    all_.who_calls.emplace();
  if (how_ != scheduling::seeded)
    return;
  hosts_ = std::make_unique<host_order>(
      tape_, host_order::machine{[this] {
                                   base::unique_lock lock(all_.mutex, std::try_to_lock);
                                   return lock.owns_lock() &&
                                          executor_->move_one(lock, tape_.enumerating() ? 0 : tape_.draw(16));
                                 },
                                 all_.clock, [this](std::string const& why) { all_.note_finding("stuck: " + why); }});
  all_.hosts = &hosts_->threads();
}

machine::~machine() {
  if (os::fork_generation() != generation_) {  // the workers exist only in the parent process: none to join
    static_cast<void>(executor_.release());
    static_cast<void>(hosts_.release());
    return;
  }
  std::erase(*with_workers().lock(), executor_.get());
  if (hosts_) {
    hosts_->threads().end();
    count_policies(executor_->by(), hosts_->by());
  }
  all_.hosts = nullptr;
  bool const print = os::environment("WEIR_SIM_CENSUS").value_or("0") == "1";
  if (at_end_ || print) {
    auto const left = census();
    if (at_end_)
      at_end_(left);
    if (print) {
      for (auto const& line : left)
        os::print_error("weir-110: left in the simulated machine: " + line + "\n");
    }
  }
  executor_.reset();
  forget_captures();
  for (auto const& s : all_.live()) {
    s->busy = false;  // no worker is left that has its front
    all_.forget_queue(*s);
  }
  drop_all(all_.dropped);
}

status machine::may_call() const {
  if (os::fork_generation() != generation_) [[unlikely]]
    return {code::forked};
  if (process_is_ending()) [[unlikely]]
    return {code::unloading};
  if (inside_work::here()) [[unlikely]]
    return {code::not_permitted};
  if (all_.who_calls)
    all_.who_calls->add_this_thread();
  return all_.has_hosts() ? may_call_among_hosts() : fine;
}

status machine::may_call_among_hosts() const {
  base::thread_scheduler& threads = hosts_->threads();
  if (!threads.has_this_thread()) {
    all_.note_finding("stranger: a thread not started by simulation::spawn called a machine with spawned threads");
    return {code::not_permitted};
  }
  if (threads.over())
    return {code::failed};
  threads.point();
  return fine;
}

status machine::check(int device, need n) {
  if (!exists(device))
    return invalid;
  if (n == need::exists)
    return fine;
  if (n == need::alive)
    all_.call_on(device);
  auto const& d = all_.devices[static_cast<std::size_t>(device)];
  if (!d.open)
    return invalid;
  if (n == need::alive && d.lost)
    return {code::lost};
  return fine;
}

status machine::may_call(int device, need n) {
  if (status const s = may_call(); !s.ok())
    return s;
  if (n == need::exists)
    return check(device, n);
  base::lock_guard lock(all_.mutex);
  return check(device, n);
}

// Devices ---------------------------------------------------------------------------------------------------

result<device_info> machine::info(int device) {
  if (status const s = enter_on(device, need::exists, 60); !s.ok())
    return {s};
  device_info i;
  i.name = "weir simulated device";
  i.total_memory = bytes_;
  i.granularity = i.shared_granularity = granularity_;
  i.major = 9;
  i.multi_processor_count = 1;
  i.pci_bus_id = "sim:" + std::to_string(whole_number_of(device));
  i.uuid = "SIM-" + std::to_string(whole_number_of(device));
  i.maps = maps_;
  return {fine, std::move(i)};
}

status machine::open(int device) {
  if (status const s = enter_on(device, need::exists, 61); !s.ok())
    return s;
  base::lock_guard lock(all_.mutex);
  auto& d = all_.devices[static_cast<std::size_t>(device)];
  if (d.lost)
    return {code::lost};
  if (!d.open && !executor_->make_ready(device))
    return {code::out_of_memory};
  d.open = true;
  return fine;
}

result<memory_info> machine::memory(int device) {
  if (status const s = enter_on(device, need::alive, 45); !s.ok())
    return {s};
  return {fine, pages_.room(device)};
}

status machine::make_current(int device) {
  status const s = device == no_device ? may_call() : may_call(device, need::opened);
  if (s.ok())
    of_this_thread() = {number_, device};
  return s;
}

result<int> machine::current_device() {
  if (status const s = may_call(); !s.ok())
    return {s};
  made_current const& last = of_this_thread();
  return {fine, last.machine == number_ ? last.device : no_device};
}

result<peer_info> machine::peer(int from, int to) {
  if (status const s = may_call(); !s.ok())
    return {s};
  if (!exists(from) || !exists(to))
    return {invalid};
  blocking_call(46, from, to);
  if (from == to)
    return {fine, {true, true, 0}};
  bool const linked = pages_.linked(from, to);
  return {fine, {linked, linked, linked ? 1 : 0}};
}

// As NVIDIA's driver before it releases memory not mapped by pages. Skips work that can never run.
status machine::wait_for_all(int only) {
  base::unique_lock lock(all_.mutex);
  std::vector<std::pair<std::shared_ptr<stream>, std::uint64_t>> now;
  for (int d = 0; d < devices_; ++d) {
    if (only >= 0 && d != only)
      continue;
    for (auto const& s : all_.devices[static_cast<std::size_t>(d)].live)
      now.emplace_back(s, s->given);
  }
  for (auto const& [s, position] : now) {
    if (all_.hopeless(*s, position))
      continue;
    if (executor_->until(lock, *s, position) == outcome::stuck)
      return {code::failed};
  }
  if (only >= 0)
    return check(only, need::alive);  // the wait may have lost it
  return fine;
}

bool machine::refuses_memory() {
  if (!takes_.on(freedom::room))
    return false;
  base::lock_guard lock(all_.mutex);
  return takes_.takes(freedom::room, 3);
}

void machine::let_others_allocate() {
  if (!tape_.coin(4))
    return;
  takes_.took(freedom::room);
  int const device = static_cast<int>(tape_.draw(static_cast<std::uint32_t>(devices_)));
  auto& held = others_hold_[static_cast<std::size_t>(device)];
  pages_.others_leave(device, std::exchange(held, 0));
  if (tape_.coin(50))
    return;
  held = pages_.room(device).free / granularity_ * tape_.draw(16) / 16 * granularity_;
  pages_.consume_memory(device, held);
}

bool machine::any_alive() const {
  base::lock_guard lock(all_.mutex);
  return std::any_of(all_.devices.begin(), all_.devices.end(), [](auto const& d) { return !d.lost; });
}

// Addresses and pages ---------------------------------------------------------------------------------------

result<address> machine::reserve(std::size_t bytes, std::size_t alignment) {
  if (status const s = enter(1, bytes); !s.ok())
    return {s};
  if (refuses_memory())
    return {{code::out_of_memory}};
  return pages_.reserve(bytes, alignment);
}

status machine::unreserve(address at, std::size_t bytes) {
  if (status const s = enter(2, bytes); !s.ok())
    return s;
  return pages_.unreserve(at, bytes);
}

result<memory_handle> machine::create(int device, std::size_t bytes) {
  if (status const s = enter_on(device, need::alive, 3, bytes); !s.ok())
    return {s};
  if (refuses_memory())
    return {{code::out_of_memory}};
  return pages_.create(device, bytes);
}

status machine::release(memory_handle h) {
  if (status const s = enter(4); !s.ok())
    return s;
  return pages_.release(h);
}

status machine::map(address at, std::size_t bytes, memory_handle h) {
  if (status const s = may_call(); !s.ok())
    return s;
  blocking_call(5, how_ == scheduling::threads ? 0 : pages_.name_of(at), bytes);
  return pages_.map(at, bytes, h);
}

status machine::unmap(address at, std::size_t bytes) {
  if (status const s = may_call(); !s.ok())
    return s;
  if (how_ != scheduling::threads) {
    blocking_call(6, pages_.name_of(at), bytes);
    base::lock_guard lock(all_.mutex);
    executor_->before_unmap();
  }
  return pages_.unmap(at, bytes);
}

status machine::grant(address at, std::size_t bytes, int device) {
  if (status const s = enter_on(device, need::opened, 7, bytes); !s.ok())
    return s;
  return pages_.grant(at, bytes, std::uint64_t{1} << device);
}

status machine::grant_all(address at, std::size_t bytes, std::uint64_t devices) {
  if (!devices)
    return {code::invalid};
  for (std::uint64_t left = devices; left; left &= left - 1)
    if (status const s = may_call(std::countr_zero(left), need::opened); !s.ok())
      return s;
  blocking_call(7, devices, bytes);
  return pages_.grant(at, bytes, devices);
}

result<memory_handle> machine::create_shared(int device, std::size_t bytes) {
  if (status const s = enter_on(device, need::alive, 70, bytes); !s.ok())
    return {s};
  if (refuses_memory())
    return {{code::out_of_memory}};
  return pages_.create_shared(device, bytes);
}

result<int> machine::export_handle(memory_handle h) {
  if (status const s = enter(71); !s.ok())
    return {s};
  return pages_.export_handle(h);
}

result<memory_handle> machine::import_handle(int device, std::size_t bytes, int file) {
  if (status const s = enter_on(device, need::alive, 72, bytes); !s.ok())
    return {s};
  return pages_.import_handle(device, bytes, file);
}

result<address> machine::create_segment(int device, std::size_t bytes) {
  if (status const s = enter_on(device, need::alive, 8, bytes); !s.ok())
    return {s};
  if (refuses_memory())
    return {{code::out_of_memory}};
  return pages_.create_segment(device, bytes);
}

status machine::release_segment(int device, address at) {
  if (status const s = enter_on(device, need::alive, 9); !s.ok())
    return s;
  if (!pages_.is_segment(device, at))
    return invalid;
  if (status const s = wait_for_all(device); !s.ok())
    return s;
  return pages_.release_segment(device, at);
}

status machine::pin(void* host, std::size_t bytes) {
  if (status const s = enter(10, bytes); !s.ok())
    return s;
  if (!any_alive())
    return {code::lost};
  if (refuses_memory())
    return {code::out_of_memory};
  return pages_.pin(host, bytes);
}

status machine::unpin(void* host) {
  if (status const s = enter(11); !s.ok())
    return s;
  if (!pages_.is_pin(reinterpret_cast<address>(host)))
    return invalid;
  if (!any_alive())
    return {code::lost};
  if (status const s = wait_for_all(-1); !s.ok())
    return s;
  return pages_.unpin(host);
}

result<place> machine::find(void const* at) {
  if (status const s = may_call(); !s.ok())
    return {s};
  blocking_call(62, how_ == scheduling::threads ? 0 : pages_.name_of(reinterpret_cast<address>(at)));
  return {fine, pages_.find(reinterpret_cast<address>(at))};
}

// Controls --------------------------------------------------------------------------------------------------

bool machine::step(int device, stream_handle h) {
  base::unique_lock lock(all_.mutex);
  status why;
  stream* const s = find_stream(device, h, why);
  if (!s)
    return false;
  note(40, s->id);
  auto const alive = s->shared_from_this();
  bool const moved = executor_->step(*s);
  all_.unlock_and_drop(lock);
  return moved;
}

bool machine::run() {
  base::unique_lock lock(all_.mutex);
  note(41);
  bool const all_done = executor_->run(lock);
  all_.unlock_and_drop(lock);
  return all_done;
}

std::string machine::stuck() const {
  base::lock_guard lock(all_.mutex);
  std::string text;
  for (auto const& d : all_.devices)
    for (auto const& s : d.live)
      if (!s->queue.empty() && !d.lost)
        text += (text.empty() ? "" : "; ") + all_.why_not(*s);
  return text;
}

void machine::lose_device(int device) {
  if (!exists(device))
    return;
  base::unique_lock lock(all_.mutex);
  note(42, device);
  all_.surface();
  all_.devices[static_cast<std::size_t>(device)].open = true;
  all_.lose(device);
  all_.unlock_and_drop(lock);
  recheck();
}

int machine::device_of(event_handle h) const {
  base::lock_guard lock(all_.mutex);
  auto const& e = all_.events.find(static_cast<std::uint64_t>(h));
  return e ? e->device : -1;
}

void machine::disconnect(int from, int to) {
  if (exists(from) && exists(to))
    pages_.link(from, to, false);
}

void machine::corrupt(int from, int to) {
  if (exists(from) && exists(to))
    pages_.corrupt(from, to);
}

std::vector<freedom_taken> machine::freedoms_taken() const {
  std::vector<freedom_taken> all;
  for (std::size_t i = 1; i <= freedom_count; ++i)
    all.push_back({name_of(static_cast<freedom>(i)), takes_.taken(static_cast<freedom>(i))});
  base::lock_guard lock(all_.mutex);
  all[static_cast<std::size_t>(freedom::reuse) - 1].times +=
      all_.streams.came_back() + all_.events.came_back() + pages_.came_back();
  return all;
}

void machine::consume_memory(int device, std::size_t bytes) {
  if (exists(device))
    pages_.consume_memory(device, bytes);
}

std::uint64_t machine::trace_hash() const noexcept {
  return how_ == scheduling::threads ? 0 : tape_.hash();
}

std::vector<std::string> machine::census() const {
  std::vector<std::string> found;
  std::vector<bool> lost;
  {
    base::lock_guard lock(all_.mutex);
    all_.census(found);
    graph_census(found);
    for (auto const& d : all_.devices)
      lost.push_back(d.lost);
  }
  pages_.census(found, lost);
  return found;
}

void machine::at_end(std::function<void(std::vector<std::string> const&)> f) {
  at_end_ = std::move(f);
}

}  // namespace weir::driver::sim
