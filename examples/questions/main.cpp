// questions [NAME]…: runs the named programs, or all of them. Each answers a question about memory use.
// Threads: one.
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "examples/ending.h"
#include "questions.h"

namespace {

void usage(std::ostream& to) {
  to << "usage: questions [NAME]...\nAnswers to questions about memory, each by a small program; all of them without a "
        "name.\n\nquestions:\n";
  for (questions::question const& q : questions::all())
    to << "  " << q.name << std::string(10 - q.name.size(), ' ') << q.asks << '\n';
  to << "\nexit status: 0 ok, 1 error, 2 usage\n";
}

int command(int argc, char** argv) {
  if (argc == 2 && (argv[1] == std::string_view("--help") || argv[1] == std::string_view("-h")))
    return usage(std::cout), 0;
  if (argc == 2 && examples::says_version("questions", argv[1]))
    return 0;
  for (int i = 1; i < argc; ++i) {
    auto const all = questions::all();
    if (std::none_of(all.begin(), all.end(), [&](auto const& q) { return q.name == argv[i]; })) {
      std::cerr << "questions: no question '" << argv[i] << "'\n";
      usage(std::cerr);
      return 2;
    }
  }
  for (questions::question const& q : questions::all()) {
    if (argc > 1 && std::find(argv + 1, argv + argc, q.name) == argv + argc)
      continue;
    if (argc == 1)
      std::cout << "== " << q.name << "\n";
    q.answer(std::cout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return examples::program("questions", argc, argv, command);
}
