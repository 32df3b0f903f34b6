// Saves beside work, and what stays in the folder when one fails.
// Threads: one, beside the writer's own.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <cstring>

#include "runtime/base/os_file.h"
#include "tests/checkpoint/files.h"
#include "tests/peer/machine_fixture.h"
#include "tests/support/refused.h"
#include "weir/graph.h"
#include "weir/half.h"
#include "weir/launch.h"
#include "weir/observe.h"
#include "weir/sim.h"

namespace weir {
namespace {

using namespace weir::test;
using std::string;

struct checkpoints : in_a_folder {
  // The value of all elements of the item "x", which must be equal.
  float value_in_file() const {
    checkpoint_reader const r(file());
    tensor const x = r.read("x", cpu);
    for (float const f : x.host<float>())
      EXPECT_EQ(f, x.host<float>()[0]);
    return x.host<float>()[0];
  }
  static string failure_of(checkpoint_writer& w) {
    return unreadable([&] { w.finish(); });
  }
};

// Work on a stream that sets all elements.
void set_all(stream_ref s, tensor const& t, float to) {
  auto* const at = t.data<float>();
  auto const n = static_cast<std::size_t>(t.numel());
  launch(
      s, {writes(t)}, [](CUstream_st*) {}, [=] { std::fill(at, at + n, to); });
}

TEST_F(checkpoints, write_every_type_that_the_reader_gives_back) {
  machine m({.devices = 1, .memory = 64_MiB});
  std::vector<checkpoint_item> items;
  std::vector<tensor> all;
  std::vector<bytes_of_host> expected;
  dtype const types[] = {float32, float16, bfloat16, float64, int8, uint8, int16, int32, int64, boolean};
  for (dtype const t : types) {
    for (shape const& s : {shape{}, shape{0, 3}, shape{5}, shape{3, 1, 7}}) {
      tensor x = empty(s, {.dtype = t});
      bytes_of_host const bytes = pattern(x.nbytes(), all.size());
      if (!bytes.empty())
        copy(x.data(), bytes.data(), bytes.size());
      items.emplace_back(string(name_of(t)) + s.str(), x);
      all.push_back(x), expected.push_back(bytes);
    }
  }
  checkpoint_writer w(file());
  w.save(items, {{"step", "3"}, {"text", "a \"quote\", <é> and \n"}});
  w.finish();
  checkpoint_reader const r(file());
  EXPECT_TRUE(r.has_checksums());
  EXPECT_EQ(r.metadata(), (checkpoint_metadata{{"step", "3"}, {"text", "a \"quote\", <é> and \n"}}));
  ASSERT_EQ(r.entries().size(), items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    tensor const x = r.read(items[i].name);
    EXPECT_EQ(x.dtype(), all[i].dtype());
    EXPECT_EQ(x.shape(), all[i].shape()) << items[i].name;
    EXPECT_TRUE(read_back(x.data(), x.nbytes(), 0) == expected[i]) << items[i].name;
  }
  r.check();
  EXPECT_EQ(files(), 1u);
}

// Python's own json and struct take the place of a library.
TEST_F(checkpoints, write_what_another_parser_reads) {
  if (std::system("python3 -c pass > /dev/null 2>&1") != 0)
    GTEST_SKIP() << "no python3";
  machine m({.devices = 1, .memory = 64_MiB});
  checkpoint_writer w(file());
  tensor const a = tensor_of({1.5f, -2.f, 8.f}), b = tensor_of<std::int64_t>({7, 1LL << 40});
  w.save({{"a/é", a}, {"b", b}}, {{"step", "9"}});
  w.finish();
  write_file(folder_ / "read.py", R"(import json, struct, sys
data = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", data[:8])[0]
head = json.loads(data[8:8 + n])
texts = head.pop("__metadata__")
at = lambda item: data[8 + n:][slice(*item["data_offsets"])]
assert n % 8 == 0 and list(texts) == ["step", "weir.crc32"] and texts["step"] == "9", texts
assert sorted(head) == ["a/é", "b"] and head["b"]["shape"] == [2] and head["b"]["dtype"] == "I64", head
assert struct.unpack("<3f", at(head["a/é"])) == (1.5, -2, 8)
assert struct.unpack("<2q", at(head["b"])) == (7, 1 << 40)
assert sorted(i["data_offsets"] for i in head.values()) == [[0, 16], [16, 28]] and len(data) == 8 + n + 28
)");
  EXPECT_EQ(std::system(("python3 " + (folder_ / "read.py").string() + " " + file().string()).c_str()), 0);
}

// The stream is held: nothing has run when save() returns, and later work changes what is saved.
TEST_F(checkpoints, save_what_is_there_in_stream_order) {
  machine m({.devices = 1, .memory = 64_MiB}, {.check_races = true});
  stream const s;
  tensor const x = empty(s, {100'000});
  checkpoint_writer w(file());
  for (int step = 1; step <= 5; ++step) {
    {
      held const still(m, s);
      set_all(s, x, static_cast<float>(step));
      w.save(s, {{"x", x}}, {{"step", std::to_string(step)}});
      set_all(s, x, -1);
      if (step == 1) {
        EXPECT_EQ(files(), 0u);
      }
    }
    w.finish();
    EXPECT_EQ(value_in_file(), static_cast<float>(step));
    EXPECT_EQ(checkpoint_reader(file()).metadata().at("step"), std::to_string(step));
  }
  EXPECT_TRUE(race_reports().empty()) << race_reports()[0].text;
}

// Work behind a save may wait for a host that saves again.
TEST_F(checkpoints, wait_for_their_own_copies_alone) {
  machine m({.devices = 1, .memory = 64_MiB});
  stream const s;
  tensor const x = full(s, {100}, 1);
  checkpoint_writer w(file());
  for (int i = 0; i < 30; ++i) {
    w.save(s, {{"x", x}});
    held const still(m, s);
    w.finish();
  }
}

// save() waits for the save before, whose memory it takes.
TEST_F(checkpoints, follow_each_other_without_a_finish) {
  machine m({.devices = 1, .memory = 64_MiB}, {.check_races = true});
  tensor const x = empty({50'000}), y = empty({200'000});
  checkpoint_writer w(file());
  for (int step = 1; step <= 8; ++step) {
    tensor const& t = step % 3 ? x : y;
    set_all(current_stream(), t, static_cast<float>(step));
    w.save({{"x", t}});
    set_all(current_stream(), t, -1);
  }
  w.finish();
  EXPECT_EQ(value_in_file(), 8);
  EXPECT_TRUE(race_reports().empty()) << race_reports()[0].text;
}

TEST_F(checkpoints, take_items_of_host_memory) {
  machine m({.devices = 1, .memory = 64_MiB});
  buffer const page = pinned(64);
  std::memset(page.data(), 3, 64);
  std::int64_t const step = 77;
  checkpoint_writer w(file());
  w.save({{"page", {page.data(), 64, uint8}, {64}},
          {"step", {const_cast<std::int64_t*>(&step), 1, int64}, {}},
          {"nothing", {nullptr, 0, float32}, {0}}});
  w.finish();
  checkpoint_reader const r(file());
  EXPECT_EQ(r.read("step", cpu).item<std::int64_t>(), 77);
  EXPECT_EQ(r.read("page", cpu).host<std::uint8_t>()[63], 3);
  w.save({}, {});
  w.finish();
  EXPECT_TRUE(checkpoint_reader(file()).entries().empty());
}

TEST_F(checkpoints, leave_the_old_file_whole_when_a_step_fails) {
  machine m({.devices = 1, .memory = 64_MiB});
  tensor x = full({1000}, 1);
  checkpoint_writer w(file());
  w.save({{"x", x}});
  w.finish();
  static os::call which;
  std::pair<os::call, char const*> const steps[] = {{os::call::write_file, "Allow this process to write in the folder"},
                                                    {os::call::sync_file, "Check the disk and the path"},
                                                    {os::call::rename_file, "Allow this process to write"}};
  float value = 1;
  for (auto const& [step, remedy] : steps) {
    which = step;
    x.fill_(value + 1);
    os::refuse_by([](os::call c) noexcept { return c == which; });
    w.save({{"x", x}});
    string const text = failure_of(w);
    os::refuse_by(nullptr);
    EXPECT_NE(text.find(file().string()), string::npos) << text;
    EXPECT_NE(text.find(remedy), string::npos) << text;
    EXPECT_EQ(value_in_file(), value);
    EXPECT_EQ(files(), 1u) << "a file stays behind " << text;
    w.finish();  // told once
    w.save({{"x", x}});
    w.finish();
    EXPECT_EQ(value_in_file(), ++value);
  }
}

// A real limit of the system: the file grows until the disk, here a limit of the process, is full. The limit's
// signal ends a process that does not block it.
TEST_F(checkpoints, survive_a_full_disk) {
  machine m({.devices = 1, .memory = 64_MiB});
  tensor x = full({100'000}, 1);
  checkpoint_writer w(file());
  w.save({{"x", x}});
  w.finish();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit const small{150'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  x.fill_(2);
  w.save({{"x", x}});
  string const text = failure_of(w);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(text.find(part().string() + " cannot be written: File too large. Free space"), string::npos) << text;
  EXPECT_EQ(value_in_file(), 1);
  EXPECT_EQ(files(), 1u);
}

TEST_F(checkpoints, name_a_folder_that_is_not_there_or_refuses) {
  machine m({.devices = 1, .memory = 64_MiB});
  tensor const x = full({10}, 1);
  auto const says = [&](std::filesystem::path const& p) {
    checkpoint_writer w(p);
    w.save({{"x", x}});
    return failure_of(w);
  };
  EXPECT_NE(says(folder_ / "no" / "model").find("no/model.part cannot be written: No such file"), string::npos);
  EXPECT_NE(says("/proc/weir_model").find("/proc/weir_model.part cannot be written"), string::npos);
  EXPECT_NE(says(folder_ / string(252, 'x')).find("File name too long. Use a shorter name"), string::npos);
  std::filesystem::create_directory(part());
  EXPECT_NE(says(file()).find("model.safetensors.part cannot be written: Is a directory"), string::npos);
  EXPECT_NE(refused([] { checkpoint_writer w(""); }).find("names no file"), string::npos);
}

// A killed process leaves its part behind.
TEST_F(checkpoints, replace_the_part_of_a_killed_process) {
  machine m({.devices = 1, .memory = 64_MiB});
  write_file(part(), string(1'000'000, 'x'));
  checkpoint_writer w(file());
  w.save({{"x", full({10}, 1)}});
  w.finish();
  EXPECT_EQ(value_in_file(), 1);
  EXPECT_EQ(files(), 1u);
}

// A link in the folder could name another file of the user.
TEST_F(checkpoints, write_no_other_file_through_a_link) {
  machine m({.devices = 1, .memory = 64_MiB});
  checkpoint_writer w(file());
  write_file(folder_ / "other", "kept");
  std::filesystem::create_symlink(folder_ / "other", part());
  w.save({{"x", full({10}, 1)}});
  EXPECT_NE(failure_of(w).find("Remove the link"), string::npos);
  std::filesystem::remove(part());
  std::filesystem::create_hard_link(folder_ / "other", part());
  w.save({{"x", full({10}, 2)}});
  w.finish();
  EXPECT_EQ(value_in_file(), 2);
  EXPECT_EQ(bytes_of_file(folder_ / "other"), "kept");
}

TEST_F(checkpoints, leave_a_file_to_the_process_that_writes_it) {
  os::file_in_place mine(file().string());
  ASSERT_FALSE(mine.begin());
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(10);
    os::file_in_place other(file().string());
    os::file_refusal const r = other.begin();
    ::_exit(r.what.find("another process writes it") != string::npos && r.remedy.find("one process") != string::npos
                ? 0
                : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_FALSE(mine.write(std::as_bytes(std::span("whole", 5))));
  ASSERT_FALSE(mine.put_in_place());
  EXPECT_EQ(bytes_of_file(file()), "whole");
}

// The system locks no more pages. What weir has locked before is enough for staging.
TEST_F(checkpoints, go_through_pageable_memory_without_pinned) {
  machine m({.devices = 1, .memory = 64_MiB});
  tensor x = full({1'000'000}, 4);
  reserve_pinned_memory(1_MiB);
  buffer const keeps_the_rest = pinned(64);
  auto& faults = *driver::fault_injector_of(m.driver());
  faults.refuse(
      {.of = driver::call::pin, .with = driver::code::out_of_memory, .more = driver::fault_injector::without_end});
  checkpoint_writer w(file());
  w.save({{"x", x}});
  x.fill_(5);
  w.finish();
  EXPECT_EQ(value_in_file(), 4);
  w.save({{"x", x}});
  w.finish();
  EXPECT_EQ(value_in_file(), 5);
  faults.forget_orders();
  // Only copies to pinned memory wait for the stream without the host.
  stream const s;
  set_all(s, x, 6);
  {
    held const still(m, s);
    w.save(s, {{"x", x}});
  }
  w.finish();
  EXPECT_EQ(value_in_file(), 6);
}

TEST_F(checkpoints, keep_the_old_file_when_the_device_is_lost) {
  machine m({.devices = 1, .memory = 64_MiB});
  stream const s;
  tensor const x = full(s, {1000}, 1);
  checkpoint_writer w(file());
  w.save(s, {{"x", x}});
  w.finish();
  {
    held const still(m, s);
    set_all(s, x, 2);
    w.save(s, {{"x", x}});
    simulation::of(m.own).lose_device(0);
  }
  string const text = failure_of(w);
  EXPECT_NE(text.find(file().string() + " stays as it is: the values did not arrive. "), string::npos) << text;
  EXPECT_THROW(w.save(s, {{"x", x}}), device_lost);
  EXPECT_EQ(checkpoint_reader(file()).entries().size(), 1u);
  EXPECT_NO_THROW(checkpoint_reader(file()).check());
}

TEST_F(checkpoints, end_with_their_runtime_behind_the_last_save) {
  std::optional<checkpoint_writer> w;
  {
    machine m({.devices = 1, .memory = 64_MiB});
    w.emplace(file());
    w->save({{"x", full({100'000}, 6)}});
  }
  EXPECT_NO_THROW(w->finish());
  EXPECT_NE(refused([&] { w->save({}); }).find("whose runtime has ended"), string::npos);
  w.reset();
  machine m({.devices = 1, .memory = 64_MiB});
  EXPECT_EQ(value_in_file(), 6);
}

TEST_F(checkpoints, refuse_what_the_format_cannot_have) {
  machine m({.devices = 1, .memory = 64_MiB});
  tensor const x = full({4, 4}, 1);
  checkpoint_writer w(file());
  auto const says = [&](std::vector<checkpoint_item> const& items, checkpoint_metadata const& texts = {}) {
    return refused([&] { w.save(items, texts); });
  };
  EXPECT_NE(says({{"x", x}, {"y", x}, {"x", x}}).find("\"x\" twice"), string::npos);
  EXPECT_NE(says({{"__metadata__", x}}).find("other than __metadata__"), string::npos);
  EXPECT_NE(says({{"\xff", x}}).find("UTF-8"), string::npos);
  EXPECT_NE(says({{"x", x}}, {{"weir.crc32", ""}}).find("other than weir.crc32"), string::npos);
  EXPECT_NE(says({{"x", x}}, {{"a", "\xc0\x80"}}).find("UTF-8"), string::npos);
  EXPECT_NE(says({{"x", {x.data(), 15, float32}, {4, 4}}}).find("16 elements, and 15 are given"), string::npos);
  std::int64_t const many = std::int64_t{1} << 61, half = many / 4;
  EXPECT_NE(says({{"x", {x.data(), many, int64}, {many}}}).find("more bytes than a memory has"), string::npos);
  EXPECT_NE(
      says({{"x", {x.data(), half, int64}, {half}}, {"y", {x.data(), half, int64}, {half}}}).find("\"y\" of shape"),
      string::npos);
  EXPECT_NE(says({checkpoint_item::part("x", {x.data(), 16, float32}, {16})}).find("which is a part"), string::npos);
  EXPECT_NE(refused([&] { (void)checkpoint_item("x", x.t()); }).find("a view with gaps"), string::npos);
  EXPECT_NE(refused([&] { (void)checkpoint_item("x", tensor()); }).find("an undefined tensor"), string::npos);
  stream const s;
  EXPECT_NE(refused([&] { (void)graph::capture(s, [&] {
                            w.save(s, {{"x", x}});
                          }); }).find("a stream in a capture"),
            string::npos);
  EXPECT_NO_THROW(w.finish());
  EXPECT_EQ(files(), 0u);
}

// Returns: the exit status of a child that tries all calls of the writer.
int forked_child_tries(std::unique_ptr<checkpoint_writer>& w) {
  pid_t const child = ::fork();
  if (child == 0) {
    ::alarm(10);
    int typed = 0;
    for (auto const& call : {+[](checkpoint_writer& x) { x.save({}); }, +[](checkpoint_writer& x) { x.finish(); }}) {
      try {
        call(*w);
      } catch (error const&) {
        ++typed;
      }
    }
    w.reset();
    ::_exit(typed == 2 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Forks while the stream is held, and at any moment of the writing.
TEST_F(checkpoints, serve_the_parent_and_not_a_forked_child) {
  machine m({.devices = 1, .memory = 64_MiB});
  stream const s;
  tensor const x = full(s, {100'000}, 1);
  auto w = std::make_unique<checkpoint_writer>(file());
  for (int i = 0; i < 20; ++i) {
    std::optional<held> still;
    if (i % 4 == 0)
      still.emplace(m, s);
    w->save(s, {{"x", x}});
    EXPECT_EQ(forked_child_tries(w), 0);
  }
  w->finish();
  EXPECT_EQ(value_in_file(), 1);
}

}  // namespace
}  // namespace weir
