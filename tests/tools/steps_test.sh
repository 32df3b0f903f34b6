#!/usr/bin/env bash
# The steps that serve a miss before memory grows: the table in runtime/memory/device/reuse.cpp and the rows of
# docs/decisions/reuse.md up to growth have the same names in the same order. Usage: steps_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

in_code() { sed -n '/block_reuse::steps\[\] = {/,/^};/s/^ *{"\([^"]*\)".*/\1/p' "$1"; }
# Row 0 is asked before the table is, and row 8 is growth itself.
on_page() { sed -n 's/^| \([D1-7]\) | \([^|]*\) |.*/\2/p' "$1" | sed 's/ *$//'; }

compare() {  # compare CODE PAGE
  in_code "$1" > "$work/code"
  on_page "$2" > "$work/page"
  [ -s "$work/code" ] && diff "$work/code" "$work/page" > "$work/difference"
}
failed=0
code=$root/runtime/memory/device/reuse.cpp page=$root/docs/decisions/reuse.md
compare "$code" "$page" || { echo "FAILED: < steps of reuse.cpp, > rows of reuse.md"; cat "$work/difference"; failed=1; }

# A step that the page lacks, and two that are exchanged.
sed 's/^    {"own pending blocks",.*/&\n    {"a new step", \&block_reuse::always, \&block_reuse::own_pending},/' "$code" > "$work/more.cpp"
compare "$work/more.cpp" "$page" && { echo "FAILED: a step without a row is not seen"; failed=1; }
sed 's/^| 4 | other heaps, known order/| 4 | other heaps, polled/' "$page" > "$work/other.md"
compare "$code" "$work/other.md" && { echo "FAILED: a row of another step is not seen"; failed=1; }
exit $failed
