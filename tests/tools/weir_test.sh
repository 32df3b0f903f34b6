#!/usr/bin/env bash
# The tool `weir`: what info prints of a simulated machine, and what a wrong word is answered with.
# Usage: weir_test.sh ROOT BUILD
set -euo pipefail
weir=$2/bin/weir
failed=0
out=""
run() { status=0; out=$("$weir" "$@" 2>&1) || status=$?; }
expect() {  # expect STATUS TEXT: of the last run
  if [ "$status" != "$1" ] || [[ $out != *"$2"* ]]; then
    printf 'FAILED: status %s, expected %s and "%s":\n%s\n' "$status" "$1" "$2" "$out"
    failed=1
  fi
}
run info --devices sim:3:2
expect 0 'gpu:2'
expect 0 'of 2 GiB'
expect 0 'gpu:0 '
[ "$(grep -c '^gpu:' <<< "$out")" = 3 ] || { echo "FAILED: three devices: $out"; failed=1; }
run info --devices sim:1
[[ $out != *links* ]] || { echo "FAILED: one device has no links: $out"; failed=1; }
run inof
expect 2 "did you mean 'info'"
run info --devices smi:2
expect 1 'sim'
run info --divices sim
expect 1 'divices'
run
expect 0 'usage: weir'
exit $failed
