// Shared memory that is open to peers as a whole: by the option, of a device, by address, and with refused calls.
// Threads: one.
#include "peer/link/links.h"
#include "tests/memory/counted_calls.h"
#include "tests/peer/visible.h"
#include "tests/support/sanitized.h"
#include "weir/observe.h"

namespace weir {
namespace {

using driver::call;
using namespace test::visible;

using test::sharing::shared_kinds;

TEST(visible, with_the_option_shared_memory_is_open_too) {
  test::machine m(three(), {.peer_access = true});
  void const* kept = nullptr;
  {
    exportable_buffer const b(9_MiB, 0);
    kept = b.data();
  }
  shared_kinds before;
  EXPECT_FALSE(before.any_open_to(1)) << "they have nothing to do with each other yet";
  copy(buffer(64, {.on = device(1)}).data(), buffer(64, {.on = device(0)}).data(), 64);
  before.expect_readable_by(m, 1);
  EXPECT_FALSE(before.any_open_to(2));
  shared_kinds after;
  after.expect_readable_by(m, 1);
  exportable_buffer const again(9_MiB, 0);
  ASSERT_EQ(again.data(), kept);
  read_in_place(again.data(), again.size(), 1);
  enable_peer_access(before.own.data(), device(2));  // then both meet
  after.expect_readable_by(m, 2);
  expect_whole(m);
}

TEST(visible, of_a_device_shared_memory_is_meant_too) {
  test::machine m(three());
  shared_kinds before;
  enable_peer_access(device(0), {device(2)});
  before.expect_readable_by(m, 2);
  shared_kinds().expect_readable_by(m, 2);
  EXPECT_FALSE(before.any_open_to(1));
  m.control().lose_device(2);
  try {
    synchronize(device(2));
  } catch (device_lost const&) {}
  EXPECT_NE(exportable_buffer(20_MiB, 0).data(), nullptr) << "a reader that is lost is left out";
}

TEST(visible, shared_memory_is_granted_by_its_address) {
  test::machine m(three());
  shared_kinds all;
  EXPECT_EQ(enable_peer_access(all.own.data<char>(), device(1)), all.own.data<char>());
  EXPECT_EQ(enable_peer_access(all.opened.data<char>(), device(1)), all.opened.data<char>());
  EXPECT_EQ(enable_peer_access(all.pooled.data<char>(), device(0)), all.pooled.data<char>());
  enable_peer_access(all.pooled.data<char>() + 17, device(1));
  all.expect_readable_by(m, 1);
  void const* const gone = all.own.data();
  all.own.reset();
  EXPECT_NE(what_is_refused([&] { enable_peer_access(gone, device(1)); }), "") << "the block is freed";
  m.control().disconnect(2, 0);
  EXPECT_NE(what_is_refused([&] { enable_peer_access(all.pooled.data(), device(2)); }), "");
  EXPECT_NE(what_is_refused([&] { enable_peer_access(all.opened.data<char>(), device(2)); }), "");
  EXPECT_NE(what_is_refused([] { enable_peer_access(exportable_buffer().data<char>(), device(1)); }), "");
}

TEST(visible, an_opened_buffer_outlives_its_readers_work) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    test::machine m(three(seed));
    shared_kinds all;
    auto const* const at = enable_peer_access(all.opened.data<char>(), device(2));
    bool came = false;
    for (int i = 0; i < 3; ++i)
      launch(
          current_stream(device(2)), {reads(at, 64)}, [](auto) {}, [&, i] { came = i == 2; });
    all.opened.reset();
    EXPECT_TRUE(came) << "its owner may write there now, seed " << seed;
    synchronize(device(2));
  }
}

TEST(visible, any_call_that_fails_throws_or_opens_shared_memory) {
  for (char const* const name : {"grant", "open", "map"}) {
    for (std::uint64_t k = 1; k <= 8; ++k) {
      test::machine m(three(k));
      shared_kinds const old;
      m.control().fail_call(name, k, driver::code::failed);
      bool open = false;
      for (int i = 0; i < 3; ++i) {
        try {
          if (!open)
            enable_peer_access(device(0), {device(1), device(2)}), open = true;
          shared_kinds all;
          for (int const reader : {1, 2})
            all.expect_readable_by(m, reader);
        } catch (driver_error const&) {
        } catch (out_of_memory const&) {}
      }
      EXPECT_TRUE(open) << name << " " << k;
      m.control().clear_failures();
    }
  }
}

}  // namespace
}  // namespace weir
