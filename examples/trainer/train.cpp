// Starts the workers, stops them after a failure, and combines their results.
// Threads: see train.h.
#include "train.h"

#include <algorithm>
#include <bit>
#include <exception>
#include <optional>
#include <thread>

#include "weir/copy.h"

namespace trainer {
namespace {

// The ranks' results in order of rank, on each of them.
std::vector<std::int64_t> gather(weir::communicator& ranks, std::int64_t mine) {
  weir::tensor const one = weir::empty({1}, {.dtype = weir::int64}),
                     all = weir::empty({ranks.size()}, {.dtype = weir::int64});
  weir::copy(one.data(), &mine, sizeof mine);
  ranks.all_gather({all.data(), ranks.size(), weir::int64}, {one.data(), 1, weir::int64});
  weir::tensor const host = all.cpu();
  auto const values = host.host<std::int64_t>();
  return {values.begin(), values.end()};
}

void work(settings const& s, text const& t, checkpoint const* from, weir::communicator& ranks, report& told,
          std::size_t number, outcome& all) {
  weir::device_guard on{ranks.device()};
  replica r(s, t, ranks, told, number);
  if (told.first_step > 0)
    r.load(from ? &from->values : nullptr);
  std::optional<weir::checkpoint_writer> writer;
  if (s.save_every > 0)
    writer.emplace(s.save_file, ranks);  // rank 0 writes
  r.train(told.first_step, s.steps, [&](std::int64_t step, std::vector<weir::checkpoint_item> const& items) {
    writer->save(items, texts_of({s.shape, s.how.by, step, t.characters(), {}}));
  });
  if (told.failed.load())
    return;
  // A save that failed is told already, and the values at the end may still find room.
  try {
    if (writer)
      writer->finish();
  } catch (weir::checkpoint_error const&) {}
  std::vector<std::int64_t> const prints = gather(ranks, static_cast<std::int64_t>(r.fingerprint()));
  std::int64_t rows = 0;
  double const sum = r.validation_loss_sum(rows);
  std::vector<std::int64_t> const all_rows = gather(ranks, rows),
                                  sums = gather(ranks, std::bit_cast<std::int64_t>(sum));
  if (number != 0)
    return;
  for (std::size_t i = 0; i < prints.size(); ++i) {
    all.fingerprints.push_back(static_cast<std::uint64_t>(prints[i]));
    all.validation_loss += std::bit_cast<double>(sums[i]);
    all.validation_rows += all_rows[i];
  }
  all.validation_loss /= static_cast<double>(all.validation_rows);
  all.buckets = r.buckets();
  all.scale = r.scale();
  all.seconds_a_step = r.seconds_a_step();
  if (ranks.rank() != 0)
    return;
  all.sample = r.generate(s.sample);
  if (!s.save_file.empty())
    all.values = r.save();
}

// Returns: whether the failure follows from another replica's abort. Even the first recorded failure may.
bool of_another(std::exception_ptr const& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (std::exception const& e) {
    return std::string_view(e.what()).find("aborted this communicator") != std::string_view::npos;
  } catch (...) {
    return false;
  }
}

}  // namespace

bool outcome::agree() const noexcept {
  return std::all_of(fingerprints.begin(), fingerprints.end(), [&](std::uint64_t f) { return f == fingerprints[0]; });
}

std::int64_t from_rank_0(weir::communicator& ranks, std::int64_t mine) {
  weir::device_guard const on{ranks.device()};
  return gather(ranks, mine)[0];
}

outcome train(settings const& s, text const& t, checkpoint const* from, report& told) {
  std::vector<weir::device> devices;
  for (std::size_t i = 0; i < told.replicas; ++i)
    devices.emplace_back(static_cast<int>(i));
  return train(s, t, from, told, weir::communicator::create_all(devices));
}

outcome train(settings const& s, text const& t, checkpoint const* from, report& told,
              std::vector<weir::communicator> ranks) {
  std::vector<std::exception_ptr> failures(ranks.size());
  outcome all;
  std::vector<std::thread> workers;
  std::atomic<int> first_failure{-1};
  weir::runtime& machine = weir::runtime::current();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    workers.emplace_back([&, i] {
      weir::runtime_guard with{machine};
      try {
        work(s, t, from, ranks[i], told, i, all);
      } catch (...) {
        failures[i] = std::current_exception();
        int none = -1;
        if (first_failure.compare_exchange_strong(none, static_cast<int>(i))) {
          told.failed = true;
          ranks[i].abort();  // unblocks the other replicas, which wait for this one
        }
      }
    });
  }
  for (std::thread& w : workers)
    w.join();
  if (int const i = first_failure.load(); i >= 0) {
    auto const cause =
        std::find_if(failures.begin(), failures.end(), [](auto const& f) { return f && !of_another(f); });
    std::rethrow_exception(cause != failures.end() ? *cause : failures[static_cast<std::size_t>(i)]);
  }
  return all;
}

}  // namespace trainer
