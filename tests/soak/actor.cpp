// The loop of an actor, and what all acts use.
// Threads: one.
#include "tests/soak/actor.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <memory>

#include "runtime/base/os_socket.h"

namespace weir::soak {
namespace {

bool several_devices(life const& in) {
  return in.devices() > 1;
}
bool simulated_only(life const& in) {
  return in.simulated();
}

bool is_one_of(std::string_view name, std::string_view list) {
  for (std::size_t at = 0; at <= list.size();) {
    std::size_t const end = std::min(list.find(',', at), list.size());
    if (list.substr(at, end - at) == name)
      return true;
    at = end + 1;
  }
  return false;
}

constexpr std::size_t sizes[] = {16, 200, 1000, 5000, 24'000, 40'000, 80'000, 150'000};

}  // namespace

std::string_view name_of(call c) noexcept {
  static constexpr std::string_view names[] = {
#define WEIR_CALL(name) #name,
      WEIR_CALLS(WEIR_CALL)
#undef WEIR_CALL
  };
  return names[static_cast<std::size_t>(c)];
}

std::span<actor::act const> actor::acts() noexcept {
  static constexpr act all[] = {
      {"blocks", 400, &actor::blocks},
      {"marks_of_own", 60, &actor::marks_of_own},
      {"marks_of_borrowed", 60, &actor::marks_of_borrowed},
      {"pinned_blocks", 60, &actor::pinned_blocks},
      {"pageable_copies", 40, &actor::pageable_copies},
      {"registered_ranges", 20, &actor::registered_ranges},
      {"refusals", 20, &actor::refusals},
      {"reports", 20, &actor::reports},
      {"caches", 10, &actor::caches},
      {"own_streams", 150, &actor::own_streams},
      {"borrowed_streams", 100, &actor::borrowed_streams},
      {"registered_streams", 80, &actor::registered_streams},
      {"events", 100, &actor::events},
      {"threads", 20, &actor::threads},
      {"unwinding", 20, &actor::unwinding},
      {"graphs", 60, &actor::graphs},
      {"graphs_with_memory", 40, &actor::graphs_with_memory},
      {"graphs_of_one_memory", 20, &actor::graphs_of_one_memory},
      {"graph_updates", 10, &actor::graph_updates},
      {"pools", 60, &actor::pools},
      {"sleep", 5, &actor::sleep},
      {"frees_asleep", 5, &actor::frees_asleep},
      {"spills", 2, &actor::spills},
      {"registered_pools", 10, &actor::registered_pools},
      {"ranks", 5, &actor::ranks, several_devices},
      {"ranks_with_pools", 2, &actor::ranks_with_pools, several_devices},
      {"ranks_that_throw", 2, &actor::ranks_that_throw, several_devices},
      {"ranks_of_processes", 1, &actor::ranks_of_processes, several_devices},
      {"shares", 20, &actor::shares},
      {"shares_of_pool", 10, &actor::shares_of_pool},
      {"other_processes", 1, &actor::other_processes},
      {"killed_processes", 1, &actor::killed_processes},
      {"forks", 2, &actor::forks},
      {"forks_that_read", 1, &actor::forks_that_read},
      {"forks_with_ranks", 1, &actor::forks_with_ranks, simulated_only},
      {"exits_at_work", 1, &actor::exits_at_work},
      {"runtimes", 2, &actor::runtimes},
  };
  return all;
}

actor::actor(life& in, int number)
    : in_(in),
      number_(number),
      random_(in.plan().seed * 1000 + static_cast<std::uint64_t>(number)),
      blocks_(16),
      streams_(static_cast<std::size_t>(2 * in.devices())),
      events_(6),
      pinned_(3),
      exported_(2),
      played_(acts().size()),
      refused_(acts().size()) {}

void actor::run() {
  runtime_guard const in(in_.machine());
  std::vector<std::size_t> drawn;  // an act as often as its weight
  auto const all = acts();
  for (std::size_t i = 0; i < all.size(); ++i) {
    bool const chosen = in_.plan().only.empty() || is_one_of(all[i].name, in_.plan().only);
    if (!chosen || (all[i].possible && !all[i].possible(in_)))
      continue;
    drawn.insert(drawn.end(), static_cast<std::size_t>(all[i].weight), i);
  }
  std::string_view const* last = nullptr;
  try {
    if (drawn.empty())
      throw wrong("no act of that name is possible here");
    for (;;) {
      if (in_.pause_.load() && !in_.rests(*this))
        return;
      std::size_t const i = drawn[below(drawn.size())];
      last = &all[i].name;
      since_ns_.store(std::chrono::steady_clock::now().time_since_epoch().count());
      doing_.store(last);
      try {
        (this->*all[i].play)();
      } catch (out_of_memory const&) {
        ++refused_[i];  // other actors have the memory
      }
      doing_.store(nullptr);
      ++played_[i];
      if (++all_played_ % 32 != 0)
        continue;
      // As a server does, which keeps few requests in flight. What it needs at once has a bound then.
      for (auto const& s : streams_) {
        if (s)
          s->synchronize();
      }
      plant();
    }
  } catch (std::exception const& e) {
    in_.failed("actor " + std::to_string(number_) + " in " + std::string(last ? *last : "none") + ": " + e.what());
    try {
      end_all();
    } catch (error const&) {  // the first failure is the one that counts
    }
  }
  doing_.store(nullptr);
  std::lock_guard const hold(in_.lock_);
  ++in_.gone_;
  in_.changed_.notify_all();
}

void actor::took(call c, std::chrono::nanoseconds ns) noexcept {
  int const quarter = in_.quarter();
  if (quarter == 0)
    first_[static_cast<std::size_t>(c)].add(ns);
  else if (quarter == 3)
    last_[static_cast<std::size_t>(c)].add(ns);
}

std::size_t actor::some_bytes() {
  return sizes[below(std::size(sizes))];
}

stream& actor::some_stream(int device) {
  auto& s = streams_[below(2) * static_cast<std::size_t>(in_.devices()) + static_cast<std::size_t>(device)];
  if (!s)
    s.emplace(weir::device(device));
  return *s;
}

void actor::put(block b, std::size_t i) {
  std::swap(blocks_[i], b);
  if (b.at)
    timed(call::free, [&] { deallocate(b.at); });
}

void actor::work(stream_ref s, void* at, std::size_t bytes) {
  timed(call::launch, [&] { stamp(s, at, bytes & ~std::size_t{3}, next_id_, delay()); });
}

void actor::check_bytes(stream_ref s, void const* at, std::size_t bytes, std::uint64_t id, char const* where) {
  std::vector<std::uint32_t> words(bytes / 4);
  copy(s, words.data(), at, words.size() * 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != stamped(id, i))
      throw wrong(std::string(where) + ": word " + std::to_string(i) + " is wrong");
  }
}

void actor::end_all() {
  for (std::size_t i = 0; i < blocks_.size(); ++i)
    put({}, i);
  for (auto& one : exported_)
    one.reset();
  for (auto& one : pinned_)
    one.reset();
  for (auto& one : events_)
    one.reset();
  for (auto& one : streams_)
    one.reset();
}

// Everything here stays until the process ends.
void actor::plant() {
  switch (in_.plan().planted) {
    case leak::none: return;
    case leak::addresses: (void)in_.driver().reserve(64_MiB, 2_MiB); return;
    case leak::used_addresses: {
      auto* const kept = new pool("kept");
      try {
        deallocate(kept->allocate(some_stream(0), 1000));
      } catch (out_of_memory const&) {  // all of them have leaked
      }
      return;
    }
    case leak::device_bytes: try { (void)allocate(some_stream(0), 16_KiB);
      } catch (out_of_memory const&) {  // all of it has leaked
      }
      return;
    case leak::descriptors: {
      auto const [one, other] = os::make_sockets();
      new share_channel(one);
      ::close(other);
      return;
    }
    case leak::threads: std::thread([] { std::promise<void>().get_future().wait(); }).detach(); return;
    case leak::host_bytes:
      for (int i = 0; i < 8; ++i)
        new event();
      return;
    case leak::time: in_.driver().grow_slower(); return;
  }
}

}  // namespace weir::soak
