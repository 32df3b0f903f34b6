// Runs, searches and enumerations of the explorer.
// Threads: as explore.h says.
#include "tests/explore/explore.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "simulator/threads/thread_scheduler.h"
#include "tests/support/one_processor.h"

namespace weir::tests {
namespace {

using driver::sim::tape;

std::string hex(std::uint64_t v) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(v));
  return text;
}

}  // namespace

trial::trial(explore_options const& o, driver::sim::tape& t) : options_(o), tape_(t), lent_(t) {}
trial::~trial() {
  finish();
}

bool trial::traced() noexcept {
  static bool const wanted = number_from_environment("WEIR_TEST_TRACE", 0) != 0;
  return wanted;
}

void trial::told(std::string const& text) {
  std::cout << base::thread_scheduler::number() << ": " << text << '\n';
}

void trial::program_ends() {
  if (!enumerates_answers_)
    return;
  if (answers_)
    tape_.go_on_with(*answers_);
  tape_.enumerate();
}

memory_bench& trial::bench() {
  return bench_ ? *bench_ : bench(options_.like);
}

memory_bench& trial::bench(simulated const& wanted) {
  return bench(wanted, options_.with);
}

memory_bench& trial::bench(simulated const& wanted, weir::options const& with) {
  simulated like = wanted;
  like.schedule = simulated::scheduling::seeded;
  like.seed = tape_.seed() | 1;
  if (options_.around) {
    bench_ = std::make_unique<memory_bench>(like, with, options_.around);
  } else {
    bench_ = std::make_unique<memory_bench>(like, with);
  }
  bench_->control->at_end([this](std::vector<std::string> const& census) { left_ = census; });
  bench_->control->host_threads()->enter("main", base::thread_scheduler::life::until_left);
  return *bench_;
}

clock::stream_clock& trial::stream(int device) {
  streams_.push_back(&bench().stream(device));
  return *streams_.back();
}

void trial::among_threads(int least, std::uint64_t kinds, std::function<void(int steps)> const& body) {
  int const threads = 2 + static_cast<int>(draw(2));
  std::vector<int> steps;
  for (int i = 0; i < threads; ++i)
    steps.push_back(least + static_cast<int>(draw(kinds)));
  for (int i = 0; i < threads; ++i)
    spawn(std::string(1, static_cast<char>('a' + i)), [&body, n = steps[static_cast<std::size_t>(i)]] { body(n); });
  join();
}

void trial::spawn(std::string name, std::function<void()> work) {
  bench().control->host_threads()->spawn(name, [this, name, work = std::move(work)] {
    try {
      work();
    } catch (std::exception const& e) {
      fail("thread " + name + " threw: " + e.what());
    }
  });
}

void trial::join() {
  if (!bench_)
    return;
  base::thread_scheduler& threads = *bench_->control->host_threads();
  if (!threads.active())
    return;
  if (std::string const why = threads.join(); !why.empty())
    fail("stuck: " + why);
}

void trial::fail(std::string what) {
  if (wrong_.empty())
    wrong_ = std::move(what);
}

void trial::must(driver::status s, char const* what) {
  if (!s.ok())
    fail(std::string(what) + " answered " + std::string(driver::name_of(s.what)));
}

void trial::expect_none(std::vector<std::string> const& wrong, std::string const& when) {
  if (!wrong.empty())
    fail(when + wrong.front());
}

void trial::expect_empty(memory::allocator& memory, std::string const& when) {
  memory.empty_cache();
  auto const n = memory.statistics();
  if (n.reserved_bytes.all.current || n.pending_bytes.all.current || n.allocation.all.current)
    fail(when + ", " + std::to_string(n.reserved_bytes.all.current) + " B stay reserved, " +
         std::to_string(n.pending_bytes.all.current) + " B pending");
}

void trial::synchronize() {
  for (auto* s : streams_) {
    if (!bench().clocks().synchronize(s->now()).ok())
      fail("device lost");
  }
}

std::string trial::finish() {
  if (!bench_)
    return wrong_;
  join();
  if (options_.judge && !failed())
    options_.judge(*this);
  for (auto const& f : bench_->control->findings())
    fail(f);
  for (auto* s : streams_) {
    (void)s->synchronize();
    bench_->clocks().retire(*s);
    (void)machine().destroy_stream(s->device(), s->handle());
  }
  streams_.clear();
  for (int d = 0; d < bench_->core.device_count(); ++d)
    (void)machine().synchronize_device(d);  // the last fences too
  bool const whole = !failed();
  bench_.reset();
  if (whole && !left_.empty())
    fail("the machine ends with " + left_[0] + (left_.size() > 1 ? ", and more" : ""));
  return wrong_;
}

struct explorer {
  enum class tapes : std::uint8_t { by_seed, all, answers };
  explore_options const& options;
  tests::body const& body;
  tapes which = tapes::by_seed;

  struct result {
    std::string wrong;
    std::uint64_t hash;
  };
  result run(tape& t, tape::numbers const* answers = nullptr) const {
    trial one(options, t);
    if (answers)
      one.answers_ = *answers;
    one.enumerates_answers_ = which == tapes::answers;
    if (which == tapes::all)
      t.enumerate();
    try {
      body(one);
    } catch (base::abandoned const&) {
    } catch (std::exception const& e) {
      one.fail(std::string("the body threw: ") + e.what());
    }
    std::string wrong = one.finish();
    return {std::move(wrong), t.hash()};
  }

  static tape::numbers taken(tape const& t) {
    tape::numbers out;
    for (auto const& c : t.written())
      out.push_back(c.taken);
    while (!out.empty() && out.back() == 0)
      out.pop_back();
    return out;
  }

  // Records the failing run of that seed again, then shortens it.
  void shorten(found& f, tape::numbers draws) const {
    f.shrunk = shrink(std::move(draws), options.shrink_runs, [&](tape::numbers& candidate) {
      tape t(f.seed, candidate);
      t.write_down();
      auto const r = run(t);
      if (r.wrong.empty())
        return false;
      candidate = taken(t);
      f.shrunk_what = r.wrong;
      f.shrunk_hash = r.hash;
      return true;
    });
  }

  found search(std::uint64_t first, std::uint64_t count) const {
    found f;
    for (std::uint64_t k = 0; k < count; ++k) {
      tape t(first + k);
      auto const r = run(t);
      ++f.runs;
      if (r.wrong.empty())
        continue;
      f.at = k + 1;
      f.seed = first + k;
      f.what = r.wrong;
      f.hash = r.hash;
      tape again(f.seed);
      again.write_down();
      auto const second = run(again);
      if (second.hash != r.hash || second.wrong != r.wrong) {
        f.what += "\n  The run of the same seed took another course: hash " + hex(second.hash) + " after " +
                  hex(r.hash) + ", and " + (second.wrong.empty() ? "nothing is wrong" : second.wrong);
      } else {
        shorten(f, taken(again));
      }
      return f;
    }
    return f;
  }

  void report(found const& f) const {
    std::string text = options.name + ": run " + std::to_string(f.at) + " with seed " + std::to_string(f.seed) +
                       ", trace hash " + hex(f.hash) + ", points at locks" + (points_at_atomics ? " and atomics" : "") +
                       "\n  " + f.what + "\n  Replay with WEIR_TEST_SEED=" + std::to_string(f.seed) +
                       " (WEIR_TEST_TRACE=1 tells it)";
    if (!f.shrunk_what.empty()) {
      auto const path = std::filesystem::absolute(options.name + "-" + std::to_string(f.seed) + ".tape").string();
      tape_file{options.name, f.seed, f.shrunk_hash, points_at_atomics, f.shrunk, f.shrunk_what}.write(path);
      text += "\n  Shrunk to " + std::to_string(f.shrunk.size()) + " draws: WEIR_TEST_TAPE=" + path + "\n  " +
              f.shrunk_what;
    }
    ADD_FAILURE() << text;
  }

  bool replay(std::string const& path) const {
    try {
      auto const file = tape_file::read(path);
      tape t(file.seed, file.draws);
      auto const r = run(t);
      if (!r.wrong.empty()) {
        ADD_FAILURE() << path << " fails, trace hash " << hex(r.hash) << ": " << r.wrong;
      } else if (file.hash && file.atomics == points_at_atomics && *file.hash != r.hash) {
        ADD_FAILURE() << path << " took another course than when it was written: trace hash " << hex(r.hash) << ", not "
                      << hex(*file.hash);
      } else {
        return true;
      }
    } catch (std::runtime_error const& e) {
      ADD_FAILURE() << e.what();
    }
    return false;
  }

  // Returns: false if the environment named one tape, which has run.
  bool replay_all() const {
    if (options.part > 0)
      return !std::getenv("WEIR_TEST_TAPE");
    if (char const* const path = std::getenv("WEIR_TEST_TAPE")) {
      if (tape_file::read(path).program == options.name && replay(path))
        std::cout << path << ": nothing is wrong\n";
      return false;
    }
    std::vector<std::string> paths;
    if (std::filesystem::is_directory(tapes_folder())) {
      for (auto const& entry : std::filesystem::directory_iterator(tapes_folder())) {
        auto const stem = entry.path().stem().string();
        if (entry.path().extension() == ".tape" && (stem == options.name || stem.rfind(options.name + "-", 0) == 0))
          paths.push_back(entry.path().string());
      }
    }
    std::sort(paths.begin(), paths.end());
    for (auto const& path : paths)
      replay(path);
    return true;
  }

  // Runs every tape that begins like `t`. Returns: whether all were run.
  template <class Run>
  bool depth_first(std::uint64_t most, Run run_one) const {
    tape::numbers prefix;
    for (std::uint64_t runs = 0; runs < most; ++runs) {
      std::vector<tape::choice> const taken = run_one(prefix);
      std::size_t last = std::min(taken.size(), options.depth);
      while (last > 0 && taken[last - 1].taken + 1 >= taken[last - 1].of)
        --last;
      if (last == 0)
        return true;
      prefix.clear();
      for (std::size_t i = 0; i < last; ++i)
        prefix.push_back(taken[i].taken);
      ++prefix.back();
    }
    return false;
  }
};

std::string tapes_folder() {
  return WEIR_TEST_TAPES;
}

found search(explore_options const& o, body const& b) {
  one_processor const here;
  return explorer{o, b}.search(number_from_environment("WEIR_TEST_BASE_SEED", 1), o.runs);
}

std::uint64_t explore(explore_options const& o, body const& b) {
  one_processor const here;
  explorer const e{o, b};
  if (!e.replay_all())
    return 0;
  seeds const wanted(o.name, o.runs, o.part, o.parts);
  found const f = e.search(wanted.first(), wanted.count());
  if (f.at)
    e.report(f);
  count_runs(o.name, f.runs, wanted.first());
  return f.runs;
}

std::uint64_t explore_all(explore_options const& o, body const& b) {
  one_processor const here;
  explorer const e{o, b, explorer::tapes::all};
  if (!e.replay_all())
    return 0;
  std::uint64_t runs = 0;
  bool const all = e.depth_first(o.runs, [&](tape::numbers const& prefix) {
    tape t(1, prefix);
    t.write_down();
    ++runs;
    auto const r = e.run(t);
    if (r.wrong.empty())
      return t.written();
    found f{runs, runs, 1, r.hash, r.wrong, explorer::taken(t), r.wrong, r.hash};
    e.report(f);
    return std::vector<tape::choice>{};  // the search goes no further
  });
  EXPECT_TRUE(all) << o.name << ": " << runs << " runs were not all";
  std::cout << o.name << ": all " << runs << " tapes\n";
  return runs;
}

std::uint64_t explore_answers(explore_options const& o, std::uint64_t most, body const& b) {
  one_processor const here;
  explorer const e{o, b, explorer::tapes::answers};
  if (!e.replay_all())
    return 0;
  seeds const wanted(o.name, o.runs, o.part, o.parts);
  std::uint64_t runs = 0, whole = 0, programs = 0;
  bool failed = false;
  for (std::uint64_t seed = wanted.first(); programs < wanted.count() && !failed; ++seed, ++programs) {
    whole += e.depth_first(most, [&](tape::numbers const& answers) {
      tape t(seed);
      t.write_down();
      ++runs;
      auto const r = e.run(t, &answers);
      if (r.wrong.empty())
        return std::vector<tape::choice>(t.written().begin() + static_cast<std::ptrdiff_t>(t.began()),
                                         t.written().end());
      found f{runs, runs, seed, r.hash, r.wrong, explorer::taken(t), r.wrong, r.hash};
      e.report(f);
      failed = true;
      return std::vector<tape::choice>{};
    });
  }
  count_runs(o.name, runs, wanted.first());
  std::cout << o.name << ": " << programs << " programs from seed " << wanted.first() << ", " << runs << " runs; of "
            << whole << " programs all answers\n";
  return runs;
}

}  // namespace weir::tests
