// Around the code of docs/how-to/other-libraries.md about Thrust.
#include <thrust/sort.h>

#include "weir/thrust.h"

int main() {
  int const n = 1000;
#include <vectors.1>
  s.synchronize();
}
