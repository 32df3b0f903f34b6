// Ranks in processes of their own, as torchrun and mpirun start them.
#include "tests/interop/libtorch_fixture.h"
#include "tests/ranks/rank_processes.h"

namespace {

using namespace weir;
using namespace weir::test;

WEIR_PLAYS_RANK_ROLES()

WEIR_RANK_ROLE(trains) {
  torch::manual_seed(7);
  two_layers whole;
  communicator c = communicator::from_environment();
  auto const net = std::make_shared<two_layers>();
  if (c.rank() == 0)
    take_over(*net, whole);
  data_parallel all(net, c);
  auto const own = optimizer_of(*net, true), of_whole = optimizer_of(whole, true);
  for (int step = 0; step < 5; ++step) {
    at::Tensor const batch = numbers({4, 5}, step);
    own->zero_grad(), of_whole->zero_grad();
    all.forward(part(batch, c)).square().mean().backward();
    whole.forward(batch).square().mean().backward();
    own->step(), of_whole->step();
  }
  expect_alike(*net, whole, "rank " + std::to_string(c.rank()));
  return 0;
}

TEST(libtorch_processes, train_as_one_rank_does) {
  rank_processes ranks("trains", 2);
  for (int rank = 0; rank < 2; ++rank) {
    auto const end = ranks.end_of(rank);
    EXPECT_EQ(end.status, 0) << end.said;
  }
}

}  // namespace
