// Runs one body many times. A tape decides each run's order of host threads, streams and answers.
// Threads: the caller's, which is the first thread of each run's machine; all of a run share a processor.
//
// Seeds: see tests/support/seeds.h. WEIR_TEST_TAPE=file runs that tape only. Tapes under tests/tapes/ always
// run first. A failing run is shrunk and written to a file: commit it there with the fix.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "simulator/machine/tape.h"
#include "tests/support/memory_bench.h"

namespace weir::tests {

class trial;
using body = std::function<void(trial&)>;

struct explore_options {
  std::string name;  // of the program and its tapes: NAME.tape, NAME-anything.tape
  std::uint64_t runs = 1000;
  std::uint64_t part = 0, parts = 1;              // of the seeds; the first part also runs the tapes
  simulated like{.devices = 1, .memory = 1_MiB};  // for machines that the body does not choose; always seeded
  options with{};
  std::uint64_t shrink_runs = 1000;  // limit on runs that shorten a failing tape
  std::size_t depth = 64;            // explore_all: later choices are all 0
  // A driver in front of each machine: a checker, a ledger, a planted defect. None: the machine itself.
  std::function<std::unique_ptr<driver::driver>(std::unique_ptr<driver::driver>)> around{};
  std::function<void(trial&)> judge{};  // runs at the end of a body, while its machine exists
};

// One run: its tape, machine and threads, and its failure.
class trial {
 public:
  trial(explore_options const&, driver::sim::tape&);
  ~trial();
  trial(trial const&) = delete;

  driver::sim::tape& tape() noexcept { return tape_; }
  std::uint32_t draw(std::uint32_t n) { return tape_.draw(n); }  // from 0 … n - 1; 0 is the simplest
  bool coin(std::uint32_t percent = 50) { return tape_.coin(percent); }
  // The program is drawn; the machine follows. explore_answers() tries all later draws.
  void program_ends();

  memory_bench& bench();                  // created at first use, from options.like
  memory_bench& bench(simulated const&);  // creates it. Requires: none exists
  memory_bench& bench(simulated const&, weir::options const&);
  driver::driver& machine() { return bench().machine(); }
  clock::stream_clock& stream(int device);  // weir's own, until the end of the run

  void spawn(std::string name, std::function<void()>);  // a host thread; an exception fails the run
  // Runs two or three threads to their end. The tape draws each
  // one's number of steps, from `least` to least + kinds - 1.
  void among_threads(int least, std::uint64_t kinds, std::function<void(int steps)> const& body);
  void join();  // waits for all spawned threads. The end of a body does so too

  void fail(std::string what);  // the first failure counts
  bool failed() const noexcept { return !wrong_.empty(); }
  void must(driver::status, char const* what);  // fails unless it is ok
  void expect_none(std::vector<std::string> const& wrong, std::string const& when = {});
  void expect_empty(memory::allocator&, std::string const& when);  // after it gave back what is free
  void synchronize();                                              // all streams; fails if a device is lost
  static bool traced() noexcept;
  template <class... Words>
  void say(Words const&... words);  // traces the run with WEIR_TEST_TRACE=1

  std::string finish();  // ends threads and machine. Returns: the failure; empty: none

 private:
  friend struct explorer;
  void told(std::string const&);

  explore_options const& options_;
  driver::sim::tape& tape_;
  driver::sim::lent_tape lent_;
  std::optional<driver::sim::tape::numbers> answers_;  // drawn after program_ends()
  bool enumerates_answers_ = false;
  std::vector<std::string> left_;
  std::string wrong_;
  std::unique_ptr<memory_bench> bench_;
  std::vector<clock::stream_clock*> streams_;
};

template <class... Words>
void trial::say(Words const&... words) {
  if (!traced())
    return;
  std::string text;
  auto const add = [&text](auto const& w) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(w)>>)
      text += std::to_string(w);
    else
      text += w;
  };
  (add(words), ...);
  told(text);
}

struct found {                       // result of a search
  std::uint64_t runs = 0;            // number of runs
  std::uint64_t at = 0;              // the failing run, from 1; 0: none
  std::uint64_t seed = 0, hash = 0;  // of that run
  std::string what{};
  driver::sim::tape::numbers shrunk{};  // the shortest failing tape, with `seed`
  std::string shrunk_what{};
  std::uint64_t shrunk_hash = 0;
};

// Runs the body until a run fails, and shrinks that run. For planted defects: it does not fail the test.
found search(explore_options const&, body const&);
// Runs a test. A failing run fails it and reports how to replay it. Returns: number of runs.
std::uint64_t explore(explore_options const&, body const&);
// Runs every tape, depth first, up to options.runs. Fails
// as above, and if tapes remain. Returns: number of runs.
std::uint64_t explore_all(explore_options const&, body const&);
// Runs as many programs as WEIR_TEST_SEEDS says, by seed. For each it tries every answer and switch after
// program_ends(), at most `most`. Returns: number of runs.
std::uint64_t explore_answers(explore_options const&, std::uint64_t most, body const&);

struct tape_file {
  std::string program;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> hash{};  // of the run; checked if the file has this build's switch points. None: any
  bool atomics = false;                 // threads also switch at atomics
  driver::sim::tape::numbers draws{};
  std::string what{};  // the failure when it was written, for the reader

  std::string text() const;
  static tape_file parse(std::string const& text);  // Throws: std::runtime_error naming the line
  static tape_file read(std::string const& path);
  void write(std::string const& path) const;
};
std::string tapes_folder();  // of the committed ones
inline constexpr bool points_at_atomics =
#ifdef WEIR_SCHEDULE_ATOMICS
    true;
#else
    false;
#endif

// Removes draws, then makes them smaller, as long as `fails`
// holds, in at most `most` runs. Ensures: the result fails.
driver::sim::tape::numbers shrink(driver::sim::tape::numbers, std::uint64_t most,
                                  std::function<bool(driver::sim::tape::numbers&)> const& fails);

}  // namespace weir::tests
