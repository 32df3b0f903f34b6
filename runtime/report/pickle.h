// Python's pickle, protocol 2: dicts, lists, tuples, text and numbers, as PyTorch's memory viewer reads them.
// Format: pickletools.py of CPython, only opcodes that MemoryViz.js knows. Repeated text is written once.
// Threads: one.
#pragma once
#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace weir::report {

class pickle {
 public:
  pickle() { out_ = "\x80\x02"; }

  pickle& number(std::int64_t);
  pickle& truth(bool b) { return put(b ? '\x88' : '\x89'); }
  pickle& text(std::string_view);
  pickle& pair(std::int64_t a, std::int64_t b) { return number(a).number(b).put('\x86'); }  // a tuple

  // Items are written between open and close; a dict item is key(…) and one value.
  pickle& open_list() { return put(']').put('('); }
  pickle& close_list() { return put('e'); }
  pickle& open_dict() { return put('}').put('('); }
  pickle& close_dict() { return put('u'); }
  pickle& key(std::string_view name) { return text(name); }
  // Call between two items of a list: the viewer's reader accepts about a thousand items at once.
  pickle& next_thousand() { return put('e').put('('); }
  // Numbers the value written last; again() repeats a numbered value.
  std::uint32_t remember();
  pickle& again(std::uint32_t number);

  std::string finish() && {
    put('.');
    return std::move(out_);
  }

 private:
  pickle& put(char c) {
    out_ += c;
    return *this;
  }
  pickle& little_endian(std::uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i)
      put(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  std::string out_;
  boost::unordered_flat_map<std::string, std::uint32_t> texts_;
  std::uint32_t remembered_ = 0;
};

}  // namespace weir::report
