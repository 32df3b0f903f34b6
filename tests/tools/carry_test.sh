#!/usr/bin/env bash
# tests/planted/carry in a small tree: a source moves, words change, a patch no longer fits.
# Usage: carry_test.sh ROOT
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tests/planted" "$work/runtime/old" "$work/runtime/new"
cp "$1"/tests/planted/{carry,plant,all_fit} "$work/tests/planted/"
cd "$work"
printf 'int one;\nint piece = 1;\nint last;\n' > runtime/old/a.b.cpp
cp runtime/old/a.b.cpp runtime/old/aXb.cpp
planted() {  # planted SOURCE: prints a patch of it
  printf 'hazard: a piece is lost\ncheck: bytes\nruns: 1\n\n--- a/%s\n+++ b/%s\n@@ -1,3 +1,3 @@\n int one;\n-int piece = 1;\n+int piece = 2;\n int last;\n' "$1" "$1"
}
planted runtime/old/a.b.cpp > tests/planted/first.patch
planted runtime/old/aXb.cpp > tests/planted/other.patch
carry=tests/planted/carry
fail() { echo "FAILED: $1"; cat tests/planted/*.patch out; exit 1; }

$carry check > out 2>&1 || fail "patches that fit"
mv runtime/old/a.b.cpp runtime/new/it.cpp
if $carry check > out 2>&1; then fail "a source that has moved"; fi
grep -q '^FAILED: first.patch does not fit runtime/old/a.b.cpp' out || fail "and is named"
$carry move runtime/old/a.b.cpp runtime/new/it.cpp
planted runtime/new/it.cpp | cmp -s - tests/planted/first.patch || fail "its patch moves too"
planted runtime/old/aXb.cpp | cmp -s - tests/planted/other.patch || fail "no other patch moves"
$carry check > out 2>&1 || fail "after the move"

echo 's/\b(piece)\b/heap_\1/g' > sed.txt
sed -E -i -f sed.txt runtime/*/*.cpp
$carry words sed.txt
grep -q '^-int heap_piece = 1;$' tests/planted/first.patch && grep -q '^+int heap_piece = 2;$' tests/planted/first.patch || fail "the words of a patch"
grep -q '^hazard: a piece is lost$' tests/planted/first.patch || fail "what stands before the diff stays"
$carry check > out 2>&1 || fail "after the words"
for wrong in "" "move a" "words" "check all" "go"; do
  status=0
  $carry $wrong > out 2>&1 || status=$?
  [ $status = 2 ] && grep -q '^Usage: carry move' out || fail "'carry $wrong' is no command"
done
