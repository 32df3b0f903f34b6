// J BININT, \x8a LONG1, X BINUNICODE, q r BINPUT, h j BINGET, ( MARK, e u APPENDS SETITEMS.
#include "runtime/report/pickle.h"

namespace weir::report {

pickle& pickle::number(std::int64_t n) {
  if (n >= 0 && n < 256)
    return put('K').put(static_cast<char>(n));
  if (n >= 0 && n < 65536)
    return put('M').little_endian(static_cast<std::uint64_t>(n), 2);
  if (n >= INT32_MIN && n <= INT32_MAX)
    return put('J').little_endian(static_cast<std::uint32_t>(n), 4);
  return put('\x8a').put('\x08').little_endian(static_cast<std::uint64_t>(n), 8);
}

pickle& pickle::text(std::string_view s) {
  auto const [at, fresh] = texts_.try_emplace(std::string(s), remembered_);
  if (!fresh)
    return again(at->second);
  put('X').little_endian(s.size(), 4);
  out_ += s;
  (void)remember();
  return *this;
}

std::uint32_t pickle::remember() {
  std::uint32_t const number = remembered_++;
  if (number < 256)
    put('q').put(static_cast<char>(number));
  else
    put('r').little_endian(number, 4);
  return number;
}

pickle& pickle::again(std::uint32_t number) {
  return number < 256 ? put('h').put(static_cast<char>(number)) : put('j').little_endian(number, 4);
}

}  // namespace weir::report
