// Around the code of docs/how-to/where-did-my-memory-go.md that writes files into the current folder.
#include "weir/memory.h"
#include "weir/observe.h"

int main() {
  weir::record_memory_history();
  weir::buffer const block(4096);
#include <answers.1>
}
