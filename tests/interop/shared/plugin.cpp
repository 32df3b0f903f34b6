// A plugin that links libweir.so: it takes a block, gives it back, and throws weir's exceptions at the
// program.
// Threads: one.
#include "weir/memory.h"

#define PLUGIN extern "C" __attribute__((visibility("default")))

PLUGIN void* plugin_takes(std::size_t bytes) {
  return weir::allocate(bytes);
}
PLUGIN void plugin_gives(void* block) {
  weir::deallocate(block);
}
PLUGIN void plugin_misuses() {
  int on_stack = 0;
  weir::deallocate(&on_stack);
}
PLUGIN void plugin_throws_its_own() {
  throw weir::driver_error(7, "plugin", "nothing", "Do nothing", weir::source_location::current());
}
