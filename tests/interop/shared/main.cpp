// A program and a plugin that both link libweir.so have one runtime: memory that one frees serves the other,
// and an exception of either is caught by its type. Prints what is not so.
// Threads: one.
#include <dlfcn.h>

#include <cstdio>
#include <exception>

#include "weir/c.h"
#include "weir/memory.h"
#include "weir/observe.h"

namespace {
int wrong = 0;
void expect(bool holds, char const* what) {
  if (holds)
    return;
  std::fprintf(stderr, "not so: %s\n", what);
  ++wrong;
}
template <class Error, class Act>
bool throws(Act act) {
  try {
    act();
  } catch (Error const& e) {
    return dynamic_cast<weir::error const*>(static_cast<std::exception const*>(&e)) != nullptr;
  } catch (...) {}
  return false;
}
}  // namespace

int main(int count, char** arguments) {
  void* const plugin = count > 1 ? ::dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!plugin) {
    std::fprintf(stderr, "%s\n", ::dlerror());
    return 2;
  }
  auto const takes = reinterpret_cast<void* (*)(std::size_t)>(::dlsym(plugin, "plugin_takes"));
  auto const gives = reinterpret_cast<void (*)(void*)>(::dlsym(plugin, "plugin_gives"));
  auto const misuses = reinterpret_cast<void (*)()>(::dlsym(plugin, "plugin_misuses"));
  auto const throws_its_own = reinterpret_cast<void (*)()>(::dlsym(plugin, "plugin_throws_its_own"));

  void* const mine = weir::allocate(100'000);
  weir::deallocate(mine);
  void* const its = takes(100'000);
  expect(its == mine, "memory that the program freed serves the plugin");
  expect(weir::memory_stats().allocation.all.current == 1, "the program counts the plugin's block");
  gives(its);
  void* again = nullptr;
  expect(weir_allocate(&again, 512, 0, 0, nullptr) == WEIR_OK, "the C interface has the same runtime");
  expect(weir::find_block(again).has_value(), "its blocks are known");
  gives(again);
  expect(weir::memory_allocated() == 0, "nothing is left");

  expect(throws<weir::invalid_use>(misuses), "invalid_use is caught by its type");
  expect(throws<std::logic_error>(misuses), "and by its standard base");
  expect(throws<weir::driver_error>(throws_its_own), "an exception that the plugin made itself is caught by its type");
  expect(throws<weir::out_of_memory>([&] { takes(std::size_t{1} << 40); }), "out_of_memory is caught by its type");
  expect(throws<std::bad_alloc>([&] { takes(std::size_t{1} << 40); }), "and by its standard base");
  if (!wrong)
    std::puts("one runtime serves the program and its plugin");
  return wrong ? 1 : 0;
}
