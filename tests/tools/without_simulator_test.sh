#!/usr/bin/env bash
# The rooms above and below simulator/ take two functions of it, and link with runtime/core/open_gpus.cpp in its place.
# Usage: without_simulator_test.sh ROOT BUILD
set -euo pipefail
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
simulator='/weir\.dir/(\./)?(simulator/|Unity/unity_simulator_)'
grep '\.o$' "$build/weir_objects.txt" > "$work/all"
grep -E "$simulator" "$work/all" > "$work/simulator"
grep -vE "$simulator" "$work/all" > "$work/rooms"

# Weak names are inline functions and types: whoever needs them has them.
xargs nm --defined-only < "$work/simulator" | awk 'NF == 3 && $2 ~ /^[A-TX-Z]$/ { print $3 }' | sort -u > "$work/defined"
xargs nm --undefined-only < "$work/rooms" | awk '$1 == "U" { print $2 }' | sort -u > "$work/needed"
comm -12 "$work/defined" "$work/needed" | c++filt | sed 's/(.*//' > "$work/taken"
printf '%s\n' weir::open_machine weir::with_checker > "$work/wanted"
cmp -s "$work/taken" "$work/wanted" || { echo "of simulator/ the other rooms take these, not open_machine and with_checker alone:"; cat "$work/taken"; exit 1; }

# The linked program answers for what was left out: the operation, the operands and the remedy.
"$build/tests/weir_test_gpus_alone" > "$work/said"
cut -d' ' -f2- "$work/said" | sed 's/ \[.*//' > "$work/texts"
diff - "$work/texts" <<'END'
runtime: 2 simulated devices of 64 MiB, which this build of weir leaves out. Build weir with WEIR_SIMULATOR=ON, or run on GPUs: WEIR_DEVICES=cuda
runtime: options::check_races, which this build of weir leaves out. Build weir with WEIR_SIMULATOR=ON, or run without WEIR_CHECK_RACES and options::check_races
END
