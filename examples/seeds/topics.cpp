// The list of topics, in the articles' order.
#include "examples/seeds/topics.h"

namespace seeds {

std::span<topic const> topics() {
  static constexpr topic all[] = {
      {"reuse", "what is given back is used again", give_back},
      {"small", "blocks of a few bytes, and a device that is nearly full", small_blocks},
      {"watch", "counters, and a cache in pieces", watching},
  };
  return all;
}

}  // namespace seeds
