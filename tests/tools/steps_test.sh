#!/usr/bin/env bash
# The steps that serve a miss have the same names in the same order in the code and on their page.
# - Before memory grows: the table in runtime/memory/device/reuse.cpp, and the rows of docs/decisions/reuse.md up to growth.
# - Recovery after growth failed: the table in runtime/memory/device/oom_ladder.cpp, and the rows R of the same page.
# - What statistics count: recovery_steps in include/weir/stats.h but the last, and the rows of docs/explanation/memory.md.
# Usage: steps_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

before_in_code() { sed -n '/block_reuse::steps\[\] = {/,/^};/s/^ *{"\([^"]*\)".*/\1/p' "$1"; }
# Row 0 is asked before the table is, row G is growth itself, and the row after it is the other table.
before_on_page() { sed -nE 's/^\| (D|[1-9][0-9]*) \| ([^|]*) \|.*/\2/p' "$1" | sed 's/ *$//'; }
recovery_in_code() { sed -n '/ascent::recoveries\[\] = {/,/^};/s/^ *{"\([^"]*\)".*/\1/p' "$1"; }
recovery_on_page() { sed -n 's/^| R[0-9]* | \([^|]*\) |.*/\1/p' "$1" | sed 's/ *$//'; }
counted_in_code() { sed -n '/ recovery_steps{/,/};/p' "$1" | grep -o '"[^"]*"' | tr -d '"' | sed '$d'; }
counted_on_page() { sed -n '/^### Recovery steps/,/^After each step/s/^| \([^|]*\) |.*/\1/p' "$1" | sed '1,2d; s/ *$//'; }

same() {  # same TABLE CODE PAGE
  "$1_in_code" "$2" > "$work/code"
  "$1_on_page" "$3" > "$work/page"
  [ -s "$work/code" ] && diff "$work/code" "$work/page" > "$work/difference"
}
failed=0
fail() { echo "FAILED: $1"; failed=1; }
steps=$root/runtime/memory/device/reuse.cpp
ladder=$root/runtime/memory/device/oom_ladder.cpp
counted=$root/include/weir/stats.h
page=$root/docs/decisions/reuse.md
memory=$root/docs/explanation/memory.md
same before "$steps" "$page" || { fail "< steps of reuse.cpp, > rows of reuse.md"; cat "$work/difference"; }
same recovery "$ladder" "$page" || { fail "< steps of oom_ladder.cpp, > rows R of reuse.md"; cat "$work/difference"; }
same counted "$counted" "$memory" || { fail "< recovery_steps of stats.h, > rows of memory.md"; cat "$work/difference"; }

# A step that the page lacks, and two that are exchanged, in each table.
sed 's/^    {"own pending blocks",.*/&\n    {"a new step", \&block_reuse::always, \&block_reuse::own_pending},/' "$steps" > "$work/more.cpp"
same before "$work/more.cpp" "$page" && fail "a step before growth without a row is not seen"
sed 's/^| 4 | other heaps, known order/| 4 | other heaps, polled/' "$page" > "$work/other.md"
same before "$steps" "$work/other.md" && fail "a row of another step before growth is not seen"
sed 's/^    {"pending blocks",.*/&\n    {"a new step", counted::pages, \&ascent::always, \&ascent::rest},/' "$ladder" > "$work/more.cpp"
same recovery "$work/more.cpp" "$page" && fail "a recovery step without a row is not seen"
sed 's/^| R4 | blocks in caches of threads/| R4 | pending blocks/' "$page" > "$work/other.md"
same recovery "$ladder" "$work/other.md" && fail "a row of another recovery step is not seen"
sed 's/"blocks in caches of threads",/& "a new step",/' "$counted" > "$work/more.h"
same counted "$work/more.h" "$memory" && fail "a counted step without a row is not seen"
exit $failed
