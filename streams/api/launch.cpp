// User work on a stream: its declared uses are checked, marked for the stream, and reported to the checker.
// Threads: any.
//
// Marks come before the enqueue: a block freed during the launch gets a stamp after the kernel. A superfluous
// mark costs one stamp at the free.
#include "weir/launch.h"

#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/base/os.h"
#include "runtime/driver/race_control.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/observe/external_memory.h"
#include "streams/api/known_range.h"
#include "streams/api/spills.h"
#include "streams/pinned/pinned_memory.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"
#include "weir/parallel_for.h"

namespace weir::detail {
namespace {

char const* verb(access_mode how) noexcept {
  return how == access_mode::read ? "reads" : how == access_mode::write ? "writes" : "updates";
}

void check_use(streams::known_range const& is, memory_use const& u, clock::stream_clock& stream, source_location at) {
  auto const refuse = [&](std::string what, std::string remedy, error_id id) {
    throw invalid_use("launch",
                      std::string(verb(u.how)) + " " + base::address_text(u.address) + " on " +
                          base::gpu_name(stream.device()) + ": " + std::move(what),
                      std::move(remedy), at, id);
  };
  if (is.require_inside("launch", verb(u.how), at).is == streams::known_range::verdict::unknown) {
    if (find_block(u.address))
      refuse("a block of another runtime",
             "Launch on a stream of the block's runtime; synchronize two runtimes on the host", error_id{189});
    // A GPU may access any memory, even pageable. Simulated devices reach only their own and pinned memory.
    driver::driver& machine = stream.owner().machine();
    if (machine.simulated()) {
      auto const place = machine.find(u.address);
      if (place.ok() && place.value.in == driver::where::pageable)
        refuse("pageable memory of the host", "Copy it to the device, or keep it in pinned memory (weir::pinned)",
               error_id{190});
      if (place.ok() && place.value.in == driver::where::unknown_device)
        refuse("device memory of another runtime or library", "Launch with the runtime that allocated the memory",
               error_id{191});
    }
    if (u.bytes == 0)
      refuse("unknown memory of unknown size", "Pass the number of bytes: reads(p, bytes)", error_id{192});
    return;
  }
  if (is.device >= 0 && is.device != stream.device() && !is.open_to(stream.device()))
    refuse("the block is on " + base::gpu_name(is.device) + " and " + base::gpu_name(stream.device()) +
               " has no access to it",
           "Launch on a stream of " + base::gpu_name(is.device) + ", copy the block to " +
               base::gpu_name(stream.device()) + ", or grant access (weir::enable_peer_access)",
           error_id{193});
}

// The uses in the driver's form. Most launches declare few.
class touches {
 public:
  touches(runtime::impl& r, std::span<memory_use const> uses) {
    if (uses.size() > few_.size())
      many_.reserve(uses.size());
    for (memory_use const& u : uses) {
      if (!u.address)
        continue;
      std::size_t bytes = u.bytes;
      if (bytes == 0)
        bytes = streams::known_range::of(r, u.address, 0).left();
      if (bytes == 0)
        continue;  // an empty block
      driver::touch const t{reinterpret_cast<driver::address>(u.address), bytes, u.how != access_mode::read};
      if (uses.size() > few_.size())
        many_.push_back(t);
      else
        few_[count_++] = t;
    }
  }
  std::span<driver::touch const> all() const noexcept {
    return many_.empty() ? std::span(few_.data(), count_) : std::span<driver::touch const>(many_);
  }

 private:
  std::array<driver::touch, 8> few_;
  std::size_t count_ = 0;
  std::vector<driver::touch> many_;
};

// Work of the program. An exception from it ends the process: on a stream nothing can catch it.
class body {
 public:
  body(queued what, clock::stream_clock& stream, char const* operation, source_location at) noexcept
      : what_(what), about_{{operation, at}, stream.device(), stream.owner().part<clock::clocks>().number_of(stream)} {}
  ~body() { what_.drop(what_.state); }
  body(body const&) = delete;
  static void run(void* self) noexcept {
    auto const& its = *static_cast<body*>(self);
    base::running const now(its.about_);
    try {
      its.what_.run(its.what_.state);
    } catch (std::exception const& e) {
      its.end(std::string("an exception: ") + e.what());
    } catch (...) {
      its.end("an exception that is not a std::exception");
    }
  }
  static void drop(void* self) { delete static_cast<body*>(self); }

 private:
  [[noreturn]] void end(std::string const& what) const noexcept {
    os::print_error("weir-105: work (" + base::text_of(about_) + ") threw " + what +
                    ". No code can catch it on a stream: the process ends. Remedy: catch it in the work, and store the "
                    "error in memory that the host reads.\n");
    driver::check::print_all_findings();
    std::terminate();
  }
  queued const what_;
  base::running_work const about_;
};

// Holds the pools of a launch while it lives; after keep(), until end_work() or abandon_work().
class held_pools {
 public:
  held_pools(std::span<memory_use const> uses, clock::stream_clock& on, source_location at)
      : of_(on.owner().part_if_made<streams::spills>()) {
    if (!of_) [[likely]]
      return;
    std::vector<void const*> all;
    for (memory_use const& u : uses)
      all.push_back(u.address);
    of_->hold("launch", &on, all, at);
  }
  ~held_pools() {
    if (of_) [[unlikely]]
      of_->let_go();
  }
  held_pools(held_pools const&) = delete;
  void keep() {
    streams::call_under_way::begin();  // the thread has a mark: nothing is thrown
    of_ = nullptr;
  }

 private:
  streams::call_under_way const marked_;  // before it asks for a spill
  streams::spills* of_;
};

void let_pools_go(clock::stream_clock const& on) noexcept {
  if (auto* const all = on.owner().part_if_made<streams::spills>()) [[unlikely]]
    all->let_go();
  streams::call_under_way::end();
}

// The work may be enqueued already. A caller that saw an exception would enqueue it again.
void tell_touched(clock::stream_clock& stream, std::span<memory_use const> uses) noexcept {
  try {
    stream.owner().machine().touched(stream.device(), stream.handle(), touches(stream.owner(), uses).all());
  } catch (...) {}  // no memory for a list: the checker misses this launch
}

void require_of(clock::stream_clock& stream, driver::status s, std::string_view what, source_location at) {
  if (s.ok()) [[likely]]
    return;
  throw_refusal(stream.note(s), what,
                "stream " + std::to_string(stream.id()) + " of " + base::gpu_name(stream.device()),
                "Earlier work of the device may have failed. Find its line with options::launch_blocking "
                "(CUDA_LAUNCH_BLOCKING=1)",
                at);
}

}  // namespace

bool begin_work(stream_ref s, std::span<memory_use const> uses, source_location at) {
  clock::stream_clock& stream = streams::worker_or_throw(s, "launch", at);
  runtime::impl& r = stream.owner();
  held_pools held(uses, stream, at);
  using streams::known_range;
  std::array<known_range, 8> few;
  std::vector<known_range> many(uses.size() > few.size() ? uses.size() : 0);
  known_range* const found = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].address)
      continue;
    found[i] = known_range::of(r, uses[i].address, uses[i].bytes);
    check_use(found[i], uses[i], stream, at);
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {  // marks only after all uses are valid
    if (found[i].memory && found[i].block.home != &stream)
      found[i].memory->record_use(uses[i].address, stream, at);
    if (found[i].pinned)
      found[i].pinned->record_use(uses[i].address, stream);
  }
  // A simulated launch begins in queue_work(), which holds the pools itself. Until then the body is copied.
  // If that threw after keep(), nothing would let the pools go.
  if (r.machine().simulated())
    return true;
  streams::begin_timed_launch(stream, at);
  held.keep();
  if (r.observer()) [[unlikely]]
    ++base::this_call().unwatched;
  return false;
}

void queue_work(stream_ref s, std::span<memory_use const> uses, queued q, source_location at) {
  clock::stream_clock& stream = streams::clock_of(s);
  std::optional<held_pools> held;  // until this returns; made inside the try, whose catch drops the work
  base::call_site const in(stream.owner().observer(), "launch", at);
  streams::begin_timed_launch(stream, at);
  driver::status is;
  body* given = nullptr;
  try {
    held.emplace(uses, stream, at);
    touches const touched(stream.owner(), uses);
    given = new body(q, stream, "launch", at);
    is = stream.owner().machine().enqueue(stream.device(), stream.handle(), touched.all(),
                                          {body::run, body::drop, given});
  } catch (...) {
    if (given)
      delete given;
    else
      q.drop(q.state);
    streams::end_timed_launch();
    throw;
  }
  // Work that was queued is timed until end_work().
  if (!is.ok())
    streams::end_timed_launch();
  require_of(stream, is, "launch", at);  // a refusing driver has dropped the work
}

CUstream_st* handle_for_work(stream_ref s, source_location at) {
  return streams::native_handle(streams::worker_or_throw(s, "launch", at), at);
}

void abandon_work(stream_ref s, std::span<memory_use const> uses) noexcept {
  clock::stream_clock& stream = streams::clock_of(s);
  let_pools_go(stream);
  if (stream.owner().observer()) [[unlikely]]
    --base::this_call().unwatched;
  streams::end_timed_launch();
  tell_touched(stream, uses);
}

void end_work(stream_ref s, std::span<memory_use const> uses, source_location at) {
  clock::stream_clock& stream = streams::clock_of(s);
  if (!stream.owner().machine().simulated()) {
    let_pools_go(stream);  // begin_work() kept them; of a simulated launch, queue_work() has let them go
    if (stream.owner().observer()) [[unlikely]]
      --base::this_call().unwatched;
  }
  streams::named_work const named(stream);
  streams::end_timed_launch();
  driver::driver& machine = stream.owner().machine();
  base::call_site const in(stream.owner().observer(), "launch", at);
  if (!machine.simulated())
    tell_touched(stream, uses);
  if (stream.owner().options().launch_blocking) [[unlikely]] {
    auto const capturing = machine.capturing(stream.device(), stream.handle());
    require_of(stream, capturing.is, "launch", at);
    if (!capturing.value)  // in a capture nothing runs yet
      require_of(stream, machine.synchronize_stream(stream.device(), stream.handle()), "launch", at);
  }
}

void no_device_code(source_location at) {
  throw not_supported("parallel_for", "this call was compiled without nvcc and has no GPU kernel",
                      "Add the file to weir_kernels(target file.cu), and build with a CUDA toolkit", at, error_id{194});
}

void check_native_launch(stream_ref s, int native_code, source_location at) {
  if (native_code == 0) [[likely]]
    return;
  clock::stream_clock& stream = streams::clock_of(s);
  driver::status const is = stream.captured().is;  // also returns a sticky error, and spoils no capture
  require_of(stream, is.what == driver::code::lost ? is : driver::status{driver::code::failed, native_code},
             "parallel_for", at);
}

}  // namespace weir::detail

namespace weir {

void launch_host(stream_ref s, std::function<void()> run, source_location at) {
  clock::stream_clock& stream = streams::worker_or_throw(s, "launch_host", at);
  streams::named_work const named(stream);
  if (!run)
    throw invalid_use("launch_host", "an empty function", "Pass a function", at, error_id{195});
  base::call_site const in(stream.owner().observer(), "launch_host", at);
  streams::timed_work const timed(stream, "launch_host", 0, at);
  using function = std::function<void()>;
  auto kept = std::make_unique<function>(std::move(run));
  auto* const given = new detail::body(
      {[](void* f) { (*static_cast<function*>(f))(); }, [](void* f) { delete static_cast<function*>(f); }, kept.get()},
      stream, "launch_host", at);
  static_cast<void>(kept.release());  // `given` deletes it. The driver drops `given`, even if it refuses
  detail::require_of(stream,
                     stream.owner().machine().host_function(stream.device(), stream.handle(),
                                                            {detail::body::run, detail::body::drop, given}),
                     "launch_host", at);
}

}  // namespace weir
