// Work of the user's on a stream: what it declares to use is checked, marked for the stream, and told to whoever judges order.
// Threads: any.
//
// Marks come before the work is given: a block freed while its kernel is being launched then takes a stamp behind the
// kernel, never one before it. A mark without work (the launch failed) costs a stamp at the free and nothing else.
#include "weir/launch.h"

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/call_site.h"
#include "runtime/memory/allocator.h"
#include "runtime/observe/memory_beside.h"
#include "streams/context.h"
#include "streams/pinned.h"
#include "streams/timing.h"
#include "weir/parallel_for.h"

namespace weir::detail {
namespace {

std::string hex(void const* p) {
  char text[2 + 16 + 1];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(p)));
  return text;
}
std::string gpu_name(int device) { return "gpu:" + std::to_string(device); }

char const* verb(access how) noexcept { return how == access::read ? "reads " : how == access::write ? "writes " : "updates "; }

// Where the memory of a use lies: a device block, a pinned block, what is shared or locked beside them, or nowhere that weir knows.
struct whereabouts {
  memory::allocator* device = nullptr;
  streams::pinned_memory* pinned = nullptr;
  std::optional<observe::memory_beside::place> beside;
  memory::block block;
  bool known() const noexcept { return device || pinned || beside; }
  int on() const noexcept { return device ? device->device() : beside ? beside->device : -1; }  // -1: of the host
  bool reached_from(int reader, void const* p) const noexcept { return device ? device->granted(p, reader) : beside->readers >> reader & 1; }  // Requires: on() >= 0
};

whereabouts whereabouts_of(runtime::impl& r, void const* p) noexcept {
  whereabouts at;
  if (auto* devices = r.part_if_made<memory::device_memory>()) {
    if (auto* owner = devices->owner(p)) {
      at.device = owner;
      if (auto block = owner->find(p)) at.block = *block;
      return at;
    }
  }
  if (auto* pinned = r.part_if_made<streams::pinned_memory>()) {
    if (auto block = pinned->find(p)) {
      at.pinned = pinned;
      at.block = *block;
      return at;
    }
  }
  if (auto const* const beside = r.part_if_made<observe::memory_beside>()) {
    if ((at.beside = beside->find(p))) {
      at.block.base = reinterpret_cast<void*>(at.beside->at);
      at.block.bytes = at.beside->bytes;
    }
  }
  return at;
}

void check_use(whereabouts const& is, use const& u, clock::timeline& line, here at) {
  auto const refuse = [&](std::string what, std::string remedy) {
    throw invalid_use("launch", std::string(verb(u.how)) + hex(u.address) + " on " + gpu_name(line.device()) + ": " + std::move(what), std::move(remedy), at);
  };
  if (!is.known()) {  // a GPU may reach what is not weir's, pageable memory too where the system can; simulated devices reach their own memory and pinned memory
    driver::driver& machine = line.owner().machine();
    auto const place = machine.simulated() ? machine.find(u.address) : driver::result<driver::place>{{driver::code::not_ready}};
    if (place.ok() && place.value.in == driver::where::pageable) {
      refuse("pageable memory of the host", "Copy it to the device, or keep it in pinned memory (weir::pinned)");
    }
    if (place.ok() && place.value.in == driver::where::unknown_device) {
      refuse("device memory of no device of this runtime", "Launch with the runtime whose memory it is");
    }
    if (u.bytes == 0) refuse("memory that weir does not know, nor where it ends", "Say how many bytes: reads(p, bytes)");
    return;
  }
  if (!is.block.base && is.block.bytes == 0) {
    refuse("no live block of " + gpu_name(is.on()) + " is there", "It was freed, or the address is wrong: keep the buffer or tensor until the launch has returned");
  }
  auto const offset = static_cast<std::size_t>(static_cast<char const*>(u.address) - static_cast<char const*>(is.block.base));
  if (u.bytes > is.block.bytes - offset) {
    refuse(std::to_string(u.bytes) + " B at offset " + std::to_string(offset) + " of a block of " + std::to_string(is.block.bytes) + " B", "Declare no more than the block holds");
  }
  if (is.on() >= 0 && is.on() != line.device() && !is.reached_from(line.device(), u.address)) {
    refuse("the block is on " + gpu_name(is.on()) + " and " + gpu_name(line.device()) + " has no access to it",
           "Launch on a stream of " + gpu_name(is.on()) + ", copy the block to " + gpu_name(line.device()) + ", or grant access (weir::grant_access)");
  }
}

// What the seam is told. Most launches declare a few uses.
class touches {
 public:
  touches(runtime::impl& r, std::span<use const> uses) {
    if (uses.size() > few_.size()) many_.reserve(uses.size());
    for (use const& u : uses) {
      if (!u.address) continue;
      std::size_t bytes = u.bytes;
      if (bytes == 0) {
        whereabouts const is = whereabouts_of(r, u.address);
        if (is.known()) bytes = is.block.bytes - static_cast<std::size_t>(static_cast<char const*>(u.address) - static_cast<char const*>(is.block.base));
        if (bytes == 0) continue;  // nothing in it
      }
      driver::touch const t{reinterpret_cast<driver::address>(u.address), bytes, u.how != access::read};
      if (uses.size() > few_.size()) many_.push_back(t); else few_[count_++] = t;
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

void require_of(clock::timeline& line, driver::status s, std::string_view what, here at) {
  if (s.ok()) [[likely]] return;
  throw_refusal(line.note(s), what, "stream " + std::to_string(line.id()) + " of " + gpu_name(line.device()), "Earlier work of the device may be the cause: options::launch_blocking (CUDA_LAUNCH_BLOCKING=1) finds the line", at);
}

}  // namespace

bool begin_work(stream_ref s, std::span<use const> uses, here at) {
  clock::timeline& line = streams::line_or_throw(s, "launch", at);
  runtime::impl& r = line.owner();
  if (line.alive() == clock::life::retired) {
    throw invalid_use("launch", "stream " + std::to_string(line.id()) + " of " + gpu_name(line.device()) + " is no longer registered", "Keep the foreign_stream while work is launched on it", at);
  }
  std::array<whereabouts, 8> few;
  std::vector<whereabouts> many(uses.size() > few.size() ? uses.size() : 0);
  whereabouts* const found = many.empty() ? few.data() : many.data();
  for (std::size_t i = 0; i < uses.size(); ++i) {
    if (!uses[i].address) continue;
    found[i] = whereabouts_of(r, uses[i].address);
    check_use(found[i], uses[i], line, at);
  }
  for (std::size_t i = 0; i < uses.size(); ++i) {  // nothing is marked unless all are in order
    if (found[i].device && found[i].block.home != &line) found[i].device->mark(uses[i].address, line, at);
    if (found[i].pinned) found[i].pinned->mark(uses[i].address, line);
  }
  streams::begin_timed_launch(line, at);
  return r.machine().simulated();
}

void queue_work(stream_ref s, std::span<use const> uses, queued q, here at) {
  clock::timeline& line = streams::line_of(s);
  base::call_site const in(line.owner().witness(), "launch", at);
  driver::status is;
  try {
    touches const touched(line.owner(), uses);
    is = line.owner().machine().enqueue(line.device(), line.handle(), touched.all(), {q.run, q.drop, q.state});
  } catch (...) {
    q.drop(q.state);
    streams::end_timed_launch();
    throw;
  }
  if (!is.ok()) streams::end_timed_launch();
  require_of(line, is, "launch", at);  // the seam has dropped what it refused
}

void abandon_work(stream_ref s, std::span<use const> uses) noexcept {
  clock::timeline& line = streams::line_of(s);
  streams::end_timed_launch();
  try {
    line.owner().machine().touched(line.device(), line.handle(), touches(line.owner(), uses).all());
  } catch (...) {  // no memory for a checker's list: the checker misses this one
  }
}

void end_work(stream_ref s, std::span<use const> uses, here at) {
  clock::timeline& line = streams::line_of(s);
  streams::end_timed_launch();
  driver::driver& machine = line.owner().machine();
  base::call_site const in(line.owner().witness(), "launch", at);
  if (!machine.simulated()) machine.touched(line.device(), line.handle(), touches(line.owner(), uses).all());
  if (line.owner().options().launch_blocking) [[unlikely]] {
    auto const capturing = machine.capturing(line.device(), line.handle());
    require_of(line, capturing.is, "launch", at);
    if (!capturing.value) require_of(line, machine.synchronize_stream(line.device(), line.handle()), "launch", at);
  }
}

void no_device_code(here at) {
  throw not_supported("parallel_for", "a GPU, and a loop that only the host compiler has read", "Name the file in weir_kernels(target file.cu) and build with a CUDA toolkit", at);
}

void check_native_launch(stream_ref s, int native_code, here at) {
  if (native_code == 0) [[likely]] return;
  clock::timeline& line = streams::line_of(s);
  driver::status const is = line.captured().is;  // a sticky error answers here as well, and a capture is not spoiled
  require_of(line, is.what == driver::code::lost ? is : driver::status{driver::code::failed, native_code}, "parallel_for", at);
}

}  // namespace weir::detail

namespace weir {

void launch_host(stream_ref s, std::function<void()> body, here at) {
  clock::timeline& line = streams::line_or_throw(s, "launch_host", at);
  if (!body) throw invalid_use("launch_host", "an empty function", "Give it something to run", at);
  if (line.alive() == clock::life::retired) {
    throw invalid_use("launch_host", "stream " + std::to_string(line.id()) + " is no longer registered", "Keep the foreign_stream while work is launched on it", at);
  }
  base::call_site const in(line.owner().witness(), "launch_host", at);
  streams::timed_work const timed(line, "launch_host", 0, at);
  using function = std::function<void()>;
  auto* const kept = new function(std::move(body));
  detail::require_of(line,
                     line.owner().machine().host_function(line.device(), line.handle(), {[](void* f) { (*static_cast<function*>(f))(); }, [](void* f) { delete static_cast<function*>(f); }, kept}),
                     "launch_host", at);
}

}  // namespace weir
