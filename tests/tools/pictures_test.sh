#!/usr/bin/env bash
# The pictures of docs/explanation/ are what tools/pictures draws of today's runs; each is well-formed, has a text for
# those who do not see it, colours for dark pages, and a page that shows it. Usage: pictures_test.sh ROOT BUILD.
# WEIR_WRITE_DOCS=1 draws them anew.
set -euo pipefail
root=$1
python3 -c pass 2> /dev/null || { echo "skipped: no python3"; exit 0; }
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$root/tools/pictures" "$2/bin/pictures" "$work/images"
[ -z "${WEIR_WRITE_DOCS:-}" ] || cp "$work"/images/*.svg "$root/docs/images/"
diff -rq -x '*.png' "$work/images" "$root/docs/images" || { echo "FAILED: the runs draw other pictures (./run pictures draws them anew)"; failed=1; }
for picture in "$work"/images/*.svg; do
  name=$(basename "$picture")
  python3 -c 'import sys, xml.dom.minidom as m; m.parse(sys.argv[1])' "$picture" || { echo "FAILED: $name is not well-formed"; failed=1; }
  for part in '<title id="title">.' '<desc id="says">.' 'role="img"' 'prefers-color-scheme: dark'; do
    grep -q "$part" "$picture" || { echo "FAILED: $name has no $part"; failed=1; }
  done
  grep -qE "!\[.{20,}\]\(../images/$name\)" "$root"/docs/explanation/*.md || { echo "FAILED: no page shows $name with a text"; failed=1; }
done
[ "$(ls "$work/images" | wc -l)" -ge 7 ] || { echo "FAILED: pictures are missing"; failed=1; }

# A run that differs from what its picture says draws nothing.
printf '#!/bin/sh\necho "pictures: the run is not as its picture says" >&2\nexit 1\n' > "$work/broken"
chmod +x "$work/broken"
status=0
"$root/tools/pictures" "$work/broken" "$work/none" 2> /dev/null || status=$?
[ $status = 1 ] && [ -z "$(ls "$work/none")" ] || { echo "FAILED: a failing program: status $status"; failed=1; }
exit $failed
