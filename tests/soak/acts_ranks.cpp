// Ranks: communicators of this process and of several, groups, gradient buckets, and ranks that throw.
// Threads: one; each further rank has its own.
#include "tests/soak/actor.h"
#include "tests/soak/child_process.h"
#include "weir/pool.h"

namespace weir::soak {
namespace {

struct thrown {};  // by a rank, as a program's own defect

// All ranks draw alike.
void some_collectives(communicator& c, std::mt19937_64 random, stream_ref s) {
  constexpr std::int64_t n = 1000;
  buffer const one(s, n * 4), all(s, static_cast<std::size_t>(n * 4 * c.size()));
  fill(s, one.data(), std::byte{0}, one.size());
  device_span const mine{one.data(), n}, of_all{all.data(), n * c.size()};
  for (int i = 0; i < 3; ++i) {
    switch (random() % 4) {
      case 0: c.all_reduce(mine); break;
      case 1: c.all_gather(of_all, mine); break;
      case 2: c.broadcast(mine, 0); break;
      default: c.reduce_scatter(mine, of_all);
    }
  }
  s.synchronize();
}

void some_group(communicator& c, stream_ref s) {
  constexpr std::int64_t n = 100;
  buffer const a(s, n * 4), b(s, n * 4);
  fill(s, a.data(), std::byte{0}, a.size());
  fill(s, b.data(), std::byte{0}, b.size());
  collective_group g(c);
  g.all_reduce({a.data(), n});
  g.broadcast({b.data(), n}, 0);
  g.end();
  s.synchronize();
}

// With a throwing rank, that one leaves after so many gradients.
void some_steps(communicator& c, stream_ref s, bool registered, int throws_after) {
  gradient_buckets b(c, {.bucket_bytes = 4096, .registered = registered});
  for (int i = 0; i < 3; ++i)
    b.add("w" + std::to_string(i), 1000);
  b.build(s);
  for (int step = 0; step < 2; ++step) {
    for (int i = 2; i >= 0; --i) {
      if (throws_after-- == 0)
        throw thrown();
      b.mark_ready(i, s);
    }
    b.finish(s);
  }
  s.synchronize();
}

}  // namespace

void actor::as_ranks(std::function<void(communicator&)> const& body) {
  std::lock_guard const alone(in_.ranks());
  std::lock_guard const no_capture(in_.captures());
  std::vector<device> on;
  for (int d = 0; d < std::min(in_.devices(), 4); ++d)
    on.push_back(d);
  auto all = timed(call::communicator, [&] { return communicator::create_all(on); });
  std::vector<std::exception_ptr> failures(all.size());
  auto const play = [&](std::size_t i) {
    try {
      runtime_guard const in(in_.machine());
      device_guard const at(all[i].device());
      body(all[i]);
    } catch (...) {
      failures[i] = std::current_exception();
      all[i].abort();  // the others may wait for this rank
    }
  };
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < all.size(); ++i)
    others.emplace_back(play, i);
  play(0);
  for (auto& t : others)
    t.join();
  timed(call::communicator_end, [&] { all.clear(); });
  std::exception_ptr first;
  for (auto const& f : failures) {
    if (!f)
      continue;
    try {
      std::rethrow_exception(f);
    } catch (out_of_memory const&) {
      throw;  // the cause of the others
    } catch (...) {
      if (!first)
        first = f;
    }
  }
  if (first)
    std::rethrow_exception(first);
}

void actor::ranks() {
  std::uint64_t const draw = random_();
  as_ranks([&](communicator& c) {
    stream const s(c.device());
    stream_guard const here(s);
    std::mt19937_64 random(draw);
    auto const did = [&](call of, auto f) { return c.rank() == 0 ? timed(of, f) : f(); };
    did(call::collective, [&] { some_collectives(c, random, s); });
    if (draw % 2)
      did(call::group, [&] { some_group(c, s); });
    if (draw / 2 % 2)
      did(call::step, [&] { some_steps(c, s, false, -1); });
    if (draw / 4 % 4)
      return;
    auto half = c.split(c.rank() % 2);
    some_collectives(*half, random, s);
  });
}

void actor::ranks_with_pools() {
  bool const buckets = chance(2);
  as_ranks([&](communicator& c) {
    stream const s(c.device());
    stream_guard const here(s);
    if (buckets)
      return some_steps(c, s, true, -1);
    pool const mine("of a rank", {.on = c.device(), .limit = 2_MiB, .registered = true});
    c.register_pool(mine);
    pool_guard const from(mine);
    buffer const b(s, 4000);
    fill(s, b.data(), std::byte{0}, b.size());
    c.all_reduce({b.data(), 1000});
    s.synchronize();
    c.barrier();
  });
}

void actor::ranks_that_throw() {
  int const after = static_cast<int>(below(6));
  bool const registered = chance(4);
  std::atomic<int> threw{0};
  as_ranks([&](communicator& c) {
    stream const s(c.device());
    stream_guard const here(s);
    try {
      some_steps(c, s, registered, c.rank() + 1 == c.size() ? after : -1);
    } catch (thrown const&) {
      ++threw;
    } catch (out_of_memory const&) {
      throw;
    } catch (error const&) {  // the others are told
    }
  });
  if (threw != 1)
    throw wrong("the rank that throws did not come so far");
}

void actor::ranks_of_processes() {
  std::lock_guard const alone(in_.ranks());
  std::string const id = communicator::unique_id();
  bool const killed = chance(4);
  timed(call::process, [&] {
    child_process other("rank", {id, killed ? "stays" : "comes"}, -1);
    try {
      auto c = communicator::create(id, 0, 2, device(0), {.start = std::chrono::seconds(20)});
      stream const s(0);
      stream_guard const here(s);
      some_collectives(c, std::mt19937_64(1), s);
      if (killed)
        other.kill();
      c.barrier(std::chrono::seconds(20));
      if (killed)
        throw wrong("a barrier was passed without the rank that was killed");
    } catch (out_of_memory const&) {
      other.kill();
      throw;
    } catch (error const&) {
      if (!killed)
        throw;
    }
    if (int const status = other.end(); status != 0 && !killed)
      throw wrong("the other rank's process ended with " + std::to_string(status));
  });
}

int rank_role(char** words) {
  auto c = communicator::create(words[0], 1, 2, device(device_count() - 1), {.start = std::chrono::seconds(20)});
  stream const s(c.device());
  stream_guard const here(s);
  some_collectives(c, std::mt19937_64(1), s);
  if (std::string_view(words[1]) == "stays")
    ::pause();  // until it is killed
  c.barrier(std::chrono::seconds(20));
  return 0;
}

}  // namespace weir::soak
