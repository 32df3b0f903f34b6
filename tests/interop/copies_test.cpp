// Two copies of weir in one process: the program's static one, and that of a plugin. The second to start is
// refused.
// Threads: one in each process.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "weir/runtime.h"

namespace weir {
namespace {

#if defined(WEIR_PLUGIN)
simulated const small{.devices = 1, .memory = 16_MiB};

// What the plugin's copy says when it makes a runtime: nothing when it may.
std::string refusal(void* plugin) {
  auto const why = reinterpret_cast<char const* (*)()>(::dlsym(plugin, "why_weir_cannot_start"));
  return why ? why() : "no such function";
}
void* load(char const* file = WEIR_PLUGIN) {
  return ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
}
bool has(std::string const& text, char const* words) {
  return text.find(words) != text.npos;
}

// Each test is a process: libraries stay loaded.
#define IN_A_PROCESS(...) \
  EXPECT_EXIT(            \
      {                   \
        ::alarm(20);      \
        __VA_ARGS__;      \
        std::_Exit(7);    \
      },                  \
      testing::ExitedWithCode(7), "")
#define NEED(condition)                \
  do {                                 \
    if (!(condition))                  \
      std::_Exit(__LINE__ % 200 + 20); \
  } while (false)

struct copies : testing::Test {
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (::access(WEIR_PLUGIN, R_OK) != 0)
      GTEST_SKIP() << "no " << WEIR_PLUGIN << " here";
  }
};

TEST_F(copies, the_second_to_start_is_refused_with_both_names) {
  IN_A_PROCESS({
    void* const plugin = load();
    NEED(plugin);
    runtime const mine(small);
    std::string const said = refusal(plugin);
    NEED(has(said, "two copies of weir in one process"));
    NEED(has(said, "interop_test") && has(said, "weir_test_plugin") && has(said, "libweir.so"));
    runtime const another(small);  // the first copy works on
  });
}

TEST_F(copies, a_plugin_that_came_first_refuses_the_program) {
  IN_A_PROCESS({
    void* const plugin = load();
    auto const start = reinterpret_cast<int (*)()>(::dlsym(plugin, "use_weir"));
    NEED(start && start() == 0);
    try {
      runtime const mine(small);
      std::_Exit(9);
    } catch (invalid_use const& e) {
      NEED(has(e.what(), "weir_test_plugin"));
    }
    NEED(refusal(plugin).empty());
  });
}

TEST_F(copies, a_static_copy_and_the_shared_library_are_two) {
  IN_A_PROCESS({
    void* const plugin = load(WEIR_SHARED_PLUGIN);
    NEED(plugin);
    runtime const mine(small);
    std::string const said = refusal(plugin);
    NEED(has(said, "interop_test") && has(said, "libweir.so.0"));
  });
}

TEST_F(copies, a_copy_that_is_only_loaded_is_no_second_one) {
  IN_A_PROCESS({
    void* const plugin = load();
    { runtime const mine(small); }
    NEED(refusal(plugin).empty());  // the program's has ended
    runtime const mine(small);      // and the plugin's
  });
}

// A child starts anew, whatever its parent used.
TEST_F(copies, a_forked_child_is_not_refused) {
  IN_A_PROCESS({
    void* const plugin = load();
    runtime const mine(small);
    pid_t const child = ::fork();
    if (child == 0)
      std::_Exit(refusal(plugin).empty() ? 3 : 4);
    int status = 0;
    ::waitpid(child, &status, 0);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    NEED(!refusal(plugin).empty());  // in the parent they are still two
  });
}
#endif

}  // namespace
}  // namespace weir
