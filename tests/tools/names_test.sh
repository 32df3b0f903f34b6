#!/usr/bin/env bash
# Every test `suite.what_it_says…` that README and docs name must exist; links and paths must lead to files. The
# library must know every variable WEIR_… that a test or a tool reads.
# With `using namespace weir` no public name clashes with a system name.
# Usage: names_test.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
find "$root/tests" -type f -exec cat {} + | tr '\n' ' ' | grep -aoE 'TEST(_F|_P)?\([a-z0-9_]+, *[a-z0-9_]+' | sed -E 's/^TEST(_F|_P)?\(//; s/, */./' | sort -u > "$work/tests"

# `suite.case` may end in … for a prefix or in * for all cases. A name with fewer words is a member or a file.
tests() { { grep -oE '`[a-z0-9_]+\.[a-z0-9_]*(…|\*)?`' | tr -d '`' | grep -E '(…|\*)$|\..*_.*_' || true; } | sort -u; }
untested() {  # prints the tests named on stdin that do not exist
  tests | while IFS= read -r name; do
    case $name in
      *… | *\*) head=${name%…}; head=${head%\*}; grep -q -- "^${head//./\\.}" "$work/tests" || echo "$name" ;;
      *) grep -qxF -- "$name" "$work/tests" || echo "$name" ;;
    esac
  done
}
dangling() {  # dangling FOLDER: prints links (from FOLDER) and paths (from the root) that lead to no file
  local text to
  text=$(cat)
  { sed '/^```/,/^```$/d' <<< "$text" | grep -oE '\]\([^)#[:space:]]+' || true; } | cut -c3- | sort -u | while IFS= read -r to; do
    [[ $to == *:* ]] || [ -e "$1/$to" ] || echo "$to"
  done
  { grep -oE '`(bench|checkpoint|cmake|docs|examples|include|interop|peer|runtime|simulator|streams|tensor|tests|tools|train)/[a-z0-9_./*]*`' <<< "$text" || true; } |
    tr -d '`' | sort -u | while IFS= read -r to; do compgen -G "$root/$to" > /dev/null || echo "$to"; done
}
[ "$(echo '[a](b.md#c), [d](e:f), [g](README.md#h), `tests/*/names_test.sh`, `peer/nowhere.cpp`' | dangling "$root/docs" | xargs)" = 'b.md peer/nowhere.cpp' ] ||
  { echo "a link that leads nowhere was not found"; exit 1; }
[ "$(echo '`peers.a_cat_sat…`, `nobodys.*`, `peers.on_the_mat`' | untested | xargs)" = 'nobodys.* peers.a_cat_sat… peers.on_the_mat' ] || { echo "a test that is not there was not found"; exit 1; }
failed=0
for page in "$root"/README.md "$root"/CONTRIBUTING.md "$root"/docs/*.md "$root"/docs/*/*.md; do
  wrong=$(untested < "$page"; dangling "$(dirname "$page")" < "$page")
  [ -z "$wrong" ] || { echo "${page#"$root"/} names what is not there:"; echo "$wrong"; failed=1; }
done
# Pages that sources, scripts and messages name.
wrong=$(cd "$root" && grep -rhoE 'docs/[a-z0-9/_-]+\.md' include runtime simulator streams peer tensor train checkpoint examples tools bench tests cmake run .ci 2> /dev/null | sort -u |
  while IFS= read -r page; do [ -e "$page" ] || [ "$page" = docs/decisions/why.md ] || echo "$page"; done)
[ -z "$wrong" ] || { echo "sources name pages that are not there:" $wrong; failed=1; }
tested=$(cat "$root"/docs/*/*.md | tests | wc -l)
[ "$tested" -gt 60 ] || { echo "only $tested tests were looked for"; failed=1; }

sed -n '/unknown_variables() {/,/ lines;/p' "$root/runtime/options/variables.cpp" | grep -oE '"WEIR_[A-Z_]+"' | tr -d '"' | sort -u > "$work/variables"
for name in $(sed -n '/ours\[\]/,/;/p' "$root/runtime/options/variables.cpp" | grep -oE 'WEIR_[A-Z_]+'); do
  grep -qF "\`$name\`" "$root/docs/reference/command-line.md" || { echo "docs/reference/command-line.md has no row of $name"; failed=1; }
done
read_by_tests() { (cd "$root" && grep -rhoE '(getenv|environment|number)\("WEIR_[A-Z_]+"|\$\{?WEIR_[A-Z_]+' tests tools bench examples run) | grep -oE 'WEIR_[A-Z_]+' | sort -u; }
untold() { while IFS= read -r name; do awk -v name="$name" 'index(name, $0) == 1 { found = 1 } END { exit !found }' "$work/variables" || echo "$name"; done; }
[ "$(echo WEIR_COLOUR | untold)" = WEIR_COLOUR ] || { echo "an unknown variable was not found"; exit 1; }
wrong=$(read_by_tests | untold)
[ -z "$wrong" ] || { echo "the library would warn of:" $wrong; failed=1; }
[ "$(read_by_tests | wc -l)" -gt 20 ] || { echo "only $(read_by_tests | wc -l) variables were looked for"; failed=1; }

cat > "$work/system.cpp" << 'END'
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
END
# Not the adaptors for what comes with a CUDA toolkit or LibTorch.
(cd "$root/include" && grep -LE '^#include <(cuda|thrust|torch)' weir/*.h | sed 's/.*/#include "&"/') >> "$work/system.cpp"
cat >> "$work/system.cpp" << 'END'
int both(void* dst, void const* src) {
  using namespace std;
  using namespace std::chrono;
  using namespace weir;
  struct stat about;
  copy(dst, src, 8), fill(dst, byte{1}, 8), memset(dst, 0, 8);
  float_milliseconds const part{0.5f};
  milliseconds const whole{1};
  return access("/", R_OK) + link("/", "/") + stat("/", &about) + rand() + int(clock() + sin(1.0) + part.count()) + int(whole.count());
}
END
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$2/CMakeCache.txt")
"$compiler" -std=c++20 -fsyntax-only -I"$root/include" "$work/system.cpp" || { echo "a public name clashes with one of the system's"; failed=1; }
exit $failed
