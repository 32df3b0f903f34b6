// questions [NAME]…: answers to questions about memory, each by a small program; all of them without a name.
// Threads: one.
#include <algorithm>
#include <exception>
#include <iostream>

#include "questions.h"

int main(int argc, char** argv) try {
  bool found = argc == 1;
  for (questions::question const& q : questions::all()) {
    if (argc > 1 && std::find(argv + 1, argv + argc, q.name) == argv + argc) continue;
    found = true;
    if (argc == 1) std::cout << "== " << q.name << "\n";
    q.answer(std::cout);
  }
  if (found) return 0;
  std::cerr << "questions: there are:";
  for (questions::question const& q : questions::all()) std::cerr << ' ' << q.name;
  std::cerr << '\n';
  return 2;
} catch (std::exception const& e) {
  std::cerr << "questions: " << e.what() << '\n';
  return 1;
}
