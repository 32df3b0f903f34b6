#!/usr/bin/env bash
# `./run docs`: Doxygen warns of nothing, each public name has a text, each link of the site leads somewhere, and a browser shows it.
# Usage: docs_test.sh ROOT. Skipped without Doxygen; the browser's part without Chromium.
set -euo pipefail
root=$1
command -v doxygen > /dev/null && python3 -c pass 2> /dev/null || { echo "skipped: no doxygen (tools/packages docs)"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
"$root/tools/docs" "$work/site" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }

python3 - "$work/site/html" << 'END' || { echo "FAILED: links of the site"; failed=1; }
import html, os, re, sys, urllib.parse
site = sys.argv[1]
pages = {name: open(os.path.join(site, name), encoding="utf-8").read() for name in os.listdir(site) if name.endswith(".html")}
targets = {name: set(re.findall(r'(?:id|name)="([^"]+)"', text)) for name, text in pages.items()}
wrong = links = 0
for name, text in pages.items():
    for to in re.findall(r'(?:href|src)="([^"]+)"', text):
        to = urllib.parse.unquote(html.unescape(to))
        if re.match(r"[a-z]+:", to) or to.startswith("$"):
            continue
        links += 1
        path, _, mark = to.partition("#")
        if mark in ("define-members", "nested-classes"):  # Doxygen links them also if all their names are hidden
            continue
        path = path or name
        if not os.path.exists(os.path.join(site, path)) or (mark and path in targets and mark not in targets[path]):
            print(f"{name}: {to}"); wrong += 1
if links < 1000:
    print(f"only {links} links were looked at"); wrong += 1
sys.exit(wrong > 0)
END

# What has no text is found.
mkdir -p "$work/tree/tools" "$work/tree/include/weir" "$work/tree/docs/images"
cp "$root"/tools/doxygen_* "$root/tools/docs" "$work/tree/tools/"
printf 'project(weir VERSION 0.1.0)\n' > "$work/tree/CMakeLists.txt"
printf '# a\n' | tee "$work/tree/README.md" "$work/tree/CHANGELOG.md" > "$work/tree/CONTRIBUTING.md"
printf '// weir/new.h: a header.\n#pragma once\nnamespace weir {\n// Said.\nvoid told();\n\nvoid untold();\n}  // namespace weir\n' > "$work/tree/include/weir/new.h"
status=0
"$work/tree/tools/docs" "$work/other" > "$work/log" 2>&1 || status=$?
[ $status = 1 ] && grep -q 'untold.*is not documented' "$work/log" && ! grep -q 'Member told' "$work/log" || { echo "FAILED: a name without a text, status $status"; cat "$work/log"; failed=1; }

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -n "$browser" ]; then
  shown() { timeout 60 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --virtual-time-budget=4000 --dump-dom "file://$work/site/html/$1" 2> /dev/null; }
  for page in 'index.html|your own kernels and streams' 'classweir_1_1stream.html|eased from the device' 'namespaceweir.html|parallel_for' 'md_docs_tutorial_find_a_race.html|The program'; do
    shown "${page%%|*}" > "$work/dom" || true
    grep -q "${page#*|}" "$work/dom" || { echo "FAILED: the browser shows no '${page#*|}' in ${page%%|*}"; failed=1; }
    grep -q 'id="MSearchField"' "$work/dom" || { echo "FAILED: no search in ${page%%|*}"; failed=1; }
  done
fi
exit $failed
