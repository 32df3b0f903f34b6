// Random copies between all places against a model: one byte array per place, changed in program order.
// Threads: one; the seeded machine chooses what its devices do.
#pragma once
#include <random>

#include "tests/model/verdict.h"
#include "tests/peer/machine_fixture.h"

namespace weir::tests {

// Each copy follows the one before, so program order is the model. The seed decides the timing.
inline verdict run_copies(std::uint64_t seed) {
  using test::bytes_of_host;
  verdict wrong;
  std::mt19937_64 random(seed);
  test::machine m({.devices = 2,
                   .memory = 64_MiB,
                   .schedule = simulated::scheduling::seeded,
                   .seed = seed,
                   .peers = seed % 2 ? simulated::links::all : simulated::links::none});
  std::size_t const n = 1 + random() % 9000;
  stream on[] = {stream(device(0)), stream(device(1))};
  stream_guard first(on[0]), second(on[1]);
  struct place {
    std::byte* at;
    int device;  // -1: the host
    bytes_of_host model;
    bool pageable = false, arrives = false;  // arrives: pageable, and a copy to it may be under way
  };
  std::vector<buffer> owned;
  std::vector<place> places;
  for (int d = 0; d < 2; ++d) {
    for (int i = 0; i < 2; ++i) {
      owned.emplace_back(n, buffer_options{.on = device(d)});
      places.push_back({owned.back().data<std::byte>(), d, bytes_of_host(n, std::byte{0})});
      fill(places.back().at, std::byte{0}, n);
    }
  }
  std::vector<bytes_of_host> pageable(2, test::pattern(n, seed));
  for (auto& one : pageable)
    places.push_back({one.data(), -1, one, true});
  owned.push_back(pinned(n));
  places.push_back({owned.back().data<std::byte>(), -1, bytes_of_host(n, std::byte{9})});
  std::memset(places.back().at, 9, n);

  stream_ref last = on[0];
  int const steps = 4 + int(random() % 20);
  for (int i = 0; i < steps && wrong.ok(); ++i) {
    bool const sends = seed % 8 == 0 && random() % 4 > 0;  // from pageable memory, and waits for nothing
    auto &to = places[random() % (sends ? 4 : places.size())],
         &from = places[sends ? 4 + random() % 2 : random() % places.size()];
    std::size_t const bytes = random() % (n + 1);
    std::size_t const to_at = random() % (n - bytes + 1), from_at = random() % (n - bytes + 1);
    if (&to == &from)
      continue;
    int const device = to.device < 0                     ? from.device < 0 ? int(random() % 2) : from.device
                       : from.device < 0 || random() % 2 ? to.device
                                                         : from.device;
    stream_ref const here_ = on[device];
    here_.wait(last);
    // A pageable source is read during the call.
    if (from.arrives)
      here_.synchronize();
    from.arrives = false;
    to.arrives = to.pageable;
    copy(here_, to.at + to_at, from.at + from_at, bytes, sends || random() % 3 ? non_blocking : blocking::yes);
    std::copy_n(from.model.begin() + std::ptrdiff_t(from_at), bytes, to.model.begin() + std::ptrdiff_t(to_at));
    if (!sends && random() % 4 == 0) {  // a host read in between
      here_.synchronize();
      for (auto const& one : places) {
        if (one.device < 0 && std::memcmp(one.at, one.model.data(), n) != 0)
          wrong.note(check::bytes, "the host sees others at step " + std::to_string(i));
      }
    }
    last = here_;
  }
  last.synchronize();
  for (std::size_t i = 0; i < places.size(); ++i) {
    bytes_of_host const now = places[i].device < 0 ? bytes_of_host(places[i].at, places[i].at + n)
                                                   : test::read_back(places[i].at, n, places[i].device);
    if (now != places[i].model)
      wrong.note(check::bytes, "place " + std::to_string(i) + " holds others in the end");
  }
  for (auto const& found : m.control().findings())
    wrong.note(check_of(found), found);
  for (auto const& broken : m.pinned().validate())
    wrong.note(check::invariants, broken);
  return wrong;
}

}  // namespace weir::tests
