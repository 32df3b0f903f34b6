// The list of topics, in the articles' order.
#include "examples/seeds/topics.h"

namespace seeds {

std::span<topic const> topics() {
  static constexpr topic all[] = {
      {"reuse", "what is given back is used again", give_back},
      {"small", "blocks of a few bytes, and a device that is nearly full", small_blocks},
      {"views", "what shares memory and what takes more", views},
      {"watch", "counters, and a cache in pieces", watching},
      {"training", "what a step keeps", training},
      {"devices", "where a tensor is", devices},
      {"streams", "work that must wait for other work, and what if it does not", streams},
      {"pinned", "copies that do not wait, and a data loader", pinned},
      {"several", "a thread a GPU", several},
  };
  return all;
}

}  // namespace seeds
