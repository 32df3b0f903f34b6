// Starts the workers, stops them after a failure, and combines their results.
// Threads: see train.h.
#include "train.h"

#include <algorithm>
#include <exception>
#include <thread>

namespace trainer {
namespace {

struct share {  // results of one replica
  double loss_sum = 0;
  std::int64_t rows = 0;
  std::uint64_t fingerprint = 0;
  std::exception_ptr failure;
};

void work(settings const& s, text const& t, checkpoint const* from, weir::communicator& ranks, report& told,
          share& mine, outcome& all) {
  weir::device_guard on{ranks.device()};
  replica r(s, t, ranks, told);
  if (from) r.load(from->values);
  r.train(told.first_step, s.steps);
  if (told.failed.load()) return;
  mine.fingerprint = r.fingerprint();
  mine.loss_sum = r.validation_loss_sum(mine.rows);
  if (ranks.rank() != 0) return;
  all.buckets = r.buckets();
  all.scale = r.scale();
  all.seconds_a_step = r.seconds_a_step();
  all.sample = r.generate(s.sample);
  if (!s.save_file.empty()) all.values = r.save();
}

// Returns: whether the failure follows from another replica's abort. Even the first recorded failure may.
bool of_another(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (weir::driver_error const& e) {
    return e.operands().find("aborted this communicator") != std::string_view::npos;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool outcome::agree() const noexcept {
  return std::all_of(fingerprints.begin(), fingerprints.end(), [&](std::uint64_t f) { return f == fingerprints[0]; });
}

outcome train(settings const& s, text const& t, checkpoint const* from, report& told) {
  std::vector<weir::device> devices;
  for (std::size_t i = 0; i < told.replicas; ++i) devices.emplace_back(static_cast<int>(i));
  std::vector<weir::communicator> ranks = weir::communicator::create_all(devices);
  std::vector<share> shares(told.replicas);
  outcome all;
  std::vector<std::thread> workers;
  std::atomic<int> first_failure{-1};
  weir::runtime& machine = weir::runtime::current();
  for (std::size_t i = 0; i < told.replicas; ++i) {
    workers.emplace_back([&, i] {
      weir::runtime_guard with{machine};
      try {
        work(s, t, from, ranks[i], told, shares[i], all);
      } catch (...) {
        shares[i].failure = std::current_exception();
        int none = -1;
        if (first_failure.compare_exchange_strong(none, static_cast<int>(i))) {
          told.failed = true;
          ranks[i].abort();  // unblocks the other replicas, which wait for this one
        }
      }
    });
  }
  for (std::thread& w : workers) w.join();
  if (int const i = first_failure.load(); i >= 0) {
    auto const cause =
        std::find_if(shares.begin(), shares.end(), [](share const& p) { return p.failure && !of_another(p.failure); });
    std::rethrow_exception(cause != shares.end() ? cause->failure : shares[static_cast<std::size_t>(i)].failure);
  }
  for (share const& part : shares) {
    all.fingerprints.push_back(part.fingerprint);
    all.validation_loss += part.loss_sum;
    all.validation_rows += part.rows;
  }
  all.validation_loss /= static_cast<double>(all.validation_rows);
  return all;
}

}  // namespace trainer
