#!/usr/bin/env bash
# tools/prove with stubs for the test programs: every seed once, the sums, and that a run that fails is told.
# Usage: prove_test.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
mkdir -p "$work/tests"
cat > "$work/stub" <<'STUB'
#!/bin/sh
name=$(basename "$0")
echo "$name $WEIR_TEST_BASE_SEED $WEIR_TEST_SEEDS" >> "$(dirname "$0")/../seen"
echo "seeded runs: $name $WEIR_TEST_SEEDS from seed $WEIR_TEST_BASE_SEED"
echo "schedules of streams: lazy $WEIR_TEST_SEEDS chance 1"
[ ! -e "$(dirname "$0")/../red" ] || [ "$name" != explore_clocks_test ] || { echo "x.cpp:3: Failure"; echo "why"; exit 1; }
STUB
chmod +x "$work/stub"
for program in $(sed -n "/^programs='/,/'\$/p" "$1/tools/prove" | sed "s/^programs='//" | awk '{ print $1 }'); do cp "$work/stub" "$work/tests/$program"; done
prove() { : > "$work/seen"; status=0; WEIR_TEST_BASE_SEED=1000 "$1/tools/prove" 20000 "$work" > "$work/out" 2> "$work/err" || status=$?; }
check() { if ! "${@:2}"; then echo "FAILED: $1"; cat "$work/out" "$work/err"; failed=1; fi; }

prove "$1"
check "a green run" [ "$status" = 0 ]
check "its table" grep -q '^| explore_memory_test | 5000 | 1000 |$' "$work/out"
check "its schedules" grep -qE '^\| lazy \| [0-9]{5} \| 0 \|$' "$work/out"
check "its sum" grep -qE '^[0-9]+ seeded runs in [0-9]+ s, [0-9]+ at a time; 0 jobs failed$' "$work/out"
# The jobs of one program begin where the one before ended.
check "every seed once" awk '
  $1 == "explore_memory_test" { n[$2] = $3; all += $3 }
  END { for (at = 1000; at in n; at += n[at]) ++k; exit !(at == 6000 && all == 5000) }' "$work/seen"
touch "$work/red"
prove "$1"
check "a run that fails" [ "$status" = 1 ]
check "why it does" grep -q '^why$' "$work/err"
check "how many did" grep -qE '; [1-9][0-9]* jobs failed$' "$work/out"
exit $failed
