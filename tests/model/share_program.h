// Random programs that send and open buffers, both sides in one process. Until its release, an opened buffer
// keeps the bytes that it had when sent, whatever other buffers do.
// Threads: one; the seeded machine chooses what its devices do.
#pragma once
#include <algorithm>
#include <deque>
#include <random>

#include "peer/share/exports.h"
#include "runtime/base/os_socket.h"
#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"

namespace weir::tests {

class share_program {
 public:
  explicit share_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 5),
        pooled_((seed * 0x9e3779b97f4a7c15u >> 62) == 3),
        machine_({.devices = 1,
                  .memory = pooled_ ? 64_MiB : 16_MiB,
                  .schedule = simulated::scheduling::seeded,
                  .seed = seed}),
        ends_(os::make_sockets()),
        owner_(ends_.first),
        importer_(ends_.second) {}

  verdict run() {
    try {
      for (int i = 0; i < 40 && wrong_.ok(); ++i)
        step();
      while (!reading_.empty())
        compare();
    } catch (error const& e) {
      wrong_.note(check::answers, std::string(e.operation()) + ": " + std::string(e.operands()));
    }
    for (auto const& found : machine_.control().findings())
      wrong_.note(check_of(found), found);
    return wrong_;
  }

 private:
  static constexpr std::size_t bytes = 5000, pool_bytes = 2_MiB;  // a pool's handle, which may hold two buffers
  struct lent {
    exportable_buffer memory;
    std::byte holds{};
    stamp written{};
  };
  struct opened {
    imported_buffer memory;
    std::byte holds{};
  };
  struct reading {  // a copy to the host
    buffer into;
    std::byte holds{};
    stamp done;
  };
  std::size_t below(std::size_t n) { return random_() % n; }
  stream const& any() { return streams_[below(3)]; }

  void write(lent& b, stream const& s) {
    b.holds = static_cast<std::byte>(++written_);
    stream_guard const on(s);
    b.memory.record_stream(s);
    s.wait(b.written);
    b.written = fill(b.memory.data(), b.holds, bytes);
  }

  void send(lent& b, stream const& s) {
    owner_.send(b.memory, s);
    on_its_way_.push_back(b.holds);
  }

  void compare() {
    auto const r = std::move(reading_.front());
    reading_.pop_front();
    if (auto const s = machine_.clocks().synchronize(streams::inner_stamp(r.done)); !s.ok())
      wrong_.note(check::answers, std::string(driver::name_of(s.what)));
    auto const seen = r.into.host<std::byte>();
    if (std::any_of(seen.begin(), seen.end(), [&](std::byte b) { return b != r.holds; }))
      wrong_.note(check::bytes, "an opened buffer holds others than when it was sent");
  }

  void make() {  // written, and sent once or twice
    stream_guard const home(any());
    lent b{pooled_ ? pool_.allocate(below(4) ? pool_bytes : pool_bytes / 2) : exportable_buffer(bytes)};
    auto const& s = any();
    write(b, s);
    for (auto times = 1 + below(2); times > 0 && on_its_way_.size() < 8; --times)
      send(b, s);
    if (below(3))
      lent_.push_back(std::move(b));
  }

  void step() {
    switch (below(7)) {
      case 0:
      case 1: make(); break;
      case 2:  // without importers: written again and sent
        if (!lent_.empty() && on_its_way_.size() < 8) {
          auto& b = lent_[below(lent_.size())];
          if (b.memory.importers() > 0)
            break;
          auto const& s = any();
          write(b, s);
          send(b, s);
        }
        break;
      case 3:  // freed with work in progress; a new one at once
        if (!lent_.empty()) {
          auto& b = lent_[below(lent_.size())];
          if (b.memory.importers() == 0)
            write(b, streams_[0]);
          std::swap(b, lent_.back());
          lent_.pop_back();
          make();
        }
        break;
      case 4:
      case 5:
        if (!on_its_way_.empty()) {
          opened_.push_back({importer_.receive(), on_its_way_.front()});
          on_its_way_.pop_front();
        }
        break;
      default:  // read, and released during the copy
        if (!opened_.empty()) {
          auto& o = opened_[below(opened_.size())];
          auto const& s = any();
          reading r{pinned(bytes), o.holds, {}};
          r.done = copy(s, r.into.data(), o.memory.data(), bytes, non_blocking);
          reading_.push_back(std::move(r));
          o.memory.release(s);
          std::swap(o, opened_.back());
          opened_.pop_back();
          if (reading_.size() > 3)
            compare();
        }
    }
  }

  std::mt19937_64 random_;
  bool const pooled_;  // in one program of four all buffers come from a pool
  test::machine machine_;
  std::pair<int, int> ends_;
  share_channel owner_, importer_;
  share_pool pool_{{.handle_bytes = pool_bytes}};
  stream streams_[3] = {stream(device(0)), stream(device(0)), stream(device(0))};
  std::vector<lent> lent_;
  std::deque<std::byte> on_its_way_;
  std::vector<opened> opened_;
  std::deque<reading> reading_;
  unsigned written_ = 0;
  verdict wrong_;
};

}  // namespace weir::tests
