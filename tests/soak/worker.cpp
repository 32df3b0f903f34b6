// A thread of the soak. It stamps every block with its own number before its use. Its last work on a block is
// a slow verification, enqueued just before the free: memory that is reused too early fails it.
// Threads: one.
#include "tests/soak/worker.h"

#include <algorithm>

#include "streams/stream/context.h"

namespace weir::soak {
namespace {

constexpr std::size_t sizes_of_sim[] = {512, 4 << 10, 24 << 10, 48 << 10, 64 << 10, 128 << 10, 256 << 10};
constexpr std::size_t sizes_of_gpu[] = {512, 16 << 10, 48 << 10, 256 << 10, 1 << 20, 2 << 20, 6 << 20};

void stamp_on_host(std::uint32_t* words, std::size_t bytes, std::uint64_t id) {
  for (std::size_t i = 0; i < bytes / 4; ++i)
    words[i] = stamped(id, i);
}

}  // namespace

worker::worker(soak& in, int number)
    : in_(in),
      number_(number),
      random_(in.plan_.seed * 1000 + static_cast<std::uint64_t>(number)),
      bytes_(static_cast<std::size_t>(in.devices_)),
      share_(in.plan_.limit / 16 * 15 / static_cast<std::size_t>(in.plan_.threads)),
      scratch_((std::size_t{6} << 20) / 4) {}

void worker::run() {
  runtime_guard const in(*in_.runtime_);
  try {
    while (!in_.stop_.load())
      step();
    while (!mine_.empty())
      free_verified(pick());
  } catch (device_lost const& e) {
    in_.failed(e.what(), true);
  } catch (std::exception const& e) {
    in_.failed(e.what(), false);
  }
}

void worker::step() {
  in_.operations_.fetch_add(1, std::memory_order_relaxed);
  if (++steps_ % 128 == 0)
    fetch();
  if (steps_ % 16 == 0)
    take_over();
  std::size_t const dice = below(1000);
  // Allocates more than it frees, until its share of a device is full.
  if (mine_.empty() || dice < 420)
    return make();
  if (dice < 470)
    return check();
  if (dice < 590)
    return share();
  if (dice < 690)
    return drop();
  if (dice < 760)
    return hand_over();
  if (dice < 810)
    return to_peer();
  if (dice < 840)
    return read_from_peer();
  if (dice < 880)
    return staged_in();
  if (dice < 910)
    return staged_out();
  if (dice < 955)
    return pinned_in();
  if (dice < 991)
    return pinned_out();
  if (dice < 994)
    return crowd();
  empty();
}

std::size_t worker::some_bytes() {
  auto const& sizes = in_.simulated_ ? sizes_of_sim : sizes_of_gpu;
  return sizes[below(std::size(sizes))];
}

std::optional<worker::held> worker::take(int device, int stream, std::size_t bytes) {
  lane& home = lane_of(device, stream);
  noted notes;
  void* at = nullptr;
  try {
    crooked::asking const in(notes);
    at = allocate(*home.on, bytes);
  } catch (out_of_memory const&) {
    in_.count(path::refused);
  }
  if (!at) {
    for (int n = 0; n < 4 && !mine_.empty(); ++n)
      free_verified(pick());
    return std::nullopt;
  }
  held h{static_cast<std::byte*>(at), bytes, 0, number_, device, stream, {}};
  in_.handed_out(h, home.key, notes);
  return h;
}

void worker::give(held h) {
  if (!h.others.empty())
    in_.count(path::marked);
  if (h.worker != number_)
    in_.count(path::other_thread);
  in_.gave_back(h);
  noted notes;
  crooked::asking const in(notes);
  deallocate(h.at);
}

void worker::keep(held h) {
  bytes_[static_cast<std::size_t>(h.device)] += h.bytes;
  mine_.push_back(std::move(h));
}

worker::held worker::pick() {
  std::size_t const i = below(mine_.size());
  held h = std::move(mine_[i]);
  mine_[i] = std::move(mine_.back());
  mine_.pop_back();
  bytes_[static_cast<std::size_t>(h.device)] -= h.bytes;
  return h;
}

void worker::verify_on(lane& on, held const& h, unsigned delay) {
  ++on.launched;
  verify(*on.on, h.at, h.bytes, h.id, delay, on.found);
}

// At the free, the last use is in progress or has not begun.
void worker::free_verified(held h) {
  if (h.worker == number_)
    verify_on(home_of(h), h, delay());
  give(std::move(h));
}

void worker::make() {
  int const device = static_cast<int>(below(bytes_.size()));
  if (!has_room(device))
    return drop();
  // Sometimes so large that other blocks must go, or that no memory can serve it.
  bool const large = below(200) == 0;
  std::size_t const bytes = large ? in_.plan_.limit / 64 * (2 + below(60)) : some_bytes();
  auto h = take(device, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))), bytes);
  if (!h)
    return;
  h->id = in_.next_id_.fetch_add(1);
  stamp(*home_of(*h).on, h->at, h->bytes, h->id, delay() / 8);
  if (large)
    return free_verified(std::move(*h));
  keep(std::move(*h));
}

void worker::check() {
  held h = pick();
  verify_on(home_of(h), h, delay());
  keep(std::move(h));
}

// Reads on another stream of the device, ordered after the home. The launch marks the block.
void worker::share() {
  held h = pick();
  lane& reader = lane_of(h.device, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))));
  if (&reader != &home_of(h)) {
    reader.on->wait(home_of(h).on->stamp());
    record_stream(h.at, *reader.on);
    h.others.push_back(&reader);
  }
  verify_on(reader, h, delay());
  if (below(3))
    return give(std::move(h));
  keep(std::move(h));
}

void worker::drop() {
  if (!mine_.empty())
    free_verified(pick());
}

void worker::hand_over() {
  held h = pick();
  verify_on(home_of(h), h, delay());
  std::lock_guard const hold(in_.lock_);
  in_.inbox_[below(in_.inbox_.size())].push_back(std::move(h));
}

// Reads blocks that other threads handed over on a stream of this thread, then frees them.
void worker::take_over() {
  std::vector<held> all;
  {
    std::lock_guard const hold(in_.lock_);
    all.swap(in_.inbox_[static_cast<std::size_t>(number_)]);
  }
  for (held& h : all) {
    lane& reader = lane_of(h.device, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))));
    if (below(2)) {
      reader.on->wait(home_of(h).on->stamp());
      if (&reader != &home_of(h))
        h.others.push_back(&reader);
      verify_on(reader, h, delay());
    }
    give(std::move(h));
  }
}

void worker::to_peer() {
  if (in_.devices_ < 2)
    return check();
  held from = pick();
  int const other =
      (from.device + 1 + static_cast<int>(below(static_cast<std::size_t>(in_.devices_ - 1)))) % in_.devices_;
  auto to = take(other, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))), from.bytes);
  if (!to)
    return keep(std::move(from));
  lane &source = home_of(from), &target = home_of(*to);
  bool const by_source = below(2) != 0;
  {
    stream_guard const there(*target.on), here_(*source.on);
    copy(by_source ? *source.on : *target.on, to->at, from.at, from.bytes);
  }
  (by_source ? *to : from).others.push_back(by_source ? &source : &target);
  in_.count(from.device < other ? path::peer_up : path::peer_down);
  to->id = from.id;
  verify_on(target, *to, delay());
  if (below(2))
    give(std::move(from));  // its bytes may still be waiting to be copied
  else
    keep(std::move(from));
  if (below(2) || !has_room(other))
    give(std::move(*to));
  else
    keep(std::move(*to));
}

void worker::read_from_peer() {
  if (in_.devices_ < 2)
    return check();
  held h = pick();
  int const other = (h.device + 1 + static_cast<int>(below(static_cast<std::size_t>(in_.devices_ - 1)))) % in_.devices_;
  if (!can_access_peer(other, h.device))
    return keep(std::move(h));
  {
    noted notes;
    crooked::asking const in(notes);
    enable_peer_access(h.at, other);
  }
  lane& reader = lane_of(other, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))));
  reader.on->wait(home_of(h).on->stamp());
  h.others.push_back(&reader);
  verify_on(reader, h, delay());
  in_.count(path::peer_read);
  if (below(2))
    give(std::move(h));
  else
    keep(std::move(h));
}

void worker::staged_in() {
  int const device = static_cast<int>(below(bytes_.size()));
  auto h = take(device, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))), some_bytes());
  if (!h)
    return;
  h->id = in_.next_id_.fetch_add(1);
  stamp_on_host(scratch_.data(), h->bytes, h->id);
  copy(*home_of(*h).on, h->at, scratch_.data(), h->bytes, non_blocking);
  std::fill_n(scratch_.data(), h->bytes / 4, 0xdeadbeef);  // the copy has read it when it returns
  in_.count(path::staged_in);
  keep(std::move(*h));
}

void worker::staged_out() {
  held h = pick();
  copy(*home_of(h).on, scratch_.data(), h.at, h.bytes);
  compare(scratch_.data(), h.bytes, h.id, "pageable memory after a copy from the device");
  in_.count(path::staged_out);
  keep(std::move(h));
}

buffer worker::pin(std::size_t bytes) {
  noted notes;
  buffer b = [&] {
    crooked::asking const in(notes);
    return pinned(bytes);
  }();
  auto* const at = b.data<std::byte>();
  std::lock_guard const hold(in_.lock_);
  auto first = in_.pinned_free_.upper_bound(at);
  if (first != in_.pinned_free_.begin() && at < std::prev(first)->first + std::prev(first)->second)
    --first;
  auto last = first;
  while (last != in_.pinned_free_.end() && last->first < at + bytes)
    ++last;
  if (first != last)
    in_.count(path::pinned_reuse);
  in_.pinned_free_.erase(first, last);
  return b;
}

void worker::unpin(buffer& b) {
  {
    std::lock_guard const hold(in_.lock_);
    in_.pinned_free_[b.data<std::byte>()] = b.size();
  }
  noted notes;
  crooked::asking const in(notes);
  b.reset();
}

// Frees the source although the engine may not have begun to read it.
void worker::pinned_in() {
  int const device = static_cast<int>(below(bytes_.size()));
  auto h = take(device, static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))), some_bytes());
  if (!h)
    return;
  buffer from = pin(h->bytes);
  h->id = in_.next_id_.fetch_add(1);
  stamp_on_host(from.data<std::uint32_t>(), h->bytes, h->id);
  copy(*home_of(*h).on, h->at, from.data(), h->bytes, non_blocking);
  unpin(from);
  in_.count(path::pinned_in);
  keep(std::move(*h));
}

void worker::pinned_out() {
  held h = pick();
  lane& home = home_of(h);
  buffer to = pin(h.bytes);
  copy(*home.on, to.data(), h.at, h.bytes, non_blocking);
  in_.count(path::pinned_out);
  if (below(4) == 0) {
    home.on->stamp().synchronize();
    compare(to.data<std::uint32_t>(), h.bytes, h.id, "pinned memory after a copy from the device");
  } else if (auto back = take(h.device, h.stream, h.bytes)) {
    copy(*home.on, back->at, to.data(), h.bytes, non_blocking);
    back->id = h.id;
    free_verified(std::move(*back));
  }
  unpin(to);
  keep(std::move(h));
}

// A stream frees most of a device's memory in use. Another, not ordered after it, wants as much at once.
void worker::crowd() {
  int const device = static_cast<int>(below(bytes_.size()));
  std::size_t const bytes = in_.plan_.limit / 64 * (1 + below(4)),
                    streams = static_cast<std::size_t>(in_.plan_.streams), from = below(streams);
  auto const in_use = [&](std::size_t stream, unsigned delay) {
    auto h = take(device, static_cast<int>(stream % streams), bytes);
    if (!h)
      return h;
    h->id = in_.next_id_.fetch_add(1);
    stamp(*home_of(*h).on, h->at, h->bytes, h->id, 0);
    verify_on(home_of(*h), *h, delay);
    return h;
  };
  std::vector<held> all;
  while (all.size() < 8) {
    auto h = in_use(from, all.empty() ? long_delay() : 0);  // later work waits too
    if (!h)
      break;
    all.push_back(std::move(*h));
  }
  std::size_t const n = all.size();
  for (held& h : all)
    give(std::move(h));
  for (std::size_t i = 0; i < n; ++i) {
    auto h = in_use(from + 1, 0);
    if (!h)
      return;
    give(std::move(*h));
  }
}

// Frees this thread's blocks on a device, and the device's cached memory.
void worker::empty() {
  int const device_ = static_cast<int>(below(bytes_.size()));
  std::vector<held> others;
  while (!mine_.empty()) {
    held h = pick();
    if (h.device == device_)
      free_verified(std::move(h));
    else
      others.push_back(std::move(h));
  }
  for (held& h : others)
    keep(std::move(h));
  noted notes;
  crooked::asking const in(notes);
  (void)empty_cache(device(device_));
}

void worker::compare(std::uint32_t const* words, std::size_t bytes, std::uint64_t id, char const* where) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < bytes / 4; ++i)
    wrong += words[i] != stamped(id, i);
  if (wrong)
    in_.caught("block " + std::to_string(id) + ": " + std::to_string(wrong) + " of " + std::to_string(bytes / 4) +
                   " words wrong in " + where,
               wrong);
}

void worker::fetch() {
  lane& l = lane_of(static_cast<int>(below(bytes_.size())),
                    static_cast<int>(below(static_cast<std::size_t>(in_.plan_.streams))));
  tally now{};
  copy(*l.on, &now, l.found, sizeof now);
  auto& seen = seen_[&l];
  if (now.mismatches == seen)
    return;
  seen = now.mismatches;
  in_.caught("block " + std::to_string(now.expected) + " on gpu:" + std::to_string(l.key.first) + ": word " +
                 std::to_string(now.word) + " holds " + std::to_string(now.found),
             0);
}

}  // namespace weir::soak
