// Trains a network of LibTorch on all devices: a thread a rank, or a process a rank under torchrun or mpirun.
#include <torch/nn.h>
#include <torch/optim.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "weir/collective.h"
#include "weir/device.h"
#include "weir/libtorch.h"
#include "weir/runtime.h"

void train(weir::communicator& rank) {
  weir::set_device(rank.device());
  torch::Device here = torch::kCPU;  // tensors of a simulated device
  if (!weir::runtime::current().is_simulated())
    here = {torch::kCUDA, static_cast<torch::DeviceIndex>(rank.device().index())};
  torch::nn::Sequential net(torch::nn::Linear(8, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  net->to(here);
  weir::libtorch::data_parallel all(net, rank);  // rank 0's numbers, on all ranks
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 100; ++step) {
    torch::Tensor const x = torch::rand({16, 8}, here);  // a batch of this rank's own
    optimizer.zero_grad();
    torch::Tensor const loss = (all.forward(x).squeeze(1) - x.mean(1)).square().mean();
    loss.backward();  // then each gradient is the mean over all ranks
    optimizer.step();
    if (step % 50 == 0 && rank.rank() == 0)
      std::printf("step %d: loss %.4f\n", step, loss.item<float>());
  }
}

int main() {
  if (weir::this_launch().how != weir::launch_info::by::itself) {
    weir::communicator rank = weir::communicator::from_environment();
    train(rank);
    return 0;
  }
  std::vector<weir::device> devices;
  for (int i = 0; i < weir::device_count(); ++i)
    devices.emplace_back(i);
  std::vector<weir::communicator> ranks = weir::communicator::create_all(devices);
  std::vector<std::jthread> threads;
  for (weir::communicator& rank : ranks)
    threads.emplace_back([&rank] { train(rank); });
}
