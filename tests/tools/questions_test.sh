#!/usr/bin/env bash
# docs/how-to/where-did-my-memory-go.md quotes code of examples/questions, and the programs' output up to times.
# Usage: questions_test.sh ROOT BUILD. WEIR_WRITE_DOCS=1 writes the current output to the page.
set -euo pipefail
page=$1/docs/how-to/where-did-my-memory-go.md source=$1/examples/questions/questions.cpp
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
answers=0
# The page with current answers.
while IFS= read -r line; do
  printf '%s\n' "$line"
  if [[ $line =~ ^\`questions\ ([a-z]+)\`\ prints$ ]]; then
    IFS= read -r fence
    printf '%s\n' "$fence"
    "$2/bin/questions" "${BASH_REMATCH[1]}"
    while IFS= read -r line && [ "$line" != '```' ]; do :; done
    printf '```\n'
  fi
done < "$page" > "$work/page"
[ -z "${WEIR_WRITE_DOCS:-}" ] || cp "$work/page" "$page"
plain() { sed -E 's/ in [0-9]+ us/ in N us/; s/[0-9.]+ ms/N ms/g; s/[0-9]+ % of the time/N % of the time/; s/fences [0-9]+/fences N/' "$1"; }
diff <(plain "$page") <(plain "$work/page") || { echo "FAILED: the page says something else than the programs (WEIR_WRITE_DOCS=1 writes it anew)"; failed=1; }
"$2/bin/questions" nothing 2> "$work/usage" && { echo 'FAILED: an unknown question has an answer'; failed=1; }
# The help has each program with the heading that it answers on the page.
diff <(awk '/^## / { asks = substr($0, 4) } /^`questions [a-z]+` prints$/ { sub(/`$/, "", $2); print $2, asks }' "$page") \
  <(sed -n '/^questions:/,/^$/s/^  \([a-z]*\) */\1 /p' "$work/usage") || { echo 'FAILED: the help and the page differ'; failed=1; }

# Times of a simulated device come with a word about them.
"$2/bin/questions" overlap | grep -q '^A simulated device: ' || { echo 'FAILED: overlap tells times as if they were of a GPU'; failed=1; }

# Files of other users in TMPDIR are neither written nor removed, and no file remains.
mkdir "$work/tmp"
echo mine > "$work/kept"
ln -s "$work/kept" "$work/tmp/timeline.json"
TMPDIR=$work/tmp "$2/bin/questions" overlap > /dev/null
[ "$(cat "$work/kept")" = mine ] && [ "$(ls "$work/tmp")" = timeline.json ] && [ -L "$work/tmp/timeline.json" ] || { echo "FAILED: questions changed a file of TMPDIR"; failed=1; }
exit $failed
