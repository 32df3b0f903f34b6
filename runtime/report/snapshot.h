// A recording of device memory as two files. The first is for PyTorch's memory viewer:
// https://docs.pytorch.org/docs/stable/torch_cuda_memory.html and torch/csrc/cuda/memory_snapshot.cpp (keys
// of segments, blocks, frames and traces).
// Threads: any; values in, bytes out.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weir/observe.h"

namespace weir::report {

struct trace_entry {
  // alloc, free_requested, free_completed (no stream uses the block), oom, segment_map, segment_unmap
  std::string_view action;
  std::uintptr_t at = 0;
  std::size_t bytes = 0;
  std::uint64_t stream = 0;
  std::int64_t us = 0;  // since 1970
  source_location where{nullptr, nullptr, 0};
  std::uint32_t stack = 0;  // number of a stack; 0: none
  std::uint64_t user = 0;   // of a free_requested: the stream that still uses the block; 0: none, or not known
};
struct device_snapshot {
  int device = 0;
  std::vector<memory_segment> segments;
  std::vector<trace_entry> trace;  // oldest first
  std::vector<pool_memory_use> pools = {};
};
struct frame {
  std::string name, file;
  std::uint32_t line = 0;
};
struct stack_of {
  std::uint32_t number = 0;
  std::vector<frame> frames;  // innermost first; one that was read from a file has the frame of `where`, too
};
std::string snapshot(std::span<device_snapshot const>, std::span<stack_of const>, std::string_view settings);
// What a page shows beside a recording.
struct page_extras {
  struct mark {
    std::int64_t us = 0;  // since 1970
    std::string name;
  };
  std::vector<mark> marks;                   // by time: the beginnings of parts, such as the rounds of a replay
  std::span<device_snapshot const> earlier;  // what lines held then is compared with what they hold at the end
  std::string since;                         // the name of `earlier`
};
// An HTML page: memory over time, and the layout at any moment. One file, no network access. The first line of
// `title` is its headline, the rest a line below.
std::string page(std::span<device_snapshot const>, std::span<stack_of const>, std::string_view title,
                 page_extras const& = {});

// What holds a line: bytes and blocks that are live, by the line's name as a page shows it ("folder/file.py:34").
struct line_use {
  std::size_t bytes = 0, blocks = 0;
};
std::map<std::string, line_use> live_lines(device_snapshot const&);

// The moment of the recording with the most live bytes. It is the end, where there is no history.
struct peak_of_recording {
  std::size_t live = 0;                   // bytes
  std::int64_t us = 0;                    // since 1970
  std::map<std::string, line_use> lines;  // by file and line, with the whole path
};
peak_of_recording peak_of(device_snapshot const&);

}  // namespace weir::report
