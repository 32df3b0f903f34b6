// Memory shared with other processes, forks, processes that are killed or exit at work, and further runtimes.
// Threads: one.
#include <cstdlib>

#include "runtime/base/os_socket.h"
#include "tests/soak/actor.h"
#include "tests/soak/child_process.h"
#include "weir/observe.h"
#include "weir/tensor.h"

namespace weir::soak {
namespace {

constexpr std::size_t shared_bytes = 100'000;
constexpr std::chrono::seconds patience{20};
constexpr unsigned patience_of_a_fork = 20;  // seconds

}  // namespace

// Both ends of the channel are here: the library cannot tell.
void actor::shares() {
  int const d = some_device();
  stream const& s = some_stream(d);
  auto const [a, b] = os::make_sockets();
  share_channel from(a, patience), to(b, patience);
  exportable_buffer mine = timed(call::export_buffer, [&] { return exportable_buffer(s, shared_bytes); });
  std::uint64_t const id = next_id_++;
  stamp(s, mine.data(), shared_bytes, id, delay());
  timed(call::send, [&] { from.send(mine, s); });
  imported_buffer theirs = timed(call::receive, [&] { return to.receive(d); });
  if (chance(4))
    check_bytes(s, theirs.data(), shared_bytes, id, "a shared buffer");
  if (chance(2)) {
    to.signal(1, s);
    if (from.wait() != 1)
      throw wrong("another number came");
  }
  timed(call::return_import, [&] {
    if (chance(2))
      return theirs.release(s);
    // While a stream of its devices is captured, it would never be given back.
    std::lock_guard const no_capture(in_.captures());
    theirs.reset();
  });
  auto& slot = exported_[below(exported_.size())];
  timed(call::export_end, [&] { slot.reset(); });
  slot.emplace(std::move(mine));
}

void actor::shares_of_pool() {
  int const d = some_device();
  stream const& s = some_stream(d);
  auto const [a, b] = os::make_sockets();
  share_channel from(a, patience), to(b, patience);
  share_pool cut({.on = d, .handle_bytes = 4_MiB});
  std::vector<exportable_buffer> mine;
  std::vector<imported_buffer> theirs;
  for (int i = 0; i < 3; ++i) {
    mine.push_back(timed(call::export_buffer, [&] { return cut.allocate(s, some_bytes()); }));
    from.send(mine.back(), s);
    theirs.push_back(to.receive(d));
  }
  if (chance(2))
    mine.clear();  // before its importers
  for (auto& one : theirs)
    one.release(s);
}

int reader_role(char** words) {
  share_channel line(its_socket, patience);
  for (long left = std::atol(words[0]); left > 0; --left) {
    imported_buffer const b = line.receive(0);
    std::vector<std::uint32_t> seen(b.size() / 4);
    copy(seen.data(), b.data(), seen.size() * 4);
    line.signal(seen[1] ^ seen[0], default_stream(0));
  }
  return 0;
}

void actor::other_processes() {
  stream const& s = some_stream(0);
  timed(call::process, [&] {
    auto [a, b] = os::make_sockets();
    os::owned_file its(b);
    share_channel line(a, patience);
    child_process reader("reader", {"3"}, its.get());
    its.close();
    for (int i = 0; i < 3; ++i) {
      exportable_buffer const mine(s, shared_bytes);
      std::uint64_t const id = next_id_++;
      stamp(s, mine.data(), shared_bytes, id, delay());
      line.send(mine, s);
      if (line.wait() != (stamped(id, 0) ^ stamped(id, 1)))
        throw wrong("another process read other bytes");
    }
    if (int const status = reader.end(); status != 0)
      throw wrong("a reader ended with " + std::to_string(status));
  });
}

void actor::killed_processes() {
  stream const& s = some_stream(0);
  timed(call::process, [&] {
    auto [a, b] = os::make_sockets();
    os::owned_file its(b);
    share_channel line(a, patience);
    child_process reader("reader", {"9"}, its.get());
    its.close();
    share_pool cut({.on = 0, .handle_bytes = 4_MiB});
    try {
      for (int i = 0; i < 9; ++i) {
        exportable_buffer const mine = chance(2) ? exportable_buffer(s, shared_bytes) : cut.allocate(s, shared_bytes);
        fill(s, mine.data(), std::byte{1}, shared_bytes);
        line.send(mine, s);
        if (i == 4)
          reader.kill();
        (void)line.wait();
      }
      throw wrong("a process that was killed answered");
    } catch (peer_disconnected const&) {}
    (void)reader.end();
  });
}

void actor::fork_that(std::function<void()> const& does) {
  timed(call::fork, [&] {
    pid_t const id = ::fork();
    if (id < 0)
      throw wrong("the system forks no more");
    if (id == 0) {
      ::alarm(patience_of_a_fork);
      int status = 0;
      try {
        does();
      } catch (...) {
        status = 1;
      }
      ::_exit(status);
    }
    int const status = child_process(id).end();
    if (status != 0)
      throw wrong("a fork ended with " + std::to_string(status));
  });
}

void actor::forks() {
  switch (below(3)) {
    case 0: return fork_that([] {});
    case 1: return fork_that([this] { end_all(); });
    default:
      return fork_that([this] {
        try {
          buffer const b(some_stream(0), 1000);
        } catch (not_supported const&) {
          return;
        }
        throw wrong("a fork was served");
      });
  }
}

void actor::forks_that_read() {
  auto const& host = in_.lasting_[0]->staging;
  fork_that([&] {
    std::byte volatile const* const bytes = host.data<std::byte>();
    for (std::size_t i = 0; i < host.size(); i += 512)
      (void)bytes[i];
  });
}

void actor::forks_with_ranks() {
  std::lock_guard const alone(in_.ranks());
  std::optional<communicator> c(communicator::create(communicator::unique_id(), 0, 1, device(0)));
  stream const s(0);
  stream_guard const here(s);
  buffer const b(s, 4000);
  fill(s, b.data(), std::byte{0}, b.size());
  c->all_reduce({b.data(), 1000});
  fork_that([&] { c.reset(); });
}

int busy_role(char**) {
  tensor const a = ones({256, 256}), b = ones({256, 256});
  tensor c = matmul(a, b);
  for (int i = 0; i < 50; ++i)
    c = matmul(c, b);
  std::exit(7);
}

void actor::exits_at_work() {
  timed(call::process, [&] {
    child_process busy("busy", {}, -1);
    if (int const status = busy.end(); status != 7)
      throw wrong("a process that exits at work ended with " + std::to_string(status));
  });
}

void actor::runtimes() {
  std::lock_guard const no_capture(in_.captures());
  std::unique_ptr<runtime> own;
  timed(call::runtime, [&] { own = in_.another_runtime(); });
  {
    runtime_guard const in(*own);
    stream const s(some_device());
    buffer const b(s, some_bytes());
    buffer const host = pinned(10'000);
    std::vector<std::byte> words(1000);
    fill(s, b.data(), std::byte{1}, b.size());
    copy(s, words.data(), b.data(), std::min(words.size(), b.size()));
    event const e = s.record_event();
  }
  timed(call::runtime_end, [&] { own.reset(); });
}

}  // namespace weir::soak
