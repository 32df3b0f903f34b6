#!/usr/bin/env bash
# Each source is as tools/format writes it. Then a small tree: a source in another format is named, then formatted.
# Usage: format_test.sh ROOT. Skipped without clang-format 14.
set -euo pipefail
root=$1
"$root/tools/format" --program > /dev/null 2>&1 || { echo "skipped: no clang-format 14 (tools/packages format)"; exit 0; }
failed=0
"$root/tools/format" --check || failed=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work/out"; failed=1; }
mkdir -p "$work/tools" "$work/runtime/a" "$work/tests"
cp "$root/tools/format" "$work/tools/"
cp "$root/.clang-format" "$work/"
printf 'int f(int a) {\n  if (a) return 1;\n  return 2;\n}\n' | tee "$work/runtime/a/one line.cpp" > "$work/tests/b.cu"
printf '__global__ void k();\nvoid g() {\n  k<<<1, 1>>>();\n}\n' > "$work/tests/right.cu"
status=0
"$work/tools/format" --check > "$work/out" 2>&1 || status=$?
[ $status = 1 ] && [ "$(cut -d' ' -f1-2 "$work/out" | paste -sd,)" = "runtime/a/one line.cpp,tests/b.cu is" ] || fail "two sources in another format: status $status"
"$work/tools/format" > "$work/out" 2>&1 && "$work/tools/format" --check >> "$work/out" 2>&1 || fail "what is formatted differs"
grep -q '^    return 1;$' "$work/tests/b.cu" || fail "a statement shares a line with its condition"
grep -q 'k<<<1, 1>>>();' "$work/tests/right.cu" || fail "a launch has changed"

# Another version is not taken.
mkdir "$work/bin"
printf '#!/bin/sh\necho clang-format version 15.0.7\n' | tee "$work/bin/clang-format" > "$work/bin/clang-format-14"
chmod +x "$work"/bin/*
status=0
PATH=$work/bin:/usr/bin:/bin "$work/tools/format" --check > "$work/out" 2>&1 || status=$?
[ $status = 3 ] && grep -q 'no clang-format 14' "$work/out" || fail "clang-format 15 is taken: status $status"
status=0
"$work/tools/format" --what > "$work/out" 2>&1 || status=$?
[ $status = 2 ] && grep -q '^Usage: tools/format' "$work/out" || fail "an unknown option: status $status"
exit $failed
