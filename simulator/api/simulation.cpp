// The public view of a simulated machine: names and exceptions around the machine's controls.
// Threads: as weir/sim.h says.
#include <algorithm>

#include "runtime/base/text.h"
#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "simulator/machine/machine.h"
#include "simulator/threads/thread_scheduler.h"
#include "streams/stream/context.h"
#include "streams/stream/stream_pool.h"
#include "weir/sim.h"

namespace weir {

simulation::simulation(runtime& r, driver::sim::controls& c) noexcept : runtime_(&r), controls_(&c) {}

simulation simulation::of(runtime& r, source_location at) {
  if (driver::sim::controls* const c = driver::sim::controls_of(r.get().machine()))
    return simulation(r, *c);
  throw invalid_use("simulation::of", "this runtime has " + r.description(),
                    "Create the runtime with simulated{}, or set WEIR_DEVICES=sim", at, error_id{219});
}

int simulation::ordinal(device d, std::string_view operation, source_location at) const {
  return streams::resolve(d, runtime_->get(), operation, at);
}

bool simulation::step(stream_ref s, source_location at) {
  clock::stream_clock& stream = streams::clock_or_throw(s, "simulation::step", at);
  if (stream.owner().machine().moves_by_itself())
    throw invalid_use("simulation::step", streams::describe(stream) + ", which the machine's own threads execute",
                      "Create the runtime with simulated{.schedule = simulated::scheduling::stepped}", at,
                      error_id{220});
  return controls_->step(stream.device(), stream.handle());
}

void simulation::run(source_location at) {
  if (controls_->run())
    return;
  throw invalid_use("simulation::run", controls_->stuck(),
                    "Remove one of the waits, or enqueue the work that it waits for", at, error_id{221});
}

void simulation::spawn(std::string name, std::function<void()> body, source_location at) {
  if (!body)
    throw invalid_use("simulation::spawn", "\"" + name + "\" with an empty function", "Pass a function", at,
                      error_id{222});
  base::thread_scheduler* const threads = controls_->host_threads();
  if (!threads)
    throw invalid_use("simulation::spawn", "this machine has no seed",
                      "Create the runtime with simulated{.schedule = scheduling::seeded}", at, error_id{223});
  base::thread_scheduler* const mine = base::thread_scheduler::here();
  bool const may_spawn = threads->active() ? mine == threads : mine == nullptr;
  if (!may_spawn)
    throw invalid_use("simulation::spawn",
                      mine ? "this thread belongs to another machine" : "this thread is not scheduled by the seed",
                      "Call spawn on the first thread that did, or on a spawned thread", at, error_id{224});
  if (!threads->active())
    threads->enter("main", base::thread_scheduler::life::while_needed);
  threads->spawn(std::move(name), [r = runtime_, body = std::move(body)] {
    runtime_guard const here_is(*r);
    body();
  });
}

void simulation::join(source_location at) {
  base::thread_scheduler* const threads = controls_->host_threads();
  if (!threads || !threads->active())
    return;
  if (!threads->has_this_thread())
    throw invalid_use("simulation::join", "this thread is not scheduled by the seed",
                      "Call join on the first thread that spawned", at, error_id{225});
  std::string const why = threads->join();
  if (!why.empty())
    throw invalid_use("simulation::join", why, "Remove one of the waits, or enqueue the work that it waits for", at,
                      error_id{226});
}

std::uint64_t simulation::fail_call(std::string_view call, std::uint64_t k, source_location at) {
  bool const takes_memory =
      call == "create" || call == "create_shared" || call == "create_segment" || call == "pin" || call == "reserve";
  auto const names = driver::fault_injector::call_names();
  auto const refuse = [at](std::string operands, std::string remedy, error_id id) {
    throw invalid_use("simulation::fail_call", std::move(operands), std::move(remedy), at, id);
  };
  if (std::find(names.begin(), names.end(), call) == names.end())
    refuse("there is no driver call \"" + std::string(call) + "\"",
           base::did_you_mean(call, names) + "Pass the name of a driver call, or any", error_id{227});
  if (k == 0)
    refuse("call 0 of \"" + std::string(call) + "\"", "Calls from now on count from 1", error_id{228});
  return controls_->fail_call(call, k, takes_memory ? driver::code::out_of_memory : driver::code::failed);
}

bool simulation::cancel_failure(std::uint64_t number) {
  return controls_->cancel_failure(number);
}
void simulation::clear_failures() {
  controls_->clear_failures();
}

void simulation::lose_device(device d, source_location at) {
  controls_->lose_device(ordinal(d, "simulation::lose_device", at));
}
void simulation::disconnect(device from, device to, source_location at) {
  controls_->disconnect(ordinal(from, "simulation::disconnect", at), ordinal(to, "simulation::disconnect", at));
}
void simulation::corrupt(device from, device to, source_location at) {
  controls_->corrupt(ordinal(from, "simulation::corrupt", at), ordinal(to, "simulation::corrupt", at));
}
void simulation::consume_memory(device d, size_t bytes, source_location at) {
  controls_->consume_memory(ordinal(d, "simulation::consume_memory", at), bytes);
}
namespace {
// The program's own streams are not subject to forced failures, which are for weir's calls.
driver::driver& program_machine(runtime& of) {
  driver::driver& m = of.get().machine();
  auto* const front = driver::fault_injector_of(m);
  return front ? front->inner() : m;
}
driver::stream_handle handle_of(CUstream_st* s) {
  return driver::stream_handle{reinterpret_cast<std::uintptr_t>(s)};
}
}  // namespace

simulated_stream::simulated_stream(device d, source_location at)
    : simulated_stream(d, stream_flags::non_blocking, at) {}

simulated_stream::simulated_stream(device d, stream_flags f, source_location at) : runtime_(&runtime::current(at)) {
  runtime::impl& r = runtime_->get();
  if (!r.machine().simulated())
    throw invalid_use("simulated_stream", "this runtime has " + runtime_->description(), "On GPUs create a CUDA stream",
                      at, error_id{229});
  device_ = streams::resolve(d, r, "simulated_stream", at);
  r.open(device_, "simulated_stream", at);
  auto const made = program_machine(*runtime_).create_stream(device_, streams::kind_of(f), 0);
  require(made.is, "simulated_stream", base::gpu_name(device_), "Destroy streams that are not needed", at);
  handle_ = reinterpret_cast<CUstream_st*>(static_cast<std::uintptr_t>(made.value));
}

simulated_stream::~simulated_stream() {
  auto& machine = program_machine(*runtime_);
  for (int tries = 0; tries < 3; ++tries) {
    try {
      if (machine.destroy_stream(device_, handle_of(handle_)).ok())
        return;
    } catch (std::bad_alloc const&) {}  // the host has no memory for a moment
  }
}

void simulated_stream::begin_capture(source_location at) {
  require(program_machine(*runtime_).begin_capture(device_, handle_of(handle_), driver::capture_mode::global),
          "simulated_stream::begin_capture", base::gpu_name(device_), "End the capture that it is in", at);
}

void simulated_stream::end_capture(source_location at) {
  auto& machine = program_machine(*runtime_);
  auto const graph = machine.end_capture(device_, handle_of(handle_));
  require(graph.is, "simulated_stream::end_capture", base::gpu_name(device_), "Begin a capture first", at);
  (void)machine.destroy_graph(graph.value);
}

std::uint64_t simulation::seed() const noexcept {
  return controls_->seed();
}
std::uint64_t simulation::trace_hash() const noexcept {
  return controls_->trace_hash();
}
std::vector<std::string> simulation::findings() const {
  return controls_->findings();
}

}  // namespace weir
