// Random traffic between two devices and the host: pinned memory that is freed during copies, staged copies
// whose source changes as soon as the call returns, and kernels that read the other device's memory.
// Threads: one; the seeded machine chooses what its devices do.
//
// A place knows the streams of its last uses, and the next
// use waits for them. All other order is weir's task.
#pragma once
#include <algorithm>
#include <iostream>
#include <random>

#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"
#include "weir/launch.h"

namespace weir::tests {

class traffic_program {
 public:
  explicit traffic_program(std::uint64_t seed)
      : random_(seed * 0x9e3779b97f4a7c15u + 3),
        large_(below(16) == 0),
        n_(static_cast<std::size_t>(large_ ? 1'100'000 + below(300'000) : 1 + below(6000))),
        machine_(like(seed), short_of_pinned(seed)) {
    for (int i = 0; i < streams; ++i)
      on_.emplace_back(device(i / 2));
  }

  verdict run() {
    std::vector<std::string> left;
    control().at_end([&left](std::vector<std::string> const& census) { left = census; });
    try {
      stream_guard const first(on_[0]), second(on_[2]);
      if (opens_)
        open_all();
      for (int d = 0; d < 2; ++d)
        add_device_place(d), add_device_place(d);
      for (int i = 0, steps = 5 + below(large_ ? 10 : 40); i < steps && wrong_.ok(); ++i)
        step();
      for (auto& p : places_)
        look_from_host(p);
    } catch (out_of_memory const& e) {
      wrong_.note(check::answers, e.report().text());
    } catch (error const& e) {
      wrong_.note(check::answers, std::string(e.operation()) + ": " + std::string(e.operands()));
    }
    if (auto* const checker = machine_->driver().checker()) {
      for (auto const& f : checker->findings())
        checked_.note(check_of(f.what), f.text);
    }
    auto const found = control().findings();
    if (!found.empty() && wrong_.by == check::answers)
      wrong_ = {};  // expected after work lost the device
    for (auto const& f : found)
      wrong_.note(check_of(f), f);
    wrong_.note(checked_.by, checked_.what);
    places_.clear();
    if (wrong_.ok())
      validate();
    on_.clear();
    machine_.reset();
    for (auto const& one : left)
      wrong_.note(check::census, "left at the end: " + one);
    return wrong_;
  }

 private:
  using bytes_of_host = test::bytes_of_host;
  static constexpr int streams = 4;  // two per device
  struct place {
    buffer own;
    int device;  // -1: pinned
    bytes_of_host model;
    std::vector<int> users;  // streams that used it since the last one was waited for
  };

  template <class... Words>
  void say(Words const&... words) const {  // traces with WEIR_TEST_TRACE=1
    static bool const wanted = std::getenv("WEIR_TEST_TRACE") != nullptr;
    if (wanted)
      ((std::cout << ... << words) << '\n');
  }
  char const* where(place const& p) const { return p.device < 0 ? "pinned " : p.device ? "gpu:1 " : "gpu:0 "; }
  int below(int n) { return static_cast<int>(random_() % static_cast<unsigned>(n)); }
  simulated like(std::uint64_t seed) {
    auto const peers = below(4) == 0 ? simulated::links::none : simulated::links::all;
    return {.devices = 2, .memory = 32_MiB, .schedule = simulated::scheduling::seeded, .seed = seed, .peers = peers};
  }
  options short_of_pinned(std::uint64_t seed) {  // so that copies wait for slots, and pages come and go
    options o;
    o.peer_access = seed % 4 == 2;
    opens_ = seed % 8 == 2;
    o.check_races = below(2) != 0;
    // pinned blocks never move: half of the held memory may be holes that are too small
    if (below(4) == 0)
      o.pinned_limit = large_ ? 16 * n_ : 1_MiB;
    return o;
  }
  driver::sim::controls& control() { return *driver::sim::controls_of(machine_->driver()); }
  bytes_of_host some_bytes() { return test::pattern(n_, random_()); }
  place& some_place() { return places_[static_cast<std::size_t>(below(static_cast<int>(places_.size())))]; }
  place* some_place_of(bool device) {
    for (int tries = 0; tries < 8; ++tries) {
      if (auto& p = some_place(); (p.device >= 0) == device)
        return &p;
    }
    return nullptr;
  }
  int stream_of(int device) { return 2 * device + below(2); }

  void follow(int s, place& p, bool writes) {
    for (int u : p.users)
      on_[static_cast<std::size_t>(s)].wait(on_[static_cast<std::size_t>(u)]);
    if (writes)
      p.users.clear();
    p.users.push_back(s);
  }
  void await(place& p) {
    for (int u : p.users)
      on_[static_cast<std::size_t>(u)].synchronize();
    p.users.clear();
  }

  void open_all() {  // before the peer has any
    for (int d = 0; d < 2; ++d) {
      try {
        enable_peer_access(device(d), {device(1 - d)});
      } catch (not_supported const&) {}
    }
  }
  void add_device_place(int d) {
    auto b = buffer(n_, {.on = device(d)});
    say("gpu:", d, " ", b.data(), ", ", n_, " B");
    fill(b.data(), std::byte{7}, n_);
    places_.push_back({std::move(b), d, bytes_of_host(n_, std::byte{7}), {2 * d}});
  }
  void add_pinned_place() {
    if (places_.size() > 9)
      return;
    auto bytes = some_bytes();
    auto b = pinned(n_);
    say("pinned ", b.data());
    std::memcpy(b.data(), bytes.data(), n_);  // at once: the block is new
    places_.push_back({std::move(b), -1, std::move(bytes), {}});
  }
  void drop(place* p) {  // even with work in progress
    if (!p || (p->device >= 0 && places_.size() < 4))
      return;
    int const d = p->device;
    say("free ", where(*p), p->own.data());
    std::swap(*p, places_.back());
    places_.pop_back();
    if (d >= 0)
      add_device_place(d);
  }

  void move_bytes(place& to, place& from) {
    if (&to == &from || (to.device < 0 && from.device < 0))
      return;
    int const d = to.device < 0 ? from.device : from.device < 0 || below(2) ? to.device : from.device;
    int const s = stream_of(d);
    follow(s, to, true);
    follow(s, from, false);
    bool const slots = below(4) == 0 && to.device != from.device;
    if (slots && from.device < 0)
      await(from);  // it is read during the call
    say("copy ", where(to), to.own.data(), " <- ", where(from), from.own.data(), " on ", s, slots ? ", staged" : "");
    route_guard const by(slots ? copy_route::staged : copy_route::automatic);
    copy(on_[static_cast<std::size_t>(s)], to.own.data(), from.own.data(), n_, non_blocking);
    to.model = from.model;
    // the other device's current stream follows the copy too
    if (to.device >= 0 && from.device >= 0 && to.device != from.device && below(2))
      to.users = {2 * (1 - d)};
  }
  void send_pageable(place& to) {
    if (to.device < 0)
      return;
    int const s = stream_of(to.device);
    follow(s, to, true);
    say("copy ", where(to), to.own.data(), " <- pageable on ", s);
    auto source = some_bytes();
    to.model = source;
    copy(on_[static_cast<std::size_t>(s)], to.own.data(), source.data(), n_, non_blocking);
    std::fill(source.begin(), source.end(), std::byte{0xee});  // the call has read it
  }
  void fetch_pageable(place& from) {
    if (from.device < 0)
      return;
    int const s = stream_of(from.device);
    follow(s, from, false);
    say("copy pageable <- ", where(from), from.own.data(), " on ", s);
    bytes_of_host target(n_);
    copy(on_[static_cast<std::size_t>(s)], target.data(), from.own.data(), n_);
    if (target != from.model)
      wrong_.note(check::bytes, "a copy to pageable memory brought others");
  }

  bool reaches(place& p, int d) {
    if (p.device < 0 || p.device == d)
      return true;
    if (!can_access_peer(device(d), device(p.device)))
      return false;
    try {
      enable_peer_access(p.own.data(), device(d));
      return true;
    } catch (not_supported const&) {
      return false;
    }
  }
  void look_from_device(place& p) {
    int const s = below(streams);
    if (!reaches(p, s / 2))
      return;
    say(s, " reads ", where(p), p.own.data());
    follow(s, p, false);
    auto* const at = p.own.data<std::byte>();
    launch(
        on_[static_cast<std::size_t>(s)], {reads(at, n_)}, [](auto) {},
        [this, at, expected = p.model] {
          if (std::memcmp(at, expected.data(), expected.size()) != 0)
            wrong_.note(check::bytes, "a kernel reads others");
        });
  }
  void write_from_device(place& p) {
    int const s = below(streams);
    if (!reaches(p, s / 2))
      return;
    say(s, " writes ", where(p), p.own.data());
    follow(s, p, true);
    p.model = some_bytes();
    auto* const at = p.own.data<std::byte>();
    launch(
        on_[static_cast<std::size_t>(s)], {writes(at, n_)}, [](auto) {},
        [at, bytes = p.model] { std::memcpy(at, bytes.data(), bytes.size()); });
  }
  void look_from_host(place& p) {
    if (p.device >= 0)
      return fetch_pageable(p);
    await(p);
    if (std::memcmp(p.own.data(), p.model.data(), n_) != 0)
      wrong_.note(check::bytes, "the host reads others in pinned memory");
  }

  void step() {
    switch (below(12)) {
      case 0:
      case 1: return add_pinned_place();
      case 2:
      case 3: return drop(some_place_of(false));
      case 4: return drop(some_place_of(true));
      case 5:
      case 6:
      case 7: return move_bytes(some_place(), some_place());
      case 8: return send_pageable(some_place());
      case 9: return below(2) ? fetch_pageable(some_place()) : look_from_host(some_place());
      case 10: return look_from_device(some_place());
      default: return write_from_device(some_place());
    }
  }

  void validate() {
    for (auto const& w : machine_->pinned().validate())
      wrong_.note(check::invariants, w);
    for (auto const& w : machine_->clocks().validate())
      wrong_.note(check::invariants, w);
    for (int d = 0; d < 2; ++d) {
      for (auto const& w : machine_->memory(d).validate())
        wrong_.note(check::invariants, w);
    }
  }

  std::mt19937_64 random_;
  bool opens_ = false;  // all memory, to the peer
  bool const large_;
  std::size_t const n_;
  verdict wrong_, checked_;
  struct late_machine : std::optional<test::machine> {
    late_machine(simulated like, options o) { emplace(like, o); }
  } machine_;
  std::vector<stream> on_;
  std::vector<place> places_;
};

}  // namespace weir::tests
