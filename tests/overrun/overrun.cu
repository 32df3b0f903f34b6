// A kernel that stays in its blocks, or not: for tools that check every access (tools/gpu runs it under
// compute-sanitizer with WEIR_CONF=nvtx_memory:1).
// Usage: overrun clean|small|large|freed: no bad write; a word past a small or large block; a freed block.
// Exit status: 0, whatever the kernel does; 2 for another argument.
#include <cstdio>
#include <cstring>

#include "weir/copy.h"
#include "weir/parallel_for.h"

namespace {

struct count_up {
  int* to;
  WEIR_HOST_DEVICE void operator()(std::size_t i) const { to[i] = static_cast<int>(i); }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace weir;
  char const* const what = argc == 2 ? argv[1] : "";
  bool const clean = !std::strcmp(what, "clean"), freed = !std::strcmp(what, "freed"),
             small = !std::strcmp(what, "small"), large = !std::strcmp(what, "large");
  if (!clean && !freed && !small && !large) {
    std::fprintf(stderr, "usage: overrun clean|small|large|freed\n");
    return 2;
  }
  try {
    std::size_t const bytes = large ? 3 << 20 : 1024, words = bytes / sizeof(int);
    buffer before(bytes), block(bytes), after(bytes), gone(bytes);
    int* const released = gone.data<int>();
    gone.reset();
    auto const s = current_stream();
    for (buffer const* b : {&before, &block, &after})
      parallel_for(s, words, {writes(*b)}, count_up{b->data<int>()});
    if (small || large)
      parallel_for(s, words + 1, {writes(block)}, count_up{block.data<int>()});
    if (freed)
      parallel_for(s, 1, {}, count_up{released});
    synchronize();
    std::printf("%s: done\n", what);
  } catch (error const& e) {  // a tool that reports a kernel loses its device
    std::printf("%s: %.*s\n", what, static_cast<int>(e.operands().size()), e.operands().data());
  }
  return 0;
}
