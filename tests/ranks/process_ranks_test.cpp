// Ranks of several processes: the same bits as threads of one process, mismatched calls, leaving, and barriers.
// WEIR_TEST_SEEDS and WEIR_TEST_SEED: tests/support/seeds.h. Most tests play the processes by threads with
// runtimes of their own.
#include <future>
#include <optional>

#include "runtime/base/os_tcp.h"
#include "runtime/core/parts.h"
#include "simulator/faults/fault_injector.h"
#include "tests/ranks/rank_threads.h"
#include "tests/support/refused.h"
#include "tests/support/seeds.h"
#include "weir/graph.h"
#include "weir/sim.h"
#include "weir/tensor.h"
#include "weir/timeline.h"

namespace {

using namespace weir;
using namespace weir::test;
using namespace std::chrono_literals;

struct step {
  int call, root;
  dtype type;
  reduce_op how;
  std::int64_t count;
  bool on_side;  // on a second stream
};

std::vector<step> draw(std::uint64_t seed, int ranks) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<step> all(4 + random() % 12);
  for (step& s : all) {
    s = {static_cast<int>(random() % 9),
         static_cast<int>(random() % static_cast<unsigned>(ranks)),
         reducible_types[random() % std::size(reducible_types)],
         all_reductions[random() % 4],
         static_cast<std::int64_t>(random() % 3 ? random() % 50 : random() % 20'000),
         random() % 2 == 0};
  }
  return all;
}

// Returns: every byte that the rank holds after each step.
std::vector<elements> play(communicator& c, std::vector<step> const& all, std::uint64_t seed) {
  device_guard const at(c.device());
  std::mt19937 random(static_cast<unsigned>(seed * 31 + static_cast<unsigned>(c.rank())));
  stream const side(c.device());
  std::vector<elements> results;
  for (step const& s : all) {
    std::int64_t const n = s.count, whole = n * c.size();
    auto const bring = [&](std::int64_t count) {
      return to_device(encode(s.type, values_of(count, [&](std::int64_t i) { return brought(s.type, c.rank(), i); })));
    };
    auto const empty = [&](std::int64_t count) {
      return to_device(elements(static_cast<std::size_t>(count) * size_of(s.type)));
    };
    auto const of = [&](buffer const& b, std::int64_t count) { return device_span{b.data(), count, s.type}; };
    buffer in, out;
    int const next = (c.rank() + 1) % c.size(), last = (c.rank() + c.size() - 1) % c.size();
    bool const transfers = s.call == 7 && (c.rank() == s.root || last == s.root);
    bool const brings_all = s.call == 3 || s.call == 4 || s.call == 6,
               gets_all = s.call == 2 || s.call == 5 || s.call == 6;
    in = bring(brings_all ? whole : n);
    out = empty(gets_all ? whole : n);
    pause_at_random(random);
    {
      std::optional<stream_guard> on;
      if (s.on_side) {
        side.wait(current_stream());
        on.emplace(side);
      }
      switch (s.call) {
        case 0: c.all_reduce(of(in, n), s.how); break;
        case 1: c.broadcast(of(in, n), s.root); break;
        case 2: c.all_gather(of(out, whole), of(in, n)); break;
        case 3: c.reduce_scatter(of(out, n), of(in, whole), s.how); break;
        case 4: c.scatter(of(out, n), of(in, whole), s.root); break;
        case 5: c.gather(of(out, whole), of(in, n), s.root); break;
        case 6: c.all_to_all(of(out, whole), of(in, whole)); break;
        case 7:
          if (!transfers)
            break;
          c.rank() == s.root ? c.send(of(in, n), next) : c.receive(of(out, n), last);
          break;
        case 8: c.send_receive(of(in, n), next, of(out, n), last); break;
      }
    }
    if (s.on_side)
      side.synchronize();
    bool const holds = s.call != 5 || c.rank() == s.root;
    buffer const& result = s.call < 2 ? in : out;
    results.push_back(holds ? to_host(result.data(), result.size()) : elements{});
  }
  c.barrier();  // rank 0 carries the others' transfers
  return results;
}

// The bytes cross a socket once a call, so that a graph could not repeat them.
TEST(process_ranks, refuse_a_collective_in_a_capture) {
  as_ranks(2, [](communicator& c) {
    device_guard const at(c.device());
    stream const s(c.device());
    stream_guard const in(s);
    buffer const b = to_device(elements(64));
    device_span const all{b.data(), 16, float32};
    c.all_reduce(all);
    std::string const said = refusal<not_supported>([&] { (void)graph::capture(s, [&] { c.all_reduce(all); }); });
    EXPECT_NE(said.find("exchange once a call"), std::string::npos) << said;
    c.all_reduce(all);
    s.synchronize();
  });
}

TEST(process_ranks, hold_the_bits_that_threads_hold) {
  for (std::uint64_t const seed : tests::seeds("collectives of processes", 40)) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    int const ranks = 2 + static_cast<int>(seed % 3);
    auto const program = draw(seed, ranks);
    std::vector<std::vector<elements>> here(static_cast<std::size_t>(ranks)), there(here);
    {
      runtime machine(simulated{.devices = ranks, .memory = 64_MiB});
      runtime_guard const in(machine);
      auto all = communicator::create_all(first_devices(ranks));
      on_each(machine, all,
              [&](communicator& c) { here[static_cast<std::size_t>(c.rank())] = play(c, program, seed); });
    }
    as_ranks(ranks, [&](communicator& c) { there[static_cast<std::size_t>(c.rank())] = play(c, program, seed); });
    for (std::size_t r = 0; r < here.size(); ++r)
      for (std::size_t i = 0; i < program.size(); ++i)
        ASSERT_TRUE(here[r][i] == there[r][i]) << "rank " << r << ", step " << i << ": " << program[i].call << " of "
                                               << program[i].count << " " << name_of(program[i].type);
  }
}

TEST(process_ranks, one_alone_needs_no_other) {
  as_ranks(1, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1, 2, 3}));
    c.all_reduce({b.data(), 3, int32});
    c.barrier(100ms);
    EXPECT_EQ(to_host(b.data(), b.size()), encode(int32, {1, 2, 3}));
    EXPECT_EQ(c.failure(), "");
  });
}

TEST(process_ranks, outlive_their_runtime) {
  std::optional<communicator> kept;
  {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const in(machine);
    kept = communicator::create(communicator::unique_id(), 0, 1, device(0));
    buffer const b = to_device(encode(int32, {1}));
    kept->all_reduce({b.data(), 1, int32});
  }
  EXPECT_NE(refusal<invalid_use>([&] { kept->barrier(); }).find("has ended"), std::string::npos);
  kept->abort();
}

// Both requests are named on every rank, and no rank hangs.
TEST(process_ranks, another_call_ends_all_by_name) {
  std::vector<std::string> said;
  as_ranks(
      3,
      [](communicator& c) {
        buffer const b = to_device(encode(int32, {1, 2, 3, 4}));
        c.all_reduce({b.data(), 4, int32});
        c.all_reduce({b.data(), c.rank() == 2 ? 2 : 4, int32}, c.rank() == 2 ? reduce_op::max : reduce_op::sum);
        current_stream().synchronize();
        for (int i = 0; i < 1000; ++i)
          c.all_reduce({b.data(), 4, int32}), current_stream().synchronize();
      },
      {.start = 20s}, &said);
  for (std::string const& text : said) {
    EXPECT_NE(text.find("rank 2 calls all_reduce of 2 int32 (max) where rank 0 called all_reduce of 4 int32 (sum)"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("collective 2"), std::string::npos) << text;
  }
}

TEST(process_ranks, that_give_up_are_named_by_the_others) {
  for (int const who : {0, 1, 2}) {
    std::vector<std::string> said;
    as_ranks(
        3,
        [who](communicator& c) {
          buffer const b = to_device(encode(int32, {1, 2, 3, 4}));
          c.all_reduce({b.data(), 4, int32});
          if (c.rank() == who)
            throw std::runtime_error("enough");
          while (true)
            c.all_reduce({b.data(), 4, int32}), current_stream().synchronize();
        },
        {.start = 20s}, &said);
    for (int r = 0; r < 3; ++r) {
      std::string const& text = said[static_cast<std::size_t>(r)];
      if (r == who)
        EXPECT_EQ(text, "enough");
      else
        EXPECT_NE(text.find("rank " + std::to_string(who)), std::string::npos) << text;
    }
  }
}

TEST(process_ranks, abort_releases_streams_and_is_named) {
  std::vector<std::string> said;
  as_ranks(
      3,
      [](communicator& c) {
        buffer const b = to_device(encode(int32, {1}));
        if (c.rank() == 1) {
          std::this_thread::sleep_for(50ms);
          c.abort();
          EXPECT_NE(c.failure(), "");
        } else {
          c.all_reduce({b.data(), 1, int32}).synchronize();
          EXPECT_NE(c.failure().find("rank 1 gave up: its program aborted"), std::string::npos) << c.failure();
        }
        c.all_reduce({b.data(), 1, int32});
      },
      {.start = 20s}, &said);
  for (std::string const& text : said) {
    EXPECT_NE(text.find("rank 1 gave up"), std::string::npos) << text;
    EXPECT_NE(text.find("Start the program again"), std::string::npos) << text;
  }
}

TEST(process_ranks, wait_at_a_barrier_for_those_that_come_late) {
  base::atomic<int> came{0};
  as_ranks(4, [&](communicator& c) {
    for (int round = 1; round <= 20; ++round) {
      if (c.rank() == round % 4)
        std::this_thread::sleep_for(3ms);
      came.fetch_add(1);
      c.barrier();
      EXPECT_GE(came.load(), 4 * round);
    }
  });
}

// A rank that timed out has not arrived, and may call again.
TEST(process_ranks, a_late_barrier_names_who_is_missing) {
  for (int const late : {0, 2}) {
    as_ranks(3, [late](communicator& c) {
      if (c.rank() == late) {
        std::this_thread::sleep_for(300ms);
      } else {
        std::string const text = refusal<timed_out>([&] { c.barrier(60ms); });
        EXPECT_NE(text.find("ms for rank " + std::to_string(late) + "."), std::string::npos) << text;
      }
      c.barrier();
    });
  }
}

TEST(process_ranks, a_rank_that_left_is_named_to_those_that_call) {
  as_ranks(2, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1}));
    c.all_reduce({b.data(), 1, int32});
    if (c.rank() == 1)
      return;
    std::string text;
    while (text.empty()) {
      try {
        c.all_reduce({b.data(), 1, int32}).synchronize();
      } catch (error const& e) {
        text = e.operands();
      }
    }
    EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
  });
}

TEST(process_ranks, a_refused_part_changes_nothing) {
  as_ranks(2, [](communicator& c) {
    buffer const b = to_device(encode(int32, {1, 2, 3}));
    if (c.rank() == 1) {
      simulation::of(runtime::current()).fail_call("enqueue", 1);
      EXPECT_NE(refusal<driver_error>([&] { c.all_reduce({b.data(), 3, int32}); }), "");
    }
    c.all_reduce({b.data(), 3, int32});
    EXPECT_EQ(to_host(b.data(), b.size()), encode(int32, {2, 4, 6}));
  });
}

TEST(process_ranks, a_part_refused_in_its_middle_ends_all) {
  std::vector<std::string> said;
  as_ranks(
      2,
      [](communicator& c) {
        buffer const b = to_device(encode(int32, {1, 2, 3}));
        if (c.rank() == 1) {
          simulation::of(runtime::current()).fail_call("enqueue", 2);
          EXPECT_NE(refusal<driver_error>([&] { c.all_reduce({b.data(), 3, int32}); }), "") << "the refused call";
        }
        while (true)
          c.all_reduce({b.data(), 3, int32}), current_stream().synchronize();
      },
      {.start = 20s}, &said);
  EXPECT_NE(said[0].find("rank 1"), std::string::npos) << said[0];
  EXPECT_NE(said[1], "");
}

// Rank 2 leaves while rank 1 is between its agreement and the backend, which knows of no call yet.
TEST(process_ranks, one_that_leaves_within_a_call_is_named) {
  struct waits final : driver::fault_injector::watcher {
    base::atomic<int>* turn = nullptr;
    void enters(driver::call c) noexcept override {  // the record before the call's work, for the timeline
      if (c != driver::call::record || turn->load() != 0)
        return;
      turn->store(1);
      std::this_thread::sleep_for(300ms);  // the others hear that rank 2 leaves
    }
  } within;
  base::atomic<int> turn{-1};
  within.turn = &turn;
  record_timeline();
  as_ranks(3, [&](communicator& c) {
    if (c.rank() == 0) {  // stays
      while (turn.load() < 2)
        std::this_thread::sleep_for(1ms);
      return;
    }
    if (c.rank() == 2) {
      while (turn.load() < 1)
        std::this_thread::sleep_for(1ms);
      communicator const leaves = std::move(c);
      return;
    }
    buffer const b = to_device(encode(int32, {1}));
    current_stream().synchronize();
    auto* const machine = driver::fault_injector_of(runtime::current().get().machine());
    machine->watch(&within);
    turn.store(0);
    try {
      c.all_reduce({b.data(), 1, int32});
    } catch (driver_error const&) {}
    EXPECT_GE(turn.load(), 1) << "no record came before the call's work";
    for (int i = 0; i < 5000 && c.failure().empty(); ++i)
      std::this_thread::sleep_for(1ms);
    EXPECT_NE(c.failure().find("rank 2 has destroyed its communicator"), std::string::npos) << c.failure();
    c.abort();  // else the stream would wait
    current_stream().synchronize();
    machine->watch(nullptr);
    turn.store(2);
  });
  stop_timeline();
}

TEST(process_ranks, a_lost_device_is_named_by_the_others) {
  std::vector<std::string> said;
  as_ranks(
      2,
      [](communicator& c) {
        buffer const b = to_device(encode(int32, {1, 2, 3}));
        c.all_reduce({b.data(), 3, int32});
        current_stream().synchronize();
        if (c.rank() == 1)
          simulation::of(runtime::current()).lose_device(device(0));
        while (true)
          c.all_reduce({b.data(), 3, int32}), current_stream().synchronize();
      },
      {.start = 20s}, &said);
  EXPECT_NE(said[0].find("rank 1"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("lost"), std::string::npos) << said[1];
}

// Threads' communicators lose nothing by the other kind beside them.
TEST(process_ranks, gradients_are_reduced_in_buckets) {
  as_ranks(2, [](communicator& c) {
    gradient_buckets all(c, {.bucket_bytes = 4096, .average = false});
    for (int i = 0; i < 6; ++i)
      all.add("g" + std::to_string(i), 1000);
    all.build();
    for (int round = 1; round <= 3; ++round) {
      for (int i = 5; i >= 0; --i) {
        fill(all.gradient(i).data, std::byte{0}, 4000);
        std::vector<float> const mine(1000, static_cast<float>(c.rank() + i + round));
        copy(all.gradient(i).data, mine.data(), 4000);
        all.mark_ready(i, current_stream());
      }
      all.finish(current_stream());
      for (int i = 0; i < 6; ++i)
        EXPECT_EQ(to_host(all.gradient(i).data, 4000), encode(float32, std::vector<double>(1000, 2 * (i + round) + 1)));
    }
  });
}

// In the program's memory, apart and beside each other, through a function, and as bfloat16.
TEST(process_ranks, gradients_of_the_program_are_reduced) {
  as_ranks(2, [](communicator& c) {
    for (bool const as_halves : {false, true}) {
      bucket_options o{.bucket_bytes = 6000, .average = false};
      if (as_halves)
        o.reduce_as = bfloat16;
      o.before_reduction = [](device_span g, stream_ref) {
        tensor::from_blob(g.data, {g.count}, g.dtype, gpu).mul_(2);
      };
      gradient_buckets all(c, o);
      buffer const memory(4 * 4096), apart(4096);
      for (int i = 0; i < 4; ++i)
        all.add("g", {}, {i == 1 ? apart.data() : memory.data<float>() + i * 1024, 1024, float32});
      all.build();
      for (int round = 1; round <= 2; ++round) {
        for (int i = 3; i >= 0; --i) {
          all.gradient_tensor(i, {1024}).fill_(c.rank() + i + round);
          all.mark_ready(i, current_stream());
        }
        all.finish(current_stream());
        for (int i = 0; i < 4; ++i)
          EXPECT_EQ(to_host(all.reduced(i).data, as_halves ? 2048 : 4096),
                    encode(as_halves ? bfloat16 : float32, std::vector<double>(1024, 4 * (i + round) + 2)));
      }
    }
  });
}

// Refused calls ---------------------------------------------------------------------------------------------

TEST(process_ranks, are_refused_with_wrong_arguments) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  auto const says = [](auto action, char const* words) {
    std::string const text = refusal<invalid_use>(action);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  std::string const id = communicator::unique_id();
  says([&] { communicator::create("weir:12:0:x", 0, 2, device(0)); }, "is no id");
  says([&] { communicator::create("", 0, 2, device(0)); }, "is no id");
  says([&] { communicator::create("weir:zz:1:host", 1, 2, device(0)); }, "is no id");
  says([&] { communicator::create("weir:1:99999:host", 1, 2, device(0)); }, "is no id");
  says([&] { communicator::create(id, 2, 2, device(0)); }, "rank 2 of 2");
  says([&] { communicator::create(id, -1, 2, device(0)); }, "rank -1 of 2");
  says([&] { communicator::create(id, 0, 0, device(0)); }, "rank 0 of 0");
  says([&] { communicator::create(id, 0, 1, device(7)); }, "7");
  says([&] { communicator::create(id, 0, 1, cpu); }, "cpu");
  says([&] { communicator::create("weir:7:1000:127.0.0.1", 0, 1, device(0)); }, "did not make");
  says([&] { communicator::create(id, 0, 1, device(0), {.start = 0ms}); }, ".start = 0 ms");
  says([&] { communicator::create(id, 0, 1, device(0), {.silence = -1ms}); }, ".silence = -1 ms");
  (void)communicator::create(id, 0, 1, device(0));
  says([&] { communicator::create(id, 0, 1, device(0)); }, "that is used");
}

TEST(process_ranks, missing_ones_are_named_when_time_is_up) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  std::string const text =
      refusal<timed_out>([&] { communicator::create(communicator::unique_id(), 0, 3, device(0), {.start = 100ms}); });
  EXPECT_NE(text.find("rank 1, rank 2 of 3 did not come within 100 ms"), std::string::npos) << text;
  std::string const alone = refusal<timed_out>([&] {
    communicator::create("weir:7:" + std::to_string(os::listen_tcp(0).port) + ":127.0.0.1", 1, 2, device(0),
                         {.start = 100ms});
  });
  EXPECT_NE(alone.find("rank 1 of 2: rank 0 at 127.0.0.1"), std::string::npos) << alone;
}

// Before it meets the others, who would wait for it.
TEST(process_ranks, a_device_that_does_not_open_is_told_at_once) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB});
  runtime_guard const in(machine);
  simulation::of(machine).fail_call("open", 1);
  std::string const text =
      refusal<driver_error>([&] { communicator::create(communicator::unique_id(), 0, 2, device(0), {.start = 2s}); });
  EXPECT_EQ(text.find("did not come"), std::string::npos) << text;
  EXPECT_NE(text.find("communicator: gpu:0"), std::string::npos) << text;
}

TEST(process_ranks, a_seeded_machine_is_refused) {
  runtime machine(simulated{.devices = 1, .memory = 64_MiB, .schedule = simulated::scheduling::seeded, .seed = 1});
  runtime_guard const in(machine);
  EXPECT_NE(refusal<not_supported>([&] { communicator::create(communicator::unique_id(), 0, 1, device(0)); }), "");
}

// Each refused call of the system is reported, and a second try works.
TEST(process_ranks, can_be_made_after_a_refused_call) {
  static base::atomic<int> left{0};
  static os::call which{};
  for (os::call const c : {os::call::listen_tcp, os::call::make_thread}) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const in(machine);
    current_stream().synchronize();
    which = c;
    left.store(1);
    os::refuse_by([](os::call k) noexcept { return k == which && left.load() > 0 && left.fetch_sub(1) > 0; });
    EXPECT_THROW((void)communicator::create(communicator::unique_id(), 0, 1, device(0)), driver_error);
    os::refuse_by(nullptr);
    (void)communicator::create(communicator::unique_id(), 0, 1, device(0));
  }
}

}  // namespace
