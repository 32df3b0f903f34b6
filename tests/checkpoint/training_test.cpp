// A training that many ranks wrote goes on with any number of ranks, to the same bits. What is of another training is
// refused on all ranks, and changes nothing.
// Threads: one for each rank.
#include <random>

#include "tests/checkpoint/files.h"
#include "tests/peer/ranks.h"
#include "tests/ranks/rank_threads.h"
#include "tests/support/refused.h"
#include "weir/sim.h"

namespace weir::training_checkpoint_tests {
namespace {

using namespace weir::test;

struct trainings : in_a_folder {
  struct model {
    gradient_buckets all;
    optimizer by;
  };
  // Matrices of three types. Some rank has no part of the smallest bucket.
  static model made(communicator& c) {
    gradient_buckets g(c, {.bucket_bytes = 4096, .sharded = true});
    g.add("halves", {3, 1}, bfloat16);
    g.add("matrix", {70, 100});
    g.add("row", 5001);
    g.add("doubles", {3, 3}, float64);
    g.build();
    std::vector<update_item> items = items_of(g);
    return {std::move(g), adamw(items, {.rate = 0.1})};
  }
  static void train(communicator& c, model& m, int steps) {
    std::mt19937 random(static_cast<unsigned>(c.rank()));
    for (int step = 0; step < steps; ++step) {
      for (int i = m.all.size() - 1; i >= 0; --i) {
        device_span const g = m.all.gradient(i);
        elements const values = encode(g.dtype, values_of(g.count, [&](std::int64_t) { return random() % 16 - 8.0; }));
        copy(g.data, values.data(), values.size());
        m.all.mark_ready(i, current_stream());
      }
      m.all.finish(current_stream());
      m.by.step(current_stream());
      m.all.gather(current_stream());
    }
  }
  template <class Body>
  static void as_threads(int size, Body body) {
    runtime machine(simulated{.devices = size, .memory = 64_MiB});
    runtime_guard const in(machine);
    auto ranks = communicator::create_launched();
    run_ranks(ranks, body);
  }
  // Reads one file on so many ranks, and writes another from what they have then.
  static void go_on(communicator& c, std::filesystem::path const& from, std::filesystem::path const& to) {
    model m = made(c);
    training_checkpoint all(to, c, training_items(m.all, m.by), {{"of", "this test"}});
    EXPECT_EQ(all.resume(from), 3);
    EXPECT_EQ(m.by.steps(current_stream()), 3);
    all.save(3);
    all.finish();
  }
  static void expect_same(std::filesystem::path const& a, std::filesystem::path const& b) {
    runtime machine(simulated{.devices = 1, .memory = 64_MiB});
    runtime_guard const in(machine);
    checkpoint_reader const one(a), other(b);
    EXPECT_EQ(one.metadata(), other.metadata());
    EXPECT_EQ(one.entries().size(), 4u + 3 + 2 * 4 + 1);  // parameters, numbers, moments, the master copy
    for (checkpoint_entry const& e : one.entries()) {
      ASSERT_NE(other.find(e.name), nullptr) << e.name;
      EXPECT_EQ(other.find(e.name)->extents, e.extents) << e.name;
      tensor const x = one.read(e.name, cpu), y = other.read(e.name, cpu);
      EXPECT_EQ(std::memcmp(x.data(), y.data(), e.bytes), 0) << e.name;
    }
  }
};

TEST_F(trainings, of_4_ranks_go_on_with_2_then_8_then_1) {
  as_threads(4, [&](communicator& c) {
    model m = made(c);
    training_checkpoint all(folder_ / "of_4", c, training_items(m.all, m.by), {{"of", "this test"}});
    EXPECT_EQ(all.resume(), 0);
    train(c, m, 3);
    all.save(3);
    all.finish();
  });
  std::filesystem::path last = folder_ / "of_4";
  for (int const ranks : {2, 8, 1}) {
    auto const next = folder_ / ("of_" + std::to_string(ranks));
    as_threads(ranks, [&](communicator& c) { go_on(c, last, next); });
    expect_same(folder_ / "of_4", next);
    last = next;
  }
  // A reader on each rank takes the same parts.
  as_threads(3, [&](communicator& c) {
    model m = made(c);
    checkpoint_reader(last).read(training_items(m.all, m.by));
    checkpoint_writer writer(folder_ / "of_3", c);
    writer.save(training_items(m.all, m.by), {{"of", "this test"}, {"step", "3"}});
    writer.finish();
  });
  expect_same(last, folder_ / "of_3");
}

// Ranks of several processes send their parts.
TEST_F(trainings, go_on_across_processes) {
  as_threads(2, [&](communicator& c) {
    model m = made(c);
    train(c, m, 3);
    training_checkpoint all(folder_ / "of_2", c, training_items(m.all, m.by), {{"of", "this test"}});
    all.save(3);
    all.finish();
  });
  test::as_ranks(3, [&](communicator& c) {
    go_on(c, folder_ / "of_2", folder_ / "of_3");
    c.barrier();
  });
  expect_same(folder_ / "of_2", folder_ / "of_3");
}

TEST_F(trainings, that_are_others_are_refused_on_all_ranks) {
  as_threads(2, [&](communicator& c) {
    model m = made(c);
    auto const saved = training_items(m.all, m.by);
    training_checkpoint all(file(), c, saved, {{"of", "this test"}});
    all.save(7);
    all.finish();
    auto const says = [&](std::vector<checkpoint_item> const& items, checkpoint_metadata const& of) {
      c.barrier();
      training_checkpoint other("", c, items, of);
      std::string const text = unreadable([&] { other.resume(file()); });
      return c.rank() == 0 ? text : text.find("rank 0 cannot go on from") != text.npos ? "" : "not told: " + text;
    };
    auto const has = [&](std::string const& text, char const* words) {
      EXPECT_TRUE(c.rank() == 0 ? text.find(words) != text.npos : text.empty()) << text;
    };
    has(says(saved, {{"of", "another"}}), "is of another training: \"of\"");
    has(says(saved, {{"more", ""}}), "is of another training: \"more\"");
    auto items = saved;
    items[0].name = "unknown";
    has(says(items, {}), "is of another training: \"unknown\"");
    items = saved;
    items[1].extents = {7000};
    has(says(items, {}), "is of another training: \"matrix\"");
    c.barrier();
    if (c.rank() == 0) {
      std::string bytes = bytes_of_file(file());
      bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
      write_file(file(), bytes);
    }
    has(says(saved, {}), "is damaged");
    training_checkpoint none("", c, saved);
    EXPECT_EQ(none.resume(), 0);
    none.save(1);
    none.finish();
  });
}

TEST_F(trainings, are_refused_a_folder_that_is_not_there) {
  as_threads(1, [&](communicator& c) {
    model m = made(c);
    std::string const text =
        unreadable([&] { training_checkpoint(folder_ / "no" / "model", c, training_items(m.all, m.by)); });
    EXPECT_NE(text.find("no/model.part cannot be written: No such file"), std::string::npos) << text;
    training_checkpoint(file(), c, training_items(m.all, m.by));
    EXPECT_EQ(files(), 0u);
  });
}

// A failure of one rank ends the call on all of them, and no rank waits.
TEST_F(trainings, that_one_rank_cannot_describe_are_refused_on_all) {
  as_threads(2, [&](communicator& c) {
    model m = made(c);
    auto const items = training_items(m.all, m.by);
    auto const says = [&](std::vector<checkpoint_item> of, checkpoint_metadata const& texts, char const* words) {
      try {
        training_checkpoint(file(), c, std::move(of), c.rank() == 1 ? texts : checkpoint_metadata{}).resume(file());
        ADD_FAILURE() << words;
      } catch (std::exception const& e) {
        std::string_view const wanted = c.rank() == 1 ? words : "rank 1 cannot go on from";
        EXPECT_NE(std::string_view(e.what()).find(wanted), std::string_view::npos) << e.what();
      }
    };
    says(items, {{"step", "1"}}, "the text \"step\"");
    auto wrong = items;
    if (c.rank() == 1)
      wrong.push_back(wrong[0]);
    says(wrong, {}, "twice");
    wrong = items;
    for (checkpoint_item& i : wrong)
      if (c.rank() == 1 && i.is_part)
        i.counts.push_back(0);
    says(wrong, {}, "of parts, enough on all ranks");
    training_checkpoint all(file(), c, items);
    all.save(1);
    all.finish();
    c.barrier();
    wrong = items;
    for (checkpoint_item& i : wrong)
      if (c.rank() == 1 && i.is_part)
        i.first = -1;
    says(wrong, {}, "a part without a place");
  });
}

TEST_F(trainings, whose_file_cannot_be_looked_up_are_refused_on_all) {
  as_threads(2, [&](communicator& c) {
    model m = made(c);
    if (c.rank() == 0)
      std::filesystem::create_directory(folder_ / "in");
    c.barrier();
    training_checkpoint all(folder_ / "in" / "model", c, training_items(m.all, m.by));
    if (c.rank() == 0) {
      std::filesystem::remove(folder_ / "in");
      std::filesystem::create_symlink("in", folder_ / "in");  // a link to itself
    }
    c.barrier();
    std::string const text = unreadable([&] { all.resume(); });
    EXPECT_NE(text.find(c.rank() == 0 ? "cannot be looked up" : "rank 0 cannot go on from"), std::string::npos) << text;
  });
}

TEST_F(trainings, of_a_number_with_more_behind_it_are_others) {
  as_threads(1, [&](communicator& c) {
    model m = made(c);
    auto const items = training_items(m.all, m.by);
    checkpoint_writer writer(file(), c);
    writer.save(items, {{"step", "3x"}});
    writer.finish();
    std::string const text = unreadable([&] { training_checkpoint("", c, items).resume(file()); });
    EXPECT_NE(text.find("is of another training: \"step\""), std::string::npos) << text;
  });
}

TEST_F(trainings, have_parts_whose_counts_make_up_the_whole) {
  as_threads(2, [&](communicator& c) {
    tensor const x = full({4}, 1);
    checkpoint_writer w(file(), c);
    auto const says = [&](std::int64_t whole, std::vector<std::int64_t> counts) {
      return refused([&] { w.save({checkpoint_item::part("x", {x.data(), 4, float32}, {whole}, c.rank(), counts)}); });
    };
    EXPECT_NE(says(8, {4, 5}).find("8 elements, and 4 are given"), std::string::npos);
    EXPECT_NE(says(9, {4, 4}), "");
    EXPECT_NE(says(8, {3, 5}), "");
    EXPECT_NE(says(8, {4, 4, 0}), "");
    EXPECT_NE(says(8, {12, -4}), "");
    auto const without_place = checkpoint_item::part("x", {x.data(), 4, float32}, {8});
    w.save({without_place});
    w.finish();
    c.barrier();
    EXPECT_NE(
        refused([&] { checkpoint_reader(file()).read(std::vector{without_place}); }).find("a part without a place"),
        std::string::npos);
  });
}

}  // namespace
}  // namespace weir::training_checkpoint_tests
