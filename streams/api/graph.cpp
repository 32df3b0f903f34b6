// weir/graph.h: captures, and the driver's graphs that they yield.
// Threads: as weir/graph.h.
#include "weir/graph.h"

#include <set>

#include "runtime/base/call_site.h"
#include "runtime/memory/device/device_memory.h"
#include "runtime/memory/device/graph_hold.h"
#include "streams/stream/context.h"
#include "streams/stream/timed_work.h"

namespace weir {
namespace {

using driver::executable_handle;
using driver::graph_handle;

// The graphs of a runtime in the driver. One that the driver refuses to destroy is tried again: with the next that
// ends, when memory is short, and at the end.
// Threads: any. A part of the runtime.
class graph_book {
  template <class Handle>
  struct kept {
    std::set<Handle> all, doomed;
  };

 public:
  explicit graph_book(runtime::impl& r) : machine_(r.machine()), memory_(r.part<memory::device_memory>()) {
    callback_ = memory_.add_callback(
        [](void* self, memory_report const&) {
          auto& all = *static_cast<graph_book*>(self);
          bool const executables = all.destroy_doomed(all.executables_), graphs = all.destroy_doomed(all.graphs_);
          return executables || graphs;
        },
        this, -1);  // before the program's callbacks, which have order 0 unless they choose
  }
  ~graph_book() {
    memory_.remove_callback(callback_);
    end(executables_), end(graphs_);
  }
  // A place for what the driver makes next: made() then allocates nothing. Throws: bad_alloc
  template <class Handle>
  class expected {
   public:
    explicit expected(graph_book& b) : of_(b.book(Handle{})) { node_ = std::set<Handle>{Handle{}}.extract(Handle{}); }
    void made(Handle h) noexcept {
      node_.value() = h;
      of_.lock()->all.insert(std::move(node_));
    }

   private:
    base::guarded<kept<Handle>>& of_;
    typename std::set<Handle>::node_type node_;
  };
  template <class Handle>
  void drop(Handle h) noexcept {
    if (h == Handle{})
      return;
    {
      auto b = book(h).lock();
      if (auto node = b->all.extract(h))
        b->doomed.insert(std::move(node));
    }
    (void)destroy_doomed(book(h));
  }

 private:
  template <class Handle>
  bool destroy_doomed(base::guarded<kept<Handle>>& of) noexcept {  // true: some of them
    auto b = of.lock();
    return std::erase_if(b->doomed, [&](Handle h) { return destroy(h).ok(); }) > 0;
  }
  template <class Handle>
  void end(base::guarded<kept<Handle>>& of) noexcept {
    auto b = of.lock();
    b->doomed.merge(b->all);
    std::erase_if(b->doomed, [&](Handle h) { return destroy(h).ok(); });
  }
  base::guarded<kept<graph_handle>>& book(graph_handle) noexcept { return graphs_; }
  base::guarded<kept<executable_handle>>& book(executable_handle) noexcept { return executables_; }
  driver::status destroy(graph_handle g) noexcept { return machine_.destroy_graph(g); }
  driver::status destroy(executable_handle x) noexcept { return machine_.destroy_executable(x); }

  driver::driver& machine_;
  memory::device_memory& memory_;
  std::uint64_t callback_ = 0;
  base::guarded<kept<graph_handle>> graphs_;
  base::guarded<kept<executable_handle>> executables_;
};

driver::capture_mode in_driver(capture_guard g) noexcept {
  switch (g) {
    case capture_guard::any_thread: return driver::capture_mode::global;
    case capture_guard::none: return driver::capture_mode::relaxed;
    case capture_guard::this_thread: break;
  }
  return driver::capture_mode::this_thread;
}

// Of one stream, from begin to end. Its destructor abandons it.
class capture_under_way {
 public:
  capture_under_way(clock::stream_clock& s, driver::capture_mode mode, memory::graph_holder const& memory,
                    source_location at)
      : stream_(s),
        name_(streams::describe(s)),
        book_(s.owner().part<graph_book>()),
        choices_(s.owner().part<memory::graph_choices>()),
        at_(at) {
    auto const begin = [&] {
      begin_in_driver(mode);
      auto const lane = s.lane();
      require(lane.is, "graph::capture", name_, "", at);
      number_ = lane.value->capture();
      return number_;
    };
    try {
      choices_.declare_as_it_begins(begin, memory);
    } catch (...) {
      if (open_)
        abandon();
      throw;
    }
  }
  ~capture_under_way() {
    if (open_)
      abandon();
  }
  capture_under_way(capture_under_way const&) = delete;

  // listeners: gets those of the capture
  graph_handle end(clock::launch_listeners& listeners) {
    graph_book::expected<graph_handle> place(book_);
    auto named = stream_.owner().part<clock::clocks>().take_listeners(number_);
    auto const kept = close();
    if (!kept.ok())
      require(stream_.note(kept.is), "graph::capture", name_,
              kept.is.what == driver::code::not_permitted
                  ? "Every stream that joined the capture must be waited for before its end, and nothing in it may be "
                    "queried or synchronized with"
                  : "",
              at_);
    place.made(kept.value);
    listeners = std::move(named);
    return kept.value;
  }

 private:
  void begin_in_driver(driver::capture_mode mode) {
    auto const begun = stream_.owner().part<clock::clocks>().begin_capture(stream_, mode);
    open_ = begun.ok();
    // The texts of an error need host memory, which the capture's end does not.
    if (!open_)
      require(begun, "graph::capture", name_,
              begun.what == driver::code::not_permitted
                  ? "A stream has one capture at a time, and CUDA's legacy stream none: capture on a stream of your own"
                  : "",
              at_);
  }
  driver::result<graph_handle> close() noexcept {
    open_ = false;
    auto const kept = stream_.owner().part<clock::clocks>().end_capture(stream_, number_);
    choices_.forget(number_);
    return kept;
  }
  void abandon() noexcept {
    (void)stream_.owner().part<clock::clocks>().take_listeners(number_);
    auto const kept = close();
    if (!kept.ok())
      return;
    // The book tries again if the driver refuses the graph's end.
    try {
      graph_book::expected<graph_handle>(book_).made(kept.value);
      book_.drop(kept.value);
    } catch (std::bad_alloc const&) {
      (void)stream_.owner().machine().destroy_graph(kept.value);
    }
  }

  clock::stream_clock& stream_;
  std::string const name_;  // in errors; made before the capture begins
  graph_book& book_;
  memory::graph_choices& choices_;
  source_location const at_;
  std::uint64_t number_ = 0;
  bool open_ = false;
};

graph_handle captured(stream_ref on, std::function<void()> const& body, driver::capture_mode mode,
                      memory::graph_holder const& memory, clock::launch_listeners& listeners, char const* operation,
                      source_location at) {
  clock::stream_clock& s = streams::clock_or_throw(on, operation, at);
  if (!body)
    throw invalid_use(operation, "an empty function", "Pass the function whose work is captured", at, error_id{388});
  stream_guard const current(on, at);
  base::call_site const in(s.owner().observer(), operation, at);
  capture_under_way all(s, mode, memory, at);
  body();
  return all.end(listeners);
}

// Tells those that listen to a graph of its launch, and of its refusal unless it was launched.
class told_of_launch {
 public:
  // Throws: what a listener throws, which refuses the launch
  told_of_launch(clock::launch_listeners const& all, char const* operation, source_location at) : all_(all) {
    try {
      for (; told_ < all_.size(); ++told_)
        all_[told_]->begins(operation, at);
    } catch (...) {
      tell_refusal();
      throw;
    }
  }
  ~told_of_launch() { tell_refusal(); }
  told_of_launch(told_of_launch const&) = delete;
  told_of_launch& operator=(told_of_launch const&) = delete;

  void launched(clock::stream_clock& on) noexcept {
    for (auto const& each : all_)
      each->launched(on);
    told_ = 0;
  }

 private:
  void tell_refusal() noexcept {
    for (std::size_t i = 0; i < told_; ++i)
      all_[i]->refused();
    told_ = 0;
  }
  clock::launch_listeners const& all_;
  std::size_t told_ = 0;  // of them, from the first: they wait for an answer
};

pool_memory_use use_by_graphs_of(runtime::impl& r, memory::graph_hold const& memory) {
  pool_memory_use all;
  auto* const devices = r.part_if_made<memory::device_memory>();
  if (!devices)
    return all;
  for (int d = 0; d < r.device_count(); ++d) {
    if (memory::allocator* const a = devices->if_made(d)) {
      auto const here = a->use_of_graphs(memory);
      all.reserved += here.reserved, all.allocated += here.allocated;
    }
  }
  return all;
}

}  // namespace

struct WEIR_LOCAL graph_memory::state {
  memory::graph_holder hold = std::make_shared<memory::graph_hold const>();
};

graph_memory::graph_memory() : state_(std::make_shared<state const>()) {}

size_t graph_memory::reserved(source_location at) const {
  return use_by_graphs_of(streams::current_runtime(at), *state_->hold).reserved;
}

std::uint64_t graph_memory::number(weir::device on, source_location at) const {
  runtime::impl& r = streams::current_runtime(at);
  int const d = streams::resolve(on, r, "graph_memory::number", at);
  auto* const devices = r.part_if_made<memory::device_memory>();
  memory::allocator* const its = devices ? devices->if_made(d) : nullptr;
  return its ? its->use_of_graphs(*state_->hold).pool : 0;
}

struct WEIR_LOCAL graph_memory_route::state {
  known_runtime of;
  std::uint64_t number;
};

graph_memory_route::graph_memory_route(graph_memory const& memory, weir::device on,
                                       std::function<bool(CUstream_st*)> accepts, source_location at) {
  if (!accepts)
    throw invalid_use("graph_memory_route", "an empty function", "Pass a function", at, error_id{389});
  runtime::impl& r = streams::current_runtime(at);
  int const d = streams::resolve(on, r, "graph_memory_route", at);
  auto const number = r.part<memory::graph_choices>().add(d, std::move(accepts), memory.state_->hold);
  state_.reset(new state{known_runtime(r), number});
}

graph_memory_route::~graph_memory_route() {
  runtime::impl* const r = process_is_ending() || process_was_forked() ? nullptr : state_->of.if_alive();
  if (r)
    r->part<memory::graph_choices>().remove(state_->number);
}

struct WEIR_LOCAL graph::state {
  state(runtime::impl& r, int on, driver::capture_mode m, memory::graph_holder h)
      : of(r), book(r.part<graph_book>()), device(on), mode(m), memory(std::move(h)) {
    memory->life()->add_graph();
  }
  ~state() {
    bool const is_last = memory->life()->drop_graph();
    runtime::impl* const r = process_is_ending() || process_was_forked() ? nullptr : of.if_alive();
    if (!r)
      return;
    book.drop(ready);
    book.drop(kept);
    // The last graph of its memory has ended. Its launches get fences, for which the next users can wait.
    if (is_last)
      memory->life()->fence_launches(r->part<clock::clocks>());
  }
  known_runtime of;
  graph_book& book;  // of that runtime, while it is alive
  int device;
  driver::capture_mode mode;
  memory::graph_holder memory;
  graph_handle kept = graph_handle::none;  // not instantiated yet
  executable_handle ready = executable_handle::none;
  clock::launch_listeners listeners;
  size_t driver_bytes = 0;

  // Makes an executable of `kept`, in place of the one there is.
  void instantiate(runtime::impl& r, source_location at) {
    driver::driver& machine = r.machine();
    graph_book::expected<executable_handle> place(book);
    auto const before = machine.memory(device);
    auto const made = machine.instantiate(device, kept);
    r.part<clock::clocks>().note(device, made.is);
    if (!made.ok())
      require(
          made.is, "graph::instantiate", "a graph of " + base::gpu_name(device),
          made.is.what == driver::code::out_of_memory
              ? "The driver keeps a graph's kernels and parameters in device memory: free some, or raise driver_reserve"
              : "",
          at);
    place.made(made.value);
    // The driver does not tell an executable's size: it is what the device's free memory lost meanwhile.
    auto const after = machine.memory(device);
    bool const is_less = before.ok() && after.ok() && after.value.free < before.value.free;
    driver_bytes = is_less ? before.value.free - after.value.free : 0;
    book.drop(std::exchange(ready, made.value));
    book.drop(std::exchange(kept, graph_handle::none));
  }
};

graph::graph(std::unique_ptr<state> s) noexcept : state_(std::move(s)) {}
graph::~graph() = default;
graph::graph(graph&&) noexcept = default;
graph& graph::operator=(graph&&) noexcept = default;

graph graph::capture(stream_ref on, std::function<void()> const& body, graph_options o, source_location at) {
  clock::stream_clock& s = streams::clock_or_throw(on, "graph::capture", at);
  auto made = std::make_unique<state>(s.owner(), s.device(), in_driver(o.unsafe_calls),
                                      o.memory ? o.memory->state_->hold : std::make_shared<memory::graph_hold const>());
  made->kept = captured(on, body, made->mode, made->memory, made->listeners, "graph::capture", at);
  return graph(std::move(made));
}

graph::state& graph::usable(char const* operation, source_location at) const {
  if (!state_)
    throw invalid_use(operation, "a graph that was moved from", "Use the graph that it was moved to", at,
                      error_id{390});
  if (process_was_forked())
    streams::throw_forked(operation, at);
  (void)state_->of.get(operation, "a graph of " + base::gpu_name(state_->device), at);
  return *state_;
}

void graph::instantiate(source_location at) {
  state& g = usable("graph::instantiate", at);
  if (g.ready == executable_handle::none)
    g.instantiate(*g.of.if_alive(), at);
}

void graph::launch(stream_ref on, source_location at) {
  state& g = usable("graph::launch", at);
  clock::stream_clock& s = streams::clock_or_throw(on, "graph::launch", at);
  if (&s.owner() != g.of.if_alive() || s.device() != g.device)
    throw invalid_use("graph::launch", "a graph of " + base::gpu_name(g.device) + ", on " + streams::describe(s),
                      "Launch on a stream of the device and runtime that the graph was captured on", at, error_id{391});
  if (g.ready == executable_handle::none)
    g.instantiate(s.owner(), at);
  streams::named_work const named(s);
  streams::timed_work const timed(s, "graph", 0, at);
  base::call_site const in(s.owner().observer(), "graph::launch", at);
  told_of_launch told(g.listeners, "graph::launch", at);
  auto const is = s.owner().machine().launch_graph(s.device(), s.handle(), g.ready);
  if (is.ok())
    told.launched(s);
  require(s.note(is), "graph::launch", streams::describe(s),
          is.what == driver::code::not_permitted ? "A captured stream takes no graph: launch it outside of the capture"
                                                 : "",
          at);
  g.memory->life()->note_launch(s.owner().part<clock::clocks>(), s.now());
}

void graph::launch(source_location at) {
  launch(current_stream(weir::device(usable("graph::launch", at).device), at), at);
}

void graph::update(stream_ref on, std::function<void()> const& body, source_location at) {
  state& g = usable("graph::update", at);
  clock::stream_clock& s = streams::clock_or_throw(on, "graph::update", at);
  if (&s.owner() != g.of.if_alive() || s.device() != g.device)
    throw invalid_use("graph::update", "a graph of " + base::gpu_name(g.device) + ", on " + streams::describe(s),
                      "Capture on a stream of the device and runtime that the graph was captured on", at,
                      error_id{392});
  graph_book& book = g.book;
  clock::launch_listeners listeners;
  graph_handle const now = captured(on, body, g.mode, g.memory, listeners, "graph::update", at);
  if (g.ready != executable_handle::none) {
    auto const is = s.owner().machine().update(g.device, g.ready, now);
    s.owner().part<clock::clocks>().note(g.device, is);
    if (is.ok()) {
      g.listeners = std::move(listeners);
      return book.drop(now);
    }
    // not_supported: the graphs differ too much, and the new one gets an executable of its own.
    if (is.what != driver::code::not_supported) {
      book.drop(now);
      require(is, "graph::update", "a graph of " + base::gpu_name(g.device), "", at);
    }
  }
  book.drop(std::exchange(g.kept, now));
  std::swap(g.listeners, listeners);
  if (g.ready == executable_handle::none)
    return;  // the first launch instantiates it
  try {
    g.instantiate(s.owner(), at);
  } catch (...) {
    book.drop(std::exchange(g.kept, graph_handle::none));  // the graph stays what it was
    std::swap(g.listeners, listeners);
    throw;
  }
}

device graph::device() const noexcept {
  return weir::device(state_->device);
}

graph_footprint graph::footprint(source_location at) const {
  state const& g = usable("graph::footprint", at);
  pool_memory_use const all = use_by_graphs_of(*g.of.if_alive(), *g.memory);
  return {all.reserved, all.allocated, g.driver_bytes};
}

}  // namespace weir
