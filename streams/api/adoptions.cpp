// The last adoption of each adopted block, by address.
// Threads: any.
#include "streams/api/adoptions.h"

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdio>

#include "runtime/base/lasting.h"
#include "runtime/base/text.h"
#include "weir/error.h"

namespace weir::streams {
namespace {

struct adoption {
  std::uint64_t number = 0;
  bool owned = false;  // by the buffer that adopted it
  source_location at{nullptr, nullptr, 0};
};
using books = boost::unordered_flat_map<void*, adoption>;
base::guarded<books>& last_of_each() {
  static base::lasting<base::guarded<books>> all;  // outlives every buffer
  return *all;
}

std::string text_of(source_location at) {
  return at.file_name() ? std::string(" at ") + at.file_name() + ":" + std::to_string(at.line()) : "";
}

}  // namespace

std::uint64_t adoptions::add(void* block, source_location at) {
  base::no_switch const one_step;  // the books outlast a seeded run, and must decide nothing in it
  auto all = last_of_each().lock();
  adoption& its = (*all)[block];
  if (its.owned)
    throw invalid_use("buffer::adopt",
                      base::address_text(block) + " belongs to the buffer that adopted it" + text_of(its.at),
                      "Move that buffer, or release() the block first", at, error_id{183});
  std::uint64_t const number = now() + 1;
  its = {.number = number, .owned = true, .at = at};
  now_.set(number + 1);
  return number;
}

bool adoptions::owner_ends_slowly(void* block, std::uint64_t since) noexcept {
  base::no_switch const one_step;  // as in add()
  source_location by{nullptr, nullptr, 0};
  {
    auto all = last_of_each().lock();
    auto const its = all->find(block);
    // None, or of an earlier block at this address.
    if (its == all->end() || its->second.number < since)
      return true;
    // This buffer adopted it.
    if (its->second.number == since) {
      its->second.owned = false;
      return true;
    }
    by = its->second.at;
  }
  try {
    std::fprintf(stderr,
                 "weir-106: buffer: %p was adopted by another buffer%s, so this buffer does not free it. "
                 "Call release() before adopt()\n",
                 block, text_of(by).c_str());
  } catch (...) {}  // no memory for the message
  return false;
}

}  // namespace weir::streams
