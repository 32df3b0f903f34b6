// pictures: runs the programs behind the pictures of docs/explanation/ and prints what they saw, a line of JSON for
// each moment. tools/pictures draws them.
#include <exception>
#include <iostream>

#include "scenes.h"

int main(int argc, char**) try {
  if (argc > 1) {
    std::cerr << "usage: pictures    (tools/pictures draws what it prints)\n";
    return 2;
  }
  for (auto* const scene : {pictures::block, pictures::slots, pictures::order, pictures::ahead, pictures::moves,
                            pictures::bound, pictures::asleep})
    scene(std::cout);
  return 0;
} catch (std::exception const& e) {
  std::cerr << "pictures: " << e.what() << '\n';
  return 1;
}
