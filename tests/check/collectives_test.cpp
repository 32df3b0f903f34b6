// Correct collectives under the checker, and programs that touch a buffer while a collective uses it.
// Threads: one. It gives the parts of all ranks, which a simulated machine allows.
#include "peer/collective/group.h"
#include "runtime/base/call_site.h"
#include "runtime/core/parts.h"
#include "simulator/checker/race_checker.h"
#include "streams/stream/context.h"
#include "tests/check/programs.h"

namespace weir::check_tests {
namespace {

constexpr std::int64_t count = 1024;
constexpr size_t bytes = count * 4;

std::vector<communicator> two_ranks() {
  return communicator::create_all(std::vector<device>{device(0), device(1)});
}
stream_ref line(int rank) {
  return default_stream(device(rank));
}

// Streams of the program, one buffer a rank, and a collective between the ranks.
struct two {
  std::vector<communicator> ranks = two_ranks();
  buffer in[2] = {buffer(bytes, {.on = device(0)}), buffer(bytes, {.on = device(1)})};
  stream other{device(0)};
  two() {
    for (int r : {0, 1})
      fill(r);
  }
  void fill(int r) {
    device_guard const on(r);
    weir::fill(in[r].data(), std::byte(r), bytes);
  }
  void reduce(stream_ref of_rank_0, source_location at = source_location::current()) {
    {
      stream_guard const on(of_rank_0);
      ranks[0].all_reduce({in[0].data(), count}, reduce_op::sum, at);
    }
    stream_guard const on(line(1));
    ranks[1].all_reduce({in[1].data(), count}, reduce_op::sum, at);
  }
  static void done() {
    for (int r : {0, 1})
      synchronize(device(r));
  }
};

std::string at_line(int n) {
  return "collectives_test.cpp:" + std::to_string(n);
}

// Rank 0's part waits for rank 1's, whose stream waits for rank 0's. Every run reports the same cycle.
TEST(collectives, a_cycle_through_two_ranks_is_printed) {
  using scheduling = simulated::scheduling;
  std::string const after[] = {
      " is at rank 0's part of all_reduce of 4 float32 (sum) (collectives_test.cpp:301), which waits for rank "
      "1's part of ",
      " (collectives_test.cpp:303), not yet run: stream ", " waits (wait at collectives_test.cpp:302) for operation ",
      ": a cycle"};
  std::string first;
  for (auto const& [how, seed] :
       {std::pair{scheduling::seeded, 1}, {scheduling::seeded, 2}, {scheduling::stepped, 0}}) {
    runtime rt{simulated{.devices = 2, .memory = 64 << 20, .schedule = how, .seed = static_cast<std::uint64_t>(seed)},
               {.check_races = true}};
    runtime_guard const in{rt};
    auto ranks = two_ranks();
    buffer const x(64, {.on = device(0)}), y(64, {.on = device(1)});
    stream s{device(0)}, t{device(1)};
    auto const reduce = [&](int rank, stream const& on, buffer const& b, unsigned line) {
      stream_guard const home(on);
      ranks[static_cast<size_t>(rank)].all_reduce({b.data(), 4, float32}, reduce_op::sum,
                                                  {"collectives_test.cpp", "", line});
    };
    reduce(0, s, x, 301);
    t.wait(s, {"collectives_test.cpp", "", 302});
    reduce(1, t, y, 303);
    std::string thrown;
    try {
      s.synchronize();
    } catch (driver_error const& e) {
      thrown = e.what();
    }
    auto const reports = race_reports();
    ASSERT_EQ(reports.size(), 1u);
    EXPECT_EQ(reports[0].kind, "stuck");
    for (std::string const& text : {thrown, reports[0].text}) {
      for (auto const& part : after)
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
      EXPECT_NE(text.find("emove one of the waits"), std::string::npos) << text;
    }
    if (first.empty())
      first = thrown;
    EXPECT_EQ(thrown, first);
    ranks[0].abort();
  }
}

TEST(collectives, steps_on_a_stream_of_their_own_are_right) {
  expect_none(found([] {
    two p;
    for (int step = 0; step < 3; ++step) {
      p.other.wait(line(0));
      p.reduce(p.other);
      line(0).wait(p.other);
      for (int r : {0, 1})
        read(line(r), p.in[r].data(), bytes), p.fill(r);
    }
    p.done();
  }));
}

TEST(collectives, every_kind_on_every_ranks_own_stream_is_right) {
  expect_none(found([] {
    two p;
    buffer all[2] = {buffer(2 * bytes, {.on = device(0)}), buffer(2 * bytes, {.on = device(1)})};
    buffer sent[2] = {buffer(2 * bytes, {.on = device(0)}), buffer(2 * bytes, {.on = device(1)})};
    for (int step = 0; step < 2; ++step) {
      for (int r : {0, 1})
        p.ranks[r].all_gather({all[r].data(), 2 * count}, {p.in[r].data(), count});
      for (int r : {0, 1})
        p.ranks[r].reduce_scatter({p.in[r].data(), count}, {all[r].data(), 2 * count});
      for (int r : {0, 1})
        p.ranks[r].broadcast({all[r].data(), 2 * count}, step);
      for (int r : {0, 1})
        p.ranks[r].all_to_all({sent[r].data(), 2 * count}, {all[r].data(), 2 * count});
      for (int r : {0, 1})
        p.ranks[r].all_gather({all[r].data(), 2 * count}, {all[r].data<float>() + r * count, count});
    }
    p.done();
  }));
}

TEST(collectives, all_to_all_uses_both_buffers_to_the_last_byte) {
  for (int const wrong : {0, 1, 2}) {  // nothing; the last byte of `in` is written beside it; that of `out` is read
    auto const all = found([&] {
      two p;
      buffer out[2] = {buffer(bytes, {.on = device(0)}), buffer(bytes, {.on = device(1)})};
      p.other.wait(line(0));
      for (int r : {0, 1})
        p.ranks[r].all_to_all({out[r].data(), count}, {p.in[r].data(), count});
      if (wrong == 1)
        write(p.other, p.in[0].data<std::byte>() + bytes - 1, 1);
      if (wrong == 2)
        read(p.other, out[0].data<std::byte>() + bytes - 1, 1);
      p.done();
      p.other.synchronize();
    });
    EXPECT_EQ(all.size(), wrong ? 1u : 0u) << wrong;
  }
}

TEST(collectives, transfers_use_their_memory_to_the_last_byte) {
  // nothing; the last byte sent is written beside it; read, which is right; the last byte received is read
  for (int const wrong : {0, 1, 2, 3}) {
    for (bool const both : {false, true}) {
      auto const all = found([&] {
        two p;
        buffer out[2] = {buffer(bytes, {.on = device(0)}), buffer(bytes, {.on = device(1)})};
        p.other.wait(line(0));
        auto const in_of = [&](int r) { return device_span{p.in[r].data(), count}; };
        auto const out_of = [&](int r) { return device_span{out[r].data(), count}; };
        if (both) {
          for (int r : {0, 1})
            p.ranks[r].send_receive(in_of(r), 1 - r, out_of(r), 1 - r);
        } else {
          p.ranks[0].send(in_of(0), 1), p.ranks[1].receive(out_of(1), 0);
          p.ranks[1].send(in_of(1), 0), p.ranks[0].receive(out_of(0), 1);
        }
        if (wrong == 1)
          write(p.other, p.in[0].data<std::byte>() + bytes - 1, 1);
        if (wrong == 2)
          read(p.other, p.in[0].data<std::byte>() + bytes - 1, 1);
        if (wrong == 3)
          read(p.other, out[0].data<std::byte>() + bytes - 1, 1);
        p.done();
        p.other.synchronize();
      });
      EXPECT_EQ(all.size(), wrong % 2 ? 1u : 0u) << wrong << both;
    }
  }
}

TEST(collectives, buckets_reduced_during_backward_are_right) {
  expect_none(found([] {
    auto ranks = two_ranks();
    std::vector<gradient_buckets> g;
    for (int r : {0, 1}) {
      device_guard const on(r);
      g.emplace_back(ranks[r], bucket_options{.bucket_bytes = 1});
      g.back().add("first", count), g.back().add("last", count);
      g.back().build();
    }
    for (int step = 0; step < 2; ++step) {
      for (int which : {1, 0}) {
        for (int r : {0, 1}) {
          device_guard const on(r);
          write(line(r), g[r].gradient(which).data, bytes);
          g[r].mark_ready(which, line(r));
        }
      }
      for (int r : {0, 1})
        g[r].finish(line(r));
      for (int r : {0, 1})
        read(line(r), g[r].gradient(0).data, bytes), read(line(r), g[r].gradient(1).data, bytes);
    }
    two::done();
  }));
}

// Two gradients in one bucket, reduced on a stream that the program does not know.
struct bucketed {
  std::vector<communicator> ranks = two_ranks();
  std::vector<gradient_buckets> g;
  stream other{device(0)};
  bucketed() {
    for (int r : {0, 1}) {
      device_guard const on(r);
      g.emplace_back(ranks[static_cast<size_t>(r)]);
      g.back().add("first", count), g.back().add("last", count);
      g.back().build();
    }
  }
  void mark(int which) {
    for (int r : {0, 1}) {
      device_guard const on(r);
      write(line(r), g[static_cast<size_t>(r)].gradient(which).data, bytes);
      g[static_cast<size_t>(r)].mark_ready(which, line(r));
    }
  }
  void finish() {
    for (int r : {0, 1})
      g[static_cast<size_t>(r)].finish(line(r));
    two::done();
  }
};

TEST(collectives, a_use_before_finish_names_gradient_and_call) {
  int wrote = 0;
  auto const all = found([&] {
    bucketed p;
    p.mark(1), p.mark(0);
    write(line(0), p.g[0].gradient(0).data, bytes), wrote = __LINE__;
    p.finish();
  });
  expect_one(
      all, "race",
      {", gradient \"first\" (gradient 0) in bucket 0: all_reduce at ", "writes them on weir's own stream 3 of gpu:0",
       "Remedy: before " + at_line(wrote) + " call gradient_buckets::finish with stream 2 of gpu:0",
       "or write before gradient_buckets::mark_ready.",
       "On weir's own stream 3 of gpu:0 run the reductions of rank 0."});
}

// The program's blocks have names, too: two gradients in one, and other bytes between them.
TEST(collectives, a_gradient_in_a_block_of_the_program_is_named) {
  int wrote = 0;
  for (bool const beside : {false, true}) {
    auto const all = found([&] {
      two p;
      std::vector<gradient_buckets> g;
      for (int r : {0, 1}) {
        device_guard const on(r);
        g.emplace_back(p.ranks[static_cast<size_t>(r)]);
        g.back().add("first", {}, {p.in[r].data(), count / 4});
        g.back().add("last", {}, {p.in[r].data<float>() + count / 2, count / 4});
        g.back().build();
        for (int which : {1, 0})
          g.back().mark_ready(which, line(r));
      }
      float* const at = p.in[0].data<float>() + (beside ? count / 4 : count / 2);
      write(line(0), at, bytes / 4), wrote = __LINE__;
      for (int r : {0, 1})
        g[static_cast<size_t>(r)].finish(line(r));
      two::done();
    });
    if (beside)
      expect_none(all);
    else
      expect_one(all, "race",
                 {", gradient \"last\" (gradient 1) in bucket 0: all_reduce at ",
                  "Remedy: before " + at_line(wrote) + " call gradient_buckets::finish with stream 1 of gpu:0",
                  "run the reductions of rank 0."});
  }
}

TEST(collectives, a_write_beside_mark_ready_names_that_call) {
  auto const all = found([&] {
    bucketed p;
    p.mark(1);
    p.other.wait(line(0));
    write(p.other, p.g[0].gradient(1).data, bytes);
    p.mark(0);
    p.finish();
  });
  expect_one(all, "race",
             {", gradient \"last\" (gradient 1) in bucket 0: ",
              "Remedy: call gradient_buckets::mark_ready with stream 1 of gpu:0 after launch at ",
              "On weir's own stream 3 of gpu:0 run the reductions of rank 0."});
}

TEST(collectives, a_write_under_a_collective_names_both_lines) {
  int reduced = 0, wrote = 0;
  auto const all = found([&] {
    two p;
    p.other.wait(line(0));
    p.reduce(line(0)), reduced = __LINE__;
    write(p.other, p.in[0].data(), bytes), wrote = __LINE__;
    p.done();
  });
  expect_one(all, "race",
             {"all_reduce at " + at_line(reduced) + " writes them on stream 1 of gpu:0",
              "launch at " + at_line(wrote) + " writes them on stream"});
}

TEST(collectives, a_missing_wait_for_the_input_is_reported) {
  expect_one(found([] {
               two p;
               p.reduce(p.other);
               p.done();
             }),
             "race", {"fill at", "all_reduce at"});
}

TEST(collectives, inputs_may_be_read_but_not_written_beside_it) {
  auto const run = [](bool right) {
    two p;
    buffer all[2] = {buffer(2 * bytes, {.on = device(0)}), buffer(2 * bytes, {.on = device(1)})};
    p.other.wait(line(0));
    for (int r : {0, 1})
      p.ranks[r].all_gather({all[r].data(), 2 * count}, {p.in[r].data(), count});
    right ? read(p.other, p.in[0].data(), bytes) : write(p.other, p.in[0].data(), bytes);
    p.done();
  };
  expect_none(found([&] { run(true); }));
  expect_one(found([&] { run(false); }), "race", {"all_gather at", "reads them"});
}

// The communicator marks the block for its stream, so the program may free it at once.
TEST(collectives, a_buffer_freed_under_a_collective_waits_for_it) {
  expect_none(found([] {
    two p;
    p.other.wait(line(0));
    p.reduce(p.other);
    p.in[0].reset();
    buffer again(bytes, {.on = device(0)});
    write(line(0), again.data(), bytes);
    p.done();
  }));
}

// NCCL bypasses the driver interface, so weir declares the bytes after each call. This work does too.
struct as_nccl {
  explicit as_nccl(stream_ref s) : on(streams::clock_of(s)) {}
  void call(peer::collective_request const& r, source_location at = source_location::current()) const {
    auto& machine = runtime::current().get().machine();
    base::call_site const in(true, name_of(r.what).data(), at);
    machine.touched(on.device(), on.handle(), r.touches(2));
  }
  clock::stream_clock& on;
};
peer::collective_request gather(buffer const& in, buffer const& out) {
  return {peer::collective::all_gather, float32, reduce_op::sum, 0, count, in.data(), out.data()};
}

TEST(backend_collectives, are_judged_by_what_they_declare) {
  auto const run = [](int how) {
    stream s, t;
    stream_guard const home(s);
    buffer in(bytes), out(2 * bytes);
    write(s, in.data(), bytes);
    t.wait(s);
    as_nccl(t).call(gather(in, out));
    if (how == 0)
      s.wait(t);
    if (how == 1)
      t.synchronize();
    how == 3 ? read(s, in.data(), bytes) : write(s, in.data(), bytes);
    if (how != 4)
      s.wait(t);
    read(s, out.data(), 2 * bytes);
    s.wait(t);
    synchronize();
  };
  for (int how : {0, 1, 3})
    expect_none(found([&] { run(how); }));
  expect_one(found([&] { run(2); }), "race", {"all_gather at", "reads them on stream 2", "writes them on stream 1"});
  EXPECT_EQ(found([&] { run(4); }).size(), 2u) << "its input is written, and its result read";
}

TEST(backend_collectives, a_buffer_freed_under_one_is_reported) {
  expect_one(found([] {
               stream s, t;
               stream_guard const home(s);
               buffer in(bytes), out(2 * bytes);
               write(s, in.data(), bytes);
               t.wait(s);
               as_nccl(t).call(gather(in, out));
               in.reset();
               s.wait(t);
               synchronize();
             }),
             "freed in use", {"all_gather at", "record_stream"});
}

}  // namespace
}  // namespace weir::check_tests
