// Links: claimed, proven, refused; memory that is opened to a peer once that is worth it.
#include "peer/link/links.h"

#include <malloc.h>

#include "peer/link/nvlinks.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/seeds.h"
#include "weir/collective.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/share.h"

namespace weir {
namespace {

using link_state = peer::links::link_state;

TEST(links, every_pair_is_listed_and_verified_by_bytes) {
  test::machine m({.devices = 3, .memory = 64_MiB});
  auto const all = links();
  ASSERT_EQ(all.size(), 9u);
  for (int i = 0; i < 9; ++i) {
    auto const& one = all[std::size_t(i)];
    EXPECT_EQ(one.from, device(i / 3));
    EXPECT_EQ(one.to, device(i % 3));
    EXPECT_TRUE(one.verified);
    EXPECT_EQ(one.by == peer_link::kind::self, i / 3 == i % 3);
  }
  for (int d = 0; d < 3; ++d) {
    EXPECT_EQ(m.memory(d).statistics().allocated_bytes.all.current, 0);
    EXPECT_EQ(m.memory(d).validate(), std::vector<std::string>{});
  }
  EXPECT_EQ(m.pinned().statistics().allocated_bytes.all.current, 0);
}

TEST(links, nvlinks_are_direct_or_through_the_fabric) {
  using peer::nvlink_end;
  using is = nvlink_end::is;
  std::string const a = "0000:1B:00.0", b = "00000000:1c:00.0", c = "0001:1c:00.0";
  std::vector<nvlink_end> const fabric(18, {is::fabric, {}}), less(12, {is::fabric, {}}),
      to_b{{is::gpu, "0000:1c:00.0"}, {is::gpu, "0000:1C:00.0"}, {is::gpu, c}},
      to_a{{is::gpu, "0000:1b:00.0"}, {is::gpu, a}};
  EXPECT_EQ(peer::nvlinks_between(fabric, a, less, b), 12);
  EXPECT_EQ(peer::nvlinks_between(to_b, a, to_a, b), 2);
  EXPECT_EQ(peer::nvlinks_between(to_b, a, to_a, c), 1) << "the other has as many, or more";
  EXPECT_EQ(peer::nvlinks_between(to_b, a, {}, c), 0) << "only one of them says so";
  EXPECT_EQ(peer::nvlinks_between({}, a, fabric, b), 0);
}

// Memory of the pair cannot be granted.
TEST(links, a_pair_that_the_driver_refuses_goes_by_host) {
  test::machine m({.devices = 4, .memory = 64_MiB, .peers = simulated::links::pairs});
  EXPECT_TRUE(can_access_peer(device(0), device(1)));
  EXPECT_FALSE(can_access_peer(device(1), device(2)));
  auto const all = links();
  EXPECT_EQ(all[1 * 4 + 2].by, peer_link::kind::host);
  EXPECT_FALSE(all[1 * 4 + 2].verified);
  buffer b(4096, {.on = device(2)});
  EXPECT_THROW(enable_peer_access(b.data(), device(1)), not_supported);
  EXPECT_NO_THROW(enable_peer_access(b.data(), device(3)));
  EXPECT_THROW(can_access_peer(device(0), device(9)), invalid_use);
}

// Pinned memory needs no grant.
TEST(links, peer_data_is_the_address_itself) {
  test::machine m;
  buffer b(4096, {.on = device(1)}), host = pinned(4096);
  EXPECT_EQ(enable_peer_access(b.data<float>(), device(0)), b.data<float>());
  EXPECT_TRUE(m.memory(1).granted(b.data(), 0));
  EXPECT_EQ(enable_peer_access(host.data<float>(), device(0)), host.data<float>());
  EXPECT_EQ(enable_peer_access(b.data<float>(), device(1)), b.data<float>());
  int outside = 0;
  EXPECT_THROW(enable_peer_access(&outside, device(0)), invalid_use);
}

TEST(links, memory_is_granted_after_eight_times_its_size) {
  test::machine m;
  stream s{device(0)};
  std::size_t const n = 4_MiB;
  buffer near(n, {.on = device(0)}), far(n, {.on = device(1)});
  for (int i = 1; i < 8; ++i)
    copy(s, far.data(), near.data(), n);
  EXPECT_FALSE(m.memory(1).granted(far.data(), 0));
  copy(s, far.data(), near.data(), n);
  EXPECT_TRUE(m.memory(1).granted(far.data(), 0));
  EXPECT_EQ(m.get().part<peer::links>().known(0, 1), link_state::proven);
}

// Regression: a new block at the address of an opened block was never opened.
TEST(links, new_memory_at_an_opened_place_is_opened_anew) {
  test::machine m({.devices = 2, .memory = 64_MiB});
  size_t const n = 4_MiB;
  buffer const near(n, {.on = device(0)});
  void const* opened = nullptr;
  for (int round = 0; round < 2; ++round) {
    buffer far(n, {.on = device(1)});
    if (!opened)
      opened = far.data();
    ASSERT_EQ(far.data(), opened) << "the test wants the same address again";
    EXPECT_FALSE(m.memory(1).granted(far.data(), 0)) << "its pages are new";
    for (size_t i = 0; i < peer::links::worth_times; ++i)
      copy(far.data(), near.data(), n);
    EXPECT_TRUE(m.memory(1).granted(far.data(), 0));
    synchronize(device(0)), synchronize(device(1));
    far = {};
    device_guard const on(1);
    empty_cache();
  }
}

// What was copied is counted for each block and device, of blocks that are long gone, too.
TEST(links, counts_of_copied_bytes_are_few) {
  test::machine m({.devices = 6, .memory = 64_MiB});
  std::vector<buffer> all, near;
  for (int i = 0; i < 4000; ++i)
    all.emplace_back(512, buffer_options{.on = device(0)});
  for (int from = 1; from < 6; ++from)
    near.emplace_back(512, buffer_options{.on = device(from)});
  std::size_t after_three = 0;
  for (std::size_t from = 0; from < near.size(); ++from) {
    for (buffer const& b : all)
      copy(b.data(), near[from].data(), 512);
    synchronize(device(0)), synchronize(device(static_cast<int>(from) + 1));
    if (from == 2)  // the third mark of a block is a note
      after_three = mallinfo2().uordblks;
  }
  EXPECT_LT(mallinfo2().uordblks, after_three + 500 * 1024);
}

// Copies to the other devices go on.
TEST(links, memory_is_open_to_eight_peers_at_most) {
  test::machine m({.devices = 10, .memory = 64_MiB});
  buffer const all(4096, {.on = device(0)});
  for (int reader = 1; reader <= 8; ++reader)
    EXPECT_NO_THROW(enable_peer_access(all.data(), device(reader)));
  EXPECT_THROW(enable_peer_access(all.data(), device(9)), not_supported) << "the ninth";
  EXPECT_FALSE(m.memory(0).granted(all.data(), 9));
  EXPECT_NO_THROW(enable_peer_access(all.data(), device(8))) << "those that are open stay";
  buffer const far(2_MiB, {.on = device(9)}), near(2_MiB, {.on = device(0)}), other(2_MiB, {.on = device(8)});
  auto const bytes = test::pattern(2_MiB, 4);
  copy(near.data(), bytes.data(), 2_MiB);
  for (int i = 0; i < 9; ++i)
    copy(far.data(), near.data(), 2_MiB), copy(other.data(), near.data(), 2_MiB);
  EXPECT_TRUE(m.memory(8).granted(other.data(), 0)) << "the same connection, the other way";
  EXPECT_FALSE(m.memory(9).granted(far.data(), 0)) << "it would be a ninth";
  EXPECT_EQ(explain_copy(far.data(), near.data(), 2_MiB).by, copy_route::peer);
  EXPECT_EQ(test::read_back(far.data(), 2_MiB, 9), bytes);
  EXPECT_NO_THROW(enable_peer_access(far.data(), device(8))) << "which has one alone";
}

TEST(links, a_corrupt_link_is_found_and_bypassed) {
  for (bool back : {false, true}) {
    test::machine m;
    back ? m.control().corrupt(1, 0) : m.control().corrupt(0, 1);
    std::size_t const n = 2_MiB;
    auto const bytes = test::pattern(n, 5);
    buffer near(n, {.on = device(0)}), far(n, {.on = device(1)}), again(n, {.on = device(0)});
    copy(near.data(), bytes.data(), n);
    for (int i = 0; i < 9; ++i) {  // enough to be worth a grant
      fill(far.data(), std::byte{0}, n);
      copy(far.data(), near.data(), n);
      copy(again.data(), far.data(), n);
      ASSERT_TRUE(test::read_back(far.data(), n, 1) == bytes) << "copy " << i;
      ASSERT_TRUE(test::read_back(again.data(), n, 0) == bytes) << "copy " << i;
    }
    auto& all = m.get().part<peer::links>();
    EXPECT_EQ(all.known(0, 1) == link_state::wrong, !back);
    EXPECT_EQ(all.known(1, 0) == link_state::wrong, back);
    auto const choice = explain_copy(far.data(), near.data(), n);
    EXPECT_EQ(choice.by, copy_route::staged);
    EXPECT_NE(choice.reason.find("failed its test"), std::string::npos) << choice.reason;
    buffer& owned = back ? near : far;
    EXPECT_THROW(enable_peer_access(owned.data(), device(back ? 1 : 0)), not_supported);
    EXPECT_EQ(can_access_peer(device(0), device(1)), back);
  }
}

TEST(links, a_vanished_link_is_named_and_bypassed) {
  test::machine m;
  std::size_t const n = 2_MiB;
  buffer const near(n, {.on = device(0)}), far(n, {.on = device(1)}), other(9_MiB, {.on = device(1)});
  enable_peer_access(far.data(), device(0));
  m.control().disconnect(0, 1);
  for (std::uint64_t i = 0; i < 12; ++i) {  // also when a grant would be worth it
    auto const bytes = test::pattern(n, i);
    copy(near.data(), bytes.data(), n);
    copy(i % 2 ? other.data() : far.data(), near.data(), n);
    ASSERT_TRUE(test::read_back(i % 2 ? other.data() : far.data(), n, 1) == bytes) << "copy " << i;
  }
  try {
    enable_peer_access(other.data(), device(0));
    ADD_FAILURE() << "it is gone";
  } catch (not_supported const& e) {
    EXPECT_NE(std::string(e.operands()).find("for gpu:0"), std::string::npos) << e.operands();
  }
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
}

// The link could not be tried because memory was short.
TEST(links, an_untried_link_opens_no_memory) {
  test::machine m;
  m.control().corrupt(0, 1);
  buffer far(4096, {.on = device(1)});
  // Fails every attempt.
  for (std::uint64_t k = 1; k <= 20; ++k)
    m.control().fail_call("create", k, driver::code::out_of_memory);
  EXPECT_THROW(enable_peer_access(far.data(), device(0)), out_of_memory);
  m.control().clear_failures();
  EXPECT_FALSE(m.memory(1).granted(far.data(), 0));
  EXPECT_THROW(enable_peer_access(far.data(), device(0)), not_supported);
}

// A copy enqueued on the driver's path would use an untested link if a trial opened its pages before it runs.
// Therefore a trial opens pages of its own.
TEST(links, a_trial_opens_no_page_that_holds_a_block) {
  for (bool const breaks : {false, true}) {
    test::machine m({.devices = 2, .memory = 64_MiB});
    m.control().corrupt(0, 1);
    std::size_t const n = 64_KiB;
    auto const bytes = test::pattern(n, 8);
    buffer const near(n, {.on = device(0)});
    copy(near.data(), bytes.data(), n);
    deallocate(allocate(current_stream(device(1)), 62_MiB));  // room beside far, and hardly any elsewhere
    buffer const far(n, {.on = device(1)});
    synchronize(device(1));
    stream const s{device(0)};
    auto& all = m.get().part<peer::links>();
    {
      test::held const still(m, s);
      copy(s, far.data(), near.data(), n);
      if (breaks)
        m.control().fail_call("copy_peer", 1, driver::code::failed);
      if (breaks)
        EXPECT_THROW(all.prove(0, 1, source_location::current()), driver_error);
      else
        EXPECT_EQ(all.prove(0, 1, source_location::current()), link_state::wrong);
      for (auto const& range : m.memory(1).layout())
        EXPECT_EQ(range.readers, 0u);
    }
    s.synchronize();
    EXPECT_EQ(explain_copy(far.data(), near.data(), n).by, breaks ? copy_route::peer : copy_route::staged);
    EXPECT_TRUE(test::read_back(far.data(), n, 1) == bytes);
  }
}

TEST(links, a_trial_uses_cached_memory_and_leaves_none) {
  test::machine m({.devices = 2, .memory = 64_MiB});
  auto const used = [&] { return m.driver().memory(1).value.total - m.driver().memory(1).value.free; };
  {
    deallocate(allocate(current_stream(device(1)), 64_MiB));
    EXPECT_EQ(used(), 64_MiB) << "kept";
    EXPECT_EQ(m.get().part<peer::links>().prove(0, 1, source_location::current()), link_state::proven);
    EXPECT_EQ(used(), 0u);
  }
  buffer const all(64_MiB, {.on = device(0)});
  try {
    (void)m.get().part<peer::links>().prove(1, 0, source_location::current());
    ADD_FAILURE() << "there is no memory for a trial";
  } catch (out_of_memory const& e) {
    EXPECT_NE(std::string(e.what()).find("gpu:0: no room for 64.00 KiB (2.00 MiB rounded)"), std::string::npos)
        << e.what();
  }
}

TEST(links, a_trial_writes_no_pinned_memory_of_others) {
  test::machine m;
  buffer before = pinned(64_KiB), behind = pinned(64_KiB);
  ASSERT_EQ(behind.data<std::byte>(), before.data<std::byte>() + 64_KiB);
  std::memset(behind.data(), 7, 64_KiB);
  before.reset();  // the smallest piece that fits serves the trial
  auto const allocated = [&] { return m.pinned().statistics().allocated_bytes.all.current; };
  auto const held = allocated();
  EXPECT_EQ(m.get().part<peer::links>().prove(0, 1, source_location::current()), link_state::proven);
  EXPECT_EQ(std::count(behind.data<char>(), behind.data<char>() + 64_KiB, 7), 64 << 10);
  EXPECT_EQ(allocated(), held);
}

TEST(links, the_streams_of_trials_end_with_their_runtime) {
  struct counts final : driver::fault_injector::watcher {
    int left = 0;
    void enters(driver::call c) noexcept override {
      left += (c == driver::call::create_stream) - (c == driver::call::destroy_stream);
    }
  };
  auto const left = [](bool tries) {
    counts seen;
    auto m = std::make_unique<test::machine>();
    driver::fault_injector_of(m->driver())->watch(&seen);
    if (tries)
      (void)m->get().part<peer::links>().prove(0, 1, source_location::current());
    m.reset();
    return seen.left;
  };
  EXPECT_EQ(left(true), left(false));
}

TEST(links, a_trial_takes_shared_caches_last) {
  test::machine m({.devices = 3, .memory = 64_MiB});
  auto& all = m.get().part<peer::links>();
  auto const kept = [] { return memory_stats(1).exported_bytes.current; };
  exportable_buffer(2_MiB, 1).reset();
  deallocate(allocate(current_stream(device(1)), 62_MiB));
  EXPECT_EQ(all.prove(0, 1, source_location::current()), link_state::proven);
  EXPECT_EQ(kept(), std::int64_t(2_MiB)) << "the allocator kept enough";
  buffer const rest(62_MiB, {.on = device(1)});
  EXPECT_EQ(all.prove(2, 1, source_location::current()), link_state::proven);
  EXPECT_EQ(kept(), 0);
}

// A trial does not wait for its own end to release what an earlier one left.
TEST(links, a_trial_short_of_memory_does_not_wait_for_itself) {
  test::machine m({.devices = 2, .memory = 64_MiB});
  auto& all = m.get().part<peer::links>();
  // Fails every attempt.
  for (std::uint64_t k = 1; k <= 200; ++k)
    m.control().fail_call("release", k, driver::code::failed);
  EXPECT_EQ(all.prove(0, 1, source_location::current()), link_state::proven);
  buffer const rest(62_MiB, {.on = device(1)});
  EXPECT_THROW(all.prove(1, 0, source_location::current()), out_of_memory);
  m.control().clear_failures();
  EXPECT_EQ(all.known(1, 0), link_state::claimed);
}

// A later trial or the end of the runtime releases it.
TEST(links, a_trials_unreleased_memory_goes_later) {
  for (auto const* const call : {"unmap", "unreserve", "release", "synchronize_stream"}) {
    test::machine m({.devices = 2, .memory = 64_MiB});
    auto const left = [&] { return m.driver().memory(1).value.total - m.driver().memory(1).value.free; };
    m.control().fail_call(call, 1, driver::code::failed);
    auto& all = m.get().part<peer::links>();
    EXPECT_EQ(all.prove(0, 1, source_location::current()), link_state::proven) << call;
    EXPECT_EQ(all.prove(1, 0, source_location::current()), link_state::proven) << call;
    m.memory(1).empty_cache();
    EXPECT_EQ(left(), 0u) << call;
  }
}

// Regression: one page stayed unavailable until another link was tried.
TEST(links, a_trials_unreleased_memory_serves_short_memory) {
  test::machine m({.devices = 2, .memory = 64_MiB});
  // Fails every attempt.
  for (std::uint64_t k = 1; k <= 20; ++k)
    m.control().fail_call("release", k, driver::code::failed);
  EXPECT_EQ(m.get().part<peer::links>().prove(0, 1, source_location::current()), link_state::proven);
  m.control().clear_failures();
  m.memory(1).empty_cache();
  auto const room = m.driver().memory(1).value;
  ASSERT_EQ(room.total - room.free, 2_MiB) << "the page of the trial";
  EXPECT_NO_THROW(deallocate(allocate(current_stream(device(1)), 64_MiB)));
}

// A trial could wait for a rank that waits for this thread.
TEST(links, none_is_tried_under_a_collective) {
  test::machine m(
      {.devices = 2, .memory = 512_MiB, .schedule = simulated::scheduling::seeded, .seed = 1, .connections = 1});
  auto ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
  std::size_t const n = 4_MiB;
  buffer a(64, {.on = device(0)}), b(64, {.on = device(1)}), far(n, {.on = device(0)});
  ranks[0].all_reduce({a.data(), 4, float32});
  auto& all = m.get().part<peer::links>();
  auto const block = m.memory(0).find(far.data());
  for (int i = 0; i < 9; ++i)
    all.count_bytes(1, m.memory(0), *block, n, source_location::current());
  EXPECT_EQ(m.control().findings(), std::vector<std::string>{});
  EXPECT_EQ(all.known(1, 0), link_state::claimed);
  ranks[1].all_reduce({b.data(), 4, float32});
  synchronize(device(0));
  synchronize(device(1));
  // A device may report completion late, so the test asks several times.
  for (int i = 0; i < 50 && all.known(1, 0) == link_state::claimed; ++i)
    all.count_bytes(1, m.memory(0), *block, n, source_location::current());
  EXPECT_EQ(all.known(1, 0), link_state::proven);
  EXPECT_TRUE(m.memory(0).granted(far.data(), 1));
}

// The link is tried once the streams' collectives are complete. Regression: each look took a new stamp, which
// lies behind work enqueued meanwhile.
TEST(links, one_is_tried_beside_busy_streams) {
  for (int const collectives : {1, 2}) {
    test::machine m({.devices = 2, .memory = 512_MiB, .schedule = simulated::scheduling::stepped});
    auto ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
    std::size_t const n = 4_MiB;
    buffer a(64, {.on = device(0)}), b(64, {.on = device(1)}), far(n, {.on = device(0)});
    auto& all = m.get().part<peer::links>();
    auto const block = m.memory(0).find(far.data());
    auto const look = [&](int times) {
      for (int i = 0; i < times; ++i)
        all.count_bytes(1, m.memory(0), *block, n, source_location::current());
    };
    look(7);
    for (int i = 0; i < collectives; ++i) {
      ASSERT_TRUE(m.control().run());
      ranks[0].all_reduce({a.data(), 4, float32});
      ranks[1].all_reduce({b.data(), 4, float32});
      look(3);
      EXPECT_EQ(all.known(1, 0), link_state::claimed);
    }
    ASSERT_TRUE(m.control().run());
    for (int d = 0; d < 2; ++d)
      launch(
          current_stream(device(d)), {}, [](CUstream_st*) {}, [] {});
    look(1);
    EXPECT_EQ(all.known(1, 0), link_state::proven) << collectives;
  }
}

TEST(links, one_is_tried_soon_however_late_completion_is_seen) {
  for (auto const seed : tests::seeds("links_seen_late", 60)) {
    test::machine m({.devices = 2, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = seed});
    auto ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
    std::size_t const n = 1_MiB;
    buffer a(64, {.on = device(0)}), b(64, {.on = device(1)}), far(n, {.on = device(0)});
    auto& all = m.get().part<peer::links>();
    auto const block = m.memory(0).find(far.data());
    for (int i = 0; i < 15; ++i)
      all.count_bytes(1, m.memory(0), *block, n, source_location::current());
    ranks[0].all_reduce({a.data(), 4, float32});
    ranks[1].all_reduce({b.data(), 4, float32});
    synchronize(device(0));
    synchronize(device(1));
    for (int i = 0; i < 4; ++i)
      all.count_bytes(1, m.memory(0), *block, n, source_location::current());
    EXPECT_EQ(all.known(1, 0), link_state::proven) << "WEIR_TEST_SEED=" << seed;
  }
}

struct without_mapping final : driver::fault_injector {  // gpu:0, and gpu:1 too if told, has its memory in segments
  using fault_injector::fault_injector;
  bool both = true;
  weir::driver::result<weir::driver::device_info> info(int device) override {
    auto i = fault_injector::info(device);
    i.value.maps &= device == 1 && !both;
    return i;
  }
};

template <class Act>
std::string refusal_of(Act act) {
  try {
    act();
  } catch (not_supported const& e) {
    return std::string(e.operands()) + ": " + std::string(e.remedy());
  }
  return "";
}

// Such memory goes by the driver's path. Regression: it counted as behind a refused link, so copies went
// through the host and messages named a link.
TEST(links, memory_in_segments_is_never_opened) {
  for (bool const both : {true, false}) {
    auto owned = std::make_unique<without_mapping>(driver::sim::make({.devices = 2, .memory = 256_MiB}).machine);
    owned->both = both;
    auto const machine = make_runtime(std::move(owned), {}, "two simulated devices");
    runtime_guard const in(*machine);
    std::size_t const n = 2_MiB;
    buffer const a(n, {.on = device(0)}), b(n, {.on = device(1)}), back(n, {.on = device(0)});
    auto const expect_copies = [&](std::string const& when) {
      for (std::uint64_t i = 0; i < 9; ++i) {  // as often as would be worth a grant
        auto const bytes = test::pattern(n, i);
        copy(a.data(), bytes.data(), n);
        copy(b.data(), a.data(), n);
        copy(back.data(), b.data(), n);
        ASSERT_TRUE(test::read_back(b.data(), n, 1) == bytes && test::read_back(back.data(), n, 0) == bytes) << when;
      }
      EXPECT_EQ(explain_copy(b.data(), a.data(), n).by, copy_route::peer) << when;
      EXPECT_EQ(explain_copy(a.data(), b.data(), n).by, copy_route::peer) << when;
    };
    expect_copies("at first");
    auto const all = links();
    EXPECT_TRUE(all[2].access && !all[2].verified && !all[2].wrong) << "gpu:1 -> gpu:0";
    EXPECT_EQ(all[1].verified, !both);
    EXPECT_TRUE(can_access_peer(device(1), device(0)));
    for (auto const& said : {refusal_of([&] { enable_peer_access(a.data<char>(), device(1)); }),
                             refusal_of([&] { enable_peer_access(a.data(), device(1)); }),
                             refusal_of([] { enable_peer_access(device(0), {device(1)}); })}) {
      EXPECT_EQ(said, "gpu:1 -> gpu:0: Copy instead: memory of gpu:0 consists of segments, which peers cannot access");
    }
    if (both)
      EXPECT_THROW(enable_peer_access(b.data(), device(0)), not_supported);
    else
      EXPECT_EQ(enable_peer_access(b.data<char>(), device(0)), b.data<char>());
    expect_copies("after links() and refusals");
    buffer const host = pinned(16_MiB), large(16_MiB, {.on = device(1)});
    device const lent[] = {0};
    link_sharing_guard const lending(lent);
    EXPECT_EQ(explain_copy(large.data(), host.data(), large.size()).by, copy_route::engine)
        << "no lane could be opened";
    copy(large.data(), host.data(), large.size());
    auto const ranks = communicator::create_all(std::vector<device>{device(0), device(1)});
    expect_copies("after a communicator");
    for (int d = 0; d < 2; ++d)
      EXPECT_EQ(machine->get().part<memory::device_memory>().on(d).validate(), std::vector<std::string>{});
  }
}

TEST(links, a_link_that_cannot_be_tried_now_is_tried_later) {
  test::machine m;
  auto& all = m.get().part<peer::links>();
  m.control().fail_call("copy_peer", 1, driver::code::failed);
  EXPECT_THROW(all.prove(0, 1, source_location::current()), driver_error);
  EXPECT_EQ(all.known(0, 1), link_state::claimed);
  EXPECT_EQ(all.prove(0, 1, source_location::current()), link_state::proven);
}

}  // namespace
}  // namespace weir
