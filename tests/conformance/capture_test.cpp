// Rule M17 of docs/reference/simulated-machine.md, on every machine: contents, spoiling and end of captures.
// Threads: one.
#include "tests/conformance/rig.h"

namespace weir::conformance {
namespace {

constexpr capture_mode all_modes[] = {capture_mode::global, capture_mode::this_thread, capture_mode::relaxed};
std::string text(capture_mode m) {
  return m == capture_mode::global ? "global" : m == capture_mode::this_thread ? "this_thread" : "relaxed";
}

class capture : public conformance {
 protected:
  bool is_captured(stream_handle s) {
    auto const is = machine().capturing(0, s);
    EXPECT_OK(is.is);
    return is.value;
  }
  // Ends a capture that must be whole, and discards its graph.
  void expect_whole(stream_handle s, int device = 0) {
    auto const kept = machine().end_capture(device, s);
    EXPECT_OK(kept.is);
    if (kept.ok()) {
      EXPECT_OK(machine().destroy_graph(kept.value));
    }
    EXPECT_FALSE(is_captured(s));
  }
  // Work on a spoiled capture is refused, as is its end. Afterwards the stream works as before.
  void expect_spoiled(stream_handle s, block const& b) {
    EXPECT_SAYS(code::not_permitted, machine().fill(0, s, b.words(), 1, 4, 1));
    EXPECT_TRUE(is_captured(s));
    EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
    EXPECT_FALSE(is_captured(s));
    EXPECT_OK(machine().fill(0, s, b.words(), 1, 4, 1));
    finish(0, s);
  }
};
WEIR_CONFORMANCE(capture);

TEST_P(capture, m17_captured_calls_run_when_their_graph_is_launched) {
  auto const s = stream(0), other = stream(0);
  auto const b = memory(0);
  auto* const h = pinned(4096);
  for (capture_mode const mode : all_modes) {
    SCOPED_TRACE(text(mode));
    auto const before = logged().size();
    for (std::uint32_t k = 0; k < 3; ++k)
      write(b, 7 + 2 * k, k);
    h[0] = 1, h[1] = 3;
    ASSERT_OK(machine().begin_capture(0, s, mode));
    EXPECT_TRUE(is_captured(s));
    EXPECT_FALSE(is_captured(other));
    log(0, s, 1);
    EXPECT_OK(machine().copy(0, s, b.words(), h, 4));
    copy_word(0, s, b.words() + 1, b.words());
    EXPECT_OK(machine().fill(0, s, b.words() + 2, 12, 4, 1));
    EXPECT_OK(machine().copy(0, s, h + 1, b.words() + 1, 4));
    log(0, other, 2);
    finish(0, other);
    EXPECT_EQ(logged().size(), before + 1);
    auto const kept = machine().end_capture(0, s);
    ASSERT_OK(kept.is);
    EXPECT_FALSE(is_captured(s));
    EXPECT_OK(machine().synchronize_device(0));
    EXPECT_EQ(logged().size(), before + 1);
    for (std::uint32_t k = 0; k < 3; ++k)
      EXPECT_EQ(read(b, k), 7 + 2 * k);
    EXPECT_EQ(h[1], 3u);
    auto const graph = machine().instantiate(0, kept.value);
    ASSERT_OK(graph.is);
    EXPECT_OK(machine().destroy_graph(kept.value));
    EXPECT_OK(machine().synchronize_device(0));
    EXPECT_EQ(logged().size(), before + 1);
    for (std::uint32_t k = 0; k < 3; ++k) {  // a pinned source is read at each launch
      h[0] = 100 + k;
      EXPECT_OK(machine().launch_graph(0, s, graph.value));
      finish(0, s);
      EXPECT_EQ(logged().size(), before + 2 + k);
      EXPECT_EQ(h[1], 100 + k);
    }
    EXPECT_EQ(read(b, 2), 12u);
    EXPECT_OK(machine().destroy_executable(graph.value));
    EXPECT_SAYS(code::invalid, machine().launch_graph(0, s, graph.value));
    EXPECT_SAYS(code::invalid, machine().destroy_executable(graph.value));
    EXPECT_SAYS(code::invalid, machine().destroy_graph(kept.value));
    EXPECT_SAYS(code::invalid, machine().instantiate(0, kept.value).is);
  }
}

TEST_P(capture, m17_a_capture_forks_and_joins_by_events) {
  auto const s = stream(0), t = stream(0), u = stream(0, stream_kind::blocking);
  auto const e = event(0), f = event(0), never = event(0);
  auto const graph = captured(0, s, [&] {
    log(0, s, 1);
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(0, t, e));
    EXPECT_TRUE(is_captured(t));
    EXPECT_FALSE(is_captured(u));
    EXPECT_OK(machine().wait(0, s, never));
    log(0, t, 2);
    EXPECT_OK(machine().record(0, t, e));  // again: later waits are for this record
    EXPECT_OK(machine().wait(0, u, e));
    log(0, u, 3);
    EXPECT_OK(machine().record(0, u, f));
    EXPECT_OK(machine().wait(0, s, f));
    log(0, s, 4);
  });
  for (stream_handle const each : {s, t, u})
    EXPECT_FALSE(is_captured(each));
  EXPECT_TRUE(logged().empty());
  EXPECT_OK(machine().launch_graph(0, s, graph));
  EXPECT_OK(machine().launch_graph(0, s, graph));
  finish(0, s);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2, 3, 4, 1, 2, 3, 4}));
}

TEST_P(capture, m17_a_query_sync_or_legacy_use_spoils_the_capture) {
  auto const s = stream(0, stream_kind::blocking), other = stream(0);
  auto const e = event(0), outside = event(0);
  auto const b = memory(0);
  constexpr auto legacy = stream_handle::legacy;
  struct offence {
    char const* name;
    std::function<status()> commit;
  };
  offence const all[] = {
      {"query_stream", [&] { return machine().query_stream(0, s); }},
      {"synchronize_stream", [&] { return machine().synchronize_stream(0, s); }},
      {"synchronize_device", [&] { return machine().synchronize_device(0); }},
      {"query_event", [&] { return machine().query_event(e); }},
      {"synchronize_event", [&] { return machine().synchronize_event(e); }},
      {"a wait for an event recorded outside", [&] { return machine().wait(0, s, outside); }},
      {"a legacy fill", [&] { return machine().fill(0, legacy, b.words(), 1, 4, 1); }},
      {"a legacy record", [&] { return machine().record(0, legacy, outside); }},
      {"a legacy query", [&] { return machine().query_stream(0, legacy); }},
      {"a legacy synchronize", [&] { return machine().synchronize_stream(0, legacy); }},
      {"a legacy wait for what is captured", [&] { return machine().wait(0, legacy, e); }},
  };
  EXPECT_OK(machine().record(0, other, outside));
  finish(0, other);
  for (offence const& o : all) {
    for (capture_mode const mode : all_modes) {
      SCOPED_TRACE(std::string(o.name) + ", " + text(mode));
      ASSERT_OK(machine().begin_capture(0, s, mode));
      log(0, s, 1);
      EXPECT_OK(machine().record(0, s, e));
      EXPECT_SAYS(code::not_permitted, o.commit());
      expect_spoiled(s, b);
      EXPECT_OK(machine().record(0, other, e));
      EXPECT_OK(machine().synchronize_event(e));
    }
  }
  EXPECT_TRUE(logged().empty());
}

TEST_P(capture, m17_independent_captures_leave_legacy_free) {
  auto const s = stream(0);
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
  log(0, s, 1);
  log(0, stream_handle::legacy, 2);
  finish(0, stream_handle::legacy);
  EXPECT_EQ(logged(), std::vector<std::uint32_t>{2});
  expect_whole(s);
}

TEST_P(capture, m17_a_wait_that_would_merge_two_captures_spoils_both) {
  auto const s = stream(0), t = stream(0);
  auto const e = event(0);
  auto const b = memory(0);
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
  ASSERT_OK(machine().begin_capture(0, t, capture_mode::global));
  log(0, s, 1);
  EXPECT_OK(machine().record(0, s, e));
  EXPECT_SAYS(code::not_permitted, machine().wait(0, t, e));
  expect_spoiled(s, b);
  expect_spoiled(t, b);
}

TEST_P(capture, m17_an_end_with_an_unjoined_stream_is_refused) {
  auto const s = stream(0), t = stream(0);
  auto const e = event(0), f = event(0);
  for (bool const joined_too_early : {false, true}) {
    SCOPED_TRACE(joined_too_early);
    ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
    log(0, s, 1);
    EXPECT_OK(machine().record(0, s, e));
    EXPECT_OK(machine().wait(0, t, e));
    log(0, t, 2);
    if (joined_too_early) {
      EXPECT_OK(machine().record(0, t, f));
      EXPECT_OK(machine().wait(0, s, f));
      log(0, t, 3);
    }
    EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
    for (stream_handle const each : {s, t}) {
      EXPECT_FALSE(is_captured(each));
      log(0, each, 4);
      finish(0, each);
    }
  }
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{4, 4, 4, 4}));
}

// w1: work on stream 1. r0a: event a is recorded on stream 0. x1a: stream 1 waits for event a. Stream 0 began
// the capture. Only captured work must join.
TEST_P(capture, m17_all_captured_work_must_join_before_the_end) {
  struct one {
    char const* words;
    bool whole;
  };
  constexpr one all[] = {
      {"", true},
      {"r0a x1a", true},
      {"w0 r0a x1a", true},
      {"r0a x1a w0", true},
      {"w0 r0a x1a w0", true},
      {"r0a x1a w1", false},
      {"w0 r0a x1a w1", false},
      {"r0a x1a w1 r1b x0b", true},
      {"w0 r0a x1a r1b", true},
      {"r0a x1a r1b x0b", true},
      {"w0 r0a x1a w0 r0b x1b", true},
      {"r0a x1a r0b x1b", true},
      {"w0 r0a x1a w1 r1b x0b w0 r0c x1c", true},
      {"w0 r0a x1a w1 r1b x0b r0c x1c", true},
      {"w0 r0a x1a w1 r1b x0b r1c", true},
      {"w0 r0a x1a w1 r1b x0b w1", false},
      {"w0 r0a x1a r1b w1 x0b", false},
      {"w0 r0a x1a r1b x2b w2 r2c x0c", true},
      {"w0 r0a x1a r1b x2b w2 r2c x1c", false},
      {"w0 r0a x1a r1b x2b", true},
      {"w0 r0a x1a x2a w2 r2b x1b x0b", true},
      {"w0 r0a x1a x2a w2 r2b x1b", false},
      {"w0 r0a x1a x2a w1 r1b x2b r2c x0c", true},
      {"w0 r0a x1a r1b x1b", true},
      {"w0 r0a x0a", true},
      {"w0 r0a w0 r0a x1a", true},
      {"w0 r0a x1a w1 r1a x0a", true},
  };
  stream_handle const s[] = {stream(0), stream(0), stream(0)};
  for (one const& c : all) {
    SCOPED_TRACE(c.words);
    event_handle const e[] = {event(0), event(0), event(0)};
    std::istringstream words(c.words);
    std::size_t works = 0;
    ASSERT_OK(machine().begin_capture(0, s[0], capture_mode::global));
    for (std::string word; words >> word;) {
      auto const on = s[word[1] - '0'];
      switch (word[0]) {
        case 'w': log(0, on, 1), ++works; break;
        case 'r': EXPECT_OK(machine().record(0, on, e[word[2] - 'a'])); break;
        default: EXPECT_OK(machine().wait(0, on, e[word[2] - 'a']));
      }
    }
    auto const kept = machine().end_capture(0, s[0]);
    for (stream_handle const each : s)
      EXPECT_FALSE(is_captured(each));
    if (!c.whole) {
      EXPECT_SAYS(code::not_permitted, kept.is);
      continue;
    }
    ASSERT_OK(kept.is);
    auto const before = logged().size();
    auto const graph = machine().instantiate(0, kept.value);
    ASSERT_OK(graph.is);
    EXPECT_OK(machine().destroy_graph(kept.value));
    EXPECT_OK(machine().launch_graph(0, s[0], graph.value));
    EXPECT_OK(machine().launch_graph(0, s[1], graph.value));
    finish(0, s[1]);
    EXPECT_EQ(logged().size(), before + 2 * works);
    EXPECT_OK(machine().destroy_executable(graph.value));
  }
}

TEST_P(capture, m17_calls_that_are_refused_without_spoiling) {
  auto const s = stream(0), fresh = stream(0);
  auto const graph = captured(0, s, [&] { log(0, s, 1); });
  int dropped = 0;
  driver::work w;
  w.run = [](void*) { ADD_FAILURE() << "a refused host function ran"; };
  w.drop = [](void* n) { ++*static_cast<int*>(n); };
  w.state = &dropped;
  EXPECT_SAYS(code::not_permitted, machine().end_capture(0, s).is);
  EXPECT_SAYS(code::not_permitted, machine().begin_capture(0, stream_handle::legacy, capture_mode::global));
  for (capture_mode const mode : all_modes) {
    SCOPED_TRACE(text(mode));
    ASSERT_OK(machine().begin_capture(0, s, mode));
    log(0, s, 2);
    EXPECT_SAYS(code::not_permitted, machine().begin_capture(0, s, mode));
    EXPECT_SAYS(code::not_permitted, machine().hold(0, s).is);
    EXPECT_SAYS(code::not_permitted, machine().host_function(0, s, w));
    EXPECT_SAYS(code::not_permitted, machine().launch_graph(0, s, graph));
    EXPECT_SAYS(code::not_permitted, machine().destroy_stream(0, s));
    EXPECT_SAYS(code::not_permitted, machine().end_capture(0, fresh).is);
    expect_whole(s);
  }
  EXPECT_EQ(dropped, 3);
  EXPECT_TRUE(logged().empty());
}

TEST_P(capture, m17_a_capture_ends_where_it_began) {
  auto const s = stream(0), t = stream(0);
  auto const e = event(0), f = event(0);
  auto const end = [&](stream_handle at) {
    auto const kept = machine().end_capture(0, at);
    if (kept.ok()) {
      EXPECT_OK(machine().destroy_graph(kept.value));
    }
    return kept.is;
  };
  for (capture_mode const mode : all_modes) {
    SCOPED_TRACE(text(mode));
    ASSERT_OK(machine().begin_capture(0, s, mode));
    log(0, s, 1);
    elsewhere([&] { EXPECT_SAYS(mode == capture_mode::relaxed ? code::ok : code::not_permitted, end(s)); });
    if (is_captured(s))
      end(s);  // whole, spoiled or gone: the machine decides
    EXPECT_FALSE(is_captured(s));
  }
  ASSERT_OK(machine().begin_capture(0, s, capture_mode::global));
  log(0, s, 1);
  EXPECT_OK(machine().record(0, s, e));
  EXPECT_OK(machine().wait(0, t, e));
  log(0, t, 2);
  EXPECT_OK(machine().record(0, t, f));
  EXPECT_OK(machine().wait(0, s, f));
  EXPECT_SAYS(code::not_permitted, end(t));
  end(s);
  EXPECT_FALSE(is_captured(s));
  EXPECT_FALSE(is_captured(t));
  log(0, s, 3);
  finish(0, s);
  EXPECT_EQ(logged(), std::vector<std::uint32_t>{3});
}

// Control of the next test: calls that bypass the driver
// interface spoil exactly the captures that CUDA documents.
TEST_P(capture, m17_unsafe_calls_past_the_seam_spoil_by_mode) {
  auto const s = stream(0), other = stream(0);
  auto const outside = event(0);
  auto const b = memory(0);
  EXPECT_OK(machine().record(0, other, outside));
  finish(0, other);
  EXPECT_TRUE(unsafe_call(outside));
  for (capture_mode const mode : all_modes) {
    for (bool const own_thread : {true, false}) {
      SCOPED_TRACE(text(mode) + (own_thread ? ", the thread that captures" : ", another thread"));
      bool const spoils = mode == capture_mode::global || (mode == capture_mode::this_thread && own_thread);
      ASSERT_OK(machine().begin_capture(0, s, mode));
      log(0, s, 1);
      auto const call = [&] { EXPECT_EQ(unsafe_call(outside), !spoils); };
      own_thread ? call() : elsewhere(call);
      spoils ? expect_spoiled(s, b) : expect_whole(s);
    }
  }
}

TEST_P(capture, m17_calls_on_other_streams_spoil_no_capture) {
  auto const s = stream(0), other = stream(0), blocking = stream(0, stream_kind::blocking);
  auto const outside = event(0), begin = event(0, event_kind::timing), end = event(0, event_kind::timing);
  auto const b = memory(0);
  auto* const h = pinned(4096);
  auto const graph = captured(0, s, [&] { log(0, s, 1); });
  std::vector<std::byte> pageable(4096);
  auto const everything = [&] {
    EXPECT_OK(machine().info(0).is);
    EXPECT_OK(machine().open(0));
    EXPECT_OK(machine().memory(0).is);
    EXPECT_OK(machine().find(h).is);
    EXPECT_OK(machine().find(b.words()).is);
    EXPECT_OK(machine().find(pageable.data()).is);
    auto const at = machine().reserve(page(), 0);
    auto const page_handle = machine().create(0, page());
    EXPECT_OK(at.is);
    EXPECT_OK(page_handle.is);
    EXPECT_OK(machine().map(at.value, page(), page_handle.value));
    EXPECT_OK(machine().grant(at.value, page(), 0));
    EXPECT_OK(machine().unmap(at.value, page()));
    EXPECT_OK(machine().release(page_handle.value));
    EXPECT_OK(machine().unreserve(at.value, page()));
    auto const segment = machine().create_segment(0, page());
    EXPECT_OK(segment.is);
    EXPECT_OK(machine().release_segment(0, segment.value));
    EXPECT_NE(pinned(4096), nullptr);
    for (stream_kind const kind : {stream_kind::independent, stream_kind::blocking}) {
      auto const made = machine().create_stream(0, kind, 0);
      EXPECT_OK(made.is);
      EXPECT_OK(machine().query_stream(0, made.value));
      EXPECT_OK(machine().destroy_stream(0, made.value));
    }
    auto const e = machine().create_event(0, event_kind::order_only);
    EXPECT_OK(e.is);
    for (stream_handle const each : {other, blocking}) {
      EXPECT_OK(machine().capturing(0, each).is);
      EXPECT_OK(machine().record(0, each, outside));
      EXPECT_OK(machine().record(0, each, begin));
      EXPECT_OK(machine().record(0, each, end));
      EXPECT_OK(machine().wait(0, each, outside));
      EXPECT_TRUE(becomes(code::ok, [&] { return machine().query_event(outside); }));
      EXPECT_OK(machine().synchronize_event(end));
      EXPECT_OK(machine().elapsed_ms(begin, end).is);
      EXPECT_OK(machine().copy(0, each, b.words(), h, 64));
      EXPECT_SAYS(code::invalid, machine().copy(0, each, b.words(), pageable.data(), 64));
      EXPECT_OK(machine().fill(0, each, b.words(), 0, 4, 4));
      log(0, each, 1);
      EXPECT_OK(machine().host_function(0, each, {[](void*) {}, nullptr, nullptr}));
      EXPECT_TRUE(becomes(code::ok, [&] { return machine().query_stream(0, each); }));
      finish(0, each);
      EXPECT_OK(machine().launch_graph(0, each, graph));
      finish(0, each);
    }
    EXPECT_OK(machine().destroy_event(0, e.value));
    EXPECT_SAYS(code::invalid, machine().copy(0, s, b.words(), pageable.data(), 64));
    EXPECT_SAYS(code::invalid, machine().fill(0, s, b.words(), 0, 3, 1));
    EXPECT_OK(machine().capturing(0, s).is);
  };
  for (capture_mode const mode : all_modes) {
    SCOPED_TRACE(text(mode));
    ASSERT_OK(machine().begin_capture(0, s, mode));
    log(0, s, 2);
    everything();
    elsewhere(everything);
    expect_whole(s);
  }
}

TEST_P(capture, m17_an_event_recorded_inside_is_no_event_outside) {
  auto const s = stream(0), other = stream(0);
  auto const e = event(0);
  auto const graph = captured(0, s, [&] {
    log(0, s, 1);
    EXPECT_OK(machine().record(0, s, e));
  });
  EXPECT_SAYS(code::invalid, machine().query_event(e));
  EXPECT_SAYS(code::invalid, machine().synchronize_event(e));
  EXPECT_OK(machine().launch_graph(0, s, graph));
  finish(0, s);
  EXPECT_SAYS(code::invalid, machine().query_event(e));
  EXPECT_OK(machine().record(0, other, e));
  EXPECT_OK(machine().synchronize_event(e));
  EXPECT_OK(machine().query_event(e));
}

TEST_P(capture, m17_earlier_work_runs_while_the_capture_lasts) {
  auto const s = stream(0), other = stream(0);
  auto const e = event(0);
  auto& g = hold(0, s);
  log(0, s, 1);
  EXPECT_OK(machine().record(0, s, e));
  auto const graph = captured(0, s, [&] {
    log(0, s, 2);
    EXPECT_SAYS(code::not_ready, machine().query_event(e));
    g.open();
    EXPECT_OK(machine().synchronize_event(e));
    EXPECT_EQ(logged(), std::vector<std::uint32_t>{1});
  });
  EXPECT_OK(machine().launch_graph(0, other, graph));
  finish(0, other);
  EXPECT_EQ(logged(), (std::vector<std::uint32_t>{1, 2}));
}

}  // namespace
}  // namespace weir::conformance
