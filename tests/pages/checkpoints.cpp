// Around the code of docs/how-to/checkpoints.md: ranks save what they train, and each its part, and read it back.
#include <unistd.h>

#include <filesystem>

#include "weir/checkpoint.h"
#include "weir/stream.h"

int main() {
  auto ranks = weir::communicator::create_launched(2);
  auto const file = std::filesystem::temp_directory_path() / ("weir_page_" + std::to_string(getpid()));
  constexpr std::int64_t whole = 200;
  float seen[2] = {};
  std::int64_t steps[2] = {};
  weir::run_ranks(ranks, [&](weir::communicator& rank) {
    {
      weir::gradient_buckets all(rank);
      all.add("w", 10);
      all.build();
      weir::adamw by(all);
      auto const train_step = [&] { by.step(weir::current_stream()); };
#include <checkpoints.1>
      steps[rank.rank()] = saved.resume();
    }
    weir::tensor values = weir::full({100}, rank.rank() + 1);
    weir::device_span const mine{values.data(), 100, weir::float32};
#include <checkpoints.2>
    seen[rank.rank()] = values.cpu().host<float>()[0];
  });
  std::filesystem::remove(file);
  return seen[0] == 1 && seen[1] == 2 && steps[0] == 100 && steps[1] == 100 ? 0 : 1;
}
