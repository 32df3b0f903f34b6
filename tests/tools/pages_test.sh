#!/usr/bin/env bash
# What README.md and the pages in docs/ promise: quoted files are the files, figures come from tools/figures, each message of the table
# is in the sources, and the text stays short. Usage: pages_test.sh ROOT BUILD
set -euo pipefail
root=$(cd "$1" && pwd)
failed=0
fail() { echo "FAILED: $*"; failed=1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mapfile -t pages < <(cd "$root" && { ls README.md CONTRIBUTING.md; find docs -name '*.md' -not -path 'docs/lab/*'; } | LC_ALL=C sort)

# A block after <!-- file: NAME --> is that file.
quoted=0
for page in "${pages[@]}"; do
  while IFS= read -r name; do
    quoted=$((quoted + 1))
    awk -v mark="<!-- file: $name -->" '$0 == mark { wait = 1; next } wait && /^```/ { on = !on; if (!on) exit; next } on' "$root/$page" | cmp -s - "$root/$name" ||
      fail "$page quotes $name otherwise than it is"
  done < <(sed -n 's/^<!-- file: \(.*\) -->$/\1/p' "$root/$page")
done
[ $quoted -gt 0 ] || fail "no page quotes a file"

# Blocks of C++ are tested, programs and pages name their headers, and names in backticks exist. Then a copy with faults of each kind.
if command -v python3 > /dev/null; then
  mkdir "$work/programs"
  "$root/tests/tools/page_programs" "$root" "$work/programs" || fail "the programs and names of the pages"
  while read -r line; do
    read -r tool name more <<< "${line%%:*}"
    case $tool in
      weir) [ ! -x "$2/bin/weir" ] || "$2/bin/weir" $name $more --help > "$work/help" 2>&1 || fail "a page shows $line: no such command" ;;
      ./run) cat "$root/run" "$root"/examples/*/*.cpp > "$work/help"; grep -q "^  $name " "$root/run" || fail "a page shows $line: no such command" ;;
      *) cp "$root/$tool" "$work/help" || fail "a page shows $line: no such file" ;;
    esac
    for option in ${line#*:}; do
      [ ! -s "$work/help" ] || [ "$option" = --benchmark ] || grep -qF -- "$option" "$work/help" || fail "a page shows $line: no option $option"
    done
  done < <(sort -u "$work/programs/commands")
  mkdir "$work/tree"
  ln -s "$root"/* "$work/tree/"
  rm "$work/tree"/{README.md,docs}
  cp -r "$root"/{README.md,docs} "$work/tree/"
  wrong=dok
  sed -i '/^<!-- part: pools.1 -->$/d' "$work/tree/docs/how-to/pools.md"
  sed -i 's/`weir doctor`/`weir '$wrong'tor`/; s/^weir::record_timeline();/weir::record_time();/' "$work/tree/docs/how-to/where-did-my-memory-go.md"
  sed -i '/^#include "weir.memory.h"/d; s/^#include "weir.copy.h"/&\n#include "weir\/peer.h"/' "$work/tree/README.md"
  sed -i 's/weir.pool.h/weir\/poo.h/' "$work/tree/docs/how-to/pools.md"
  echo 'Call `weir::empty_cash()`.' >> "$work/tree/docs/how-to/install.md"
  status=0
  "$root/tests/tools/page_programs" "$work/tree" > "$work/said" || status=$?
  [ $status = 1 ] || fail "page_programs found nothing in pages with faults"
  for text in 'pools.md:5: no comment before' 'pools.1 is no part of a page' "${wrong}tor is not in the repository" 'record_time(); is not in examples' \
    'saxpy.cu does not include the header of allocate (memory.h)' 'saxpy.cu uses nothing of peer.h' 'no header is named for pool' \
    'no public header declares weir::empty_cash'; do
    grep -qF -- "$text" "$work/said" || fail "page_programs did not find: $text"
  done
fi

# Figures: the page whole, and the table of the README.
"$root/tools/figures" > "$work/page"
cmp -s "$work/page" "$root/docs/reference/benchmarks.md" || fail "docs/reference/benchmarks.md is not what tools/figures prints (tools/figures --write)"
sed -n '/^<!-- tools\/figures --readme -->$/,//p' "$root/README.md" | grep '^|' > "$work/table"
"$root/tools/figures" --readme | grep . | cmp -s - "$work/table" || fail "the table of README.md is not what tools/figures --readme prints"
printf '{"run": "a"}\nno json\n' > "$work/run"
status=0
"$root/tools/figures" "$work/run" > /dev/null 2> "$work/err" || status=$?
[ $status = 2 ] && grep -q 'run:2: no JSON' "$work/err" || fail "a line that is no JSON: status $status"
# A run of this machine: what the tool prints becomes a page.
cat > "$work/weir" << 'END'
#!/bin/sh
case "$1 $2" in
  "info "*) echo "a machine of stubs" ;;
  "bench alloc") echo '{"pattern": "pair512", "allocator": "weir", "ns": 12.5, "mpairs_per_s": 80}' ;;
  "bench copy") echo '{"row": "pinned_h2d", "bytes": 1048576, "unit": "GB/s", "weir": 50.5, "raw": 51, "ratio": 0.99}' ;;
  "bench pipeline") echo '{"batch_bytes": 65536, "ratio": 1.01, "by_hand_ratio": 1.02, "reserved_mib": 4}' ;;
  replay*) echo '{"trace": "x/a.trace.gz", "ops": 9, "ratio": 1.02, "first_ns_per_op": 1, "warm_ns_per_op": 2}' ;;
esac
END
cat > "$work/weir_bench" << 'END'
#!/bin/sh
for checked in 0 1; do
  for name in fill/checked:$checked allocate_and_free/checked:$checked launch_and_wait/checked:$checked/uses:1 \
    launch_and_wait/checked:$checked/uses:4 launch_and_wait/checked:$checked/uses:8; do
    rows="$rows${rows:+,}{\"name\": \"check/$name\", \"real_time\": 8$checked}"
  done
done
echo "{\"benchmarks\": [$rows]}"
END
chmod +x "$work/weir" "$work/weir_bench"
WEIR_TOOL=$work/weir "$root/tools/figures" --measure x/a.trace.gz > "$work/run" && "$root/tools/figures" "$work/run" > "$work/page"
for cell in 'a machine of stubs' '| 12.5 |' '| 50.5 | 51 |' '| equal stages | 1.010 | 1.020 |' '| a fill | 80 | 81 |' '| a | 9 | 1.020 |'; do
  grep -qF -- "$cell" "$work/page" || fail "the page of a measured run has no '$cell'"
done

# docs/decisions/memory-objects.md has each object that a device's allocator is made of.
objects=$(sed -nE 's/^  (mutable )?([a-z_]+)&? [a-z]+_(\{.*\})?;$/\2/p' "$root/runtime/memory/device/device_allocator.h")
[ "$(wc -w <<< "$objects")" -gt 12 ] || fail "only $(wc -w <<< "$objects") objects were looked for"
for object in $objects; do
  grep -qE "^\|[^|]*\`$object\`" "$root/docs/decisions/memory-objects.md" || fail "docs/decisions/memory-objects.md has no row of $object"
done

# docs/explanation/architecture.md has each room of the library.
for room in $(awk '$1 ~ /\/$/ && $2 < 90 { print $1 }' "$root/tools/floors.txt"); do
  sed -n '/^```/,/^```/p' "$root/docs/explanation/architecture.md" | grep -qw "$(basename "$room")" || fail "docs/explanation/architecture.md shows no $room"
done

lines=$(wc -l < "$root/README.md")
[ "$lines" -ge 110 ] && [ "$lines" -le 130 ] || fail "README.md has $lines lines, not 110 to 130"

# A block after <!-- says: COMMAND --> is what that command prints; WEIR_WRITE_DOCS=1 writes them anew.
if [ -x "$2/bin/weir" ]; then
  page=$root/docs/reference/command-line.md
  while IFS= read -r line; do
    printf '%s\n' "$line"
    if [[ $line =~ ^'<!-- says: '(.*)' -->'$ ]]; then
      words=${BASH_REMATCH[1]}
      IFS= read -r line
      printf '%s\n' "$line"
      case $words in weir*) PATH=$2/bin:$PATH $words ;; ./run*) "$root"/$words ;; esac
      while IFS= read -r line && [ "$line" != '```' ]; do :; done
      printf '```\n'
    fi
  done < "$page" > "$work/command-line"
  [ -z "${WEIR_WRITE_DOCS:-}" ] || cp "$work/command-line" "$page"
  diff "$page" "$work/command-line" || fail "docs/reference/command-line.md is not what --help prints (WEIR_WRITE_DOCS=1 writes it anew)"
fi

# Every CMake option has a row in docs/how-to/install.md, and no row is of another one.
(cd "$root" && cat CMakeLists.txt cmake/*.cmake) | sed -nE 's/^ *(cmake_dependent_)?option\((WEIR_[A-Z_]+)( .*)?$/\2/p; s/^ *set\((WEIR_[A-Z_]+) .* CACHE STRING( .*)?$/\1/p' | sort > "$work/options"
sed -n '/^## CMake options/,/^## A container/s/^| \(`WEIR_[^|]*\) |.*/\1/p' "$root/docs/how-to/install.md" | grep -o 'WEIR_[A-Z_]*' | sort > "$work/rows"
[ -s "$work/options" ] && diff "$work/options" "$work/rows" || fail "the options of CMake (<) are not the rows of docs/how-to/install.md (>)"

# Each message is in the sources: the texts of the first columns of docs/reference/messages.md.
(cd "$root" && find include runtime streams peer tensor train checkpoint simulator tools cmake CMakeLists.txt -type f ! -name '*.md' -exec cat {} +) > "$work/sources"
sed -n 's/^|\( [0-9 –]* |\)\{0,1\} `\([^`]*\)` |.*/\2/p' "$root/docs/reference/messages.md" > "$work/messages"
[ "$(wc -l < "$work/messages")" -ge 12 ] || fail "only $(wc -l < "$work/messages") messages were looked for"
# A long text is cut into two literals there.
tr -d '\n' < "$work/sources" | sed -E 's/" +"//g' > "$work/joined"
while IFS= read -r message; do
  grep -qF -- "$message" "$work/joined" || fail "no source says \"$message\" (docs/reference/messages.md)"
done < "$work/messages"

# Links to a heading lead to one.
if command -v python3 > /dev/null; then
  (cd "$root" && python3 - README.md CONTRIBUTING.md $(find docs -name '*.md')) << 'END' || fail "links to headings that are not there"
import os, re, sys
def plain(page): return re.sub(r"^```.*?^```", "", open(page, encoding="utf-8").read(), flags=re.S | re.M)
def anchor(heading): return re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "]", heading).strip().lower()).replace(" ", "-")
anchors = {page: {anchor(m[1]) for m in re.finditer(r"^#+ (.*)$", plain(page), flags=re.M)} for page in sys.argv[1:]}
wrong = False
for page in anchors:
    for to, heading in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", plain(page)):
        target = os.path.normpath(os.path.join(os.path.dirname(page), to)) if to else page
        if target in anchors and heading not in anchors[target]:
            print(f"{page}: {to}#{heading}"); wrong = True
sys.exit(wrong)
END
fi

# Words of pages that people write, tables among them; sentences of at most 20 words in the mean.
if command -v python3 > /dev/null; then
  (cd "$root" && python3 - "${pages[@]}") << 'END' || fail "the pages are too long"
import re, sys
total, broken = 0, False
sentences = []
for page in sys.argv[1:]:
    text = open(page, encoding="utf-8").read()
    prose = re.sub(r"^```.*?^```|^<!--.*?-->$", "", text, flags=re.S | re.M)
    generated = page in ("docs/reference/benchmarks.md", "docs/reference/options.md")
    total += 0 if generated else sum(bool(re.search("[A-Za-z0-9]", word)) for word in prose.split())
    prose = re.sub(r"^(\||#|<!--|!\[).*$", "", prose, flags=re.M)
    prose = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", prose))
    prose = re.sub(r"^[ ]*([-*]|\d+\.) ", ". ", prose, flags=re.M).replace("\n\n", ". ")
    mine = [len(s.split()) for s in re.split(r"[.?!]+(?:\s|$)", prose) if len(s.split()) > 1]
    sentences += mine
    mean = sum(mine) / max(1, len(mine))
    if mean > 20:
        print(f"{page}: {mean:.1f} words a sentence"); broken = True
    if page == "README.md" and re.search(r"\b[0-9a-f]{7,10}\b", prose):
        print("README.md names a commit"); broken = True
print(f"{total} words, {sum(sentences) / len(sentences):.1f} a sentence")
if total > 29000:
    print("29000 words at most"); broken = True
sys.exit(broken)
END
fi
exit $failed
