#!/usr/bin/env bash
# ./run with stubs for cmake and ctest: its build steps and counts, and that it reports every failure.
# Usage: run_test.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
mkdir -p "$work/bin" "$work/weir/tools"
cp "$1/run" "$work/weir/"
touch "$work/weir/CMakePresets.json"
printf '#!/bin/sh\necho packages "$@" >> %s/calls\n' "$work" > "$work/weir/tools/packages"
printf '#!/bin/sh\necho %s/book.txt\n' "$work" > "$work/weir/tools/book"
cat > "$work/bin/cmake" <<STUB
#!/bin/sh
echo cmake "\$@" >> $work/calls
if [ "\$1" = --preset ]; then mkdir -p build/\$2/bin && touch build/\$2/build.ninja; exit 0; fi
[ ! -e $work/broken ] || { echo "[1/2] Building x"; echo "x.cpp:1: error: no"; exit 1; }
[ ! -e $work/steps ] || printf '[1/2] Building a\n[2/2] Linking b\n'
printf '#!/bin/sh\necho "\$0" "\$@" in "\$PWD"\n' > \$2/bin/trainer
chmod +x \$2/bin/trainer
STUB
printf '#!/bin/sh\necho ctest "$@" seeds=$WEIR_TEST_SEEDS >> %s/calls\ncat %s/ctest.txt\n[ ! -e %s/red ]\n' "$work" "$work" "$work" > "$work/bin/ctest"
chmod +x "$work"/bin/* "$work"/weir/tools/*

weir() { : > "$work/calls"; status=0; (cd "$work" && PATH="$work/bin:/usr/bin:/bin" weir/run "$@") > "$work/out" 2> "$work/err" || status=$?; }
is() {  # is NAME STATUS: checks the last run
  if [ "$status" != "$2" ]; then echo "FAILED: $1: exit status $status"; cat "$work/out" "$work/err" "$work/calls"; failed=1; fi
}
has() { if ! grep -q -- "$2" "$work/$1"; then echo "FAILED: '$2' is not in $1:"; cat "$work/$1"; failed=1; fi; }
closes() { if [ "$(tail -n 1 "$work/out")" != "$1" ]; then echo "FAILED: the last line is no '$1':"; cat "$work/out"; failed=1; fi; }

printf '1/3 Test #1: a ...   Passed    0.01 sec\n2/3 Test #2: b ...***Skipped   0.01 sec\n\n100%% tests passed, 0 tests failed out of 3\n\nThe following tests did not run:\n\t  2 - b (Skipped)\n' > "$work/ctest.txt"
weir test
is "green tests" 0
closes "2 passed, 0 failed"
has calls 'cmake --preset release'
mkdir -p "$work/weir/build/release/Testing/Temporary"
printf '[==========] 5 tests from 2 test suites ran. (9 ms total)\n[  PASSED  ] 4 tests.\n[  SKIPPED ] 1 test, listed below:\n[  SKIPPED ] a.b\n[==========] 1 test from 1 test suite ran. (0 ms total)\n' \
  > "$work/weir/build/release/Testing/Temporary/LastTest.log"
weir test
has err '6 cases in 3 programs, or parts of them; 1 were skipped'
has calls 'ctest --preset release --no-tests=error'
weir test asan tsan
is "two presets" 0
closes "4 passed, 0 failed"
has calls 'ctest --preset tsan .*seeds=[0-9]'
has err 'base seed [0-9]'
weir test -R clock
has calls 'ctest --preset release .*-R clock'

touch "$work/red"
printf '1/2 Test #1: a ...***Failed    0.01 sec\n[ RUN      ] a.good\n[       OK ] a.good (0 ms)\n[ RUN      ] a.bad\nwhy\n\n50%% tests passed, 1 tests failed out of 2\n' > "$work/ctest.txt"
weir test
is "a failing test" 1
closes "1 passed, 1 failed"
has out '^why$'
has out 'RUN .* a.bad'
if grep -q 'a.good' "$work/out"; then echo "FAILED: a case that passed is told"; failed=1; fi
echo 'No tests were found!!!' > "$work/ctest.txt"
weir test
is "no tests at all" 1
closes "0 passed, 1 failed"
rm "$work/red"
weir test
is "a suite without a count" 1

touch "$work/broken"
weir test
is "a broken build" 1
has err 'x.cpp:1: error: no'
rm "$work/broken"

weir demo --steps 3
is "the demo" 0
has calls 'packages build book'
has out "weir/build/release/bin/trainer --text $work/book.txt --steps 3 in $work\$"
weir demo --text mine.txt
has out 'trainer --text mine.txt in'
if grep -q 'book' "$work/calls"; then echo "FAILED: a text of one's own fetches no book"; failed=1; fi
# On a terminal the steps of a build are gone when the program prints.
touch "$work/steps"
if command -v script > /dev/null; then
  seen=$(cd "$work" && PATH="$work/bin:/usr/bin:/bin" script -qec 'weir/run demo --text mine.txt' /dev/null | tr -d '\000')
  left=$(sed -E 's/.*\x1b\[K//' <<< "$seen" | tr -d '\r')
  if [[ $seen != *'building: 1 of 2'* ]]; then echo "FAILED: a terminal sees no progress: $seen"; failed=1; fi
  if [[ $left != *'/trainer --text mine.txt in '* || $left == *$'\n'* ]]; then echo "FAILED: a terminal keeps more than the program's line: $left"; failed=1; fi
fi
rm "$work/steps"
weir prove abc
is "no number of runs" 2
has err "not 'abc'"
if [ -s "$work/calls" ]; then echo "FAILED: something was built for it:"; cat "$work/calls"; failed=1; fi
weir help
for command in info doctor replay snapshot bench; do has out "weir ARGS .*$command"; done
for group in Try Explore Verify Benchmark Build 'exit status'; do has out "^$group"; done
weir tset
is "an unknown command" 2
has err "no command 'tset'"
weir test relaese
is "an unknown preset" 2
has err "not 'relaese'"
exit $failed
