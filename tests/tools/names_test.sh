#!/usr/bin/env bash
# Every name weir::… of docs/coming-from-pytorch.md is declared in include/weir; and one that is not is found.
# Usage: names_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
root=$1
unknown() {  # of the text on stdin: names that no public header has
  grep -o 'weir::[a-z0-9_:]*[a-z0-9_]' | sort -u | while IFS= read -r name; do
    for part in ${name//::/ }; do
      [ "$part" = weir ] || grep -qrw -- "$part" "$root/include/weir" || echo "$name"
    done
  done
}
[ "$(echo 'as `weir::empty_cash` does' | unknown)" = weir::empty_cash ] || { echo "a wrong name was not found"; exit 1; }
wrong=$(unknown < "$root/docs/coming-from-pytorch.md")
[ -z "$wrong" ] || { echo "docs/coming-from-pytorch.md names what is not there:"; echo "$wrong"; exit 1; }
known=$(grep -o 'weir::[a-z0-9_]*' "$root/docs/coming-from-pytorch.md" | sort -u | wc -l)
[ "$known" -gt 40 ] || { echo "only $known names were looked for"; exit 1; }
