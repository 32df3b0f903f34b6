// Reads a snapshot from its pickle: weir's own and PyTorch's (torch.cuda.memory._dump_snapshot, protocols 2
// to 5). Executes nothing: it rejects opcodes that construct objects, and files above 1 GiB.
// Threads: any; a pure function.
#pragma once
#include <unordered_set>

#include "runtime/report/snapshot.h"

namespace weir::report {

struct loaded_snapshot {
  std::vector<device_snapshot> devices;
  std::vector<stack_of> stacks;
  std::unordered_set<std::string> texts;  // owns the strings that `here` points to
};

// Throws: invalid_use, naming the file, the byte offset and the problem
loaded_snapshot read_snapshot(std::string_view bytes, std::string_view file,
                              source_location = source_location::current());

}  // namespace weir::report
