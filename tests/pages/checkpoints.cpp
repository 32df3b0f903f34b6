// Around the code of docs/how-to/checkpoints.md: each rank saves its part and reads it back.
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "weir/checkpoint.h"
#include "weir/device.h"

int main() {
  std::vector<weir::device> const devices{0, 1};
  std::vector<weir::communicator> ranks = weir::communicator::create_all(devices);
  auto const file = std::filesystem::temp_directory_path() / ("weir_page_" + std::to_string(getpid()));
  constexpr std::int64_t whole = 200;
  float seen[2] = {};
  std::vector<std::thread> threads;
  for (weir::communicator& rank : ranks)
    threads.emplace_back([&] {
      weir::device_guard const here(rank.device());
      weir::tensor values = weir::full({100}, rank.rank() + 1);
      weir::device_span const mine{values.data(), 100, weir::float32};
#include <checkpoints.1>
      seen[rank.rank()] = values.cpu().host<float>()[0];
    });
  for (std::thread& t : threads)
    t.join();
  std::filesystem::remove(file);
  return seen[0] == 1 && seen[1] == 2 ? 0 : 1;
}
