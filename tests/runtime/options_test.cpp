// WEIR_CONF and WEIR_DEVICES: accepted values, and error texts for others.
// Threads: one.
#include "runtime/options/options.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "runtime/driver/driver.h"
#include "tests/support/refused.h"
#include "tests/support/seeds.h"
#include "weir/copy.h"
#include "weir/device.h"
#include "weir/log.h"
#include "weir/memory.h"

namespace weir {
namespace {

using test::refused;

bool has(std::string const& text, char const* part) {
  return text.find(part) != text.npos;
}

TEST(options, every_key_is_read_with_its_unit) {
  options const o = parse_options("device_limit:2GiB,pinned_limit:512MiB,address_space:1TiB,launch_blocking:true");
  EXPECT_EQ(o.device_limit, 2_GiB);
  EXPECT_EQ(o.pinned_limit, 512_MiB);
  EXPECT_EQ(o.address_space, size_t{1} << 40);
  EXPECT_TRUE(o.launch_blocking);
  EXPECT_FALSE(o.nvtx_memory);
  EXPECT_TRUE(parse_options("nvtx_memory:true").nvtx_memory);
  EXPECT_EQ(parse_options("device_limit:4096").device_limit, 4096u);
  EXPECT_EQ(parse_options("").device_limit, 0u);
  EXPECT_EQ(parse_options("epsilon:0.25").epsilon, 0.25);
}

TEST(options, each_policy_of_reuse_is_one) {
  options const o = parse_options("poll_on_miss:false,device_waits:when_short,fence_interval:64MiB,deterministic:true");
  EXPECT_FALSE(o.poll_on_miss);
  EXPECT_EQ(o.device_waits, options::wait_policy::when_short);
  EXPECT_EQ(o.fence_interval, 64_MiB);
  EXPECT_TRUE(o.deterministic);
  EXPECT_EQ(parse_options("").device_waits, options::wait_policy::before_growth);
  EXPECT_EQ(parse_options("device_waits:never").device_waits, options::wait_policy::never);
  for (auto const& [text, key, value, remedy] :
       {std::array{"device_waits:when_shor", "device_waits", "\"when_shor\"", "Did you mean device_waits:when_short?"},
        std::array{"poll_on_miss:maybe", "poll_on_miss", "\"maybe\"", "Write poll_on_miss:true"},
        std::array{"deterministic:2", "deterministic", "\"2\"", "Write deterministic:true"},
        std::array{"fence_interval:often", "fence_interval", "\"often\"", "512MiB"}}) {
    std::string const said = refused([&] { parse_options(text); });
    EXPECT_TRUE(has(said, key) && has(said, value) && has(said, remedy)) << said;
  }
}

TEST(options, a_count_is_a_whole_number) {
  EXPECT_EQ(parse_options("").streams_with_pages, 16u);
  EXPECT_EQ(parse_options("streams_with_pages:0").streams_with_pages, 0u);
  EXPECT_EQ(parse_options("streams_with_pages:64").streams_with_pages, 64u);
  for (char const* const text : {"-1", "4KiB", "many", "99999999999", ""}) {
    std::string const said = refused([&] { parse_options(std::string("streams_with_pages:") + text); });
    EXPECT_TRUE(has(said, "streams_with_pages") && has(said, "Write streams_with_pages:16")) << said;
  }
}

TEST(options, a_time_has_a_unit_and_is_printed_readably) {
  using namespace std::chrono_literals;
  EXPECT_EQ(parse_options("").pinned_idle, 0ms);
  for (auto const& [text, value, said] :
       {std::tuple{"0", 0ms, "never"}, std::tuple{"250ms", 250ms, "250 ms"}, std::tuple{"30s", 30'000ms, "30 s"},
        std::tuple{"2min", 120'000ms, "2 min"}, std::tuple{"1500ms", 1500ms, "1500 ms"}}) {
    options const o = parse_options("pinned_idle:" + std::string(text));
    EXPECT_EQ(o.pinned_idle, value) << text;
    auto const row = std::find_if(option_table().begin(), option_table().end(),
                                  [](auto const& r) { return r.name == "pinned_idle"; });
    EXPECT_EQ(option_text(*row, o), said);
  }
  for (std::string const text : {"30", "soon", "-1s", "1.5s", "s", "99999999999999999min", "18446744073709551615ms"}) {
    std::string const said = refused([&] { parse_options("pinned_idle:" + text); });
    EXPECT_TRUE(has(said, ("pinned_idle:\"" + text + "\" is not a time").c_str()) &&
                has(said, "Write a number and ms, s or min, or 0: pinned_idle:30s"))
        << said;
  }
  std::string const said = refused([] { runtime const r(simulated{.devices = 1}, {.pinned_idle = -5ms}); });
  EXPECT_TRUE(has(said, "options::pinned_idle of -5 ms") && has(said, "0: never")) << said;
}

TEST(options, code_is_checked_as_text_is) {
  auto const said = [](options o) { return refused([&] { runtime const r(simulated{.devices = 1}, o); }); };
  for (double const bad :
       {-1.0, 1.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::string const what = said({.epsilon = bad});
    EXPECT_TRUE(has(what, ("options::epsilon of " + std::to_string(bad)).c_str()) && has(what, "from 0 to 1")) << what;
  }
  EXPECT_TRUE(
      has(said({.pinned_idle = std::chrono::milliseconds::max()}), "options::pinned_idle of 9223372036854775807 ms"));
  EXPECT_TRUE(has(said({.device_waits = static_cast<options::wait_policy>(3)}),
                  "Choose one of never, when_short, before_growth"));
  EXPECT_TRUE(has(said({.log = static_cast<log_level>(5)}), "options::log of 5"));
  for (double const good : {0.0, 1.0})
    runtime const r(simulated{.devices = 1}, {.epsilon = good});
}

TEST(options, from_where_own_copies_carry_collectives_is_a_size) {
  EXPECT_FALSE(parse_options("").peer_access);
  EXPECT_TRUE(parse_options("peer_access:true").peer_access);
}

TEST(options, an_unknown_key_is_refused_with_the_nearest_right_one) {
  std::string const said = refused([] { parse_options("device_limt:2GiB"); });
  EXPECT_TRUE(has(said, "\"device_limt\"")) << said;
  EXPECT_TRUE(has(said, "Did you mean device_limit?")) << said;
}

// The error for an option of PyTorch names weir's option.
TEST(options, a_distant_name_is_refused_without_a_guess) {
  std::string said = refused([] { parse_options("colour:red"); });
  EXPECT_TRUE(has(said, "there is no option \"colour\"") && has(said, "docs/reference/options.md") &&
              !has(said, "Did you mean"))
      << said;
  said = refused([] { parse_options("device_waits:perhaps"); });
  EXPECT_TRUE(has(said, "is none of never, when_short, before_growth") && !has(said, "Did you mean")) << said;
  said = refused([] { parse_options("max_split_size_mb:128"); });
  EXPECT_TRUE(has(said, "\"max_split_size_mb\" is an option of PyTorch, not of weir") && has(said, "epsilon") &&
              !has(said, "Did you mean"))
      << said;
  said = refused([] { parse_options("per_process_memory_fraction:0.5"); });
  EXPECT_TRUE(has(said, "device_limit")) << said;
  EXPECT_FALSE(has(refused([] { parse_devices("gpu"); }), "Did you mean"));
}

TEST(options, a_value_that_is_no_size_is_refused) {
  EXPECT_TRUE(has(refused([] { parse_options("device_limit:lots"); }), "\"lots\" is not a size"));
  EXPECT_TRUE(has(refused([] { parse_options("device_limit:99999999999TiB"); }), "is not a size"));
  EXPECT_TRUE(has(refused([] { parse_options("launch_blocking:maybe"); }), "neither true nor false"));
  for (char const* part : {"epsilon:much", "epsilon:1.5", "epsilon:-0.1", "epsilon:nan"})
    EXPECT_TRUE(has(refused([&] { parse_options(part); }), "is not a number from 0 to 1")) << part;
  EXPECT_TRUE(has(refused([] { parse_options("device_limit"); }), "has no value"));
}

struct surroundings {  // environment variables for the duration of a test
  explicit surroundings(std::initializer_list<std::pair<char const*, std::string>> set) {
    for (char const* name : names)
      ::unsetenv(name);
    for (auto const& [name, value] : set)
      ::setenv(name, value.c_str(), 1);
  }
  ~surroundings() {
    for (char const* name : names)
      ::unsetenv(name);
  }
  static constexpr char const* names[] = {"WEIR_CONF", "WEIR_CONF_FILE", "WEIR_CHECK_RACES", "CUDA_LAUNCH_BLOCKING"};
};
std::string origin_of(found_options const& found, std::string_view name) {
  size_t i = 0;
  for (option_row const& row : option_table()) {
    if (row.name == name)
      return found.origin[i];
    ++i;
  }
  return "no such row";
}
std::string written(char const* text) {
  std::string const path = testing::TempDir() + "weir_options_test.conf";
  std::ofstream(path) << text;
  return path;
}

TEST(options, a_file_is_read_first_and_the_last_word_counts) {
  std::string const path =
      written("# of this host\n\ndevice_limit : 2GiB\npinned_limit:1GiB, launch_blocking:true  # two in a line\n");
  surroundings const here{{"WEIR_CONF_FILE", path}, {"WEIR_CONF", "pinned_limit:3GiB"}};
  found_options const found = find_options();
  EXPECT_EQ(found.in_force.device_limit, 2_GiB);
  EXPECT_EQ(found.in_force.pinned_limit, 3_GiB);
  EXPECT_TRUE(found.in_force.launch_blocking);
  EXPECT_EQ(origin_of(found, "device_limit"), path + ":3");
  EXPECT_EQ(origin_of(found, "pinned_limit"), "WEIR_CONF");
  EXPECT_EQ(origin_of(found, "launch_blocking"), path + ":4");
  EXPECT_EQ(origin_of(found, "address_space"), "default");
  EXPECT_EQ(options::from_environment().pinned_limit, 3_GiB);
}

TEST(options, a_variable_of_cudas_is_named_as_the_origin) {
  surroundings const here{{"CUDA_LAUNCH_BLOCKING", "1"}, {"WEIR_CHECK_RACES", "0"}};
  found_options const found = find_options();
  EXPECT_TRUE(found.in_force.launch_blocking);
  EXPECT_EQ(origin_of(found, "launch_blocking"), "CUDA_LAUNCH_BLOCKING");
  EXPECT_FALSE(found.in_force.check_races);
  EXPECT_EQ(origin_of(found, "check_races"), "default");
}

TEST(options, races_takes_its_own_words_only) {
  auto const as = [](char const* word) {
    surroundings const here{{"WEIR_CHECK_RACES", word}};
    EXPECT_EQ(find_options().in_force.check_races, races_wanted({})) << word;
    return races_of_process();
  };
  for (char const* word : {"0", "off", "false", "no", "No", "FALSE", ""})
    EXPECT_EQ(as(word), race_check::off) << word;
  for (char const* word : {"1", "on", "true", "yes", "report", "Report", "ON"})
    EXPECT_EQ(as(word), race_check::report) << word;
  for (char const* word : {"fail", "FAIL"})
    EXPECT_EQ(as(word), race_check::fail) << word;
  for (char const* word : {"perhaps", "2", "fial"}) {
    surroundings const here{{"WEIR_CHECK_RACES", word}};
    EXPECT_TRUE(has(refused([] { races_wanted({}); }), "is none of on, off, report, fail")) << word;
    EXPECT_TRUE(has(refused([] { runtime const r(simulated{.devices = 1}); }), "WEIR_CHECK_RACES")) << word;
  }
  surroundings const here{{"WEIR_CHECK_RACES", "fial"}};
  EXPECT_TRUE(has(refused([] { races_wanted({.check_races = true}); }), "Did you mean fail?"));
}

TEST(options, a_bad_file_is_refused_by_its_line) {
  std::string const path = written("device_limit:2GiB\ndevice_limti:2GiB\n");
  {
    surroundings const here{{"WEIR_CONF_FILE", path}};
    std::string const said = refused([] { find_options(); });
    EXPECT_TRUE(has(said, (path + ":2").c_str())) << said;
    EXPECT_TRUE(has(said, "Did you mean device_limit?")) << said;
  }
  surroundings const here{{"WEIR_CONF_FILE", "/nowhere/weir.conf"}};
  EXPECT_TRUE(has(refused([] { find_options(); }), "cannot be read: No such file"));
}

TEST(options, a_file_that_is_none_is_refused_at_once) {
  std::string const folder = testing::TempDir() + "weir_options_test_" + std::to_string(::getpid());
  std::filesystem::create_directory(folder);
  std::string const fifo = folder + "/fifo", large = folder + "/large";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::ofstream(large) << std::string((1 << 20) + 1, '#');
  for (auto const& [path, why] :
       {std::pair{folder, "is a folder"}, std::pair{fifo, "is a FIFO"},
        std::pair{std::string("/dev/zero"), "is a device"}, std::pair{large, "has more than 1048576 B"}}) {
    surroundings const here{{"WEIR_CONF_FILE", path}};
    std::string const said = refused([] { find_options(); });
    EXPECT_TRUE(has(said, path.c_str()) && has(said, why) && has(said, "unset WEIR_CONF_FILE")) << said;
  }
  std::filesystem::remove_all(folder);
}

// Its runtime is the first of a process.
struct first_runtime : testing::Test {
  first_runtime() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// The warning suggests the nearest variable that the library reads.
TEST_F(first_runtime, unknown_variables_are_reported_once) {
  EXPECT_EXIT(
      {
        ::setenv("WEIR_DEVICE", "sim", 1);
        ::setenv("WEIR_COLOUR", "red", 1);
        for (char const* fine : {"WEIR_DEVICES", "WEIR_TEST_SEEDS", "WEIR_TEST_ANYTHING", "WEIR_TORCH",
                                 "WEIR_TORCH_LIBRARY", "WEIR_TORCH_NATIVE", "WEIR_TORCH_CACHE", "WEIRD"})
          ::setenv(fine, "1", 1);
        ::unsetenv("WEIR_CHECK_RACES");
        std::vector<std::string> told;
        on_log([&](log_line const& l) {
          told.push_back(std::string(log_levels[static_cast<size_t>(l.level)]) + " " + std::string(l.text));
        });
        for (int i = 0; i < 2; ++i)
          runtime const r(simulated{.devices = 1});
        std::sort(told.begin(), told.end());
        for (auto const& line : told)
          std::fputs((line + "\n").c_str(), stderr);
        bool const right =
            told.size() == 2 &&
            told[0].starts_with(
                "warning weir-112: weir does not read the variable \"WEIR_COLOUR\". It reads WEIR_CONF, "
                "WEIR_CONF_FILE, ") &&
            told[1] == "warning weir-112: weir does not read the variable \"WEIR_DEVICE\". Did you mean WEIR_DEVICES?";
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(first_runtime, counting_devices_says_why_there_are_none) {
  for (auto const& [name, value, why] :
       {std::array{"WEIR_CONF", "nonsense:1", "there is no option"},
        std::array{"WEIR_DEVICES", "nonsense", "is not a machine"}, std::array{"WEIR_CONF_FILE", "/", "is a folder"}}) {
    EXPECT_EXIT(
        {
          ::setenv(name, value, 1);
          if (is_available())
            std::_Exit(1);
          std::string const said = refused([] {
            for (int d = 0; d < device_count(); ++d)
              set_device(d);
          });
          std::fputs(said.c_str(), stderr);
          std::_Exit(0);
        },
        testing::ExitedWithCode(0), why)
        << name;
  }
}

TEST_F(first_runtime, counting_unusable_gpus_says_why) {
  if (driver::open_cuda().machine)
    GTEST_SKIP() << "there are GPUs";
  EXPECT_EXIT(
      {
        ::setenv("WEIR_DEVICES", "cuda", 1);
        if (is_available())
          std::_Exit(1);
        try {
          static_cast<void>(device_count());
          std::_Exit(2);
        } catch (not_supported const& e) {
          std::fputs(e.what(), stderr);
        }
        ::setenv("WEIR_DEVICES", "auto", 1);  // the default on a host without GPUs
        std::_Exit(device_count() == 4 && is_available() ? 0 : 3);
      },
      testing::ExitedWithCode(0), "without a usable GPU");
}

TEST(options, devices_are_auto_cuda_or_sim_with_number_and_size) {
  EXPECT_EQ(parse_devices("auto").which, machine_choice::kind::automatic);
  EXPECT_EQ(parse_devices("cuda").which, machine_choice::kind::cuda);
  EXPECT_EQ(parse_devices("sim").sim.devices, 4);
  EXPECT_EQ(parse_devices("sim:2").sim.devices, 2);
  machine_choice const c = parse_devices("sim:3:8");
  EXPECT_EQ(c.which, machine_choice::kind::simulated);
  EXPECT_EQ(c.sim.devices, 3);
  EXPECT_EQ(c.sim.memory, 8_GiB);
}

TEST(options, devices_have_a_size_in_any_unit) {
  EXPECT_EQ(parse_devices("sim:1:640MiB").sim.memory, 640_MiB);
  EXPECT_EQ(parse_devices("sim:1:2048KiB").sim.memory, 2_MiB);
  EXPECT_EQ(parse_devices("sim:1:3GiB").sim.memory, 3_GiB);
  EXPECT_EQ(parse_devices("sim:1:1TiB").sim.memory, 1024_GiB);
  for (char const* const wrong : {"sim:1:1MiB", "sim:1:2TiB", "sim:1:0", "sim:1:1025", "sim:1:", "sim:1:640M"})
    EXPECT_TRUE(has(refused([&] { parse_devices(wrong); }), "is not a size")) << wrong;
}

TEST(options, devices_with_a_seed_are_seeded) {
  for (char const* const text : {"sim:seed=7", "sim:4:seed=7", "sim:4:16:seed=7"}) {
    machine_choice const c = parse_devices(text);
    EXPECT_EQ(c.sim.schedule, simulated::scheduling::seeded) << text;
    EXPECT_EQ(c.sim.seed, 7u) << text;
    EXPECT_EQ(c.sim.devices, 4) << text;
    EXPECT_EQ(c.sim.memory, 16_GiB) << text;
  }
  EXPECT_EQ(parse_devices("sim:2").sim.schedule, simulated::scheduling::threads);
  EXPECT_EQ(parse_devices("sim:2:seed=0").sim.seed, 0u);
  for (char const* const wrong : {"sim:seed=", "sim:2:seed=x", "sim:2:seed=-1", "sim:2:16:seed=7 ", "sim:seed=7:2"})
    EXPECT_TRUE(has(refused([&] { parse_devices(wrong); }), "is not a seed")) << wrong;
  EXPECT_TRUE(has(refused([] { parse_devices("sim::seed=7"); }), "\"\" is not a number of devices"));
  EXPECT_TRUE(has(refused([] { parse_devices("sim:2::seed=7"); }), "\"\" is not a size"));
  EXPECT_TRUE(has(refused([] { parse_devices("cuda:seed=7"); }), "CUDA_VISIBLE_DEVICES"));
}

TEST(options, sizes_may_have_decimals) {
  EXPECT_EQ(size_from_text("1.5GiB"), 1536_MiB);
  EXPECT_EQ(size_from_text("0.25MiB"), 256_KiB);
  EXPECT_EQ(size_from_text("16777215TiB"), size_t{16777215} << 40);
  EXPECT_EQ(size_from_text("0.0GiB"), size_t{0});
  EXPECT_EQ(parse_devices("sim:1:1.5").sim.memory, 1536_MiB);
  for (char const* const wrong : {"1.5", "-0.5GiB", "-0GiB", "1e3MiB", "0.0000000001GiB", "1.2.3GiB", "infGiB",
                                  "nanGiB", "1,5GiB", "GiB", ".GiB", "16777216TiB", "16777216.5TiB"})
    EXPECT_FALSE(size_from_text(wrong)) << wrong;
}

TEST(options, an_unknown_machine_names_the_nearest_one) {
  EXPECT_TRUE(has(refused([] { parse_devices("cdua"); }), "Did you mean cuda?"));
  EXPECT_TRUE(has(refused([] { parse_devices("sim:0"); }), "\"0\" is not a number of devices"));
  EXPECT_TRUE(has(refused([] { parse_devices("sim:2:x"); }), "\"x\" is not a size"));
  EXPECT_TRUE(has(refused([] { parse_devices("cuda:1"); }), "CUDA_VISIBLE_DEVICES"));
}

TEST(options, visible_devices_are_chosen_by_the_rules_of_cuda) {
  using list = std::vector<int>;
  EXPECT_EQ(visible_devices("2,0", 4), (list{2, 0}));
  EXPECT_EQ(visible_devices(" 1 , SIM-3", 4), (list{1, 3}));
  EXPECT_EQ(visible_devices("0,1,7,2", 4), (list{0, 1})) << "up to the first that is none";
  EXPECT_EQ(visible_devices("0,-1,2", 4), (list{0}));
  EXPECT_EQ(visible_devices("0,2,0", 4), list{}) << "one comes twice";
  for (char const* none : {"", "-1", ",0", "GPU-1", "x", "4"})
    EXPECT_EQ(visible_devices(none, 4), list{}) << none;
}

TEST(options, numbers_of_tests_are_whole_or_the_test_ends) {
  auto const is = [](char const* text) {
    ::setenv("WEIR_TEST_NUMBER", text, 1);
    return tests::number_from_environment("WEIR_TEST_NUMBER", 7);
  };
  EXPECT_EQ(is("1000000"), 1'000'000u);
  EXPECT_EQ(is("0x10"), 16u);
  EXPECT_EQ(is(""), 7u);
  for (char const* text : {"1e6", "abc", "-1", "1.5", " 1", "18446744073709551616", "0x"}) {
    EXPECT_EXIT(is(text), testing::ExitedWithCode(2), "WEIR_TEST_NUMBER=.* is no whole number") << text;
  }
  ::unsetenv("WEIR_TEST_NUMBER");
  EXPECT_EXIT((::setenv("WEIR_TEST_SEEDS", "0", 1), ::unsetenv("WEIR_TEST_SEED"), tests::seeds("none", 5)),
              testing::ExitedWithCode(2), "would test nothing");
}

struct visible_to {  // CUDA_VISIBLE_DEVICES for the duration of a test
  explicit visible_to(char const* list, char const* devices = "sim:4:1") {
    if (char const* const was = std::getenv("WEIR_DEVICES"))
      devices_before = was;
    ::setenv("CUDA_VISIBLE_DEVICES", list, 1);
    ::setenv("WEIR_DEVICES", devices, 1);
  }
  ~visible_to() {
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    if (devices_before)
      ::setenv("WEIR_DEVICES", devices_before->c_str(), 1);
    else
      ::unsetenv("WEIR_DEVICES");
  }
  std::optional<std::string> devices_before;
};

TEST(options, simulated_devices_that_are_not_visible_are_not_there) {
  visible_to const these("3,1");
  runtime rt{options{}};
  EXPECT_EQ(rt.description(), "2 simulated devices of 1 GiB");
  runtime_guard const in{rt};
  EXPECT_EQ(device_count(), 2);
  EXPECT_EQ(get_device_properties(0).uuid, "SIM-3");
  EXPECT_EQ(get_device_properties(1).pci_bus_id, "sim:1");
  buffer const a(1000, {.on = 0}), b(1000, {.on = 1});
  copy(b.data(), a.data(), 1000);
  synchronize();
  EXPECT_TRUE(has(refused([] { set_device(2); }), "gpu:2 of 2 devices"));
}

// If no machine is requested, CUDA_VISIBLE_DEVICES hides no simulated device.
TEST(options, without_visible_devices_the_error_says_so) {
  {
    visible_to const none("", "sim:4:1");
    std::string said;
    try {
      runtime rt{options{}};
    } catch (not_supported const& e) {
      said = e.what();
    }
    EXPECT_TRUE(has(said, "CUDA_VISIBLE_DEVICES=\"\" shows none of 4 simulated devices")) << said;
  }
  visible_to const none("-1", "auto");
  EXPECT_TRUE(devices_from_environment().visible.empty());
}

}  // namespace
}  // namespace weir
