// Random rings, both ends in one process: sizes that vary, one to three readers that hold items, release them out of
// order and leave; slots that are given back. Each reader sees the bytes of each item, in order, and no slot is filled
// while a reader's work may read it.
// Threads: one; the seeded machine chooses what its devices do. So a call is made only when it need not wait for work
// that no other thread runs.
#pragma once
#include <algorithm>
#include <deque>
#include <random>

#include "runtime/base/os_socket.h"
#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"
#include "weir/launch.h"
#include "weir/ring.h"

namespace weir::tests {

class ring_program {
 public:
  explicit ring_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 11),
        machine_({.devices = 2, .memory = 32_MiB, .schedule = simulated::scheduling::seeded, .seed = seed}),
        with_({.bytes = 1 + below(4000),
               .slots = 1 + static_cast<int>(below(4)),
               .on = 0,
               .timeout = std::chrono::milliseconds(1),
               .drop_readers = below(2) == 0}) {}

  verdict run() {
    try {
      make();
      for (int i = 0; i < 60 && wrong_.ok() && left() > 0; ++i)
        step();
      end();
    } catch (error const& e) {
      wrong_.note(check::answers, std::string(e.operation()) + ": " + std::string(e.operands()));
    }
    for (auto const& found : machine_.control().findings())
      wrong_.note(check_of(found), found);
    return wrong_;
  }

 private:
  struct seen {  // what a kernel of the reader saw
    buffer into;
    std::uint64_t number = 0;
    stamp done{};
  };
  struct reader {
    std::optional<ring_reader> end{};
    std::uint64_t next = 0;            // the item that it takes next
    std::deque<ring_item> held{};      // taken
    std::deque<std::uint64_t> kept{};  // their numbers
    stream lines[2];
  };

  std::size_t below(std::size_t n) { return random_() % n; }
  std::size_t size_of(std::uint64_t item) const { return (item * 2654435761u) % (with_.bytes + 1); }
  static std::byte byte_of(std::uint64_t item) { return static_cast<std::byte>(item * 37 + 1); }
  std::ptrdiff_t left() const {
    return std::ranges::count_if(readers_, [](auto const& r) { return r.end.has_value(); });
  }
  void expect(bool right, char const* what) {
    if (!right)
      wrong_.note(check::answers, what);
  }

  void make() {
    std::vector<int> own, theirs;
    for (auto n = 1 + below(3); n > 0; --n) {
      auto const [a, b] = os::make_sockets();
      own.push_back(a);
      theirs.push_back(b);
    }
    writer_.emplace(own, with_);
    for (int const socket : theirs) {
      device const on(static_cast<int>(below(2)));
      readers_.push_back({.lines = {stream(on), stream(on)}});
      readers_.back().end.emplace(socket, on, std::chrono::milliseconds(1));
    }
  }

  // Whether a reader still has the item that lies in the next slot.
  bool slot_is_in_use() const {
    auto const slots = static_cast<std::uint64_t>(with_.slots);
    if (published_ < slots)
      return false;
    std::uint64_t const old = published_ - slots;
    return std::ranges::any_of(
        readers_, [&](reader const& r) { return r.end && (r.next <= old || std::ranges::count(r.kept, old) > 0); });
  }

  void write() {
    stream const& s = lines_[below(2)];
    bool const is_in_use = slot_is_in_use();
    // A ring that drops late readers is called only when none is late.
    if (with_.drop_readers && is_in_use)
      return;
    // Only a wait lets a seeded device run: without it the releases are under way, and the call may time out.
    if (with_.drop_readers || below(2))
      await_releases();
    auto slot = next(s);
    expect(!slot || !is_in_use, "a slot came that a reader still has");
    if (!slot)
      return;
    stream_guard const on(s);
    std::size_t const bytes = size_of(published_);
    fill(slot->data(), byte_of(published_), bytes);
    // A slot that is given back under its work.
    if (below(6) == 0)
      return;
    slot->publish(bytes);
    ++published_;
  }

  void await_releases() const {
    for (reader const& r : readers_)
      for (stream const& line : r.lines)
        line.synchronize();
  }

  std::optional<ring_slot> next(stream const& s) {
    for (int tries = 0; tries < 5; ++tries) {
      try {
        return writer_->next(s);
      } catch (timed_out const&) {
        expect(!with_.drop_readers, "a late reader was to be dropped");
        return {};
      } catch (peer_disconnected const&) {
        expect(!with_.drop_readers || left() == 0, "a reader was to be dropped in silence");
        if (left() == 0)
          return {};
      }
    }
    expect(false, "more readers have ended than there are");
    return {};
  }

  void read(reader& r) {
    if (r.next == published_ || r.held.size() == static_cast<std::size_t>(with_.slots))
      return;
    // It cannot come while the item in its slot is held.
    if (r.next >= static_cast<std::uint64_t>(with_.slots) &&
        std::ranges::count(r.kept, r.next - static_cast<std::uint64_t>(with_.slots)) > 0)
      return;
    stream const& s = r.lines[below(2)];
    auto item = take(r, s);
    if (!item)
      return;
    expect(item->number() == r.next && item->size() == size_of(r.next), "another item than the next one");
    // A kernel of the reader's device, which reaches the bytes in place.
    seen one{pinned(std::max<std::size_t>(1, item->size())), r.next, {}};
    launch(
        s, {reads(*item), writes(one.into)}, [](CUstream_st*) {},
        [from = item->data(), to = one.into.data<std::byte>(), n = item->size()] { std::copy_n(from, n, to); });
    one.done = s.stamp();
    seen_.push_back(std::move(one));
    r.kept.push_back(r.next++);
    r.held.push_back(std::move(*item));
    if (below(3))
      release(r);
  }

  // Without a wait for the writer's work the item may be under way.
  std::optional<ring_item> take(reader& r, stream const& s) {
    bool const is_here = below(2) == 0;
    for (stream const& line : lines_)
      if (is_here)
        line.synchronize();
    try {
      auto item = r.end->take(s);
      expect(item.has_value(), "an end before the last item");
      return item;
    } catch (timed_out const&) {
      expect(!is_here, "an item that was told of did not come");
      return {};
    }
  }

  void release(reader& r) {
    if (r.held.empty())
      return;
    auto const which = static_cast<std::ptrdiff_t>(below(r.held.size()));
    if (below(2))
      r.held[static_cast<std::size_t>(which)].release();
    r.held.erase(r.held.begin() + which);
    r.kept.erase(r.kept.begin() + which);
  }

  void leave(reader& r) {
    r.held.clear();
    r.kept.clear();
    r.end.reset();
  }

  void compare() {
    auto const one = std::move(seen_.front());
    seen_.pop_front();
    one.done.synchronize();
    auto const bytes = one.into.host<std::byte>().first(size_of(one.number));
    if (std::ranges::any_of(bytes, [&](std::byte b) { return b != byte_of(one.number); }))
      wrong_.note(check::bytes, "item " + std::to_string(one.number) + " holds others than were published");
  }

  void step() {
    reader& r = readers_[below(readers_.size())];
    switch (below(9)) {
      case 0:
      case 1:
      case 2: write(); break;
      case 3:
      case 4:
      case 5:
        if (r.end)
          read(r);
        break;
      case 6: release(r); break;
      case 7:
        if (!seen_.empty())
          compare();
        break;
      default:
        if (r.end && below(4) == 0)
          leave(r);
    }
  }

  // The rest is read. Then the writer closes the ring, or ends without that.
  void end() {
    for (reader& r : readers_) {
      while (r.end && wrong_.ok() && (r.next < published_ || !r.held.empty()))
        r.held.empty() ? read(r) : release(r);
    }
    while (!seen_.empty())
      compare();
    await_releases();
    bool const closes = below(2) == 0;
    for (int tries = 0; closes && left() > 0 && tries < 5; ++tries) {
      try {
        writer_->close();
        break;
      } catch (peer_disconnected const&) {
        expect(!with_.drop_readers, "a reader was to be dropped in silence");
      }
    }
    writer_.reset();
    for (reader& r : readers_) {
      if (!r.end || !wrong_.ok())
        continue;
      try {
        expect(!r.end->take(r.lines[0]) && closes, "an item or an end too many");
      } catch (peer_disconnected const&) {
        expect(!closes, "the writer had closed the ring");
      }
    }
  }

  std::mt19937_64 random_;
  test::machine machine_;
  ring_options const with_;
  std::optional<ring_writer> writer_;
  std::vector<reader> readers_;
  stream lines_[2] = {stream(device(0)), stream(device(0))};
  std::deque<seen> seen_;
  std::uint64_t published_ = 0;
  verdict wrong_;
};

}  // namespace weir::tests
