#!/usr/bin/env bash
# The functions of the repository keep the bar of tools/functions. Then a small tree with one violation at a time: each
# is named, and what only looks like one is not.
# Usage: functions_test.sh ROOT
set -euo pipefail
root=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAILED: $1"; cat "$work/out"; failed=$((failed + 1)); }

"$root/tools/functions" "$root" > "$work/out" 2>&1 || fail "the functions of this repository"

fresh() {
  rm -rf "$work/t"
  mkdir -p "$work/t"/{tools,runtime/a,peer}
  echo '# none' > "$work/t/tools/functions.txt"
  cd "$work/t"
}
lines() { seq -f "  int a%g = 0;" "$1"; }
branches() { seq -f "  if (a == %g) b();" "$1"; }
kept() {  # kept NAME: the current tree passes
  "$root/tools/functions" "$work/t" > "$work/out" 2>&1 || fail "$1"
}
broken() {  # broken NAME PLACE WORDS: the current tree has one violation
  local status=0
  "$root/tools/functions" "$work/t" > "$work/out" 2>&1 || status=$?
  [ $status = 1 ] && [ "$(wc -l < "$work/out")" = 2 ] && grep -q "^$2: .*$3" "$work/out" || fail "$1 (exit status $status)"
}

# At the bar, each by all that is no line of code and no branch.
fresh
{ echo 'int f() {'; lines 49; printf '\n  // if (a) for while case catch\n  /* one\n     case */\n  char const* s = "if (a) { case";\n}\n'; } > runtime/a/lines.cpp
{ echo 'int g() {'; branches 10; printf '  int iffy = 1, for_all = 2;\n  else_if(iffy);\n}\n'; } > runtime/a/branches.h
kept "50 lines and 10 branches"

for path in runtime/a/f.cpp streams/b/f.h peer/f.cpp; do
  fresh
  mkdir -p "${path%/*}"
  { printf '\nint f(int a) {\n'; lines 51; echo '}'; } > $path
  broken "51 lines in $path" "$path:2" 'f has 51 lines of code and 0 branches'
done
fresh
{ echo 'int f(int a) {'; branches 11; echo '}'; } > peer/f.cpp
broken "11 branches" peer/f.cpp:1 'f has 11 lines of code and 11 branches'
for word in 'for (;;)' 'while (a)' 'case 1:' '} catch (...) {' 'else if (a)' 'do b(); while (a);'; do
  fresh
  { echo 'int f(int a) {'; branches 10; [[ $word != *catch* ]] || echo '  try {'; echo "  $word"; [[ $word != *catch* ]] || echo '  }'; echo '}'; } > peer/f.cpp
  broken "a branch by $word" peer/f.cpp:1 '11 branches'
done

# Wherever a function is declared: members, constructors with values in braces, templates, lambdas, blocks that are tried.
head_of() {  # head_of NAME LINE NAME_OF_FUNCTION TEXT...
  local name=$1 line=$2 function=$3
  shift 3
  fresh
  { printf '%s\n' "$@"; branches 11; echo '}'; [[ "$*" != *'namespace'* ]] || echo '}'; [[ "$*" != *'class c'* ]] || echo '};'; } > peer/f.cpp
  broken "$name" "peer/f.cpp:$line" "$function has"
}
head_of "a member in its class" 4 f 'namespace n {' 'class c final : public d {' ' public:' '  template <class T, template <class> class U> int f(T a) const noexcept {'
head_of "a member outside" 1 c::f 'std::vector<int> const& c::f(int a) {'
head_of "a constructor" 2 c::c 'int before = 1;' 'c::c(int a)' '    : a_{a, 1}, b_(a),' '      d_{} {'
head_of "a destructor that is tried" 1 c::~c 'c::~c() try {'
head_of "an operator" 1 'c::operator()' 'int c::operator()(int a) {'
head_of "a return type that is a struct" 1 f 'struct d* f(int a) {'
head_of "a return type behind the parameters" 1 f '[[nodiscard]] auto f(int a) -> std::vector<int> {'
fresh
{ echo 'int const table[] = {'; seq -f '  %g,' 60; echo '};'; echo 'struct s {'; lines 60; echo '};'; echo 'namespace n {'; lines 60; echo '}'; } > peer/f.cpp
kept "a table, a struct and a namespace are no functions"
fresh
{ printf 'int f(int a) {\n  auto const g = [&] {\n'; branches 6; printf '  };\n  for (;;) {\n'; branches 4; printf '  }\n}\n'; } > peer/f.cpp
broken "branches of a lambda" peer/f.cpp:1 'f has 14 lines of code and 11 branches'
fresh
{ for i in 1 2 3; do echo "int f$i(int a) {"; branches 10; echo '}'; done; } > peer/f.cpp
kept "three functions"

# A reason.
fresh
{ printf '// Says what it does.\n// Long: one case for each answer of the driver.\nint f(int a) {\n'; branches 11; echo '}'; } > peer/f.cpp
kept "a reason above it"
fresh
{ printf '// Long: one case for each answer of the driver.\nint f(int a);\n\nint g(int a) {\n'; branches 11; echo '}'; } > peer/f.cpp
broken "a reason above another one" peer/f.cpp:4 'g has 11 lines'
fresh
{ printf '// Long: yes.\nint f(int a) {\n'; branches 11; echo '}'; } > peer/f.cpp
broken "a reason that says nothing" peer/f.cpp:2 'f has 11 lines'
fresh
{ printf '// Long: one case for each answer of the driver.\nint f(int a) {\n'; branches 10; echo '}'; } > peer/f.cpp
broken "a reason without need" peer/f.cpp:2 'take the sentence that begins with "Long:" away'

# A row for now.
fresh
{ echo 'int f(int a) {'; branches 12; echo '}'; } > peer/f.cpp
echo 'peer/f.cpp f 12 12' >> tools/functions.txt
kept "a function that may be long for now"
grep -q '1 of them let pass' "$work/out" || fail "a function that may be long for now is told"
for row in 'peer/f.cpp f 12 11' 'peer/f.cpp f 11 12'; do
  echo "$row" > tools/functions.txt
  status=0
  "$root/tools/functions" "$work/t" > "$work/out" 2>&1 || status=$?
  [ $status = 1 ] && grep -q '^peer/f.cpp:1: f has 12 lines of code and 12 branches' "$work/out" || fail "a row for less than it has: $row"
done
printf 'peer/f.cpp f 12 12\npeer/g.cpp g 12 12\n' > tools/functions.txt
broken "a row for what is not there" tools/functions.txt 'peer/g.cpp g keeps the bar, or is not there'
printf 'peer/f.cpp f 12\n' > tools/functions.txt
"$root/tools/functions" "$work/t" > "$work/out" 2>&1 && fail "a row without branches"
grep -q 'is not a path, a name, lines and branches' "$work/out" || fail "a row without branches is named"

# The longest, and what cannot be read.
fresh
{ echo 'int f(int a) {'; branches 11; echo '}'; echo 'int g(int a) {'; lines 51; echo '}'; } > peer/f.cpp
"$root/tools/functions" --most 1 "$work/t" > "$work/out" 2>&1 || fail "--most"
[ "$(cat "$work/out")" = ' 51 lines  0 branches  peer/f.cpp:14  g

 11 lines 11 branches  peer/f.cpp:1  f' ] || fail "the longest, and the one with most branches"
for text in 'int f() {' 'int f() { } }'; do
  echo "$text" > peer/f.cpp
  status=0
  "$root/tools/functions" "$work/t" > "$work/out" 2>&1 || status=$?
  [ $status = 2 ] || fail "braces without a partner: $text: status $status"
done
rm tools/functions.txt
status=0
"$root/tools/functions" "$work/t" > "$work/out" 2>&1 || status=$?
[ $status = 2 ] || fail "a tree without tools/functions.txt cannot be checked: status $status"

[ "$failed" = 0 ] || { echo "$failed cases failed"; exit 1; }
