// A program that captures work of two streams and launches it twice.
// Threads: one.
#include <array>
#include <vector>

#include "runtime/core/parts.h"
#include "streams/stream/context.h"
#include "tests/faults/scenario.h"
#include "weir/copy.h"
#include "weir/launch.h"

namespace weir::faults {
namespace {

using driver::executable_handle;
using driver::graph_handle;

constexpr source_location at{"a capture", "captures.cpp", 1};

// Handles that the driver refused to destroy. Tried again at the next run and at the runtime's end.
class leftovers {  // a part of the runtime
 public:
  explicit leftovers(runtime::impl& r) : machine_(r.machine()) { graphs_.reserve(16), executables_.reserve(16); }
  ~leftovers() { try_again(); }
  void give_back(graph_handle g) noexcept {
    if (!machine_.destroy_graph(g).ok() && graphs_.size() < graphs_.capacity()) graphs_.push_back(g);
  }
  void give_back(executable_handle e) noexcept {
    if (!machine_.destroy_executable(e).ok() && executables_.size() < executables_.capacity())
      executables_.push_back(e);
  }
  void try_again() noexcept {
    std::erase_if(executables_, [&](auto e) { return machine_.destroy_executable(e).ok(); });
    std::erase_if(graphs_, [&](auto g) { return machine_.destroy_graph(g).ok(); });
  }

 private:
  driver::driver& machine_;
  std::vector<graph_handle> graphs_;
  std::vector<executable_handle> executables_;
};

class capture {  // lasts until its destructor
 public:
  capture(runtime::impl& r, stream_ref on) : runtime_(r), line_(streams::clock_of(on)) {
    require(r.machine().begin_capture(0, line_.handle(), driver::capture_mode::global), "begin_capture", "a stream", "",
            at);
    open_ = true;
  }
  ~capture() {
    if (!open_) return;
    auto const kept = runtime_.machine().end_capture(0, line_.handle());
    if (kept.ok()) runtime_.part<leftovers>().give_back(kept.value);
  }
  graph_handle end() {
    open_ = false;
    auto const kept = runtime_.machine().end_capture(0, line_.handle());
    require(kept.is, "end_capture", "a stream", "", at);
    return kept.value;
  }

 private:
  runtime::impl& runtime_;
  clock::stream_clock& line_;
  bool open_ = false;
};

class executable {
 public:
  executable(runtime::impl& r, graph_handle g) : runtime_(r) {
    auto const made = r.machine().instantiate(0, g);
    r.part<leftovers>().give_back(g);
    require(made.is, "instantiate", "a graph", "", at);
    handle_ = made.value;
  }
  ~executable() {
    if (handle_ != executable_handle::none) runtime_.part<leftovers>().give_back(handle_);
  }
  void launch(stream_ref on) {
    require(runtime_.machine().launch_graph(0, streams::clock_of(on).handle(), handle_), "launch_graph", "a graph", "",
            at);
  }

 private:
  runtime::impl& runtime_;
  executable_handle handle_ = executable_handle::none;
};

void add_one(stream_ref s, buffer const& b) {
  auto* const bytes = b.data<unsigned char>();
  std::size_t const n = b.size();
  launch(s, {updates(b)}, [](CUstream_st*) {}, [=] { for (std::size_t i = 0; i < n; ++i) ++bytes[i]; });
}

// x + 1 on a; y = the first bytes of x on b, while a fills other bytes of x; then y + 1 on a.
graph_handle captured_fork_and_join(runtime::impl& r, stream_ref a, stream_ref b, buffer const& x, buffer const& y) {
  capture under_way(r, a);
  if (!a.is_capturing()) return under_way.end();
  add_one(a, x);
  b.wait(a.record_event());
  copy(b, y.data(), x.data(), 1000, non_blocking);
  {
    stream_guard const on(a);
    fill(x.data<char>() + 2000, std::byte{9}, 100);
  }
  a.wait(b.record_event());
  add_one(a, y);
  return under_way.end();
}

}  // namespace

std::string captured_and_launched_twice() {
  auto& r = runtime::current().get();
  r.part<leftovers>().try_again();
  stream a, b;
  buffer const out = pinned(2 * 4096);
  buffer x(4096), y(4096);
  for (buffer const* one : {&x, &y}) {
    fill(one->data(), std::byte(one == &x ? 1 : 2), 4096);
    for (stream_ref const s : {stream_ref(a), stream_ref(b)}) one->record_stream(s);
  }
  a.wait(current_stream());
  b.wait(a);
  executable twice(r, captured_fork_and_join(r, a, b, x, y));
  twice.launch(a);
  buffer const meanwhile(70'000);
  twice.launch(a);
  copy(a, out.data(), x.data(), 4096, non_blocking);
  copy(a, out.data<char>() + 4096, y.data(), 4096, non_blocking);
  a.synchronize();
  current_stream().wait(a);
  return std::string(out.data<char>(), out.size());
}

}  // namespace weir::faults
