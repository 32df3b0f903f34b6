// Reads a snapshot back from its pickle: weir's own and PyTorch's (torch.cuda.memory._dump_snapshot,
// protocols 2 to 5). Nothing in a file is carried out:
// opcodes that make objects of a program are refused, as are files above a gibibyte.
// Threads: any; values in, values out.
#pragma once
#include <unordered_set>

#include "runtime/report/snapshot.h"

namespace weir::report {

struct loaded_snapshot {
  std::vector<device_snapshot> devices;
  std::vector<stack_of> stacks;
  std::unordered_set<std::string> texts;  // what `here` points into
};

// Throws: invalid_use, which names the file and the byte, and what is wrong there
loaded_snapshot read_snapshot(std::string_view bytes, std::string_view file,
                              source_location = source_location::current());

}  // namespace weir::report
