// Ranks whose collectives go by copies in chains, with a part and a whole for each rank.
// Threads: one, and a thread a rank in each().
#pragma once
#include "peer/collective/copy_chains.h"
#include "tests/peer/machine_fixture.h"
#include "tests/peer/ranks.h"

namespace weir::test::chains {

inline constexpr std::int64_t part = 50'003;  // bytes of a rank; five chunks and a bit
inline constexpr std::size_t chunk = 10'000;

struct rig {
  explicit rig(simulated like = {.devices = 4, .memory = 64_MiB}, options o = {}) : m(like, o) {
    connect(like.devices);
  }
  void connect(int n) {
    m.get().part<peer::chains>().carry_from(1);
    m.get().part<peer::chains>().set_chunk(chunk);
    ranks = communicator::create_all(first_devices(n));
    for (int k = 0; k < n; ++k) {
      parts.emplace_back(part, buffer_options{.on = device(k)});
      wholes.emplace_back(static_cast<std::size_t>(part * n), buffer_options{.on = device(k)});
    }
  }
  // Opens the buffers to every device, as weir does once enough has been copied there.
  void open_all() {
    for (auto const* all : {&parts, &wholes}) {
      for (buffer const& b : *all) {
        for (communicator const& c : ranks)
          enable_peer_access(b.data(), c.device());
      }
    }
  }
  int size() const { return static_cast<int>(ranks.size()); }
  template <class Body>
  void each(Body body) {
    on_each(m.own, ranks, body);
  }
  void fill(buffer const& b, std::uint64_t salt) { copy(b.data(), pattern(b.size(), salt).data(), b.size()); }
  void fill_all(std::uint64_t salt) {
    for (int k = 0; k < size(); ++k) {
      device_guard const on(k);
      fill(parts[static_cast<std::size_t>(k)], salt + static_cast<std::uint64_t>(k));
      fill(wholes[static_cast<std::size_t>(k)], salt + 100 + static_cast<std::uint64_t>(k));
    }
  }
  bytes_of_host read(buffer const& b, int k) { return read_back(b.data(), b.size(), k); }
  device_span mine(communicator const& c) { return {parts[static_cast<std::size_t>(c.rank())].data(), part, uint8}; }
  device_span whole(communicator const& c) {
    return {wholes[static_cast<std::size_t>(c.rank())].data(), part * size(), uint8};
  }
  void give(communicator& c, peer::collective what) {  // to or from rank 0
    if (what == peer::collective::broadcast)
      c.broadcast(mine(c), 0);
    if (what == peer::collective::scatter)
      c.scatter(mine(c), whole(c), 0);
    if (what == peer::collective::gather)
      c.gather(whole(c), mine(c), 0);
  }
  void broadcast(int root) {
    each([&](communicator& c) { c.broadcast(mine(c), root); });
  }
  void expect_all_hold(bytes_of_host const& want, std::string const& when) {
    for (int k = 0; k < size(); ++k)
      EXPECT_EQ(read(parts[static_cast<std::size_t>(k)], k), want) << when << ", rank " << k;
  }
  void expect_valid() {
    for (int d = 0; d < size(); ++d)
      EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
    EXPECT_EQ(m.clocks().validate(), std::vector<std::string>{});
    EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
  }

  machine m;
  std::vector<communicator> ranks;
  std::vector<buffer> parts, wholes;  // of each rank, on its device
};

inline bytes_of_host slice(bytes_of_host const& whole, int k) {
  return {whole.begin() + k * part, whole.begin() + (k + 1) * part};
}

}  // namespace weir::test::chains
