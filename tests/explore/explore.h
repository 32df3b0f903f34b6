// Exploring: one body, many runs; each run has its own order of host threads,
// streams and answers, and all of it from one tape.
// Threads: the caller's, which is the first thread of each run's machine; all of a run share a processor.
//
// Seeds as tests/support/seeds.h says. WEIR_TEST_TAPE=file: that tape alone. Tapes under tests/tapes/ run
// first, by every count. A run that fails is recorded, shrunk and written to a file; who mends the defect
// commits that file under tests/tapes/.
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
  std::string name;                               // of the program, and its tapes': NAME.tape, NAME-anything.tape
  std::uint64_t runs = 1000;
  std::uint64_t part = 0, parts = 1;              // of the seeds; tapes are the first part's
  simulated like{.devices = 1, .memory = 1_MiB};  // of machines that the body does not choose; they are always seeded
  options with{};
  std::uint64_t shrink_runs = 1000;               // at most, to make a failing tape shorter
  std::size_t depth = 64;                         // explore_all: choices beyond these are not tried in turn, but 0
  // In front of each machine: a checker, a ledger, a planted defect. None: the machine itself.
  std::function<std::unique_ptr<driver::driver>(std::unique_ptr<driver::driver>)> around{};
  std::function<void(trial&)> judge{};                 // at the end of a body, before its machine ends
};

// One run: its tape, its machine, its threads, and what is wrong with it.
class trial {
 public:
  trial(explore_options const&, driver::sim::tape&);
  ~trial();
  trial(trial const&) = delete;

  driver::sim::tape& tape() noexcept { return tape_; }
  std::uint32_t draw(std::uint32_t n) { return tape_.draw(n); }      // one of 0 … n - 1, 0 the simplest
  bool coin(std::uint32_t percent = 50) { return tape_.coin(percent); }
  // What was drawn was the program, and the machine comes now:
  // explore_answers() tries all that is drawn from here on.
  void program_ends();

  memory_bench& bench();                               // made at first use, of options.like
  memory_bench& bench(simulated const&);               // made now. Requires: none was
  memory_bench& bench(simulated const&, weir::options const&);
  driver::driver& machine() { return bench().machine(); }
  clock::stream_clock& stream(int device);                 // of weir's own, until the end of the run

  void spawn(std::string name, std::function<void()>);  // a host thread; what it throws fails the run
  // Two threads or three, each with a number of steps from `least` on, `kinds` of them,
  // as the tape has it; and their end.
  void among_threads(int least, std::uint64_t kinds, std::function<void(int steps)> const& body);
  void join();  // all that was spawned ends; done by the end of the body if not before

  void fail(std::string what);                         // the first counts
  bool failed() const noexcept { return !wrong_.empty(); }
  template <class... Words>
  void say(Words const&... words);                     // WEIR_TEST_TRACE=1: what the run does

  std::string finish();  // ends threads and machine. Returns: what is wrong; empty: nothing

 private:
  friend struct explorer;
  static bool traced() noexcept;
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
  if (!traced()) return;
  std::string text;
  auto const add = [&text](auto const& w) {
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(w)>>) text += std::to_string(w);
    else text += w;
  };
  (add(words), ...);
  told(text);
}

struct found {                                         // by a search
  std::uint64_t runs = 0;                              // made
  std::uint64_t at = 0;                                // the run that failed, from 1; 0: none did
  std::uint64_t seed = 0, hash = 0;                    // of that run
  std::string what{};
  driver::sim::tape::numbers shrunk{};                 // the shortest tape that fails, with `seed`
  std::string shrunk_what{};
  std::uint64_t shrunk_hash = 0;
};

// Runs the body until a run fails, and shrinks that. For defects that are planted; no failure of the test.
found search(explore_options const&, body const&);
// The test: a run that fails is a failure that says how to replay it. Returns: runs made.
std::uint64_t explore(explore_options const&, body const&);
// Every tape in turn, depth first, up to options.runs of them:
// a failure as above. Returns: runs made; fails when that was not all.
std::uint64_t explore_all(explore_options const&, body const&);
// As many programs as WEIR_TEST_SEEDS says, by seed; of each, every answer and switch after program_ends(). A
// program with more than `most` of them is left when so many were tried. Returns: runs made.
std::uint64_t explore_answers(explore_options const&, std::uint64_t most, body const&);

// A tape as a file.
struct tape_file {
  std::string program;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> hash{};  // of the run; checked where the points are this build's. None: any
  bool atomics = false;                 // threads were switched at atomics too
  driver::sim::tape::numbers draws{};
  std::string what{};                   // failed when it was written; words for the reader

  std::string text() const;
  static tape_file parse(std::string const& text);     // Throws: std::runtime_error naming the line
  static tape_file read(std::string const& path);
  void write(std::string const& path) const;
};
std::string tapes_folder();                              // of those that are committed
inline constexpr bool points_at_atomics =
#ifdef WEIR_SCHEDULE_ATOMICS
    true;
#else
    false;
#endif

// Fewer draws, then smaller ones, for as long as `fails` says so of them;
// at most so many times. Ensures: the result fails.
driver::sim::tape::numbers shrink(driver::sim::tape::numbers, std::uint64_t most,
                                  std::function<bool(driver::sim::tape::numbers&)> const& fails);

}  // namespace weir::tests
