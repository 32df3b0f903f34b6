#!/usr/bin/env bash
# tools/prove with stubs for the test programs: it runs each seed once, adds up the runs, reports failures.
# Usage: prove_test.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
mkdir -p "$work/tests" "$work/planted"
cat > "$work/stub" <<'STUB'
#!/bin/sh
name=$(basename "$0")
case $1 in --gtest_filter=*) name=$name/$(echo "${1#*=}" | sed 's|^seeds/||; s|\..*||') ;; esac  # and its suite
echo "$name $WEIR_TEST_BASE_SEED $WEIR_TEST_SEEDS" >> "$(dirname "$0")/../seen"
echo "seeded runs: $name $WEIR_TEST_SEEDS from seed $WEIR_TEST_BASE_SEED"
echo "schedules of streams: lazy $WEIR_TEST_SEEDS chance 1"
[ ! -e "$(dirname "$0")/../red" ] || [ "$name" != explore_test/explore_clocks ] || { echo "x.cpp:3: Failure"; echo "why"; exit 1; }
STUB
chmod +x "$work/stub"
for program in $("$1/tools/prove" --programs); do cp "$work/stub" "$work/tests/$program"; done
mv "$work/tests/planted_none" "$work/planted/"
prove() { : > "$work/seen"; status=0; WEIR_TEST_BASE_SEED=1000 "$1/tools/prove" 20000 "$work" > "$work/out" 2> "$work/err" || status=$?; }
check() { if ! "${@:2}"; then echo "FAILED: $1"; cat "$work/out" "$work/err"; failed=1; fi; }

prove "$1"
check "a green run" [ "$status" = 0 ]
check "its table" grep -q '^| explore_test/explore_memory | 4400 | 1000 |$' "$work/out"
check "its schedules" grep -qE '^\| lazy \| [0-9]{5} \| 0 \|$' "$work/out"
check "its sum" grep -qE '^[0-9]+ seeded runs in [0-9]+ s, [0-9]+ at a time; 0 jobs failed$' "$work/out"
# Each job of a program starts at the seed after the previous one's last.
check "every seed once" awk '
  $1 == "explore_test/explore_memory" { n[$2] = $3; all += $3 }
  END { for (at = 1000; at in n; at += n[at]) ++k; exit !(at == 5400 && all == 4400) }' "$work/seen"
check "all random programs in turn" grep -q '^| planted_none | 1000 | 1000 |$' "$work/out"
# Each program of tests/explore/programs.h, through the test that explores it.
for name in $(sed -n '/explored_programs\[\] = {/,/^};/s/^ *{"\([a-z_]*\)",.*/\1/p' "$1/tests/explore/programs.h"); do
  for file in $(grep -l "explore_program(\"$name\"" "$1"/tests/explore/*_test.cpp || echo "$name"); do
    suite=$(awk -v call="explore_program(\"$name\"" '/^TEST/ { split($0, part, /[(,]/); suite = part[2] } index($0, call) { print suite; exit }' "$file")
    check "$name is among what is proven" grep -q "^explore_test/${suite:-none} " "$work/seen"
  done
done
touch "$work/red"
prove "$1"
check "a run that fails" [ "$status" = 1 ]
check "why it does" grep -q '^why$' "$work/err"
check "how many did" grep -qE '; [1-9][0-9]* jobs failed$' "$work/out"
for wrong in WEIR_PROVE_JOBS=many WEIR_TEST_BASE_SEED=1e6; do
  status=0
  env "$wrong" "$1/tools/prove" 20000 "$work" > "$work/out" 2> "$work/err" || status=$?
  check "$wrong" [ "$status" = 2 ]
  check "$wrong is named" grep -q "$wrong is no" "$work/err"
done
status=0
"$1/tools/planted" "$work/nowhere" > "$work/out" 2> "$work/err" || status=$?
check "no planted defects" [ "$status" = 2 ]
check "that it says so" grep -q 'nowhere has no planted defects' "$work/err"
check "no table" [ ! -s "$work/out" ]
exit $failed
