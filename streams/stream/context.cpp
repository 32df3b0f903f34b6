// Each thread's current device and streams per runtime, and the stack of guards that restore them.
// Threads: each has its own; a guard that ends on another thread leaves a note for its thread.
#include "streams/stream/context.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "runtime/base/lasting.h"
#include "runtime/base/room.h"
#include "streams/stream/by_handle.h"
#include "streams/stream/stream_pool.h"

namespace weir::streams {
namespace {

struct frame {  // one guard
  std::uint64_t number = 0;
  int device_found = 0;
  int cuda_found = driver::no_device;  // what was current in CUDA
  int stream_device = -1;              // the device whose current stream was replaced; -1: none
  stream_ref stream_found = weir::detail::stream_access::none();  // none: the default stream
  bool ended = false;                                             // too early: newer guards are above it
};

struct seat {  // one thread in one runtime
  std::uint64_t runtime = 0;
  known_runtime of;
  stream_pool* pool = nullptr;
  int device = 0;
  std::vector<stream_ref> chosen;  // by device; none: the default stream
  std::vector<frame> frames;
};

// Guards that ended on another thread, by the thread that made them. Its entry lives as long as the thread.
base::atomic<std::uint64_t> misplaced{0}, notes_left{0};
base::guarded<std::unordered_map<std::uint64_t, std::vector<std::uint64_t>>>& notes() noexcept {
  static base::lasting<base::guarded<std::unordered_map<std::uint64_t, std::vector<std::uint64_t>>>> value;
  return *value;
}

struct seats {
  std::vector<std::unique_ptr<seat>> all;
  seat* last = nullptr;
  std::uint64_t next_number = 1;
  std::uint64_t const thread = base::this_thread_id();

  seats() {
    base::no_switch const own_affair;
    notes().lock()->try_emplace(thread);
  }
  seats(seats const&) = delete;
  ~seats() {
    if (process_was_forked())
      return;
    base::no_switch const own_affair;
    auto of = notes().lock();
    auto const at = of->find(thread);
    if (at == of->end())
      return;
    notes_left.fetch_sub(at->second.size());
    of->erase(at);
  }
};

seats& mine() {
  static base::per_thread<seats> value;
  return value.get();
}

seat* seat_if_any(std::uint64_t runtime) {
  seats& all = mine();
  if (all.last && all.last->runtime == runtime)
    return all.last;
  for (auto& s : all.all)
    if (s->runtime == runtime)
      return all.last = s.get();
  return nullptr;
}

seat& seat_in(runtime::impl& r) {
  if (seat* const there = seat_if_any(r.id())) [[likely]]
    return *there;
  seats& all = mine();
  all.last = nullptr;  // it may be one of those that go
  std::erase_if(all.all, [](auto const& s) { return !s->of.if_alive(); });
  auto made = std::make_unique<seat>();
  made->runtime = r.id();
  made->pool = &r.part<stream_pool>();
  made->of = known_runtime(r);
  made->chosen.resize(static_cast<std::size_t>(r.device_count()), weir::detail::stream_access::none());
  all.all.push_back(std::move(made));
  return *(all.last = all.all.back().get());
}

// Whether the guard of that number ended on another thread, which left a note here. Takes the note.
bool ended_elsewhere(std::uint64_t number) {
  if (notes_left.load() == 0)
    return false;
  base::no_switch const one_step;
  auto of = notes().lock();
  auto const at = of->find(base::this_thread_id());
  if (at == of->end())
    return false;
  auto const gone = std::erase(at->second, number);
  notes_left.fetch_sub(gone);
  return gone != 0;
}

void set(seat& s, runtime::impl& r, int device, std::string_view operation, source_location at) {
  r.open(device, operation, at);
  require(r.machine().make_current(device), operation, base::gpu_name(device), "", at);
  s.device = device;
}

void restore(seat& s, driver::driver& machine, frame const& f) {
  if (f.stream_device >= 0)
    s.chosen[static_cast<std::size_t>(f.stream_device)] = f.stream_found;
  s.device = f.device_found;
  // None was current before: memo entries of this thread say that one is.
  if (f.cuda_found == driver::no_device)
    handle_memo::forget_that_one_is_current();
  if (machine.make_current(f.cuda_found).ok())
    return;
  // The program made a device current that weir has not used.
  if (machine.open(f.cuda_found).ok())
    (void)machine.make_current(f.cuda_found);
}

}  // namespace

void require_not_stuck(driver::driver& machine, driver::status s, std::string_view operation, source_location at) {
  if (s.ok()) [[likely]]
    return;
  if (std::string const why = s.what == driver::code::failed ? machine.why_stuck() : std::string(); !why.empty())
    throw_refusal(s, operation, "waited forever: " + why,
                  "Remove one of the waits, or enqueue the work that it waits for", at);
}

int resolve(device d, runtime::impl& r, std::string_view operation, source_location at) {
  if (d.is_cpu())
    throw invalid_use(std::string(operation), "cpu", "Name a gpu", at, error_id{234});
  if (d.index() == -1)
    return seat_in(r).device;
  if (d.index() < 0 || d.index() >= r.device_count())
    throw invalid_use(std::string(operation),
                      base::text(base::gpu_name(d.index()), " of ", r.device_count(), " devices"),
                      "Devices count from gpu:0 to gpu:" + std::to_string(r.device_count() - 1), at, error_id{235});
  return d.index();
}

namespace {
inline clock::stream_clock& line_in(seat& s, int device, source_location const& at) {
  auto& chosen = s.chosen[static_cast<std::size_t>(device)];
  if (auto* const stream = weir::detail::stream_access::stream(chosen)) {
    if (stream->tenure() == weir::detail::stream_access::tenure(chosen)) [[likely]]
      return *stream;
    chosen = weir::detail::stream_access::none();  // it was returned, or its registration has ended
  }
  return s.pool->default_line(device, at);
}
}  // namespace

clock::stream_clock& current_clock(runtime::impl& r, int device, source_location const& at) {
  return line_in(seat_in(r), device, at);
}

clock::stream_clock& current_clock(runtime::impl& r, source_location const& at) {
  seat& s = seat_in(r);
  return line_in(s, s.device, at);
}
int current_ordinal(runtime::impl& r) {
  return seat_in(r).device;
}

int device_in_cuda(runtime::impl& r, std::string_view operation, source_location at) {
  return device_in_cuda(r, seat_in(r).device, operation, at);
}

int device_in_cuda(runtime::impl& r, int if_none, std::string_view operation, source_location at) {
  auto const is = r.machine().current_device();
  require(is.is, operation, "the current device", "", at);
  if (is.value != driver::no_device)
    return is.value;
  // cudaMalloc leaves its device current. Else cudaPointerGetAttributes tells no address of what was allocated.
  if (r.machine().open(if_none).ok())
    (void)r.machine().make_current(if_none);
  return if_none;
}

std::string describe(clock::stream_clock const& t) {
  return base::text("stream ", t.id(), " of gpu:", t.device());
}

void throw_forked(std::string_view operation, source_location at) {
  throw_refusal({driver::code::forked}, operation, "a child", "", at);
}

void throw_not_valid(stream_ref s, std::string_view operation, source_location at) {
  auto const refuse = [&](std::string what, char const* remedy, error_id id) {
    throw invalid_use(std::string(operation), std::move(what), remedy, at, id);
  };
  std::uint64_t const tenure = weir::detail::stream_access::tenure(s);
  if (!tenure)
    refuse("a stream that was moved from", "Use the stream it was moved to", error_id{236});
  std::string const what =
      base::text("stream ", clock::tenure_word::id(tenure), " of gpu:", clock::tenure_word::device(tenure));
  clock::stream_clock const* const stream = clock::find(clock::tenure_word::id(tenure));
  if (!stream)
    refuse(what + ", whose runtime has ended", "Keep the runtime until its last use", error_id{237});
  if (stream->alive() == clock::life::retired)
    refuse(what + ", whose registration has ended", "Keep the external_stream object while its stream is used",
           error_id{238});
  throw invalid_use(std::string(operation), what + ", which was destroyed",
                    "Keep the stream object while its references are used", at, error_id{239});
}

void choose(runtime::impl& r, int device, clock::stream_clock* stream, std::string_view operation, source_location at) {
  seat& s = seat_in(r);
  set(s, r, device, operation, at);
  if (stream)
    s.chosen[static_cast<std::size_t>(device)] = ref_of(*stream);
}

weir::detail::guard_mark enter(runtime::impl& r, int device, clock::stream_clock* stream, std::string_view operation,
                               source_location at) {
  seat& s = seat_in(r);
  base::make_room(s.frames);  // nothing throws once the device has changed
  auto const cuda = r.machine().current_device();
  require(cuda.is, operation, "the current device", "", at);
  frame f{.number = mine().next_number, .device_found = s.device, .cuda_found = cuda.value};
  if (stream) {
    f.stream_device = device;
    f.stream_found = s.chosen[static_cast<std::size_t>(device)];
  }
  choose(r, device, stream, operation, at);
  s.frames.push_back(f);
  return {base::this_thread_id(), mine().next_number++, r.id()};
}

namespace {
// The guard of another thread has ended here. That thread takes its setting back.
void note_for_its_thread(weir::detail::guard_mark mark) noexcept {
  misplaced.fetch_add(1);
  try {
    base::no_switch const one_step;
    auto of = notes().lock();
    auto const maker = of->find(mark.thread);
    if (maker == of->end())
      return;  // that thread has ended: no one to notify
    maker->second.push_back(mark.number);
    notes_left.fetch_add(1);
  } catch (...) {}  // no memory for the note: that thread keeps its setting
}

// Takes the note that another thread may have left.
bool has_ended(frame& f) {
  if (!f.ended && ended_elsewhere(f.number))
    f.ended = true;
  return f.ended;
}
}  // namespace

void leave(weir::detail::guard_mark mark) noexcept {
  if (mark.number == 0 || process_was_forked())
    return;
  if (mark.thread != base::this_thread_id())
    return note_for_its_thread(mark);
  seat* const s = seat_if_any(mark.runtime);
  if (!s || !s->of.if_alive())
    return;
  auto const it =
      std::find_if(s->frames.rbegin(), s->frames.rend(), [&](frame const& f) { return f.number == mark.number; });
  if (it == s->frames.rend())
    return;
  it->ended = true;
  // A guard that ends before one inside it changes nothing, until that one has ended, too.
  if (it != s->frames.rbegin()) {
    misplaced.fetch_add(1);
    bool all_inside_ended = true;
    for (auto inside = s->frames.rbegin(); inside != it; ++inside) {  // each takes its note
      if (!has_ended(*inside))
        all_inside_ended = false;
    }
    if (!all_inside_ended)
      return;
  }
  driver::driver& machine = s->pool->machine();
  while (!s->frames.empty() && has_ended(s->frames.back())) {
    restore(*s, machine, s->frames.back());
    s->frames.pop_back();
  }
}

std::uint64_t misplaced_guards() noexcept {
  return misplaced.load();
}

}  // namespace weir::streams
