#!/usr/bin/env bash
# tools/mutants: the changes that it finds in a small source. Each takes effect only by its switch.
# Usage: mutants_test.sh ROOT
set -euo pipefail
python3 -c pass 2> /dev/null || { echo "not run: no python3 here"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/runtime/base" "$work/runtime/clock" "$work/tools"
cp "$1/tools/mutants" "$work/tools/mutants.py"
cat > "$work/runtime/clock/small.cpp" <<'CPP'
#include "runtime/clock/small.h"
// if (a < b) count(); a comment is no code
struct holder {
  holder(int from);  // a declaration is no statement
  int value = 0;
};
bool const said = true;
int small(int a, int b, base::atomic<int>& x) {
  int result = 0;
  if (a < b) result += 1;
  else result += 2;
  if (said) { count(); }
  std::vector<int> none;
  auto const twice = [&](int c) { result += 2 * c; };
  if (a == 7) twice(b);
  x.store(result, base::memory_order_release);
  x.fetch_add(1);
  int expected = result + 1;
  if (x.compare_exchange(expected, result + 10)) result = x.load();
  for (int i = 0; i < 2; ++i) count();
  { base::lock_guard const hold(lock_of()); count(); }
  return result;
}
CPP
cat > "$work/runtime/clock/small.h" <<'CPP'
#pragma once
#include <vector>
#include "stub.h"
CPP
# The parts of the library that the source needs, in the form that the tool adapts.
cat > "$work/stub.h" <<'CPP'
#pragma once
#include <atomic>
#include <mutex>
#include "runtime/base/mutants.h"
inline int counted = 0, locked = 0;
inline void count() { ++counted; }
struct noted : std::mutex { void lock(); };
inline noted& lock_of() { static noted one; return one; }
inline void noted::lock() { locked += this == &lock_of(), std::mutex::lock(); }
namespace base {
using lock_guard = std::lock_guard<noted>;
using std::memory_order_relaxed, std::memory_order_acquire, std::memory_order_release, std::memory_order_seq_cst;
template <class T> class atomic {
 public:
  T load(std::memory_order order = memory_order_seq_cst) const noexcept { return seen = order, value_; }
  void store(T value, std::memory_order order = memory_order_seq_cst) noexcept { seen = order, value_ = value; }
  T exchange(T value, std::memory_order) noexcept { T const was = value_; return value_ = value, was; }
  T fetch_add(T by, std::memory_order = memory_order_seq_cst) noexcept { T const was = value_; return value_ += by, was; }
  T fetch_sub(T by, std::memory_order) noexcept { T const was = value_; return value_ -= by, was; }
  bool compare_exchange(T& e, T desired, std::memory_order = memory_order_seq_cst) noexcept { return e == value_ ? (value_ = desired, true) : (e = value_, false); }
TORN
  mutable std::memory_order seen{};
 private:
  T value_{};
};
}
CPP
cat > "$work/main.cpp" <<'CPP'
#include <cstdio>
#include "stub.h"
int small(int a, int b, base::atomic<int>& x);
int main() {
  for (auto [a, b] : {std::pair{1, 2}, {2, 2}, {7, 3}}) {
    base::atomic<int> x;
    int const result = small(a, b, x);
    std::printf("%d %d %d %d %d; ", result, x.load(), counted, locked > 0, static_cast<int>(x.seen));
  }
  std::puts("");
}
CPP
cd "$work"
mkdir -p docs/lab
cat > docs/lab/mutants.md <<'MD'
| key | change | why |
| --- | --- | --- |
| `0123456789` | `<` to `<=` (a.cpp) | A key. |
| `runtime/*: given.*`, `peer/a.h: left_.fetch_?dd` | default | Two atomics. |
| `streams/*: none.load` | order | No kind that a pattern explains. |
| `00000000aa`, `00000000bb` | together | One is enough. |
MD
python3 - <<'PY'
import re, sys
from pathlib import Path
sys.path.insert(0, "tools")
import mutants as m
text = Path("runtime/clock/small.cpp").read_text()
sites = m.sites_of("runtime/clock/small.cpp", text)
for n, s in enumerate(sites, 1):
    s.number = n
Path("changed.cpp").write_text(m.changed(text, sorted(sites, key=lambda s: (s.at, -s.end))))
Path("runtime/base/mutants.h").write_text(m.MUTANTS_H)
Path("runtime/base/mutants.cpp").write_text(m.MUTANTS_CPP.replace("MOST", "100"))
stub = Path("stub.h").read_text()
Path("stub.h").write_text(stub.replace("TORN", m.TORN))
explained = m.explanations()
for expected, path, kind, access, key in (
        (True, "x.cpp", "flip", "", "0123456789"), (False, "x.cpp", "flip", "", "0123456780"),
        (True, "runtime/memory/a.cpp", "default", "given.store", ""), (False, "runtime/memory/a.cpp", "default", "not_given.store", ""),
        (False, "runtime/memory/a.cpp", "order", "given.store", ""), (False, "peer/b.h", "default", "given.store", ""),
        (True, "peer/a.h", "default", "left_.fetch_add", ""), (False, "streams/a.h", "default", "none.load", "")):
    s = m.site(kind, 0, 0, "", path=path, access=access, key=key)
    if explained.explain(s) != expected:
        sys.exit(f"FAILED: {path} {kind} {access} {key} is {'not ' if expected else ''}explained")
if explained.groups != [("00000000aa", "00000000bb")]:
    sys.exit(f"FAILED: the groups are {explained.groups}")
for text, name in (("x.load()", "x.load"), ("where->given[mine].load()", "given.load"), ("version().load()", "version.load"), ("at[f(i)[0]].load()", "at.load"), ("  a->b.c.load()", "c.load")):
    if (seen := [s.access for s in m.sites_of("a.cpp", f"int f() {{ {text}; }}") if s.kind == "default"]) != [name]:
        sys.exit(f"FAILED: {text} is an access {seen}, not {name}")
for rule in ("if (a < b) wrong.push_back(c);", "if (a < b)\n    wrong.push_back(c);", "if (a < b) {\n    wrong.push_back(c);\n  }", "for (int i = 0; i < n; ++i)\n    if (!a) wrong.push_back(c);"):
    if seen := m.sites_of("a.cpp", f"void f() {{\n  {rule}\n}}"):
        sys.exit(f"FAILED: a rule of validate() is changed by {seen[0].kind}: {rule}")
if [s.kind for s in m.sites_of("a.cpp", "void f() { if (a < b) count(); each([&](int i) { wrong.push_back(i); }); }")] != ["flip", "remove"]:
    sys.exit("FAILED: changes beside a rule of validate() are not found")
Path("sites").write_text("".join(f"{s.number} {s.kind} {s.line} {' '.join(s.text.split())}\n" for s in sites))
PY
failed=0
c++ -std=c++20 -w -I. -o off main.cpp runtime/clock/small.cpp runtime/base/mutants.cpp
c++ -std=c++20 -w -I. -o on main.cpp changed.cpp runtime/base/mutants.cpp
expect="$(./off)"
[ "$(./on)" = "$expect" ] || { echo "FAILED: with all switches off: $(./on), not $expect"; failed=1; }
while read -r number kind line text; do
  case $kind in rmw | order | default | cas) continue ;; esac  # no effect with one thread
  [ "$(WEIR_MUTANT=$number ./on)" != "$expect" ] || { echo "FAILED: change $number ($kind at line $line: $text) changes nothing"; failed=1; }
done < sites
both="$(awk '$2 == "remove" || $2 == "flip" { print $1 }' sites | head -2 | paste -sd,)"
one="${both%,*}" other="${both#*,}"
case "$(WEIR_MUTANT=$both ./on)" in "$(WEIR_MUTANT=$one ./on)" | "$(WEIR_MUTANT=$other ./on)") echo "FAILED: of the changes $both one alone is on"; failed=1 ;; esac
for kind in remove flip not lock order default cas rmw; do
  grep -q "^[0-9]* $kind " sites || { echo "FAILED: no change of kind $kind is seen"; failed=1; }
done
for wrong in 2 4 5 7 13; do
  ! grep -qE "^[0-9]+ [a-z]+ $wrong " sites || { echo "FAILED: line $wrong has no change: $(grep -E "^[0-9]+ [a-z]+ $wrong " sites)"; failed=1; }
done
[ $failed = 0 ] || cat sites

# Each key and each pattern of docs/lab/mutants.md names a change of the library.
cp "$1/tools/mutants" mutants_of_all.py
python3 - "$1" <<'PY' || failed=1
import fnmatch, re, sys
from pathlib import Path
import mutants_of_all as m
m.ROOT = Path(sys.argv[1]).resolve()
m.name_all(every := m.all_sites())
keys, page = {s.key for s in every}, m.ROOT / "docs/lab/mutants.md"
gone = sorted(set(re.findall(r"\b[0-9a-f]{10}\b", page.read_text())) - keys)
gone += [f"{path}: {access}" for path, access in m.explanations(page).atomics
         if not any(s.kind == "default" and fnmatch.fnmatchcase(s.path, path) and
                    fnmatch.fnmatchcase(s.access, access) for s in every)]
for name in gone:
    print(f"FAILED: docs/lab/mutants.md: {name} names no change: name the line's new one, or drop it")
sys.exit(len(gone) > 0)
PY
exit $failed
