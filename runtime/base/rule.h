// A rule of the library, asserted at the place that could break it: in Debug builds, and in the source that a
// planted defect changes, which the build compiles with WEIR_RULES. Other builds read a rule and run nothing.
// Threads: what guards the state that the rule names is held.
//
// A rule costs O(1), changes nothing, calls no driver, and reads an atomic by atomic::seen(): a seeded run is then
// the same with it and without. What needs a sum or a walk stays in validate().
#pragma once

namespace weir::base {

// Prints the rule and aborts. words: how it was broken, as validate() says it
[[noreturn]] void rule_broken(char const* words, char const* file, int line) noexcept;

}  // namespace weir::base

#if defined(WEIR_RULES) || !defined(NDEBUG)
#define WEIR_RULE(holds, words) \
  (__builtin_expect(!(holds), 0) ? ::weir::base::rule_broken(words, __FILE__, __LINE__) : void())
#else
#define WEIR_RULE(holds, words) void(sizeof(bool(holds)))
#endif
