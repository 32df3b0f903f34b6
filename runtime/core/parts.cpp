// Keeps the typed slots, and the current runtime of each thread.
// Threads: any.
#include "runtime/core/parts.h"

#include <cstdlib>

#include "runtime/core/log.h"
#include "runtime/options/options.h"

namespace weir {
namespace {

base::atomic<std::uint64_t> next_runtime_id{1};

}  // namespace

int detail::new_part_slot() noexcept {
  base::no_switch const here;
  static base::atomic<int> next{0};
  int const slot = next.fetch_add(1);
  if (slot >= part_slots)
    std::abort();  // raise part_slots
  return slot;
}

runtime::impl::impl(weir::runtime& facade, std::unique_ptr<driver::driver> machine, weir::options o, std::string why,
                    source_location at)
    : in_use_(at),
      facade_(facade),
      life_(std::make_shared<base::atomic<impl*>>(this)),
      driver_(races_wanted(o, at) ? with_checker(std::move(machine), at) : std::move(machine)),
      observer_(driver_->watching()),
      options_(o),
      why_(std::move(why)),
      id_(next_runtime_id.fetch_add(1)),
      device_count_(driver_->device_count()),
      opened_(new base::atomic<bool>[static_cast<std::size_t>(device_count_)]) {
  check_options(options_, at);
  if (logs(*this, log_level::info))
    log(log_level::info, {}, "runtime " + std::to_string(id_) + " begins: " + why_);
  if (!options_.nvtx_memory)
    return;
  (void)driver_->nvtx_memory();
  options_.launch_blocking = true;  // so that no kernel uses a block once it is freed
}

runtime::impl::~impl() {
  if (logs(*this, log_level::info))
    log(log_level::info, {}, "runtime " + std::to_string(id_) + " ends");
  life_->store(nullptr, base::memory_order_release);
  for (auto const& [part, let_go] : before_the_end_)
    let_go(part);
  while (!made_.empty()) {
    made_part const last = made_.back();
    last.destroy(last.part);  // may still use the parts below it
    slots_[static_cast<std::size_t>(last.slot)].store(nullptr);
    made_.pop_back();
  }
}

runtime::impl& known_runtime::get(std::string_view operation, std::string const& what, source_location at) const {
  if (auto* const r = if_alive())
    return *r;
  throw invalid_use(std::string(operation), what + ", whose runtime has ended", "Keep the runtime until its last use",
                    at, error_id{147});
}

void runtime::impl::before_the_end(void* part, void (*let_go)(void*) noexcept) {
  before_the_end_.emplace_back(part, let_go);
}

void* runtime::impl::make_part(int slot, void* (*make)(impl&), void (*destroy)(void*) noexcept) {
  std::uint64_t const me = base::this_thread_id();
  bool const nested = making_thread_.load(base::memory_order_relaxed) == me;  // a part that makes a part below it
  base::unique_lock lock(making_, std::defer_lock);
  if (!nested) {
    lock.lock();
    making_thread_.store(me, base::memory_order_relaxed);
  }
  struct ends_making {  // before the lock ends; null: the outer call does so
    base::atomic<std::uint64_t>* thread;
    ~ends_making() {
      if (thread)
        thread->store(0, base::memory_order_relaxed);
    }
  } const at_the_end{nested ? nullptr : &making_thread_};
  auto& at = slots_[static_cast<std::size_t>(slot)];
  if (void* there = at.load(base::memory_order_acquire))
    return there;
  // Room for this part and all that make() makes below it: a part that is made is entered without fail.
  made_.reserve(made_.size() + 1 + static_cast<std::size_t>(detail::part_slots));
  void* const part = make(*this);
  made_.push_back({slot, part, destroy});
  at.store(part, base::memory_order_release);
  return part;
}

void runtime::impl::open(int device, std::string_view operation, source_location at) {
  if (device < 0 || device >= device_count_)
    throw invalid_use(std::string(operation),
                      base::gpu_name(device) + " of " + std::to_string(device_count_) + " devices",
                      device_count_ ? "Devices count from gpu:0 to gpu:" + std::to_string(device_count_ - 1)
                                    : "Set WEIR_DEVICES=sim for simulated devices",
                      at, error_id{148});
  auto& opened = opened_[static_cast<std::size_t>(device)];
  if (opened.load(base::memory_order_acquire))
    return;
  require(driver_->open(device), operation, base::gpu_name(device),
          "Check with `nvidia-smi` that the GPU is healthy and free", at);
  opened.store(true, base::memory_order_release);
  if (logs(*this, log_level::info)) {
    auto const its = driver_->info(device);
    log(log_level::info, {device, 0, its.value.total_memory}, "opened: " + its.value.name);
  }
}

void runtime::impl::open_any(int likely, std::string_view operation, source_location at) {
  for (int d = 0; d < device_count_; ++d)
    if (opened_[static_cast<std::size_t>(d)].load(base::memory_order_acquire))
      return;
  open(likely, operation, at);
}

bool runtime::impl::has_come_to_rest() {
  bool all = true;
  for (int d = 0; d < device_count_; ++d) {
    if (!opened_[static_cast<std::size_t>(d)].load(base::memory_order_acquire))
      continue;
    bool const is_idle = driver_->synchronize_device(d).ok();
    all &= is_idle;
  }
  return all;
}

void throw_refusal(driver::status s, std::string_view operation, std::string operands, std::string remedy,
                   source_location at) {
  std::string const op(operation);
  switch (s.what) {
    case driver::code::lost:
      throw device_lost(s.native, op, operands + ": the device is lost to this process",
                        "Restart the process; the other devices still work. To find the kernel that failed, run with "
                        "CUDA_LAUNCH_BLOCKING=1",
                        at, error_id{149});
    case driver::code::not_supported:
      throw not_supported(op, operands + ": not supported by this machine", remedy, at, error_id{150});
    case driver::code::not_permitted:
      if (driver::inside_work::here())
        throw invalid_use(op, operands + ": called from a host function of a stream, where CUDA allows no driver call",
                          "Return from the function first, or call from another thread", at, error_id{151});
      throw invalid_use(op, operands + ": not permitted during a capture", remedy, at, error_id{152});
    case driver::code::forked:
      throw not_supported(op, operands + ": this process was forked from one that uses GPUs",
                          "Fork before the first use of weir, or start a new process instead", at, error_id{153});
    case driver::code::unloading:
      throw driver_error(s.native, op, operands + ": the process is ending",
                         "Make no call to weir after main has returned", at, error_id{154});
    default:
      throw driver_error(
          s.native, op,
          operands + ": " + std::string(name_of(s.what)) + (s.native ? " (" + std::to_string(s.native) + ")" : ""),
          remedy, at, error_id{155});  // the driver's answer, such as: illegal address (700)
  }
}

namespace {
// Reports unknown WEIR_* variables once, at any log level, because one may have been meant to set it.
void tell_of_unknown_variables() {
  static base::atomic<bool> told{false};
  if (told.exchange(true))
    return;
  for (std::string const& line : unknown_variables())
    log(log_level::warning, {}, line);
}
void begin_in_process() {
  watch_process();
  tell_of_unknown_variables();
}
}  // namespace

runtime::runtime(weir::options o, source_location at) {
  begin_in_process();
  machine_choice asked = devices_from_environment(at);
  asked.sim.protect_memory |= guard_wanted(o, at);
  driver::opened c = open_machine(asked, at);
  impl_ = new impl(*this, std::move(c.machine), o, std::move(c.why), at);
}

runtime::runtime(simulated like, weir::options o, source_location at) {
  begin_in_process();
  if (like.devices < 1 || like.devices > 64)
    throw invalid_use("runtime", "simulated{.devices = " + std::to_string(like.devices) + "}",
                      "Ask for 1 to 64 devices", at, error_id{156});
  like.protect_memory |= guard_wanted(o, at);
  driver::opened c = open_machine({.which = machine_choice::kind::simulated, .sim = like, .visible = {}}, at);
  impl_ = new impl(*this, std::move(c.machine), o, std::move(c.why), at);
}

runtime::runtime(std::unique_ptr<driver::driver> machine, weir::options o, std::string why) {
  begin_in_process();
  impl_ = new impl(*this, std::move(machine), o, std::move(why));
}

std::unique_ptr<runtime> make_runtime(std::unique_ptr<driver::driver> machine, options o, std::string why) {
  return std::unique_ptr<runtime>(new runtime(std::move(machine), o, std::move(why)));
}

runtime::~runtime() {
  if (process_is_ending() || process_was_forked())
    return;  // the driver may be unloaded; the system frees everything
  delete impl_;
}

runtime& runtime::current(source_location at) {
  // A thread of the parent may have been making the default runtime. The child has no such thread to end that.
  if (process_was_forked() && !runtime_if_made())
    throw_refusal({driver::code::forked}, "runtime::current", "the default runtime", {}, at);
  return runtime_of_thread(at);
}

namespace {
constinit base::atomic<runtime*> process_default_made{nullptr};
}  // namespace

runtime& runtime_of_thread(source_location const& at) {
  if (runtime* const r = guarded_runtime()) [[unlikely]]
    return *r;
  static runtime* const process_default = [&at] {
    base::no_switch const whole;
    auto* const made = new runtime(options::from_environment(at), at);
    process_default_made.store(made);
    return made;
  }();
  return *process_default;
}

runtime* runtime_if_made() noexcept {
  runtime* const guarded = guarded_runtime();
  return guarded ? guarded : process_default_made.load();
}

bool runtime::is_simulated() const noexcept {
  return impl_->machine().simulated();
}
std::string const& runtime::description() const noexcept {
  return impl_->why();
}

runtime_guard::runtime_guard(runtime& r) noexcept : found_(std::exchange(guarded_runtime(), &r)) {}
runtime_guard::~runtime_guard() {
  guarded_runtime() = found_;
}

}  // namespace weir
