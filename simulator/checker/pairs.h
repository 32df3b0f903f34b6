// Which finding speaks of two places of a program: the second of a million equal races costs one search.
// Threads: under the checker's lock.
#pragma once
#include <functional>
#include <unordered_map>

#include "runtime/base/call_site.h"
#include "runtime/driver/race_control.h"

namespace weir::driver::check {

class pairs {
 public:
  static constexpr std::size_t none = ~std::size_t{0};

  // The index of the finding; `none` at first, for the caller to set.
  std::size_t& of(finding::kind what, base::site const& a, std::uint64_t on_a, base::site const& b,
                  std::uint64_t on_b) {
    return all_.try_emplace(key{what, place(a, on_a), place(b, on_b)}, none).first->second;
  }

 private:
  struct place {
    // The life of a stream stands in for a place that is not known.
    place(base::site const& s, std::uint64_t on) noexcept
        : operation(s.operation), file(s.at.file_name()), line(s.at.line()), stream(s.at.file_name() ? 0 : on) {}
    char const* operation;
    char const* file;
    unsigned line;
    std::uint64_t stream;
    bool operator==(place const&) const = default;
    std::size_t hash() const noexcept {
      std::size_t h = reinterpret_cast<std::size_t>(operation);
      for (std::size_t const part : {reinterpret_cast<std::size_t>(file), std::size_t{line}, std::size_t{stream}})
        h = (h ^ part) * 0x9e3779b97f4a7c15u;
      return h ^ h >> 32;
    }
  };
  struct key {
    finding::kind what;
    place a, b;
    bool operator==(key const&) const = default;
  };
  struct hash {
    std::size_t operator()(key const& k) const noexcept {
      return (k.a.hash() * 31 + k.b.hash()) * 31 + static_cast<std::size_t>(k.what);
    }
  };
  std::unordered_map<key, std::size_t, hash> all_;
};

}  // namespace weir::driver::check
