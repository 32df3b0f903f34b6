// Python's pickle, protocol 2: dicts, lists, tuples, text and numbers, as PyTorch's memory viewer reads them.
// Format: pickletools.py of CPython. Opcodes are those that MemoryViz.js knows;
// repeated text is written once and then named.
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
  pickle& real(double);
  pickle& truth(bool b) { return put(b ? '\x88' : '\x89'); }
  pickle& text(std::string_view);
  pickle& pair(std::int64_t a, std::int64_t b) { return number(a).number(b).put('\x86'); }  // a tuple

  // A list or dict of any length; items are written between open and close.
  // In a dict each is key(…) and then one value.
  pickle& open_list() { return put(']').put('('); }
  pickle& close_list() { return put('e'); }
  pickle& open_dict() { return put('}').put('('); }
  pickle& close_dict() { return put('u'); }
  pickle& key(std::string_view name) { return text(name); }
  // Between two items of a list: the viewer's reader takes at most about a thousand at once.
  pickle& next_thousand() { return put('e').put('('); }
  // What was written last may be had again by this number, and later ones by name alone.
  std::uint32_t remember();
  pickle& again(std::uint32_t number);

  std::string finish() && {
    put('.');
    return std::move(out_);
  }
  std::size_t size() const noexcept { return out_.size(); }

 private:
  pickle& put(char c) {
    out_ += c;
    return *this;
  }
  pickle& little_endian(std::uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) put(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  std::string out_;
  boost::unordered_flat_map<std::string, std::uint32_t> texts_;
  std::uint32_t remembered_ = 0;
};

}  // namespace weir::report
